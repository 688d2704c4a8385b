//! `motley serve` with a real model, over HTTP: answers, forced forms, and many clients at once.
#![expect(clippy::disallowed_methods, reason = "a test writes a model with another template")]

mod common;

use std::fs;
use std::io::Read as _;
use std::thread;

use common::server::{CHAT, Server};
use common::{SMOLLM2, real_model};
use expect_test::expect;
use serde_json::{Value as Json, json};

/// A request for the likeliest answer of at most so many tokens.
fn greedy(words: &str, max_tokens: u32) -> Json {
    json!({
        "model": "m",
        "messages": [{ "role": "user", "content": words }],
        "temperature": 0,
        "max_tokens": max_tokens,
    })
}

/// `body` with other members.
fn with(mut body: Json, more: Json) -> Json {
    let Json::Object(more) = more else { panic!("an object") };
    more.into_iter().for_each(|(name, value)| body[name] = value);
    body
}

fn text(answer: &Json) -> &str {
    answer["choices"][0]["message"]["content"].as_str().expect("text")
}

/// The text of a stream.
fn streamed_text(events: &[Json]) -> String {
    events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect()
}

fn finish_reason(answer: &Json) -> &str {
    answer["choices"][0]["finish_reason"].as_str().expect("a reason")
}

const STORY: &str = "Tell me about the sea.";

#[test]
fn answers() {
    let Some(server) = Server::start() else { return };
    let whole = server.answer(&greedy(STORY, 24));
    assert_eq!(finish_reason(&whole), "length");
    assert_eq!(whole["usage"]["completion_tokens"], 24);
    check_stream(&server, &whole);
    check_stops(&server, text(&whole));
    check_seeds(&server);
    check_log_probabilities(&server);
    check_scores(&server);
    check_embeddings(&server);
}

/// A stream says the same, piece by piece.
fn check_stream(server: &Server, whole: &Json) {
    let events = server.stream(greedy(STORY, 24));
    assert_eq!(streamed_text(&events), text(whole));
    let usage = &events.last().expect("events")["usage"];
    for field in ["prompt_tokens", "completion_tokens", "total_tokens"] {
        assert_eq!(usage[field], whole["usage"][field], "{field}");
    }
    let reasons: Vec<&str> =
        events.iter().filter_map(|event| event["choices"][0]["finish_reason"].as_str()).collect();
    assert_eq!(reasons, ["length"]);
}

/// A stop string of several tokens ends the answer before it, whether streamed or not.
fn check_stops(server: &Server, whole: &str) {
    let words: Vec<&str> = whole.split(' ').collect();
    // From within a word to within the next but one.
    let stop = [&words[3][1..], words[4], &words[5][..1]].join(" ");
    let body = with(greedy(STORY, 24), json!({ "stop": [stop] }));
    let before = &whole[..whole.find(&stop).expect("it is there")];
    let answer = server.answer(&body);
    assert_eq!((text(&answer), finish_reason(&answer)), (before, "stop"));
    assert_eq!(streamed_text(&server.stream(body)), before);
}

fn check_seeds(server: &Server) {
    let drawn = |seed: u64| {
        let body = with(greedy(STORY, 24), json!({ "temperature": 1.0, "seed": seed }));
        text(&server.answer(&body)).to_owned()
    };
    assert_eq!(drawn(7), drawn(7));
    assert_ne!(drawn(7), drawn(8));
}

fn check_log_probabilities(server: &Server) {
    let asked = json!({ "logprobs": true, "top_logprobs": 3 });
    let answer = server.answer(&with(greedy(STORY, 6), asked));
    let found = answer["choices"][0]["logprobs"]["content"].as_array().expect("a list");
    assert_eq!(found.len(), 6);
    let mut joined = Vec::new();
    for token in found {
        let own = token["logprob"].as_f64().expect("a number");
        let top = token["top_logprobs"].as_array().expect("a list");
        assert_eq!(top.len(), 3);
        // The likeliest token was taken.
        assert_eq!(top[0]["token"], token["token"]);
        assert!(own <= 0.0 && top[0]["logprob"].as_f64().expect("a number") == own);
        let bytes = token["bytes"].as_array().expect("bytes");
        joined.extend(bytes.iter().map(|byte| byte.as_u64().expect("a byte") as u8));
    }
    assert_eq!(String::from_utf8(joined).expect("text"), text(&answer));
}

