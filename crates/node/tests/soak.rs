//! Many clients of all kinds for a long time: nothing fails that is not the client's fault, no
//! slot and no cached token leaks, memory stays flat.
//!
//! `MOTLEY_SOAK_MINUTES` makes it longer than the form that runs with all tests: it then begins
//! rounds until so much time has passed.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a test starts threads, is told by the environment how long to run, looks at the clock \
              for that alone, and says what it saw"
)]

mod common;

use std::io::{BufRead as _, BufReader};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::server::{CHAT, Server};
use serde_json::{Value as Json, json};

const CLIENTS: u64 = 8;
const REQUESTS_PER_ROUND: u64 = 10;
const ROUNDS_DEFAULT: u64 = 2;
const SLOTS: usize = 4;
const CONTEXT_TOKENS: usize = 512;

/// Prompts of which each has one likeliest answer, however many others run.
const PROMPTS: [&str; 4] = ["The capital of France is", "Once upon a time", "1, 2, 3,", "Water is"];

/// Bodies that a server must refuse, and the status that it owes each of them.
fn hostile() -> Vec<(u16, Json)> {
    let lines = include_str!("../../gateway/tests/http/hostile_requests.jsonl").lines();
    lines
        .filter_map(|line| {
            let case: Json = serde_json::from_str(line).expect("JSON");
            let as_it_stands = |body: &Json| !body.to_string().contains("@@RAW");
            let plain = case.get("expand").is_none() && as_it_stands(&case["body"]);
            let chat = case["method"] == "POST" && case["route"] == CHAT;
            let refused = case["expect"] == "400" && case.get("headers").is_none();
            (plain && chat && refused).then(|| (400, case["body"].clone()))
        })
        .collect()
}

/// What clients did.
#[derive(Debug, Default)]
struct Counts {
    answered: AtomicU32,
    left: AtomicU32,
    slow: AtomicU32,
    embedded: AtomicU32,
    forced: AtomicU32,
    refused: AtomicU32,
}

fn add(count: &AtomicU32) {
    count.fetch_add(1, Ordering::Relaxed);
}

struct Soak {
    server: Server,
    expected: Vec<String>,
    hostile: Vec<(u16, Json)>,
    counts: Counts,
}

impl Soak {
    fn start() -> Option<Self> {
        let (slots, context) = (SLOTS.to_string(), CONTEXT_TOKENS.to_string());
        let words = ["--parallel", &slots, "-c", &context, "-t", "1", "--limit-grammars-kept", "8"];
        let server = Server::start_with(&words)?;
        let (counts, hostile) = (Counts::default(), hostile());
        assert!(hostile.len() > 20, "{}", hostile.len());
        let mut soak = Self { server, expected: Vec::new(), hostile, counts };
        soak.expected = (0..PROMPTS.len()).map(|which| soak.complete(which)).collect();
        Some(soak)
    }

    fn body(which: usize, tokens: u32) -> Json {
        json!({
            "model": "m", "prompt": PROMPTS[which], "max_tokens": tokens, "temperature": 0,
            "ignore_eos": true,
        })
    }

    /// The likeliest answer to a prompt.
    fn complete(&self, which: usize) -> String {
        let (status, answer) = self.server.post("/v1/completions", &Self::body(which, 12));
        assert_eq!(status, 200, "{answer}");
        answer["choices"][0]["text"].as_str().expect("text").to_owned()
    }

    /// Reads the first event of a stream, does `meanwhile`, and reads the rest unless it leaves.
    fn stream(&self, which: usize, leaves: bool, meanwhile: impl FnOnce()) {
        let mut body = Self::body(which, 48);
        body["stream"] = true.into();
        let request = self.server.agent.post(format!("{}/v1/completions", self.server.url));
        let answer = request
            .header("content-type", "application/json")
            .send(body.to_string())
            .expect("an answer");
        let mut lines = BufReader::new(answer.into_body().into_reader()).lines();
        // While a stream waits for its turn, comments keep the connection alive.
        let is_event = |line: &String| !line.is_empty() && !line.starts_with(':');
        let first = lines.by_ref().map(|line| line.expect("text")).find(is_event);
        let first = first.expect("an event");
        assert!(first.starts_with("data: "), "{first}");
        meanwhile();
        if leaves {
            return add(&self.counts.left);
        }
        let rest: Vec<String> = lines.map(|line| line.expect("text")).collect();
        let last = rest.iter().rfind(|line| line.starts_with("data: "));
        assert_eq!(last.map(String::as_str), Some("data: [DONE]"), "the answer is whole");
        let ends = rest.iter().filter(|line| line.contains("\"finish_reason\":\"length\""));
        assert_eq!(ends.count(), 1, "a request ends once");
        add(&self.counts.slow);
    }

