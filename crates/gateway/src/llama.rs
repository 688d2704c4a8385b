//! Routes that llama.cpp's server made known: health, properties, slots, metrics, tokens, templates.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::backend::{ChatPrompt, Health, ModelCard, Sampling, SlotState, SpecialTokens};
use crate::error::{About, ApiError};
use crate::fields::Fields;
use crate::gateway::Gateway;
use crate::json::read_object;
use crate::messages::{read_messages, read_template_variables, read_tools};
use crate::options::read_token;
use crate::respond::{json_response, with_type};

/// When a client should ask again while weights are being read.
const LOADING_RETRY: Duration = Duration::from_secs(1);

pub(crate) async fn health(State(gateway): State<Arc<Gateway>>) -> Response {
    match gateway.backend.health() {
        Health::Ready => json_response(&json!({"status": "ok"})),
        Health::Loading { .. } => ApiError::Loading { retry_after: LOADING_RETRY }.into_response(),
        Health::NoPlan { reason } => ApiError::NoPlan { reason }.into_response(),
    }
}

pub(crate) async fn props(State(gateway): State<Arc<Gateway>>) -> Result<Response, ApiError> {
    let card = gateway.model(None)?;
    let slots = gateway.backend.slots();
    let usual = gateway.config.usual.sampling(Sampling::default());
    Ok(json_response(&json!({
        "default_generation_settings": {
            "n_ctx": card.context_tokens,
            "params": {
                "temperature": shown(usual.temperature),
                "top_p": shown(usual.top_p),
                "top_k": usual.top_k.unwrap_or(0),
                "min_p": shown(usual.min_p),
            },
        },
        "total_slots": slots.len(),
        "model_alias": card.id,
        "chat_template": card.chat_template.clone().unwrap_or_default(),
        "modalities": {"vision": false, "audio": false},
        "build_info": gateway.config.version,
    })))
}

/// A number as it was written: more digits would be those of a conversion.
fn shown(number: f32) -> f64 {
    (f64::from(number) * 1e6).round() / 1e6
}

pub(crate) async fn slots(State(gateway): State<Arc<Gateway>>) -> Response {
    let slots: Vec<Value> = gateway.backend.slots().iter().map(slot_json).collect();
    json_response(&slots.into())
}

fn slot_json(state: &SlotState) -> Value {
    let mut slot = json!({
        "id": state.slot,
        "n_ctx": state.context_tokens,
        "is_processing": state.request.is_some(),
    });
    if let Some(request) = &state.request {
        slot["id_task"] = request.id.clone().into();
        slot["n_prompt_tokens"] = request.prompt_tokens.into();
        slot["n_prompt_tokens_processed"] = request.prefilled_tokens.into();
        slot["n_decoded"] = request.drawn_tokens.into();
        slot["n_remain"] = request.tokens_max.saturating_sub(request.drawn_tokens).into();
    }
    slot
}

pub(crate) async fn metrics(State(gateway): State<Arc<Gateway>>) -> Response {
    let model = gateway.backend.models().into_iter().next().map(|card| card.id);
    let text = gateway.metrics.render(&model.unwrap_or_default(), &gateway.backend.metrics());
    with_type(Body::from(text), "application/openmetrics-text; version=1.0.0; charset=utf-8")
}

pub(crate) async fn tokenize(
    State(gateway): State<Arc<Gateway>>,
    body: Body,
) -> Result<Response, ApiError> {
    let object = read_object(body, &gateway.config.limits).await?;
    let fields = Fields::of_body(&object);
    let card = gateway.model(fields.text("model")?)?;
    let text = fields.required("content", fields.text("content")?)?.to_owned();
    let special = SpecialTokens {
        add: fields.flag("add_special")?.unwrap_or(false),
        parse: fields.flag("parse_special")?.unwrap_or(true),
    };
    let with_pieces = fields.flag("with_pieces")?.unwrap_or(false);
    let tokens = gateway.backend.tokenize(card.id.clone(), text, special, None).await;
    let tokens =
        tokens.map_err(|refusal| ApiError::from_refusal(refusal, About::member("content")))?;
    let mut shown = Vec::with_capacity(tokens.len());
    for token in tokens {
        if !with_pieces {
            shown.push(Value::from(token.0));
            continue;
        }
        let bytes = gateway.backend.detokenize(card.id.clone(), vec![token]).await;
        let bytes =
            bytes.map_err(|refusal| ApiError::from_refusal(refusal, About::member("content")))?;
        // A piece that is no text on its own is shown as its bytes, as llama-server does.
        let piece = String::from_utf8(bytes).map_or_else(|e| json!(e.into_bytes()), Value::from);
        shown.push(json!({"id": token.0, "piece": piece}));
    }
    Ok(json_response(&json!({"tokens": shown})))
}

pub(crate) async fn detokenize(
    State(gateway): State<Arc<Gateway>>,
    body: Body,
) -> Result<Response, ApiError> {
    let object = read_object(body, &gateway.config.limits).await?;
    let fields = Fields::of_body(&object);
    let card = gateway.model(fields.text("model")?)?;
    let list = fields.list("tokens", gateway.config.limits.json_nodes)?;
    let tokens = fields.required("tokens", list)?.iter();
    let tokens = tokens.map(|id| read_token(id, "tokens", &card)).collect::<Result<_, _>>()?;
    let bytes = gateway.backend.detokenize(card.id, tokens).await;
    let bytes =
        bytes.map_err(|refusal| ApiError::from_refusal(refusal, About::member("tokens")))?;
    Ok(json_response(&json!({"content": String::from_utf8_lossy(&bytes)})))
}

pub(crate) async fn apply_template(
    State(gateway): State<Arc<Gateway>>,
    body: Body,
) -> Result<Response, ApiError> {
    let object = read_object(body, &gateway.config.limits).await?;
    let fields = Fields::of_body(&object);
    let card = gateway.model(fields.text("model")?)?;
    need_chat(&card)?;
    let limits = &gateway.config.limits;
    let prompt = ChatPrompt {
        messages: read_messages(&fields, limits)?,
        tools: read_tools(&fields, limits)?,
        add_generation_prompt: fields.flag("add_generation_prompt")?.unwrap_or(true),
        variables: read_template_variables(&fields)?,
    };
    let rendered = gateway.backend.apply_template(card.id, prompt, None).await;
    let rendered =
        rendered.map_err(|refusal| ApiError::from_refusal(refusal, About::member("messages")))?;
    Ok(json_response(&json!({"prompt": rendered.text})))
}

/// Refuses conversations for a model that has no template for them.
pub(crate) fn need_chat(card: &ModelCard) -> Result<(), ApiError> {
    match card.abilities.chat {
        true => Ok(()),
        false => Err(ApiError::unsupported("messages", "this model has no chat template")),
    }
}
