//! Every way to fail, once: status, type, `param`, `code`, and whether to try again.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::backend::{Failure, Refusal};

/// Why a request is not answered. The text is for the client: it names fields and limits, never
/// paths, and never repeats what the client sent.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum ApiError {
    #[error("the body is not valid JSON at line {line}, column {column}")]
    MalformedJson { line: usize, column: usize },
    #[error("an object in the body names a member twice, at line {line}, column {column}")]
    NameTwice { line: usize, column: usize },
    #[error("the body must be a JSON object")]
    NotAnObject,
    #[error("the body is larger than {limit} bytes")]
    BodyTooLarge { limit: usize },
    #[error("the body ended early")]
    BodyBroken,
    #[error("the body nests deeper than {limit} levels")]
    TooDeep { limit: usize },
    #[error("the body holds more than {limit} values")]
    TooManyValues { limit: usize },
    #[error("the headers are larger than {bytes} bytes or more than {fields} fields")]
    HeadersTooLarge { bytes: usize, fields: usize },
    #[error("the request gives its length twice")]
    LengthTwice,
    #[error("{param} is required")]
    Missing { param: String },
    #[error("{param} {problem}")]
    Invalid { param: String, problem: String },
    #[error("{param} is not supported: {reason}")]
    Unsupported { param: String, reason: String },
    #[error(
        "this model's context holds {context_tokens} tokens, but {prompt_tokens} prompt and \
         {answer_tokens} answer tokens were asked for; shorten the messages or the answer"
    )]
    ContextLengthExceeded {
        param: &'static str,
        prompt_tokens: u64,
        answer_tokens: u64,
        context_tokens: u32,
    },
    #[error(
        "this model's context holds {context_tokens} tokens, but the prompt alone has at least \
         {tokens_min}; shorten the messages"
    )]
    PromptTooLong { param: &'static str, tokens_min: u32, context_tokens: u32 },
    #[error("no API key was given; send it as `Authorization: Bearer KEY` or `x-api-key: KEY`")]
    KeyMissing,
    #[error("the API key is not known here")]
    KeyWrong,
    #[error("this route needs a key with the scope `admin`")]
    AdminOnly,
    #[error("the Host header names another server; add the name to the configured host names")]
    ForeignHost,
    #[error("pages of other sites may not use this server unless their origin is configured")]
    ForeignOrigin,
    #[error("no such route")]
    NoSuchRoute,
    #[error("this route does not take this method")]
    MethodNotAllowed,
    #[error("no model of this name is served here; GET /v1/models lists those that are")]
    NoSuchModel,
    #[error("the server is busy: {waiting} requests are waiting; try again later")]
    QueueFull { waiting: u32, retry_after: Duration },
    #[error("this key has {waiting} requests waiting already; try again later")]
    KeyQueueFull { waiting: u32, retry_after: Duration },
    #[error("the model is still loading; try again later")]
    Loading { retry_after: Duration },
    #[error("the devices at hand cannot run the model now: {reason}")]
    NoPlan { reason: String },
    #[error("a device was lost and its work could not be taken over; try again")]
    NodeLost,
    #[error("the server is stopping; try again later")]
    Stopping,
    #[error("no progress was made within {} seconds", limit.as_secs())]
    TimedOut { limit: Duration },
    #[error("the server failed to compute an answer")]
    Failed,
}

/// The members of a request that a backend's complaints are about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About {
    /// Holds the prompt.
    pub(crate) prompt: &'static str,
    /// Holds the schema to be forced, if there is one.
    pub(crate) schema: &'static str,
}

impl About {
    /// One member that holds everything the backend sees.
    pub(crate) fn member(param: &'static str) -> Self {
        Self { prompt: param, schema: param }
    }
}

/// When to try again after the cluster has lost a device or is restarting.
const RETRY_SOON: Duration = Duration::from_secs(2);
/// When to try again after something that needs a person or a device to come back.
const RETRY_LATER: Duration = Duration::from_secs(30);

/// What the wire says of an error besides its text.
struct Facts<'a> {
    status: StatusCode,
    kind: &'static str,
    param: Option<&'a str>,
    code: &'static str,
}

impl ApiError {
    /// A field with a value that is out of its range or of the wrong type.
    pub(crate) fn invalid(param: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Invalid { param: param.into(), problem: problem.into() }
    }

    /// A field that asks for something that is not offered.
    pub(crate) fn unsupported(param: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Unsupported { param: param.into(), reason: reason.into() }
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.facts().status
    }

    /// The error object of the wire, all four keys present.
    pub(crate) fn to_json(&self) -> Value {
        let facts = self.facts();
        json!({"error": {
            "message": self.to_string(),
            "type": facts.kind,
            "param": facts.param,
            "code": facts.code,
        }})
    }

