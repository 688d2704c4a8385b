//! `GET /v1/models` and `GET /v1/models/{model}`.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::{Value, json};

use crate::backend::ModelCard;
use crate::error::ApiError;
use crate::gateway::Gateway;
use crate::respond::json_response;

pub(crate) async fn list_models(State(gateway): State<Arc<Gateway>>) -> Response {
    let models: Vec<Value> = gateway.backend.models().iter().map(model_json).collect();
    json_response(&json!({"object": "list", "data": models}))
}

pub(crate) async fn retrieve_model(
    State(gateway): State<Arc<Gateway>>,
    Path(name): Path<String>,
) -> Result<Response, ApiError> {
    Ok(json_response(&model_json(&gateway.model(Some(&name))?)))
}

fn model_json(card: &ModelCard) -> Value {
    json!({
        "id": card.id,
        "object": "model",
        "created": card.created_unix_s,
        "owned_by": card.owned_by,
        "meta": {
            "n_ctx_train": card.context_tokens,
            "n_vocab": card.vocabulary_tokens,
            "n_embd": card.embedding_length,
            "n_params": card.parameter_count,
            "size": card.weights_bytes,
            "quantization": card.quantisation,
            "architecture": card.architecture,
        },
    })
}
