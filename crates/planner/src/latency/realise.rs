//! From an assignment to a plan: real layers, real bytes, predicted numbers.

use motley_cluster::{
    Bytes, DeviceId, FormatVersion, KvPlace, LayerRange, MemberSpec, MemoryClaim, Plan,
    PlanPrediction, PlanSpec, ReplicaPrediction, ReplicaSpec, Residency, ResidencyRun, Role,
    Seconds, TokensPerSecond,
};

use super::build::{STREAM_SLOTS, decode_pass};
use super::instance::{Instance, Ticks};
use super::order::hop;
use super::prefill::time_to_first_token;
use super::ring::Assignment;
use crate::cost::{
    CostModel, DiskModel, Fit, GpuShare, MemoryBudget, Site, StageShape, moving_bytes, pass_energy,
    stage_demand, stage_fit,
};
use crate::problem::Problem;
use crate::waiting::{Demand, Goal, Sums};

/// A device whose real layers exceed its memory although mean layers would not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Overfull {
    pub(super) device: usize,
    /// The GPU rather than RAM.
    pub(super) gpu: bool,
}

/// Layers of one member by residency.
#[derive(Debug, Clone, Default)]
struct Placed {
    windows: Vec<LayerRange>,
    runs: Vec<ResidencyRun>,
    gpu: Vec<LayerRange>,
    ram: Vec<LayerRange>,
    stream: Vec<LayerRange>,
}

/// The plan of an assignment.
///
/// # Errors
/// A device is overfull.
pub(super) fn realise(
    problem: &Problem,
    instance: &Instance,
    best: &Assignment,
) -> Result<Plan, Overfull> {
    let placed = place(instance, best);
    let head = DeviceId::new(best.ring.head as u16);
    let mut members = Vec::new();
    let mut claims = Vec::new();
    for (device, placed) in &placed {
        let id = DeviceId::new(*device as u16);
        claims.push(claim(problem, instance, best, (*device, placed))?);
        members.push(MemberSpec {
            device: id,
            windows: placed.windows.clone(),
            residency: placed.runs.clone(),
            relays_to_next: Vec::new(),
        });
    }
    let costs = CostModel::new(&problem.cluster, &problem.model, &problem.workload);
    for at in 0..members.len() {
        let next = members[(at + 1) % members.len()].device;
        let route = costs.route(members[at].device, next);
        members[at].relays_to_next = route.map(|route| route.relays).unwrap_or_default();
    }
    let spec = PlanSpec {
        version: FormatVersion::default(),
        model: problem.model.name.clone(),
        layers: instance.layers,
        devices: problem.cluster.devices().iter().map(|device| device.name.clone()).collect(),
        context_tokens: problem.workload.context_tokens,
        kv_type: problem.workload.kv_type,
        replicas: vec![ReplicaSpec {
            role: Role::Mixed,
            slots: 1,
            groups: 1,
            rounds: best.rounds,
            head,
            members,
            predicted: replica_prediction(problem, instance, best, &placed),
        }],
        hand_overs: Vec::new(),
        memory: claims,
        predicted: prediction(problem, instance, best),
    };
    Ok(Plan::new(spec).expect("a realised assignment is a plan"))
}

