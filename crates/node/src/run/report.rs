//! What `--verbose` tells after an answer.

use std::fmt::Write as _;
use std::time::Duration;

use super::Running;
use crate::memory;
use crate::session::Given;
use crate::terminal::{bytes, duration, note};

impl Running {
    /// Prints speeds and memory to stderr.
    pub(super) fn report(&self, given: &Given) {
        let speed = &given.speed;
        let facts = self.ready.facts;
        let mut text = String::from("\n");
        let mut line = |label: &str, value: String| {
            let _ = writeln!(text, "{:<26}{value}", format!("{label}:"));
        };
        line("total duration", duration(self.times.load + speed.total_time));
        line("load duration", duration(self.times.load));
        if let Some(first) = speed.first_token {
            line("time to first token", duration(first - speed.begun));
            line("first token after start", duration(first - self.times.started));
        }
        let computed = speed.prompt_tokens - speed.cached_tokens;
        line("prompt eval count", format!("{computed} token(s), {} cached", speed.cached_tokens));
        line("prompt eval duration", duration(speed.prompt_time));
        line("prompt eval rate", rate(computed, speed.prompt_time));
        line("eval count", format!("{} token(s)", speed.tokens));
        line("eval duration", duration(speed.answer_time));
        // The first token is the prompt's product; the time is that of those after it.
        line("eval rate", rate(speed.tokens.saturating_sub(1), speed.answer_time));
        if let Some(peak) = memory::peak_resident_bytes() {
            line("peak memory", bytes(peak));
        }
        let held = facts.memory;
        line("weights mapped", bytes(held.weights_mapped_bytes));
        line("weights allocated", bytes(held.weights_allocated_bytes));
        line(
            "KV cache",
            format!("{} for {} tokens", bytes(held.cache_bytes), facts.context_tokens),
        );
        line("compute", bytes(held.compute_bytes));
        if held.stream_bytes > 0 {
            line("stream buffer", bytes(held.stream_bytes));
        }
        if facts.gpu_bytes > 0 {
            line("GPU memory", bytes(facts.gpu_bytes));
        }
        line("seed", self.settings.answer.sampling.seed.to_string());
        note(&text);
    }
}

fn rate(tokens: usize, time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if tokens == 0 || seconds == 0.0 {
        return "-".to_owned();
    }
    format!("{:.1} tokens/s", tokens as f64 / seconds)
}
