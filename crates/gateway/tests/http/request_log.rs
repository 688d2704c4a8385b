//! Each request and each generation is told to the log once, with a reason.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use expect_test::expect;
use motley_gateway::{
    AnsweredRequest, EndedGeneration, Failure, GenerationEnd, RequestLog, SharedLog,
};
use serde_json::json;

use crate::client::{ADMIN_KEY, Client, config, keys, post};
use crate::fake::Step;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl RequestLog for Lines {
    fn answered(&self, request: &AnsweredRequest<'_>) {
        let AnsweredRequest { id, method, route, status, problem, took } = request;
        let route = route.unwrap_or("-");
        let problem = problem.unwrap_or("-");
        let line = format!("{id} {method} {route} {status} {problem} {}s", took.as_secs());
        self.0.lock().unwrap().push(line);
    }

    fn generation_ended(&self, generation: &EndedGeneration<'_>) {
        let EndedGeneration { id, model, key, end, took } = generation;
        let key = key.map_or("-".to_owned(), |key| key.to_string());
        let end = match end {
            GenerationEnd::Finished(finished) => {
                let tokens = finished.usage.completion_tokens;
                format!("{} after {tokens} tokens", finished.reason.as_str())
            }
            GenerationEnd::Failed(failure) => failure.to_string(),
            GenerationEnd::Cancelled => "cancelled".to_owned(),
        };
        let line = format!("{id} {model} {key}: {end} {}s", took.as_secs());
        self.0.lock().unwrap().push(line);
    }
}

#[tokio::test(start_paused = true)]
async fn every_end_is_told_once() {
    let lines = Lines::default();
    let mut config = config();
    config.keys = keys();
    config.log = SharedLog::new(lines.clone());
    let client = Client::with(config).with_key(ADMIN_KEY);
    let route = "/v1/completions";
    let body = |n: u32| json!({"prompt": "secret", "max_tokens": 2, "n": n});
    client.post(route, &body(2)).await;
    client.post(route, &body(9)).await;
    client.get("/nowhere/secret").await;
    let wait = Step::Wait(Duration::from_secs(3));
    let cause = "layer 3 is not finite".to_owned();
    client.fake.play(vec![wait.clone(), Step::Fail(Failure::Compute { cause })]);
    client.post(route, &body(1)).await;
    client.fake.play(vec![Step::Hang]);
    let waiting = client.start(post(route, body(1).to_string()));
    assert!(tokio::time::timeout(Duration::from_secs(5), waiting).await.is_err());
    let lines = lines.0.lock().unwrap().join("\n");
    assert!(!lines.contains("secret"), "{lines}");
    expect![[r#"
        req_000000000000feed00000000 m key 1: length after 2 tokens 0s
        req_000000000000feed00000000 m key 1: length after 2 tokens 0s
        req_000000000000feed00000000 POST /v1/completions 200 - 0s
        req_000000000000feed00000002 POST /v1/completions 400 n must be an integer from 1 to 8 0s
        req_000000000000feed00000003 GET - 404 no such route 0s
        req_000000000000feed00000004 m key 1: computing failed: layer 3 is not finite 3s
        req_000000000000feed00000004 POST /v1/completions 500 the server failed to compute an answer 3s
        req_000000000000feed00000006 m key 1: cancelled 5s"#]].assert_eq(&lines);
}
