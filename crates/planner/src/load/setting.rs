//! The problem as tables: device types, prefix sums over layers, links (PLANNER 1, 2, 4.2).

use std::cell::{Cell, OnceCell};

use motley_cluster::{
    BufferDemand, Bytes, DeviceId, KvType, LayerIndex, LayerRange, LayerSpec, Role,
    compute_buffer_bytes,
};

use crate::cost::{CostModel, MemoryBudget, Pass, Site};
use crate::problem::{Budget, Problem};
use crate::waiting::{Demand, Goal};

/// Index into [`Setting::types`].
pub(super) type TypeId = usize;

/// Devices that differ in nothing a plan can see.
#[derive(Debug, Clone)]
pub(super) struct DeviceType {
    pub(super) members: Vec<DeviceId>,
    pub(super) memory: MemoryBudget,
    pub(super) has_gpu: bool,
    overhead: f64,
    /// Rate of its network card: its best direct link.
    pub(super) card: f64,
}

impl DeviceType {
    /// All memory that can hold layers.
    pub(super) fn room(&self) -> f64 {
        if self.memory.shared {
            self.memory.gpu.as_f64()
        } else {
            self.memory.gpu.as_f64() + self.memory.ram.as_f64()
        }
    }
}

/// A pass whose times are tabulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Batch {
    /// One prompt chunk.
    Chunk,
    /// One token each of this many sequences.
    Tokens(u32),
}

impl Batch {
    fn index(self) -> usize {
        match self {
            Self::Chunk => 0,
            Self::Tokens(count) => count as usize,
        }
    }
}

/// What a stage is loaded with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Load {
    pub(super) batch: Batch,
    /// Sequences whose keys and values it keeps.
    pub(super) slots: u32,
    /// Keys and values of whole contexts, not only of prompts.
    pub(super) whole_context: bool,
}

/// Prefix sums of times over layers, for one type and batch.
#[derive(Debug)]
struct Times {
    gpu: Vec<f64>,
    cpu: Vec<f64>,
    head: f64,
    copy: f64,
}

/// Prefix sums of bytes over layers.
#[derive(Debug)]
struct Sizes {
    weights: Vec<f64>,
    /// One slot's keys and values: of a prompt, of a whole context.
    kv: [Vec<f64>; 2],
}

/// A stage that fits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct StageUse {
    /// Of its layers, the first so many on the GPU.
    pub(super) gpu_layers: u32,
    pub(super) time: f64,
}

/// Times of a stage by its number of layers, and the two slopes they follow: up to the knee all layers
/// are on the GPU, beyond it on the CPU.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) times: Vec<f64>,
    pub(super) knee: usize,
    pub(super) slopes: [f64; 2],
}

impl Counted {
    fn of(stages: &[StageUse], has_gpu: bool) -> Self {
        let times: Vec<f64> = stages.iter().map(|stage| stage.time).collect();
        let last = times.len().saturating_sub(1);
        let on_gpu = |(count, stage): &(usize, &StageUse)| stage.gpu_layers as usize == *count;
        let knee = if has_gpu {
            stages.iter().enumerate().take_while(on_gpu).count().saturating_sub(1)
        } else {
            last
        };
        let slope = |from: usize, to: usize| {
            if to > from { (times[to] - times[from]) / (to - from) as f64 } else { f64::INFINITY }
        };
        // The first layer also pays what a device's pass costs at all.
        let slopes = [slope(1.min(knee), knee), slope(knee, last)];
        if slopes[1] < slopes[0] && slopes[0].is_finite() {
            // A CPU that beats its GPU: one slope, since layers go to the GPU first all the same.
            let whole = slope(1.min(last), last);
            return Self { times, knee: last, slopes: [whole, f64::INFINITY] };
        }
        Self { times, knee, slopes }
    }

    /// Whether some number of layers takes longer than `low` and less than `high`.
    pub(super) fn has_between(&self, low: f64, high: f64) -> bool {
        let next = self.times.partition_point(|time| *time <= low);
        self.times.get(next).is_some_and(|time| *time < high)
    }

    /// Most layers whose time is within a limit; `None` if not even none are.
    pub(super) fn within(&self, limit: f64) -> Option<usize> {
        self.times.partition_point(|time| *time <= limit).checked_sub(1)
    }
}

/// Half a round trip and seconds per byte of the way between two devices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Wire {
    pub(super) delay: f64,
    pub(super) per_byte: f64,
}

impl Wire {
    pub(super) fn time(self, bytes: f64) -> f64 {
        self.delay + self.per_byte * bytes
    }
}

