//! The facts that decided a load plan.

use motley_cluster::{Plan, ReplicaId, Role, Seconds};

use super::outcome::Placed;
use super::replica::{Body, Choice, Wanted, choices, hops};
use super::setting::{Batch, Load, Setting, TypeId};
use super::split::{Aim, Split, best_split};
use crate::problem::{LimitKind, Objective, Reason};
use crate::waiting::{Sums, WORST, compare};

/// Most device types that are each tried alone for comparison.
const SINGLES_MAX: usize = 64;

/// Most replicas that are each asked for another role, or for a device more.
const REPLICAS_MAX: usize = 16;

pub(super) fn reasons(setting: &Setting<'_>, every: &[Placed], plan: &Plan) -> Vec<Reason> {
    let mut reasons = vec![against_single(setting, plan)];
    for (index, (placed, replica)) in every.iter().zip(plan.replicas()).enumerate() {
        let id = ReplicaId::new(index as u16);
        let next_best = next_best(setting, every, index);
        reasons.push(Reason::RoleChosen { replica: id, role: replica.role, next_best });
        let stages = &replica.predicted.stage_s;
        let slowest = (0..stages.len()).max_by_key(|member| (stages[*member], usize::MAX - member));
        if let Some(member) = slowest {
            reasons.push(Reason::Bottleneck {
                replica: id,
                device: placed.devices[member],
                stage: stages[member],
                pass: stages.iter().chain(&replica.predicted.hop_s).copied().sum(),
            });
        }
        if let Some(limited_by) = slots_limit(setting, placed) {
            reasons.push(Reason::Slots { replica: id, slots: replica.slots, limited_by });
        }
    }
    reasons.extend(left_out(setting, every, plan));
    reasons
}

/// The objective with the best other role of one replica, all others as they are; `None` if no other
/// role serves, or there are too many replicas to ask.
fn next_best(setting: &Setting<'_>, placed: &[Placed], index: usize) -> Option<f64> {
    if setting.goal.objective == Objective::Latency || placed.len() > REPLICAS_MAX {
        return None;
    }
    let own = &placed[index].choice;
    let mut group = own.order.clone();
    group.sort_unstable();
    let others = || placed.iter().enumerate().filter(|(at, _)| *at != index);
    let sums = others().fold(Sums::default(), |sums, (_, one)| sums.plus(one.choice.sums));
    let largest =
        |of: fn(&Choice) -> f64| others().map(|(_, one)| of(&one.choice)).fold(0.0, f64::max);
    let (ttft, tpot) = (largest(|choice| choice.ttft), largest(|choice| choice.tpot));
    let wanted = Wanted { separate: true, mixed: setting.problem.options.allow_mixed };
    let found = choices(setting, &group, wanted).into_iter().filter(|one| one.role != own.role);
    let keys = found.map(|one| {
        let rest = [ttft.max(one.ttft), tpot.max(one.tpot), 0.0];
        setting.demand.key(setting.goal, &sums.plus(one.sums), rest)
    });
    let best = keys.min_by(compare).filter(|key| compare(key, &WORST).is_lt())?;
    Some(setting.goal.value(&best))
}

/// For every device without work: what the replica that would gain most from it gains, and what the
/// longer way costs.
fn left_out(setting: &Setting<'_>, placed: &[Placed], plan: &Plan) -> Vec<Reason> {
    let used = plan.devices_used();
    let mut reasons = Vec::new();
    for (kind, own) in setting.types.iter().enumerate().take(SINGLES_MAX) {
        let mut unused = own.members.iter().filter(|device| !used.contains(device)).peekable();
        if unused.peek().is_none() {
            continue;
        }
        let replicas = placed.iter().take(REPLICAS_MAX);
        let joined = replicas.filter_map(|one| joined(setting, &one.choice, kind));
        let worth = |joined: &Joined| joined.gain - joined.hop_cost;
        let best = joined.max_by(|a, b| worth(a).total_cmp(&worth(b)));
        let nothing = Joined { gain: 0.0, hop_cost: 0.0, tpot: None };
        let best = best.unwrap_or(nothing);
        let seconds = |time: f64| Seconds::new(time.max(0.0)).unwrap_or_default();
        reasons.extend(unused.map(|device| Reason::LeftOut {
            device: *device,
            gain: seconds(best.gain),
            hop_cost: seconds(best.hop_cost),
            tpot_with: best.tpot.map(seconds),
        }));
    }
    reasons
}