/// An echoed prompt comes with its own probabilities, which are those of an answer that says it.
fn check_scores(server: &Server) {
    let body = json!({
        "model": "m", "prompt": "The capital of France is", "max_tokens": 6, "temperature": 0,
        "ignore_eos": true, "logprobs": 1, "echo": true,
    });
    let (status, answer) = server.post("/v1/completions", &body);
    assert_eq!(status, 200, "{answer}");
    let choice = &answer["choices"][0];
    let said = choice["text"].as_str().expect("text");
    assert!(said.starts_with("The capital of France is"), "{said}");
    let logprobs = |choice: &Json| -> Vec<f64> {
        let list = choice["logprobs"]["token_logprobs"].as_array().expect("a list");
        assert!(list[0].is_null(), "nothing comes before the first token");
        list[1..].iter().map(|value| value.as_f64().expect("a number")).collect()
    };
    let found = logprobs(choice);
    // The prompt and the answer as a prompt, to be scored alone.
    let scored = with(body, json!({ "prompt": said, "max_tokens": 0 }));
    let (status, answer) = server.post("/v1/completions", &scored);
    assert_eq!((status, &answer["usage"]["completion_tokens"]), (200, &json!(0)), "{answer}");
    assert_eq!(answer["choices"][0]["text"], said);
    let again = logprobs(&answer["choices"][0]);
    assert_eq!(found.len(), again.len());
    for (first, second) in found.iter().zip(&again) {
        assert!((first - second).abs() < 0.3, "{found:?} {again:?}");
    }
}

fn check_embeddings(server: &Server) {
    let inputs =
        ["A cat sleeps on the sofa.", "The kitten naps on the couch.", "def f(x): return 1"];
    // More inputs than slots.
    let many: Vec<&str> = inputs.iter().copied().cycle().take(9).collect();
    let (status, answer) = server.post("/v1/embeddings", &json!({ "model": "m", "input": many }));
    assert_eq!(status, 200, "{answer}");
    let data = answer["data"].as_array().expect("a list");
    assert_eq!(data.len(), 9);
    let vectors: Vec<Vec<f64>> = data
        .iter()
        .map(|entry| {
            let vector = entry["embedding"].as_array().expect("a vector");
            vector.iter().map(|value| value.as_f64().expect("a number")).collect()
        })
        .collect();
    let dot = |a: usize, b: usize| -> f64 {
        vectors[a].iter().zip(&vectors[b]).map(|(a, b)| a * b).sum()
    };
    for (index, vector) in vectors.iter().enumerate() {
        assert_eq!(vector.len(), 576);
        assert!((dot(index, index) - 1.0).abs() < 1e-4, "vectors have the length 1");
        // Other micro-batches round differently.
        assert!(dot(index, index % 3) > 0.999, "the same text, the same vector");
    }
    assert!(dot(0, 1) > dot(0, 2), "{} {}", dot(0, 1), dot(0, 2));
    let long = "word ".repeat(3000);
    let (status, error) = server.post("/v1/embeddings", &json!({ "model": "m", "input": long }));
    assert_eq!((status, &error["error"]["code"]), (400, &json!("context_length_exceeded")));
}

#[test]
fn forced_forms() {
    let Some(server) = Server::start() else { return };
    check_object(&server);
    check_schema(&server);
    check_calls(&server);
    check_refusals(&server);
    server.wait_for_busy(0);
}

