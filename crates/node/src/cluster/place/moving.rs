//! Whether another plan is worth the move to it.

/// How long a plan is taken to be used: what it saves in this time must pay for the move.
const HORIZON_S: f64 = 600.0;

/// A plan that promises less is within what predictions are wrong by.
const GAIN_MIN: f64 = 0.05;

/// Work of one device before it can serve another plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Load {
    /// Weights that it does not hold yet.
    pub(crate) bytes: u64,
    /// Rate at which they come from the head; nothing where they are on its disk.
    pub(crate) link_bytes_per_s: Option<f64>,
    /// Rate at which they are read from its disk.
    pub(crate) disk_bytes_per_s: f64,
}

impl Load {
    fn seconds(&self) -> f64 {
        let bytes = self.bytes as f64;
        let fetched = self.link_bytes_per_s.map_or(0.0, |rate| bytes / rate);
        fetched + bytes / self.disk_bytes_per_s
    }
}

/// From the plan in force to another.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Move {
    /// Time per token now, by what is known now.
    pub(crate) token_now_s: f64,
    /// Time per token then.
    pub(crate) token_then_s: f64,
    /// What each device must get; devices load at the same time.
    pub(crate) loads: Vec<Load>,
}

impl Move {
    /// Time until the slowest device has loaded. The plan in force serves meanwhile, but devices
    /// and links work for both, so all of it counts.
    pub(crate) fn cost_s(&self) -> f64 {
        self.loads.iter().map(Load::seconds).fold(0.0, f64::max)
    }

    /// Time that the horizon's tokens take less.
    pub(crate) fn saved_s(&self) -> f64 {
        HORIZON_S * self.gain()
    }

    /// Part of a token's time that is saved.
    fn gain(&self) -> f64 {
        if self.token_now_s > 0.0 { 1.0 - self.token_then_s / self.token_now_s } else { 0.0 }
    }

    /// Whether the move pays for itself.
    pub(crate) fn is_worth_it(&self) -> bool {
        self.gain() >= GAIN_MIN && self.saved_s() > self.cost_s()
    }

    /// Why it does not.
    pub(crate) fn why_not(&self) -> String {
        let gain = self.gain();
        if gain < GAIN_MIN {
            return format!(
                "another plan would take {:.1} ms per token instead of {:.1}, less than 5 % less",
                self.token_then_s * 1e3,
                self.token_now_s * 1e3
            );
        }
        format!(
            "another plan would save {:.0} s of ten minutes' tokens, the move would take {:.0} s",
            self.saved_s(),
            self.cost_s()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(now_ms: f64, then_ms: f64, loads: &[(u64, Option<f64>)]) -> Move {
        let load = |(bytes, link): &(u64, Option<f64>)| Load {
            bytes: *bytes,
            link_bytes_per_s: *link,
            disk_bytes_per_s: 1e9,
        };
        Move {
            token_now_s: now_ms / 1e3,
            token_then_s: then_ms / 1e3,
            loads: loads.iter().map(load).collect(),
        }
    }

    #[test]
    fn a_move_must_pay_for_itself() {
        assert!(moved(100.0, 50.0, &[(10_000_000_000, None)]).is_worth_it());
        // Half of ten minutes is saved, and the layers are on their way for longer.
        let far = moved(100.0, 50.0, &[(10_000_000_000, Some(30e6))]);
        assert!(!far.is_worth_it());
        assert_eq!(
            far.why_not(),
            "another plan would save 300 s of ten minutes' tokens, the move would take 343 s"
        );
        // Devices load at the same time, so that the slowest counts.
        let two = moved(100.0, 50.0, &[(5_000_000_000, Some(30e6)), (5_000_000_000, Some(30e6))]);
        assert!(two.is_worth_it());
    }

    #[test]
    fn what_predictions_may_be_wrong_by_is_no_reason_to_move() {
        let free = moved(100.0, 96.0, &[]);
        assert!(!free.is_worth_it());
        assert_eq!(
            free.why_not(),
            "another plan would take 96.0 ms per token instead of 100.0, less than 5 % less"
        );
        assert!(moved(100.0, 94.0, &[]).is_worth_it());
        assert!(!moved(100.0, 130.0, &[]).is_worth_it(), "a slower plan never is");
        assert!(!moved(0.0, 0.0, &[]).is_worth_it());
    }
}
