//! From chosen replicas to a proven plan with its predictions and reasons.

use std::collections::BTreeMap;

use motley_cluster::{
    Bytes, DeviceId, FormatVersion, HandOver, HandOverRoute, KvPlace, LayerRange, MemberSpec,
    MemoryClaim, Plan, PlanPrediction, PlanSpec, ReplicaId, ReplicaPrediction, ReplicaSpec,
    Residency, ResidencyRun, Role, Route, Seconds, TokensPerSecond,
};

use super::reasons::reasons;
use super::replica::{Body, Choice, hops};
use super::ring::RingBody;
use super::setting::Setting;
use super::split::Split;
use crate::cost::{Fit, MemoryBudget, StageShape, stage_demand, stage_fit};
use crate::problem::{BudgetUse, Method, Objective, PlanError, PlanOutcome, Quality, Shortage};
use crate::waiting::Sums;

/// A choice on real devices.
#[derive(Debug, Clone)]
pub(super) struct Placed {
    pub(super) choice: Choice,
    /// In ring order, the master first.
    pub(super) devices: Vec<DeviceId>,
    /// Hand-overs stay between replicas of one site.
    pub(super) site: usize,
}

/// Gives every choice devices of its types, lowest ids first.
pub(super) fn place(setting: &Setting<'_>, choices: Vec<Choice>, site: usize) -> Vec<Placed> {
    let mut used = vec![0; setting.types.len()];
    choices
        .into_iter()
        .map(|choice| {
            let devices = choice
                .order
                .iter()
                .map(|kind| {
                    used[*kind] += 1;
                    setting.types[*kind].members[used[*kind] - 1]
                })
                .collect();
            Placed { choice, devices, site }
        })
        .collect()
}

/// Proves the plan and states what it promises.
pub(super) fn outcome(
    setting: &Setting<'_>,
    placed: &[Placed],
    method: Method,
    quality: Quality,
) -> Result<PlanOutcome, PlanError> {
    let problem = setting.problem;
    let hand_overs = hand_overs(setting, placed)?;
    let sums = carried(setting, placed, &hand_overs);
    let predicted = predict(setting, placed, &hand_overs, &sums);
    let rest = [predicted.ttft_s.value(), predicted.tpot_s.value(), 0.0];
    let value = setting.goal.value(&setting.demand.key(setting.goal, &sums, rest));
    let names = problem.cluster.devices().iter().map(|device| device.name.clone());
    let spec = PlanSpec {
        version: FormatVersion::default(),
        model: problem.model.name.clone(),
        layers: setting.layers,
        devices: names.collect(),
        context_tokens: problem.workload.context_tokens,
        kv_type: problem.workload.kv_type,
        replicas: placed.iter().map(|placed| replica(setting, placed)).collect(),
        hand_overs,
        memory: placed.iter().flat_map(|placed| claims(setting, placed)).collect(),
        predicted,
    };
    let plan = Plan::new(spec).expect("a search builds plans that obey the rules");
    let reasons = reasons(setting, placed, &plan);
    let used = BudgetUse { evaluations: setting.evaluations.get(), milps: 0 };
    Ok(PlanOutcome { plan, method, objective_value: value, quality, reasons, used })
}

fn seconds(value: f64) -> Seconds {
    Seconds::new(value).expect("predicted times are finite and not negative")
}

fn rate(value: f64) -> TokensPerSecond {
    TokensPerSecond::new(value).expect("predicted rates are finite and not negative")
}

fn replica(setting: &Setting<'_>, placed: &Placed) -> ReplicaSpec {
    let Placed { choice, devices, .. } = placed;
    let route = |member: usize| {
        let next = devices[(member + 1) % devices.len()];
        setting.costs.route(devices[member], next).map_or(Vec::new(), |route| route.relays)
    };
    let (rounds, stages, batch) = match &choice.body {
        Body::Resident { split, load } => {
            (1, split.stages.iter().map(|stage| stage.time).collect::<Vec<f64>>(), load.batch)
        }
        Body::Ring(ring) => (ring.rounds, ring.stages.clone(), super::setting::Batch::Tokens(1)),
    };
    let members = devices.iter().enumerate().map(|(member, device)| {
        let (windows, residency) = match &choice.body {
            Body::Resident { split, .. } => resident_member(setting, choice, split, member),
            Body::Ring(ring) => ring_member(ring, member),
        };
        MemberSpec { device: *device, windows, residency, relays_to_next: route(member) }
    });
    let hops = hops(setting, &choice.order, batch);
    ReplicaSpec {
        role: choice.role,
        slots: choice.slots,
        groups: choice.groups,
        rounds,
        head: devices[0],
        members: members.collect(),
        predicted: ReplicaPrediction {
            prefill_tok_per_s: rate(choice.sums.prefill),
            decode_tok_per_s: rate(choice.sums.decode),
            tpot_s: seconds(choice.tpot),
            stage_s: stages.into_iter().map(seconds).collect(),
            hop_s: hops.into_iter().map(seconds).collect(),
        },
    }
}

