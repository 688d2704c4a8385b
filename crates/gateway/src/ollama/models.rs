//! `/api/tags`, `/api/ps`, `/api/show`, `/api/version`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::wire::{details, rfc3339};
use crate::backend::{Health, ModelCard};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::gateway::Gateway;
use crate::json::read_object;
use crate::respond::json_response;

/// When a model is unloaded: never, in the form of a time.
const NEVER: &str = "9999-12-31T23:59:59Z";

pub(crate) async fn list_models(State(gateway): State<Arc<Gateway>>) -> Response {
    let models = gateway.backend.models();
    let models: Vec<Value> = models.iter().map(summary).map(Value::Object).collect();
    json_response(&json!({"models": models}))
}

pub(crate) async fn running_models(State(gateway): State<Arc<Gateway>>) -> Response {
    let ready = gateway.backend.health() == Health::Ready;
    let models = if ready { gateway.backend.models() } else { Vec::new() };
    let running = models.iter().map(|card| {
        let mut model = summary(card);
        model.insert("expires_at".to_owned(), NEVER.into());
        model.insert("context_length".to_owned(), card.context_tokens.into());
        Value::Object(model)
    });
    json_response(&json!({"models": running.collect::<Vec<_>>()}))
}

pub(crate) async fn show_model(
    State(gateway): State<Arc<Gateway>>,
    body: Body,
) -> Result<Response, ApiError> {
    let object = read_object(body, &gateway.config.limits).await?;
    let fields = Fields::of_body(&object);
    // Older clients call it by name.
    let name = fields.text("model")?.or(fields.text("name")?);
    let card = gateway.model(Some(fields.required("model", name)?))?;
    let architecture = &card.architecture;
    let mut info = Map::new();
    info.insert("general.architecture".to_owned(), architecture.clone().into());
    info.insert("general.parameter_count".to_owned(), card.parameter_count.into());
    info.insert(format!("{architecture}.context_length"), card.context_tokens.into());
    info.insert(format!("{architecture}.embedding_length"), card.embedding_length.into());
    Ok(json_response(&json!({
        "license": card.licence.clone().unwrap_or_default(),
        "parameters": "",
        "template": card.chat_template.clone().unwrap_or_default(),
        "modified_at": rfc3339(card.created_unix_s),
        "details": details(&card),
        "model_info": info,
        "capabilities": capabilities(&card),
    })))
}

pub(crate) async fn version(State(gateway): State<Arc<Gateway>>) -> Response {
    json_response(&json!({"version": gateway.config.version}))
}

fn summary(card: &ModelCard) -> Map<String, Value> {
    let mut summary = Map::new();
    summary.insert("name".to_owned(), card.id.clone().into());
    summary.insert("model".to_owned(), card.id.clone().into());
    summary.insert("modified_at".to_owned(), rfc3339(card.created_unix_s).into());
    summary.insert("size".to_owned(), card.weights_bytes.into());
    summary.insert("digest".to_owned(), card.digest.clone().into());
    summary.insert("details".to_owned(), details(card));
    summary
}

fn capabilities(card: &ModelCard) -> Vec<&'static str> {
    let abilities = card.abilities;
    let named = [
        (true, "completion"),
        (abilities.tools, "tools"),
        (abilities.reasoning, "thinking"),
        (abilities.embeddings, "embedding"),
    ];
    named.into_iter().filter_map(|(able, name)| able.then_some(name)).collect()
}
