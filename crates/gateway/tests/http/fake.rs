//! A backend that computes nothing: tokens are bytes, and what it draws is a hash chain over the
//! prompt and the seed, so that every answer repeats.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use motley_gateway::{
    Abilities, Alternative, Backend, BackendMetrics, ChatPrompt, ClusterState, Constraint, Content,
    Delta, Drawn, EmbeddingRequest, Failure, FinishReason, Finished, GenerationRequest, Health,
    LinkState, ModelCard, NodeState, PlanState, Refusal, RenderedPrompt, Reply, Series, SeriesKind,
    SlotRequest, SlotState, SpecialTokens, Timings, TokenId, TokenSink, TokenStream, TokenUsage,
    ToolChoice,
};

pub const CONTEXT_TOKENS: u32 = 4_096;
/// Bytes, and control tokens above them.
pub const VOCABULARY_TOKENS: u32 = 260;
/// Control token that opens a turn; only the template can produce it.
const TURN: TokenId = TokenId(256);
/// Tokens of an answer that nothing else limits.
const USUAL_TOKENS: u32 = 12;

/// What a scripted generation does instead of drawing.
#[derive(Clone, Debug)]
pub enum Step {
    Wait(Duration),
    Say(&'static str),
    Think(&'static str),
    /// A tool call with these arguments.
    Call(&'static str, &'static str),
    Fail(Failure),
    Abandon,
    /// Draws text for ever, as fast as the reader takes it.
    Flood,
    /// Draws nothing for ever.
    Hang,
}

#[derive(Default)]
pub struct Fake {
    pub not_ready: Mutex<Option<Health>>,
    pub refusal: Mutex<Option<Refusal>>,
    pub script: Mutex<Option<Vec<Step>>>,
    pub seen: Mutex<Vec<GenerationRequest>>,
    pub prompts: Mutex<Vec<ChatPrompt>>,
    pub cancelled: std::sync::Arc<AtomicU32>,
    pub sent: std::sync::Arc<AtomicU32>,
    pub no_embeddings: AtomicBool,
}

impl Fake {
    pub fn cancelled(&self) -> u32 {
        self.cancelled.load(Ordering::SeqCst)
    }

    pub fn last_request(&self) -> GenerationRequest {
        self.seen.lock().unwrap().last().cloned().expect("a request was submitted")
    }

    pub fn last_prompt(&self) -> ChatPrompt {
        self.prompts.lock().unwrap().last().cloned().expect("a prompt was rendered")
    }

    pub fn play(&self, steps: Vec<Step>) {
        *self.script.lock().unwrap() = Some(steps);
    }
}

fn card(embeddings: bool) -> ModelCard {
    ModelCard {
        id: "m".to_owned(),
        aliases: vec!["motley/tiny".to_owned()],
        created_unix_s: 1_700_000_000,
        owned_by: "motley".to_owned(),
        architecture: "hash".to_owned(),
        quantisation: "Q8_0".to_owned(),
        parameter_count: 1_000_000,
        weights_bytes: 1_048_576,
        digest: "ab".repeat(32),
        context_tokens: CONTEXT_TOKENS,
        vocabulary_tokens: VOCABULARY_TOKENS,
        embedding_length: 4,
        chat_template: Some("{{ messages }}".to_owned()),
        licence: Some("MIT".to_owned()),
        abilities: Abilities { chat: true, embeddings, tools: true, reasoning: true },
        system_fingerprint: "fp_fake".to_owned(),
    }
}

impl Backend for Fake {
    fn models(&self) -> Vec<ModelCard> {
        vec![card(!self.no_embeddings.load(Ordering::SeqCst))]
    }

    fn health(&self) -> Health {
        self.not_ready.lock().unwrap().clone().unwrap_or(Health::Ready)
    }

    fn slots(&self) -> Vec<SlotState> {
        let request = SlotRequest {
            id: "req_1".to_owned(),
            prompt_tokens: 10,
            prefilled_tokens: 8,
            drawn_tokens: 3,
            tokens_max: 5,
        };
        vec![
            SlotState { slot: 0, context_tokens: CONTEXT_TOKENS, request: Some(request) },
            SlotState { slot: 1, context_tokens: CONTEXT_TOKENS, request: None },
        ]
    }

    fn metrics(&self) -> BackendMetrics {
        BackendMetrics {
            running: 1,
            waiting: 2,
            kv_used_ratio: BTreeMap::from([("desk".to_owned(), 0.25)]),
            prefix_queried_tokens: 100,
            prefix_hit_tokens: 40,
            preemptions: 3,
            migrations: BTreeMap::from([("node_lost".to_owned(), 1)]),
            more: vec![Series {
                name: "hop_bytes_total",
                help: "Activation bytes sent",
                kind: SeriesKind::Counter,
                samples: vec![(vec![("hop", "a-b".to_owned())], 7.0)],
            }],
        }
    }

    fn cluster(&self) -> ClusterState {
        let node = NodeState {
            name: "desk".to_owned(),
            head: true,
            state: "serving".to_owned(),
            layers: vec![(0, 4)],
            memory_budget_bytes: 1_000,
            memory_used_bytes: 400,
            busy_ratio: Some(0.5),
            step: Some(Duration::from_micros(250)),
            token_predicted: Some(Duration::from_micros(240)),
            correction: Some(1.5),
            ..NodeState::default()
        };
        let plan = PlanState {
            token_predicted: Duration::from_micros(260),
            reasons: vec!["One device serves best: desk.".to_owned()],
            ..PlanState::default()
        };
        let link = LinkState {
            from: "desk".to_owned(),
            to: "laptop".to_owned(),
            round_trip: Duration::from_micros(90),
            bytes_per_s: 1_000_000,
            assumed: true,
        };
        ClusterState {
            epoch: 3,
            groups: 1,
            rounds: 1,
            nodes: vec![node],
            plan: Some(plan),
            links: vec![link],
            ..ClusterState::default()
        }
    }

    fn tokenize(
        &self,
        _: String,
        text: String,
        special: SpecialTokens,
        tokens_max: Option<u32>,
    ) -> Reply<'_, Vec<TokenId>> {
        if let Some(refusal) = certainly_too_long(text.len(), tokens_max) {
            return Box::pin(async { Err(refusal) });
        }
        let mut tokens: Vec<TokenId> = text.bytes().map(|byte| TokenId(byte.into())).collect();
        if special.add && !tokens.is_empty() {
            tokens.insert(0, TURN);
        }
        Box::pin(async { Ok(tokens) })
    }

    fn detokenize(&self, _: String, tokens: Vec<TokenId>) -> Reply<'_, Vec<u8>> {
        let bytes = tokens.iter().filter_map(|token| u8::try_from(token.0).ok()).collect();
        Box::pin(async { Ok(bytes) })
    }

