//! How long requests wait: E2LLM's congestion formula and queues that know slots (PLANNER 4.5, 6.1).

mod level;

use motley_cluster::{Seconds, TokensPerSecond, Workload};

use crate::problem::{Objective, WaitingModel};

pub(super) use level::{Level, Price};

/// E2LLM's congestion formula.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Congestion {
    /// Time between two requests leaving the slower phase.
    pub phase: Seconds,
    /// What that exceeds the arrival interval by.
    pub excess: Seconds,
    /// Waiting added per request (w): prefill plus excess, or nothing while there is no excess.
    pub wait: Seconds,
}

/// Congestion of a request of `tokens` (prompt, generated) under `rates` (prefill, decode, summed
/// over replicas) and one arrival every `interval` (PLANNER 4.5).
///
/// A rate of zero makes every time infinite, which [`Seconds`] cannot state: `None`.
#[must_use]
pub fn congestion(
    tokens: (f64, f64),
    rates: (TokensPerSecond, TokensPerSecond),
    interval: Seconds,
) -> Option<Congestion> {
    let prefill = tokens.0 / rates.0.value();
    let phase = prefill.max(tokens.1 / rates.1.value());
    let excess = (phase - interval.value()).max(0.0);
    let wait = if excess > 0.0 { prefill + excess } else { 0.0 };
    Some(Congestion {
        phase: Seconds::new(phase).ok()?,
        excess: Seconds::new(excess).ok()?,
        wait: Seconds::new(wait).ok()?,
    })
}

/// Mean wait of a stationary queue whose completion rate depends on how many slots are busy:
/// `completions[n-1]` requests per second with n busy, `arrivals` requests per second (PLANNER 6.1).
/// `variation` is (Ca² + Cs²)/2, 1 for Poisson arrivals and exponential service.
///
/// `None` where the queue grows without end.
#[must_use]
pub fn state_dependent_wait(arrivals: f64, completions: &[f64], variation: f64) -> Option<Seconds> {
    let slots = completions.len();
    let rate = |busy: usize| completions[busy - 1];
    queue_wait(arrivals, slots, rate, variation).and_then(|wait| Seconds::new(wait).ok())
}

fn queue_wait(
    arrivals: f64,
    slots: usize,
    rate: impl Fn(usize) -> f64,
    variation: f64,
) -> Option<f64> {
    if slots == 0 || rate(slots) <= arrivals {
        return None;
    }
    let load = arrivals / rate(slots);
    // p_n / p_0 by recurrence, kept in range by scaling all of them alike.
    let (mut term, mut below) = (1.0_f64, 0.0_f64);
    for busy in 1..=slots {
        below += term;
        term *= arrivals / rate(busy);
        if term > 1e200 {
            below /= term;
            term = 1.0;
        }
    }
    let full = term / (below + term / (1.0 - load));
    Some(full * load / (1.0 - load).powi(2) / arrivals * variation)
}

/// What a plan offers as a whole; every figure adds up over replicas.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Sums {
    /// Prompt tokens per second (PS).
    pub(super) prefill: f64,
    /// Generated tokens per second with all slots busy (DS).
    pub(super) decode: f64,
    /// Decode slots (K).
    pub(super) slots: f64,
}

impl Sums {
    /// Of no replica.
    pub(super) const NONE: Self = Self { prefill: 0.0, decode: 0.0, slots: 0.0 };

    /// A replica of one slot that serves one request after another, each for its time to first token
    /// and then its tokens, so that both phases share its time (PLANNER 4.7).
    ///
    /// A single user's only request shares it with nobody.
    pub(super) fn one_at_a_time(demand: &Demand, goal: Goal, (ttft, tpot): (f64, f64)) -> Self {
        if goal.objective == Objective::Latency && demand.requests <= 1.0 {
            return Self { prefill: demand.prompt / ttft, decode: 1.0 / tpot, slots: 1.0 };
        }
        let requests = 1.0 / (ttft + demand.generated * tpot);
        let (prefill, decode) = (requests * demand.prompt, requests * demand.generated);
        Self { prefill, decode, slots: 1.0 }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            prefill: self.prefill + other.prefill,
            decode: self.decode + other.decode,
            slots: self.slots + other.slots,
        }
    }

    /// Both rates by a factor, and the same slots.
    pub(super) fn times(self, factor: f64) -> Self {
        Self { prefill: self.prefill * factor, decode: self.decode * factor, ..self }
    }

    /// Whether nothing of `other` is larger.
    pub(super) fn covers(&self, other: &Self) -> bool {
        self.prefill >= other.prefill && self.decode >= other.decode && self.slots >= other.slots
    }
}