#[derive(Debug)]
enum Wires {
    /// The same everywhere.
    Uniform(Wire),
    /// By type; then every type has one device. `None` where there is no way.
    Between(Vec<Vec<Option<Wire>>>),
}

/// Counted stages of one type and batch by slots and context, each computed once.
type KnownCounts = OnceCell<Box<[OnceCell<Counted>]>>;

/// The problem, restricted to some devices, as tables.
#[derive(Debug)]
pub(super) struct Setting<'a> {
    pub(super) problem: &'a Problem,
    pub(super) costs: CostModel<'a>,
    pub(super) budget: Budget,
    pub(super) demand: Demand,
    pub(super) goal: Goal,
    pub(super) types: Vec<DeviceType>,
    pub(super) layers: u32,
    pub(super) uniform_layers: bool,
    /// CPU layers keep keys and values on the GPU, as in E2LLM's engine.
    pub(super) kv_on_gpu: bool,
    pub(super) chunk_tokens: u32,
    /// Chunks of a mean prompt.
    pub(super) chunks: f64,
    pub(super) head_bytes: f64,
    /// Bytes a prompt's keys and values take on the wire, by layer, as prefix sums.
    pub(super) hand_over: Vec<f64>,
    wires: Wires,
    sizes: Sizes,
    /// The same with every layer at the mean.
    mean_sizes: Sizes,
    kinds: Vec<(LayerIndex, Vec<usize>)>,
    /// CPU compute buffer by whole context or not, and head or not.
    buffers: [[f64; 2]; 2],
    times: Vec<Vec<OnceCell<[Times; 2]>>>,
    /// Per type, master or not, and batch.
    counted: Vec<[Vec<KnownCounts>; 2]>,
    pub(super) evaluations: Cell<u64>,
}

impl<'a> Setting<'a> {
    /// Tabulates the problem for these devices.
    pub(super) fn new(problem: &'a Problem, budget: Budget, devices: &[DeviceId]) -> Self {
        let costs = CostModel::new(&problem.cluster, &problem.model, &problem.workload);
        let demand = Demand::of(&problem.workload);
        let layers = problem.model.layers_count();
        let chunks =
            (demand.prompt / f64::from(problem.workload.micro_batch_tokens)).ceil().max(1.0);
        let chunk_tokens = (demand.prompt / chunks).ceil() as u32;
        let (types, wires) = types_and_wires(problem, devices);
        let batches = problem.options.slots_max as usize + 1;
        let kinds = kinds(problem);
        let sizes = sizes(&costs, &kinds, layers);
        let mean_sizes = Sizes {
            weights: evened(&sizes.weights),
            kv: [evened(&sizes.kv[0]), evened(&sizes.kv[1])],
        };
        let unknown = || (0..batches).map(|_| OnceCell::new()).collect();
        let counted = types.iter().map(|_| [unknown(), unknown()]).collect();
        let tokens = demand.prompt.ceil() as u32;
        let wire_bytes = |layer| costs.kv_bytes(LayerRange::with_len(layer, 1), tokens).as_f64();
        Self {
            problem,
            costs,
            budget,
            demand,
            goal: Goal { objective: problem.objective, waiting: problem.options.waiting },
            times: types.iter().map(|_| (0..batches).map(|_| OnceCell::new()).collect()).collect(),
            types,
            layers,
            uniform_layers: kinds.len() == 1,
            kv_on_gpu: !problem.options.allow_streaming,
            chunk_tokens,
            chunks,
            head_bytes: problem.model.head_resident_bytes().as_f64(),
            hand_over: prefix((0..layers).map(wire_bytes)),
            wires,
            sizes,
            mean_sizes,
            kinds,
            buffers: [false, true]
                .map(|whole| [false, true].map(|head| buffer(&costs, whole, head))),
            counted,
            evaluations: Cell::new(0),
        }
    }

    /// Number of devices of each type.
    pub(super) fn counts(&self) -> Vec<usize> {
        self.types.iter().map(|kind| kind.members.len()).collect()
    }

    /// The type of every device, types rising.
    pub(super) fn devices(&self) -> Vec<TypeId> {
        let each = self.types.iter().enumerate();
        each.flat_map(|(kind, own)| vec![kind; own.members.len()]).collect()
    }

    /// The type of a device.
    pub(super) fn type_of(&self, device: DeviceId) -> TypeId {
        let place = self.types.iter().position(|kind| kind.members.binary_search(&device).is_ok());
        place.expect("the setting was made with this device")
    }