    fn apply_template(
        &self,
        _: String,
        prompt: ChatPrompt,
        tokens_max: Option<u32>,
    ) -> Reply<'_, RenderedPrompt> {
        let said = prompt.messages.iter().map(|message| message.content.len()).sum();
        if let Some(refusal) = certainly_too_long(said, tokens_max) {
            return Box::pin(async { Err(refusal) });
        }
        let (mut text, mut tokens) = (String::new(), Vec::new());
        for message in &prompt.messages {
            text.push_str(&format!("<|turn|>{}\n{}\n", message.role.as_str(), message.content));
            tokens.push(TURN);
            let said = format!("{}\n{}\n", message.role.as_str(), message.content);
            tokens.extend(said.bytes().map(|byte| TokenId(byte.into())));
        }
        if prompt.add_generation_prompt {
            text.push_str("<|turn|>assistant\n");
            tokens.push(TURN);
        }
        self.prompts.lock().unwrap().push(prompt);
        Box::pin(async { Ok(RenderedPrompt { text, tokens }) })
    }

    fn submit(&self, request: GenerationRequest) -> Reply<'_, TokenStream> {
        if let Some(refusal) = self.refusal.lock().unwrap().clone() {
            return Box::pin(async { Err(refusal) });
        }
        if let Constraint::JsonSchema { schema, .. } = &request.constraint
            && schema.contains("\"not\"")
        {
            let (pointer, problem) = ("/not".to_owned(), "not cannot be forced".to_owned());
            return Box::pin(async { Err(Refusal::Schema { pointer, problem }) });
        }
        self.seen.lock().unwrap().push(request.clone());
        let (sink, stream) = TokenStream::channel(8);
        let script = self.script.lock().unwrap().clone();
        let steps = script.unwrap_or_default().into();
        let cancelled = std::sync::Arc::clone(&self.cancelled);
        let sent = std::sync::Arc::clone(&self.sent);
        let plays = self.script.lock().unwrap().is_some();
        tokio::spawn(async move {
            let outcome = match plays {
                true => play(&request, sink, steps, &sent).await,
                false => draw(&request, sink).await,
            };
            if outcome.is_err() {
                cancelled.fetch_add(1, Ordering::SeqCst);
            }
        });
        Box::pin(async { Ok(stream) })
    }

    fn embed(&self, request: EmbeddingRequest) -> Reply<'_, Vec<Vec<f32>>> {
        let embed = |tokens: &Vec<TokenId>| {
            let hash = tokens.iter().fold(1_u64, |hash, token| mix(hash ^ u64::from(token.0)));
            (0..4).map(|index| (mix(hash + index) % 100) as f32 / 100.0).collect()
        };
        let vectors = request.inputs.iter().map(embed).collect();
        Box::pin(async { Ok(vectors) })
    }
}

