//! The facts of an explanation: shares, left-out devices, slots, the best single device, changes.

use std::cell::Cell;

use motley_cluster::{
    Bytes, DeviceId, KvPlace, LayerRange, MemberSpec, MemoryClaim, ReplicaId, ReplicaSpec,
    Residency, Role, Seconds,
};
use serde::Serialize;

use super::changes::{self, ChangeEffect};
use super::drawing::slowest;
use crate::cost::{CostModel, MemoryBudget, Pass, Site};
use crate::dispatch::plan;
use crate::problem::{
    Budget, LimitKind, Method, Objective, PlanError, PlanOutcome, Problem, Quality, Reason,
};

/// Why a plan is as it is and what would change it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    /// The method that planned.
    pub method: Method,
    /// What was optimised.
    pub objective: Objective,
    /// Its value: seconds, or tokens or requests per second.
    pub objective_value: f64,
    /// How good the plan is known to be.
    pub quality: Quality,
    /// Devices that compute, in ring order, replica by replica.
    pub used: Vec<UsedDevice>,
    /// Devices that do not.
    pub unused: Vec<UnusedDevice>,
    /// The replicas.
    pub replicas: Vec<ReplicaFacts>,
    /// The best single device, if one can serve alone.
    pub single: Option<SingleDevice>,
    /// Time per output token of the plan.
    pub tpot: Seconds,
    /// Changes that were planned for, the most helpful first.
    pub changes: Vec<ChangeEffect>,
    /// Changes that the budget left no work for.
    pub changes_skipped: usize,
}

/// A device with layers or the head.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UsedDevice {
    /// The device.
    pub device: DeviceId,
    /// Its name.
    pub name: String,
    /// Its replica.
    pub replica: ReplicaId,
    /// It embeds, projects and samples.
    pub head: bool,
    /// Its layers, window by window.
    pub windows: Vec<LayerRange>,
    /// Of them in GPU memory.
    pub gpu_layers: u32,
    /// Of them pinned in RAM.
    pub ram_layers: u32,
    /// Of them read from disk each time.
    pub stream_layers: u32,
    /// Time of one layer on its GPU, if it has one.
    pub gpu_layer: Option<Seconds>,
    /// Time of one layer on its CPU.
    pub cpu_layer: Seconds,
    /// Its busy time per pass.
    pub stage: Seconds,
    /// Nothing in its replica takes longer.
    pub bottleneck: bool,
    /// Memory taken and there to take.
    pub memory: Option<MemoryClaim>,
    /// What one more layer would cost here; `None` if it fits nowhere.
    pub next_layer: Option<NextLayer>,
}

/// Where one more layer would go, and its time per pass.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct NextLayer {
    /// Where.
    pub place: NextLayerPlace,
    /// Time it would add to the stage.
    pub time: Seconds,
}

/// A place for one more layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NextLayerPlace {
    /// In free GPU memory.
    Gpu,
    /// In free RAM.
    Ram,
    /// On disk, read each time.
    Stream,
}

/// A device without work.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UnusedDevice {
    /// The device.
    pub device: DeviceId,
    /// Its name.
    pub name: String,
    /// It forwards for others.
    pub relay: bool,
    /// It may not be used.
    pub excluded: bool,
    /// Layers it could take from the slowest place; 0 if it has room for none.
    pub layers: u32,
    /// Time per token it would save by taking them over.
    pub gain: Seconds,
    /// Time per token its hop would cost; `None` if it cannot be reached.
    pub hop_cost: Option<Seconds>,
    /// Time per token of the best plan with it, where the search computed that.
    pub tpot_with: Option<Seconds>,
    /// Where gain and hop cost come from.
    pub basis: Basis,
}

/// Where a figure comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// The search planned with the device.
    Searched,
    /// The cost model's layer and hop times.
    CostModel,
}

/// A replica.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReplicaFacts {
    /// Which.
    pub replica: ReplicaId,
    /// Its role.
    pub role: Role,
    /// Its slots.
    pub slots: u32,
    /// Groups the slots circulate in.
    pub groups: u32,
    /// Passes around the ring per token.
    pub rounds: u32,
    /// What stops one more slot, if known.
    pub limited_by: Option<LimitKind>,
    /// Room for one more slot on the member that has least.
    pub tightest: Option<SlotRoom>,
    /// The objective's value if this replica had its best other role, where the search told it.
    pub other_role: Option<f64>,
    /// Time per output token with all slots busy.
    pub tpot: Seconds,
    /// Compute and hop times of one pass, together.
    pub pass: Seconds,
}