    /// Links are the same between all devices.
    pub(super) fn uniform_wires(&self) -> bool {
        matches!(self.wires, Wires::Uniform(_))
    }

    pub(super) fn wire(&self, from: TypeId, to: TypeId) -> Option<Wire> {
        match &self.wires {
            Wires::Uniform(wire) => Some(*wire),
            Wires::Between(wires) => wires[from][to],
        }
    }

    /// Whether a type may be master next to these types: where the cluster names a head, it is one
    /// wherever it takes part.
    pub(super) fn may_be_master(&self, kind: TypeId, among: &[TypeId]) -> bool {
        let Some(head) = self.problem.cluster.head() else { return true };
        let holds = |kind: &TypeId| self.types[*kind].members == [head];
        holds(&kind) || !among.iter().any(holds)
    }

    /// Counts one evaluation against the budget.
    pub(super) fn count_evaluation(&self) {
        self.evaluations.set(self.evaluations.get() + 1);
    }

    pub(super) fn exhausted(&self) -> bool {
        self.evaluations.get() >= self.budget.evaluations
    }

    /// Bytes a pass of this batch sends per hop.
    pub(super) fn hop_bytes(&self, batch: Batch) -> f64 {
        self.costs.activation_bytes(self.pass(batch)).as_f64()
    }

    /// Bytes of all weights with the head.
    pub(super) fn file_bytes(&self) -> f64 {
        self.sizes.weights[self.layers as usize] + self.head_bytes
    }

    /// Bytes of one slot's keys and values over all layers.
    pub(super) fn slot_bytes(&self, whole_context: bool) -> f64 {
        self.sizes.kv[usize::from(whole_context)][self.layers as usize]
    }

    pub(super) fn pass(&self, batch: Batch) -> Pass {
        match batch {
            Batch::Chunk => {
                let depth = (self.demand.prompt - f64::from(self.chunk_tokens)).max(0.0) / 2.0;
                Pass::prefill(self.chunk_tokens, depth.round() as u32)
            }
            Batch::Tokens(count) => Pass::decode(count, self.problem.workload.mean_depth_tokens()),
        }
    }

    /// A stage of real layers; `None` if it does not fit.
    pub(super) fn stage(
        &self,
        kind: TypeId,
        layers: (u32, u32),
        head: bool,
        load: Load,
    ) -> Option<StageUse> {
        let times = &self.times(kind, load.batch)[0];
        self.stage_of(&self.sizes, times, kind, StageAsk { layers, head, load })
    }

    /// Time by number of layers if all were alike, up to the number that fits.
    pub(super) fn counted(&self, kind: TypeId, head: bool, load: Load) -> &Counted {
        let by_slots =
            self.counted[kind][usize::from(head)][load.batch.index()].get_or_init(|| {
                let loads = 2 * (self.problem.options.slots_max as usize + 1);
                (0..loads).map(|_| OnceCell::new()).collect()
            });
        by_slots[2 * load.slots as usize + usize::from(load.whole_context)].get_or_init(|| {
            let times = &self.times(kind, load.batch)[1];
            let stage = |count| {
                let ask = StageAsk { layers: (0, count), head, load };
                self.stage_of(&self.mean_sizes, times, kind, ask)
            };
            let stages: Vec<StageUse> = (0..=self.layers).map_while(stage).collect();
            Counted::of(&stages, self.types[kind].has_gpu)
        })
    }

    /// Least time of one layer of this batch on a type.
    pub(super) fn least_layer_time(&self, kind: TypeId, batch: Batch) -> f64 {
        let times = &self.times(kind, batch)[1];
        if self.types[kind].has_gpu { times.gpu[1].min(times.cpu[1]) } else { times.cpu[1] }
    }

    /// Time of all layers of this batch on a type's GPU, endless without one, and on its CPU.
    pub(super) fn pass_times(&self, kind: TypeId, batch: Batch) -> (f64, f64) {
        let times = &self.times(kind, batch)[1];
        let last = |sums: &[f64]| sums.last().copied().unwrap_or(f64::INFINITY);
        (last(&times.gpu), last(&times.cpu))
    }

    fn times(&self, kind: TypeId, batch: Batch) -> &[Times; 2] {
        self.times[kind][batch.index()].get_or_init(|| {
            let real = self.tabulate(kind, batch);
            let mean = Times { gpu: evened(&real.gpu), cpu: evened(&real.cpu), ..real };
            [real, mean]
        })
    }

