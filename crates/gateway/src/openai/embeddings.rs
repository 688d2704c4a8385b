//! `POST /v1/embeddings`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::wire::warn_of;
use crate::backend::{EmbeddingRequest, ModelCard, SpecialTokens, TokenId};
use crate::base64::base64;
use crate::error::{About, ApiError};
use crate::fields::Fields;
use crate::gateway::{Gateway, RequestContext};
use crate::json::read_object;
use crate::limits::Limits;
use crate::options::read_token;
use crate::respond::json_response;

/// Members known here.
pub(crate) const EMBEDDING_FIELDS: [&str; 5] =
    ["dimensions", "encoding_format", "input", "model", "user"];

pub(crate) async fn embeddings(
    State(gateway): State<Arc<Gateway>>,
    Extension(context): Extension<RequestContext>,
    body: Body,
) -> Result<Response, ApiError> {
    let object = read_object(body, &gateway.config.limits).await?;
    let fields = Fields::of_body(&object);
    let card = gateway.model(fields.text("model")?)?;
    let base64 = match fields.text("encoding_format")? {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => return Err(ApiError::invalid("encoding_format", "must be float or base64")),
    };
    let dimensions = fields.count("dimensions", 1..=card.embedding_length.max(1))?;
    let inputs = read_inputs(&fields, "input", &card, &gateway.config.limits)?;
    let embedded = embed_texts(&gateway, &context, &card, inputs).await?;
    let data = embedded.vectors.into_iter().enumerate().map(|(index, vector)| {
        let vector = shorten(vector, dimensions);
        let embedding = if base64 { to_base64(&vector).into() } else { json!(vector) };
        json!({"object": "embedding", "index": index, "embedding": embedding})
    });
    let tokens = embedded.prompt_tokens;
    let mut response = json_response(&json!({
        "object": "list",
        "data": data.collect::<Vec<Value>>(),
        "model": card.id,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }));
    warn_of(&mut response, &fields.near_misses(&EMBEDDING_FIELDS));
    Ok(response)
}

/// Something to embed.
pub(crate) enum Input {
    Text(String),
    Tokens(Vec<TokenId>),
}

/// What was embedded, and from how many tokens.
pub(crate) struct Embedded {
    pub(crate) vectors: Vec<Vec<f32>>,
    pub(crate) prompt_tokens: usize,
}

/// A text, a list of texts, a list of token ids, or a list of such lists.
pub(crate) fn read_inputs(
    fields: &Fields<'_>,
    name: &str,
    card: &ModelCard,
    limits: &Limits,
) -> Result<Vec<Input>, ApiError> {
    let empty = || ApiError::invalid(name, "must not be empty");
    let text = |text: &str| match text {
        "" => Err(empty()),
        text => Ok(Input::Text(text.to_owned())),
    };
    let tokens = |ids: &[Value]| {
        let ids = ids.iter().map(|id| read_token(id, name, card));
        Ok(Input::Tokens(ids.collect::<Result<_, ApiError>>()?))
    };
    let list = match fields.required(name, fields.value(name))? {
        Value::String(one) => return Ok(vec![text(one)?]),
        Value::Array(list) if list.is_empty() => return Err(empty()),
        Value::Array(list) if list[0].is_number() => return Ok(vec![tokens(list)?]),
        Value::Array(list) => list,
        _ => return Err(ApiError::invalid(name, "must be a text or a list")),
    };
    if list.len() > limits.prompts {
        return Err(ApiError::invalid(
            name,
            format!("must have at most {} entries", limits.prompts),
        ));
    }
    list.iter()
        .map(|value| match value {
            Value::String(one) => text(one),
            Value::Array(ids) if ids.is_empty() => Err(empty()),
            Value::Array(ids) => tokens(ids),
            _ => Err(ApiError::invalid(name, "must hold texts or lists of token ids")),
        })
        .collect()
}

/// Tokenises and embeds; refuses models whose hidden states mean nothing as embeddings.
pub(crate) async fn embed_texts(
    gateway: &Gateway,
    context: &RequestContext,
    card: &ModelCard,
    inputs: Vec<Input>,
) -> Result<Embedded, ApiError> {
    if !card.abilities.embeddings {
        return Err(ApiError::unsupported("model", "this model makes no embeddings"));
    }
    let mut tokens = Vec::with_capacity(inputs.len());
    for input in inputs {
        let ids = match input {
            Input::Tokens(ids) => ids,
            Input::Text(text) => {
                let special = SpecialTokens { add: true, parse: false };
                let room = Some(card.context_tokens);
                let ids = gateway.backend.tokenize(card.id.clone(), text, special, room).await;
                ids.map_err(|refusal| ApiError::from_refusal(refusal, About::member("input")))?
            }
        };
        if ids.is_empty() {
            return Err(ApiError::invalid("input", "has no tokens"));
        }
        if ids.len() > card.context_tokens as usize {
            return Err(ApiError::ContextLengthExceeded {
                param: "input",
                prompt_tokens: ids.len() as u64,
                answer_tokens: 0,
                context_tokens: card.context_tokens,
            });
        }
        tokens.push(ids);
    }
    let prompt_tokens = tokens.iter().map(Vec::len).sum();
    let request = EmbeddingRequest {
        id: context.id.clone(),
        model: card.id.clone(),
        inputs: tokens,
        caller: context.caller(None),
    };
    let vectors = gateway.backend.embed(request).await;
    let vectors =
        vectors.map_err(|refusal| ApiError::from_refusal(refusal, About::member("input")))?;
    Ok(Embedded { vectors, prompt_tokens })
}

/// The first `dimensions` numbers, brought back to unit length as OpenAI does.
pub(crate) fn shorten(mut vector: Vec<f32>, dimensions: Option<u32>) -> Vec<f32> {
    let Some(dimensions) = dimensions else { return vector };
    if vector.len() > dimensions as usize {
        vector.truncate(dimensions as usize);
        let length = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        if length > 0.0 {
            vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
        }
    }
    vector
}

/// Little-endian 32-bit floats in base64, which is what OpenAI's Python client decodes.
fn to_base64(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_bits().to_le_bytes()).collect();
    base64(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_matches_the_standard() {
        assert_eq!(to_base64(&[]), "");
        // 00 00 80 3f
        assert_eq!(to_base64(&[1.0]), "AACAPw==");
        assert_eq!(to_base64(&[1.0, -2.0]), "AACAPwAAAMA=");
        assert_eq!(to_base64(&[1.0, -2.0, 0.5]), "AACAPwAAAMAAAAA/");
    }

    #[test]
    fn shortened_vectors_have_unit_length() {
        assert_eq!(shorten(vec![3.0, 4.0, 9.0], Some(2)), [0.6, 0.8]);
        assert_eq!(shorten(vec![3.0, 4.0], Some(2)), [3.0, 4.0]);
        assert_eq!(shorten(vec![0.0, 0.0], Some(1)), [0.0]);
    }
}
