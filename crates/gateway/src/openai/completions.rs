//! `POST /v1/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::wire::{
    COMMENT, DONE, Head, Usage, completion_logprobs, push_event, repeat, usage_json, warn_of,
};
use crate::backend::{Caller, GenerationRequest, LogprobDetail, ModelCard, SpecialTokens, TokenId};
use crate::choices::{Answer, Choices, UsageSum, collect};
use crate::config::GatewayConfig;
use crate::error::{About, ApiError};
use crate::fields::Fields;
use crate::gateway::{Gateway, RequestContext};
use crate::json::read_object;
use crate::limits::Limits;
use crate::messages::{SCHEMA_PARAM, read_response_format};
use crate::options::{
    OPTION_FIELDS, Options, StreamOptions, read_length, read_options, read_token,
};
use crate::respond::{Encoder, json_response, stream_response};
use crate::token_stream::{Content, Delta, Drawn, Finished, TokenUsage};

/// Members known besides the shared ones.
pub(crate) const COMPLETION_FIELDS: [&str; 6] =
    ["best_of", "echo", "logprobs", "prompt", "response_format", "suffix"];

/// Members that ask for what is not offered; ignoring them would answer another question.
const REFUSED: [(&str, &str); 4] = [
    ("grammar", "use response_format with a JSON schema"),
    ("guided_grammar", "use response_format with a JSON schema"),
    ("guided_regex", "use response_format with a JSON schema"),
    ("prompt_embeds", "prompts are text or tokens"),
];

/// Tokens of an answer when the client does not say; OpenAI's number.
const USUAL_TOKENS_MAX: u32 = 16;

const ABOUT: About = About { prompt: "prompt", schema: SCHEMA_PARAM };

pub(crate) async fn completions(
    State(gateway): State<Arc<Gateway>>,
    Extension(context): Extension<RequestContext>,
    body: Body,
) -> Result<Response, ApiError> {
    let object = read_object(body, &gateway.config.limits).await?;
    let fields = Fields::of_body(&object);
    let card = gateway.model(fields.text("model")?)?;
    let asked = read_completion(&fields, &card, &gateway.config)?;
    let head = Head {
        id: gateway.new_id("cmpl-"),
        created_unix_s: gateway.unix_time_s(),
        model: card.id.clone(),
        fingerprint: card.system_fingerprint.clone(),
    };
    let Asked { options, best_of, form, .. } = &asked;
    let (choices_per_prompt, stream, mut form) = (options.choices, options.stream, form.clone());
    let best_of = *best_of;
    let mut requests = Vec::new();
    for prompt in &asked.prompts {
        let tokens = prompt_tokens(&gateway, &card, prompt).await?;
        if form.echo {
            form.prompts.push(echoed(&gateway, &card, prompt, &tokens).await?);
        }
        let mut request = asked.request.clone();
        request.id.clone_from(&context.id);
        request.length = asked.options.length.settle("prompt", tokens.len(), best_of, &card)?;
        form.prompt_tokens += u32::try_from(tokens.len()).expect("a prompt fits the context");
        request.caller = context.caller(asked.options.cache_salt.clone());
        request.prompt = tokens;
        requests.extend(repeat(&request, best_of));
    }
    let choices = Choices::start(&gateway, &context, requests, ABOUT).await?;
    let mut response = match stream {
        None => {
            let answers = best(collect(choices).await?, choices_per_prompt, best_of);
            json_response(&whole(&head, &form, &answers, choices_per_prompt))
        }
        Some(stream) => {
            let encoder = CompletionEncoder::new(head, form, stream, choices.len());
            stream_response(choices, encoder, &gateway.config.limits).await?
        }
    };
    let known = [&OPTION_FIELDS[..], &COMPLETION_FIELDS[..]].concat();
    warn_of(&mut response, &fields.near_misses(&known));
    Ok(response)
}

/// A prompt as the client wrote it.
enum Prompt {
    Text(String),
    Tokens(Vec<TokenId>),
}

struct Asked {
    prompts: Vec<Prompt>,
    request: GenerationRequest,
    options: Options,
    best_of: u32,
    form: Form,
}

/// What each choice shows besides its own text.
#[derive(Clone, Debug)]
struct Form {
    echo: bool,
    logprobs: bool,
    /// Choices per prompt, to find the prompt of a choice.
    choices: usize,
    /// Texts of the prompts, if they are echoed.
    prompts: Vec<String>,
    /// Tokens of all prompts.
    prompt_tokens: u32,
}

impl Form {
    fn prompt(&self, choice: usize) -> &str {
        self.prompts.get(choice / self.choices).map_or("", String::as_str)
    }
}