fn resident_member(
    setting: &Setting<'_>,
    choice: &Choice,
    split: &Split,
    member: usize,
) -> (Vec<LayerRange>, Vec<ResidencyRun>) {
    let (start, end) = split.window(member);
    let gpu = split.stages[member].gpu_layers;
    let has_gpu = setting.types[choice.order[member]].has_gpu;
    let cpu_kv = if has_gpu && setting.kv_on_gpu { KvPlace::Gpu } else { KvPlace::Ram };
    let runs = [
        (LayerRange::with_len(start, gpu), Residency::Gpu, KvPlace::Gpu),
        (LayerRange::with_len(start + gpu, end - start - gpu), Residency::Ram, cpu_kv),
    ];
    let runs = runs.into_iter().filter(|(layers, _, _)| !layers.is_empty());
    let runs = runs.map(|(layers, weights, kv)| ResidencyRun { layers, weights, kv });
    (vec![LayerRange::with_len(start, end - start)], runs.collect())
}

fn ring_member(ring: &RingBody, member: usize) -> (Vec<LayerRange>, Vec<ResidencyRun>) {
    let kinds = [
        (Residency::Gpu, KvPlace::Gpu),
        (Residency::Ram, KvPlace::Ram),
        (Residency::Stream, KvPlace::Ram),
    ];
    let mut runs: Vec<ResidencyRun> = Vec::new();
    for (ranges, (weights, kv)) in ring.kept[member].iter().zip(kinds) {
        runs.extend(ranges.iter().map(|layers| ResidencyRun { layers: *layers, weights, kv }));
    }
    runs.sort_by_key(|run| run.layers);
    (ring.windows[member].clone(), runs)
}

fn claims(setting: &Setting<'_>, placed: &Placed) -> Vec<MemoryClaim> {
    let choice = &placed.choice;
    let claim = |(member, device): (usize, &DeviceId)| {
        let profile = setting.problem.cluster.device(*device);
        let (kept, cpu_kv) = match &choice.body {
            Body::Resident { split, .. } => {
                let (start, end) = split.window(member);
                let gpu = LayerRange::with_len(start, split.stages[member].gpu_layers);
                let ram = LayerRange::with_len(gpu.end(), end - gpu.end());
                let place = if setting.kv_on_gpu { KvPlace::Gpu } else { KvPlace::Ram };
                ([vec![gpu], vec![ram], Vec::new()], place)
            }
            Body::Ring(ring) => (ring.kept[member].clone(), KvPlace::Ram),
        };
        let shape = StageShape {
            gpu: &kept[0],
            ram: &kept[1],
            stream: &kept[2],
            head: member == 0,
            slots: choice.slots,
            kv_tokens: setting.costs.kv_tokens_per_slot(choice.role),
            cpu_kv,
        };
        let (model, workload) = (&setting.problem.model, &setting.problem.workload);
        let demand = stage_demand(profile, model, workload, &shape);
        let budget = MemoryBudget::of(profile);
        assert_eq!(stage_fit(demand, budget), Fit::Fits, "tables and memory rule agree");
        let (gpu_bytes, ram_bytes) = if budget.shared {
            (demand.gpu + demand.ram, Bytes::ZERO)
        } else {
            (demand.gpu, demand.ram)
        };
        MemoryClaim {
            device: *device,
            gpu_bytes,
            gpu_budget_bytes: budget.gpu,
            ram_bytes,
            ram_budget_bytes: budget.ram,
        }
    };
    placed.devices.iter().enumerate().map(claim).collect()
}

