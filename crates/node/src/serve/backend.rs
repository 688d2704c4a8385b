//! The gateway's backend: one model on the driver of this process.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use motley_engine::{Model, SamplingOptions, SamplingParameters, StopMatcher};
use motley_gateway::{
    Backend, BackendMetrics, Caller, ChatPrompt, ClusterState, EmbeddingRequest, Failure,
    GenerationRequest, Health, ModelCard, NodeState, Refusal, RenderedPrompt, Reply, SlotRequest,
    SlotState, SpecialTokens, TokenId, TokenStream,
};
use motley_ggml::{Token, Vocabulary};

use super::calls::{self, AnswerReader, CallStyle};
use super::forms::FormLimits;
use super::listener::{
    MarkerTokens, PIECES_WAITING_MAX, SinkListener, TextOfTokens, count, token_id,
};
use super::thinking::{self, Thinking};
use super::{card, embedding, forms};
use crate::background::{Background, BackgroundError, Haste};
use crate::cluster::ClusterHead;
use crate::driver::{CallerKey, Driver, Purpose, Request, SubmitError};
use crate::prompt::{Conversation, PromptMaker};
use crate::run::random_seed;

/// When a client that was refused may try again.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// Tokens of a prompt's end that may have opened reasoning: a tag in pieces, and white space.
const END_TOKENS: usize = 8;

/// Text that is tokenized on the thread that read the request; longer text goes to the background.
const TEXT_BYTES_AT_ONCE: usize = 16 * 1024;

/// Long texts that are tokenized at the same time, so that one of many bytes does not make all
/// others wait.
const TEXTS_AT_ONCE: usize = 4;

/// What a backend is made of.
pub(super) struct Parts {
    pub(super) model: Arc<Model>,
    pub(super) vocabulary: Vocabulary,
    pub(super) driver: Arc<Driver>,
    pub(super) place: Place,
    pub(super) limits: FormLimits,
}

/// Where the driver's engine computes.
pub(super) enum Place {
    /// All of it here: the device's name, and the memory it gives.
    Alone { name: String, layers: u32, memory_bytes: u64 },
    /// On the devices of a cluster.
    Cluster(ClusterHead),
}

/// One model on one driver.
pub(super) struct EngineBackend {
    card: ModelCard,
    vocabulary: Arc<Vocabulary>,
    prompts: Arc<PromptMaker>,
    // Dropped before the driver, whose engine it may replace.
    place: Place,
    driver: Arc<Driver>,
    /// How the model writes tool calls, and the control tokens it writes them with.
    call_style: CallStyle,
    call_markers: Arc<MarkerTokens>,
    forms: forms::Compiler,
    texts: Background,
    /// Logits of the model, which may be more than its vocabulary has tokens.
    logits: usize,
    /// Turns a caller's key and salt into what the driver tells callers apart by.
    caller_hash: RandomState,
}

impl EngineBackend {
    /// A backend for a model whose slots have `context_tokens`.
    ///
    /// # Errors
    /// When the model's chat template does not parse.
    pub(super) fn new(parts: Parts, name: String, context_tokens: usize) -> anyhow::Result<Self> {
        let Parts { model, vocabulary, driver, place, limits } = parts;
        let directory = model.directory();
        let prompts = PromptMaker::new(&directory.description, &vocabulary)?;
        let vocabulary = Arc::new(vocabulary);
        let logits = directory.hyper.vocabulary_size;
        let probe = calls::probe();
        let written = prompts.written_calls(&probe);
        let call_style = calls::style_of(&probe, &written, prompts.template_source());
        let mut markers = call_style.markers().to_vec();
        if thinking::is_known(prompts.template_source()) {
            markers.extend([thinking::OPENING, thinking::CLOSING]);
        }
        let call_markers = MarkerTokens::new(&markers, &vocabulary)?;
        Ok(Self {
            card: card::card(&model, &prompts, name, count(context_tokens))?,
            forms: forms::Compiler::new(Arc::clone(&vocabulary), logits, limits),
            texts: Background::new("text", Haste::Request, TEXTS_AT_ONCE),
            vocabulary,
            prompts: Arc::new(prompts),
            call_style,
            call_markers: Arc::new(call_markers),
            logits,
            place,
            driver,
            caller_hash: RandomState::new(),
        })
    }

    /// Name of the model.
    pub(super) fn name(&self) -> &str {
        &self.card.id
    }