fn read_completion(
    fields: &Fields<'_>,
    card: &ModelCard,
    config: &GatewayConfig,
) -> Result<Asked, ApiError> {
    let limits = &config.limits;
    fields.refuse(&REFUSED)?;
    if fields.text("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::unsupported("suffix", "answers continue the prompt"));
    }
    let prompts = read_prompts(fields, card, limits)?;
    let echo = fields.flag("echo")?.unwrap_or(false);
    // With echo, asking for no new token is a way to score the prompt.
    let mut length = read_length(fields, u32::from(!echo), &config.usual)?;
    length.tokens_max.get_or_insert(USUAL_TOKENS_MAX);
    let mut options = read_options(fields, length, card, config)?;
    let best_of = fields.count("best_of", 1..=limits.choices)?.unwrap_or(options.choices);
    if best_of < options.choices {
        return Err(ApiError::invalid("best_of", "must not be less than n"));
    }
    if best_of > options.choices && options.stream.is_some() {
        return Err(ApiError::invalid("best_of", "must equal n when streaming"));
    }
    if prompts.len() * best_of as usize > limits.generations {
        let problem = format!("times best_of must not exceed {}", limits.generations);
        return Err(ApiError::invalid("prompt", problem));
    }
    let logprobs = fields.count("logprobs", 0..=limits.top_logprobs.into())?;
    let top = logprobs.map(|top| u8::try_from(top).expect("within the limit, which is a u8"));
    // Choosing the best answer takes probabilities even if the client wants none.
    let drawn = top.or((best_of > options.choices).then_some(0));
    let request = GenerationRequest {
        id: String::new(),
        model: card.id.clone(),
        prompt: Vec::new(),
        length: options.length.settle("prompt", 0, 1, card)?,
        stop: std::mem::take(&mut options.stop),
        sampling: std::mem::take(&mut options.sampling),
        logprobs: LogprobDetail { drawn, prompt: echo && top.is_some() },
        constraint: read_response_format(fields, limits)?,
        tools: None,
        reasoning: false,
        caller: Caller::default(),
        priority: options.priority,
    };
    let choices = options.choices as usize;
    let form =
        Form { echo, logprobs: top.is_some(), choices, prompts: Vec::new(), prompt_tokens: 0 };
    Ok(Asked { prompts, request, options, best_of, form })
}

/// A text, a list of texts, a list of token ids, or a list of such lists.
fn read_prompts(
    fields: &Fields<'_>,
    card: &ModelCard,
    limits: &Limits,
) -> Result<Vec<Prompt>, ApiError> {
    let value = fields.required("prompt", fields.value("prompt"))?;
    let list = match value {
        Value::String(text) => return Ok(vec![Prompt::Text(text.clone())]),
        Value::Array(list) if !list.is_empty() => list,
        Value::Array(_) => return Err(ApiError::invalid("prompt", "must not be empty")),
        _ => return Err(ApiError::invalid("prompt", "must be a text or a list")),
    };
    let tokens = |list: &[Value]| -> Result<Prompt, ApiError> {
        let tokens = list.iter().map(|id| read_token(id, "prompt", card));
        Ok(Prompt::Tokens(tokens.collect::<Result<_, _>>()?))
    };
    if list[0].is_number() {
        return Ok(vec![tokens(list)?]);
    }
    if list.len() > limits.prompts {
        let problem = format!("must have at most {} entries", limits.prompts);
        return Err(ApiError::invalid("prompt", problem));
    }
    list.iter()
        .map(|value| match value {
            Value::String(text) => Ok(Prompt::Text(text.clone())),
            Value::Array(ids) if !ids.is_empty() => tokens(ids),
            _ => Err(ApiError::invalid("prompt", "must hold texts or lists of token ids")),
        })
        .collect()
}

async fn prompt_tokens(
    gateway: &Gateway,
    card: &ModelCard,
    prompt: &Prompt,
) -> Result<Vec<TokenId>, ApiError> {
    let text = match prompt {
        Prompt::Tokens(tokens) => return Ok(tokens.clone()),
        Prompt::Text(text) => text.clone(),
    };
    // Unlike a message, a prompt is written by whoever knows the model's control tokens.
    let special = SpecialTokens { add: true, parse: true };
    let room = Some(card.context_tokens);
    let tokens = gateway.backend.tokenize(card.id.clone(), text, special, room).await;
    let tokens =
        tokens.map_err(|refusal| ApiError::from_refusal(refusal, About::member("prompt")))?;
    if tokens.is_empty() {
        return Err(ApiError::invalid("prompt", "must not be empty for this model"));
    }
    Ok(tokens)
}

async fn echoed(
    gateway: &Gateway,
    card: &ModelCard,
    prompt: &Prompt,
    tokens: &[TokenId],
) -> Result<String, ApiError> {
    match prompt {
        Prompt::Text(text) => Ok(text.clone()),
        Prompt::Tokens(_) => {
            let bytes = gateway.backend.detokenize(card.id.clone(), tokens.to_vec()).await;
            let bytes = bytes
                .map_err(|refusal| ApiError::from_refusal(refusal, About::member("prompt")))?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }
    }
}

/// Answers of one prompt, of which the likeliest are shown, and what all of them used.
struct Kept {
    answers: Vec<Answer>,
    usage: UsageSum,
}