    fn act(&self, random: &mut fastrand::Rng) {
        let which = random.usize(0..PROMPTS.len());
        match random.u32(0..11) {
            0..4 => {
                assert_eq!(self.complete(which), self.expected[which], "others change no answer");
                add(&self.counts.answered);
            }
            4 | 5 => self.stream(which, true, || ()),
            // A reader who reads on only when another request of its has been answered.
            6 | 7 => self.stream(which, false, || drop(self.complete(which))),
            8 => {
                let body = json!({ "model": "m", "input": PROMPTS });
                assert_eq!(self.server.post("/v1/embeddings", &body).0, 200);
                add(&self.counts.embedded);
            }
            9 => {
                // Now and then a grammar that was not seen before, so that old ones must go.
                let number = random.u32(0..200);
                let schema = json!({
                    "type": "object", "required": ["n"], "additionalProperties": false,
                    "properties": { "n": { "const": number } },
                });
                let format = json!({
                    "type": "json_schema",
                    "json_schema": { "name": "n", "strict": true, "schema": schema },
                });
                let body = json!({
                    "model": "m", "messages": [{ "role": "user", "content": PROMPTS[which] }],
                    "max_tokens": 160, "temperature": 0, "response_format": format,
                });
                let (status, answer) = self.server.post(CHAT, &body);
                let text = answer["choices"][0]["message"]["content"].as_str().unwrap_or_default();
                let forced: Json = serde_json::from_str(text).expect("JSON");
                assert_eq!((status, &forced), (200, &json!({ "n": number })), "{answer}");
                add(&self.counts.forced);
            }
            _ => {
                let case = random.usize(0..self.hostile.len());
                let (expected, body) = &self.hostile[case];
                let (status, answer) = self.server.post(CHAT, body);
                assert_eq!(status, *expected, "{answer}");
                add(&self.counts.refused);
            }
        }
    }

    fn round(&self, round: u64) {
        thread::scope(|scope| {
            for client in 0..CLIENTS {
                let mut random = fastrand::Rng::with_seed(round * CLIENTS + client);
                scope.spawn(move || (0..REQUESTS_PER_ROUND).for_each(|_| self.act(&mut random)));
            }
        });
        self.server.wait_for_busy(0);
    }

    /// Anonymous memory that the server holds.
    fn resident_bytes(&self) -> u64 {
        let path = format!("/proc/{}/status", self.server.id());
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or("0 kB");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    }

    /// Requests that fill every slot to its end are all answered: no cell is lost.
    fn fill_all_slots(&self) {
        let prompt = vec![1; CONTEXT_TOKENS - 8];
        let body = json!({
            "model": "m", "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": true,
        });
        thread::scope(|scope| {
            for _ in 0..SLOTS {
                scope.spawn(|| {
                    let (status, answer) = self.server.post("/v1/completions", &body);
                    assert_eq!(status, 200, "{answer}");
                    assert_eq!(answer["usage"]["total_tokens"], CONTEXT_TOKENS);
                });
            }
        });
        self.server.wait_for_busy(0);
    }

    /// A number that the server counts.
    fn counted(&self, name: &str) -> f64 {
        let url = format!("{}/metrics", self.server.url);
        let mut answer = self.server.agent.get(url).call().expect("an answer");
        let text = answer.body_mut().read_to_string().expect("a body");
        let line = text.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("{name} is not counted:\n{text}"));
        line.rsplit(' ').next().expect("a number").parse().expect("a number")
    }
}

#[test]
fn a_long_mixed_load_leaves_nothing_behind() {
    let Some(soak) = Soak::start() else { return };
    let minutes = std::env::var("MOTLEY_SOAK_MINUTES").ok();
    let minutes: u64 = minutes.map_or(0, |text| text.parse().expect("a number of minutes"));
    let (began, time) = (Instant::now(), Duration::from_secs(60 * minutes));
    // What the first round allocates stays: buffers, caches of grammars, threads.
    soak.fill_all_slots();
    soak.round(0);
    let before = soak.resident_bytes();
    let mut round = 1;
    while round < ROUNDS_DEFAULT || began.elapsed() < time {
        soak.round(round);
        println!("round {round}: {} MB resident", soak.resident_bytes() / 1_000_000);
        round += 1;
    }
    soak.fill_all_slots();
    let after = soak.resident_bytes();
    println!("{:?}, {before} bytes resident before and {after} after", soak.counts);
    assert_eq!(soak.counted("motley_num_requests_running"), 0.0);
    assert_eq!(soak.counted("motley_num_requests_waiting"), 0.0);
    // Allocators keep some of what they got; a leak of one answer's memory per request is more.
    assert!(after < before + before / 10 + 16_000_000, "{before} bytes grew to {after}");
}
