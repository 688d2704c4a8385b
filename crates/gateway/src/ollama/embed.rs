//! `/api/embed`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::response::Response;
use serde_json::json;

use super::wire::{check_keep_alive, nanoseconds};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::gateway::{Gateway, RequestContext};
use crate::json::read_object;
use crate::openai::{embed_texts, read_inputs, shorten};
use crate::respond::json_response;

pub(crate) async fn embed(
    State(gateway): State<Arc<Gateway>>,
    Extension(context): Extension<RequestContext>,
    body: Body,
) -> Result<Response, ApiError> {
    let object = read_object(body, &gateway.config.limits).await?;
    let fields = Fields::of_body(&object);
    let card = gateway.model(fields.text("model")?)?;
    check_keep_alive(&fields)?;
    fields.flag("truncate")?;
    let dimensions = fields.count("dimensions", 1..=card.embedding_length.max(1))?;
    let inputs = read_inputs(&fields, "input", &card, &gateway.config.limits)?;
    let embedded = embed_texts(&gateway, &context, &card, inputs).await?;
    let vectors = embedded.vectors.into_iter().map(|vector| shorten(vector, dimensions));
    Ok(json_response(&json!({
        "model": card.id,
        "embeddings": vectors.collect::<Vec<_>>(),
        "total_duration": nanoseconds(context.received.elapsed()),
        "load_duration": 0,
        "prompt_eval_count": embedded.prompt_tokens,
    })))
}