    fn caller(&self, caller: &Caller) -> CallerKey {
        CallerKey {
            caller: caller.key.map(|key| u64::from(key.0) + 1),
            prefix: self.caller_hash.hash_one((caller.key.map(|key| key.0), &caller.cache_salt)),
        }
    }

    async fn start(&self, request: GenerationRequest) -> Result<TokenStream, Refusal> {
        self.check_ready()?;
        let mut prompt = tokens(&request.prompt)?;
        if prompt.is_empty() {
            let begin = self.vocabulary.begin_of_text();
            prompt.push(begin.ok_or_else(|| unsupported("prompt", "an empty prompt"))?);
        }
        let options = sampling_options(&request, self.card.context_tokens)?;
        let parameters = SamplingParameters::new(options, self.logits)
            .map_err(|error| unsupported(error.field(), error.to_string()))?;
        let stop = StopMatcher::new(&request.stop.texts)
            .map_err(|error| unsupported("stop", error.to_string()))?;
        let form = forms::forced(&request, self.call_style, &self.call_markers)?;
        let whole = form.as_ref().is_some_and(forms::Grammar::is_whole);
        let constrainer = match form {
            Some(grammar) => Some(self.forms.matcher(grammar).await?),
            None => None,
        };
        let (sink, stream) = TokenStream::channel(PIECES_WAITING_MAX);
        let prompt_tokens = count(prompt.len());
        let reader = AnswerReader::new(request.tools.as_ref(), self.call_style);
        // A form that is the whole answer leaves no room for reasoning.
        let thinking = (request.reasoning && self.card.abilities.reasoning && !whole)
            .then(|| Thinking::after(&self.end_of(&prompt)));
        let text = TextOfTokens {
            vocabulary: Arc::clone(&self.vocabulary),
            markers: Arc::clone(&self.call_markers),
            stop,
            thinking,
        };
        let mut listener = SinkListener::new(sink, text, reader, prompt_tokens);
        let mut purpose = Purpose::Answer;
        if request.logprobs.prompt {
            listener.score_prompt(prompt[0]);
            purpose = Purpose::AnswerAndScores { top: request.logprobs.drawn.unwrap_or(0) };
        }
        let answer_tokens = request.length.tokens_max;
        let submitted = self.driver.submit(Request {
            id: request.id,
            caller: self.caller(&request.caller),
            priority: request.priority,
            prompt,
            purpose,
            parameters,
            constrainer,
            answer_tokens_max: answer_tokens as usize,
            listener: Box::new(listener),
        });
        submitted.map_err(|error| not_taken(&error, answer_tokens))?;
        Ok(stream)
    }

