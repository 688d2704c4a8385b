//! Who gets in: hosts, origins, keys, policies, sizes.

use axum::body::Body;
use axum::http::{Method, Request};
use expect_test::expect;
use motley_gateway::{Exposure, GatewayConfig, KeyId, Policy, route_policies};
use serde_json::json;

use crate::client::{ADMIN_KEY, Client, INFER_KEY, config, keys, post};

fn get_with(path: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = Request::get(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Body::empty()).unwrap()
}

#[tokio::test]
async fn every_route_keeps_its_policy() {
    let mut config = config();
    config.keys = keys();
    config.exposure = Exposure::Network;
    let client = Client::with(config);
    let mut public = Vec::new();
    for route in route_policies() {
        let path = route.path.replace("{*model}", "m");
        let status = async |key: Option<&str>| {
            let mut request = Request::builder().method(route.method).uri(&path);
            if let Some(key) = key {
                request = request.header("authorization", format!("Bearer {key}"));
            }
            let answer = client.send(request.body(Body::from("{}")).unwrap()).await;
            answer.status.as_u16()
        };
        let [none, wrong, infer, admin] = [
            status(None).await,
            status(Some("sk-wrong")).await,
            status(Some(INFER_KEY)).await,
            status(Some(ADMIN_KEY)).await,
        ];
        let passes = |status: u16| ![401, 403, 404, 405].contains(&status);
        match route.policy {
            Policy::Public => {
                public.push(route.path);
                assert!(passes(none) && passes(wrong), "{route:?}");
            }
            Policy::Key | Policy::KeyUnlessLoopback => {
                assert_eq!((none, wrong), (401, 401), "{route:?}");
                assert!(passes(infer) && passes(admin), "{route:?}");
            }
            Policy::Admin => {
                assert_eq!((none, wrong, infer), (401, 401, 403), "{route:?}");
                assert!(passes(admin), "{route:?}");
            }
        }
    }
    // The page holds nothing: what it shows it asks for with a key.
    assert_eq!(public, ["/", "/health", "/v1/health"]);
}

#[tokio::test]
async fn metrics_are_open_on_loopback_only() {
    for (exposure, status) in [(Exposure::Loopback, 200), (Exposure::Network, 401)] {
        let mut config = config();
        config.keys = keys();
        config.exposure = exposure;
        assert_eq!(Client::with(config).get("/metrics").await.status, status);
    }
}

#[tokio::test]
async fn without_keys_everyone_who_can_connect_may_ask() {
    let client = Client::new();
    assert_eq!(client.get("/v1/models").await.status, 200);
    assert_eq!(client.get("/slots").await.status, 200);
}

#[tokio::test]
async fn keys_come_in_either_header_but_once() {
    let mut config = config();
    config.keys = keys();
    let client = Client::with(config);
    for (headers, status) in [
        (vec![("authorization", "Bearer sk-infer")], 200),
        (vec![("authorization", "bearer sk-infer")], 200),
        (vec![("x-api-key", "sk-infer")], 200),
        (vec![("authorization", "sk-infer")], 401),
        (vec![("authorization", "Bearer sk-infer"), ("x-api-key", "sk-infer")], 401),
        (vec![("x-api-key", "sk-infer"), ("x-api-key", "sk-infer")], 401),
        (vec![("x-api-key", "")], 401),
    ] {
        let answer = client.send(get_with("/v1/models", &headers)).await;
        assert_eq!(answer.status, status, "{headers:?}");
        if status == 401 {
            assert_eq!(answer.header("www-authenticate"), "Bearer");
        }
    }
}

#[tokio::test]
async fn the_backend_learns_whose_request_it_is() {
    let mut config = config();
    config.keys = keys();
    let client = Client::with(config).with_key(ADMIN_KEY);
    let mut request = post("/v1/completions", json!({"prompt": "a", "max_tokens": 1}).to_string());
    request.headers_mut().insert("x-request-id", "mine-1".parse().unwrap());
    let answer = client.send(request).await;
    assert_eq!(answer.header("x-request-id"), "mine-1");
    assert!(answer.header("openai-processing-ms").parse::<u64>().is_ok());
    let seen = client.fake.last_request();
    assert_eq!((seen.caller.key, seen.id.as_str()), (Some(KeyId(1)), "mine-1"));
}

#[tokio::test]
async fn unsafe_request_ids_are_replaced() {
    let client = Client::new();
    for id in ["", "a b", "<script>", &"x".repeat(129)] {
        let answer = client.send(get_with("/health", &[("x-request-id", id)])).await;
        assert!(answer.header("x-request-id").starts_with("req_"), "{id}");
    }
}