/// Of each prompt's `best_of` answers, the `choices` with the highest mean log-probability.
fn best(answers: Vec<Answer>, choices: u32, best_of: u32) -> Kept {
    let mut usage = UsageSum::default();
    let mut kept = Vec::new();
    let mut group = Vec::new();
    for (index, answer) in answers.into_iter().enumerate() {
        usage.add(answer.finished.usage, index.is_multiple_of(best_of as usize));
        group.push(answer);
        if group.len() == best_of as usize {
            if best_of > choices {
                group.sort_by(|a, b| mean_logprob(b).total_cmp(&mean_logprob(a)));
            }
            kept.extend(group.drain(..).take(choices as usize));
        }
    }
    Kept { answers: kept, usage }
}

fn mean_logprob(answer: &Answer) -> f64 {
    let sum: f64 = answer.drawn.iter().filter_map(|drawn| drawn.logprob).map(f64::from).sum();
    sum / answer.drawn.len().max(1) as f64
}

fn whole(head: &Head, form: &Form, kept: &Kept, choices: u32) -> Value {
    debug_assert_eq!(kept.answers.len() % choices as usize, 0);
    let shown = kept.answers.iter().enumerate().map(|(index, answer)| {
        let prompt = form.prompt(index);
        let logprobs = if form.logprobs {
            let drawn: Vec<Drawn> = answer.prompt.iter().chain(&answer.drawn).cloned().collect();
            completion_logprobs(&drawn, &mut 0)
        } else {
            Value::Null
        };
        let reason = answer.finished.reason.as_str();
        choice_json(index, &format!("{prompt}{}", answer.text), logprobs, Some(reason))
    });
    head.object("text_completion", shown.collect(), Usage::Of(kept.usage.total))
}

fn choice_json(index: usize, text: &str, logprobs: Value, reason: Option<&str>) -> Value {
    json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason})
}

/// Writes `text_completion` events.
struct CompletionEncoder {
    head: Head,
    form: Form,
    stream: StreamOptions,
    /// Where the next token of each choice begins, in characters; `None` before anything was said.
    offsets: Vec<Option<usize>>,
    drawn_tokens: u32,
    usage: UsageSum,
}

impl CompletionEncoder {
    fn new(head: Head, form: Form, stream: StreamOptions, choices: usize) -> Self {
        let offsets = vec![None; choices];
        Self { head, form, stream, offsets, drawn_tokens: 0, usage: UsageSum::default() }
    }

    fn push(&self, choice: Value, out: &mut String) {
        let usage = match self.stream {
            StreamOptions { usage_in_every_chunk: true, .. } => Usage::Of(TokenUsage {
                prompt_tokens: self.form.prompt_tokens,
                completion_tokens: self.drawn_tokens,
                ..self.usage.total
            }),
            StreamOptions { include_usage: true, .. } => Usage::Null,
            StreamOptions { .. } => Usage::Absent,
        };
        push_event(out, &self.head.object("text_completion", vec![choice], usage));
    }

    /// The echoed prompt comes first, with its probabilities if they were asked for.
    fn open(&mut self, choice: usize, prompt: &[Drawn], out: &mut String) {
        if self.offsets[choice].is_some() {
            return;
        }
        let text = self.form.prompt(choice).to_owned();
        let mut offset = 0;
        let logprobs = match prompt {
            [] => Value::Null,
            prompt => completion_logprobs(prompt, &mut offset),
        };
        self.offsets[choice] = Some(offset.max(text.chars().count()));
        if self.form.echo {
            self.push(choice_json(choice, &text, logprobs, None), out);
        }
    }
}

impl Encoder for CompletionEncoder {
    const CONTENT_TYPE: &'static str = "text/event-stream";
    const KEEP_ALIVE: &'static str = COMMENT;

    fn delta(&mut self, choice: usize, delta: Delta, out: &mut String) {
        let (content, drawn) = match delta {
            Delta::Prompt(prompt) => return self.open(choice, &prompt, out),
            Delta::Piece { content, drawn } => (content, drawn),
        };
        self.open(choice, &[], out);
        self.drawn_tokens += u32::try_from(drawn.len()).expect("an answer fits the context");
        // Completions know neither reasoning nor calls: without tools a backend sends plain text.
        let (Content::Text(text) | Content::Reasoning(text)) = content else { return };
        let logprobs = if self.form.logprobs && !drawn.is_empty() {
            let offset = self.offsets[choice].get_or_insert(0);
            completion_logprobs(&drawn, offset)
        } else {
            Value::Null
        };
        if text.is_empty() && logprobs.is_null() && !self.stream.usage_in_every_chunk {
            return;
        }
        self.push(choice_json(choice, &text, logprobs, None), out);
    }

    fn finished(&mut self, choice: usize, finished: &Finished, out: &mut String) {
        self.open(choice, &[], out);
        self.usage.add(finished.usage, choice.is_multiple_of(self.form.choices));
        let reason = Some(finished.reason.as_str());
        self.push(choice_json(choice, "", Value::Null, reason), out);
    }

    fn failed(&mut self, error: &ApiError, out: &mut String) {
        push_event(out, &error.to_json());
    }

    fn end(&mut self, out: &mut String) {
        if self.stream.include_usage {
            let mut last = self.head.object("text_completion", Vec::new(), Usage::Absent);
            last["usage"] = usage_json(self.usage.total);
            push_event(out, &last);
        }
        out.push_str(DONE);
    }
}
