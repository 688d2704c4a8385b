//! How long micro-batches take by their rows, and how many rows of a prompt others can bear.

use std::time::Duration;

/// By how much a prompt may lengthen the micro-batch that also brings others' next tokens. Twice
/// the time is what those others are to notice at most; a quarter of it is left for noise.
const LONGER_BY: f64 = 0.75;

/// The part of each new measurement in the mean, once there are as many.
const NEWEST: f64 = 0.125;

/// Times of micro-batches, those with rows of prompts apart from those without.
///
/// A micro-batch takes `a + b * rows`: `a` for what it does once, as reading weights, and `b` for
/// each row. Two means give the line: `a` is all but nothing for a small model on a processor, and
/// nearly everything on a GPU or where weights come from a disk.
#[derive(Debug, Default)]
pub(super) struct Pace {
    tokens: Mean,
    prompts: Mean,
}

#[derive(Debug, Default)]
struct Mean {
    measured: u32,
    rows: f64,
    seconds: f64,
}

impl Pace {
    /// Learns from a micro-batch of `rows` rows, of which so many are of prompts.
    pub(super) fn learn(&mut self, rows: u32, prompt_rows: u32, took: Duration) {
        let mean = if prompt_rows == 0 { &mut self.tokens } else { &mut self.prompts };
        mean.learn(rows, took);
    }

    /// Rows of a prompt that may go with so many next tokens; nothing where too little is known.
    pub(super) fn rows_beside(&self, tokens: u32) -> Option<u32> {
        if self.tokens.measured == 0 || self.prompts.measured == 0 {
            return None;
        }
        let rows = self.prompts.rows - self.tokens.rows;
        let seconds = self.prompts.seconds - self.tokens.seconds;
        if rows < 1.0 {
            return None;
        }
        let per_row = seconds / rows;
        // Rows that cost nothing, and more.
        if per_row <= 0.0 {
            return Some(u32::MAX);
        }
        // `a / b`, in rows.
        let once = (self.tokens.seconds / per_row - self.tokens.rows).max(0.0);
        Some((LONGER_BY * (once + f64::from(tokens))) as u32)
    }
}

impl Mean {
    fn learn(&mut self, rows: u32, took: Duration) {
        self.measured = self.measured.saturating_add(1);
        let part = NEWEST.max(1.0 / f64::from(self.measured));
        self.rows += part * (f64::from(rows) - self.rows);
        self.seconds += part * (took.as_secs_f64() - self.seconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pace learned from ten next tokens and from prompts of 64 rows, in milliseconds.
    fn pace(once: f64, per_row: f64) -> Pace {
        let mut pace = Pace::default();
        for _ in 0..20 {
            for (rows, prompt_rows) in [(10, 0), (64, 64)] {
                let ms = once + per_row * f64::from(rows);
                pace.learn(rows, prompt_rows, Duration::from_secs_f64(ms / 1000.0));
            }
        }
        pace
    }

    #[test]
    fn nothing_is_said_before_both_kinds_were_seen() {
        let mut pace = Pace::default();
        assert_eq!(pace.rows_beside(10), None);
        pace.learn(512, 512, Duration::from_secs(2));
        assert_eq!(pace.rows_beside(10), None);
        pace.learn(10, 0, Duration::from_millis(60));
        assert!(pace.rows_beside(10).is_some());
    }

    #[test]
    fn rows_follow_what_they_cost() {
        // A small model on a processor: each row costs its time.
        assert_eq!(pace(2.0, 5.0).rows_beside(10), Some(7));
        // Weights that come from a disk, and a GPU: rows are nearly free.
        assert_eq!(pace(700.0, 5.0).rows_beside(10), Some(112));
        assert_eq!(pace(12.0, 0.05).rows_beside(10), Some(187));
        assert_eq!(pace(20.0, 0.0).rows_beside(10), Some(u32::MAX));
    }

    #[test]
    fn what_is_newer_counts_more() {
        let mut pace = pace(2.0, 5.0);
        for _ in 0..40 {
            pace.learn(10, 0, Duration::from_millis(1000));
        }
        assert!(pace.rows_beside(10).is_none_or(|rows| rows > 64), "tokens take longer now");
    }
}
