//! The rules a plan must obey, and how it can break them.

use std::collections::BTreeSet;

use super::{HandOver, KvPlace, LayerRange, MemberSpec, PlanSpec, ReplicaSpec, Residency, Role};
use crate::field::{FieldError, check_distinct, check_name, check_range};
use crate::limits::{CONTEXT_TOKENS_MAX, DEVICES_MAX, LAYERS_MAX, SLOTS_MAX};
use crate::units::{Bytes, DeviceId, ReplicaId};

/// How a plan breaks a rule.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanFault {
    /// A figure is out of range.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// There is nothing that serves: no replica, or none that decodes or none that prefills.
    #[error("no replica can {0}")]
    NoneCan(&'static str),
    /// A replica has no members, or a count of windows or predictions that does not match.
    #[error("replica {replica}: {what} are {found}, expected {expected}")]
    Count {
        /// Which replica.
        replica: ReplicaId,
        /// What was counted.
        what: &'static str,
        /// Found.
        found: usize,
        /// Expected.
        expected: usize,
    },
    /// A layer is computed twice, out of order or never.
    #[error("replica {replica}: layer {expected} should come next, found layer {found}")]
    LayerOrder {
        /// Which replica.
        replica: ReplicaId,
        /// The layer that should come.
        expected: u32,
        /// The layer that comes; the number of layers if the plan goes on too long or ends early.
        found: u32,
    },
    /// A member other than the head holds no layers.
    #[error("replica {replica}: device {device} holds no layers and is not the head")]
    IdleMember {
        /// Which replica.
        replica: ReplicaId,
        /// Which device.
        device: DeviceId,
    },
    /// The head is no member.
    #[error("replica {replica}: head {head} is not a member")]
    HeadOutside {
        /// Which replica.
        replica: ReplicaId,
        /// The head named.
        head: DeviceId,
    },
    /// A device works twice.
    #[error("device {0} is used more than once")]
    DeviceTwice(DeviceId),
    /// An id refers to no device.
    #[error("device {0} does not exist")]
    NoDevice(DeviceId),
    /// The residency of a member does not match its windows.
    #[error(
        "replica {replica}: residency of device {device} does not match its windows at layer {layer}"
    )]
    ResidencyMismatch {
        /// Which replica.
        replica: ReplicaId,
        /// Which device.
        device: DeviceId,
        /// First layer that differs.
        layer: u32,
    },
    /// A device in use has no memory claim, or one not in use has.
    #[error("memory claims do not match the devices in use at device {0}")]
    ClaimMismatch(DeviceId),
    /// A device uses GPU memory without claiming any.
    #[error("device {0} keeps layers on a GPU but has no GPU memory")]
    NoGpu(DeviceId),
    /// A claim exceeds the budget.
    #[error("device {device}: {kind} claim of {claim} exceeds the budget of {budget}")]
    OverBudget {
        /// Which device.
        device: DeviceId,
        /// `GPU` or `RAM`.
        kind: &'static str,
        /// Claimed.
        claim: Bytes,
        /// Available.
        budget: Bytes,
    },
    /// A hand-over does not lead from a prefill replica to one that decodes, or is stated twice.
    #[error("hand-over from replica {from} to {to} does not lead from prefill to decode once")]
    BadHandOver {
        /// Sender.
        from: ReplicaId,
        /// Receiver.
        to: ReplicaId,
    },
    /// A hand-over misses a layer or names a device that does not hold it.
    #[error("hand-over from replica {from} to {to} is wrong at layer {layer}")]
    HandOverLayer {
        /// Sender.
        from: ReplicaId,
        /// Receiver.
        to: ReplicaId,
        /// First wrong layer.
        layer: u32,
    },
    /// A prefill replica hands over to nobody, or a decode replica receives from nobody.
    #[error("replica {0} has no hand-over")]
    NoHandOver(ReplicaId),
}

