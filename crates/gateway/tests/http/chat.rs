//! `/v1/chat/completions`, whole and streamed.

use expect_test::expect;
use motley_gateway::{
    Constraint, GatewayConfig, PlainValue, Refusal, Role, SinkError, TokenId, TokenStream,
    ToolChoice, UsualOptions,
};
use serde_json::{Value, json};

use crate::client::{Client, config};
use crate::fake::Step;

const ROUTE: &str = "/v1/chat/completions";

fn hello(more: &Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn a_whole_answer() {
    let client = Client::new();
    let answer = client.post(ROUTE, &hello(&json!({"max_tokens": 4, "seed": 1}))).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), "application/json");
    expect![[r#"
        {
          "id": "chatcmpl-000000000000feed00000001",
          "object": "chat.completion",
          "created": 1750000000,
          "model": "m",
          "system_fingerprint": "fp_fake",
          "choices": [
            {
              "index": 0,
              "message": {
                "role": "assistant",
                "content": "eels",
                "refusal": null
              },
              "logprobs": null,
              "finish_reason": "length"
            }
          ],
          "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 4,
            "total_tokens": 14,
            "prompt_tokens_details": {
              "cached_tokens": 5
            },
            "completion_tokens_details": {
              "reasoning_tokens": 0
            }
          }
        }"#]]
    .assert_eq(&serde_json::to_string_pretty(&answer.json()).unwrap());
}

#[tokio::test]
async fn a_streamed_answer_says_the_same_as_a_whole_one() {
    let client = Client::new();
    let body = json!({"max_tokens": 6, "seed": 3, "n": 2});
    let whole = client.post(ROUTE, &hello(&body)).await.json();
    let mut streamed = body;
    streamed["stream"] = true.into();
    streamed["stream_options"] = json!({"include_usage": true});
    let answer = client.post(ROUTE, &hello(&streamed)).await;
    assert_eq!(answer.header("content-type"), "text/event-stream");
    assert_eq!(answer.header("cache-control"), "no-cache");
    assert_eq!(answer.header("x-accel-buffering"), "no");
    let (events, done) = answer.events();
    assert!(done);
    let mut texts = [String::new(), String::new()];
    let mut reasons = [Value::Null, Value::Null];
    let (last, pieces) = events.split_last().unwrap();
    for event in pieces {
        assert_eq!(event["usage"], Value::Null);
        assert!(event.as_object().unwrap().contains_key("usage"));
        let choice = &event["choices"][0];
        let index = usize::try_from(choice["index"].as_u64().unwrap()).unwrap();
        texts[index].push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        if !choice["finish_reason"].is_null() {
            reasons[index] = choice["finish_reason"].clone();
        }
    }
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"], whole["usage"]);
    for index in 0..2 {
        assert_eq!(whole["choices"][index]["message"]["content"], texts[index]);
        assert_eq!(whole["choices"][index]["finish_reason"], reasons[index]);
    }
    assert_ne!(texts[0], texts[1], "choices differ in their seeds");
}

#[tokio::test]
async fn the_first_event_of_a_stream_says_who_speaks() {
    let client = Client::new();
    let body = hello(&json!({"max_tokens": 1, "seed": 1, "stream": true}));
    let (events, done) = client.post(ROUTE, &body).await.events();
    assert!(done);
    let deltas: Vec<&Value> = events.iter().map(|event| &event["choices"][0]["delta"]).collect();
    assert_eq!(*deltas[0], json!({"role": "assistant", "content": ""}));
    assert_eq!(deltas.len(), 3);
    assert_eq!(*deltas[2], json!({}));
    assert!(events.iter().all(|event| event.get("usage").is_none()), "nobody asked for usage");
}

