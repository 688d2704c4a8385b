//! The planner's answer as a ring that the runtime can make.

use std::collections::{BTreeMap, BTreeSet};

use motley_cluster::{DeviceId, FieldError, ReplicaSpec, Residency, ResidencyRun, Role, Seconds};
use motley_planner::{
    Budget, Explanation, Method, Objective, PlanError, PlanOutcome, Problem, explain_as_it_is,
    explain_refusal, plan,
};
use motley_ring::{NodeId, Route, RouteError};

use super::question::{Allowance, Asked, Question};
use super::stages::{StageTime, stage_times, token_time};

/// One ring over some of the devices.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    pub(crate) route: Route,
    /// In the order of the route's list.
    pub(crate) members: Vec<PlacedMember>,
    /// Sequences at once.
    pub(crate) slots: u32,
    /// What it was planned for.
    pub(crate) allowance: Allowance,
    /// Micro-batches at once, where the goal is about many requests.
    pub(crate) groups: Option<u32>,
    pub(crate) rounds: u32,
    /// Time per token of one sequence.
    pub(crate) token_s: f64,
    /// Part of it in which everybody waits for disks.
    pub(crate) waiting_s: f64,
    /// Time to the first token of the goal's prompt.
    pub(crate) first_token_s: f64,
    /// Why it is as it is, a sentence each.
    pub(crate) reasons: Vec<String>,
    /// Devices without work, and why.
    pub(crate) left_out: BTreeMap<NodeId, String>,
    /// What the ring in force takes per token by what is known now.
    pub(crate) token_in_force_s: Option<f64>,
}

impl Placement {
    /// Whether weights are read from disk for each token.
    pub(super) fn streams(&self) -> bool {
        let mut runs = self.members.iter().flat_map(|member| &member.residency);
        runs.any(|run| run.weights == Residency::Stream)
    }
}

/// A member of a placement.
#[derive(Clone, Debug)]
pub(crate) struct PlacedMember {
    pub(crate) node: NodeId,
    /// How its layers are kept.
    pub(crate) residency: Vec<ResidencyRun>,
    /// Predicted time of computing, and of waiting for its disk meanwhile, per token.
    pub(crate) compute_s: f64,
    /// Predicted time of sending, per token.
    pub(crate) hop_s: f64,
    /// The factor that its prediction was corrected by.
    pub(crate) factor: f64,
}

/// A ring that serves, to be compared with a new one.
#[derive(Clone, Debug)]
pub(crate) struct InForce {
    pub(crate) route: Route,
    /// In the order of the route's list.
    pub(crate) nodes: Vec<NodeId>,
    /// Time per token in which it waits for disks, as its plan had it.
    pub(crate) waiting_s: f64,
}