    fn tabulate(&self, kind: TypeId, batch: Batch) -> Times {
        let device = self.types[kind].members[0];
        let pass = self.pass(batch);
        let by_layer = |site| {
            let mut times = vec![0.0; self.layers as usize];
            for (example, alike) in &self.kinds {
                let time = self.costs.layer_time(device, site, *example, pass);
                for layer in alike {
                    times[*layer] = time.map_or(f64::INFINITY, |time| time.value());
                }
            }
            prefix(times.into_iter())
        };
        let site = if self.types[kind].has_gpu { Site::Gpu } else { Site::Cpu };
        let head = self.costs.head_time(device, site, pass).map_or(0.0, |time| time.value());
        // Only a prompt's last chunk needs logits.
        let share = if batch == Batch::Chunk { self.chunks } else { 1.0 };
        Times {
            gpu: if self.types[kind].has_gpu { by_layer(Site::Gpu) } else { Vec::new() },
            cpu: by_layer(Site::Cpu),
            head: head / share + self.costs.embedding_time(device, pass).value(),
            copy: self.costs.copy_time(device, 1, pass).value(),
        }
    }

    fn stage_of(
        &self,
        sizes: &Sizes,
        times: &Times,
        kind: TypeId,
        ask: StageAsk,
    ) -> Option<StageUse> {
        let StageAsk { layers: (start, end), head, load } = ask;
        let (start, end) = (start as usize, end as usize);
        let device = &self.types[kind];
        let slots = f64::from(load.slots);
        let kv = &sizes.kv[usize::from(load.whole_context)];
        let weights = |from: usize, to: usize| sizes.weights[to] - sizes.weights[from];
        let kept = |from: usize, to: usize| slots * (kv[to] - kv[from]);
        let head_bytes = if head { self.head_bytes } else { 0.0 };
        let buffer = self.buffers[usize::from(load.whole_context)];
        let head_time = if head { times.head } else { 0.0 };
        let overhead = if end > start { device.overhead } else { 0.0 };
        if !device.has_gpu {
            let buffer = if end > start || head { buffer[usize::from(head)] } else { 0.0 };
            let need = weights(start, end) + kept(start, end) + head_bytes + buffer;
            let time = times.cpu[end] - times.cpu[start] + head_time + overhead;
            return (need <= device.memory.ram.as_f64())
                .then_some(StageUse { gpu_layers: 0, time });
        }
        let on_gpu = |to: usize| {
            let kv = if self.kv_on_gpu { kept(start, end) } else { kept(start, to) };
            weights(start, to) + kv + head_bytes
        };
        let room = device.memory.gpu.as_f64();
        if on_gpu(start) > room {
            return None;
        }
        let (mut fits, mut beyond) = (start, end + 1);
        while beyond - fits > 1 {
            let middle = usize::midpoint(fits, beyond);
            if on_gpu(middle) <= room { fits = middle } else { beyond = middle }
        }
        let mut time = times.gpu[fits] - times.gpu[start] + head_time + overhead;
        if fits < end {
            let kv = if self.kv_on_gpu { 0.0 } else { kept(fits, end) };
            let ram = weights(fits, end) + kv + buffer[0];
            let left =
                if device.memory.shared { room - on_gpu(fits) } else { device.memory.ram.as_f64() };
            if ram > left {
                return None;
            }
            time += times.cpu[end] - times.cpu[fits];
            time += if fits > start { times.copy } else { 0.0 };
        }
        Some(StageUse { gpu_layers: (fits - start) as u32, time })
    }
}

#[derive(Debug, Clone, Copy)]
struct StageAsk {
    layers: (u32, u32),
    head: bool,
    load: Load,
}

/// Sums of all before: one entry more than items.
fn prefix(items: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut sums = vec![0.0];
    let mut total = 0.0;
    for item in items {
        total += item;
        sums.push(total);
    }
    sums
}

/// Prefix sums of the same total with all items equal.
fn evened(sums: &[f64]) -> Vec<f64> {
    let count = sums.len().saturating_sub(1);
    let total = sums.last().copied().unwrap_or(0.0);
    let mean = total / count.max(1) as f64;
    // A product would not end exactly at the total, nor equal the sums of layers that are alike.
    if total.is_infinite() || sums.windows(2).all(|pair| pair[1] - pair[0] == sums[1]) {
        return sums.to_vec();
    }
    let mut even: Vec<f64> = (0..sums.len()).map(|index| index as f64 * mean).collect();
    if let Some(last) = even.last_mut() {
        *last = total;
    }
    even
}