#[tokio::test]
async fn usage_can_be_in_every_chunk() {
    let client = Client::new();
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let body = json!({"max_completion_tokens": 3, "ignore_eos": true, "stream": true,
        "stream_options": options});
    let (events, _) = client.post(ROUTE, &hello(&body)).await.events();
    let counts: Vec<u64> =
        events.iter().map(|event| event["usage"]["completion_tokens"].as_u64().unwrap()).collect();
    assert_eq!(counts, [0, 1, 2, 3, 3, 3]);
    let prompt = client.fake.last_request().prompt.len();
    assert!(events.iter().all(|event| event["usage"]["prompt_tokens"] == prompt));
}

#[tokio::test]
async fn every_parameter_reaches_the_backend() {
    let client = Client::new();
    let body = json!({
        "max_tokens": 9, "max_completion_tokens": 7, "min_tokens": 2, "ignore_eos": true,
        "stop": ["a", "bb"], "stop_token_ids": [5], "seed": -1, "temperature": 0.5, "top_p": 0.25,
        "top_k": 40, "min_p": 0.125, "frequency_penalty": 1.5, "presence_penalty": -1.5,
        "repetition_penalty": 1.25, "logit_bias": {"3": -100, "259": 2.5}, "logprobs": true,
        "top_logprobs": 2, "cache_salt": "salt", "priority": 3, "user": "u", "metadata": {"a": "b"},
        "chat_template_kwargs": {"enable_thinking": false, "style": "short", "level": 2},
        "reasoning_effort": "low",
    });
    let answer = client.post(ROUTE, &hello(&body)).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let request = client.fake.last_request();
    assert_eq!(request.length.tokens_max, 7, "the smaller of the two wins");
    assert_eq!(request.length.tokens_min, 2);
    assert!(request.length.ignore_end);
    assert_eq!(request.stop.texts, ["a", "bb"]);
    assert_eq!(request.stop.tokens, [TokenId(5)]);
    let sampling = &request.sampling;
    assert_eq!(sampling.seed, Some(u64::MAX));
    let numbers = [sampling.temperature, sampling.top_p, sampling.min_p];
    assert_eq!(numbers, [0.5, 0.25, 0.125]);
    let penalties =
        [sampling.frequency_penalty, sampling.presence_penalty, sampling.repetition_penalty];
    assert_eq!(penalties, [1.5, -1.5, 1.25]);
    assert_eq!(sampling.top_k, Some(40));
    let bias: Vec<_> = sampling.logit_bias.iter().map(|(id, bias)| (id.0, *bias)).collect();
    assert_eq!(bias, [(3, -100.0), (259, 2.5)]);
    assert_eq!(request.logprobs.drawn, Some(2));
    assert_eq!(request.caller.cache_salt.as_deref(), Some("salt"));
    assert_eq!(request.priority, 3);
    let variables = client.fake.last_prompt().variables;
    assert_eq!(variables["enable_thinking"], PlainValue::Flag(false));
    assert_eq!(variables["style"], PlainValue::Text("short".to_owned()));
    assert_eq!(variables["level"], PlainValue::Number(2.0));
    assert_eq!(variables["reasoning_effort"], PlainValue::Text("low".to_owned()));
}

#[tokio::test]
async fn conversations_are_read_whole() {
    let client = Client::new();
    let call = json!({"id": "c1", "type": "function",
        "function": {"name": "f", "arguments": "{\"b\":1,\"a\":2}"}});
    let messages = json!([
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
         "name": "ann"},
        {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "7"},
    ]);
    let answer = client.post(ROUTE, &json!({"messages": messages, "max_tokens": 1})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let read = client.fake.last_prompt().messages;
    let roles: Vec<Role> = read.iter().map(|message| message.role).collect();
    assert_eq!(roles, [Role::System, Role::User, Role::Assistant, Role::Tool]);
    assert_eq!(read[1].content, "ab");
    assert_eq!(read[1].name.as_deref(), Some("ann"));
    assert_eq!(read[2].reasoning.as_deref(), Some("hm"));
    assert_eq!(read[2].tool_calls[0].arguments, "{\"b\":1,\"a\":2}");
    assert_eq!(read[3].tool_call_id.as_deref(), Some("c1"));
}

