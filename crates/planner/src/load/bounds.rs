//! What no plan can pass: the most that devices outside a set can add to it (PLANNER 5, 7).
//!
//! A replica's rate R is split over its members in proportion to the part x of the layers each holds.
//! With g groups of b sequences on n = g·b slots a member whose stage takes t(x) allows R ≤ b/t(x) and
//! R ≤ n/(t(x) + T(1-x)), as the rest of the pass takes at least T, the fastest device's time, per
//! layer. Memory limits x, since a part of the layers comes with that part of all slots' keys and
//! values. So devices' parts add up, whatever groups they form.
//!
//! Not every device has the fastest one next to it: a pass takes n/R at most, so R·Σt ≤ n·Σx, and for
//! every price μ of a pass's time R ≤ Σ (R·(x - μ·t(x)) + μ·n·x), which adds up over devices, too.

use super::setting::{Batch, DeviceType, Setting, TypeId};
use crate::problem::Objective;
use crate::waiting::{Level, Price, Sums};

/// What moving real layers may gain over alike ones at most, as a factor of rates.
pub(super) const NEAR: f64 = 1.05;

/// Rounding that must not cost the best plan.
const ROUNDING: f64 = 1e-9;

/// Steps in which the share θ of mixed replicas is looked for.
const THETAS: u32 = 32;

/// Shares of prefill by which a bound on the objective is looked for, and halvings that find it.
const SHARES: u32 = 20;
const HALVINGS: u32 = 24;

/// Prices of a pass's time: none, and falling ones from that of the fastest device alone.
const PASS_STEPS: u32 = 16;
const PASS_STEP: f64 = 1.25;

/// Steps in which a device's CPU layers are looked at.
const CPU_STEPS: u32 = 8;

/// What devices can add at most, and the best plan so far.
pub(super) struct Bounds<'s, 'a> {
    setting: &'s Setting<'a>,
    counts: Vec<usize>,
    /// What one device of each type can add.
    potentials: Vec<Sums>,
    /// Generated tokens per second that one device of each type can add, by each price of time.
    decode: Vec<Vec<f64>>,
    /// Types, best at prefill in comparison first.
    ranked: Vec<TypeId>,
    /// A plan whose key begins with this is known.
    known: f64,
}

/// What all devices outside a set can add.
pub(super) struct Outside {
    sums: Sums,
    /// Requests per second on either phase, best at prefill in comparison first.
    rates: Vec<(f64, f64)>,
}

impl<'s, 'a> Bounds<'s, 'a> {
    pub(super) fn new(setting: &'s Setting<'a>, counts: &[usize]) -> Self {
        let devices: usize = counts.iter().sum();
        let room: f64 =
            setting.types.iter().zip(counts).map(|(kind, count)| kind.room() * *count as f64).sum();
        let free = (1.0 - setting.file_bytes() / room).max(0.0);
        let tables = decode_potentials(setting, counts, devices as u32);
        let total = |rates: &&Vec<f64>| -> f64 {
            rates.iter().zip(counts).map(|(rate, count)| rate * *count as f64).sum()
        };
        let least = tables.iter().min_by(|a, b| total(a).total_cmp(&total(b)));
        let decode = least.cloned().unwrap_or_default();
        let potential = |kind: TypeId| Sums {
            prefill: prefill_potential(setting, kind),
            decode: decode[kind],
            slots: free * setting.types[kind].room() / setting.slot_bytes(true),
        };
        let potentials: Vec<Sums> = (0..counts.len()).map(potential).collect();
        let mut ranked: Vec<TypeId> = (0..counts.len()).collect();
        let ratio = |a: TypeId, b: TypeId| potentials[a].prefill * potentials[b].decode;
        ranked.sort_by(|a, b| ratio(*b, *a).total_cmp(&ratio(*a, *b)));
        Self {
            setting,
            counts: counts.to_vec(),
            potentials,
            decode: tables,
            ranked,
            known: f64::INFINITY,
        }
    }