/// Why layers cannot be placed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum NoPlacement {
    /// The head's own profile or the links contradict themselves.
    #[error("this device cannot be planned with: {0}")]
    Head(#[from] FieldError),
    /// The devices do not suffice.
    #[error("{cause}{}", hint(.remedies))]
    Refused {
        /// What is short.
        cause: String,
        /// What would help.
        remedies: Vec<String>,
    },
    /// The plan is larger than a ring can be.
    #[error(transparent)]
    Route(#[from] RouteError),
}

fn hint(remedies: &[String]) -> String {
    if remedies.is_empty() {
        return String::new();
    }
    format!("; what would help: {}", remedies.join("; or "))
}

/// Plans one ring over the devices of `question`: with as much as is asked for of what leaves all
/// weights in memory; where nothing does, with as much as leads to a plan at all, and with the
/// micro-batches that answer a request of the goal sooner. `in_force` is measured by the same
/// figures.
///
/// # Errors
/// When there is none.
pub(crate) fn place(
    question: &Question,
    in_force: Option<&InForce>,
) -> Result<Placement, NoPlacement> {
    let mut streamed: Vec<Placement> = Vec::new();
    let mut refused = None;
    for allowance in &question.allowances {
        let is_known = |placed: &Placement| placed.allowance.batch_rows == allowance.batch_rows;
        match place_within(question, allowance, in_force) {
            Ok(placement) if !placement.streams() => return Ok(placement),
            Ok(placement) if !streamed.iter().any(is_known) => streamed.push(placement),
            Ok(_) => {}
            Err(refusal) => drop(refused.get_or_insert(refusal)),
        }
    }
    let tokens = question.goal.workload.generated_tokens.mean;
    let answer_s = |it: &Placement| it.first_token_s + tokens * it.token_s;
    let soonest = streamed.into_iter().min_by(|a, b| answer_s(a).total_cmp(&answer_s(b)));
    soonest.ok_or_else(|| refused.expect("a question has an allowance"))
}

fn place_within(
    question: &Question,
    allowance: &Allowance,
    in_force: Option<&InForce>,
) -> Result<Placement, NoPlacement> {
    let (asked, outcome, rather) = planned(question, allowance)?;
    let replica = &outcome.plan.replicas()[0];
    let (route, devices) = Route::of_replica(replica)?;
    let explanation = explain_as_it_is(&asked.problem, &outcome, Budget::DEFAULT);
    let latency = asked.problem.objective == Objective::Latency;
    let times = stage_times(&asked.problem, &route, &devices).unwrap_or_default();
    let mut reasons = Vec::new();
    if !allowance.given_up.is_empty() {
        let (context, less) =
            (asked.problem.workload.context_tokens, allowance.given_up.join(", "));
        reasons.push(format!("To make room for a context of {context} tokens: {less}."));
    }
    reasons.extend(explanation.reasons(&asked.problem));
    reasons.extend(rather);
    let token_in_force_s = in_force.and_then(|ring| in_force_time(&asked, ring));
    let worked_s = token_time(&times).value();
    let token_s = if latency { outcome.plan.predicted().tpot_s.value() } else { worked_s };
    Ok(Placement {
        members: members(question, &asked, replica, (&devices, &times)),
        slots: if latency { allowance.slots } else { replica.slots },
        allowance: allowance.clone(),
        groups: (!latency).then_some(replica.groups),
        rounds: replica.rounds,
        token_s,
        waiting_s: (token_s - worked_s).max(0.0),
        first_token_s: outcome.plan.predicted().ttft_s.value(),
        left_out: left_out(&asked, &explanation),
        reasons,
        token_in_force_s,
        route,
    })
}

/// The best ring, and the problem that it solves. Who has memory for a second layout of weights is
/// known once layers are dealt out; whoever was without it once stays so, because a plan that counts
/// on it would come back otherwise.
fn planned(
    question: &Question,
    allowance: &Allowance,
) -> Result<(Asked, PlanOutcome, Option<String>), NoPlacement> {
    let mut tight = BTreeSet::new();
    loop {
        let asked = question.asked(allowance, &tight)?;
        let (outcome, rather) = one_ring(&asked.problem)?;
        let before = tight.len();
        tight.extend(question.tight(allowance, &asked, &outcome.plan.replicas()[0]));
        if tight.len() == before {
            return Ok((asked, outcome, rather));
        }
    }
}

fn members(
    question: &Question,
    asked: &Asked,
    replica: &ReplicaSpec,
    (devices, times): (&[DeviceId], &[StageTime]),
) -> Vec<PlacedMember> {
    let member = |(index, device): (usize, &DeviceId)| {
        let node = asked.nodes[device.index()];
        let place = replica.members.iter().position(|member| member.device == *device);
        let planned = place.map(|place| &replica.members[place]);
        let time = times.get(index).copied().unwrap_or_default();
        // What a device reads for its layers, and does not hide behind computing, is in its time.
        let stage = place.and_then(|place| replica.predicted.stage_s.get(place)).copied();
        let one_at_a_time = asked.problem.objective == Objective::Latency;
        let compute = stage.filter(|_| one_at_a_time).unwrap_or(time.compute);
        let candidate = question.candidates.iter().find(|candidate| candidate.node == node);
        PlacedMember {
            node,
            residency: planned.map(|member| member.residency.clone()).unwrap_or_default(),
            compute_s: compute.value(),
            hop_s: time.hop.value(),
            factor: candidate.map_or(1.0, |candidate| candidate.factor),
        }
    };
    devices.iter().enumerate().map(member).collect()
}

/// Why devices have no work: those that the planner left out, and those it was not asked about.
fn left_out(asked: &Asked, explanation: &Explanation) -> BTreeMap<NodeId, String> {
    let mut left_out = asked.refused.clone();
    for unused in explanation.unused.iter().filter(|unused| !unused.relay) {
        let node = asked.nodes[unused.device.index()];
        // Without any ring that has it, there is no gain and no cost to tell.
        if unused.tpot_with.is_none() && unused.gain == Seconds::ZERO {
            let reason = match asked.is_reachable(unused.device) {
                true => "not used; it has no room for a layer",
                false => "not used; there is no way to it",
            };
            left_out.insert(node, reason.to_owned());
            continue;
        }
        let sentence = explanation.why_unused(unused.device).unwrap_or_default();
        // The device's name stands before the sentence.
        let reason = sentence.strip_prefix(&format!("{}: ", unused.name)).unwrap_or(&sentence);
        let reason = reason.trim_end_matches('.').to_owned();
        left_out.insert(node, reason);
    }
    left_out
}

/// Time of a token on a ring that serves already; nothing if one of its devices is not there.
fn in_force_time(asked: &Asked, ring: &InForce) -> Option<f64> {
    let device = |node: &NodeId| {
        let at = asked.nodes.iter().position(|known| known == node)?;
        Some(DeviceId::new(u16::try_from(at).ok()?))
    };
    let devices: Vec<DeviceId> = ring.nodes.iter().map(device).collect::<Option<_>>()?;
    let worked = token_time(&stage_times(&asked.problem, &ring.route, &devices)?);
    Some(worked.value() + ring.waiting_s)
}

/// Methods that plan one ring, for goals whose best plan would be several.
const ONE_RING: [Method; 6] = [
    Method::Halda,
    Method::MemoryProportional,
    Method::FlopsProportional,
    Method::FillFastestGpu,
    Method::Uniform,
    Method::BestSingleDevice,
];

/// The best plan that is one ring for prompts and generation, which is what the runtime serves, and
/// what the planner would rather have, in words.
fn one_ring(problem: &Problem) -> Result<(PlanOutcome, Option<String>), NoPlacement> {
    let refused = |error: PlanError| {
        let refusal = explain_refusal(problem, Method::Auto, &error, Budget::DEFAULT);
        NoPlacement::Refused { cause: refusal.cause, remedies: refusal.remedies }
    };
    let free = plan(problem, Method::Auto, Budget::DEFAULT).map_err(refused)?;
    if is_one_ring(&free) {
        return Ok((free, None));
    }
    let rings = ONE_RING
        .into_iter()
        .filter_map(|method| plan(problem, method, Budget::DEFAULT).ok().filter(is_one_ring));
    let more_is_better = matches!(problem.objective, Objective::Goodput | Objective::Throughput);
    let best = rings.min_by(|a, b| {
        let order = a.objective_value.total_cmp(&b.objective_value);
        if more_is_better { order.reverse() } else { order }
    });
    let best = best.ok_or_else(|| NoPlacement::Refused {
        cause: "the plan has several replicas, and no single ring serves this workload".to_owned(),
        remedies: Vec::new(),
    })?;
    let words = rather(&free);
    Ok((best, Some(words)))
}

fn is_one_ring(outcome: &PlanOutcome) -> bool {
    matches!(outcome.plan.replicas(), [only] if only.role == Role::Mixed)
}

fn rather(free: &PlanOutcome) -> String {
    let predicted = free.plan.predicted();
    let count = free.plan.replicas().len();
    let wait = |time: Seconds| format!("{:.2} s", time.value());
    format!(
        "Served is one ring; the planner would rather have {count} replicas, {:.2} tok/s together, \
         a request waiting {}.",
        predicted.throughput_tok_per_s.value(),
        wait(predicted.wait_s)
    )
}