/// What is asked, as plain numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Demand {
    pub(super) prompt: f64,
    pub(super) generated: f64,
    pub(super) interval: f64,
    requests: f64,
    arrival_scv: f64,
    prompt_scv: f64,
    generated_scv: f64,
    pub(super) ttft_limit: Option<f64>,
    pub(super) tpot_limit: Option<f64>,
    pub(super) floor: Option<f64>,
}

/// Best first, compared from the front; every entry is better when smaller.
pub(super) type Key = [f64; 5];

/// Order of keys.
pub(super) fn compare(a: &Key, b: &Key) -> std::cmp::Ordering {
    a.iter()
        .zip(b)
        .map(|(x, y)| x.total_cmp(y))
        .find(|o| o.is_ne())
        .unwrap_or(std::cmp::Ordering::Equal)
}

/// A key nothing is worse than.
pub(super) const WORST: Key = [f64::INFINITY; 5];

impl Demand {
    pub(super) fn of(workload: &Workload) -> Self {
        Self {
            prompt: workload.prompt_tokens.mean,
            generated: workload.generated_tokens.mean,
            interval: workload.arrivals.mean_interval().value(),
            requests: f64::from(workload.requests),
            arrival_scv: workload.arrivals.variation().powi(2),
            prompt_scv: workload.prompt_tokens.variation.powi(2),
            generated_scv: workload.generated_tokens.variation.powi(2),
            ttft_limit: workload.ttft_limit_s.map(Seconds::value),
            tpot_limit: workload.tpot_limit_s.map(Seconds::value),
            floor: workload.speed_floor_tok_per_s.map(|floor| floor.value()).filter(|f| *f > 0.0),
        }
    }

    /// Longest time per token a request may see: floor and, for goodput, the limit.
    pub(super) fn tpot_max(&self, objective: Objective) -> f64 {
        let floor = self.floor.map_or(f64::INFINITY, |floor| 1.0 / floor);
        let limit = if objective == Objective::Goodput { self.tpot_limit } else { None };
        floor.min(limit.unwrap_or(f64::INFINITY))
    }

    /// Time between two requests leaving the slower phase.
    pub(super) fn phase(&self, sums: &Sums) -> f64 {
        (self.prompt / sums.prefill).max(self.generated / sums.decode)
    }

    /// Waiting per request by the model.
    pub(super) fn wait(&self, sums: &Sums, model: WaitingModel) -> f64 {
        match model {
            WaitingModel::Congestion => {
                let excess = self.phase(sums) - self.interval;
                if excess > 0.0 { self.prompt / sums.prefill + excess } else { 0.0 }
            }
            WaitingModel::Concurrency => self.queueing(sums, self.interval),
        }
    }

    /// Largest waiting in the run: what overload piles up as a fluid, chance, and the own prefill.
    ///
    /// The prefill queue grows with every request; the decode queue is fed at the rate prefill lets
    /// through and its first K requests find a slot each. More of any sum never makes this larger.
    pub(super) fn wait_max(&self, sums: &Sums, model: WaitingModel) -> f64 {
        let prefill = self.prompt / sums.prefill;
        match model {
            WaitingModel::Congestion => {
                let excess = self.phase(sums) - self.interval;
                if excess > 0.0 { (self.requests - 1.0) * excess + prefill } else { 0.0 }
            }
            WaitingModel::Concurrency => {
                let decode = self.generated / sums.decode;
                let first = (self.requests - 1.0) * (prefill - self.interval).max(0.0);
                let queued = (self.requests - sums.slots).max(0.0);
                let second = queued * (decode - self.interval.max(prefill)).max(0.0);
                first + second + self.queueing(sums, self.interval) + prefill
            }
        }
    }

