//! From a problem to numbers.

use motley_cluster::{
    Attention, BufferDemand, Bytes, DeviceId, Seconds, Workload, compute_buffer_bytes,
};

use super::instance::{Chosen, Clock, Instance, Member, Quota, RoundShape};
use super::realise::Overfull;
use super::search::Scope;
use crate::cost::{CostModel, DiskModel, MemoryBudget, Pass, Site, gap};
use crate::problem::{Budget, Problem};

/// Layer slots the runtime streams through at least.
pub(super) const STREAM_SLOTS: u32 = 2;

/// Layers less than the mean layer suggests that a device's memory holds, found by placing real
/// layers: per device, on the GPU and in RAM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trim {
    pub(super) gpu_layers: Vec<u32>,
    pub(super) ram_layers: Vec<u32>,
}

impl Trim {
    pub(super) fn none(problem: &Problem) -> Self {
        let devices = problem.cluster.devices().len();
        Self { gpu_layers: vec![0; devices], ram_layers: vec![0; devices] }
    }
}

impl Trim {
    /// One layer less where real layers did not fit.
    pub(super) fn shrink(&mut self, overfull: Overfull) {
        let layers = if overfull.gpu { &mut self.gpu_layers } else { &mut self.ram_layers };
        layers[overfull.device] += 1;
    }
}

/// The decode pass whose time is planned: one token in the middle of a generation.
pub(super) fn decode_pass(workload: &Workload) -> Pass {
    Pass::decode(1, workload.mean_depth_tokens())
}

/// The instance of a problem.
pub(super) fn instance(problem: &Problem, trim: &Trim) -> Instance {
    let costs = CostModel::new(&problem.cluster, &problem.model, &problem.workload);
    let pass = decode_pass(&problem.workload);
    let ids: Vec<DeviceId> = problem.cluster.ids().collect();
    let hop = |from: DeviceId, to: DeviceId| {
        let route = costs.route(from, to)?;
        let barred = route.relays.iter().any(|relay| problem.options.excluded.contains(relay));
        costs.hop_time(from, to, pass).filter(|_| !barred)
    };
    let hops: Vec<Vec<Option<Seconds>>> =
        ids.iter().map(|a| ids.iter().map(|b| hop(*a, *b)).collect()).collect();
    let slowest = hops.iter().flatten().flatten().max().copied().unwrap_or_default();
    let rounds_max = problem.options.rounds_max.max(1);
    let clock = Clock::up_to(longest(&costs, pass, slowest.times(f64::from(rounds_max))));
    let form = |id: DeviceId, head| Form { problem, costs, clock, pass, id, head, trim };
    let in_ticks = |hop: &Option<Seconds>| hop.map(|time| clock.ticks(time.value()));
    Instance {
        clock,
        layers: problem.model.layers_count(),
        plain: ids.iter().map(|id| form(*id, false).member()).collect(),
        as_head: ids.iter().map(|id| form(*id, true).as_head()).collect(),
        hops: hops.iter().map(|row| row.iter().map(in_ticks).collect()).collect(),
        disk: problem.options.disk_model,
        allow_streaming: problem.options.allow_streaming,
        rounds_min: problem.options.rounds_min,
        rounds_max,
        shape: RoundShape::Uneven,
        buffer_min: STREAM_SLOTS,
        idle_head: problem.cluster.head().is_some(),
    }
}

/// Every device that is not excluded; the head of the cluster, or any.
pub(super) fn scope(problem: &Problem, budget: Budget) -> Scope {
    let allowed = |id: &DeviceId| !problem.options.excluded.contains(id);
    let devices: Vec<usize> = problem.cluster.ids().filter(allowed).map(DeviceId::index).collect();
    let heads = match problem.cluster.head().filter(allowed) {
        Some(head) => vec![head.index()],
        None => devices.clone(),
    };
    Scope { devices, heads, required: None, divisions_max: budget.evaluations }
}

/// Mean KV bytes one layer keeps for the sequences that there is to be room for.
pub(super) fn layer_kv_bytes(problem: &Problem) -> f64 {
    let (model, workload) = (&problem.model, &problem.workload);
    let kept = |attention: Attention| {
        u64::from(attention.kept_tokens(workload.context_tokens, workload.micro_batch_tokens))
    };
    let of = |layer: &motley_cluster::LayerSpec| {
        let elements = layer.kv_elements_per_token;
        workload.kv_type.bytes(elements).times(kept(layer.attention)).as_f64()
    };
    let mean = model.layers.iter().map(of).sum::<f64>() / f64::from(model.layers_count());
    mean * f64::from(problem.options.kept_sequences)
}

/// The CPU's compute buffer.
pub(super) fn cpu_buffer(problem: &Problem, runs_head: bool) -> Bytes {
    let workload = &problem.workload;
    let demand = BufferDemand {
        micro_batch_tokens: workload.micro_batch_tokens,
        context_tokens: workload.context_tokens,
        flash_attention: workload.flash_attention,
        runs_head,
        gpu: None,
    };
    compute_buffer_bytes(&problem.model, &demand)
}

/// Weights are read past the system's cache and while others compute.
fn overlaps(problem: &Problem) -> bool {
    matches!(problem.options.disk_model, DiskModel::RingOverlap | DiskModel::Streaming)
}