    /// A value of the objective that no plan of all devices can pass; `known` is that of a plan.
    pub(super) fn objective(&self, known: f64) -> f64 {
        let (demand, goal) = (&self.setting.demand, self.setting.goal);
        let share = |step: u32| {
            let prefill = f64::from(step) / f64::from(SHARES);
            let price = Price { prefill, decode: 1.0 - prefill, slots: 0.0 };
            let each = self.worths(&price);
            let worth = each.iter().zip(&self.counts).map(|(worth, count)| worth * *count as f64);
            (price, worth.sum::<f64>() * (1.0 + ROUNDING))
        };
        let shares: Vec<(Price, f64)> = (0..=SHARES).map(share).collect();
        // Both prices of a share add up to one, so its worth is requests per second.
        let capacity = shares.iter().map(|(_, worth)| *worth).fold(f64::INFINITY, f64::min);
        match goal.objective {
            Objective::Goodput => return capacity,
            Objective::Throughput => return capacity * demand.generated,
            Objective::Latency | Objective::FinishingTime => return f64::NEG_INFINITY,
            Objective::Waiting => {}
        }
        let possible = |first: f64| {
            let key = [first, demand.interval, 0.0, 0.0, 0.0];
            let level = Level::new(demand, goal, &key, self.slots_max());
            shares.iter().all(|(price, worth)| level.least_worth(price) <= *worth)
        };
        let (mut low, mut high) = (0.0, known);
        if possible(low) {
            return low;
        }
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(low, high);
            if possible(middle) { high = middle } else { low = middle }
        }
        low
    }

    /// What one device of each type is worth at most at a price.
    ///
    /// With one role a device's part also passes its network card. A replica of both roles that could
    /// prefill p and decode d requests per second alone serves 1/(1/p + 1/d), which is at most
    /// θ²p + (1-θ)²d for every θ; that adds up over devices for one θ, and the best one is taken.
    pub(super) fn worths(&self, price: &Price) -> Vec<f64> {
        let setting = self.setting;
        let sent = setting.hand_over.last().copied().unwrap_or(0.0);
        let with = |decode: &[f64], theta: Option<f64>| -> Vec<f64> {
            let kinds = self.potentials.iter().zip(decode).zip(&setting.types);
            let worth = |((one, decode), kind): ((&Sums, &f64), &DeviceType)| {
                let prefill = one.prefill / setting.demand.prompt;
                let decode = decode / setting.demand.generated;
                let card = if kind.card > 0.0 { kind.card / sent } else { f64::INFINITY };
                let apart =
                    (price.prefill * prefill.min(card)).max(price.decode * decode.min(card));
                let mixed = theta.map_or(0.0, |theta| {
                    let both = theta.powi(2) * prefill + (1.0 - theta).powi(2) * decode;
                    (price.prefill + price.decode) * both
                });
                // Where roles mix, a device that prefills most of its time has its slots all the same.
                apart.max(mixed) + price.slots * one.slots
            };
            kinds.map(worth).collect()
        };
        let thetas: Vec<Option<f64>> = if setting.problem.options.allow_mixed {
            (0..=THETAS).map(|step| Some(f64::from(step) / f64::from(THETAS))).collect()
        } else {
            vec![None]
        };
        let total = |worths: &Vec<f64>| -> f64 {
            worths.iter().zip(&self.counts).map(|(worth, count)| worth * *count as f64).sum()
        };
        let tried =
            self.decode.iter().flat_map(|decode| thetas.iter().map(|theta| with(decode, *theta)));
        tried.min_by(|a, b| total(a).total_cmp(&total(b))).unwrap_or_default()
    }

    /// Slots that all devices can have at most.
    pub(super) fn slots_max(&self) -> usize {
        let devices: usize = self.counts.iter().sum();
        let most = devices * self.setting.problem.options.slots_max as usize;
        let each = self.potentials.iter().zip(&self.counts);
        let room: f64 = each.map(|(one, count)| one.slots * *count as f64).sum();
        most.min(room.ceil() as usize)
    }

    /// A plan with this first entry of its key was found.
    pub(super) fn learn(&mut self, first: f64) {
        self.known = self.known.min(first + first.abs() * ROUNDING);
    }

    /// What the devices outside a set can add at most.
    pub(super) fn outside(&self, set: &[usize]) -> Outside {
        let demand = &self.setting.demand;
        let mut outside = Outside { sums: Sums::default(), rates: Vec::new() };
        for kind in &self.ranked {
            let left = (self.counts[*kind] - set[*kind]) as f64;
            if left == 0.0 {
                continue;
            }
            let one = &self.potentials[*kind];
            let all = Sums {
                prefill: left * one.prefill,
                decode: left * one.decode,
                slots: left * one.slots,
            };
            outside.sums = outside.sums.plus(all);
            outside.rates.push((all.prefill / demand.prompt, all.decode / demand.generated));
        }
        outside
    }

    /// Whether a part of a plan with these sums may begin one that is as good as the best known, if
    /// all devices outside did their best.
    pub(super) fn worth(&self, outside: &Outside, sums: &Sums) -> bool {
        if self.known == f64::INFINITY {
            return true;
        }
        let demand = &self.setting.demand;
        let done = (sums.prefill / demand.prompt, sums.decode / demand.generated);
        let capacity = balanced(done, outside.rates.iter().copied());
        demand.optimistic(self.setting.goal, &sums.plus(outside.sums), capacity) <= self.known
    }
}

/// Most requests per second through both phases if devices divide their time freely. `done` is what
/// is there already, `rates` what each device adds to either phase, best at prefill in comparison
/// first.
fn balanced(done: (f64, f64), rates: impl Iterator<Item = (f64, f64)> + Clone) -> f64 {
    let mut prefill = done.0;
    let mut decode = done.1 + rates.clone().map(|(_, decode)| decode).sum::<f64>();
    for (own_prefill, own_decode) in rates {
        if prefill >= decode {
            break;
        }
        if prefill + own_prefill >= decode - own_decode {
            // This one divides its time: prefill + x·p = decode - x·d.
            let part = (decode - prefill) / (own_prefill + own_decode);
            return prefill + part * own_prefill;
        }
        prefill += own_prefill;
        decode -= own_decode;
    }
    prefill.min(decode)
}

