//! A running `motley serve` with a real model, asked over HTTP.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use super::{SMOLLM2, motley, real_model};

/// Fails a test that would wait for ever.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) const CHAT: &str = "/v1/chat/completions";

/// A server that ends with the test.
pub(crate) struct Server {
    child: Child,
    pub(crate) url: String,
    pub(crate) agent: ureq::Agent,
}

impl Server {
    /// A server with four slots, or nothing, with a message, where the model is not here.
    pub(crate) fn start() -> Option<Self> {
        Self::start_with(&["--parallel", "4", "-c", "512", "-t", "1"])
    }

    /// A server with other words on its command line.
    pub(crate) fn start_with(words: &[&str]) -> Option<Self> {
        Some(Self::start_model(&real_model(SMOLLM2)?, words))
    }

    /// A server of the model at a path.
    pub(crate) fn start_model(model: &str, words: &[&str]) -> Self {
        let mut child = motley()
            .args(["serve", model, "--alias", "m", "--port", "0", "--layout", "plain"])
            .args(words)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let url = loop {
            let line = lines.next().expect("it says where it serves").expect("text");
            if let Some((_, rest)) = line.split_once(" on ") {
                break rest.split("/v1").next().expect("an address").to_owned();
            }
        };
        // A full pipe would stop it.
        thread::spawn(move || lines.for_each(drop));
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(PATIENCE));
        Self { child, url, agent: config.build().into() }
    }

    /// Status and body of an answer.
    pub(crate) fn post(&self, route: &str, body: &Json) -> (u16, Json) {
        let request = self.agent.post(format!("{}{route}", self.url));
        let mut answer = request
            .header("content-type", "application/json")
            .send(body.to_string())
            .expect("an answer");
        let text = answer.body_mut().read_to_string().expect("a body");
        let json = serde_json::from_str(&text).unwrap_or_else(|_| panic!("no JSON: {text}"));
        (answer.status().as_u16(), json)
    }

    /// The answer to a request that is taken.
    pub(crate) fn answer(&self, body: &Json) -> Json {
        let (status, answer) = self.post(CHAT, body);
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// The events of a streamed answer.
    pub(crate) fn stream(&self, mut body: Json) -> Vec<Json> {
        body["stream"] = true.into();
        body["stream_options"] = json!({ "include_usage": true });
        let request = self.agent.post(format!("{}{CHAT}", self.url));
        let mut answer = request
            .header("content-type", "application/json")
            .send(body.to_string())
            .expect("an answer");
        let text = answer.body_mut().read_to_string().expect("a body");
        let events: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        let (last, events) = events.split_last().expect("events");
        assert_eq!(*last, "[DONE]");
        events.iter().map(|event| serde_json::from_str(event).expect("JSON")).collect()
    }

    /// The process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Tokens drawn so far, of each slot that works.
    pub(crate) fn busy_slots(&self) -> Vec<u64> {
        let mut answer = self.agent.get(format!("{}/slots", self.url)).call().expect("an answer");
        let text = answer.body_mut().read_to_string().expect("a body");
        let slots: Json = serde_json::from_str(&text).expect("JSON");
        let slots = slots.as_array().expect("a list");
        let busy = slots.iter().filter(|slot| slot["is_processing"] == true);
        busy.map(|slot| slot["n_decoded"].as_u64().expect("a number")).collect()
    }

    /// Waits until so many slots work, and tells how many tokens any was last seen to have drawn.
    pub(crate) fn wait_for_busy(&self, count: usize) -> u64 {
        let until = Instant::now() + PATIENCE;
        let mut drawn = 0;
        loop {
            let busy = self.busy_slots();
            drawn = busy.iter().copied().max().unwrap_or(drawn);
            if busy.len() == count {
                return drawn;
            }
            assert!(Instant::now() < until, "{count} slots never worked");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