/// Ways from every prefill replica to every decode replica of its site that it can reach. Where a
/// site lacks one of both, its mixed replicas stand in: they decode what comes, or hand over what
/// they prefilled.
fn hand_overs(setting: &Setting<'_>, placed: &[Placed]) -> Result<Vec<HandOver>, PlanError> {
    let has = |site: usize, role: Role| {
        placed.iter().any(|one| one.site == site && one.choice.role == role)
    };
    let leads = |sender: &Placed, receiver: &Placed| {
        sender.site == receiver.site
            && match (sender.choice.role, receiver.choice.role) {
                (Role::Prefill, Role::Decode) => true,
                (Role::Prefill, Role::Mixed) => !has(sender.site, Role::Decode),
                (Role::Mixed, Role::Decode) => !has(sender.site, Role::Prefill),
                _ => false,
            }
    };
    let mut found: Vec<HandOver> = Vec::new();
    let mut connected = vec![false; placed.len()];
    for (from, sender) in placed.iter().enumerate() {
        for (to, receiver) in placed.iter().enumerate() {
            if !leads(sender, receiver) {
                continue;
            }
            if let Some(routes) = routes(setting, sender, receiver) {
                connected[from] = true;
                connected[to] = true;
                let (from, to) = (ReplicaId::new(from as u16), ReplicaId::new(to as u16));
                found.push(HandOver { from, to, routes });
            }
        }
    }
    for (index, one) in placed.iter().enumerate() {
        if connected[index] || one.choice.role == Role::Mixed {
            continue;
        }
        let partner = placed.iter().find(|other| leads(one, other) || leads(other, one));
        let far = partner.map_or(one.devices[0], |other| other.devices[0]);
        let shortage = Shortage::Link { from: one.devices[0], to: far };
        return Err(PlanError::Infeasible { shortage, remedies: Vec::new() });
    }
    Ok(found)
}

fn routes(setting: &Setting<'_>, sender: &Placed, receiver: &Placed) -> Option<Vec<HandOverRoute>> {
    let holders = |placed: &Placed| -> Vec<(DeviceId, u32)> {
        match &placed.choice.body {
            Body::Resident { split, .. } => {
                placed.devices.iter().copied().zip(split.ends.iter().copied()).collect()
            }
            Body::Ring(_) => Vec::new(),
        }
    };
    let (from, to) = (holders(sender), holders(receiver));
    let (mut a, mut b, mut start) = (0, 0, 0);
    let mut routes = Vec::new();
    while start < setting.layers {
        let (sends, until) = *from.get(a)?;
        let (receives, limit) = *to.get(b)?;
        let end = until.min(limit);
        if end > start {
            let relays = setting.costs.route(sends, receives)?.relays;
            let layers = LayerRange::with_len(start, end - start);
            routes.push(HandOverRoute { layers, from: sends, to: receives, relays });
            start = end;
        }
        a += usize::from(until <= end);
        b += usize::from(limit <= end);
    }
    Some(routes)
}

/// Bytes of a route's keys and values for a mean prompt.
fn route_bytes(setting: &Setting<'_>, layers: LayerRange) -> f64 {
    setting.hand_over[layers.end() as usize] - setting.hand_over[layers.start() as usize]
}

/// What the plan adds up to. Several sites each serve whole requests, so each counts with what it
/// carries through both phases.
fn carried(setting: &Setting<'_>, placed: &[Placed], hand_overs: &[HandOver]) -> Sums {
    let mut sites: BTreeMap<usize, Sums> = BTreeMap::new();
    for (index, one) in placed.iter().enumerate() {
        let site = sites.entry(one.site).or_default();
        *site = site.plus(contribution(setting, placed, hand_overs, index));
    }
    if sites.len() == 1 {
        return sites.into_values().fold(Sums::default(), Sums::plus);
    }
    let balanced = sites.into_values().map(|site| {
        let requests = setting.demand.capacity(&site);
        Sums {
            prefill: requests * setting.demand.prompt,
            decode: requests * setting.demand.generated,
            slots: site.slots,
        }
    });
    balanced.fold(Sums::default(), Sums::plus)
}

