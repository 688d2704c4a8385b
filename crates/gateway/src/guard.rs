//! What every request passes before its handler: size of the headers, host, origin, and the key the
//! route asks for.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_LENGTH, HOST, ORIGIN};
use axum::http::header::{TRANSFER_ENCODING, VARY, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tokio::time::Instant;

use crate::backend::KeyId;
use crate::config::{Exposure, KeyRing, Scope};
use crate::error::ApiError;
use crate::gateway::{Gateway, RequestContext};
use crate::limits::REQUEST_ID_BYTES;
use crate::request_log::AnsweredRequest;

/// Who may use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Everyone who can connect.
    Public,
    /// Any key.
    Key,
    /// Any key, or none if only this machine can connect.
    KeyUnlessLoopback,
    /// A key with the scope [`Scope::Admin`].
    Admin,
}

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const PROCESSING_MS: HeaderName = HeaderName::from_static("openai-processing-ms");
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const ALLOW_ORIGIN: HeaderName = HeaderName::from_static("access-control-allow-origin");
const ALLOW_METHODS: HeaderName = HeaderName::from_static("access-control-allow-methods");
const ALLOW_HEADERS: HeaderName = HeaderName::from_static("access-control-allow-headers");

/// The outermost layer: nothing below it sees a request that these checks refuse, and every response
/// leaves with an id.
pub(crate) async fn guard(
    State(gateway): State<Arc<Gateway>>,
    mut request: Request,
    next: Next,
) -> Response {
    let received = Instant::now();
    let id = offered_id(request.headers()).unwrap_or_else(|| gateway.new_id("req_"));
    let method = request.method().clone();
    let ollama = request.uri().path().starts_with("/api/");
    let mut response = match admit(&gateway, &request) {
        Err(error) => error.into_response(),
        Ok(Admitted::Preflight(origin)) => preflight(&origin),
        Ok(Admitted::Request(origin)) => {
            let context = RequestContext { id: id.clone(), key: None, received };
            request.extensions_mut().insert(context);
            let mut response = next.run(request).await;
            if let Some(origin) = origin {
                response.headers_mut().insert(ALLOW_ORIGIN, origin);
            }
            response
        }
    };
    let problem = response.extensions().get::<ApiError>().map(ToString::to_string);
    if ollama && let Some(problem) = &problem {
        // Ollama's clients expect a text where OpenAI's expect an object.
        *response.body_mut() = Body::from(json!({"error": problem}).to_string());
    }
    gateway.config.log.answered(&AnsweredRequest {
        id: &id,
        method: method.as_str(),
        route: response.extensions().get::<Reached>().map(|reached| reached.0),
        status: response.status().as_u16(),
        problem: problem.as_deref(),
        took: received.elapsed(),
    });
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert(REQUEST_ID, id);
    }
    let took_ms = u64::try_from(received.elapsed().as_millis()).unwrap_or(u64::MAX);
    headers.insert(PROCESSING_MS, HeaderValue::from(took_ms));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(VARY, HeaderValue::from_static("origin"));
    response
}

/// What stands before one route.
#[derive(Clone)]
pub(crate) struct Door {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) path: &'static str,
    pub(crate) policy: Policy,
}

/// The path of the route a request reached, left on its response for the log.
#[derive(Clone, Copy)]
struct Reached(&'static str);

/// The layer of one route: checks the key and tells the handler whose it is.
pub(crate) async fn check_key(
    State(door): State<Door>,
    mut request: Request,
    next: Next,
) -> Response {
    let mut response = match authorise(&door.gateway, door.policy, request.headers()) {
        Err(error) => error.into_response(),
        Ok(key) => {
            if let Some(context) = request.extensions_mut().get_mut::<RequestContext>() {
                context.key = key;
            }
            next.run(request).await
        }
    };
    response.extensions_mut().insert(Reached(door.path));
    response
}

/// A client's own request id, if it is safe to repeat in a header and a log.
fn offered_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    let safe = !id.is_empty() && id.len() <= REQUEST_ID_BYTES && id.bytes().all(plain);
    safe.then(|| id.to_owned())
}

enum Admitted {
    /// A browser asks whether a page of this configured origin may send a request.
    Preflight(HeaderValue),
    /// Go on; the origin, if any, that may read the answer.
    Request(Option<HeaderValue>),
}

