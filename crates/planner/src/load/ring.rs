//! A ring with rounds as one of a replica's forms, for models that no group holds (PLANNER 6.4).
//!
//! Which layers stay and which stream is decided here by a small search over [`ring_time`]; a better
//! ring planner only has to produce a [`RingBody`].

use motley_cluster::{KvPlace, LayerIndex, LayerRange, Role, Seconds};

use super::replica::{Body, Choice, hops};
use super::setting::{Batch, Setting, TypeId};
use crate::cost::{
    Fit, MemoryBudget, RingDevice, RingLoad, Site, StageShape, ring_time, stage_demand, stage_fit,
};
use crate::waiting::{Key, Sums, compare};

/// Layers of a ring, the master first.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RingBody {
    pub(super) rounds: u32,
    /// Per member and round: its window.
    pub(super) windows: Vec<Vec<LayerRange>>,
    /// Per member: layers on the GPU, pinned in RAM, streamed; rising runs.
    pub(super) kept: Vec<[Vec<LayerRange>; 3]>,
    /// Per member: busy time of one decode pass.
    pub(super) stages: Vec<f64>,
}

/// The best single ring: the devices with the most room and speed first, as many as pay off.
///
/// `None` if none keeps the floor, or the mode forbids what a lone ring needs: streaming, a mixed role.
pub(super) fn best_ring(setting: &Setting<'_>) -> Option<Choice> {
    let options = &setting.problem.options;
    if !options.allow_streaming || !options.allow_mixed {
        return None;
    }
    let mut ranked = setting.devices();
    let speed = |kind: TypeId| 1.0 / setting.least_layer_time(kind, Batch::Tokens(1));
    ranked.sort_by(|a, b| speed(*b).total_cmp(&speed(*a)));
    ranked.truncate(setting.layers as usize);
    let mut best: Option<(Key, Choice)> = None;
    let least = if options.allow_idle { 1 } else { ranked.len() };
    for count in least..=ranked.len() {
        let mut order = ranked[..count].to_vec();
        let master = order.iter().position(|kind| setting.may_be_master(*kind, &order));
        order.rotate_left(master.unwrap_or(0));
        setting.count_evaluation();
        let Some(choice) = ring_choice(setting, &order) else { continue };
        let rest = [choice.ttft, choice.tpot, count as f64];
        let key = setting.demand.key(setting.goal, &choice.sums, rest);
        if best.as_ref().is_none_or(|(known, _)| compare(&key, known).is_lt()) {
            best = Some((key, choice));
        }
    }
    best.map(|(_, choice)| choice)
}

/// Mixed choice of one slot: the best number of rounds.
fn ring_choice(setting: &Setting<'_>, order: &[TypeId]) -> Option<Choice> {
    if hops(setting, order, Batch::Tokens(1)).iter().any(|hop| hop.is_infinite()) {
        return None;
    }
    let rounds_max = setting.problem.options.rounds_max.min(setting.layers / order.len() as u32);
    let capacities: Vec<(u32, u32)> = order
        .iter()
        .enumerate()
        .map(|(member, kind)| capacity(setting, *kind, member == 0))
        .collect::<Option<_>>()?;
    let token = Costs::of(setting, order, &capacities, Batch::Tokens(1));
    let mut best: Option<(f64, Plan)> = None;
    for rounds in setting.problem.options.rounds_min.clamp(1, rounds_max.max(1))..=rounds_max {
        let Some(plan) = arrange(&token, &capacities, (rounds, setting.layers)) else { continue };
        let time = plan.time(&token);
        if best.as_ref().is_none_or(|(known, _)| time < *known) {
            best = Some((time, plan));
        }
    }
    let (tpot, plan) = best?;
    if tpot > setting.demand.tpot_max(setting.goal.objective) {
        return None;
    }
    let request = plan.time(&Costs::of(setting, order, &capacities, Batch::Chunk)) * setting.chunks;
    let body = plan.body(setting, order)?;
    Some(Choice {
        role: Role::Mixed,
        slots: 1,
        groups: 1,
        order: order.to_vec(),
        body: Body::Ring(body),
        sums: Sums::one_at_a_time(&setting.demand, setting.goal, (request, tpot)),
        ttft: request,
        tpot,
        computed: Sums { prefill: setting.demand.prompt / request, decode: 1.0 / tpot, slots: 1.0 },
    })
}