    /// Puts a backend's complaint at the member it is about.
    pub(crate) fn from_refusal(refusal: Refusal, about: About) -> Self {
        match refusal {
            Refusal::QueueFull { waiting, retry_after } => Self::QueueFull { waiting, retry_after },
            Refusal::KeyQueueFull { waiting, retry_after } => {
                Self::KeyQueueFull { waiting, retry_after }
            }
            Refusal::ContextExceeded { prompt_tokens, answer_tokens, context_tokens } => {
                Self::ContextLengthExceeded {
                    param: about.prompt,
                    prompt_tokens: prompt_tokens.into(),
                    answer_tokens: answer_tokens.into(),
                    context_tokens,
                }
            }
            Refusal::PromptTooLong { tokens_min, context_tokens } => {
                Self::PromptTooLong { param: about.prompt, tokens_min, context_tokens }
            }
            Refusal::Loading { retry_after } => Self::Loading { retry_after },
            Refusal::NoPlan { reason } => Self::NoPlan { reason },
            Refusal::Unsupported { param, feature } => {
                Self::unsupported(param, format!("this model or build has no {feature}"))
            }
            Refusal::Schema { pointer, problem } => {
                Self::unsupported(about.schema, format!("at {pointer:?}: {problem}"))
            }
            Refusal::Template { problem } => {
                Self::invalid("messages", format!("are refused by the chat template: {problem}"))
            }
            Refusal::Failed(failure) => Self::from(failure),
        }
    }

    fn facts(&self) -> Facts<'_> {
        let (status, kind, code) = match self {
            Self::MalformedJson { .. } => bad_request("invalid_json"),
            Self::NameTwice { .. } | Self::NotAnObject => bad_request("invalid_json"),
            Self::BodyTooLarge { .. } => invalid(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"),
            Self::BodyBroken => bad_request("body_incomplete"),
            Self::TooDeep { .. } => bad_request("json_too_deep"),
            Self::TooManyValues { .. } => bad_request("json_too_many_values"),
            Self::HeadersTooLarge { .. } => {
                invalid(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "headers_too_large")
            }
            Self::LengthTwice => bad_request("ambiguous_length"),
            Self::Missing { .. } => bad_request("missing_required_parameter"),
            Self::Invalid { .. } => bad_request("invalid_value"),
            Self::Unsupported { .. } => bad_request("unsupported_parameter"),
            Self::ContextLengthExceeded { .. } | Self::PromptTooLong { .. } => {
                bad_request("context_length_exceeded")
            }
            Self::KeyMissing => unauthorised("missing_api_key"),
            Self::KeyWrong => unauthorised("invalid_api_key"),
            Self::AdminOnly => forbidden("admin_key_required"),
            Self::ForeignHost => forbidden("host_not_allowed"),
            Self::ForeignOrigin => forbidden("origin_not_allowed"),
            Self::NoSuchRoute => invalid(StatusCode::NOT_FOUND, "unknown_url"),
            Self::MethodNotAllowed => invalid(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
            Self::NoSuchModel => invalid(StatusCode::NOT_FOUND, "model_not_found"),
            Self::QueueFull { .. } => busy("queue_full"),
            Self::KeyQueueFull { .. } => busy("key_queue_full"),
            Self::Loading { .. } => unavailable("model_loading"),
            Self::NoPlan { .. } => unavailable("no_plan"),
            Self::NodeLost => unavailable("node_lost"),
            Self::Stopping => unavailable("server_stopping"),
            Self::TimedOut { .. } => unavailable("timeout"),
            Self::Failed => {
                (StatusCode::INTERNAL_SERVER_ERROR, "server_error", "generation_failed")
            }
        };
        Facts { status, kind, param: self.param(), code }
    }

    fn param(&self) -> Option<&str> {
        match self {
            Self::Missing { param }
            | Self::Invalid { param, .. }
            | Self::Unsupported { param, .. } => Some(param),
            Self::NoSuchModel => Some("model"),
            Self::ContextLengthExceeded { param, .. } | Self::PromptTooLong { param, .. } => {
                Some(param)
            }
            _ => None,
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::QueueFull { retry_after, .. }
            | Self::KeyQueueFull { retry_after, .. }
            | Self::Loading { retry_after } => Some(*retry_after),
            Self::NodeLost | Self::Stopping => Some(RETRY_SOON),
            Self::NoPlan { .. } | Self::TimedOut { .. } => Some(RETRY_LATER),
            _ => None,
        }
    }
}

fn invalid(status: StatusCode, code: &'static str) -> (StatusCode, &'static str, &'static str) {
    (status, "invalid_request_error", code)
}

fn bad_request(code: &'static str) -> (StatusCode, &'static str, &'static str) {
    invalid(StatusCode::BAD_REQUEST, code)
}

fn unauthorised(code: &'static str) -> (StatusCode, &'static str, &'static str) {
    (StatusCode::UNAUTHORIZED, "authentication_error", code)
}

fn forbidden(code: &'static str) -> (StatusCode, &'static str, &'static str) {
    (StatusCode::FORBIDDEN, "permission_error", code)
}

fn busy(code: &'static str) -> (StatusCode, &'static str, &'static str) {
    (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", code)
}

fn unavailable(code: &'static str) -> (StatusCode, &'static str, &'static str) {
    (StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", code)
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NodeLost => Self::NodeLost,
            Failure::NoPlan { reason } => Self::NoPlan { reason },
            Failure::TimedOut { limit } => Self::TimedOut { limit },
            Failure::Stopping => Self::Stopping,
            Failure::Abandoned | Failure::Compute { .. } => Self::Failed,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.to_json().to_string()));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(wait) = self.retry_after() {
            // Rounded up: a client that comes back early is refused again.
            let seconds = wait.as_millis().div_ceil(1_000).max(1) as u64;
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status() == StatusCode::UNAUTHORIZED {
            headers.insert("www-authenticate", HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(self);
        response
    }
}