fn weather() -> Value {
    json!([{"type": "function", "function": {"name": "weather", "description": "now",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"},
        "aged": {"type": "integer"}}, "required": ["city"]}}}])
}

#[tokio::test]
async fn a_forced_call_comes_back_whole_and_streamed() {
    let client = Client::new();
    let mut body = hello(&json!({"tools": weather(), "tool_choice": "required"}));
    let whole = client.post(ROUTE, &body).await.json();
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], Value::Null);
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["function"], json!({"name": "weather", "arguments": "{\"city\":\"Oslo\"}"}));
    body["stream"] = true.into();
    let (events, _) = client.post(ROUTE, &body).await.events();
    let calls: Vec<&Value> = events
        .iter()
        .map(|event| &event["choices"][0]["delta"]["tool_calls"][0])
        .filter(|call| !call.is_null())
        .collect();
    assert_eq!(calls[0]["function"], json!({"name": "weather", "arguments": ""}));
    assert_eq!(calls[0]["type"], "function");
    assert_ne!(calls[0]["id"], call["id"], "ids are unique across answers");
    let arguments: String =
        calls.iter().map(|call| call["function"]["arguments"].as_str().unwrap()).collect();
    assert_eq!(arguments, "{\"city\":\"Oslo\"}");
    let tools = client.fake.last_request().tools.unwrap();
    assert_eq!(tools.choice, ToolChoice::Required);
    assert!(tools.parallel);
    let parameters = &tools.tools[0].parameters;
    assert!(parameters.find("city") < parameters.find("aged"), "members keep their order");
}

#[tokio::test]
async fn tool_choices_are_read() {
    let client = Client::new();
    let named = json!({"type": "function", "function": {"name": "weather"}});
    for (choice, expected) in [
        (json!("auto"), Some(ToolChoice::Auto)),
        (json!("none"), None),
        (json!(null), Some(ToolChoice::Auto)),
        (named, Some(ToolChoice::Named("weather".to_owned()))),
    ] {
        let body = hello(&json!({"tools": weather(), "tool_choice": choice, "max_tokens": 5,
            "parallel_tool_calls": false}));
        assert_eq!(client.post(ROUTE, &body).await.status, 200);
        let tools = client.fake.last_request().tools;
        assert_eq!(tools.as_ref().map(|tools| tools.choice.clone()), expected);
        assert!(tools.is_none_or(|tools| !tools.parallel));
    }
    let other = json!({"type": "function", "function": {"name": "other"}});
    for (tools, choice, param) in [
        (weather(), other, "tool_choice.function.name"),
        (weather(), json!("sometimes"), "tool_choice"),
        (json!(null), json!("required"), "tool_choice"),
    ] {
        let body = hello(&json!({"tools": tools, "tool_choice": choice}));
        let answer = client.post(ROUTE, &body).await;
        assert_eq!(
            (answer.status.as_u16(), &answer.json()["error"]["param"]),
            (400, &json!(param))
        );
    }
}

