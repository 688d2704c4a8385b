//! What a drawing of a plan shows, before it is text or SVG.

use motley_cluster::{
    Bytes, DeviceId, LayerRange, ReplicaId, ReplicaSpec, Residency, Role, Seconds,
};
use serde::Serialize;

use super::figures::{counted, time};
use crate::problem::{Objective, PlanOutcome, Problem, Reason};

/// A plan as lanes of devices over the layers of the model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Drawing {
    /// Model and cluster.
    pub title: String,
    /// Method and predicted figures.
    pub subtitle: String,
    /// Layers of the model.
    pub layers: u32,
    /// Replicas in the plan's order.
    pub replicas: Vec<DrawnReplica>,
    /// Names of devices without work, and what they do instead.
    pub idle: Vec<(String, &'static str)>,
}

/// One replica.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DrawnReplica {
    /// Role, slots, rounds.
    pub heading: String,
    /// Passes around the ring per token.
    pub rounds: u32,
    /// Time of one pass, waiting for disks included.
    pub pass: Seconds,
    /// Members in ring order.
    pub lanes: Vec<Lane>,
}

/// One device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Lane {
    /// The device.
    pub device: DeviceId,
    /// Its name.
    pub name: String,
    /// What machine it is.
    pub hardware: String,
    /// It embeds, projects and samples.
    pub head: bool,
    /// Its layers, rising, neighbours kept alike joined.
    pub runs: Vec<LaneRun>,
    /// Busy time per pass.
    pub stage: Seconds,
    /// Time on the wire to the next member.
    pub hop: Seconds,
    /// The slowest of its replica.
    pub bottleneck: bool,
    /// GPU memory taken and there; the second is 0 without a GPU.
    pub gpu: (Bytes, Bytes),
    /// RAM taken and there.
    pub ram: (Bytes, Bytes),
}

/// Layers kept alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LaneRun {
    /// Which.
    pub layers: LayerRange,
    /// Where.
    pub weights: Residency,
}

impl Drawing {
    /// Of a plan for a problem.
    #[must_use]
    pub fn of(problem: &Problem, outcome: &PlanOutcome) -> Self {
        let plan = &outcome.plan;
        let used = plan.devices_used();
        let idle = problem.cluster.ids().filter(|id| !used.contains(id)).map(|id| {
            let what = if problem.options.excluded.contains(&id) { "excluded" } else { "not used" };
            (plan.device_name(id).to_owned(), what)
        });
        Self {
            title: format!("{} on {}", problem.model.name, problem.cluster.name()),
            subtitle: subtitle(problem.objective, outcome),
            layers: problem.model.layers_count(),
            replicas: (0..plan.replicas().len())
                .map(|index| drawn(problem, outcome, index))
                .collect(),
            idle: idle.collect(),
        }
    }
}

/// The device that a replica's passes wait for: the one the search names, which also counts its disk,
/// else the one with the longest busy time.
pub(super) fn slowest(outcome: &PlanOutcome, index: usize) -> Option<DeviceId> {
    let id = ReplicaId::new(index as u16);
    for reason in &outcome.reasons {
        if let Reason::Bottleneck { replica, device, .. } = reason
            && *replica == id
        {
            return Some(*device);
        }
    }
    let replica = &outcome.plan.replicas()[index];
    let members = replica.members.iter().zip(&replica.predicted.stage_s);
    let first_slowest = members.rev().max_by_key(|(_, stage)| **stage);
    first_slowest.map(|(member, _)| member.device)
}

/// Compute and hops, and for streamed layers what the token waits beyond that.
fn pass_time(replica: &ReplicaSpec) -> Seconds {
    let predicted = &replica.predicted;
    let busy: Seconds = predicted.stage_s.iter().chain(&predicted.hop_s).copied().sum();
    let streams = replica.members.iter().any(|member| member.count(Residency::Stream) > 0);
    if streams { busy.max(predicted.tpot_s) } else { busy }
}

fn subtitle(objective: Objective, outcome: &PlanOutcome) -> String {
    let predicted = outcome.plan.predicted();
    let first = time(predicted.ttft_s);
    let mut text = format!("{}: {} per token", outcome.method.name(), time(predicted.tpot_s));
    text.push_str(&format!(", first token after {first}"));
    if objective != Objective::Latency {
        text.push_str(&format!(", waiting at most {}", time(predicted.max_wait_s)));
    }
    text
}

fn drawn(problem: &Problem, outcome: &PlanOutcome, index: usize) -> DrawnReplica {
    let replica = &outcome.plan.replicas()[index];
    let role = match replica.role {
        Role::Prefill => "prefill",
        Role::Decode => "decode",
        Role::Mixed => "prefill and decode",
    };
    let mut heading = format!("{role}, {}", counted(replica.slots, "slot"));
    if replica.groups > 1 {
        heading.push_str(&format!(" in {} groups", replica.groups));
    }
    if replica.rounds > 1 {
        heading.push_str(&format!(", {} rounds", replica.rounds));
    }
    if outcome.plan.replicas().len() > 1 {
        heading = format!("Replica {index}: {heading}");
    }
    let slowest = slowest(outcome, index);
    let lanes = replica.members.iter().enumerate().map(|(position, member)| {
        let mut runs: Vec<LaneRun> = Vec::new();
        for run in member.residency.iter().filter(|run| !run.layers.is_empty()) {
            match runs.last_mut() {
                Some(last)
                    if last.weights == run.weights && last.layers.end() == run.layers.start() =>
                {
                    let length = last.layers.len() + run.layers.len();
                    last.layers = LayerRange::with_len(last.layers.start(), length);
                }
                _ => runs.push(LaneRun { layers: run.layers, weights: run.weights }),
            }
        }
        let device = problem.cluster.device(member.device);
        let claims = outcome.plan.spec().memory.iter();
        let claim = claims.copied().find(|claim| claim.device == member.device);
        let stage = replica.predicted.stage_s[position];
        Lane {
            device: member.device,
            name: device.name.clone(),
            hardware: device.hardware_name().to_owned(),
            head: replica.head == member.device,
            runs,
            stage,
            hop: replica.predicted.hop_s[position],
            bottleneck: slowest == Some(member.device) && replica.members.len() > 1,
            gpu: claim.map_or_else(Default::default, |c| (c.gpu_bytes, c.gpu_budget_bytes)),
            ram: claim.map_or_else(Default::default, |c| (c.ram_bytes, c.ram_budget_bytes)),
        }
    });
    DrawnReplica {
        heading,
        rounds: replica.rounds,
        pass: pass_time(replica),
        lanes: lanes.collect(),
    }
}