    /// The last words of a prompt, control tokens among them.
    fn end_of(&self, prompt: &[Token]) -> String {
        let mut bytes = Vec::new();
        for token in &prompt[prompt.len().saturating_sub(END_TOKENS)..] {
            // One that is not in the vocabulary says nothing.
            let _ = self.vocabulary.append_bytes(*token, true, &mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Runs work that grows with `bytes` where it holds nobody up.
    async fn at_leisure<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        if bytes <= TEXT_BYTES_AT_ONCE {
            return work();
        }
        self.texts.run(work).await.map_err(BackgroundError::into_refusal)?
    }

    fn check_ready(&self) -> Result<(), Refusal> {
        match self.health() {
            Health::Ready => Ok(()),
            Health::Loading { .. } => Err(Refusal::Loading { retry_after: RETRY_AFTER }),
            Health::NoPlan { reason } => Err(Refusal::NoPlan { reason }),
        }
    }

    /// Embeds as many inputs at a time as there are slots, so that one request cannot fill the
    /// queue.
    async fn embed_all(&self, request: EmbeddingRequest) -> Result<Vec<Vec<f32>>, Refusal> {
        self.check_ready()?;
        let at_once = self.driver.facts().map_or(1, |facts| facts.slots);
        let mut vectors = Vec::with_capacity(request.inputs.len());
        let mut pending = VecDeque::new();
        for input in &request.inputs {
            if pending.len() == at_once {
                vectors.extend(embedding::next(&mut pending).await?);
            }
            let prompt = tokens(input)?;
            let (listener, embedding) = embedding::channel();
            let submitted = self.driver.submit(Request {
                id: request.id.clone(),
                caller: self.caller(&request.caller),
                priority: 0,
                prompt,
                purpose: Purpose::Embedding,
                parameters: SamplingParameters::new(SamplingOptions::greedy(), self.logits)
                    .map_err(|error| unsupported(error.field(), error.to_string()))?,
                constrainer: None,
                answer_tokens_max: 0,
                listener: Box::new(listener),
            });
            submitted.map_err(|error| not_taken(&error, 0))?;
            pending.push_back(embedding);
        }
        while let Some(vector) = embedding::next(&mut pending).await? {
            vectors.push(vector);
        }
        Ok(vectors)
    }
}

impl Backend for EngineBackend {
    fn models(&self) -> Vec<ModelCard> {
        vec![self.card.clone()]
    }

    fn health(&self) -> Health {
        match &self.place {
            Place::Alone { .. } => Health::Ready,
            Place::Cluster(head) => head.view().health,
        }
    }

    fn slots(&self) -> Vec<SlotState> {
        let context_tokens = self.card.context_tokens;
        let state = self.driver.state();
        (0_u32..)
            .zip(state.slots)
            .map(|(slot, busy)| {
                let request = busy.map(|busy| SlotRequest {
                    id: busy.id.to_string(),
                    prompt_tokens: count(busy.prompt_tokens),
                    prefilled_tokens: count(busy.prefilled_tokens),
                    drawn_tokens: count(busy.answer_tokens),
                    tokens_max: count(busy.answer_tokens_max),
                });
                SlotState { slot, context_tokens, request }
            })
            .collect()
    }

    fn metrics(&self) -> BackendMetrics {
        let state = self.driver.state();
        let held: usize = state.held_tokens;
        let capacity = state.slots.len() * self.card.context_tokens as usize;
        let used = held as f64 / capacity.max(1) as f64;
        BackendMetrics {
            running: count(state.slots.iter().flatten().count()),
            waiting: count(state.waiting),
            kv_used_ratio: BTreeMap::from([("local".to_owned(), used)]),
            prefix_queried_tokens: state.prefix_queried_tokens,
            prefix_hit_tokens: state.prefix_hit_tokens,
            preemptions: 0,
            migrations: BTreeMap::new(),
            more: match &self.place {
                Place::Cluster(head) => head.series(),
                Place::Alone { .. } => Vec::new(),
            },
        }
    }

    fn cluster(&self) -> ClusterState {
        match &self.place {
            Place::Cluster(head) => head.view().cluster,
            Place::Alone { name, layers, memory_bytes } => ClusterState {
                epoch: 1,
                change: None,
                groups: 1,
                rounds: 1,
                nodes: vec![NodeState {
                    name: name.clone(),
                    head: true,
                    state: "serving".to_owned(),
                    layers: vec![(0, *layers)],
                    memory_budget_bytes: *memory_bytes,
                    memory_used_bytes: *memory_bytes,
                    ..NodeState::default()
                }],
                ..ClusterState::default()
            },
        }
    }

    fn tokenize(
        &self,
        _model: String,
        text: String,
        special: SpecialTokens,
        tokens_max: Option<u32>,
    ) -> Reply<'_, Vec<TokenId>> {
        // Before it waits for its turn in the background.
        if let Err(refusal) = refuse_beyond(tokens_max, self.vocabulary.tokens_at_least(&text)) {
            return Box::pin(async { Err(refusal) });
        }
        let vocabulary = Arc::clone(&self.vocabulary);
        let bytes = text.len();
        Box::pin(self.at_leisure(bytes, move || {
            let tokens = vocabulary
                .tokenize(&text, special.add, special.parse)
                .map_err(|error| compute_failure(&error))?;
            Ok(tokens.into_iter().map(token_id).collect())
        }))
    }

    fn detokenize(&self, _model: String, ids: Vec<TokenId>) -> Reply<'_, Vec<u8>> {
        let vocabulary = Arc::clone(&self.vocabulary);
        Box::pin(self.at_leisure(ids.len(), move || {
            let mut bytes = Vec::new();
            for token in tokens(&ids)? {
                vocabulary
                    .append_bytes(token, true, &mut bytes)
                    .map_err(|error| unsupported("tokens", error.to_string()))?;
            }
            Ok(bytes)
        }))
    }

