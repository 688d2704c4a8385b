//! Health, models, properties, slots, metrics, tokens, templates.

use expect_test::expect;
use motley_gateway::{Health, MetricNames, Role};
use serde_json::json;

use crate::client::{Client, config};

#[tokio::test]
async fn health_follows_the_backend() {
    let client = Client::new();
    for path in ["/health", "/v1/health"] {
        assert_eq!(client.get(path).await.text, r#"{"status":"ok"}"#);
    }
    *client.fake.not_ready.lock().unwrap() = Some(Health::Loading { progress: 0.5 });
    let answer = client.get("/health").await;
    assert_eq!((answer.status.as_u16(), answer.header("retry-after")), (503, "1"));
    assert_eq!(answer.json()["error"]["code"], "model_loading");
    let reason = "12 GB are missing".to_owned();
    *client.fake.not_ready.lock().unwrap() = Some(Health::NoPlan { reason });
    let error = client.get("/health").await.json()["error"].clone();
    assert_eq!((&error["type"], &error["code"]), (&json!("unavailable_error"), &json!("no_plan")));
}

#[tokio::test]
async fn models_are_listed_and_found_by_any_of_their_names() {
    let client = Client::new();
    let list = client.get("/v1/models").await.json();
    expect![[r#"{"object":"list","data":[{"id":"m","object":"model","created":1700000000,"owned_by":"motley","meta":{"n_ctx_train":4096,"n_vocab":260,"n_embd":4,"n_params":1000000,"size":1048576,"quantization":"Q8_0","architecture":"hash"}}]}"#]].assert_eq(&list.to_string());
    for name in ["m", "m:latest", "motley/tiny"] {
        assert_eq!(
            client.get(&format!("/v1/models/{name}")).await.json(),
            list["data"][0],
            "{name}"
        );
    }
    let answer = client.get("/v1/models/other").await;
    assert_eq!(answer.status, 404);
    assert_eq!(answer.json()["error"]["code"], "model_not_found");
}

#[tokio::test]
async fn properties_and_slots() {
    let client = Client::new();
    expect![[r#"{"default_generation_settings":{"n_ctx":4096,"params":{"temperature":1.0,"top_p":1.0,"top_k":0,"min_p":0.0}},"total_slots":2,"model_alias":"m","chat_template":"{{ messages }}","modalities":{"vision":false,"audio":false},"build_info":"motley-test"}"#]].assert_eq(&client.get("/props").await.text);
    expect![[r#"[{"id":0,"n_ctx":4096,"is_processing":true,"id_task":"req_1","n_prompt_tokens":10,"n_prompt_tokens_processed":8,"n_decoded":3,"n_remain":2},{"id":1,"n_ctx":4096,"is_processing":false}]"#]].assert_eq(&client.get("/slots").await.text);
}

#[tokio::test]
async fn tokens_there_and_back() {
    let client = Client::new();
    let tokens = client.post("/tokenize", &json!({"content": "hé"})).await.json();
    assert_eq!(tokens, json!({"tokens": [104, 195, 169]}));
    let text = client.post("/detokenize", &tokens).await.json();
    assert_eq!(text, json!({"content": "hé"}));
    let body = json!({"content": "é", "with_pieces": true, "add_special": true});
    expect![[
        r#"{"tokens":[{"id":256,"piece":""},{"id":195,"piece":[195]},{"id":169,"piece":[169]}]}"#
    ]]
    .assert_eq(&client.post("/tokenize", &body).await.text);
    for bad in [json!({}), json!({"tokens": [260]}), json!({"tokens": [-1]}), json!({"tokens": 1})]
    {
        assert_eq!(client.post("/detokenize", &bad).await.status, 400, "{bad}");
    }
}

#[tokio::test]
async fn templates_are_applied_without_generating() {
    let client = Client::new();
    let messages = json!([{"role": "user", "content": "hi"}]);
    let answer = client.post("/apply-template", &json!({"messages": messages})).await;
    assert_eq!(answer.json(), json!({"prompt": "<|turn|>user\nhi\n<|turn|>assistant\n"}));
    assert_eq!(client.fake.last_prompt().messages[0].role, Role::User);
    assert!(client.fake.seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn metrics_count_what_happened() {
    let mut config = config();
    config.metric_names = MetricNames::MotleyAndVllm;
    let client = Client::with(config);
    for stream in [true, false] {
        let body = json!({"prompt": "ab", "max_tokens": 2, "stream": stream});
        assert_eq!(client.post("/v1/completions", &body).await.status, 200);
    }
    let answer = client.get("/metrics").await;
    assert!(answer.header("content-type").starts_with("application/openmetrics-text"));
    assert_eq!(answer.text.matches("# EOF").count(), 1);
    assert!(answer.text.ends_with("# EOF\n"));
    for line in [
        "motley_prompt_tokens_total{model_name=\"m\"} 6",
        "motley_generation_tokens_total{model_name=\"m\"} 4",
        "motley_time_to_first_token_seconds_count{model_name=\"m\"} 2",
        "motley_inter_token_latency_seconds_count{model_name=\"m\"} 2",
        "motley_request_success_total{model_name=\"m\",finished_reason=\"length\"} 2",
        "motley_num_requests_running{model_name=\"m\"} 1.0",
        "motley_kv_cache_usage_perc{model_name=\"m\",node=\"desk\"} 0.25",
        "motley_prefix_cache_hits_total{model_name=\"m\"} 40",
        "motley_model_migration_total{model_name=\"m\",migration_type=\"node_lost\"} 1",
        "motley_hop_bytes_total{hop=\"a-b\"} 7.0",
        "vllm:num_requests_waiting{model_name=\"m\"} 2.0",
        "vllm:generation_tokens_total{model_name=\"m\"} 4",
        "vllm:request_success_total{model_name=\"m\",finished_reason=\"length\"} 2",
        "vllm:e2e_request_latency_seconds_count{model_name=\"m\"} 2",
    ] {
        assert!(answer.text.contains(&format!("{line}\n")), "{line}\n{}", answer.text);
    }
    assert!(!Client::new().get("/metrics").await.text.contains("vllm:"));
}

#[tokio::test]
async fn the_cluster_is_shown_to_administrators() {
    let client = Client::new();
    expect![[r#"{"epoch":3,"change":null,"groups":1,"rounds":1,"nodes":[{"name":"desk","id":"","address":"","head":true,"state":"serving","layers":[[0,4]],"memory_budget_bytes":1000,"memory_used_bytes":400,"round_trip_us":null,"busy_ratio":0.5,"step_us":250,"token_predicted_us":240,"token_measured_us":null,"hop_predicted_us":null,"correction":1.5,"why":null}],"plan":{"token_predicted_us":260,"token_measured_us":null,"reasons":["One device serves best: desk."]},"links":[{"from":"desk","to":"laptop","round_trip_us":90,"bytes_per_s":1000000,"assumed":true}]}"#]].assert_eq(&client.get("/cluster").await.text);
}
