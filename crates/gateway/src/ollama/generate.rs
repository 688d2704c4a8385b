//! `/api/chat` and `/api/generate`: one JSON object per line, or a single one.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::response::Response;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::wire::{check_keep_alive, nanoseconds, rfc3339};
use crate::backend::{
    ChatMessage, ChatPrompt, Constraint, GenerationRequest, LogprobDetail, ModelCard, PlainValue,
    Role, Sampling, SpecialTokens, TokenId, ToolCall, ToolChoice, ToolUse,
};
use crate::choices::{Choices, collect};
use crate::config::{GatewayConfig, UnixClock};
use crate::error::{About, ApiError};
use crate::fields::Fields;
use crate::gateway::{Gateway, RequestContext};
use crate::json::read_object;
use crate::limits::Limits;
use crate::llama::need_chat;
use crate::messages::read_tools;
use crate::openai::chat_logprobs;
use crate::options::{AskedLength, read_sampling, read_stop};
use crate::respond::{Encoder, json_response, stream_response};
use crate::schema::check_schema;
use crate::token_stream::{Content, Delta, Drawn, Finished};

/// Members that ask for what is not offered; ignoring them would answer another question.
const REFUSED: [(&str, &str); 4] = [
    ("context", "send the conversation to /api/chat"),
    ("suffix", "answers continue the prompt"),
    ("template", "the model's own template is used"),
    ("adapters", "the model is served as it is"),
];

/// Ollama's defaults, which differ from OpenAI's.
const USUAL_TEMPERATURE: f32 = 0.8;
const USUAL_TOP_P: f32 = 0.9;
const USUAL_TOP_K: u32 = 40;

pub(crate) async fn chat(
    State(gateway): State<Arc<Gateway>>,
    Extension(context): Extension<RequestContext>,
    body: Body,
) -> Result<Response, ApiError> {
    let object = read_object(body, &gateway.config.limits).await?;
    let fields = Fields::of_body(&object);
    let card = gateway.model(fields.text("model")?)?;
    let limits = &gateway.config.limits;
    let mut asked = read_asked(&fields, &card, &gateway.config)?;
    need_chat(&card)?;
    let messages = read_messages(&fields, limits)?;
    let tools = read_tools(&fields, limits)?;
    let variables = read_think(&fields)?.into_iter().collect();
    if messages.is_empty() {
        return Ok(json_response(&loaded(&gateway, Form::Chat, &card)));
    }
    asked.request.tools = (!tools.is_empty()).then(|| ToolUse {
        tools: tools.clone(),
        choice: ToolChoice::Auto,
        parallel: true,
    });
    let prompt = ChatPrompt { messages, tools, add_generation_prompt: true, variables };
    let tokens = render(&gateway, &card, prompt).await?;
    answer(&gateway, &context, asked, Prompted { form: Form::Chat, card, tokens }).await
}

pub(crate) async fn generate(
    State(gateway): State<Arc<Gateway>>,
    Extension(context): Extension<RequestContext>,
    body: Body,
) -> Result<Response, ApiError> {
    let object = read_object(body, &gateway.config.limits).await?;
    let fields = Fields::of_body(&object);
    let card = gateway.model(fields.text("model")?)?;
    let asked = read_asked(&fields, &card, &gateway.config)?;
    refuse_images(&fields)?;
    let text = fields.text("prompt")?.unwrap_or_default().to_owned();
    let system = fields.text("system")?;
    let raw = fields.flag("raw")?.unwrap_or(false);
    let variables = read_think(&fields)?.into_iter().collect();
    if text.is_empty() {
        return Ok(json_response(&loaded(&gateway, Form::Generate, &card)));
    }
    let tokens = if raw || !card.abilities.chat {
        let special = SpecialTokens { add: !raw, parse: true };
        let room = Some(card.context_tokens);
        let tokens = gateway.backend.tokenize(card.id.clone(), text, special, room).await;
        tokens.map_err(|refusal| ApiError::from_refusal(refusal, About::member("prompt")))?
    } else {
        let said = |role, content| ChatMessage { role, content, ..ChatMessage::default() };
        let system = system.map(|system| said(Role::System, system.to_owned()));
        let messages = system.into_iter().chain([said(Role::User, text)]).collect();
        let tools = Vec::new();
        let prompt = ChatPrompt { messages, tools, add_generation_prompt: true, variables };
        render(&gateway, &card, prompt).await?
    };
    answer(&gateway, &context, asked, Prompted { form: Form::Generate, card, tokens }).await
}

