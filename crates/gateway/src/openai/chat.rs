//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::wire::{
    COMMENT, DONE, Head, Usage, chat_logprobs, push_event, repeat, usage_json, warn_of,
};
use crate::backend::{ChatPrompt, GenerationRequest, LogprobDetail, ModelCard};
use crate::choices::{Answer, Choices, UsageSum, collect};
use crate::config::GatewayConfig;
use crate::error::{About, ApiError};
use crate::fields::Fields;
use crate::gateway::{Gateway, RequestContext};
use crate::json::read_object;
use crate::limits::Limits;
use crate::llama::need_chat;
use crate::messages::{
    SCHEMA_PARAM, read_messages, read_response_format, read_template_variables, read_tool_use,
};
use crate::options::{OPTION_FIELDS, StreamOptions, read_length, read_options};
use crate::respond::{Encoder, json_response, stream_response};
use crate::token_stream::{Content, Delta, Drawn, Finished, TokenUsage};

/// Members known besides the shared ones. Those that change nothing here are accepted because they
/// ask for nothing: labels, hints, and settings of OpenAI's own service.
pub(crate) const CHAT_FIELDS: [&str; 21] = [
    "add_generation_prompt",
    "chat_template_kwargs",
    "logprobs",
    "messages",
    "modalities",
    "moderation",
    "parallel_tool_calls",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning_effort",
    "response_format",
    "safety_identifier",
    "service_tier",
    "store",
    "tool_choice",
    "tools",
    "top_logprobs",
    "verbosity",
    "include_reasoning",
];

/// Members that ask for what is not offered; ignoring them would answer another question.
const REFUSED: [(&str, &str); 9] = [
    ("audio", "answers are text"),
    ("chat_template", "the model's own template is used"),
    ("function_call", "use tool_choice"),
    ("functions", "use tools"),
    ("grammar", "use response_format with a JSON schema"),
    ("guided_grammar", "use response_format with a JSON schema"),
    ("guided_regex", "use response_format with a JSON schema"),
    ("prompt_embeds", "prompts are text or tokens"),
    ("web_search_options", "this server makes no outgoing requests"),
];

const ABOUT: About = About { prompt: "messages", schema: SCHEMA_PARAM };

pub(crate) async fn chat_completions(
    State(gateway): State<Arc<Gateway>>,
    Extension(context): Extension<RequestContext>,
    body: Body,
) -> Result<Response, ApiError> {
    let object = read_object(body, &gateway.config.limits).await?;
    let fields = Fields::of_body(&object);
    let card = gateway.model(fields.text("model")?)?;
    let asked = read_chat(&fields, &card, &gateway.config)?;
    let room = Some(card.context_tokens);
    let rendered = gateway.backend.apply_template(card.id.clone(), asked.prompt, room).await;
    let rendered =
        rendered.map_err(|refusal| ApiError::from_refusal(refusal, About::member("messages")))?;
    let mut request = asked.request;
    let options = asked.options;
    request.id.clone_from(&context.id);
    request.length =
        options.length.settle("messages", rendered.tokens.len(), options.choices, &card)?;
    request.caller = context.caller(options.cache_salt);
    request.prompt = rendered.tokens;
    let head = Head {
        id: gateway.new_id("chatcmpl-"),
        created_unix_s: gateway.unix_time_s(),
        model: card.id,
        fingerprint: card.system_fingerprint,
    };
    let prompt_tokens = request.prompt.len();
    let logprobs = request.logprobs.drawn.is_some();
    let choices =
        Choices::start(&gateway, &context, repeat(&request, options.choices), ABOUT).await?;
    let mut response = match options.stream {
        None => {
            let answers = collect(choices).await?;
            json_response(&whole(&head, &answers, logprobs))
        }
        Some(stream) => {
            let encoder = ChatEncoder::new(head, options.choices, stream, prompt_tokens, logprobs);
            stream_response(choices, encoder, &gateway.config.limits).await?
        }
    };
    warn_of(&mut response, &near_misses(&fields));
    Ok(response)
}