pub(super) fn prove(spec: &PlanSpec) -> Result<(), PlanFault> {
    check_name("model", &spec.model)?;
    check_range("layers", f64::from(spec.layers), (1.0, LAYERS_MAX as f64))?;
    check_range("devices", spec.devices.len() as f64, (1.0, DEVICES_MAX as f64))?;
    check_distinct("devices", spec.devices.iter().map(String::as_str))?;
    let context = f64::from(spec.context_tokens);
    check_range("context_tokens", context, (1.0, f64::from(CONTEXT_TOKENS_MAX)))?;
    check_range("replicas", spec.replicas.len() as f64, (1.0, spec.devices.len() as f64))?;
    let mut used = BTreeSet::new();
    for (index, replica) in spec.replicas.iter().enumerate() {
        let id = ReplicaId::new(index as u16);
        prove_counts(spec, id, replica)?;
        for member in &replica.members {
            if !used.insert(member.device) {
                return Err(PlanFault::DeviceTwice(member.device));
            }
        }
        prove_layers(spec.layers, id, replica)?;
        for member in &replica.members {
            prove_residency(id, member)?;
        }
    }
    prove_roles(spec)?;
    prove_memory(spec, &used)?;
    prove_hand_overs(spec)
}

fn prove_counts(spec: &PlanSpec, id: ReplicaId, replica: &ReplicaSpec) -> Result<(), PlanFault> {
    let field = |name: &str| format!("replicas[{id}].{name}");
    let slots = f64::from(replica.slots);
    check_range(&field("slots"), slots, (1.0, f64::from(SLOTS_MAX)))?;
    check_range(&field("groups"), f64::from(replica.groups), (1.0, slots))?;
    check_range(&field("rounds"), f64::from(replica.rounds), (1.0, f64::from(spec.layers)))?;
    let members = replica.members.len();
    check_range(&field("members"), members as f64, (1.0, spec.devices.len() as f64))?;
    let count = |what, found, expected| {
        if found == expected {
            return Ok(());
        }
        Err(PlanFault::Count { replica: id, what, found, expected })
    };
    count("stage predictions", replica.predicted.stage_s.len(), members)?;
    count("hop predictions", replica.predicted.hop_s.len(), members)?;
    for member in &replica.members {
        count("windows of a member", member.windows.len(), replica.rounds as usize)?;
        for device in [member.device].iter().chain(&member.relays_to_next) {
            prove_device(spec, *device)?;
        }
        if member.layers_count() == 0 && member.device != replica.head {
            return Err(PlanFault::IdleMember { replica: id, device: member.device });
        }
    }
    if replica.position_of(replica.head).is_none() {
        return Err(PlanFault::HeadOutside { replica: id, head: replica.head });
    }
    Ok(())
}

fn prove_device(spec: &PlanSpec, device: DeviceId) -> Result<(), PlanFault> {
    if device.index() < spec.devices.len() {
        return Ok(());
    }
    Err(PlanFault::NoDevice(device))
}

fn prove_layers(layers: u32, id: ReplicaId, replica: &ReplicaSpec) -> Result<(), PlanFault> {
    let fault = |expected, found| Err(PlanFault::LayerOrder { replica: id, expected, found });
    let mut next = 0;
    for window in replica.windows() {
        if window.layers.start() != next {
            return fault(next, window.layers.start());
        }
        next = window.layers.end();
        if next > layers {
            return fault(layers, next);
        }
    }
    if next == layers { Ok(()) } else { fault(next, layers) }
}

fn prove_residency(id: ReplicaId, member: &MemberSpec) -> Result<(), PlanFault> {
    let device = member.device;
    let kept = member.residency.iter().flat_map(|run| run.layers.iter());
    let mut kept = kept.map(|layer| layer.index() as u32);
    for layer in member.layers().map(|layer| layer.index() as u32) {
        if kept.next() != Some(layer) {
            return Err(PlanFault::ResidencyMismatch { replica: id, device, layer });
        }
    }
    match kept.next() {
        None => Ok(()),
        Some(layer) => Err(PlanFault::ResidencyMismatch { replica: id, device, layer }),
    }
}

