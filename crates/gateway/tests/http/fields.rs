//! The OpenAPI file drives the router: every documented field gets good and bad values, and every
//! answer has the documented shape.

use serde_json::{Map, Value, json};

use crate::client::{Answer, Client, post};

fn document() -> Value {
    serde_json::from_str(include_str!("../../openapi.json")).unwrap()
}

/// The least each route needs.
fn least(path: &str) -> Value {
    let messages = json!([{"role": "user", "content": "hi"}]);
    match path {
        "/v1/chat/completions" => json!({"messages": messages, "max_tokens": 3}),
        "/api/chat" => json!({"messages": messages, "stream": false}),
        "/api/generate" => json!({"prompt": "hi", "stream": false}),
        "/apply-template" => json!({"messages": messages}),
        "/v1/completions" => json!({"prompt": "hi", "max_tokens": 3}),
        "/v1/embeddings" | "/api/embed" => json!({"input": "hi"}),
        "/tokenize" => json!({"content": "hi"}),
        "/detokenize" => json!({"tokens": [104]}),
        "/api/show" => json!({"model": "m"}),
        other => panic!("{other} is new here"),
    }
}

/// Values that some reader somewhere has choked on.
fn odd_values() -> Vec<Value> {
    let nest = |open: &str, close: &str, count| {
        serde_json::from_str(&(open.repeat(count) + "1" + &close.repeat(count))).unwrap()
    };
    vec![
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(1),
        json!(0.5),
        json!(-0.0),
        json!(21),
        json!(4_294_967_296_u64),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(1e300),
        json!(""),
        json!("NaN"),
        json!("json"),
        json!("\u{0}\u{ffff}\u{1f600}"),
        json!("x".repeat(10_000)),
        json!([]),
        json!([""]),
        json!([[]]),
        json!([null]),
        json!([0, "a", {}]),
        json!([4_294_967_296_u64]),
        json!(vec![1; 5_000]),
        json!({}),
        json!({"": null}),
        json!({"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}),
        json!({"type": "function", "function": {"name": ""}}),
        json!({"0": 1e308, "x": "y"}),
        nest("[", "]", 25),
        nest("{\"a\":", "}", 25),
    ]
}

fn post_routes(document: &Value) -> Vec<(String, Map<String, Value>)> {
    let paths = document["paths"].as_object().unwrap();
    let posts = paths.iter().filter_map(|(path, methods)| {
        let body = &methods.get("post")?["requestBody"]["content"]["application/json"]["schema"];
        let properties = resolve(document, body)["properties"].as_object().unwrap();
        Some((path.clone(), properties.clone()))
    });
    posts.collect()
}

#[tokio::test]
async fn no_value_of_any_field_is_our_fault() {
    let client = Client::new();
    let document = document();
    let mut asked = 0;
    for (path, properties) in post_routes(&document) {
        let base = client.post(&path, &least(&path)).await;
        assert_eq!(base.status, 200, "{path}: {}", base.text);
        for field in properties.keys() {
            for value in odd_values() {
                let mut body = least(&path);
                body[field] = value;
                let answer = client.post(&path, &body).await;
                let status = answer.status;
                assert!(status.is_success() || status.is_client_error(), "{path}: {field}: {body}");
                if !status.is_success() {
                    check_error(&document, &path, &answer);
                }
                asked += 1;
            }
            if least(&path).get(field).is_none() {
                let mut body = least(&path);
                body[field] = Value::Null;
                let answer = client.post(&path, &body).await;
                assert_eq!(answer.status, 200, "{path}: {field}: null counts as absent");
            }
        }
        for field in least(&path).as_object().unwrap().keys() {
            let mut body = least(&path);
            body.as_object_mut().unwrap().remove(field);
            let status = client.post(&path, &body).await.status;
            assert!(status.is_success() || status == 400, "{path} without {field}: {status}");
        }
    }
    assert!(asked > 3_000, "{asked}");
}

#[tokio::test]
async fn answers_have_the_documented_shape() {
    let client = Client::new();
    let document = document();
    let mut checked = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let mut bodies = vec![Value::Null];
            if method == "post" {
                bodies = vec![least(path)];
                bodies.extend(richer(path));
            }
            for body in bodies {
                let url = path.replace("{model}", "m");
                let answer = match method.as_str() {
                    "get" => client.get(&url).await,
                    _ => client.post(&url, &body).await,
                };
                assert_eq!(answer.status, 200, "{path}: {}", answer.text);
                let content = &operation["responses"]["200"]["content"];
                if let Some(json) = content.get("application/json") {
                    let problem = mismatch(&document, &json["schema"], &answer.json());
                    assert_eq!(problem, None, "{path}: {}", answer.text);
                    checked += 1;
                }
            }
            let broken = client.send(post(path, "{")).await;
            if method == "post" {
                assert_eq!(broken.status, 400);
                check_error(&document, path, &broken);
            }
        }
    }
    assert!(checked > 20, "{checked}");
}