async fn render(
    gateway: &Gateway,
    card: &ModelCard,
    prompt: ChatPrompt,
) -> Result<Vec<TokenId>, ApiError> {
    let room = Some(card.context_tokens);
    let rendered = gateway.backend.apply_template(card.id.clone(), prompt, room).await;
    Ok(rendered
        .map_err(|refusal| ApiError::from_refusal(refusal, About::member("messages")))?
        .tokens)
}

/// What both routes let a client choose.
struct Asked {
    request: GenerationRequest,
    length: AskedLength,
    stream: bool,
}

struct Prompted {
    form: Form,
    card: ModelCard,
    tokens: Vec<TokenId>,
}

async fn answer(
    gateway: &Gateway,
    context: &RequestContext,
    asked: Asked,
    prompted: Prompted,
) -> Result<Response, ApiError> {
    let Prompted { form, card, tokens } = prompted;
    let mut request = asked.request;
    request.id.clone_from(&context.id);
    request.length = asked.length.settle(form.prompt_field(), tokens.len(), 1, &card)?;
    request.caller = context.caller(None);
    request.prompt = tokens;
    let encoder = LineEncoder {
        form,
        model: card.id,
        clock: gateway.config.clock.clone(),
        received: context.received,
        logprobs: request.logprobs.drawn.is_some(),
        call: None,
    };
    let about = About { prompt: form.prompt_field(), schema: "format" };
    let choices = Choices::start(gateway, context, vec![request], about).await?;
    if asked.stream {
        return stream_response(choices, encoder, &gateway.config.limits).await;
    }
    let answers = collect(choices).await?;
    let [answer] = answers.as_slice() else { unreachable!("one request has one answer") };
    let mut said = form.said(&answer.text);
    form.add_thinking(&mut said, &answer.reasoning);
    let calls = answer.calls.iter().filter_map(|(name, arguments)| call_json(name, arguments));
    form.add_calls(&mut said, calls.collect());
    let mut whole = encoder.object(said, &answer.drawn);
    encoder.close(&mut whole, &answer.finished);
    Ok(json_response(&Value::Object(whole)))
}

/// Reads everything but the prompt.
fn read_asked(
    fields: &Fields<'_>,
    card: &ModelCard,
    config: &GatewayConfig,
) -> Result<Asked, ApiError> {
    let limits = &config.limits;
    fields.refuse(&REFUSED)?;
    check_keep_alive(fields)?;
    let nothing = Map::new();
    let options = fields.object("options")?.unwrap_or_else(|| Fields::of_body(&nothing));
    options.count("num_ctx", 1..=card.context_tokens)?;
    // -1 means without end and -2 until the context is full; both end at the context here.
    let predict = options.integer("num_predict", -2..=i32::MAX.into())?;
    let length = AskedLength {
        tokens_max: match predict {
            None => config.usual.tokens_max,
            Some(n) => u32::try_from(n).ok().filter(|&n| n > 0),
        },
        ..AskedLength::default()
    };
    let logprobs = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", 0..=limits.top_logprobs.into())?.unwrap_or(0);
    let top = u8::try_from(top).expect("within the limit, which is a u8");
    let request = GenerationRequest {
        id: String::new(),
        model: card.id.clone(),
        prompt: Vec::new(),
        length: length.settle("options.num_predict", 0, 1, card)?,
        stop: read_stop(&options, card, limits)?,
        sampling: read_usual_sampling(&options, card, config)?,
        logprobs: LogprobDetail { drawn: logprobs.then_some(top), prompt: false },
        constraint: read_format(fields, limits)?,
        tools: None,
        reasoning: !fields.flag("raw")?.unwrap_or(false),
        caller: crate::backend::Caller::default(),
        priority: 0,
    };
    Ok(Asked { request, length, stream: fields.flag("stream")?.unwrap_or(true) })
}

fn read_usual_sampling(
    options: &Fields<'_>,
    card: &ModelCard,
    config: &GatewayConfig,
) -> Result<Sampling, ApiError> {
    let usual = config.usual.sampling(Sampling {
        temperature: USUAL_TEMPERATURE,
        top_p: USUAL_TOP_P,
        top_k: Some(USUAL_TOP_K),
        ..Sampling::default()
    });
    let mut sampling = read_sampling(options, card, &config.limits, usual)?;
    if let Some(penalty) = options.number("repeat_penalty", 0.01..=10.0)? {
        sampling.repetition_penalty = penalty;
    }
    Ok(sampling)
}