fn check_object(server: &Server) {
    let form = json!({ "response_format": { "type": "json_object" } });
    let words = "Reply with the JSON object {\"a\": 1} and nothing else.";
    let answer = server.answer(&with(greedy(words, 200), form));
    assert_eq!(finish_reason(&answer), "stop", "{answer}");
    let object: Json = serde_json::from_str(text(&answer)).expect("JSON");
    assert!(object.is_object());
}

fn people() -> Json {
    json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "minLength": 1, "maxLength": 12 },
            "age": { "type": "integer", "minimum": 1, "maximum": 99 },
            "kind": { "enum": ["cat", "dog"] },
            "tags": {
                "type": "array",
                "items": { "type": "string", "pattern": "^[a-z]{1,6}$" },
                "minItems": 1,
                "maxItems": 2,
            },
        },
        "required": ["name", "age", "kind", "tags"],
        "additionalProperties": false,
    })
}

/// What [`people`] asks for, checked by hand.
fn check_people(text: &str) {
    let object: Json = serde_json::from_str(text).expect("JSON");
    let names: Vec<&String> = object.as_object().expect("an object").keys().collect();
    assert_eq!(names.len(), 4, "{object}");
    let name = object["name"].as_str().expect("a name");
    assert!((1..=12).contains(&name.chars().count()), "{object}");
    assert!((1..=99).contains(&object["age"].as_u64().expect("an age")), "{object}");
    assert!(["cat", "dog"].contains(&object["kind"].as_str().expect("a kind")), "{object}");
    let tags = object["tags"].as_array().expect("tags");
    assert!((1..=2).contains(&tags.len()), "{object}");
    for tag in tags {
        let tag = tag.as_str().expect("a tag");
        let plain = tag.bytes().all(|byte| byte.is_ascii_lowercase());
        assert!(plain && (1..=6).contains(&tag.len()), "{object}");
    }
}

/// Even an answer drawn at random keeps to a schema.
fn check_schema(server: &Server) {
    let form = json!({ "response_format": { "type": "json_schema", "json_schema": {
        "name": "people", "strict": true, "schema": people(),
    } } });
    for seed in 0..3 {
        let drawn = json!({ "temperature": 1.5, "seed": seed });
        let body = with(with(greedy("Invent a pet.", 200), form.clone()), drawn);
        let answer = server.answer(&body);
        assert_eq!(finish_reason(&answer), "stop", "{answer}");
        check_people(text(&answer));
    }
}

fn tools() -> Json {
    json!([
        { "type": "function", "function": { "name": "store_pet", "parameters": people() } },
        { "type": "function", "function": { "name": "ring_bell", "parameters": {
            "type": "object",
            "properties": { "times": { "type": "integer", "minimum": 1, "maximum": 9 } },
            "required": ["times"],
            "additionalProperties": false,
        } } },
    ])
}

/// A call's name and arguments.
fn call(answer: &Json) -> (&str, &str) {
    assert_eq!(finish_reason(answer), "tool_calls", "{answer}");
    let calls = answer["choices"][0]["message"]["tool_calls"].as_array().expect("calls");
    assert_eq!(calls.len(), 1, "{answer}");
    let function = &calls[0]["function"];
    (function["name"].as_str().expect("a name"), function["arguments"].as_str().expect("JSON"))
}

fn check_bell(arguments: &str) {
    let object: Json = serde_json::from_str(arguments).expect("JSON");
    assert!((1..=9).contains(&object["times"].as_u64().expect("a number")), "{object}");
}