fn prove_roles(spec: &PlanSpec) -> Result<(), PlanFault> {
    let any = |role| spec.replicas.iter().any(|replica| replica.role == role);
    if !any(Role::Mixed) && !any(Role::Prefill) {
        return Err(PlanFault::NoneCan("prefill"));
    }
    if !any(Role::Mixed) && !any(Role::Decode) {
        return Err(PlanFault::NoneCan("decode"));
    }
    Ok(())
}

fn prove_memory(spec: &PlanSpec, used: &BTreeSet<DeviceId>) -> Result<(), PlanFault> {
    let mut claimed = BTreeSet::new();
    for claim in &spec.memory {
        let device = claim.device;
        if !used.contains(&device) || !claimed.insert(device) {
            return Err(PlanFault::ClaimMismatch(device));
        }
        let pairs = [
            ("GPU", claim.gpu_bytes, claim.gpu_budget_bytes),
            ("RAM", claim.ram_bytes, claim.ram_budget_bytes),
        ];
        for (kind, claim, budget) in pairs {
            if claim > budget {
                return Err(PlanFault::OverBudget { device, kind, claim, budget });
            }
        }
    }
    if let Some(device) = used.difference(&claimed).next() {
        return Err(PlanFault::ClaimMismatch(*device));
    }
    for member in spec.replicas.iter().flat_map(|replica| &replica.members) {
        let on_gpu = member
            .residency
            .iter()
            .any(|run| run.weights == Residency::Gpu || run.kv == KvPlace::Gpu);
        let claim = spec.memory.iter().find(|claim| claim.device == member.device);
        let has_gpu = claim.is_some_and(|claim| claim.gpu_bytes > Bytes::ZERO);
        if on_gpu && !has_gpu {
            return Err(PlanFault::NoGpu(member.device));
        }
    }
    Ok(())
}

fn prove_hand_overs(spec: &PlanSpec) -> Result<(), PlanFault> {
    let mut seen = BTreeSet::new();
    for hand_over in &spec.hand_overs {
        prove_hand_over(spec, hand_over)?;
        let (from, to) = (hand_over.from, hand_over.to);
        if !seen.insert((from, to)) {
            return Err(PlanFault::BadHandOver { from, to });
        }
    }
    for (index, replica) in spec.replicas.iter().enumerate() {
        let id = ReplicaId::new(index as u16);
        let connected = match replica.role {
            Role::Prefill => seen.iter().any(|(from, _)| *from == id),
            Role::Decode => seen.iter().any(|(_, to)| *to == id),
            Role::Mixed => true,
        };
        if !connected {
            return Err(PlanFault::NoHandOver(id));
        }
    }
    Ok(())
}

fn prove_hand_over(spec: &PlanSpec, hand_over: &HandOver) -> Result<(), PlanFault> {
    let (from, to) = (hand_over.from, hand_over.to);
    let ends = (spec.replicas.get(from.index()), spec.replicas.get(to.index()));
    let (Some(sender), Some(receiver)) = ends else {
        return Err(PlanFault::BadHandOver { from, to });
    };
    if from == to || sender.role == Role::Decode || receiver.role == Role::Prefill {
        return Err(PlanFault::BadHandOver { from, to });
    }
    let wrong = |layer| PlanFault::HandOverLayer { from, to, layer };
    let mut next = 0;
    for route in &hand_over.routes {
        if route.layers.start() != next || route.layers.is_empty() {
            return Err(wrong(next));
        }
        for layer in route.layers.iter() {
            let right = sender.device_of(layer) == Some(route.from)
                && receiver.device_of(layer) == Some(route.to);
            if !right {
                return Err(wrong(layer.index() as u32));
            }
        }
        for relay in &route.relays {
            prove_device(spec, *relay)?;
        }
        next = LayerRange::end(route.layers);
    }
    if next == spec.layers { Ok(()) } else { Err(wrong(next)) }
}