/// What a ring's members cost in one kind of pass.
struct Costs {
    devices: Vec<RingDevice>,
    head: f64,
}

impl Costs {
    fn of(
        setting: &Setting<'_>,
        order: &[TypeId],
        capacities: &[(u32, u32)],
        batch: Batch,
    ) -> Self {
        let hops = hops(setting, order, batch);
        let pass = setting.pass(batch);
        let device = |(member, kind): (usize, &TypeId)| {
            let id = setting.types[*kind].members[0];
            let device = setting.problem.cluster.device(id);
            let mean = |site| setting.costs.mean_layer_time(id, site, pass).unwrap_or_default();
            let round = hops[member] + device.step_overhead_s.value();
            RingDevice {
                cpu_layer: mean(Site::Cpu),
                gpu_layer: mean(Site::Gpu),
                round_cost: Seconds::new(round).unwrap_or_default(),
                resident_layers: capacities[member].1,
                layer_bytes: setting.costs.mean_streamed_bytes(pass.tokens),
                disk: device.reload_rate(),
            }
        };
        let master = setting.types[order[0]].members[0];
        let site = if setting.types[order[0]].has_gpu { Site::Gpu } else { Site::Cpu };
        Self {
            devices: order.iter().enumerate().map(device).collect(),
            head: setting.costs.head_time(master, site, pass).unwrap_or_default().value(),
        }
    }
}

/// Windows per member: the same every round but for a shorter last one.
struct Plan {
    rounds: u32,
    layers: u32,
    /// Layers of a whole round per member, and of them on the GPU.
    windows: Vec<(u32, u32)>,
    /// CPU layers RAM holds, per member.
    resident: Vec<u32>,
}

/// Every member one layer, GPU as full as it goes, then layer by layer to where the token stays fastest.
fn arrange(costs: &Costs, capacities: &[(u32, u32)], (rounds, layers): (u32, u32)) -> Option<Plan> {
    let gpu_of = |window: u32, member: usize| window.min(capacities[member].0 / rounds);
    let mut plan = Plan {
        rounds,
        layers,
        windows: (0..capacities.len()).map(|member| (1, gpu_of(1, member))).collect(),
        resident: capacities.iter().map(|(_, ram)| *ram).collect(),
    };
    for _ in capacities.len() as u32..layers.div_ceil(rounds) {
        let mut best: Option<(f64, usize)> = None;
        for member in 0..capacities.len() {
            let kept = plan.windows[member];
            plan.windows[member] = (kept.0 + 1, gpu_of(kept.0 + 1, member));
            let time = plan.time(costs);
            plan.windows[member] = kept;
            if best.is_none_or(|(known, _)| time < known) {
                best = Some((time, member));
            }
        }
        let (_, member) = best?;
        let window = plan.windows[member].0 + 1;
        plan.windows[member] = (window, gpu_of(window, member));
    }
    Some(plan)
}

/// Layers the GPU holds, and pinned CPU layers that RAM holds next to two streaming slots.
fn capacity(setting: &Setting<'_>, kind: TypeId, head: bool) -> Option<(u32, u32)> {
    let fits = |gpu: u32, ram: u32, stream: u32| {
        let runs = [
            LayerRange::with_len(0, gpu),
            LayerRange::with_len(gpu, ram),
            LayerRange::with_len(gpu + ram, stream),
        ];
        ring_stage_fits(setting, kind, head, [&runs[..1], &runs[1..2], &runs[2..]])
    };
    let most = |fits: &dyn Fn(u32) -> bool| (0..=setting.layers).rev().find(|count| fits(*count));
    let gpu = if setting.types[kind].has_gpu { most(&|count| fits(count, 0, 0))? } else { 0 };
    let shared = setting.types[kind].memory.shared;
    let gpu = if shared { gpu.saturating_sub(2) } else { gpu };
    let rest = setting.layers - gpu;
    // Keys and values of streamed layers stay in RAM too, hence the rest is streamed in this check.
    let ram = (0..=rest).rev().find(|count| fits(gpu, *count, rest - count))?;
    Some((gpu, ram))
}

