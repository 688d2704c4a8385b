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
use crate::guard::{Door, Policy, check_key, guard};
use crate::{cluster, llama, ollama, openai, page};

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
    // The same for everybody: what it shows, it asks for with the key that its user types.
    route!(GET "/" Public page::page),
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
    route!(GET "/cluster" Admin cluster::cluster),
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
        let gateway = Arc::clone(&gateway);
        let door = Door { gateway, path: route.path, policy: route.policy };
        let check = from_fn_with_state(door, check_key);
        router = router.route(route.path, (route.handler)().route_layer(check));
    }
    router
        .fallback(|| async { ApiError::NoSuchRoute.into_response() })
        .method_not_allowed_fallback(|| async { ApiError::MethodNotAllowed.into_response() })
        .layer(from_fn_with_state(Arc::clone(&gateway), guard))
        .with_state(gateway)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use crate::limits::Limits;
    use crate::openai::{CHAT_FIELDS, COMPLETION_FIELDS, EMBEDDING_FIELDS};
    use crate::options::OPTION_FIELDS;

    fn document() -> Value {
        serde_json::from_str(include_str!("../openapi.json")).unwrap()
    }

    #[test]
    fn the_openapi_file_has_every_route_with_its_policy_and_no_other() {
        let document = document();
        let mut documented = BTreeSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                let policy = operation["x-policy"].as_str().unwrap().to_owned();
                let open = operation["security"].as_array().unwrap().is_empty();
                assert_eq!(open, policy == "public", "{path}");
                documented.insert((path.clone(), method.to_uppercase(), policy));
            }
        }
        let served = route_policies().into_iter().map(|route| {
            let policy = match route.policy {
                Policy::Public => "public",
                Policy::Key => "key",
                Policy::KeyUnlessLoopback => "key_unless_loopback",
                Policy::Admin => "admin",
            };
            (route.path.replace("{*", "{"), route.method.to_owned(), policy.to_owned())
        });
        assert_eq!(documented, served.collect());
        assert_eq!(documented.len(), ROUTES.len(), "no route is listed twice");
    }

    #[test]
    fn the_openapi_file_has_every_known_field_and_its_limits() {
        let document = document();
        let schema = |name: &str| document["components"]["schemas"][name]["properties"].clone();
        for (name, known) in [
            ("ChatRequest", [&OPTION_FIELDS[..], &CHAT_FIELDS[..]].concat()),
            ("CompletionRequest", [&OPTION_FIELDS[..], &COMPLETION_FIELDS[..]].concat()),
            ("EmbeddingRequest", EMBEDDING_FIELDS.to_vec()),
        ] {
            let properties = schema(name);
            let documented: BTreeSet<&str> =
                properties.as_object().unwrap().keys().map(String::as_str).collect();
            assert_eq!(documented, known.into_iter().collect(), "{name}");
        }
        let chat = schema("ChatRequest");
        let limits = Limits::DEFAULT;
        for (field, keyword, limit) in [
            ("n", "maximum", limits.choices as usize),
            ("top_logprobs", "maximum", limits.top_logprobs.into()),
            ("messages", "maxItems", limits.messages),
            ("tools", "maxItems", limits.tools),
            ("stop_token_ids", "maxItems", limits.stops),
            ("logit_bias", "maxProperties", limits.logit_bias),
        ] {
            assert_eq!(chat[field][keyword], limit, "{field}");
        }
    }
}
