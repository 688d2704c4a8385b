//! Calls the router as a function.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::Response;
use motley_gateway::{
    Backend, Exposure, GatewayConfig, KeyDigest, KeyRing, Limits, MetricNames, Scope, SharedLog,
    UnixClock, UsualOptions, router,
};
use serde_json::Value;
use tower::ServiceExt;

use crate::fake::Fake;

pub const INFER_KEY: &str = "sk-infer";
pub const ADMIN_KEY: &str = "sk-admin";

pub struct Client {
    pub fake: Arc<Fake>,
    router: Router,
    key: Option<&'static str>,
}

pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not JSON: {}", self.text))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The JSON of each event of a stream, and whether it was ended as it should be.
    pub fn events(&self) -> (Vec<Value>, bool) {
        let mut events: Vec<&str> =
            self.text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
        let done = events.last() == Some(&"[DONE]");
        events.retain(|event| *event != "[DONE]");
        (events.iter().map(|event| serde_json::from_str(event).unwrap()).collect(), done)
    }
}

pub fn config() -> GatewayConfig {
    GatewayConfig {
        limits: Limits::DEFAULT,
        usual: UsualOptions::default(),
        keys: KeyRing::new(),
        host_names: vec!["motley.lan".to_owned(), "192.168.1.9".to_owned()],
        allowed_origins: Vec::new(),
        exposure: Exposure::Loopback,
        metric_names: MetricNames::Motley,
        version: "motley-test".to_owned(),
        id_seed: 0xfeed,
        clock: UnixClock::new(|| 1_750_000_000),
        log: SharedLog::default(),
    }
}

pub fn keys() -> KeyRing {
    let mut keys = KeyRing::new();
    keys.add(KeyDigest::of(INFER_KEY), Scope::Infer);
    keys.add(KeyDigest::of(ADMIN_KEY), Scope::Admin);
    keys
}

impl Client {
    pub fn new() -> Self {
        Self::with(config())
    }

    pub fn with(config: GatewayConfig) -> Self {
        let fake = Arc::new(Fake::default());
        let router = router(Arc::clone(&fake) as Arc<dyn Backend>, config);
        Self { fake, router, key: None }
    }

    /// Sends this key with every request.
    pub fn with_key(mut self, key: &'static str) -> Self {
        self.key = Some(key);
        self
    }

    /// Sends a request and returns before its body has been read.
    pub async fn start(&self, mut request: Request<Body>) -> Response {
        let headers = request.headers_mut();
        headers.entry("host").or_insert_with(|| "localhost:11555".parse().unwrap());
        if let Some(key) = self.key {
            headers
                .entry("authorization")
                .or_insert_with(|| format!("Bearer {key}").parse().unwrap());
        }
        self.router.clone().oneshot(request).await.unwrap()
    }

    pub async fn send(&self, request: Request<Body>) -> Answer {
        let (parts, body) = self.start(request).await.into_parts();
        let bytes = to_bytes(body, usize::MAX).await.unwrap();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        Answer { status: parts.status, headers: parts.headers, text }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(post(path, body.to_string())).await
    }
}

pub fn post(path: &str, body: impl Into<Body>) -> Request<Body> {
    Request::post(path).header("content-type", "application/json").body(body.into()).unwrap()
}
