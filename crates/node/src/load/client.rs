//! One streamed request, timed as its reader sees it.

use std::io::BufReader;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use motley_engine::PositionedRandom;
use serde_json::{Value as Json, json};

/// Tokens that prompts are made of: ordinary ones in every vocabulary in use.
const TOKENS: std::ops::Range<u64> = 1000..20_000;

/// A server.
#[derive(Debug)]
pub(super) struct Client {
    agent: ureq::Agent,
    url: String,
    model: String,
    key: Option<String>,
}

/// How one answer came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    /// From the request to the first token, or to the first text where the server does not count
    /// tokens as they come.
    pub(super) first_token: Duration,
    /// From then to the last token, or text.
    pub(super) decode: Duration,
    /// Tokens that the server counts.
    pub(super) tokens: u64,
}

impl Client {
    /// A client of the server at `url`, for `model` or the first of its models.
    ///
    /// # Errors
    /// When the server lists no model.
    pub(super) fn new(
        url: &str,
        model: Option<&str>,
        key: Option<&str>,
        limit: Duration,
    ) -> anyhow::Result<Self> {
        let config =
            ureq::Agent::config_builder().timeout_global(Some(limit)).http_status_as_error(false);
        let agent: ureq::Agent = config.build().into();
        let base = format!("{}/v1", url.trim_end_matches('/').trim_end_matches("/v1"));
        let model = match model {
            Some(model) => model.to_owned(),
            None => first_model(&agent, &format!("{base}/models"), key)?,
        };
        let url = format!("{base}/completions");
        Ok(Self { agent, url, model, key: key.map(str::to_owned) })
    }

    /// Asks for `answer_tokens` tokens after a prompt that `seed` chooses.
    ///
    /// # Errors
    /// When the server does not answer, refuses, or ends the answer early.
    pub(super) fn complete(
        &self,
        seed: u64,
        prompt_tokens: u32,
        answer_tokens: u32,
    ) -> anyhow::Result<Answer> {
        let random = PositionedRandom::new(seed);
        let count = TOKENS.end - TOKENS.start;
        let prompt: Vec<u64> = (0..u64::from(prompt_tokens))
            .map(|position| TOKENS.start + random.bits(position, 0) % count)
            .collect();
        let body = json!({
            "model": self.model, "prompt": prompt, "max_tokens": answer_tokens,
            "temperature": 0, "ignore_eos": true, "stream": true,
            // Some tokens have no text; a model with made-up weights has many such.
            "stream_options": { "include_usage": true, "continuous_usage_stats": true },
        });
        let mut request = self.agent.post(&self.url).header("content-type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let asked = Instant::now();
        let mut response =
            request.send(body.to_string()).with_context(|| format!("cannot ask {}", self.url))?;
        let status = response.status();
        if !status.is_success() {
            let said = response.body_mut().read_to_string().unwrap_or_default();
            bail!("{} answers {status}: {}", self.url, said.trim());
        }
        let answer = listen(BufReader::new(response.into_body().into_reader()), asked)
            .with_context(|| format!("the answer of {} broke off", self.url))?;
        if answer.tokens != u64::from(answer_tokens) {
            let tokens = answer.tokens;
            bail!("{} gave {tokens} tokens where {answer_tokens} were asked for", self.url);
        }
        Ok(answer)
    }
}

/// The name of a server's first model.
fn first_model(agent: &ureq::Agent, url: &str, key: Option<&str>) -> anyhow::Result<String> {
    let mut request = agent.get(url);
    if let Some(key) = key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let mut response = request.call().with_context(|| format!("cannot ask {url}"))?;
    let said = response.body_mut().read_to_string().with_context(|| format!("cannot ask {url}"))?;
    let status = response.status();
    if !status.is_success() {
        bail!("{url} answers {status}: {}", said.trim());
    }
    let list: Json = serde_json::from_str(&said).with_context(|| format!("{url} gives no list"))?;
    let name = list["data"][0]["id"].as_str();
    name.map(str::to_owned).ok_or_else(|| anyhow!("{url} lists no model"))
}

/// Reads a stream of events to its end.
fn listen(reader: impl std::io::BufRead, asked: Instant) -> anyhow::Result<Answer> {
    let (mut first, mut last, mut tokens) = (None, asked, None);
    let mut counted = 0;
    for line in reader.lines() {
        let line = line?;
        let Some(event) = line.strip_prefix("data: ") else { continue };
        if event == "[DONE]" {
            let first = first.ok_or_else(|| anyhow!("no text came"))?;
            let tokens = tokens.ok_or_else(|| anyhow!("the server counts no tokens"))?;
            return Ok(Answer { first_token: first - asked, decode: last - first, tokens });
        }
        let event: Json = serde_json::from_str(event).context("an event is no JSON")?;
        if let Some(error) = event.get("error") {
            bail!("{error}");
        }
        let choice = &event["choices"][0];
        let count = event["usage"]["completion_tokens"].as_u64();
        let is_token = match count.filter(|_| !choice.is_null()) {
            Some(count) => count > std::mem::replace(&mut counted, count),
            None => choice["text"].as_str().is_some_and(|text| !text.is_empty()),
        };
        if is_token {
            last = Instant::now();
            first.get_or_insert(last);
        }
        tokens = count.or(tokens);
    }
    bail!("the stream ended without its end mark")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(stream: &str) -> Result<u64, String> {
        let answer = listen(stream.as_bytes(), Instant::now());
        answer.map(|answer| answer.tokens).map_err(|error| error.to_string())
    }

    #[test]
    fn tokens_without_text_count_where_the_server_counts_them() {
        let event = |text: &str, tokens: u64| {
            let choice = json!({ "text": text, "finish_reason": null });
            let usage = json!({ "completion_tokens": tokens });
            format!("data: {}\n\n", json!({ "choices": [choice], "usage": usage }))
        };
        let end = format!(
            "data: {}\n\ndata: [DONE]\n\n",
            json!({ "choices": [], "usage": { "completion_tokens": 2 } })
        );
        // No event but the first two brings a token, and neither brings text.
        let stream = [event("", 1), event("", 2), event("", 2), end].concat();
        assert_eq!(told(&stream), Ok(2));
        assert_eq!(
            told(&[event("", 0), "data: [DONE]\n".to_owned()].concat()),
            Err("no text came".to_owned())
        );
    }

    #[test]
    fn a_stream_is_read_to_its_end() {
        let text = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n: comment\n\n";
        let usage = "data: {\"choices\":[],\"usage\":{\"completion_tokens\":7}}\n\n";
        let done = "data: [DONE]\n\n";
        assert_eq!(told(&[text, usage, done].concat()), Ok(7));
        let error = |stream: &[&str]| told(&stream.concat()).unwrap_err();
        assert_eq!(error(&[text, usage]), "the stream ended without its end mark");
        assert_eq!(error(&[text, done]), "the server counts no tokens");
        assert_eq!(error(&[usage, done]), "no text came");
        assert_eq!(error(&[text, "data: {\"error\":{\"code\":1}}\n"]), "{\"code\":1}");
    }
}