#[tokio::test]
async fn response_formats_are_read() {
    let client = Client::new();
    let schema = json!({"type": "object", "properties": {"z": {"type": "null"}, "a": true}});
    let text = schema.to_string();
    let format = |schema: Value| json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": true}});
    for (format, expected) in [
        (json!({"type": "text"}), Constraint::Free),
        (json!({"type": "json_object"}), Constraint::JsonObject),
        (format(schema), Constraint::JsonSchema { schema: text, strict: true }),
    ] {
        let answer = client.post(ROUTE, &hello(&json!({"response_format": format}))).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(client.fake.last_request().constraint, expected);
    }
    let unforced = hello(&json!({"response_format": format(json!({"not": {"type": "null"}}))}));
    let answer = client.post(ROUTE, &unforced).await;
    assert_eq!(answer.status, 400);
    expect![[r#"{"error":{"message":"response_format.json_schema.schema is not supported: at \"/not\": not cannot be forced","type":"invalid_request_error","param":"response_format.json_schema.schema","code":"unsupported_parameter"}}"#]]
    .assert_eq(&answer.text);
}

#[tokio::test]
async fn logprobs_have_tokens_bytes_and_alternatives() {
    let client = Client::new();
    let body = hello(&json!({"max_tokens": 1, "seed": 1, "logprobs": true, "top_logprobs": 2}));
    let answer = client.post(ROUTE, &body).await.json();
    expect![[r#"{"content":[{"token":"e","logprob":-1.0,"bytes":[101],"top_logprobs":[{"token":"e","logprob":-0.25,"bytes":[101]},{"token":"f","logprob":-1.25,"bytes":[102]}]}],"refusal":null}"#]].assert_eq(&answer["choices"][0]["logprobs"].to_string());
    let mut streamed = body;
    streamed["stream"] = true.into();
    let (events, _) = client.post(ROUTE, &streamed).await.events();
    assert_eq!(events[1]["choices"][0]["logprobs"], answer["choices"][0]["logprobs"]);
}

#[tokio::test]
async fn reasoning_is_apart_from_the_answer() {
    let client = Client::new();
    client.fake.play(vec![Step::Think("so"), Step::Say("yes")]);
    let message = client.post(ROUTE, &hello(&json!({}))).await.json();
    let message = &message["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], "so");
    assert_eq!(message["content"], "yes");
    let (events, _) = client.post(ROUTE, &hello(&json!({"stream": true}))).await.events();
    assert_eq!(events[1]["choices"][0]["delta"], json!({"reasoning_content": "so"}));
    assert_eq!(events[2]["choices"][0]["delta"], json!({"content": "yes"}));
}

#[tokio::test]
async fn misspelt_fields_are_warned_of() {
    let client = Client::new();
    let body = hello(&json!({"maxTokens": 3, "topp": 1, "x_vendor": {"a": 1}}));
    let answer = client.post(ROUTE, &body).await;
    assert_eq!(answer.status, 200);
    expect!["unknown fields were ignored; did you mean max_tokens, top_k?"]
        .assert_eq(answer.header("warnings"));
    let answer = client.post(ROUTE, &hello(&json!({"x_vendor": 1}))).await;
    assert_eq!(answer.header("warnings"), "");
}

#[tokio::test]
async fn lengths_are_settled_against_the_context() {
    let client = Client::new();
    let error = |answer: crate::client::Answer| answer.json()["error"].clone();
    let too_long = client.post(ROUTE, &hello(&json!({"max_tokens": 4096}))).await;
    assert_eq!(error(too_long)["code"], "context_length_exceeded");
    let said = [json!({"role": "user", "content": "x".repeat(50_000)})];
    let far_too_long = error(client.post(ROUTE, &json!({"messages": said})).await);
    assert_eq!(far_too_long["code"], "context_length_exceeded");
    assert_eq!(far_too_long["param"], "messages");
    let message = far_too_long["message"].as_str().unwrap();
    assert!(message.contains("has at least 5000"), "{message}");
    let too_many = client.post(ROUTE, &hello(&json!({"max_tokens": 2000, "n": 3}))).await;
    assert_eq!(error(too_many)["param"], "n");
    let upside_down = client.post(ROUTE, &hello(&json!({"max_tokens": 2, "min_tokens": 3}))).await;
    assert_eq!(error(upside_down)["param"], "min_tokens");
    assert_eq!(client.post(ROUTE, &hello(&json!({"n": 4}))).await.status, 200);
    let request = client.fake.last_request();
    let room = 4096 - u32::try_from(request.prompt.len()).unwrap();
    assert_eq!(request.length.tokens_max, room / 4, "choices share what is left");
}

#[tokio::test]
async fn refusals_have_a_status_of_their_own() {
    use std::time::Duration;
    let client = Client::new();
    let retry_after = Duration::from_millis(1_500);
    let cases = [
        (Refusal::QueueFull { waiting: 512, retry_after }, 429, "rate_limit_error", "2"),
        (Refusal::KeyQueueFull { waiting: 16, retry_after }, 429, "rate_limit_error", "2"),
        (Refusal::Loading { retry_after }, 503, "unavailable_error", "2"),
        (Refusal::NoPlan { reason: "no GPU".to_owned() }, 503, "unavailable_error", "30"),
        (
            Refusal::ContextExceeded { prompt_tokens: 5, answer_tokens: 6, context_tokens: 7 },
            400,
            "invalid_request_error",
            "",
        ),
    ];
    for stream in [false, true] {
        for (refusal, status, kind, retry) in &cases {
            *client.fake.refusal.lock().unwrap() = Some(refusal.clone());
            let answer = client.post(ROUTE, &hello(&json!({"stream": stream}))).await;
            assert_eq!(answer.status, *status, "{refusal:?}");
            let error = answer.json()["error"].clone();
            assert_eq!(error["type"], *kind, "{refusal:?}");
            let param = if *status == 400 { json!("messages") } else { Value::Null };
            assert_eq!(error["param"], param, "{refusal:?}");
            assert_eq!(answer.header("retry-after"), *retry, "{refusal:?}");
        }
    }
}

#[tokio::test]
async fn a_stream_has_one_end_and_tells_its_writer_when_nobody_reads() {
    let (sink, stream) = TokenStream::channel(1);
    let piece = || motley_gateway::Delta::Prompt(Vec::new());
    assert_eq!(sink.try_send(piece()), Ok(()));
    assert_eq!((sink.room(), sink.try_send(piece())), (0, Err(SinkError::Full)));
    drop(stream);
    assert!(sink.is_cancelled());
    assert_eq!(sink.try_send(piece()), Err(SinkError::Cancelled));
}

#[tokio::test]
async fn the_operators_defaults_hold_where_a_request_is_silent() {
    let usual = UsualOptions {
        tokens_max: Some(5),
        seed: Some(9),
        temperature: Some(0.25),
        top_k: Some(7),
        min_p: Some(0.5),
        ..UsualOptions::default()
    };
    let client = Client::with(GatewayConfig { usual, ..config() });
    let messages = json!([{"role": "user", "content": "hi"}]);
    let asked = |path: &'static str, body: Value| {
        let client = &client;
        async move {
            let answer = client.post(path, &body).await;
            assert_eq!(answer.status, 200, "{}", answer.text);
            let request = client.fake.last_request();
            (request.length.tokens_max, request.sampling)
        }
    };
    let silent = json!({"messages": messages});
    let (tokens, sampling) = asked("/v1/chat/completions", silent).await;
    assert_eq!((tokens, sampling.seed, sampling.top_k), (5, Some(9), Some(7)));
    assert_eq!((sampling.temperature, sampling.top_p, sampling.min_p), (0.25, 1.0, 0.5));
    let spoken = json!({
        "messages": messages, "max_tokens": 3, "seed": 1, "temperature": 1, "top_k": -1, "min_p": 0,
    });
    let (tokens, sampling) = asked("/v1/chat/completions", spoken).await;
    assert_eq!((tokens, sampling.seed, sampling.top_k), (3, Some(1), None));
    assert_eq!((sampling.temperature, sampling.min_p), (1.0, 0.0));
    let (tokens, _) = asked("/v1/completions", json!({"prompt": "hi"})).await;
    assert_eq!(tokens, 5);
    // Ollama's own defaults hold where the operator is silent, too.
    let ollama = json!({"messages": messages, "stream": false});
    let (tokens, sampling) = asked("/api/chat", ollama).await;
    assert_eq!((tokens, sampling.top_k), (5, Some(7)));
    assert_eq!((sampling.temperature, sampling.top_p), (0.25, 0.9));
}