/// Slack for real layers that are lighter than the mean.
pub(super) fn slack(setting: &Setting<'_>) -> f64 {
    if setting.uniform_layers { 1.0 } else { NEAR }
}

fn prefill_potential(setting: &Setting<'_>, kind: TypeId) -> f64 {
    let pass =
        setting.chunks * f64::from(setting.layers) * setting.least_layer_time(kind, Batch::Chunk);
    slack(setting) * setting.demand.prompt / pass
}

/// Most generated tokens per second one device of each type can add, by each price of time.
fn decode_potentials(setting: &Setting<'_>, counts: &[usize], devices: u32) -> Vec<Vec<f64>> {
    let slots_max = setting.problem.options.slots_max;
    let tpot_max = setting.demand.tpot_max(setting.goal.objective);
    let present = |kind: &TypeId| counts[*kind] > 0;
    let fastest = |batch: u32| {
        let time = |kind| setting.least_layer_time(kind, Batch::Tokens(batch));
        (0..counts.len()).filter(present).map(time).fold(f64::INFINITY, f64::min)
    };
    let alone = f64::from(setting.layers) * fastest(1);
    let price = |step: u32| if step == 0 { 0.0 } else { PASS_STEP.powi(1 - step as i32) / alone };
    let prices: Vec<f64> = (0..PASS_STEPS).map(price).collect();
    let mut most = vec![vec![0.0_f64; counts.len()]; prices.len()];
    for batch in 1..=slots_max {
        let pass = f64::from(setting.layers) * fastest(batch);
        if pass > tpot_max * slack(setting) {
            // Measured tables need not rise with the batch, so larger ones are still tried.
            continue;
        }
        for groups in 1..=devices.min(slots_max / batch) {
            for kind in (0..counts.len()).filter(present) {
                let part = Part::new(setting, kind, (batch, groups), pass);
                for (price, most) in prices.iter().zip(&mut most) {
                    most[kind] = most[kind].max(part.most(*price) * slack(setting));
                }
            }
        }
    }
    most
}

/// One device in a replica of so many groups of so many sequences.
struct Part {
    batch: f64,
    slots: f64,
    /// Least time of a pass.
    pass: f64,
    /// Parts of the layers its GPU and all its memory hold.
    on_gpu: f64,
    whole: f64,
    /// Times of all layers on its GPU and its CPU.
    times: (f64, f64),
}

impl Part {
    fn new(setting: &Setting<'_>, kind: TypeId, (batch, groups): (u32, u32), pass: f64) -> Self {
        let device = &setting.types[kind];
        let slots = f64::from(batch * groups);
        let model = setting.file_bytes() - setting.head_bytes;
        let kept = slots * setting.slot_bytes(true);
        let part = |bytes: f64| (bytes / (model + kept)).min(1.0);
        let (gpu, cpu) = setting.pass_times(kind, Batch::Tokens(batch));
        // A CPU that beats its GPU, or is alone, may count for both.
        let times = if gpu <= cpu { (gpu, cpu) } else { (cpu, cpu) };
        let on_gpu = if device.has_gpu { part(device.memory.gpu.as_f64()) } else { 0.0 };
        let whole = part(device.room());
        Self { batch: f64::from(batch), slots, pass, on_gpu: on_gpu.min(whole), whole, times }
    }

    /// Its part of the rate at most, at a price of a pass's time.
    fn most(&self, price: f64) -> f64 {
        let stage = |held: f64| {
            let first = held.min(self.on_gpu);
            let rest = held - first;
            first * self.times.0 + if rest > 0.0 { rest * self.times.1 } else { 0.0 }
        };
        // Gain per token, by the whole pass and by the step: each only rises or only falls between
        // two numbers of layers on the same processor.
        let gains = |held: f64| {
            let time = stage(held);
            let gain = held - price * time;
            let step = if time > 0.0 { self.batch * gain / time } else { f64::INFINITY };
            (self.slots * gain / (time + (1.0 - held) * self.pass), step)
        };
        // On the GPU alone each layer more adds as much as the one before or more; the CPU's may not.
        let mut before = gains(self.on_gpu);
        let mut most = if self.on_gpu > 0.0 {
            before.0.min(before.1).max(0.0) + price * self.slots * self.on_gpu
        } else {
            before = (0.0, self.batch / self.times.1 - price * self.batch);
            0.0
        };
        for step in 1..=CPU_STEPS {
            let share = f64::from(step) / f64::from(CPU_STEPS);
            let held = self.on_gpu + share * (self.whole - self.on_gpu);
            let here = gains(held);
            let gain = before.0.max(here.0).min(before.1.max(here.1)).max(0.0);
            most = most.max(gain + price * self.slots * held);
            before = here;
        }
        most
    }
}