/// Layers of every member in ring order, an idle head first. Windows of a device differ by at most
/// one layer of each kind: further CPU layers come in the first rounds, further GPU layers in the
/// last, so that no round of a device with enough layers is empty.
fn place(instance: &Instance, best: &Assignment) -> Vec<(usize, Placed)> {
    let rounds = best.rounds;
    let mut placed: Vec<(usize, Placed)> = Vec::new();
    if best.ring.idle_head() {
        let windows = vec![LayerRange::with_len(0, 0); rounds as usize];
        placed.push((best.ring.head, Placed { windows, ..Placed::default() }));
    }
    let first = placed.len();
    placed.extend(best.ring.order.iter().map(|device| (*device, Placed::default())));
    let mut next = 0;
    for round in 0..rounds {
        for (at, split) in best.splits.iter().enumerate() {
            let (device, placed) = &mut placed[first + at];
            let member = instance.member(*device, best.ring.head);
            let disk = instance.disk(member, split.cpu, split.gpu, rounds);
            let pinned = disk.expect("an assignment is feasible").pinned;
            let part = |count: u32, early: bool| {
                let more = count % rounds;
                let extra = if early { round < more } else { round >= rounds - more };
                count / rounds + u32::from(extra)
            };
            let (gpu, cpu) = (part(split.gpu, false), part(split.cpu, true));
            let ram = part(pinned, true);
            placed.windows.push(LayerRange::with_len(next, gpu + cpu));
            placed.keep(&mut next, gpu, Residency::Gpu);
            if instance.disk == DiskModel::Streaming {
                // Taking turns, so that the stream's buffer neither fills nor runs dry for long.
                for layer in 0..cpu {
                    let stays = (layer + 1) * ram / cpu > layer * ram / cpu;
                    let kept = if stays { Residency::Ram } else { Residency::Stream };
                    placed.keep(&mut next, 1, kept);
                }
            } else {
                // Streamed layers come last, so that they have the longest time to arrive.
                placed.keep(&mut next, ram, Residency::Ram);
                placed.keep(&mut next, cpu - ram, Residency::Stream);
            }
        }
    }
    placed
}

impl Placed {
    fn keep(&mut self, next: &mut u32, count: u32, weights: Residency) {
        if count == 0 {
            return;
        }
        let layers = LayerRange::with_len(*next, count);
        *next += count;
        let kv = if weights == Residency::Gpu { KvPlace::Gpu } else { KvPlace::Ram };
        match self.runs.last_mut() {
            Some(run) if run.weights == weights && run.layers.end() == layers.start() => {
                run.layers = LayerRange::with_len(run.layers.start(), run.layers.len() + count);
            }
            _ => self.runs.push(ResidencyRun { layers, weights, kv }),
        }
        match weights {
            Residency::Gpu => self.gpu.push(layers),
            Residency::Ram => self.ram.push(layers),
            Residency::Stream => self.stream.push(layers),
        }
    }
}

fn claim(
    problem: &Problem,
    instance: &Instance,
    best: &Assignment,
    (device, placed): (usize, &Placed),
) -> Result<MemoryClaim, Overfull> {
    let id = DeviceId::new(device as u16);
    let profile = problem.cluster.device(id);
    let shape = StageShape {
        gpu: &placed.gpu,
        ram: &placed.ram,
        stream: &placed.stream,
        head: device == best.ring.head,
        slots: problem.options.kept_sequences,
        kv_tokens: problem.workload.context_tokens,
        cpu_kv: KvPlace::Ram,
    };
    let mut demand = stage_demand(profile, &problem.model, &problem.workload, &shape);
    let streamed = placed.stream.iter().flat_map(|range| range.iter());
    let widest = streamed.map(|layer| moving_bytes(&problem.model, layer)).max();
    let at = best.ring.order.iter().position(|other| *other == device);
    if let (Some(widest), Some(at)) = (widest, at) {
        let member = instance.member(device, best.ring.head);
        let split = &best.splits[at];
        let disk = instance.disk(member, split.cpu, split.gpu, best.rounds);
        let buffer = disk.map_or(STREAM_SLOTS, |disk| disk.buffer);
        demand.ram += widest.times(u64::from(buffer.saturating_sub(STREAM_SLOTS)));
    }
    let budget = MemoryBudget::of(profile);
    match stage_fit(demand, budget) {
        Fit::Fits => Ok(MemoryClaim {
            device: id,
            gpu_bytes: demand.gpu,
            gpu_budget_bytes: budget.gpu,
            ram_bytes: demand.ram,
            ram_budget_bytes: budget.ram,
        }),
        Fit::Short { gpu, .. } => {
            let gpu = gpu > Bytes::ZERO && (!budget.shared || placed.ram.is_empty());
            Err(Overfull { device, gpu })
        }
    }
}

