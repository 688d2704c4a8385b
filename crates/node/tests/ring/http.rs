//! Asking a head over HTTP.

use std::io::{BufRead as _, BufReader, Read};
use std::time::Duration;

use serde_json::{Value as Json, json};

use crate::device::PATIENCE;

/// What all heads call their model.
pub(crate) const MODEL: &str = "model";

/// A status code and what came with it.
pub(crate) type Response = (u16, Json);

fn agent(limit: Duration) -> ureq::Agent {
    let config = ureq::Agent::config_builder();
    config.timeout_global(Some(limit)).http_status_as_error(false).build().into()
}

fn told(mut response: ureq::http::Response<ureq::Body>) -> Response {
    let status = response.status().as_u16();
    let body = response.body_mut().read_to_string().unwrap_or_default();
    (status, serde_json::from_str(&body).unwrap_or_default())
}

/// What a head answers at a path; nothing when it does not answer.
pub(crate) fn get(url: &str, path: &str) -> Option<Response> {
    agent(Duration::from_secs(5)).get(format!("{url}{path}")).call().ok().map(told)
}

fn question(prompt: &str, tokens: u32, stream: bool) -> String {
    json!({
        "model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0,
        "ignore_eos": true, "stream": stream,
    })
    .to_string()
}

fn post(url: &str, body: &str) -> ureq::http::Response<ureq::Body> {
    agent(PATIENCE)
        .post(format!("{url}/v1/completions"))
        .header("content-type", "application/json")
        .send(body)
        .expect("the head answers")
}

/// The vector that a text becomes.
pub(crate) fn embedding(url: &str, text: &str) -> Vec<f64> {
    let body = json!({ "model": MODEL, "input": text });
    let (status, answer) = told(
        agent(PATIENCE)
            .post(format!("{url}/v1/embeddings"))
            .header("content-type", "application/json")
            .send(body.to_string())
            .expect("the head answers"),
    );
    assert_eq!(status, 200, "{answer}");
    let vector = answer["data"][0]["embedding"].as_array().expect("a vector");
    vector.iter().map(|value| value.as_f64().expect("a number")).collect()
}

/// Asks for the most likely `tokens` tokens after `prompt`.
pub(crate) fn ask(url: &str, prompt: &str, tokens: u32) -> Response {
    told(post(url, &question(prompt, tokens, false)))
}

/// The text of an answer that succeeds.
#[track_caller]
pub(crate) fn answer(url: &str, prompt: &str, tokens: u32) -> String {
    let (status, body) = ask(url, prompt, tokens);
    assert_eq!(status, 200, "{body}");
    let used = body["usage"]["completion_tokens"].as_u64();
    assert_eq!(used, Some(tokens.into()), "{body}");
    body["choices"][0]["text"].as_str().expect("a text").to_owned()
}

/// An answer that comes piece by piece. Dropping it closes the connection.
pub(crate) struct Stream {
    lines: BufReader<Box<dyn Read + Send>>,
    /// What has come so far.
    pub(crate) text: String,
}

/// How a stream goes on.
#[derive(Debug, PartialEq)]
pub(crate) enum Next {
    /// Another piece.
    Piece,
    /// The answer is complete.
    Done,
    /// It ends with an error of this code.
    Failed(String),
}

impl Stream {
    /// Asks as [`ask`] does.
    pub(crate) fn open(url: &str, prompt: &str, tokens: u32) -> Self {
        let response = post(url, &question(prompt, tokens, true));
        assert_eq!(response.status().as_u16(), 200);
        let lines = BufReader::new(Box::new(response.into_body().into_reader()) as _);
        Self { lines, text: String::new() }
    }

    /// Reads on.
    #[track_caller]
    pub(crate) fn next(&mut self) -> Next {
        loop {
            let mut line = String::new();
            let bytes = self.lines.read_line(&mut line).expect("the stream goes on");
            assert!(bytes > 0, "the stream ends without a word, after {:?}", self.text);
            let Some(data) = line.trim().strip_prefix("data: ") else { continue };
            if data == "[DONE]" {
                return Next::Done;
            }
            let event: Json = serde_json::from_str(data).unwrap();
            if let Some(code) = event["error"]["code"].as_str() {
                return Next::Failed(code.to_owned());
            }
            if let Some(piece) = event["choices"][0]["text"].as_str().filter(|it| !it.is_empty()) {
                self.text.push_str(piece);
                return Next::Piece;
            }
        }
    }

    /// Reads to the end, which is told.
    #[track_caller]
    pub(crate) fn finish(&mut self) -> Next {
        loop {
            match self.next() {
                Next::Piece => {}
                end => return end,
            }
        }
    }
}
