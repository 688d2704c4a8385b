//! Into how many parts a step is cut, so that something can be done between them.

use std::time::Duration;

/// What the parts of a step are to take at most: memory that a program takes meanwhile must not
/// be more than what is left to others anyway.
const PART: Duration = Duration::from_millis(250);

/// Numbers of rows are told apart by their powers of two.
const CLASSES: usize = usize::BITS as usize;

/// How long steps take, by their number of rows.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Time per layer of the last step with so many rows; zero where there was none.
    per_layer: [Duration; CLASSES],
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self { per_layer: [Duration::ZERO; CLASSES] }
    }

    /// Parts for a step of `rows` rows in `layers` layers. Powers of two, so that steps that take
    /// about as long are cut alike and graphs serve again.
    pub(crate) fn parts(&self, rows: usize, layers: usize) -> usize {
        let layers_max = layers.max(1);
        let expected = self.expected(rows) * u32::try_from(layers).unwrap_or(u32::MAX);
        let parts = expected.as_nanos().div_ceil(PART.as_nanos()).max(1);
        usize::try_from(parts).unwrap_or(layers_max).next_power_of_two().min(layers_max)
    }

    /// Learns from a step.
    pub(crate) fn learn(&mut self, rows: usize, layers: usize, took: Duration) {
        if let Ok(layers) = u32::try_from(layers)
            && layers > 0
        {
            self.per_layer[class(rows)] = took / layers;
        }
    }

    /// Time per layer: as last time, or where so many rows are new, no more than fewer rows lead
    /// one to expect.
    fn expected(&self, rows: usize) -> Duration {
        let known = (0..=class(rows)).rev().find(|class| !self.per_layer[*class].is_zero());
        known.map_or(Duration::ZERO, |known| {
            self.per_layer[known].saturating_mul(1 << (class(rows) - known).min(31))
        })
    }
}

fn class(rows: usize) -> usize {
    rows.max(1).ilog2() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn long_steps_are_cut_by_what_they_took_before() {
        let mut pace = Pace::new();
        assert_eq!(pace.parts(1, 32), 1, "nothing is known");
        pace.learn(1, 32, ms(250));
        assert_eq!(pace.parts(1, 32), 1);
        pace.learn(1, 32, ms(900));
        assert_eq!(pace.parts(1, 32), 4);
        assert_eq!(pace.parts(1, 3), 1, "a few layers take less");
        pace.learn(1, 32, ms(60_000));
        assert_eq!(pace.parts(1, 24), 24, "no part has less than a layer");
        assert_eq!(pace.parts(1, 0), 1);
    }

    #[test]
    fn more_rows_are_expected_to_take_longer_until_they_were_seen() {
        let mut pace = Pace::new();
        pace.learn(1, 10, ms(100));
        assert_eq!(pace.parts(64, 10), 10);
        pace.learn(64, 10, ms(300));
        assert_eq!(pace.parts(100, 10), 2);
        assert_eq!(pace.parts(1, 10), 1);
    }
}
