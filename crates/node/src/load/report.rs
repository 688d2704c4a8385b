//! What a load measurement says.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::Round;
use super::client::Answer;

/// Figures of all servers for each number of users.
#[derive(Debug)]
pub(super) struct Report {
    urls: Vec<String>,
    prompt_tokens: u32,
    answer_tokens: u32,
    measured: Vec<(u32, Vec<Figures>)>,
}

/// Figures of one server.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Figures {
    tokens_per_s: f64,
    ttft_p50_ms: f64,
    ttft_p95_ms: f64,
    tpot_p50_ms: f64,
}

impl Report {
    pub(super) fn new(urls: &[String], prompt_tokens: u32, answer_tokens: u32) -> Self {
        Self { urls: urls.to_vec(), prompt_tokens, answer_tokens, measured: Vec::new() }
    }

    pub(super) fn add(&mut self, users: u32, servers: &[Vec<Round>]) {
        self.measured.push((users, servers.iter().map(|rounds| Figures::of(rounds)).collect()));
    }

    pub(super) fn json(&self) -> Json {
        let measured = self.measured.iter().map(|(users, servers)| {
            let figures = servers.iter().zip(&self.urls).map(|(figures, url)| {
                let mut object = figures.json();
                object["url"] = url.as_str().into();
                object
            });
            json!({
                "users": users,
                "servers": figures.collect::<Vec<_>>(),
                "ratio": servers[1..].iter().map(|other| servers[0].ratio(other).json())
                    .collect::<Vec<_>>(),
            })
        });
        json!({
            "prompt_tokens": self.prompt_tokens,
            "answer_tokens": self.answer_tokens,
            "load": measured.collect::<Vec<_>>(),
        })
    }

    pub(super) fn table(&self) -> String {
        let mut text = format!(
            "prompts of {} tokens, answers of {}\n\n{:>5}  {:<32} {:>9} {:>10} {:>10} {:>9}\n",
            self.prompt_tokens,
            self.answer_tokens,
            "users",
            "server",
            "tokens/s",
            "TTFT p50",
            "TTFT p95",
            "TPOT p50"
        );
        for (users, servers) in &self.measured {
            for (figures, url) in servers.iter().zip(&self.urls) {
                let Figures { tokens_per_s, ttft_p50_ms, ttft_p95_ms, tpot_p50_ms } = figures;
                // Writing to a string succeeds.
                let _ = writeln!(
                    text,
                    "{users:>5}  {url:<32} {tokens_per_s:>9.1} {ttft_p50_ms:>7.0} ms \
                     {ttft_p95_ms:>7.0} ms {tpot_p50_ms:>6.2} ms"
                );
            }
            for (other, url) in servers.iter().zip(&self.urls).skip(1) {
                let Figures { tokens_per_s, ttft_p50_ms, ttft_p95_ms, tpot_p50_ms } =
                    servers[0].ratio(other);
                let title = format!("  ratio to {url}");
                let _ = writeln!(
                    text,
                    "{:>5}  {title:<32} {tokens_per_s:>9.2} {ttft_p50_ms:>10.2} \
                     {ttft_p95_ms:>10.2} {tpot_p50_ms:>9.2}",
                    ""
                );
            }
        }
        text
    }
}

impl Figures {
    fn of(rounds: &[Round]) -> Self {
        let answers = || rounds.iter().flat_map(|round| &round.answers);
        let speed = |round: &Round| {
            let tokens: u64 = round.answers.iter().map(|answer| answer.tokens).sum();
            tokens as f64 / round.time.as_secs_f64()
        };
        let ttft_ms = sorted(answers().map(|answer| milliseconds(answer.first_token)));
        let per_token = |answer: &Answer| {
            milliseconds(answer.decode) / answer.tokens.saturating_sub(1).max(1) as f64
        };
        Self {
            tokens_per_s: quantile(&sorted(rounds.iter().map(speed)), 0.5),
            ttft_p50_ms: quantile(&ttft_ms, 0.5),
            ttft_p95_ms: quantile(&ttft_ms, 0.95),
            tpot_p50_ms: quantile(&sorted(answers().map(per_token)), 0.5),
        }
    }

    /// How many times faster this server is, in each figure.
    fn ratio(&self, other: &Self) -> Self {
        Self {
            tokens_per_s: self.tokens_per_s / other.tokens_per_s,
            ttft_p50_ms: other.ttft_p50_ms / self.ttft_p50_ms,
            ttft_p95_ms: other.ttft_p95_ms / self.ttft_p95_ms,
            tpot_p50_ms: other.tpot_p50_ms / self.tpot_p50_ms,
        }
    }

    fn json(&self) -> Json {
        json!({
            "tokens_per_s": self.tokens_per_s,
            "ttft_p50_ms": self.ttft_p50_ms,
            "ttft_p95_ms": self.ttft_p95_ms,
            "tpot_p50_ms": self.tpot_p50_ms,
        })
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The smallest value that so many of the `sorted` ones do not exceed.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_answers() {
        let answer = |first: u64, decode: u64| Answer {
            first_token: Duration::from_millis(first),
            decode: Duration::from_millis(decode),
            tokens: 11,
        };
        let round = |answers: Vec<Answer>| Round { time: Duration::from_secs(2), answers };
        let slow = [round(vec![answer(100, 200), answer(300, 400)])];
        let figures = Figures::of(&slow);
        let Figures { tokens_per_s, ttft_p50_ms, ttft_p95_ms, tpot_p50_ms } = figures;
        assert_eq!(
            [tokens_per_s, ttft_p50_ms, ttft_p95_ms, tpot_p50_ms],
            [11.0, 100.0, 300.0, 20.0]
        );
        let fast = Figures::of(&[round(vec![answer(50, 100), answer(150, 200), answer(50, 100)])]);
        let ratio = fast.ratio(&figures);
        assert_eq!((ratio.tokens_per_s, ratio.ttft_p95_ms), (1.5, 2.0));
        assert_eq!((ratio.ttft_p50_ms, ratio.tpot_p50_ms), (2.0, 2.0));
    }
}