/// More than any token takes.
fn longest(costs: &CostModel<'_>, pass: Pass, hop_all_rounds: Seconds) -> f64 {
    let model = costs.model();
    let layers = f64::from(model.layers_count());
    let mut sum = 1e-3;
    for id in costs.cluster().ids() {
        let device = costs.cluster().device(id);
        let cpu = costs.mean_layer_time(id, Site::Cpu, pass).unwrap_or_default().value();
        let head = costs.head_time(id, Site::Cpu, pass).unwrap_or_default().value();
        let read = (model.file_bytes() / device.reload_rate()).value();
        let gpu = costs.mean_layer_time(id, Site::Gpu, pass).unwrap_or_default().value();
        let fixed = device.step_overhead_s + costs.copy_time(id, 2, pass);
        sum += (cpu + gpu + fixed.value()) * layers + head + 2.0 * read + hop_all_rounds.value();
    }
    // Room for rounding, and for buffers and keys that are read with the layers.
    sum * 4.0
}

struct Form<'a> {
    problem: &'a Problem,
    costs: CostModel<'a>,
    clock: Clock,
    pass: Pass,
    id: DeviceId,
    head: bool,
    trim: &'a Trim,
}

impl Form<'_> {
    /// As head: its form and the time of embedding and head; `None` if its memory is too small.
    fn as_head(&self) -> Option<(Member, i64)> {
        let member = self.member();
        let device = self.problem.cluster.device(self.id);
        let model = &self.problem.model;
        let on_gpu = device.gpu().is_some();
        let budget = MemoryBudget::of(device);
        if member.room_bytes < 0 || (on_gpu && budget.gpu < model.head_resident_bytes()) {
            return None;
        }
        let site = if on_gpu { Site::Gpu } else { Site::Cpu };
        let mut time = self.costs.head_time(self.id, site, self.pass)?;
        time += self.costs.embedding_time(self.id, self.pass);
        if !overlaps(self.problem) {
            // Halda's κ: the embedding row is read from disk.
            time += model.embedding_row_bytes() / device.reload_rate();
        }
        let head = self.clock.ticks(time.value());
        // A head on a GPU runs beside the quota.
        let quota = member.quota.filter(|_| !on_gpu);
        let member = Member { head, quota, ..member };
        Some((member, member.head_time()))
    }

    fn member(&self) -> Member {
        let (problem, model) = (self.problem, &self.problem.model);
        let device = problem.cluster.device(self.id);
        let budget = MemoryBudget::of(device);
        let layer = model.mean_layer_bytes().count() as i64;
        let kv = layer_kv_bytes(problem) as i64;
        let head = if self.head { model.head_resident_bytes().count() as i64 } else { 0 };
        let on_gpu = device.gpu().is_some();
        let buffer = cpu_buffer(problem, self.head && !on_gpu).count() as i64;
        let gpu_head = if on_gpu { head } else { 0 };
        let trimmed = |layers: &[u32]| i64::from(layers[self.id.index()]);
        let gpu_room = budget.gpu.count() as i64 - gpu_head;
        let fitting = gpu_room.max(0) / (layer + kv) - trimmed(&self.trim.gpu_layers);
        let mut room = budget.ram.count() as i64 - trimmed(&self.trim.ram_layers) * layer;
        if !on_gpu || budget.shared {
            room -= head;
        }
        // A head without a GPU needs its buffer even without layers.
        let always = self.head && !on_gpu;
        let step = device.step_overhead_s;
        let time = |seconds: Seconds| self.clock.ticks(seconds.value());
        let layer_time = |site| self.costs.mean_layer_time(self.id, site, self.pass);
        let cpu_layer = time(layer_time(Site::Cpu).expect("every device has a CPU"));
        let reloads = device.is_metal() && !overlaps(problem);
        let output = if self.head { model.output_bytes.count() as i64 } else { 0 };
        Member {
            cpu_layer,
            gpu_layer: layer_time(Site::Gpu).map_or(cpu_layer, time),
            gpu_layers_max: (fitting.max(0) as u32).min(model.layers_count()),
            copy: time(self.costs.copy_time(self.id, 2, self.pass)),
            step: time(step),
            layer_bytes: layer,
            kv_bytes: kv,
            room_bytes: if always { room - buffer } else { room },
            cpu_fixed_bytes: if always { 0 } else { buffer },
            shared: budget.shared,
            reload_all: reloads.then_some(output),
            read_per_byte: self.clock.per_byte(1.0 / device.reload_rate().value()),
            chosen: self.chosen(),
            quota: self.quota(),
            head: 0,
        }
    }

    /// What the device's threads may use of the processors; published plans know none.
    fn quota(&self) -> Option<Quota> {
        let quota = self.problem.cluster.device(self.id).cpu_quota?;
        let gap = self.clock.ticks(gap(&quota).value());
        let counts = self.problem.options.disk_model == DiskModel::Streaming;
        (counts && gap > 0).then(|| Quota { share: quota.share(), gap })
    }

    /// Mean experts of a layer, all and those of one token; `None` without any.
    fn chosen(&self) -> Option<Chosen> {
        let model = &self.problem.model;
        let count = u64::from(model.experts?.count);
        let all: Bytes = model.layers.iter().map(|layer| layer.expert_bytes.times(count)).sum();
        let all_bytes = (all.count() / u64::from(model.layers_count())) as i64;
        let token_bytes = self.costs.mean_streamed_bytes(1).count() as i64;
        (all_bytes > 0).then_some(Chosen { all_bytes, token_bytes })
    }
}