/// Layers that are alike, by their first.
fn kinds(problem: &Problem) -> Vec<(LayerIndex, Vec<usize>)> {
    let mut kinds: Vec<(&LayerSpec, LayerIndex, Vec<usize>)> = Vec::new();
    for index in 0..problem.model.layers_count() {
        let layer = problem.model.layer(LayerIndex::new(index));
        match kinds.iter_mut().find(|(example, _, _)| *example == layer) {
            Some((_, _, alike)) => alike.push(index as usize),
            None => kinds.push((layer, LayerIndex::new(index), vec![index as usize])),
        }
    }
    kinds.into_iter().map(|(_, index, alike)| (index, alike)).collect()
}

fn sizes(costs: &CostModel<'_>, kinds: &[(LayerIndex, Vec<usize>)], layers: u32) -> Sizes {
    let spread = |of: &dyn Fn(LayerIndex) -> f64| {
        let mut values = vec![0.0; layers as usize];
        for (example, alike) in kinds {
            let value = of(*example);
            for layer in alike {
                values[*layer] = value;
            }
        }
        prefix(values.into_iter())
    };
    let kv = |role: Role| {
        let tokens = costs.kv_tokens_per_slot(role);
        let (workload, model) = (costs.workload(), costs.model());
        let kv_type: KvType = workload.kv_type;
        spread(&|layer| {
            let layer = model.layer(layer);
            let kept = layer.attention.kept_tokens(tokens, workload.micro_batch_tokens);
            kv_type.bytes(layer.kv_elements_per_token).times(u64::from(kept)).as_f64()
        })
    };
    Sizes {
        weights: spread(&|layer| costs.model().layer_bytes(layer).as_f64()),
        kv: [kv(Role::Prefill), kv(Role::Decode)],
    }
}

fn buffer(costs: &CostModel<'_>, whole_context: bool, runs_head: bool) -> f64 {
    let role = if whole_context { Role::Decode } else { Role::Prefill };
    let demand = BufferDemand {
        micro_batch_tokens: costs.workload().micro_batch_tokens,
        context_tokens: costs.kv_tokens_per_slot(role),
        flash_attention: costs.workload().flash_attention,
        runs_head,
        gpu: None,
    };
    compute_buffer_bytes(costs.model(), &demand).as_f64()
}

fn wire(problem: &Problem, from: DeviceId, to: DeviceId) -> Option<Wire> {
    let route = problem.cluster.links().route(from, to)?;
    let delay = route.transfer(Bytes::ZERO).value();
    let per_byte = route.links.iter().map(|link| 1.0 / link.bytes_per_s.value()).sum();
    Some(Wire { delay, per_byte })
}

fn types_and_wires(problem: &Problem, devices: &[DeviceId]) -> (Vec<DeviceType>, Wires) {
    let links = problem.cluster.links();
    let pairs = || devices.iter().flat_map(|a| devices.iter().map(move |b| (*a, *b)));
    let mut direct = pairs().filter(|(a, b)| a != b).map(|(a, b)| links.direct(a, b));
    let first = direct.next();
    let uniform = first.is_none_or(|first| first.is_some() && direct.all(|link| link == first));
    let mut types: Vec<DeviceType> = Vec::new();
    for id in devices {
        let profile = problem.cluster.device(*id);
        let is_head = |id: DeviceId| problem.cluster.head() == Some(id);
        let twin = types.iter_mut().find(|kind| {
            uniform
                && !is_head(*id)
                && !is_head(kind.members[0])
                && problem.cluster.device(kind.members[0]).is_twin_of(profile)
        });
        if let Some(kind) = twin {
            kind.members.push(*id);
            continue;
        }
        let rates = devices.iter().filter_map(|other| links.direct(*id, *other));
        types.push(DeviceType {
            members: vec![*id],
            memory: MemoryBudget::of(profile),
            has_gpu: profile.gpu().is_some(),
            overhead: profile.step_overhead_s.value(),
            card: rates.map(|link| link.bytes_per_s.value()).fold(0.0, f64::max),
        });
    }
    if uniform {
        let wire = match devices {
            [a, b, ..] => wire(problem, *a, *b),
            _ => None,
        };
        return (types, Wires::Uniform(wire.unwrap_or(Wire { delay: 0.0, per_byte: 0.0 })));
    }
    let between = |from: &DeviceType| {
        types.iter().map(|to| wire(problem, from.members[0], to.members[0])).collect()
    };
    let wires = types.iter().map(between).collect();
    (types, Wires::Between(wires))
}