fn ring_stage_fits(
    setting: &Setting<'_>,
    kind: TypeId,
    head: bool,
    [gpu, ram, stream]: [&[LayerRange]; 3],
) -> bool {
    let device = setting.problem.cluster.device(setting.types[kind].members[0]);
    let shape = StageShape {
        gpu,
        ram,
        stream,
        head,
        slots: 1,
        kv_tokens: setting.costs.kv_tokens_per_slot(Role::Mixed),
        cpu_kv: KvPlace::Ram,
    };
    let demand = stage_demand(device, &setting.problem.model, &setting.problem.workload, &shape);
    stage_fit(demand, MemoryBudget::of(device)) == Fit::Fits
}

impl Plan {
    fn time(&self, costs: &Costs) -> f64 {
        let loads: Vec<RingLoad> =
            (0..self.windows.len()).map(|member| self.load(member)).collect();
        ring_time(&costs.devices, &loads, 1).token.value() + costs.head
    }

    /// Windows of one member: CPU and GPU layers per round, the last round shortened from its end.
    fn load(&self, member: usize) -> RingLoad {
        let rounds = (0..self.rounds).map(|round| {
            let window = self.window(round, member);
            let gpu = self.windows[member].1.min(window.len());
            (window.len() - gpu, gpu)
        });
        RingLoad { rounds: rounds.collect() }
    }

    fn window(&self, round: u32, member: usize) -> LayerRange {
        let whole: u32 = self.windows.iter().map(|(window, _)| window).sum();
        let before: u32 = self.windows[..member].iter().map(|(window, _)| window).sum();
        let start = (round * whole + before).min(self.layers);
        let end = (start + self.windows[member].0).min(self.layers);
        LayerRange::with_len(start, end - start)
    }

    /// Which layers lie where: the first of each window on the GPU, then pinned ones as far as RAM
    /// goes, the rest streamed. `None` if a member ends up without layers or real layers do not fit.
    fn body(&self, setting: &Setting<'_>, order: &[TypeId]) -> Option<RingBody> {
        let mut body = RingBody {
            rounds: self.rounds,
            windows: Vec::new(),
            kept: Vec::new(),
            stages: Vec::new(),
        };
        for (member, kind) in order.iter().enumerate() {
            let windows: Vec<LayerRange> =
                (0..self.rounds).map(|round| self.window(round, member)).collect();
            if windows.iter().all(|window| window.is_empty()) && member > 0 {
                return None;
            }
            let kept =
                (0..=self.resident[member]).rev().map(|pinned| self.keep(&windows, member, pinned));
            let kept = kept.into_iter().find(|kept| {
                ring_stage_fits(setting, *kind, member == 0, [&kept[0], &kept[1], &kept[2]])
            })?;
            body.stages.push(busy(setting, *kind, &kept));
            body.windows.push(windows);
            body.kept.push(kept);
        }
        Some(body)
    }

    fn keep(&self, windows: &[LayerRange], member: usize, pinned: u32) -> [Vec<LayerRange>; 3] {
        let mut kept: [Vec<LayerRange>; 3] = Default::default();
        let mut left = pinned;
        for window in windows.iter().filter(|window| !window.is_empty()) {
            let gpu = self.windows[member].1.min(window.len());
            let ram = left.min(window.len() - gpu);
            left -= ram;
            let stream = window.len() - gpu - ram;
            let mut start = window.start();
            for (list, count) in kept.iter_mut().zip([gpu, ram, stream]) {
                if count > 0 {
                    list.push(LayerRange::with_len(start, count));
                }
                start += count;
            }
        }
        kept
    }
}

/// Busy time of one decode pass on one member.
fn busy(setting: &Setting<'_>, kind: TypeId, kept: &[Vec<LayerRange>; 3]) -> f64 {
    let device = setting.types[kind].members[0];
    let pass = setting.pass(Batch::Tokens(1));
    let time = |site: Site, layer: LayerIndex| {
        setting.costs.layer_time(device, site, layer, pass).map_or(0.0, |time| time.value())
    };
    let on = |site: Site, ranges: &[LayerRange]| -> f64 {
        ranges.iter().flat_map(|range| range.iter()).map(|layer| time(site, layer)).sum()
    };
    on(Site::Gpu, &kept[0]) + on(Site::Cpu, &kept[1]) + on(Site::Cpu, &kept[2])
}