/// Memory for keys and values of one more slot.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SlotRoom {
    /// The device.
    pub device: DeviceId,
    /// Its name.
    pub name: String,
    /// What one more slot takes there.
    pub needed: Bytes,
    /// What is free there.
    pub free: Bytes,
}

/// The best single device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SingleDevice {
    /// The device.
    pub device: DeviceId,
    /// Its name.
    pub name: String,
    /// Its time per output token.
    pub tpot: Seconds,
    /// The objective it reaches; absent if that is the time per output token.
    pub objective_value: Option<f64>,
}

/// Re-plans within one budget for all questions together.
pub(super) struct Replanner<'a> {
    budget: Budget,
    left: Cell<u64>,
    run: &'a dyn Fn(&Problem, Method, Budget) -> Result<PlanOutcome, PlanError>,
}

impl<'a> Replanner<'a> {
    pub(super) fn new(
        budget: Budget,
        run: &'a dyn Fn(&Problem, Method, Budget) -> Result<PlanOutcome, PlanError>,
    ) -> Self {
        Self { budget, left: Cell::new(budget.evaluations), run }
    }

    /// The plan, `None` if there is none; every question gets the same budget, so that answers
    /// compare.
    pub(super) fn ask(&self, problem: &Problem, method: Method) -> Option<PlanOutcome> {
        let outcome = (self.run)(problem, method, self.budget);
        let used = outcome.as_ref().map_or(1, |outcome| outcome.used.evaluations.max(1));
        self.left.set(self.left.get().saturating_sub(used));
        outcome.ok()
    }

    pub(super) fn exhausted(&self) -> bool {
        self.left.get() == 0
    }
}

/// Explains a plan. Changes and the best single device are found by planning again; once that has
/// used `budget`, remaining changes are skipped and counted.
#[must_use]
pub fn explain(problem: &Problem, outcome: &PlanOutcome, budget: Budget) -> Explanation {
    explain_by(problem, outcome, &Replanner::new(budget, &plan))
}

/// What [`explain`] tells, without trying changes.
#[must_use]
pub fn explain_as_it_is(problem: &Problem, outcome: &PlanOutcome, budget: Budget) -> Explanation {
    explain_with(problem, outcome, &Replanner::new(budget, &plan), false)
}

pub(super) fn explain_by(
    problem: &Problem,
    outcome: &PlanOutcome,
    replanner: &Replanner<'_>,
) -> Explanation {
    explain_with(problem, outcome, replanner, true)
}

fn explain_with(
    problem: &Problem,
    outcome: &PlanOutcome,
    replanner: &Replanner<'_>,
    tries_changes: bool,
) -> Explanation {
    let costs = CostModel::new(&problem.cluster, &problem.model, &problem.workload);
    let facts = Facts { problem, outcome, costs };
    let single = facts.single(replanner);
    let (changes, changes_skipped) = match tries_changes {
        true => changes::effects(problem, outcome, replanner),
        false => (Vec::new(), 0),
    };
    Explanation {
        method: outcome.method,
        objective: problem.objective,
        objective_value: outcome.objective_value,
        quality: outcome.quality,
        used: facts.used(),
        unused: facts.unused(),
        replicas: facts.replicas(),
        single,
        tpot: outcome.plan.predicted().tpot_s,
        changes,
        changes_skipped,
    }
}

struct Facts<'a> {
    problem: &'a Problem,
    outcome: &'a PlanOutcome,
    costs: CostModel<'a>,
}