/// What one replica adds. Where links differ, the network cards' part is taken anew from the ways
/// its hand-overs go, in proportion to the rates at their ends.
fn contribution(
    setting: &Setting<'_>,
    placed: &[Placed],
    hand_overs: &[HandOver],
    index: usize,
) -> Sums {
    let choice = &placed[index].choice;
    if setting.uniform_wires() {
        return choice.sums;
    }
    let id = ReplicaId::new(index as u16);
    let demand = &setting.demand;
    match choice.role {
        Role::Mixed => choice.sums,
        Role::Prefill => {
            let ways = hand_overs.iter().filter(|way| way.from == id);
            let ways = ways.map(|way| (way, placed[way.to.index()].choice.computed.decode));
            let requests = 1.0 / card_time(setting, ways.collect(), true);
            Sums { prefill: choice.computed.prefill.min(requests * demand.prompt), ..choice.sums }
        }
        Role::Decode => {
            let ways = hand_overs.iter().filter(|way| way.to == id);
            let ways = ways.map(|way| (way, placed[way.from.index()].choice.computed.prefill));
            let requests = 1.0 / card_time(setting, ways.collect(), false);
            Sums { decode: choice.computed.decode.min(requests * demand.generated), ..choice.sums }
        }
    }
}

/// Time the busiest network card of one side spends on one request.
fn card_time(setting: &Setting<'_>, ways: Vec<(&HandOver, f64)>, sending: bool) -> f64 {
    let weights: f64 = ways.iter().map(|(_, weight)| weight).sum();
    let mut times: BTreeMap<DeviceId, f64> = BTreeMap::new();
    for (way, weight) in ways {
        for route in &way.routes {
            let Some(Route { links, .. }) = setting.costs.route(route.from, route.to) else {
                continue;
            };
            let link = if sending { links.first() } else { links.last() };
            let own = if sending { route.from } else { route.to };
            let time = link
                .map_or(0.0, |link| route_bytes(setting, route.layers) / link.bytes_per_s.value());
            *times.entry(own).or_default() += time * weight / weights;
        }
    }
    times.into_values().fold(0.0, f64::max)
}

/// Time until the keys and values of one prompt have arrived.
fn hand_over_time(setting: &Setting<'_>, way: &HandOver) -> f64 {
    let mut ends: BTreeMap<DeviceId, f64> = BTreeMap::new();
    for route in &way.routes {
        let Some(path) = setting.costs.route(route.from, route.to) else { continue };
        let bytes = route_bytes(setting, route.layers);
        let time: f64 = path
            .links
            .iter()
            .map(|link| link.rtt_s.value() / 2.0 + bytes / link.bytes_per_s.value())
            .sum();
        *ends.entry(route.from).or_default() += time;
        if route.from != route.to {
            *ends.entry(route.to).or_default() += time;
        }
    }
    ends.into_values().fold(0.0, f64::max)
}

fn predict(
    setting: &Setting<'_>,
    placed: &[Placed],
    hand_overs: &[HandOver],
    sums: &Sums,
) -> PlanPrediction {
    let demand = &setting.demand;
    let transfer = |index: usize| {
        let id = ReplicaId::new(index as u16);
        let ways = hand_overs.iter().filter(|way| way.from == id);
        ways.map(|way| hand_over_time(setting, way)).fold(0.0, f64::max)
    };
    let mut ttft: f64 = 0.0;
    for (index, placed) in placed.iter().enumerate() {
        let choice = &placed.choice;
        if choice.role != Role::Decode {
            // The choice's own figure holds the time its cards need; the routes say it exactly.
            let own = choice.ttft.max(choice.ttft - card_share(setting, choice) + transfer(index));
            ttft = ttft.max(own);
        }
    }
    let tpot = placed.iter().map(|placed| placed.choice.tpot).fold(0.0, f64::max);
    // Whoever plans for latency plans one slot; a latency method's plan of it waits the same.
    let shared = match setting.goal.objective {
        Objective::Latency => &Sums::one_at_a_time(demand, setting.goal, (ttft, tpot)),
        _ => sums,
    };
    PlanPrediction {
        ttft_s: seconds(ttft),
        tpot_s: seconds(tpot),
        wait_s: seconds(demand.wait(shared, setting.goal.waiting)),
        max_wait_s: seconds(demand.wait_max(shared, setting.goal.waiting)),
        prefill_tok_per_s: rate(sums.prefill),
        decode_tok_per_s: rate(sums.decode),
        throughput_tok_per_s: rate(demand.throughput(shared)),
        energy_j_per_token: None,
    }
}

/// The hand-over's part of a prefill choice's TTFT.
fn card_share(setting: &Setting<'_>, choice: &Choice) -> f64 {
    match &choice.body {
        Body::Resident { split, .. } if choice.role == Role::Prefill => {
            super::replica::hand_over(setting, &choice.order, split).1
        }
        _ => 0.0,
    }
}
