//! How long micro-batches take by their rows, and how many rows of a prompt others can bear.

use std::time::Duration;

/// By how much a prompt may lengthen the micro-batch that also brings others' next tokens. Twice
/// the time is what those others are to notice at most; a quarter of it is left for noise.
const LONGER_BY: f64 = 0.75;

/// The part of each new measurement in a mean, once there are as many.
const NEWEST: f64 = 0.125;

/// A line needs two points that lie so far apart, so that it is not drawn through noise.
const APART: f64 = 1.5;

/// Numbers of rows that are told apart: 1, 2 and 3, 4 to 7 and so on.
const CLASSES: usize = 16;

/// Times of micro-batches by their rows.
///
/// A micro-batch takes `a + b * rows`: `a` for what it does once, as reading weights, and `b` for
/// each row. `a` is all but nothing for a small model on a processor, and nearly everything on a
/// GPU or where weights come from a disk.
#[derive(Debug, Default)]
pub(super) struct Pace {
    classes: [Mean; CLASSES],
}

#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    measured: u32,
    rows: f64,
    seconds: f64,
}

impl Pace {
    /// Learns from a micro-batch.
    pub(super) fn learn(&mut self, rows: u32, took: Duration) {
        self.classes[class(rows)].learn(rows, took);
    }

    /// Rows of a prompt that may go with so many next tokens; nothing where too little is known.
    pub(super) fn rows_beside(&self, tokens: u32) -> Option<u32> {
        let (less, more) = self.points_near(tokens)?;
        let per_row = (more.seconds - less.seconds) / (more.rows - less.rows);
        // Rows that cost nothing, and more.
        if per_row <= 0.0 {
            return Some(u32::MAX);
        }
        // `a / b`, in rows.
        let once = (less.seconds / per_row - less.rows).max(0.0);
        Some((LONGER_BY * (once + f64::from(tokens))) as u32)
    }

    /// Two means that give the line for about so many rows.
    fn points_near(&self, rows: u32) -> Option<(&Mean, &Mean)> {
        let known = || self.classes.iter().filter(|mean| mean.measured > 0);
        let below = self.classes[..=class(rows)].iter().rfind(|mean| mean.measured > 0);
        let less = below.or_else(|| known().next())?;
        match known().find(|mean| mean.rows >= APART * less.rows) {
            Some(more) => Some((less, more)),
            None => Some((known().rfind(|mean| APART * mean.rows <= less.rows)?, less)),
        }
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

fn class(rows: u32) -> usize {
    (rows.max(1).ilog2() as usize).min(CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pace learned from micro-batches of so many rows, whose times are in milliseconds.
    fn pace(once: f64, per_row: f64, seen: &[u32]) -> Pace {
        let mut pace = Pace::default();
        for rows in seen {
            let ms = once + per_row * f64::from(*rows);
            pace.learn(*rows, Duration::from_secs_f64(ms / 1000.0));
        }
        pace
    }

    #[test]
    fn nothing_is_said_before_two_kinds_were_seen() {
        assert_eq!(Pace::default().rows_beside(10), None);
        assert_eq!(pace(2.0, 5.0, &[10, 11, 10]).rows_beside(10), None);
        assert!(pace(2.0, 5.0, &[10, 1]).rows_beside(10).is_some());
        assert!(pace(2.0, 5.0, &[10, 512]).rows_beside(10).is_some());
        assert!(pace(2.0, 5.0, &[64, 512]).rows_beside(10).is_some());
    }

    #[test]
    fn rows_follow_what_they_cost() {
        let seen = [10, 64, 10, 10, 64, 512, 10];
        // A small model on a processor: each row costs its time.
        assert_eq!(pace(2.0, 5.0, &seen).rows_beside(10), Some(7));
        // Weights that come from a disk, and a GPU: rows are nearly free.
        assert_eq!(pace(700.0, 5.0, &seen).rows_beside(10), Some(112));
        assert_eq!(pace(12.0, 0.05, &seen).rows_beside(10), Some(187));
        assert_eq!(pace(20.0, 0.0, &seen).rows_beside(10), Some(u32::MAX));
    }

    #[test]
    fn what_is_seen_often_does_not_push_out_what_is_seen_seldom() {
        let mut seen = vec![64];
        seen.extend([10; 1000]);
        assert_eq!(pace(2.0, 5.0, &seen).rows_beside(10), Some(7));
    }

    #[test]
    fn what_is_newer_counts_more() {
        let mut pace = pace(2.0, 5.0, &[10, 64]);
        for _ in 0..40 {
            pace.learn(10, Duration::from_millis(300));
        }
        assert!(pace.rows_beside(10) > Some(64), "tokens take longer now");
    }
}
