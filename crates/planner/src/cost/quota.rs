//! What a step takes on a device whose threads may run for a part of each period only.

use motley_cluster::{CpuQuota, Seconds};

/// Time of a step after a rest, by its `throttled` time, which it takes on threads that never rest.
///
/// Periods follow each other by the system's clock, whatever the threads do, and after a rest of a
/// period none of the current one's time Q is used. A step that needs C of running then begins
/// anywhere in a period P. It runs for the first Q at full speed: what the period does not hold of it,
/// the next one begins with. From then on it is as fast as one that never rests, Q of each P; so it
/// takes C up to Q, and Q + (C - Q)·P/Q above. With t = C·P/Q that is max(t·Q/P, t - (P - Q)).
///
/// This is exact where the period in which the step begins has at most Q left, or where C is at most
/// Q. Otherwise the time depends on how the step's end lies in a period, by no more than P - Q either
/// way, and this is its mean. Without rest there is no gain, which whoever adds up steps must count:
/// over any time, no more of it is run than Q of each P.
#[must_use]
pub fn rested_time(quota: &CpuQuota, throttled: Seconds) -> Seconds {
    let rested = rested(quota.share(), gap(quota).value(), throttled.value());
    Seconds::new(rested).expect("a part of a time is one")
}

/// How long threads that have used up a period's time wait for the next one.
pub(crate) fn gap(quota: &CpuQuota) -> Seconds {
    Seconds::new((quota.period_s.value() - quota.run_s.value()).max(0.0)).expect("not negative")
}

/// [`rested_time`] in any unit: the part of a period that is run, and the rest of it.
pub(crate) fn rested(share: f64, gap: f64, throttled: f64) -> f64 {
    (throttled * share).max(throttled - gap)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Periods as the system counts them: no more than `run` in each.
    struct Periods {
        run: f64,
        period: f64,
        now: f64,
        /// Of the current period.
        used: f64,
    }

    impl Periods {
        fn new(run: f64, period: f64) -> Self {
            Self { run, period, now: 0.0, used: 0.0 }
        }

        fn next_at(&self) -> f64 {
            ((self.now / self.period + 1e-9).floor() + 1.0) * self.period
        }

        fn rest(&mut self, time: f64) {
            if self.now + time >= self.next_at() - 1e-9 {
                self.used = 0.0;
            }
            self.now += time;
        }

        /// Runs for `need`, and says how long that took.
        fn step(&mut self, mut need: f64) -> f64 {
            let began = self.now;
            while need > 1e-9 {
                let next = self.next_at();
                let runs = need.min(self.run - self.used).min(next - self.now).max(0.0);
                self.now += runs;
                self.used += runs;
                need -= runs;
                if need > 1e-9 || self.now >= next - 1e-9 {
                    (self.now, self.used) = (next.max(self.now), 0.0);
                }
            }
            self.now - began
        }
    }

    /// Mean time of steps of `need` with rests of about `rest` between them.
    fn simulated((run, period): (f64, f64), need: f64, rest: f64) -> f64 {
        let mut periods = Periods::new(run, period);
        let steps = 4000;
        let mut total = 0.0;
        for index in 0..steps {
            // The golden ratio's multiples lie evenly in a period.
            let part = (f64::from(index) * 0.618_033_988_749_895).fract();
            periods.rest(rest + part * period);
            // So do ends of steps of a little more and a little less.
            let other = (f64::from(index) * 0.754_877_666_246_693).fract() - 0.5;
            total += periods.step(need + other * run.min(2.0 * need));
        }
        total / f64::from(steps)
    }

    fn seconds(value: f64) -> Seconds {
        Seconds::new(value).unwrap()
    }

    #[test]
    fn a_step_after_a_rest_takes_what_a_simulation_of_periods_takes() {
        for (run, period) in [(5.0, 10.0), (7.0, 10.0), (2.5, 10.0), (50.0, 100.0)] {
            let quota = CpuQuota { run_s: seconds(run), period_s: seconds(period) };
            for need in [2.0 * run, 3.3 * run, 10.0 * run] {
                let throttled = need * period / run;
                let found = rested_time(&quota, seconds(throttled)).value();
                let simulated = simulated((run, period), need, period);
                let apart = (found / simulated - 1.0).abs();
                assert!(apart < 0.02, "{run} of {period}, {need}: {found} or {simulated}");
                assert!(found < throttled);
            }
            // What the first period's time suffices for is not held up.
            let short = rested_time(&quota, seconds(0.4 * period)).value();
            assert!((short - 0.4 * run).abs() < 1e-9);
            assert!((simulated((run, period), 0.4 * run, period) / short - 1.0).abs() < 0.01);
        }
    }

    #[test]
    fn without_rest_a_step_gains_nothing() {
        let mut periods = Periods::new(5.0, 10.0);
        let time: f64 = (0..1000).map(|_| periods.step(7.0)).sum();
        assert!((time / 14_000.0 - 1.0).abs() < 0.001, "{time}");
        // And with little rest, step and rest together take what the steps alone would.
        let mut periods = Periods::new(5.0, 10.0);
        let before = periods.now;
        for _ in 0..1000 {
            periods.step(7.0);
            periods.rest(2.0);
        }
        let each = (periods.now - before) / 1000.0;
        assert!((13.9..14.5).contains(&each), "{each}");
    }
}