/// Requests that show more of the answer.
fn richer(path: &str) -> Vec<Value> {
    let mut body = least(path);
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let more = match path {
        "/v1/chat/completions" => {
            let mut forced = body.clone();
            forced["tools"] = tools;
            forced["tool_choice"] = "required".into();
            body["logprobs"] = true.into();
            body["top_logprobs"] = 2.into();
            body["n"] = 2.into();
            return vec![body, forced];
        }
        "/v1/completions" => json!({"logprobs": 2, "echo": true, "n": 2}),
        "/v1/embeddings" => json!({"encoding_format": "base64"}),
        "/tokenize" => json!({"with_pieces": true}),
        "/api/chat" | "/api/generate" => json!({"logprobs": true, "top_logprobs": 1}),
        _ => return Vec::new(),
    };
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    vec![body]
}

fn check_error(document: &Value, path: &str, answer: &Answer) {
    let status = answer.status.as_str();
    let response = &document["paths"][path]["post"]["responses"][status];
    assert!(response.is_object(), "{path} does not document {status}: {}", answer.text);
    let schema = &response["content"]["application/json"]["schema"];
    assert_eq!(mismatch(document, schema, &answer.json()), None, "{path}: {}", answer.text);
}

fn resolve<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(reference) => document.pointer(reference.trim_start_matches('#')).unwrap(),
        None => schema,
    }
}

/// Where `value` departs from `schema`, for the keywords our answers are described with.
fn mismatch(document: &Value, schema: &Value, value: &Value) -> Option<String> {
    let schema = resolve(document, schema);
    if let Some(choices) = schema["anyOf"].as_array() {
        let fits = choices.iter().any(|choice| mismatch(document, choice, value).is_none());
        return (!fits).then(|| format!("{value} fits no alternative"));
    }
    if let Some(only) = schema.get("const").filter(|only| *only != value) {
        return Some(format!("{value} is not {only}"));
    }
    if let Some(values) = schema["enum"].as_array()
        && !values.contains(value)
    {
        return Some(format!("{value} is not one of {values:?}"));
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(list) => list.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if !types.is_empty() && !types.iter().any(|name| is_of_type(value, name)) {
        return Some(format!("{value} is not {types:?}"));
    }
    if value.as_f64() < schema["minimum"].as_f64() {
        return Some(format!("{value} is too small"));
    }
    match value {
        Value::Array(items) => {
            items.iter().find_map(|item| mismatch(document, &schema["items"], item))
        }
        Value::Object(members) => {
            let required = schema["required"].as_array().into_iter().flatten();
            for name in required.filter_map(Value::as_str) {
                if !members.contains_key(name) {
                    return Some(format!("{name} is missing"));
                }
            }
            let known = schema["properties"].as_object();
            members.iter().find_map(|(name, member)| match known.and_then(|k| k.get(name)) {
                Some(schema) => mismatch(document, schema, member).map(|p| format!("{name}: {p}")),
                None if known.is_none_or(Map::is_empty) => None,
                None => Some(format!("{name} is not documented")),
            })
        }
        _ => None,
    }
}

fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        other => panic!("unknown type {other}"),
    }
}