    /// Mean wait by chance, before prefill and before a slot. A queue near or beyond saturation has
    /// no more than what a walk of the run's length drifts to.
    fn queueing(&self, sums: &Sums, interval: f64) -> f64 {
        let arrivals = 1.0 / interval;
        let stage = |service: f64, slots: f64, scv: f64| {
            let variation = f64::midpoint(self.arrival_scv, scv);
            if variation == 0.0 {
                return 0.0;
            }
            let drift = service * (2.0 * variation * self.requests).sqrt();
            if interval <= 0.0 {
                return drift;
            }
            // A pool of slots that each run at the speed of the full pool.
            let slot_rate = 1.0 / (service * slots);
            let rate = |busy: usize| busy as f64 * slot_rate;
            let wait = queue_wait(arrivals, slots as usize, rate, variation);
            wait.map_or(drift, |wait| wait.min(drift))
        };
        stage(self.prompt / sums.prefill, 1.0, self.prompt_scv)
            + stage(self.generated / sums.decode, sums.slots.max(1.0), self.generated_scv)
    }

    /// Requests per second that both phases can serve.
    pub(super) fn capacity(&self, sums: &Sums) -> f64 {
        (sums.prefill / self.prompt).min(sums.decode / self.generated)
    }

    /// Generated tokens per second that the arrivals allow.
    pub(super) fn throughput(&self, sums: &Sums) -> f64 {
        let arriving =
            if self.interval > 0.0 { self.generated / self.interval } else { f64::INFINITY };
        (self.capacity(sums) * self.generated).min(arriving)
    }

    /// Most requests per second whose mean wait and prefill stay within the TTFT limit.
    pub(super) fn goodput(&self, sums: &Sums) -> f64 {
        let capacity = self.capacity(sums);
        let Some(limit) = self.ttft_limit else { return capacity };
        let prefill = self.prompt / sums.prefill;
        if prefill > limit {
            return 0.0;
        }
        let meets = |rate: f64| self.queueing(sums, 1.0 / rate) + prefill <= limit;
        let (mut low, mut high) = (0.0, capacity);
        for _ in 0..40 {
            let middle = f64::midpoint(low, high);
            if meets(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }

    /// A first entry of the key that no plan with at most these sums and this capacity, in requests
    /// per second, can be below: without chance.
    pub(super) fn optimistic(&self, goal: Goal, sums: &Sums, capacity: f64) -> f64 {
        let excess = (1.0 / capacity - self.interval).max(0.0);
        let prefill = self.prompt / sums.prefill;
        match goal.objective {
            Objective::Goodput => -capacity,
            Objective::Throughput => -capacity * self.generated,
            Objective::Latency | Objective::FinishingTime => f64::NEG_INFINITY,
            Objective::Waiting => match goal.waiting {
                WaitingModel::Congestion if excess > 0.0 => excess + prefill,
                WaitingModel::Congestion => 0.0,
                // Whichever phase is slower, at least so many requests wait for its excess.
                WaitingModel::Concurrency => {
                    (self.requests - sums.slots.max(1.0)).max(0.0) * excess + prefill
                }
            },
        }
    }

    /// The plan's key: objective first, then slack, TTFT, TPOT and devices used.
    pub(super) fn key(&self, goal: Goal, sums: &Sums, rest: [f64; 3]) -> Key {
        if sums.prefill <= 0.0 || sums.decode <= 0.0 {
            return WORST;
        }
        let [ttft, tpot, devices] = rest;
        let wait = || self.wait_max(sums, goal.waiting);
        match goal.objective {
            Objective::Goodput => [-self.goodput(sums), wait(), ttft, tpot, devices],
            Objective::Throughput => {
                [-self.capacity(sums) * self.generated, wait(), ttft, tpot, devices]
            }
            Objective::Latency => [tpot, ttft, wait(), self.phase(sums), devices],
            Objective::FinishingTime => {
                [ttft + self.generated * tpot, -sums.decode, -sums.prefill, tpot, devices]
            }
            Objective::Waiting => {
                let first = match goal.waiting {
                    WaitingModel::Congestion => self.wait(sums, goal.waiting),
                    WaitingModel::Concurrency => wait(),
                };
                [first, self.phase(sums), ttft, tpot, devices]
            }
        }
    }
}

/// Objective and how its waiting is predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Goal {
    pub(super) objective: Objective,
    pub(super) waiting: WaitingModel,
}

impl Goal {
    /// The key's first entry in the unit people read: rates are kept negative in keys.
    pub(super) fn value(self, key: &Key) -> f64 {
        match self.objective {
            Objective::Goodput | Objective::Throughput => -key[0],
            Objective::Latency | Objective::Waiting | Objective::FinishingTime => key[0],
        }
    }
}