fn check_calls(server: &Server) {
    let ask = |choice: Json| {
        let more = json!({ "tools": tools(), "tool_choice": choice });
        with(greedy("Ring the bell twice.", 200), more)
    };
    let named = |name: &str| ask(json!({ "type": "function", "function": { "name": name } }));
    let answer = server.answer(&named("store_pet"));
    let (name, arguments) = call(&answer);
    assert_eq!(name, "store_pet");
    check_people(arguments);

    let answer = server.answer(&ask(json!("required")));
    let (name, arguments) = call(&answer);
    match name {
        "store_pet" => check_people(arguments),
        _ => check_bell(arguments),
    }

    // Streamed: the name first, then pieces of the arguments.
    let events = server.stream(named("ring_bell"));
    let deltas: Vec<&Json> = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["tool_calls"].get(0))
        .collect();
    assert_eq!(deltas[0]["function"]["name"], "ring_bell");
    let pieces: Vec<&str> =
        deltas.iter().filter_map(|delta| delta["function"]["arguments"].as_str()).collect();
    assert!(pieces.iter().filter(|piece| !piece.is_empty()).count() > 1, "{pieces:?}");
    check_bell(&pieces.concat());

    // Nothing is forced where the model may choose, and the answer is text or a call.
    let answer = server.answer(&with(ask(json!("auto")), json!({ "max_tokens": 24 })));
    assert!(["stop", "length", "tool_calls"].contains(&finish_reason(&answer)), "{answer}");
}

/// A template by which arguments are elements, no longer than that of the model.
const ELEMENTS: &str = "\
{% for m in messages %}<|im_start|>{{m.role}}\n{{m.content or ''}}\
{% for c in m.tool_calls or [] %}<tool_call>\n<function={{c.function.name}}>\n\
{% for k,v in c.function.arguments|items %}<parameter={{k}}>\n{{v}}\n</parameter>\n{% endfor %}\
</function>\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}\
{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// The model with another template; nothing, with a message, where the model is not here.
fn model_with_elements() -> Option<tempfile::NamedTempFile> {
    let mut bytes = fs::read(real_model(SMOLLM2)?).expect("the model can be read");
    let key = b"tokenizer.chat_template";
    let at = bytes.windows(key.len()).position(|window| window == key).expect("a template");
    // Behind the key are the type, the length and the text.
    let length = at + key.len() + 4;
    let text = length + 8;
    let room = u64::from_le_bytes(bytes[length..text].try_into().expect("eight bytes"));
    let room = usize::try_from(room).expect("a short text");
    let padding = "#".repeat(room - ELEMENTS.len() - 4);
    bytes[text..text + room].copy_from_slice(format!("{ELEMENTS}{{#{padding}#}}").as_bytes());
    let file = tempfile::Builder::new().suffix(".gguf").tempfile().expect("a file");
    fs::write(file.path(), bytes).expect("the model can be written");
    Some(file)
}

/// Calls whose arguments are elements, with a real vocabulary, whose tokens end anywhere.
#[test]
fn calls_of_elements() {
    let Some(model) = model_with_elements() else { return };
    let path = model.path().to_string_lossy().into_owned();
    let server = Server::start_model(&path, &["--parallel", "4", "-c", "512", "-t", "1"]);
    let bell = json!({ "type": "function", "function": {
        "name": "ring_bell", "strict": true, "parameters": {
            "type": "object",
            "properties": {
                "times": { "type": "integer", "minimum": 1, "maximum": 9 },
                "why": { "type": "string", "maxLength": 40 },
            },
            "required": ["times", "why"],
            "additionalProperties": false,
        },
    } });
    let check = |arguments: &str| {
        check_bell(arguments);
        let object: Json = serde_json::from_str(arguments).expect("JSON");
        assert!(object["why"].as_str().expect("a text").chars().count() <= 40, "{object}");
    };
    let mut messages = Vec::new();
    for (times, why) in [(2, "breakfast"), (4, "lunch"), (3, "tea")] {
        let arguments = json!({ "times": times, "why": why }).to_string();
        messages
            .push(json!({ "role": "user", "content": format!("Ring {times} times for {why}.") }));
        messages.push(json!({ "role": "assistant", "tool_calls": [
            { "id": format!("call{times}"), "type": "function",
              "function": { "name": "ring_bell", "arguments": arguments } },
        ] }));
    }
    messages.push(json!({ "role": "user", "content": "Ring 5 times for dinner." }));
    let ask = |choice: &str| {
        let more = json!({ "messages": messages, "tools": [bell], "tool_choice": choice,
                           "parallel_tool_calls": false });
        with(greedy("", 120), more)
    };
    for choice in ["required", "auto"] {
        let answer = server.answer(&ask(choice));
        let (name, arguments) = call(&answer);
        assert_eq!(name, "ring_bell");
        check(arguments);
        assert_eq!(answer["choices"][0]["message"]["content"], Json::Null, "{answer}");
        let events = server.stream(ask(choice));
        let pieces: String = events
            .iter()
            .filter_map(|event| {
                event["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"].as_str()
            })
            .collect();
        assert_eq!(pieces, arguments);
        assert_eq!(streamed_text(&events), "");
    }
}

