//! What a plan must add up to at least to be as good as a known one, at given prices.

use super::{Demand, Goal, Key, queue_wait};
use crate::problem::{Objective, WaitingModel};

/// Worth of one request per second through either phase, and of one slot; none is negative.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Price {
    pub(crate) prefill: f64,
    pub(crate) decode: f64,
    pub(crate) slots: f64,
}

/// Numbers of slots that are looked at one by one.
const SLOTS_MAX: usize = 1024;

/// Halvings by which limits of queues are found.
const HALVINGS: u32 = 40;

/// Everything that is as good as a known key.
///
/// Below, x is the time between two requests leaving prefill, y the same of decoding: 1/x and 1/y
/// are what is priced. Every rule may let in more than is as good, never less.
#[derive(Debug)]
pub(crate) struct Level<'d> {
    demand: &'d Demand,
    goal: Goal,
    first: f64,
    second: f64,
    /// Waiting by chance of a phase that is slower than arrivals, by its time: prefill, decoding.
    drift: [f64; 2],
    slots_max: usize,
    /// Longest x and, by slots, y where both keep up with arrivals. The last y is for all more slots.
    calm: Option<(f64, Vec<f64>)>,
}

impl<'d> Level<'d> {
    pub(crate) fn new(demand: &'d Demand, goal: Goal, key: &Key, slots_max: usize) -> Self {
        let variation = |scv: f64| f64::midpoint(demand.arrival_scv, scv);
        let drift = [demand.prompt_scv, demand.generated_scv]
            .map(|scv| (2.0 * variation(scv) * demand.requests).sqrt());
        let mut level =
            Self { demand, goal, first: key[0], second: key[1], drift, slots_max, calm: None };
        if goal.objective == Objective::Waiting && goal.waiting == WaitingModel::Concurrency {
            level.calm = level.calm_limits();
        }
        level
    }

    /// The least that anything as good is worth.
    pub(crate) fn least_worth(&self, price: &Price) -> f64 {
        let both = price.prefill + price.decode;
        match (self.goal.objective, self.goal.waiting) {
            (Objective::Throughput, _) => both * -self.first / self.demand.generated,
            (Objective::Goodput, _) => both * -self.first,
            // Ties at no waiting are broken by the slower phase.
            (Objective::Waiting, WaitingModel::Congestion) if self.first <= 0.0 => {
                both / self.second
            }
            (Objective::Waiting, WaitingModel::Congestion) => {
                let jam = self.first + self.demand.interval;
                least(price, [(1.0, 1.0), (2.0, 0.0)], jam).min(both / self.demand.interval)
            }
            (Objective::Waiting, WaitingModel::Concurrency) => {
                let last = self.slots_max.min(SLOTS_MAX);
                let with =
                    |at: usize| self.least_with_slots(price, at, last) + price.slots * at as f64;
                (0..=last).map(with).fold(f64::INFINITY, f64::min)
            }
            (Objective::Latency | Objective::FinishingTime, _) => f64::NEG_INFINITY,
        }
    }

    /// The largest waiting as [`Demand::wait_max`] has it, phase by phase slower than arrivals or not.
    fn least_with_slots(&self, price: &Price, at: usize, last: usize) -> f64 {
        let Demand { requests, interval, .. } = *self.demand;
        let [drift_x, drift_y] = self.drift;
        let slots = if at == last { self.slots_max } else { at };
        let queued = (requests - slots as f64).max(0.0);
        let (a, b) = (price.prefill, price.decode);
        // Both slower than arrivals: the same sum of two times, once for x ≤ y, once for y ≤ x.
        let jam = self.first + (requests - 1.0) * interval;
        let decode_slower = (requests - queued + drift_x, queued + drift_y);
        let mut lowest = least(price, [decode_slower, (requests + drift_x, drift_y)], jam);
        let y = (self.first + queued * interval) / (queued + drift_y);
        if y >= interval {
            lowest = lowest.min(a / interval + b / y);
        }
        let x = jam / (requests + drift_x);
        if x >= interval {
            lowest = lowest.min(a / x + b / interval);
        }
        if let Some((x, by_slots)) = &self.calm
            && interval > 0.0
        {
            lowest = lowest.min(a / x + b / by_slots[at]);
        }
        lowest
    }

    /// Where neither phase is slower than arrivals, each alone must not wait longer than is known.
    fn calm_limits(&self) -> Option<(f64, Vec<f64>)> {
        let demand = self.demand;
        let longest = |most: f64, waits: &dyn Fn(f64) -> f64| {
            let (mut low, mut high) = (0.0, most);
            if high <= 0.0 || waits(high) <= self.first {
                return high;
            }
            for _ in 0..HALVINGS {
                let middle = f64::midpoint(low, high);
                if waits(middle) <= self.first { low = middle } else { high = middle }
            }
            high
        };
        let stage = |time: f64, slots: usize, drift: f64| {
            if drift == 0.0 {
                return 0.0;
            }
            let variation = drift * drift / (2.0 * demand.requests);
            let rate = |busy: usize| busy as f64 / (time * slots as f64);
            let wait = queue_wait(1.0 / demand.interval, slots, rate, variation);
            wait.map_or(drift * time, |wait| wait.min(drift * time))
        };
        let x = longest(demand.interval.min(self.first), &|x| x + stage(x, 1, self.drift[0]));
        let most = self.slots_max.min(SLOTS_MAX);
        let mut by_slots: Vec<f64> = Vec::with_capacity(most + 1);
        for slots in 0..most {
            // More slots never mean less time, and beyond some the arrivals' interval is the limit.
            let known = by_slots.last().copied().filter(|y| *y >= demand.interval && slots > 1);
            let y = known.unwrap_or_else(|| {
                longest(demand.interval, &|y| stage(y, slots.max(1), self.drift[1]))
            });
            by_slots.push(y);
        }
        by_slots.push(demand.interval);
        Some((x, by_slots))
    }
}

/// Least a/x + b/y where both sums of x and y stay within `most`. The first sum is the larger one for
/// y ≥ x, the second for y ≤ x.
fn least(price: &Price, forms: [(f64, f64); 2], most: f64) -> f64 {
    let (a, b) = (price.prefill, price.decode);
    let alone = |(x, y): (f64, f64)| ((a * x).sqrt() + (b * y).sqrt()).powi(2) / most;
    // y/x where one sum alone would have its least.
    let ratio = |(x, y): (f64, f64)| ((b * x) / (a * y)).sqrt();
    let [above, below] = forms;
    if ratio(above) >= 1.0 {
        alone(above)
    } else if ratio(below) <= 1.0 {
        alone(below)
    } else if a + b > 0.0 {
        ((a + b) * (above.0 + above.1) / most).max(alone(above)).max(alone(below))
    } else {
        0.0
    }
}