fn replica_prediction(
    problem: &Problem,
    instance: &Instance,
    best: &Assignment,
    placed: &[(usize, Placed)],
) -> ReplicaPrediction {
    let seconds = |ticks: Ticks| time(instance, ticks);
    let mut stage_s: Vec<Seconds> = best.splits.iter().map(|split| seconds(split.busy)).collect();
    let mut hop_s: Vec<Seconds> = (0..best.splits.len())
        .map(|at| seconds(best.ring.hops(instance, at, best.rounds)))
        .collect();
    if best.ring.idle_head() {
        stage_s.insert(0, Seconds::ZERO);
        hop_s.insert(0, seconds(hop(instance, best.ring.head, best.ring.order[0])));
    }
    // The head's own stage includes embedding and output.
    let head = instance.as_head[best.ring.head].as_ref().map_or(0, |(_, constant)| *constant);
    stage_s[0] += seconds(head);
    debug_assert_eq!(stage_s.len(), placed.len());
    let tpot = seconds(best.token);
    ReplicaPrediction {
        prefill_tok_per_s: prefill_rate(problem, instance, best),
        decode_tok_per_s: rate(1.0 / tpot.value()),
        tpot_s: tpot,
        stage_s,
        hop_s,
    }
}

fn prediction(problem: &Problem, instance: &Instance, best: &Assignment) -> PlanPrediction {
    let workload = &problem.workload;
    let (tpot, ttft) = (time(instance, best.token), time_to_first_token(problem, instance, best));
    let demand = Demand::of(workload);
    let goal = Goal { objective: problem.objective, waiting: problem.options.waiting };
    let sums = Sums::one_at_a_time(&demand, goal, (ttft.value(), tpot.value()));
    let wait = |wait: f64| Seconds::new(wait).expect("a wait is a time");
    PlanPrediction {
        ttft_s: ttft,
        tpot_s: tpot,
        wait_s: wait(demand.wait(&sums, goal.waiting)),
        max_wait_s: wait(demand.wait_max(&sums, goal.waiting)),
        prefill_tok_per_s: prefill_rate(problem, instance, best),
        decode_tok_per_s: rate(1.0 / tpot.value()),
        throughput_tok_per_s: rate(demand.throughput(&sums)),
        energy_j_per_token: energy(problem, instance, best),
    }
}

fn energy(
    problem: &Problem,
    instance: &Instance,
    best: &Assignment,
) -> Option<motley_cluster::Joules> {
    let pass = time(instance, best.token);
    let costs = CostModel::new(&problem.cluster, &problem.model, &problem.workload);
    let mut total = motley_cluster::Joules::ZERO;
    for (device, split) in best.ring.order.iter().zip(&best.splits) {
        let member = instance.member(*device, best.ring.head);
        let mut busy = GpuShare {
            cpu: time(instance, member.cpu_layer * i64::from(split.cpu)),
            gpu: if split.gpu == 0 {
                Seconds::ZERO
            } else {
                time(instance, member.gpu_layer * i64::from(split.gpu))
            },
        };
        let id = DeviceId::new(*device as u16);
        if *device == best.ring.head {
            let decode = decode_pass(&problem.workload);
            match costs.head_time(id, Site::Gpu, decode) {
                Some(time) => busy.gpu += time,
                None => busy.cpu += costs.head_time(id, Site::Cpu, decode).unwrap_or_default(),
            }
        }
        total += pass_energy(problem.cluster.device(id), busy, pass)?;
    }
    Some(total)
}

fn prefill_rate(problem: &Problem, instance: &Instance, best: &Assignment) -> TokensPerSecond {
    let ttft = time_to_first_token(problem, instance, best);
    rate(problem.workload.prompt_tokens.mean / ttft.value())
}

pub(super) fn time(instance: &Instance, ticks: Ticks) -> Seconds {
    Seconds::new(instance.clock.seconds(ticks)).expect("ticks count a time")
}

fn rate(value: f64) -> TokensPerSecond {
    TokensPerSecond::new(value.min(1e15)).expect("a rate of something finite")
}