fn read_format(fields: &Fields<'_>, limits: &Limits) -> Result<Constraint, ApiError> {
    match fields.value("format") {
        None => Ok(Constraint::Free),
        Some(Value::String(text)) if text.is_empty() => Ok(Constraint::Free),
        Some(Value::String(text)) if text == "json" => Ok(Constraint::JsonObject),
        Some(schema @ Value::Object(_)) => Ok(Constraint::JsonSchema {
            schema: check_schema(schema, "format", &limits.schema)?,
            strict: true,
        }),
        Some(_) => Err(ApiError::invalid("format", "must be json or a JSON schema")),
    }
}

/// Reads `think` as template variables.
fn read_think(fields: &Fields<'_>) -> Result<Vec<(String, PlainValue)>, ApiError> {
    let thinking = |on| ("enable_thinking".to_owned(), PlainValue::Flag(on));
    match fields.value("think") {
        None => Ok(Vec::new()),
        Some(Value::Bool(on)) => Ok(vec![thinking(*on)]),
        Some(Value::String(effort)) if ["low", "medium", "high"].contains(&effort.as_str()) => {
            let effort = PlainValue::Text(effort.clone());
            Ok(vec![thinking(true), ("reasoning_effort".to_owned(), effort)])
        }
        Some(_) => Err(ApiError::invalid("think", "must be true, false, low, medium or high")),
    }
}

fn refuse_images(fields: &Fields<'_>) -> Result<(), ApiError> {
    match fields.list("images", usize::MAX)? {
        None | Some([]) => Ok(()),
        Some(_) => Err(ApiError::unsupported(fields.path("images"), "the model reads only text")),
    }
}

/// Messages differ from OpenAI's: content is a text, arguments are objects, calls have no ids.
fn read_messages(fields: &Fields<'_>, limits: &Limits) -> Result<Vec<ChatMessage>, ApiError> {
    let list = fields.required("messages", fields.list("messages", limits.messages)?)?;
    let mut messages = Vec::with_capacity(list.len());
    let mut calls_made = 0;
    for (index, value) in list.iter().enumerate() {
        let message = Fields::of(value, format!("messages[{index}]"))?;
        let role = match message.required("role", message.text("role")?)? {
            "system" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "tool" => Role::Tool,
            _ => {
                let problem = "must be system, user, assistant or tool";
                return Err(ApiError::invalid(message.path("role"), problem));
            }
        };
        refuse_images(&message)?;
        let mut read = ChatMessage {
            role,
            content: message.text("content")?.unwrap_or_default().to_owned(),
            name: message.text("tool_name")?.map(str::to_owned),
            reasoning: message.text("thinking")?.map(str::to_owned),
            ..ChatMessage::default()
        };
        for value in message.list("tool_calls", limits.tools)?.unwrap_or_default() {
            let call = Fields::of(value, message.path("tool_calls"))?;
            let function = call.required("function", call.object("function")?)?;
            let name = function.required("name", function.text("name")?)?;
            let arguments =
                function.value("arguments").map_or_else(|| "{}".to_owned(), Value::to_string);
            let id = format!("call_{calls_made}");
            calls_made += 1;
            read.tool_calls.push(ToolCall { id, name: name.to_owned(), arguments });
        }
        messages.push(read);
    }
    Ok(messages)
}

/// Where an answer's text stands in the object.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// In a message.
    Chat,
    /// At the top.
    Generate,
}

impl Form {
    /// The member that holds the prompt.
    fn prompt_field(self) -> &'static str {
        match self {
            Self::Chat => "messages",
            Self::Generate => "prompt",
        }
    }

    fn said(self, text: &str) -> Map<String, Value> {
        let mut said = Map::new();
        match self {
            Self::Chat => {
                let message = json!({"role": "assistant", "content": text});
                said.insert("message".to_owned(), message);
            }
            Self::Generate => {
                said.insert("response".to_owned(), text.into());
            }
        }
        said
    }

    fn add_thinking(self, said: &mut Map<String, Value>, thinking: &str) {
        if thinking.is_empty() {
            return;
        }
        match self {
            Self::Chat => said["message"]["thinking"] = thinking.into(),
            Self::Generate => {
                said.insert("thinking".to_owned(), thinking.into());
            }
        }
    }

    fn add_calls(self, said: &mut Map<String, Value>, calls: Vec<Value>) {
        if let (Self::Chat, false) = (self, calls.is_empty()) {
            said["message"]["tool_calls"] = calls.into();
        }
    }
}