/// The reader left.
struct Cancelled;

async fn play(
    request: &GenerationRequest,
    sink: TokenSink,
    mut steps: VecDeque<Step>,
    sent: &AtomicU32,
) -> Result<(), Cancelled> {
    let (mut drawn, mut calls) = (0, 0);
    while let Some(step) = steps.pop_front() {
        let content = match step {
            Step::Wait(time) => {
                tokio::select! {
                    () = sink.cancelled() => return Err(Cancelled),
                    () = tokio::time::sleep(time) => continue,
                }
            }
            Step::Fail(failure) => {
                sink.fail(failure);
                return Ok(());
            }
            Step::Abandon => return Ok(()),
            Step::Hang => {
                sink.cancelled().await;
                return Err(Cancelled);
            }
            Step::Flood => {
                steps.push_front(Step::Flood);
                sent.fetch_add(1, Ordering::SeqCst);
                Content::Text("flood ".repeat(100))
            }
            Step::Call(name, arguments) => {
                let content = Content::CallStart { call: calls, name: name.to_owned() };
                let start = Delta::Piece { content, drawn: Vec::new() };
                sink.send(start).await.map_err(|_| Cancelled)?;
                calls += 1;
                Content::CallArguments { call: calls - 1, text: arguments.to_owned() }
            }
            Step::Say(text) => Content::Text(text.to_owned()),
            Step::Think(text) => Content::Reasoning(text.to_owned()),
        };
        drawn += 1;
        let piece = Delta::Piece { content, drawn: vec![token(request, b'x', drawn)] };
        sink.send(piece).await.map_err(|_| Cancelled)?;
    }
    sink.finish(finished(request, FinishReason::Stop, drawn));
    Ok(())
}