    fn apply_template(
        &self,
        _model: String,
        prompt: ChatPrompt,
        tokens_max: Option<u32>,
    ) -> Reply<'_, RenderedPrompt> {
        let (vocabulary, prompts) = (Arc::clone(&self.vocabulary), Arc::clone(&self.prompts));
        let said = prompt.messages.iter().map(|message| message.content.len());
        let offered = prompt.tools.iter().map(|tool| tool.parameters.len());
        let bytes = said.chain(offered).sum();
        Box::pin(self.at_leisure(bytes, move || {
            let conversation = Conversation::from_prompt(&prompt, prompts.abilities());
            let problem =
                |error: anyhow::Error| Refusal::Template { problem: format!("{error:#}") };
            let rendered = prompts.render(&conversation).map_err(problem)?;
            refuse_beyond(tokens_max, rendered.tokens_at_least(&vocabulary))?;
            let tokens = rendered.tokens(&vocabulary).map_err(|error| {
                Refusal::Failed(Failure::Compute { cause: format!("{error:#}") })
            })?;
            let tokens = tokens.into_iter().map(token_id).collect();
            Ok(RenderedPrompt { text: rendered.into_text(), tokens })
        }))
    }

    fn submit(&self, request: GenerationRequest) -> Reply<'_, TokenStream> {
        Box::pin(self.start(request))
    }

    fn embed(&self, request: EmbeddingRequest) -> Reply<'_, Vec<Vec<f32>>> {
        Box::pin(self.embed_all(request))
    }
}

/// Refuses a prompt that has `tokens_min` tokens at least where there is room for fewer.
fn refuse_beyond(tokens_max: Option<u32>, tokens_min: usize) -> Result<(), Refusal> {
    let tokens_min = count(tokens_min);
    match tokens_max {
        Some(context_tokens) if tokens_min > context_tokens => {
            Err(Refusal::PromptTooLong { tokens_min, context_tokens })
        }
        _ => Ok(()),
    }
}

/// Why the driver did not take a request, as clients are told.
fn not_taken(error: &SubmitError, answer_tokens: u32) -> Refusal {
    let retry_after = RETRY_AFTER;
    match *error {
        SubmitError::PromptTooLong { tokens, context_tokens } => Refusal::ContextExceeded {
            prompt_tokens: count(tokens),
            answer_tokens,
            context_tokens: count(context_tokens),
        },
        SubmitError::EmptyPrompt => unsupported("prompt", "an empty prompt"),
        SubmitError::Busy { waiting } => {
            Refusal::QueueFull { waiting: count(waiting), retry_after }
        }
        SubmitError::CallerBusy { waiting } => {
            Refusal::KeyQueueFull { waiting: count(waiting), retry_after }
        }
        SubmitError::Stopped => Refusal::Failed(Failure::Stopping),
    }
}

fn sampling_options(
    request: &GenerationRequest,
    context_tokens: u32,
) -> Result<SamplingOptions, Refusal> {
    let sampling = &request.sampling;
    let mut logit_bias = Vec::with_capacity(sampling.logit_bias.len());
    for (token, bias) in &sampling.logit_bias {
        logit_bias.push((token_of(*token)?, *bias));
    }
    Ok(SamplingOptions {
        temperature: sampling.temperature,
        top_k: sampling.top_k.unwrap_or(0),
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        repetition_penalty: sampling.repetition_penalty,
        repetition_window: context_tokens,
        presence_penalty: sampling.presence_penalty,
        frequency_penalty: sampling.frequency_penalty,
        logit_bias,
        seed: sampling.seed.unwrap_or_else(random_seed),
        top_logprobs: request.logprobs.drawn.map(u32::from),
        ignore_eos: request.length.ignore_end,
        min_tokens: request.length.tokens_min,
        stop_token_ids: tokens(&request.stop.tokens)?,
    })
}

fn tokens(ids: &[TokenId]) -> Result<Vec<Token>, Refusal> {
    ids.iter().copied().map(token_of).collect()
}

fn token_of(id: TokenId) -> Result<Token, Refusal> {
    Token::try_from(id.0).map_err(|_| unsupported("tokens", format!("token {}", id.0)))
}

fn unsupported(param: impl Into<String>, feature: impl Into<String>) -> Refusal {
    Refusal::Unsupported { param: param.into(), feature: feature.into() }
}

fn compute_failure(error: &motley_ggml::VocabularyError) -> Refusal {
    Refusal::Failed(Failure::Compute { cause: error.to_string() })
}
