//! The table of routes, and the router built from it.

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, get, post};

use crate::backend::Backend;
use crate::config::GatewayConfig;
use crate::error::ApiError;
use crate::gateway::Gateway;
use crate::guard::{Policy, check_key, guard};
use crate::{llama, ollama, openai};

/// One line of the table.
#[derive(Clone, Copy)]
struct Route {
    path: &'static str,
    method: &'static str,
    policy: Policy,
    handler: fn() -> MethodRouter<Arc<Gateway>>,
}

/// A path, a method, and who may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoutePolicy {
    /// Path, with `{name}` for a variable segment.
    pub path: &'static str,
    /// `GET` or `POST`.
    pub method: &'static str,
    /// Who may use it.
    pub policy: Policy,
}

macro_rules! route {
    (GET $path:literal $policy:ident $handler:expr) => {
        Route { path: $path, method: "GET", policy: Policy::$policy, handler: || get($handler) }
    };
    (POST $path:literal $policy:ident $handler:expr) => {
        Route { path: $path, method: "POST", policy: Policy::$policy, handler: || post($handler) }
    };
}

/// Every route there is. A route that is not here does not exist.
const ROUTES: &[Route] = &[
    route!(GET "/health" Public llama::health),
    route!(GET "/v1/health" Public llama::health),
    route!(GET "/v1/models" Key openai::list_models),
    route!(GET "/v1/models/{*model}" Key openai::retrieve_model),
    route!(POST "/v1/chat/completions" Key openai::chat_completions),
    route!(POST "/v1/completions" Key openai::completions),
    route!(POST "/v1/embeddings" Key openai::embeddings),
    route!(GET "/metrics" KeyUnlessLoopback llama::metrics),
    route!(GET "/props" Key llama::props),
    route!(GET "/slots" Admin llama::slots),
    route!(POST "/tokenize" Key llama::tokenize),
    route!(POST "/detokenize" Key llama::detokenize),
    route!(POST "/apply-template" Key llama::apply_template),
    route!(POST "/api/chat" Key ollama::chat),
    route!(POST "/api/generate" Key ollama::generate),
    route!(POST "/api/embed" Key ollama::embed),
    route!(GET "/api/tags" Key ollama::list_models),
    route!(GET "/api/ps" Key ollama::running_models),
    route!(POST "/api/show" Key ollama::show_model),
    route!(GET "/api/version" Key ollama::version),
];

/// The table of routes without its handlers, for documentation and tests.
pub fn route_policies() -> Vec<RoutePolicy> {
    let policy = |route: &Route| RoutePolicy {
        path: route.path,
        method: route.method,
        policy: route.policy,
    };
    ROUTES.iter().map(policy).collect()
}

/// Builds the HTTP surface over `backend`. The caller serves it; nothing listens here.
///
/// Must be called, and the router used, inside a tokio runtime with timers: each stream is fed by a
/// task of its own.
pub fn router(backend: Arc<dyn Backend>, config: GatewayConfig) -> Router {
    let gateway = Arc::new(Gateway::new(backend, config));
    let mut router = Router::new();
    for route in ROUTES {
        let check = from_fn_with_state((Arc::clone(&gateway), route.policy), check_key);
        router = router.route(route.path, (route.handler)().route_layer(check));
    }
    router
        .fallback(|| async { ApiError::NoSuchRoute.into_response() })
        .method_not_allowed_fallback(|| async { ApiError::MethodNotAllowed.into_response() })
        .layer(from_fn_with_state(Arc::clone(&gateway), guard))
        .with_state(gateway)
}