#[tokio::test]
async fn hosts_must_be_known() {
    let client = Client::new();
    for (host, status) in [
        ("localhost", 200),
        ("127.0.0.1:11555", 200),
        ("[::1]:11555", 200),
        ("motley.lan:11555", 200),
        ("MOTLEY.LAN", 200),
        ("192.168.1.9:11555", 200),
        ("192.168.1.10", 403),
        ("motley.lan.evil.example", 403),
        ("localhost.evil.example", 403),
        ("", 403),
    ] {
        assert_eq!(
            client.send(get_with("/health", &[("host", host)])).await.status,
            status,
            "{host}"
        );
    }
    let twice = get_with("/health", &[("host", "localhost"), ("host", "localhost")]);
    assert_eq!(client.send(twice).await.status, 403);
}

#[tokio::test]
async fn pages_of_this_server_may_use_it_and_others_may_not() {
    let client = Client::new();
    for (origin, status) in [
        ("http://localhost:11555", 200),
        ("https://localhost:11555", 200),
        ("http://localhost:3000", 403),
        ("null", 403),
        ("https://chat.example", 403),
    ] {
        let answer = client.send(get_with("/v1/models", &[("origin", origin)])).await;
        assert_eq!(answer.status, status, "{origin}");
        assert_eq!(answer.header("access-control-allow-origin"), "", "CORS is off");
    }
}

#[tokio::test]
async fn configured_origins_may_read_answers_without_credentials() {
    let mut config = config();
    config.allowed_origins = vec!["https://chat.example".to_owned()];
    let client = Client::with(config);
    let origin = ("origin", "https://chat.example");
    let answer = client.send(get_with("/v1/models", &[origin])).await;
    assert_eq!(answer.header("access-control-allow-origin"), "https://chat.example");
    assert_eq!(answer.header("access-control-allow-credentials"), "");
    assert_eq!(answer.header("vary"), "origin");
    let mut preflight =
        get_with("/v1/models", &[origin, ("access-control-request-method", "POST")]);
    *preflight.method_mut() = Method::OPTIONS;
    let answer = client.send(preflight).await;
    assert_eq!(answer.status, 204);
    assert_eq!(answer.header("access-control-allow-methods"), "GET, POST");
    let other =
        client.send(get_with("/v1/models", &[("origin", "https://chat.example.evil")])).await;
    assert_eq!(other.status, 403);
}

#[tokio::test]
async fn unknown_routes_and_methods_have_error_bodies() {
    let client = Client::new();
    let answer = client.get("/v1/secret-name").await;
    assert_eq!(answer.status, 404);
    expect![[r#"{"error":{"message":"no such route","type":"invalid_request_error","param":null,"code":"unknown_url"}}"#]]
    .assert_eq(&answer.text);
    let answer = client.get("/v1/chat/completions").await;
    assert_eq!(answer.status, 405);
    assert_eq!(answer.json()["error"]["code"], "method_not_allowed");
}

#[tokio::test]
async fn sizes_are_limited_at_the_edge() {
    let mut config = config();
    config.limits.body_bytes = 100;
    config.limits.json_depth = 3;
    config.limits.json_nodes = 10;
    let client = Client::with(config);
    for (body, status, code) in [
        (format!("{{\"a\":\"{}\"}}", "x".repeat(100)), 413, "body_too_large"),
        ("{\"a\":[[[1]]]}".to_owned(), 400, "json_too_deep"),
        (format!("[{}1]", "1,".repeat(20)), 400, "json_too_many_values"),
        ("{\"prompt\":\"\\ud800\"}".to_owned(), 400, "invalid_json"),
        ("[[[".to_owned(), 400, "invalid_json"),
        ("7".to_owned(), 400, "invalid_json"),
    ] {
        let answer = client.send(post("/v1/completions", body.clone())).await;
        assert_eq!(answer.status, status, "{body}");
        assert_eq!(answer.json()["error"]["code"], code, "{body}");
    }
    let mut many = get_with("/health", &[]);
    for index in 0..101 {
        let name: axum::http::HeaderName = format!("x-{index}").parse().unwrap();
        many.headers_mut().insert(name, "1".parse().unwrap());
    }
    assert_eq!(client.send(many).await.status, 431);
}

#[tokio::test]
async fn the_page_is_for_browsers_and_runs_nothing_from_elsewhere() {
    let client = Client::with(GatewayConfig { keys: keys(), ..config() });
    let accept = |types| Request::get("/").header("accept", types).body(Body::empty()).unwrap();
    let page = client.send(accept("text/html,application/xhtml+xml,*/*;q=0.8")).await;
    assert_eq!(page.status, 200);
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    let policy = page.header("content-security-policy");
    for part in ["default-src 'none'", "script-src 'sha256-", "frame-ancestors 'none'"] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("inline") && !policy.contains("eval"), "{policy}");
    assert!(page.text.starts_with("<!doctype html>"));
    let line = client.send(accept("*/*")).await;
    assert_eq!((line.status.as_u16(), line.text.as_str()), (200, "Motley is running"));
}
