//! The facts behind a latency plan.

use motley_cluster::{DeviceId, ReplicaId, Seconds};

use super::Solved;
use super::build;
use super::instance::{Instance, Ticks};
use super::realise::time;
use super::ring::Assignment;
use super::search::{best_alone, best_with};
use crate::problem::{Budget, Problem, Reason};

/// Reasons for the plan as a whole, for every device in it, and for every device left out.
pub(super) fn reasons(problem: &Problem, solved: &Solved, budget: Budget) -> Vec<Reason> {
    let (instance, best) = (&solved.instance, &solved.best);
    let scope = build::scope(problem, budget);
    let alone = best_alone(instance, &scope);
    let mut reasons = vec![Reason::AgainstSingleDevice {
        device: alone.as_ref().map(|alone| id(alone.ring.head)),
        single_tpot: alone.as_ref().map(|alone| time(instance, alone.token)),
        plan_tpot: time(instance, best.token),
    }];
    for (at, device) in best.ring.order.iter().enumerate() {
        reasons.push(share(instance, best, at, *device));
    }
    reasons.extend(bottleneck(instance, best));
    let relays = solved.plan.replicas().iter().flat_map(|replica| &replica.members);
    let mut relays: Vec<DeviceId> =
        relays.flat_map(|member| member.relays_to_next.clone()).collect();
    relays.sort_unstable();
    relays.dedup();
    let used = solved.plan.devices_used();
    relays.retain(|relay| !used.contains(relay));
    reasons.extend(relays.iter().map(|device| Reason::RelayOnly { device: *device }));
    for device in scope.devices.iter().filter(|device| !used.contains(&id(**device))) {
        reasons.push(left_out(instance, best, *device));
    }
    reasons
}

fn share(instance: &Instance, best: &Assignment, at: usize, device: usize) -> Reason {
    let member = instance.member(device, best.ring.head);
    let split = &best.splits[at];
    let most_gpu = member.gpu_layers_max;
    let resident = |layers: &u32| {
        let gpu = most_gpu.min(*layers);
        member.fits(*layers - gpu, gpu)
    };
    let compute: Ticks = member.busy(split.cpu, split.gpu, 0);
    Reason::Share {
        device: id(device),
        layers: split.layers(),
        gpu_layers_max: most_gpu,
        resident_layers_max: (0..=instance.layers).rev().find(resident).unwrap_or(0),
        layer_time: time(instance, compute).times(1.0 / f64::from(split.layers())),
    }
}

fn bottleneck(instance: &Instance, best: &Assignment) -> Option<Reason> {
    let (device, split) = best
        .ring
        .order
        .iter()
        .zip(&best.splits)
        .max_by_key(|(_, split)| split.busy + split.overlapped + split.added)?;
    Some(Reason::Bottleneck {
        replica: ReplicaId::new(0),
        device: id(*device),
        stage: time(instance, split.busy + split.overlapped + split.added),
        pass: time(instance, best.token),
    })
}

/// What a device would bring and cost if it joined: gain and hops separately.
fn left_out(instance: &Instance, best: &Assignment, device: usize) -> Reason {
    let with = best_with(instance, best, device);
    let hops = |found: &Assignment| {
        let ring = &found.ring;
        ring.hops_total(instance, found.rounds) + ring.first_hop(instance)
    };
    let (gain, hop_cost) = match &with {
        Some(with) => {
            let hop_cost = (hops(with) - hops(best)).max(0);
            ((best.token - (with.token - hop_cost)).max(0), hop_cost)
        }
        None => (0, 0),
    };
    let seconds = |ticks: Ticks| -> Seconds { time(instance, ticks) };
    Reason::LeftOut {
        device: id(device),
        gain: seconds(gain),
        hop_cost: seconds(hop_cost),
        tpot_with: with.map(|with| seconds(with.token)),
    }
}

fn id(device: usize) -> DeviceId {
    DeviceId::new(device as u16)
}