async fn draw(request: &GenerationRequest, sink: TokenSink) -> Result<(), Cancelled> {
    let send = async |delta| sink.send(delta).await.map_err(|_| Cancelled);
    if request.logprobs.prompt {
        let prompt = request.prompt.iter().enumerate().map(|(index, id)| {
            let byte = u8::try_from(id.0).ok();
            let logprob = (index > 0).then_some(-1.0);
            let bytes = byte.into_iter().collect();
            Drawn { token: *id, bytes, logprob, top: Vec::new() }
        });
        send(Delta::Prompt(prompt.collect())).await?;
    }
    if let Some(tools) = &request.tools {
        let name = match &tools.choice {
            ToolChoice::Named(name) => Some(name.clone()),
            ToolChoice::Required => Some(tools.tools[0].name.clone()),
            ToolChoice::Auto => None,
        };
        if let Some(name) = name {
            let pieces = [
                Content::CallStart { call: 0, name },
                Content::CallArguments { call: 0, text: "{\"city\":".to_owned() },
                Content::CallArguments { call: 0, text: "\"Oslo\"}".to_owned() },
            ];
            for (index, content) in (1..).zip(pieces) {
                send(Delta::Piece { content, drawn: vec![token(request, b'x', index)] }).await?;
            }
            sink.finish(finished(request, FinishReason::ToolCalls, 3));
            return Ok(());
        }
    }
    let text = match request.constraint {
        Constraint::Free => free_text(request),
        Constraint::JsonObject | Constraint::JsonSchema { .. } => "{\"a\":1}".to_owned(),
    };
    let stop_at = request.stop.texts.iter().filter_map(|stop| text.find(stop.as_str())).min();
    let shown = &text[..stop_at.unwrap_or(text.len())];
    let mut count = 0;
    for byte in shown.bytes() {
        count += 1;
        let content = Content::Text(char::from(byte).to_string());
        send(Delta::Piece { content, drawn: vec![token(request, byte, count)] }).await?;
    }
    let length = stop_at.is_none() && count == request.length.tokens_max;
    let reason = if length { FinishReason::Length } else { FinishReason::Stop };
    sink.finish(finished(request, reason, count));
    Ok(())
}

/// Letters by a hash chain over the prompt and the seed.
fn free_text(request: &GenerationRequest) -> String {
    let length = &request.length;
    let wanted = if length.ignore_end { length.tokens_max } else { USUAL_TOKENS };
    let wanted = wanted.max(length.tokens_min).min(length.tokens_max);
    let mut state = request.sampling.seed.unwrap_or(7);
    for token in &request.prompt {
        state = mix(state ^ u64::from(token.0));
    }
    let letters = (0..wanted).map(|_| {
        state = mix(state);
        char::from(b'a' + (state % 26) as u8)
    });
    letters.collect()
}

fn token(request: &GenerationRequest, byte: u8, position: u32) -> Drawn {
    let logprob = request.logprobs.drawn.map(|_| -(f32::from(byte % 7) + 1.0) / 4.0);
    let top = (0..request.logprobs.drawn.unwrap_or(0)).map(|rank| Alternative {
        token: TokenId(u32::from(byte) + u32::from(rank)),
        bytes: vec![byte.wrapping_add(rank)],
        logprob: -f32::from(rank) - 0.25,
    });
    debug_assert!(position > 0, "positions count from one");
    Drawn { token: TokenId(byte.into()), bytes: vec![byte], logprob, top: top.collect() }
}

fn finished(request: &GenerationRequest, reason: FinishReason, drawn: u32) -> Finished {
    let prompt_tokens = u32::try_from(request.prompt.len()).unwrap();
    Finished {
        reason,
        usage: TokenUsage {
            prompt_tokens,
            cached_tokens: prompt_tokens / 2,
            completion_tokens: drawn,
            reasoning_tokens: 0,
        },
        timings: Timings {
            queued: Duration::from_millis(1),
            loaded: Duration::ZERO,
            prefill: Duration::from_millis(20),
            decode: Duration::from_millis(30),
        },
    }
}

fn mix(state: u64) -> u64 {
    let state = (state ^ (state >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) ^ (state >> 33)
}

/// Every byte is a token; more than ten times the room is told from the length alone.
fn certainly_too_long(bytes: usize, tokens_max: Option<u32>) -> Option<Refusal> {
    let (tokens_min, context_tokens) = (u32::try_from(bytes / 10).unwrap(), tokens_max?);
    (tokens_min > context_tokens).then_some(Refusal::PromptTooLong { tokens_min, context_tokens })
}
