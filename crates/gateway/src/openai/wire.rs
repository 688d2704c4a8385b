//! Pieces of JSON that several of OpenAI's objects share.

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use serde_json::{Map, Value, json};

use crate::backend::GenerationRequest;
use crate::limits::WARNINGS;
use crate::token_stream::{Alternative, Drawn, TokenUsage};

/// What is the same in every object of one answer.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) created_unix_s: u64,
    pub(crate) model: String,
    pub(crate) fingerprint: String,
}

impl Head {
    /// An answer or a piece of one.
    pub(crate) fn object(&self, object: &str, choices: Vec<Value>, usage: Usage) -> Value {
        let mut value = json!({
            "id": self.id,
            "object": object,
            "created": self.created_unix_s,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        });
        match usage {
            Usage::Absent => {}
            Usage::Null => value["usage"] = Value::Null,
            Usage::Of(usage) => value["usage"] = usage_json(usage),
        }
        value
    }
}

/// What an object says about usage.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Usage {
    /// Nothing.
    Absent,
    /// That it will come later.
    Null,
    /// This.
    Of(TokenUsage),
}

pub(crate) fn usage_json(usage: TokenUsage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    })
}

/// An event of a server-sent stream.
pub(crate) fn push_event(out: &mut String, value: &Value) {
    out.push_str("data: ");
    out.push_str(&value.to_string());
    out.push_str("\n\n");
}

/// The event that ends a server-sent stream.
pub(crate) const DONE: &str = "data: [DONE]\n\n";
/// A comment, which clients skip and proxies count as life.
pub(crate) const COMMENT: &str = ": waiting\n\n";

/// `logprobs` of a chat choice.
pub(crate) fn chat_logprobs(drawn: &[Drawn]) -> Value {
    let one = |bytes: &[u8], logprob: Option<f32>| {
        let mut token = Map::new();
        token.insert("token".to_owned(), String::from_utf8_lossy(bytes).into());
        token.insert("logprob".to_owned(), finite(logprob).into());
        token.insert("bytes".to_owned(), bytes.into());
        token
    };
    let content: Vec<Value> = drawn
        .iter()
        .map(|drawn| {
            let mut token = one(&drawn.bytes, drawn.logprob);
            let top = drawn.top.iter().map(|other| one(&other.bytes, Some(other.logprob)).into());
            token.insert("top_logprobs".to_owned(), top.collect::<Vec<Value>>().into());
            token.into()
        })
        .collect();
    json!({"content": content, "refusal": null})
}

/// `logprobs` of a completions choice. `offset` is where the first token's text begins, in
/// characters, and is moved behind the last.
pub(crate) fn completion_logprobs(drawn: &[Drawn], offset: &mut usize) -> Value {
    let mut tokens = Vec::with_capacity(drawn.len());
    let mut offsets = Vec::with_capacity(drawn.len());
    for drawn in drawn {
        let text = String::from_utf8_lossy(&drawn.bytes).into_owned();
        offsets.push(*offset);
        *offset += text.chars().count();
        tokens.push(text);
    }
    let logprobs: Vec<Value> = drawn.iter().map(|drawn| optional(drawn.logprob)).collect();
    let top: Vec<Value> = drawn.iter().map(top_map).collect();
    json!({
        "tokens": tokens,
        "token_logprobs": logprobs,
        "top_logprobs": top,
        "text_offset": offsets,
    })
}

/// Alternatives by text; `null` where there is no distribution, as at the start of a prompt.
fn top_map(drawn: &Drawn) -> Value {
    if drawn.logprob.is_none() {
        return Value::Null;
    }
    let entry = |other: &Alternative| {
        (String::from_utf8_lossy(&other.bytes).into_owned(), finite(Some(other.logprob)).into())
    };
    Value::Object(drawn.top.iter().map(entry).collect())
}

/// JSON has no infinities; OpenAI writes -9999 for "never".
fn finite(logprob: Option<f32>) -> f64 {
    match logprob {
        Some(logprob) if logprob.is_finite() => logprob.into(),
        _ => -9_999.0,
    }
}

fn optional(logprob: Option<f32>) -> Value {
    logprob.map_or(Value::Null, |logprob| finite(Some(logprob)).into())
}

/// Tells a client which members it probably misspelt.
pub(crate) fn warn_of(response: &mut Response, near_misses: &[&str]) {
    if near_misses.is_empty() {
        return;
    }
    let near: Vec<&str> = near_misses.iter().copied().take(WARNINGS).collect();
    let text = format!("unknown fields were ignored; did you mean {}?", near.join(", "));
    if let Ok(value) = HeaderValue::from_str(&text) {
        response.headers_mut().insert(HeaderName::from_static("warnings"), value);
    }
}

/// `count` requests that differ in their seeds, so that equal prompts give different answers.
pub(crate) fn repeat(request: &GenerationRequest, count: u32) -> Vec<GenerationRequest> {
    let with_seed = |index: u32| {
        let mut request = request.clone();
        request.sampling.seed = request.sampling.seed.map(|seed| seed.wrapping_add(index.into()));
        request
    };
    (0..count).map(with_seed).collect()
}