/// A call, or nothing if its arguments were cut off before they were whole.
fn call_json(name: &str, arguments: &str) -> Option<Value> {
    let arguments: Value = serde_json::from_str(arguments).ok()?;
    Some(json!({"function": {"name": name, "arguments": arguments}}))
}

/// What a request without a prompt gets: the model is there.
fn loaded(gateway: &Gateway, form: Form, card: &ModelCard) -> Value {
    let mut object = Map::new();
    object.insert("model".to_owned(), card.id.clone().into());
    object.insert("created_at".to_owned(), rfc3339(gateway.unix_time_s()).into());
    object.extend(form.said(""));
    object.insert("done".to_owned(), true.into());
    object.insert("done_reason".to_owned(), "load".into());
    object.into()
}

/// Writes one object per line.
struct LineEncoder {
    form: Form,
    model: String,
    clock: UnixClock,
    received: Instant,
    logprobs: bool,
    /// Name and arguments of the call being drawn; Ollama sends calls whole.
    call: Option<(String, String)>,
}

impl LineEncoder {
    fn object(&self, said: Map<String, Value>, drawn: &[Drawn]) -> Map<String, Value> {
        let mut object = Map::new();
        object.insert("model".to_owned(), self.model.clone().into());
        object.insert("created_at".to_owned(), rfc3339(self.clock.now_s()).into());
        object.extend(said);
        if self.logprobs && !drawn.is_empty() {
            object.insert("logprobs".to_owned(), chat_logprobs(drawn)["content"].take());
        }
        object.insert("done".to_owned(), false.into());
        object
    }

    fn close(&self, object: &mut Map<String, Value>, finished: &Finished) {
        let Finished { reason, usage, timings } = finished;
        // Ollama has no reason for calls: the answer simply stops.
        let reason = match reason.as_str() {
            "tool_calls" => "stop",
            other => other,
        };
        object.insert("done".to_owned(), true.into());
        object.insert("done_reason".to_owned(), reason.into());
        for (name, value) in [
            ("total_duration", nanoseconds(self.received.elapsed())),
            ("load_duration", nanoseconds(timings.loaded)),
            ("prompt_eval_count", usage.prompt_tokens.into()),
            ("prompt_eval_duration", nanoseconds(timings.prefill)),
            ("eval_count", usage.completion_tokens.into()),
            ("eval_duration", nanoseconds(timings.decode)),
        ] {
            object.insert(name.to_owned(), value.into());
        }
    }

    fn push(object: Map<String, Value>, out: &mut String) {
        out.push_str(&Value::Object(object).to_string());
        out.push('\n');
    }

    fn push_call(&mut self, out: &mut String) {
        let call = self.call.take().and_then(|(name, arguments)| call_json(&name, &arguments));
        if let Some(call) = call {
            let mut said = self.form.said("");
            self.form.add_calls(&mut said, vec![call]);
            Self::push(self.object(said, &[]), out);
        }
    }
}

impl Encoder for LineEncoder {
    const CONTENT_TYPE: &'static str = "application/x-ndjson";
    // Clients parse every line.
    const KEEP_ALIVE: &'static str = "";

    fn delta(&mut self, _choice: usize, delta: Delta, out: &mut String) {
        let Delta::Piece { content, drawn } = delta else { return };
        let mut said = self.form.said("");
        match content {
            Content::Text(text) if text.is_empty() && !self.logprobs => return,
            Content::Text(text) => said = self.form.said(&text),
            Content::Reasoning(text) => self.form.add_thinking(&mut said, &text),
            Content::CallStart { name, .. } => {
                self.push_call(out);
                self.call = Some((name, String::new()));
                return;
            }
            Content::CallArguments { text, .. } => {
                if let Some((_, arguments)) = &mut self.call {
                    arguments.push_str(&text);
                }
                return;
            }
        }
        Self::push(self.object(said, &drawn), out);
    }

    fn finished(&mut self, _choice: usize, finished: &Finished, out: &mut String) {
        self.push_call(out);
        let mut object = self.object(self.form.said(""), &[]);
        self.close(&mut object, finished);
        Self::push(object, out);
    }

    fn failed(&mut self, error: &ApiError, out: &mut String) {
        out.push_str(&json!({"error": error.to_string()}).to_string());
        out.push('\n');
    }

    fn end(&mut self, _out: &mut String) {}
}