fn check_refusals(server: &Server) {
    let schema = |schema: Json| {
        let form =
            json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
        server.post(CHAT, &with(greedy("hi", 4), json!({ "response_format": form })))
    };
    let (status, error) = schema(json!({ "properties": { "a": { "not": {} } } }));
    assert_eq!(status, 400);
    expect![[r#"
        {"error":{"message":"response_format.json_schema.schema is not supported: at \"/properties/a/not\": the keyword \"not\" cannot be forced","type":"invalid_request_error","param":"response_format.json_schema.schema","code":"unsupported_parameter"}}"#]]
    .assert_eq(&error.to_string());
    // T-16: a grammar that cannot be, after one that can and before one.
    let good = || schema(json!({ "type": "object", "properties": { "a": { "enum": ["b"] } } }));
    let bad =
        || schema(json!({ "type": "object", "properties": { "a": { "pattern": "(?=x)y" } } }));
    for _ in 0..2 {
        assert_eq!((good().0, bad().0, bad().0, good().0), (200, 400, 400, 200));
    }
    let endless = json!({ "response_format": { "type": "json_object" }, "ignore_eos": true });
    assert_eq!(server.post(CHAT, &with(greedy("hi", 4), endless)).0, 400);

    let requests = include_str!("../../gateway/tests/http/hostile_requests.jsonl");
    let mut hostile = 0;
    for line in requests.lines() {
        let case: Json = serde_json::from_str(line).expect("JSON");
        let id = case["id"].as_str().expect("an id");
        if case.get("expand").is_none()
            && ["schema_", "tools_"].iter().any(|kind| id.starts_with(kind))
        {
            let (status, answer) = server.post(CHAT, &case["body"]);
            let expected = case["expect"].as_str().expect("statuses");
            assert!(expected.contains(&status.to_string()), "{id}: {status} {answer}");
            hostile += 1;
        }
    }
    assert!(hostile >= 8, "{hostile}");
}

#[test]
fn many_clients() {
    let Some(server) = Server::start() else { return };
    check_crowd(&server);
    check_cancel(&server);
}

/// More requests than slots: all of them end.
fn check_crowd(server: &Server) {
    thread::scope(|scope| {
        let ask = |number: u32| {
            let words = format!("Count from {number} upwards.");
            let answer = server.answer(&greedy(&words, 2 + number % 5));
            assert!(["stop", "length"].contains(&finish_reason(&answer)), "{answer}");
        };
        let asked: Vec<_> = (0..20).map(|number| scope.spawn(move || ask(number))).collect();
        assert_eq!(asked.into_iter().map(|asked| asked.join()).filter(Result::is_ok).count(), 20);
    });
    server.wait_for_busy(0);
}

/// A client that leaves takes its request with it.
fn check_cancel(server: &Server) {
    let body = with(greedy(STORY, 450), json!({ "stream": true, "ignore_eos": true }));
    let request = server.agent.post(format!("{}{CHAT}", server.url));
    let answer = request
        .header("content-type", "application/json")
        .send(body.to_string())
        .expect("an answer");
    let mut reader = answer.into_body().into_reader();
    reader.read_exact(&mut [0; 16]).expect("a beginning");
    server.wait_for_busy(1);
    drop(reader);
    let drawn = server.wait_for_busy(0);
    assert!(drawn < 400, "{drawn} tokens were drawn for nobody");
}
