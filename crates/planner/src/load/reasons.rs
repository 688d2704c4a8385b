//! The facts that decided a load plan.

use motley_cluster::{Plan, ReplicaId, Role, Seconds};

use super::outcome::Placed;
use super::replica::{Body, Wanted, choices, hops};
use super::setting::{Batch, Load, Setting};
use super::split::{Aim, best_split};
use crate::problem::{LimitKind, Objective, Reason};

/// Most device types that are each tried alone for comparison.
const SINGLES_MAX: usize = 64;

pub(super) fn reasons(setting: &Setting<'_>, placed: &[Placed], plan: &Plan) -> Vec<Reason> {
    let mut reasons = vec![against_single(setting, plan)];
    for (index, (placed, replica)) in placed.iter().zip(plan.replicas()).enumerate() {
        let id = ReplicaId::new(index as u16);
        reasons.push(Reason::RoleChosen { replica: id, role: replica.role, next_best: None });
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
    reasons
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