impl Facts<'_> {
    fn name(&self, device: DeviceId) -> String {
        self.problem.cluster.device(device).name.clone()
    }

    /// One pass of one group of a replica.
    fn pass(&self, replica: &ReplicaSpec) -> Pass {
        let workload = &self.problem.workload;
        match replica.role {
            Role::Prefill => {
                let prompt = workload.prompt_tokens.mean.ceil() as u32;
                Pass::prefill(workload.micro_batch_tokens.min(prompt).max(1), 0)
            }
            Role::Decode | Role::Mixed => {
                Pass::decode(replica.slots.div_ceil(replica.groups), workload.mean_depth_tokens())
            }
        }
    }

    fn claim(&self, device: DeviceId) -> Option<MemoryClaim> {
        self.outcome.plan.spec().memory.iter().copied().find(|claim| claim.device == device)
    }

    fn used(&self) -> Vec<UsedDevice> {
        let mut used = Vec::new();
        for (index, replica) in self.outcome.plan.replicas().iter().enumerate() {
            let slowest = slowest(self.outcome, index);
            for (member, stage) in replica.members.iter().zip(&replica.predicted.stage_s) {
                used.push(UsedDevice {
                    replica: ReplicaId::new(index as u16),
                    bottleneck: slowest == Some(member.device),
                    stage: *stage,
                    ..self.member(replica, member)
                });
            }
        }
        used
    }

    fn member(&self, replica: &ReplicaSpec, member: &MemberSpec) -> UsedDevice {
        let device = member.device;
        let pass = self.pass(replica);
        let cpu_layer = self.costs.mean_layer_time(device, Site::Cpu, pass);
        UsedDevice {
            device,
            name: self.name(device),
            replica: ReplicaId::new(0),
            head: replica.head == device,
            windows: member.windows.iter().copied().filter(|window| !window.is_empty()).collect(),
            gpu_layers: member.count(Residency::Gpu),
            ram_layers: member.count(Residency::Ram),
            stream_layers: member.count(Residency::Stream),
            gpu_layer: self.costs.mean_layer_time(device, Site::Gpu, pass),
            cpu_layer: cpu_layer.expect("every device has a CPU"),
            stage: Seconds::ZERO,
            bottleneck: false,
            memory: self.claim(device),
            next_layer: self.next_layer(replica, device, pass),
        }
    }

    /// The cheapest place that has room for one more layer and its keys and values.
    fn next_layer(&self, replica: &ReplicaSpec, device: DeviceId, pass: Pass) -> Option<NextLayer> {
        let profile = self.problem.cluster.device(device);
        let claim = self.claim(device)?;
        let needed = self.layer_and_kv(replica);
        let layer_time = |site| self.costs.mean_layer_time(device, site, pass);
        let free = |taken: Bytes, budget: Bytes| budget.saturating_sub(taken);
        let gpu_free = free(claim.gpu_bytes, claim.gpu_budget_bytes);
        // One memory: what the CPU side took is gone for the GPU, too.
        let shared = MemoryBudget::of(profile).shared;
        let both = claim.gpu_bytes + claim.ram_bytes;
        let gpu_free = if shared { free(both, claim.gpu_budget_bytes) } else { gpu_free };
        if let Some(time) = layer_time(Site::Gpu).filter(|_| gpu_free >= needed) {
            return Some(NextLayer { place: NextLayerPlace::Gpu, time });
        }
        let cpu = layer_time(Site::Cpu)?;
        let ram_free = free(claim.ram_bytes, claim.ram_budget_bytes);
        if !shared && ram_free >= needed {
            return Some(NextLayer { place: NextLayerPlace::Ram, time: cpu });
        }
        if !self.problem.options.allow_streaming {
            return None;
        }
        let read = self.costs.mean_streamed_bytes(pass.tokens) / profile.reload_rate();
        Some(NextLayer { place: NextLayerPlace::Stream, time: cpu.max(read) })
    }

    fn layer_and_kv(&self, replica: &ReplicaSpec) -> Bytes {
        let tokens = self.costs.kv_tokens_per_slot(replica.role);
        let all = LayerRange::with_len(0, self.problem.model.layers_count());
        let kv = self.costs.kv_bytes(all, tokens).times(u64::from(replica.slots));
        let layers = u64::from(self.problem.model.layers_count());
        self.problem.model.mean_layer_bytes() + Bytes::new(kv.count() / layers)
    }

    fn unused(&self) -> Vec<UnusedDevice> {
        let used = self.outcome.plan.devices_used();
        let idle = self.problem.cluster.ids().filter(|id| !used.contains(id));
        idle.map(|device| self.unused_device(device)).collect()
    }

    fn unused_device(&self, device: DeviceId) -> UnusedDevice {
        let relays = |member: &MemberSpec| member.relays_to_next.contains(&device);
        let mut members = self.outcome.plan.replicas().iter().flat_map(|replica| &replica.members);
        let hand_overs = self.outcome.plan.spec().hand_overs.iter();
        let forwards = hand_overs.flat_map(|hand_over| &hand_over.routes);
        let forwards = forwards.flat_map(|route| &route.relays).any(|relay| *relay == device);
        let estimate = self.estimate(device);
        let mut unused = UnusedDevice {
            device,
            name: self.name(device),
            relay: members.any(relays) || forwards,
            excluded: self.problem.options.excluded.contains(&device),
            layers: estimate.layers,
            gain: estimate.gain,
            hop_cost: estimate.hop_cost,
            tpot_with: None,
            basis: Basis::CostModel,
        };
        for reason in &self.outcome.reasons {
            if let Reason::LeftOut { device: left, gain, hop_cost, tpot_with } = reason
                && *left == device
            {
                unused.gain = *gain;
                unused.hop_cost = Some(*hop_cost);
                unused.tpot_with = *tpot_with;
                unused.basis = Basis::Searched;
            }
        }
        unused
    }

    /// The best gain minus hop over all members that could hand layers to the device (PLANNER 9,
    /// "worth adding"): layers times the difference of layer times, against two hops for one.
    fn estimate(&self, device: DeviceId) -> Estimate {
        let nothing = Estimate { layers: 0, gain: Seconds::ZERO, hop_cost: None };
        let mut best = nothing;
        let mut value = f64::NEG_INFINITY;
        for replica in self.outcome.plan.replicas() {
            let pass = self.pass(replica);
            for (position, member) in replica.members.iter().enumerate() {
                let next = &replica.members[(position + 1) % replica.members.len()];
                let hop = |from, to| self.costs.hop_time(from, to, pass);
                let Some((there, back)) = hop(member.device, device).zip(hop(device, next.device))
                else {
                    continue;
                };
                let direct = hop(member.device, next.device).unwrap_or_default();
                let hop_cost = (there + back).saturating_sub(direct);
                let (layers, gain) = self.taken_over(replica, member, device);
                let worth = gain.value() - hop_cost.value();
                if worth > value {
                    value = worth;
                    best = Estimate { layers, gain, hop_cost: Some(hop_cost) };
                }
            }
        }
        best
    }

    /// How many of a member's slowest layers fit the device, and the time that saves.
    fn taken_over(
        &self,
        replica: &ReplicaSpec,
        member: &MemberSpec,
        device: DeviceId,
    ) -> (u32, Seconds) {
        let pass = self.pass(replica);
        let budget = MemoryBudget::of(self.problem.cluster.device(device));
        let room =
            |bytes: Bytes| (bytes.count() / self.layer_and_kv(replica).count().max(1)) as u32;
        let gpu = (room(budget.gpu), self.costs.mean_layer_time(device, Site::Gpu, pass));
        let cpu_room = if budget.shared { 0 } else { room(budget.ram) };
        let cpu = (cpu_room, self.costs.mean_layer_time(device, Site::Cpu, pass));
        let mut own: Vec<Seconds> = Vec::new();
        for (room, time) in [gpu, cpu] {
            let most = self.problem.model.layers_count();
            own.extend(time.into_iter().flat_map(|time| vec![time; room.min(most) as usize]));
        }
        own.sort_unstable();
        let mut theirs: Vec<Seconds> = Vec::new();
        for run in &member.residency {
            let each = self.kept_layer_time(member.device, run.weights, pass);
            theirs.extend(vec![each; run.layers.len() as usize]);
        }
        theirs.sort_unstable_by(|a, b| b.cmp(a));
        let mut gain = Seconds::ZERO;
        let mut layers = 0;
        for (own, theirs) in own.into_iter().zip(theirs) {
            if own >= theirs {
                break;
            }
            gain += theirs.saturating_sub(own);
            layers += 1;
        }
        (layers, gain)
    }

    fn kept_layer_time(&self, device: DeviceId, weights: Residency, pass: Pass) -> Seconds {
        let site = if weights == Residency::Gpu { Site::Gpu } else { Site::Cpu };
        let time = self.costs.mean_layer_time(device, site, pass).unwrap_or_default();
        if weights == Residency::Stream {
            let rate = self.problem.cluster.device(device).reload_rate();
            return time.max(self.costs.mean_streamed_bytes(pass.tokens) / rate);
        }
        time
    }

    fn replicas(&self) -> Vec<ReplicaFacts> {
        let replicas = self.outcome.plan.replicas().iter().enumerate();
        replicas.map(|(index, replica)| self.replica(index as u16, replica)).collect()
    }

    fn replica(&self, index: u16, replica: &ReplicaSpec) -> ReplicaFacts {
        let id = ReplicaId::new(index);
        let tightest = self.tightest(replica);
        let (mut limited_by, mut other_role) = (None, None);
        for reason in &self.outcome.reasons {
            match reason {
                Reason::Slots { replica, limited_by: limit, .. } if *replica == id => {
                    limited_by = Some(*limit);
                }
                Reason::RoleChosen { replica, next_best, .. } if *replica == id => {
                    other_role = *next_best;
                }
                _ => {}
            }
        }
        let full = tightest.as_ref().is_some_and(|room| room.free < room.needed);
        let served = replica.slots >= self.problem.workload.requests;
        let limited_by = limited_by
            .or_else(|| served.then_some(LimitKind::Arrival))
            .or_else(|| full.then_some(LimitKind::Memory));
        let predicted = &replica.predicted;
        ReplicaFacts {
            replica: id,
            role: replica.role,
            slots: replica.slots,
            groups: replica.groups,
            rounds: replica.rounds,
            limited_by,
            tightest,
            other_role,
            tpot: predicted.tpot_s,
            pass: predicted.stage_s.iter().chain(&predicted.hop_s).copied().sum(),
        }
    }

    /// The member where the memory for one more slot is scarcest.
    fn tightest(&self, replica: &ReplicaSpec) -> Option<SlotRoom> {
        let tokens = self.costs.kv_tokens_per_slot(replica.role);
        let rooms = replica.members.iter().filter_map(|member| {
            let claim = self.claim(member.device)?;
            let kv = |place| -> Bytes {
                let runs = member.residency.iter().filter(|run| run.kv == place);
                runs.map(|run| self.costs.kv_bytes(run.layers, tokens)).sum()
            };
            let gpu = kv(KvPlace::Gpu);
            let ram = kv(KvPlace::Ram);
            let gpu_free = claim.gpu_budget_bytes.saturating_sub(claim.gpu_bytes);
            let ram_free = claim.ram_budget_bytes.saturating_sub(claim.ram_bytes);
            let sides = [(gpu, gpu_free), (ram, ram_free)].into_iter();
            sides
                .filter(|(needed, _)| *needed > Bytes::ZERO)
                .map(|(needed, free)| (member, needed, free))
                .min_by_key(|room| room.2.saturating_sub(room.1))
        });
        let scarcity = |room: &(&MemberSpec, Bytes, Bytes)| room.2.as_f64() / room.1.as_f64();
        let (member, needed, free) = rooms.min_by(|a, b| scarcity(a).total_cmp(&scarcity(b)))?;
        Some(SlotRoom { device: member.device, name: self.name(member.device), needed, free })
    }

    fn single(&self, replanner: &Replanner<'_>) -> Option<SingleDevice> {
        let latency = self.problem.objective == Objective::Latency;
        for reason in self.outcome.reasons.iter().filter(|_| latency) {
            if let Reason::AgainstSingleDevice { device, single_tpot, .. } = reason {
                let (device, tpot) = (*device).zip(*single_tpot)?;
                let name = self.name(device);
                return Some(SingleDevice { device, name, tpot, objective_value: None });
            }
        }
        let alone = replanner.ask(self.problem, Method::BestSingleDevice)?;
        let device = *alone.plan.devices_used().first()?;
        Some(SingleDevice {
            device,
            name: self.name(device),
            tpot: alone.plan.predicted().tpot_s,
            objective_value: (!latency).then_some(alone.objective_value),
        })
    }
}

#[derive(Debug, Clone, Copy)]
struct Estimate {
    layers: u32,
    gain: Seconds,
    hop_cost: Option<Seconds>,
}