/// What one device more would change in a replica, per token.
struct Joined {
    gain: f64,
    hop_cost: f64,
    /// Time per token then, where it generates any.
    tpot: Option<f64>,
}

/// A replica with one device more, at its slots and groups, where the way is shortest.
fn joined(setting: &Setting<'_>, choice: &Choice, kind: TypeId) -> Option<Joined> {
    let Body::Resident { split, load } = &choice.body else { return None };
    let hops_of = |order: &[TypeId]| hops(setting, order, load.batch);
    let total = |hops: &[f64]| hops.iter().sum::<f64>();
    let orders = (1..=choice.order.len()).map(|place| {
        let mut order = choice.order.clone();
        order.insert(place, kind);
        order
    });
    let order = orders.min_by(|a, b| total(&hops_of(a)).total_cmp(&total(&hops_of(b))))?;
    if !setting.may_be_master(order[0], &order) {
        return None;
    }
    let (before, after) = (hops_of(&choice.order), hops_of(&order));
    if !total(&after).is_finite() {
        return None;
    }
    let longest = after.iter().copied().fold(0.0, f64::max);
    let aim = |hops_total: f64, hops_max: f64| Aim {
        pressure: f64::from(choice.groups),
        hops_total,
        hops_max,
        worth: f64::INFINITY,
    };
    let with = best_split(setting, &order, *load, aim(total(&after), longest))?;
    // Compute alone tells the gain; the longer way is told apart.
    let compute = |split: &Split| aim(0.0, 0.0).value(split.total, split.slowest);
    // Every sequence gets a token per pass; of a prompt's pass each token takes its part.
    let tokens = match load.batch {
        Batch::Chunk => f64::from(setting.chunk_tokens),
        Batch::Tokens(_) => 1.0,
    };
    let pass = aim(total(&after), longest).value(with.total, with.slowest);
    Some(Joined {
        gain: (compute(split) - compute(&with)) / tokens,
        hop_cost: (total(&after) - total(&before)) / tokens,
        tpot: matches!(load.batch, Batch::Tokens(_)).then_some(pass),
    })
}

fn against_single(setting: &Setting<'_>, plan: &Plan) -> Reason {
    let wanted = Wanted { separate: false, mixed: true };
    let alone = |kind: usize| {
        let found = choices(setting, &[kind], wanted);
        let fastest = found.into_iter().map(|choice| choice.tpot).min_by(f64::total_cmp);
        fastest.map(|tpot| (tpot, setting.types[kind].members[0]))
    };
    let singles = (0..setting.types.len().min(SINGLES_MAX)).filter_map(alone);
    let best = singles.min_by(|a, b| a.0.total_cmp(&b.0));
    Reason::AgainstSingleDevice {
        device: best.map(|(_, device)| device),
        single_tpot: best.and_then(|(tpot, _)| Seconds::new(tpot).ok()),
        plan_tpot: plan.predicted().tpot_s,
    }
}

/// What keeps a decoding replica from one slot more.
fn slots_limit(setting: &Setting<'_>, placed: &Placed) -> Option<LimitKind> {
    let choice = &placed.choice;
    if choice.role == Role::Prefill || matches!(choice.body, Body::Ring(_)) {
        return None;
    }
    if setting.goal.objective == Objective::Latency {
        return Some(LimitKind::Arrival);
    }
    let slots = choice.slots + 1;
    if slots > setting.problem.options.slots_max {
        return Some(LimitKind::Option);
    }
    let mut fits = false;
    for groups in 1..=(choice.order.len() as u32).min(slots) {
        let load =
            Load { batch: Batch::Tokens(slots.div_ceil(groups)), slots, whole_context: true };
        let hops = hops(setting, &choice.order, load.batch);
        let aim = Aim {
            pressure: f64::from(groups),
            hops_total: hops.iter().sum(),
            hops_max: hops.iter().copied().fold(0.0, f64::max),
            worth: f64::INFINITY,
        };
        let Some(split) = best_split(setting, &choice.order, load, aim) else { continue };
        fits = true;
        let pass = aim.value(split.total, split.slowest);
        // A mixed replica's requests also wait for prompts in between.
        let share = if choice.role == Role::Mixed {
            choice.sums.decode / choice.computed.decode
        } else {
            1.0
        };
        if pass / share <= setting.demand.tpot_max(setting.goal.objective) {
            return Some(LimitKind::Arrival);
        }
    }
    Some(if fits { LimitKind::Floor } else { LimitKind::Memory })
}