fn near_misses(fields: &Fields<'_>) -> Vec<&'static str> {
    fields.near_misses(&[&OPTION_FIELDS[..], &CHAT_FIELDS[..]].concat())
}

struct AskedChat {
    prompt: ChatPrompt,
    request: GenerationRequest,
    options: crate::options::Options,
}

/// Reads everything a chat request may say. The prompt's tokens, the settled length and the caller
/// are filled in by whoever knows them.
fn read_chat(
    fields: &Fields<'_>,
    card: &ModelCard,
    config: &GatewayConfig,
) -> Result<AskedChat, ApiError> {
    let limits = &config.limits;
    fields.refuse(&REFUSED)?;
    need_chat(card)?;
    if let Some(modalities) = fields.list("modalities", 4)?
        && modalities.iter().any(|modality| modality != "text")
    {
        return Err(ApiError::unsupported("modalities", "answers are text"));
    }
    if fields.flag("store")?.unwrap_or(false) {
        return Err(ApiError::unsupported("store", "nothing is stored"));
    }
    let messages = read_messages(fields, limits)?;
    let mut options = read_options(fields, read_length(fields, 1, &config.usual)?, card, config)?;
    let constraint = read_response_format(fields, limits)?;
    let tools = read_tool_use(fields, limits)?;
    let add_generation_prompt = fields.flag("add_generation_prompt")?.unwrap_or(true);
    let prompt = ChatPrompt {
        messages,
        tools: tools.as_ref().map(|tool_use| tool_use.tools.clone()).unwrap_or_default(),
        add_generation_prompt,
        variables: read_template_variables(fields)?,
    };
    let request = GenerationRequest {
        id: String::new(),
        model: card.id.clone(),
        prompt: Vec::new(),
        length: options.length.settle("messages", 0, 1, card)?,
        stop: std::mem::take(&mut options.stop),
        sampling: std::mem::take(&mut options.sampling),
        logprobs: read_logprobs(fields, limits)?,
        constraint,
        tools,
        reasoning: true,
        caller: crate::backend::Caller::default(),
        priority: options.priority,
    };
    Ok(AskedChat { prompt, request, options })
}

fn read_logprobs(fields: &Fields<'_>, limits: &Limits) -> Result<LogprobDetail, ApiError> {
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", 0..=limits.top_logprobs.into())?;
    if top.is_some_and(|top| top > 0) && !wanted {
        return Err(ApiError::invalid("top_logprobs", "needs logprobs to be true"));
    }
    let top = u8::try_from(top.unwrap_or(0)).expect("within the limit, which is a u8");
    Ok(LogprobDetail { drawn: wanted.then_some(top), prompt: false })
}

/// A whole answer.
fn whole(head: &Head, answers: &[Answer], logprobs: bool) -> Value {
    let mut usage = UsageSum::default();
    let mut choices = Vec::with_capacity(answers.len());
    for (index, answer) in answers.iter().enumerate() {
        usage.add(answer.finished.usage, index == 0);
        choices.push(json!({
            "index": index,
            "message": message(head, index, answer),
            "logprobs": if logprobs { chat_logprobs(&answer.drawn) } else { Value::Null },
            "finish_reason": answer.finished.reason.as_str(),
        }));
    }
    head.object("chat.completion", choices, Usage::Of(usage.total))
}

fn message(head: &Head, choice: usize, answer: &Answer) -> Value {
    let mut message = Map::new();
    message.insert("role".to_owned(), "assistant".into());
    // A turn that only calls tools has no content rather than an empty one.
    let empty = answer.text.is_empty() && !answer.calls.is_empty();
    let content = if empty { Value::Null } else { answer.text.clone().into() };
    message.insert("content".to_owned(), content);
    message.insert("refusal".to_owned(), Value::Null);
    if !answer.reasoning.is_empty() {
        message.insert("reasoning_content".to_owned(), answer.reasoning.clone().into());
    }
    if !answer.calls.is_empty() {
        let calls = answer.calls.iter().enumerate().map(|(call, (name, arguments))| {
            json!({
                "id": call_id(head, choice, call),
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            })
        });
        message.insert("tool_calls".to_owned(), calls.collect());
    }
    message.into()
}

/// Unique, because the answer's id is.
fn call_id(head: &Head, choice: usize, call: usize) -> String {
    let answer = head.id.trim_start_matches("chatcmpl-");
    format!("call_{answer}_{choice}_{call}")
}

/// Writes `chat.completion.chunk` events.
struct ChatEncoder {
    head: Head,
    stream: StreamOptions,
    logprobs: bool,
    prompt_tokens: u32,
    /// Whether a choice has said who speaks.
    opened: Vec<bool>,
    drawn_tokens: u32,
    usage: UsageSum,
}

impl ChatEncoder {
    fn new(
        head: Head,
        choices: u32,
        stream: StreamOptions,
        prompt_tokens: usize,
        logprobs: bool,
    ) -> Self {
        let prompt_tokens = u32::try_from(prompt_tokens).expect("a prompt fits the context");
        let opened = vec![false; choices as usize];
        let usage = UsageSum::default();
        Self { head, stream, logprobs, prompt_tokens, opened, drawn_tokens: 0, usage }
    }

    fn push(&self, choice: Value, out: &mut String) {
        let usage = match self.stream {
            StreamOptions { usage_in_every_chunk: true, .. } => Usage::Of(TokenUsage {
                prompt_tokens: self.prompt_tokens,
                completion_tokens: self.drawn_tokens,
                ..self.usage.total
            }),
            StreamOptions { include_usage: true, .. } => Usage::Null,
            StreamOptions { .. } => Usage::Absent,
        };
        push_event(out, &self.head.object("chat.completion.chunk", vec![choice], usage));
    }

    fn open(&mut self, choice: usize, out: &mut String) {
        if !std::mem::replace(&mut self.opened[choice], true) {
            let delta = json!({"role": "assistant", "content": ""});
            self.push(chunk_choice(choice, delta, Value::Null, None), out);
        }
    }

    fn delta_json(&self, choice: usize, content: Content) -> Value {
        match content {
            Content::Text(text) => json!({"content": text}),
            Content::Reasoning(text) => json!({"reasoning_content": text}),
            Content::CallStart { call, name } => json!({"tool_calls": [{
                "index": call,
                "id": call_id(&self.head, choice, call as usize),
                "type": "function",
                "function": {"name": name, "arguments": ""},
            }]}),
            Content::CallArguments { call, text } => {
                json!({"tool_calls": [{"index": call, "function": {"arguments": text}}]})
            }
        }
    }

    fn logprobs_json(&self, drawn: &[Drawn]) -> Value {
        if self.logprobs && !drawn.is_empty() { chat_logprobs(drawn) } else { Value::Null }
    }
}

fn chunk_choice(choice: usize, delta: Value, logprobs: Value, reason: Option<&str>) -> Value {
    json!({"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": reason})
}

impl Encoder for ChatEncoder {
    const CONTENT_TYPE: &'static str = "text/event-stream";
    const KEEP_ALIVE: &'static str = COMMENT;

    fn delta(&mut self, choice: usize, delta: Delta, out: &mut String) {
        let Delta::Piece { content, drawn } = delta else { return };
        self.open(choice, out);
        self.drawn_tokens += u32::try_from(drawn.len()).expect("an answer fits the context");
        let logprobs = self.logprobs_json(&drawn);
        // Text that is held back needs no event, unless something else must be said.
        let silent = matches!(&content, Content::Text(text) if text.is_empty());
        if silent && logprobs.is_null() && !self.stream.usage_in_every_chunk {
            return;
        }
        let delta = self.delta_json(choice, content);
        self.push(chunk_choice(choice, delta, logprobs, None), out);
    }

    fn finished(&mut self, choice: usize, finished: &Finished, out: &mut String) {
        self.open(choice, out);
        self.usage.add(finished.usage, choice == 0);
        let reason = Some(finished.reason.as_str());
        self.push(chunk_choice(choice, json!({}), Value::Null, reason), out);
    }

    fn failed(&mut self, error: &ApiError, out: &mut String) {
        push_event(out, &error.to_json());
    }

    fn end(&mut self, out: &mut String) {
        if self.stream.include_usage {
            let mut last = self.head.object("chat.completion.chunk", Vec::new(), Usage::Absent);
            last["usage"] = usage_json(self.usage.total);
            push_event(out, &last);
        }
        out.push_str(DONE);
    }
}