fn admit(gateway: &Gateway, request: &Request) -> Result<Admitted, ApiError> {
    let headers = request.headers();
    let limits = &gateway.config.limits;
    let (bytes, fields) = (limits.header_bytes, limits.header_fields);
    let size: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if size > bytes || headers.len() > fields {
        return Err(ApiError::HeadersTooLarge { bytes, fields });
    }
    if headers.contains_key(CONTENT_LENGTH) && headers.contains_key(TRANSFER_ENCODING) {
        return Err(ApiError::LengthTwice);
    }
    let host = host_of(request).ok_or(ApiError::ForeignHost)?;
    let name = without_port(host);
    if !is_loopback_name(name) && !gateway.config.host_names.iter().any(|own| is_same(own, name)) {
        return Err(ApiError::ForeignHost);
    }
    let Some(origin) = headers.get(ORIGIN) else { return Ok(Admitted::Request(None)) };
    let text = origin.to_str().map_err(|_| ApiError::ForeignOrigin)?;
    if gateway.config.allowed_origins.iter().any(|allowed| allowed == text) {
        let asks = request.method() == Method::OPTIONS
            && headers.contains_key("access-control-request-method");
        return Ok(match asks {
            true => Admitted::Preflight(origin.clone()),
            false => Admitted::Request(Some(origin.clone())),
        });
    }
    let own = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    match own {
        Some(own) if own.eq_ignore_ascii_case(host) => Ok(Admitted::Request(None)),
        _ => Err(ApiError::ForeignOrigin),
    }
}

fn preflight(origin: &HeaderValue) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert(ALLOW_ORIGIN, origin.clone());
    headers.insert(ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
    headers.insert(
        ALLOW_HEADERS,
        HeaderValue::from_static("authorization, content-type, x-api-key, x-request-id"),
    );
    response
}

/// The one host a request names: in HTTP/1 a header, in HTTP/2 part of the target.
fn host_of(request: &Request) -> Option<&str> {
    let mut hosts = request.headers().get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().ok(),
        (None, _) => request.uri().authority().map(axum::http::uri::Authority::as_str),
        (Some(_), Some(_)) => None,
    }
}

fn without_port(host: &str) -> &str {
    let digits = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    match host.rsplit_once(':') {
        // The colons of an IPv6 address are inside brackets.
        Some((name, port)) if digits(port) && (!name.contains(':') || name.ends_with(']')) => name,
        _ => host,
    }
}

fn is_loopback_name(name: &str) -> bool {
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let address = bare.parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

fn is_same(own: &str, name: &str) -> bool {
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    own.eq_ignore_ascii_case(name)
}

fn authorise(
    gateway: &Gateway,
    policy: Policy,
    headers: &HeaderMap,
) -> Result<Option<KeyId>, ApiError> {
    let open = match policy {
        Policy::Public => true,
        Policy::KeyUnlessLoopback => gateway.config.exposure == Exposure::Loopback,
        Policy::Key | Policy::Admin => false,
    };
    let keys = &gateway.config.keys;
    // Without keys the operator has decided, at the bind check, that reaching the port is enough.
    if open || keys.is_empty() {
        return Ok(None);
    }
    let (key, scope) = find_key(keys, headers)?;
    if policy == Policy::Admin && scope != Scope::Admin {
        return Err(ApiError::AdminOnly);
    }
    Ok(Some(key))
}

fn find_key(keys: &KeyRing, headers: &HeaderMap) -> Result<(KeyId, Scope), ApiError> {
    let bearers = headers.get_all(AUTHORIZATION).iter();
    let offered: Vec<&HeaderValue> = bearers.chain(headers.get_all(API_KEY)).collect();
    let [offered] = offered[..] else {
        return Err(if offered.is_empty() { ApiError::KeyMissing } else { ApiError::KeyWrong });
    };
    let text = offered.to_str().map_err(|_| ApiError::KeyWrong)?;
    let key = if headers.contains_key(AUTHORIZATION) {
        let (scheme, key) = text.split_once(' ').ok_or(ApiError::KeyWrong)?;
        let bearer = scheme.eq_ignore_ascii_case("bearer");
        bearer.then_some(key.trim()).ok_or(ApiError::KeyWrong)?
    } else {
        text
    };
    keys.find(key).ok_or(ApiError::KeyWrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_cut_and_look_alikes_stay_foreign() {
        for host in
            ["localhost", "LOCALHOST:80", "127.0.0.1:8080", "127.3.2.1", "[::1]:80", "[::1]"]
        {
            assert!(is_loopback_name(without_port(host)), "{host}");
        }
        for host in
            ["", "localhost.evil", "evil.localhost", "localhost:80:80", "localhost:x", "1.2.3.4"]
        {
            assert!(!is_loopback_name(without_port(host)), "{host}");
        }
    }
}
