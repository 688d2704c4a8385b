//! What no plan can pass: the most that devices outside a set can add to it (PLANNER 5, 7).
//!
//! A replica's rate R is split over its members in proportion to the part x of the layers each holds.
//! With g groups of b sequences on n = g·b slots a member's part of the rate is at most x·min(b/t(x),
//! n/(t(x) + T(1-x))): its own stage t(x) limits the step, and the rest of the pass takes at least T,
//! the fastest device's time, per layer. Memory limits x, since a part of the layers comes with that
//! part of all slots' keys and values. So devices' parts add up, whatever groups they form.

use super::setting::{Batch, Setting, TypeId};
use crate::waiting::Sums;

/// What moving real layers may gain over alike ones at most, as a factor of rates.
pub(super) const NEAR: f64 = 1.05;

/// Rounding that must not cost the best plan.
const ROUNDING: f64 = 1e-9;

/// What devices can add at most, and the best plan so far.
pub(super) struct Bounds<'s, 'a> {
    setting: &'s Setting<'a>,
    counts: Vec<usize>,
    /// What one device of each type can add.
    potentials: Vec<Sums>,
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
        let decode = decode_potentials(setting, counts, devices as u32);
        let potential = |kind: TypeId| Sums {
            prefill: prefill_potential(setting, kind),
            decode: decode[kind],
            slots: free * setting.types[kind].room() / setting.slot_bytes(true),
        };
        let potentials: Vec<Sums> = (0..counts.len()).map(potential).collect();
        let mut ranked: Vec<TypeId> = (0..counts.len()).collect();
        let ratio = |a: TypeId, b: TypeId| potentials[a].prefill * potentials[b].decode;
        ranked.sort_by(|a, b| ratio(*b, *a).total_cmp(&ratio(*a, *b)));
        Self { setting, counts: counts.to_vec(), potentials, ranked, known: f64::INFINITY }
    }

    /// A value of the objective that no plan of all devices can pass.
    pub(super) fn objective(&self) -> f64 {
        let all = self.outside(&vec![0; self.counts.len()]);
        let capacity = balanced((0.0, 0.0), all.rates.iter().copied());
        let goal = self.setting.goal;
        let first = self.setting.demand.optimistic(goal, &all.sums, capacity);
        goal.value(&[first, 0.0, 0.0, 0.0, 0.0])
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

/// Most generated tokens per second one device of each type can add.
fn decode_potentials(setting: &Setting<'_>, counts: &[usize], devices: u32) -> Vec<f64> {
    let slots_max = setting.problem.options.slots_max;
    let tpot_max = setting.demand.tpot_max(setting.goal.objective);
    let present = |kind: &TypeId| counts[*kind] > 0;
    let mut most = vec![0.0_f64; counts.len()];
    for batch in 1..=slots_max {
        let times: Vec<f64> = (0..counts.len())
            .map(|kind| {
                let tokens = Batch::Tokens(batch);
                if present(&kind) { setting.least_layer_time(kind, tokens) } else { f64::INFINITY }
            })
            .collect();
        let fastest = times.iter().copied().fold(f64::INFINITY, f64::min);
        let pass = f64::from(setting.layers) * fastest;
        if pass > tpot_max * slack(setting) {
            // Measured tables need not rise with the batch, so larger ones are still tried.
            continue;
        }
        for groups in 1..=devices.min(slots_max / batch) {
            for kind in (0..counts.len()).filter(present) {
                let part = decode_part(setting, kind, (batch, groups), pass);
                most[kind] = most[kind].max(part * slack(setting));
            }
        }
    }
    most
}

/// Most generated tokens per second of one device in a replica of `groups` groups of `batch`
/// sequences, where one pass takes at least `pass`.
fn decode_part(setting: &Setting<'_>, kind: TypeId, (batch, groups): (u32, u32), pass: f64) -> f64 {
    let device = &setting.types[kind];
    let slots = f64::from(batch * groups);
    let model = setting.file_bytes() - setting.head_bytes;
    let kept = slots * setting.slot_bytes(true);
    let part = |bytes: f64| (bytes / (model + kept)).min(1.0);
    let (gpu, cpu) = setting.pass_times(kind, Batch::Tokens(batch));
    let least = gpu.min(cpu);
    let on_gpu = if device.has_gpu { part(device.memory.gpu.as_f64()) } else { 0.0 };
    let whole = part(device.room());
    // Stage times: the first part on the GPU, if there is one, the rest on the CPU.
    let stage = |held: f64| {
        let first = held.min(on_gpu);
        // A CPU that beats its GPU, or is alone, may count for both.
        if gpu <= cpu { first * gpu + (held - first) * cpu } else { held * least }
    };
    let rate = |held: f64| held * slots / (stage(held) + (1.0 - held) * pass);
    let by_step = f64::from(batch) / least;
    // Between the two ends the rate by the whole pass only rises or only falls.
    by_step.min(rate(on_gpu).max(rate(whole)))
}
