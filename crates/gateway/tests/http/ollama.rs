//! Ollama's routes.

use std::time::Duration;

use expect_test::expect;
use motley_gateway::{Constraint, Failure, Health, PlainValue, Role};
use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::fake::Step;

fn lines(answer: &Answer) -> Vec<Value> {
    answer.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn hello(more: &Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}],
        "options": {"seed": 1, "num_predict": 3}});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test(start_paused = true)]
async fn chat_is_streamed_unless_refused() {
    let client = Client::new();
    let streamed = client.post("/api/chat", &hello(&json!({}))).await;
    assert_eq!(streamed.header("content-type"), "application/x-ndjson");
    let streamed = lines(&streamed);
    let whole = client.post("/api/chat", &hello(&json!({"stream": false}))).await;
    expect![[r#"{"model":"m","created_at":"2025-06-15T15:06:40Z","message":{"role":"assistant","content":"eel"},"done":true,"done_reason":"length","total_duration":0,"load_duration":0,"prompt_eval_count":10,"prompt_eval_duration":20000000,"eval_count":3,"eval_duration":30000000}"#]].assert_eq(&whole.text);
    let text: String =
        streamed.iter().map(|line| line["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(whole.json()["message"]["content"], text);
    let (last, pieces) = streamed.split_last().unwrap();
    assert!(pieces.iter().all(|line| line["done"] == false && line.get("eval_count").is_none()));
    assert_eq!((&last["done"], &last["done_reason"]), (&json!(true), &json!("length")));
    assert_eq!(last["eval_count"], 3);
}

#[tokio::test(start_paused = true)]
async fn generate_uses_the_template_unless_raw() {
    let client = Client::new();
    let body = json!({"model": "m:latest", "prompt": "ab", "system": "s", "stream": false,
        "options": {"seed": 1, "num_predict": 2}});
    let answer = client.post("/api/generate", &body).await;
    expect![[r#"{"model":"m","created_at":"2025-06-15T15:06:40Z","response":"yc","done":true,"done_reason":"length","total_duration":0,"load_duration":0,"prompt_eval_count":20,"prompt_eval_duration":20000000,"eval_count":2,"eval_duration":30000000}"#]].assert_eq(&answer.text);
    let prompt = client.fake.last_prompt();
    let roles: Vec<Role> = prompt.messages.iter().map(|message| message.role).collect();
    assert_eq!(roles, [Role::System, Role::User]);
    let raw = json!({"model": "m", "prompt": "ab", "raw": true, "stream": false});
    assert_eq!(client.post("/api/generate", &raw).await.status, 200);
    assert_eq!(client.fake.last_request().prompt.len(), 2);
}

#[tokio::test]
async fn nothing_to_say_means_load() {
    let client = Client::new();
    for (route, body) in [
        ("/api/generate", json!({"model": "m"})),
        ("/api/chat", json!({"model": "m", "messages": []})),
    ] {
        let answer = client.post(route, &body).await.json();
        assert_eq!((&answer["done"], &answer["done_reason"]), (&json!(true), &json!("load")));
    }
    assert!(client.fake.seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn options_reach_the_backend_over_defaults_of_their_own() {
    let client = Client::new();
    client.post("/api/chat", &hello(&json!({"options": {}}))).await;
    let usual = client.fake.last_request().sampling;
    assert_eq!((usual.temperature, usual.top_p, usual.top_k), (0.8, 0.9, Some(40)));
    let options = json!({"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0.5, "seed": 3,
        "repeat_penalty": 1.5, "stop": ["x"], "num_predict": -1, "num_ctx": 2048, "num_gpu": 99});
    let format = json!({"type": "object"});
    let body = hello(&json!({"options": options, "format": format, "think": "low",
        "keep_alive": "5m", "logprobs": true, "top_logprobs": 1, "stream": false}));
    let answer = client.post("/api/chat", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let logprobs = answer.json()["logprobs"].clone();
    assert_eq!(logprobs[0]["top_logprobs"].as_array().unwrap().len(), 1);
    let request = client.fake.last_request();
    let sampling = &request.sampling;
    assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k), (0.0, 1.0, None));
    assert_eq!((sampling.repetition_penalty, sampling.min_p), (1.5, 0.5));
    assert_eq!(request.stop.texts, ["x"]);
    let schema = format.to_string();
    assert_eq!(request.constraint, Constraint::JsonSchema { schema, strict: true });
    let variables = client.fake.last_prompt().variables;
    assert_eq!(variables["enable_thinking"], PlainValue::Flag(true));
    assert_eq!(variables["reasoning_effort"], PlainValue::Text("low".to_owned()));
}

#[tokio::test]
async fn tools_and_earlier_calls_are_read() {
    let client = Client::new();
    let messages = json!([
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls":
            [{"function": {"name": "f", "arguments": {"b": 1, "a": 2}}}]},
        {"role": "tool", "content": "7", "tool_name": "f"},
    ]);
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let body = hello(&json!({"messages": messages, "tools": tools}));
    assert_eq!(client.post("/api/chat", &body).await.status, 200);
    let read = client.fake.last_prompt();
    assert_eq!(read.messages[1].tool_calls[0].arguments, "{\"b\":1,\"a\":2}");
    assert_eq!(read.messages[1].reasoning.as_deref(), Some("hm"));
    assert_eq!(read.messages[2].name.as_deref(), Some("f"));
    assert_eq!(read.tools[0].name, "f");
    assert_eq!(client.fake.last_request().tools.unwrap().tools.len(), 1);
}

#[tokio::test]
async fn thinking_and_calls_are_members_of_the_message() {
    let client = Client::new();
    client.fake.play(vec![
        Step::Think("so"),
        Step::Say("yes"),
        Step::Call("f", "{\"a\":1}"),
        Step::Call("g", "{\"a\":"),
    ]);
    let messages: Vec<Value> = lines(&client.post("/api/chat", &hello(&json!({}))).await)
        .iter()
        .map(|line| line["message"].clone())
        .collect();
    assert_eq!(messages[0], json!({"role": "assistant", "content": "", "thinking": "so"}));
    assert_eq!(messages[1]["content"], "yes");
    let calls = json!([{"function": {"name": "f", "arguments": {"a": 1}}}]);
    assert_eq!(messages[2]["tool_calls"], calls);
    assert_eq!(messages.len(), 4, "a call that was cut off is not shown");
    let whole = client.post("/api/chat", &hello(&json!({"stream": false}))).await.json();
    assert_eq!(whole["message"]["tool_calls"], calls);
    assert_eq!(whole["message"]["thinking"], "so");
}

#[tokio::test(start_paused = true)]
async fn errors_are_texts() {
    let client = Client::new();
    let answer = client.post("/api/chat", &hello(&json!({"model": "other"}))).await;
    assert_eq!(answer.status, 404);
    expect![[
        r#"{"error":"no model of this name is served here; GET /v1/models lists those that are"}"#
    ]]
    .assert_eq(&answer.text);
    client.fake.play(vec![
        Step::Say("x"),
        Step::Wait(Duration::from_secs(50)),
        Step::Fail(Failure::NodeLost),
    ]);
    let lines = lines(&client.post("/api/chat", &hello(&json!({}))).await);
    assert_eq!(lines.len(), 2, "nothing is written while waiting");
    assert!(lines[1]["error"].as_str().unwrap().contains("device was lost"));
    for bad in [
        json!({"keep_alive": "soon"}),
        json!({"keep_alive": {}}),
        json!({"think": "hard"}),
        json!({"format": "yaml"}),
        json!({"options": {"num_ctx": 4097}}),
        json!({"options": {"num_predict": -3}}),
        json!({"options": {"temperature": 3}}),
        json!({"messages": [{"role": "user", "content": "a", "images": ["aGk="]}]}),
        json!({"messages": "hi"}),
        json!({"template": "x"}),
    ] {
        assert_eq!(client.post("/api/chat", &hello(&bad)).await.status, 400, "{bad}");
    }
}

#[tokio::test]
async fn models_are_shown() {
    let client = Client::new();
    expect![[r#"{"models":[{"name":"m","model":"m","modified_at":"2023-11-14T22:13:20Z","size":1048576,"digest":"abababababababababababababababababababababababababababababababab","details":{"parent_model":"","format":"gguf","family":"hash","families":["hash"],"parameter_size":"1.0M","quantization_level":"Q8_0"}}]}"#]].assert_eq(&client.get("/api/tags").await.text);
    expect![[r#"{"license":"MIT","parameters":"","template":"{{ messages }}","modified_at":"2023-11-14T22:13:20Z","details":{"parent_model":"","format":"gguf","family":"hash","families":["hash"],"parameter_size":"1.0M","quantization_level":"Q8_0"},"model_info":{"general.architecture":"hash","general.parameter_count":1000000,"hash.context_length":4096,"hash.embedding_length":4},"capabilities":["completion","tools","thinking","embedding"]}"#]].assert_eq(&client.post("/api/show", &json!({"name": "m"})).await.text);
    let running = client.get("/api/ps").await.json();
    assert_eq!(running["models"][0]["context_length"], 4096);
    *client.fake.not_ready.lock().unwrap() = Some(Health::Loading { progress: 0.1 });
    assert_eq!(client.get("/api/ps").await.json(), json!({"models": []}));
    assert_eq!(client.get("/api/version").await.json(), json!({"version": "motley-test"}));
    assert_eq!(client.post("/api/show", &json!({})).await.status, 400);
}

#[tokio::test(start_paused = true)]
async fn embeddings_are_lists() {
    let client = Client::new();
    let body = json!({"model": "m", "input": ["a", "bc"], "truncate": true, "keep_alive": -1});
    let answer = client.post("/api/embed", &body).await.json();
    assert_eq!(answer["embeddings"].as_array().unwrap().len(), 2);
    assert_eq!(answer["prompt_eval_count"], 5);
}
