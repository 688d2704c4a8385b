//! Every line of `hostile_requests.jsonl` gets an answer that the line expects, and good requests
//! beside it notice nothing.

use axum::body::Body;
use axum::http::Request;
use futures_util::future::join_all;
use serde_json::{Map, Value, json};

use crate::client::{ADMIN_KEY, Answer, Client, config, keys};

#[tokio::test]
async fn hostile_requests_are_answered_as_expected() {
    let mut config = config();
    config.keys = keys();
    let client = Client::with(config).with_key(ADMIN_KEY);
    let good = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}], "seed": 1});
    let undisturbed = client.post("/v1/chat/completions", &good).await;
    let mut lines = 0;
    for line in include_str!("hostile_requests.jsonl").lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let ten_good = (0..10).map(|_| client.post("/v1/chat/completions", &good));
        let (answer, beside) = tokio::join!(client.send(request_of(&case)), join_all(ten_good));
        check(&case, &answer);
        for answer in &beside {
            assert_eq!(text_of(answer), text_of(&undisturbed), "beside {}", case["id"]);
        }
        lines += 1;
    }
    assert_eq!(lines, 96);
}

fn text_of(answer: &Answer) -> Value {
    answer.json()["choices"][0]["message"]["content"].clone()
}

fn check(case: &Value, answer: &Answer) {
    let id = &case["id"];
    let status = answer.status.as_str();
    let expected = case["expect"].as_str().unwrap();
    assert!(expected.split('|').any(|allowed| allowed == status), "{id}: {status} {}", answer.text);
    assert!(!answer.header("x-request-id").is_empty(), "{id}: no request id");
    if !answer.status.is_success() && !case["route"].as_str().unwrap().starts_with("/api/") {
        let body = answer.json();
        let error = body["error"].as_object().unwrap_or_else(|| panic!("{id}: {body}"));
        let keys: Vec<&str> = error.keys().map(String::as_str).collect();
        assert_eq!(keys, ["message", "type", "param", "code"], "{id}");
    }
    assert!(!answer.text.contains("passwd"), "{id}: repeats what was sent: {}", answer.text);
    if id == "prompt_over_context" {
        assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");
    }
}

fn request_of(case: &Value) -> Request<Body> {
    let mut request = Request::builder()
        .method(case["method"].as_str().unwrap())
        .uri(case["route"].as_str().unwrap());
    for (name, value) in case["headers"].as_object().into_iter().flatten() {
        request = request.header(name, expand_header(value.as_str().unwrap()));
    }
    if case["id"] == "key_missing" {
        // The client adds its key only where no header stands; an empty scheme offers none.
        request = request.header("authorization", "");
    }
    request.body(Body::from(body_of(case))).unwrap()
}

fn expand_header(value: &str) -> String {
    let repeat = value.strip_prefix("@@REPEAT:").and_then(|value| value.strip_suffix("@@"));
    match repeat.and_then(|repeat| repeat.rsplit_once(':')) {
        Some((text, count)) => text.repeat(count.parse().unwrap()),
        None => value.to_owned(),
    }
}

fn body_of(case: &Value) -> String {
    if let Some(raw) = case["raw"].as_str() {
        return raw.to_owned();
    }
    let mut body = case["body"].clone();
    if body.is_null() {
        return String::new();
    }
    let expand = &case["expand"];
    if expand.is_object() {
        // Put in as text: what is expanded may nest deeper than a value can be dropped.
        let place = place(&mut body, expand["field"].as_str().unwrap());
        let expanded = expanded(expand, place);
        *place = "@@HERE@@".into();
        return body.to_string().replace("\"@@HERE@@\"", &expanded);
    }
    let text = body.to_string();
    match (text.find("\"@@RAW:"), text.find("@@\"")) {
        (Some(start), Some(end)) => {
            let quoted = format!("\"{}\"", &text[start + 7..end]);
            let raw: String = serde_json::from_str(&quoted).unwrap();
            format!("{}{raw}{}", &text[..start], &text[end + 3..])
        }
        _ => text,
    }
}

fn place<'a>(body: &'a mut Value, path: &str) -> &'a mut Value {
    path.split('.').fold(body, |value, step| match step.parse::<usize>() {
        Ok(index) => &mut value[index],
        Err(_) => &mut value[step],
    })
}

fn expanded(expand: &Value, original: &Value) -> String {
    let count = usize::try_from(expand["count"].as_u64().unwrap()).unwrap();
    match expand["kind"].as_str().unwrap() {
        "nest_arrays" => "[".repeat(count) + &"]".repeat(count),
        "nest_properties" => {
            let open = r#"{"type":"object","properties":{"a":"#;
            open.repeat(count) + "{}" + &"}}".repeat(count)
        }
        "wide_properties" => {
            let named = (0..count).map(|index| (format!("p{index}"), json!({"type": "string"})));
            json!({"type": "object", "properties": named.collect::<Map<_, _>>()}).to_string()
        }
        "map_ids" => {
            let ids = (0..count).map(|index| (index.to_string(), json!(1)));
            Value::Object(ids.collect()).to_string()
        }
        "copies" => {
            let one = original[0].to_string();
            format!("[{}]", vec![one; count].join(","))
        }
        "text" => json!(expand["unit"].as_str().unwrap().repeat(count)).to_string(),
        "allof_doubling" => {
            let mut definitions = Map::new();
            for level in 0..count {
                let next = json!({"$ref": format!("#/$defs/d{}", level + 1)});
                definitions.insert(format!("d{level}"), json!({"allOf": [next, next]}));
            }
            definitions.insert(format!("d{count}"), json!({"type": "string"}));
            json!({"$defs": definitions, "$ref": "#/$defs/d0"}).to_string()
        }
        other => panic!("unknown kind {other}"),
    }
}
