//! `/v1/completions` and `/v1/embeddings`.

use std::sync::atomic::Ordering;

use expect_test::expect;
use motley_gateway::TokenId;
use serde_json::{Value, json};

use crate::client::Client;

const ROUTE: &str = "/v1/completions";

#[tokio::test]
async fn a_whole_completion() {
    let client = Client::new();
    let answer = client.post(ROUTE, &json!({"prompt": "ab", "max_tokens": 3, "seed": 2})).await;
    expect![[r#"{"id":"cmpl-000000000000feed00000001","object":"text_completion","created":1750000000,"model":"m","system_fingerprint":"fp_fake","choices":[{"index":0,"text":"sgg","logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":3,"total_tokens":6,"prompt_tokens_details":{"cached_tokens":1},"completion_tokens_details":{"reasoning_tokens":0}}}"#]].assert_eq(&answer.text);
}

#[tokio::test]
async fn every_kind_of_prompt_is_read() {
    let client = Client::new();
    for (prompt, choices) in [
        (json!("ab"), 1),
        (json!(["ab", "cd"]), 2),
        (json!([1, 2, 3]), 1),
        (json!([[1, 2], [3]]), 2),
    ] {
        let answer = client.post(ROUTE, &json!({"prompt": prompt, "max_tokens": 2})).await.json();
        assert_eq!(answer["choices"].as_array().unwrap().len(), choices, "{prompt}");
    }
    assert_eq!(client.fake.last_request().prompt, [TokenId(3)]);
    assert_eq!(client.post(ROUTE, &json!({"prompt": "ab"})).await.status, 200);
    assert_eq!(client.fake.last_request().length.tokens_max, 16, "OpenAI's default");
}

#[tokio::test]
async fn echo_repeats_the_prompt_and_can_score_it() {
    let client = Client::new();
    let body = json!({"prompt": "ab", "max_tokens": 0, "echo": true, "logprobs": 0});
    let answer = client.post(ROUTE, &body).await.json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "ab");
    assert_eq!(choice["logprobs"]["token_logprobs"], json!([null, -1.0, -1.0]));
    assert_eq!(choice["logprobs"]["text_offset"], json!([0, 0, 1]));
    let body = json!({"prompt": ["ab", [99, 100]], "max_tokens": 2, "echo": true, "stream": true,
        "logprobs": 1});
    let (events, done) = client.post(ROUTE, &body).await.events();
    assert!(done);
    let mut texts = [String::new(), String::new()];
    let mut offsets: [Vec<Value>; 2] = [Vec::new(), Vec::new()];
    for event in &events {
        let choice = &event["choices"][0];
        let index = usize::try_from(choice["index"].as_u64().unwrap()).unwrap();
        texts[index].push_str(choice["text"].as_str().unwrap());
        let more = choice["logprobs"]["text_offset"].as_array();
        offsets[index].extend(more.into_iter().flatten().cloned());
    }
    assert!(texts[0].starts_with("ab") && texts[0].len() == 4, "{}", texts[0]);
    assert!(texts[1].starts_with("cd") && texts[1].len() == 4, "{}", texts[1]);
    assert_eq!(offsets[0], [0, 0, 1, 2, 3]);
    assert_eq!(offsets[1], [0, 1, 2, 3]);
}

#[tokio::test]
async fn the_best_of_several_is_kept_and_all_are_paid_for() {
    let client = Client::new();
    let all = json!({"prompt": "ab", "max_tokens": 5, "seed": 4, "n": 4, "logprobs": 0});
    let all = client.post(ROUTE, &all).await.json();
    let mean = |choice: &Value| -> f64 {
        let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        logprobs.iter().map(|logprob| logprob.as_f64().unwrap()).sum::<f64>()
    };
    let choices = all["choices"].as_array().unwrap();
    let best = choices.iter().max_by(|a, b| mean(a).total_cmp(&mean(b))).unwrap();
    let one = json!({"prompt": "ab", "max_tokens": 5, "seed": 4, "best_of": 4});
    let one = client.post(ROUTE, &one).await.json();
    assert_eq!(one["choices"].as_array().unwrap().len(), 1);
    assert_eq!(one["choices"][0]["text"], best["text"]);
    assert_eq!(one["choices"][0]["logprobs"], Value::Null);
    assert_eq!(one["usage"]["completion_tokens"], 20);
    assert_eq!(one["usage"]["prompt_tokens"], 3, "the prompt counts once");
}

#[tokio::test]
async fn streams_can_report_usage_as_they_go() {
    let client = Client::new();
    let body = json!({"prompt": ["ab", "abc"], "max_tokens": 2, "stream": true,
        "stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    let (events, _) = client.post(ROUTE, &body).await.events();
    assert!(events.iter().all(|event| event["usage"]["prompt_tokens"] == 7));
    let last = events.last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 4);
}

#[tokio::test]
async fn what_cannot_be_done_is_refused_by_name() {
    let client = Client::new();
    for (body, param) in [
        (json!({}), "prompt"),
        (json!({"prompt": 3}), "prompt"),
        (json!({"prompt": ["a", 3]}), "prompt"),
        (json!({"prompt": [1, "a"]}), "prompt"),
        (json!({"prompt": "a", "suffix": "b"}), "suffix"),
        (json!({"prompt": "a", "n": 2, "best_of": 1}), "best_of"),
        (json!({"prompt": "a", "best_of": 2, "stream": true}), "best_of"),
        (json!({"prompt": vec!["a"; 65]}), "prompt"),
        (json!({"prompt": vec!["a"; 9], "n": 8, "max_tokens": 1}), "prompt"),
        (json!({"prompt": "a", "max_tokens": 0}), "max_tokens"),
        (json!({"prompt": "a", "logprobs": 21}), "logprobs"),
        (json!({"prompt": "a", "seed": 1.5}), "seed"),
        (json!({"prompt": "a", "stream_options": {}}), "stream_options"),
        (json!({"prompt": "a", "stop": [1]}), "stop"),
        (json!({"prompt": "a", "cache_salt": ""}), "cache_salt"),
    ] {
        let answer = client.post(ROUTE, &body).await;
        assert_eq!(answer.status, 400, "{body}");
        assert_eq!(answer.json()["error"]["param"], param, "{body}");
    }
}

#[tokio::test]
async fn embeddings_come_as_numbers_or_base64() {
    let client = Client::new();
    let route = "/v1/embeddings";
    let answer = client.post(route, &json!({"input": ["ab", "cd"]})).await.json();
    assert_eq!(answer["usage"], json!({"prompt_tokens": 6, "total_tokens": 6}));
    assert_eq!(answer["data"][1]["index"], 1);
    assert_eq!(answer["data"][0]["embedding"].as_array().unwrap().len(), 4);
    assert_ne!(answer["data"][0]["embedding"], answer["data"][1]["embedding"]);
    let base64 = json!({"input": "ab", "encoding_format": "base64", "dimensions": 2});
    let text = client.post(route, &base64).await.json();
    assert_eq!(text["data"][0]["embedding"].as_str().unwrap().len(), 12);
    for bad in [
        json!({"input": ""}),
        json!({"input": []}),
        json!({"input": [[]]}),
        json!({"input": [260]}),
        json!({"input": "a", "encoding_format": "hex"}),
        json!({"input": "a", "dimensions": 5}),
        json!({"input": "a".repeat(5_000)}),
    ] {
        assert_eq!(client.post(route, &bad).await.status, 400, "{bad}");
    }
    client.fake.no_embeddings.store(true, Ordering::SeqCst);
    let refused = client.post(route, &json!({"input": "ab"})).await;
    expect![[r#"{"error":{"message":"model is not supported: this model makes no embeddings","type":"invalid_request_error","param":"model","code":"unsupported_parameter"}}"#]]
    .assert_eq(&refused.text);
}
