//! The devices that compute for an engine: which parts of the model they take, their working
//! memory, and steps that pass from one to another.

use std::collections::BTreeMap;
use std::ops::Range;

use motley_ggml::{
    AllocateError, Backend, BufferKind, ComputeBuffer, Device, DeviceKind, TensorError, ThreadPool,
    ThreadPoolOptions,
};
use motley_model::ModelDirectory;

use crate::cache::{Cache, CacheShape};
use crate::engine::{Engine, EngineOptions, Entering, LoadError, Scratch, Step, StepError, Wanted};
use crate::graphs::{self, GraphKey, Product, Sources};
use crate::layer_set::LayerSet;
use crate::rows::{Group, Row};
use crate::sites::{Part, Site, Sites};
use crate::weights::{Parts, Weights};

/// Bytes that an engine holds in the memory of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuMemory {
    /// The GPU, by its place among those of the placement.
    pub gpu: usize,
    /// ggml's name of it.
    pub name: String,
    /// Layers computed there.
    pub layers: usize,
    /// Whether the head is computed there too.
    pub head: bool,
    /// Weights.
    pub weights_bytes: u64,
    /// Cached keys and values.
    pub cache_bytes: u64,
    /// Intermediate values.
    pub compute_bytes: u64,
}

impl GpuMemory {
    /// All of it.
    pub fn total_bytes(&self) -> u64 {
        self.weights_bytes + self.cache_bytes + self.compute_bytes
    }
}

/// A part of the model that was to be in a GPU and is on the processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declined {
    /// The layer; none for the head.
    pub layer: Option<usize>,
    /// ggml's name of the GPU.
    pub gpu: String,
    /// The operation that the GPU lacks, with the type of what it reads.
    pub operation: String,
}

/// A device at work, with memory for what it computes between its inputs and its outputs.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) memory: ComputeBuffer,
    pub(crate) backend: Backend,
}

impl Worker {
    fn start(device: Device, options: &EngineOptions) -> Result<Self, LoadError> {
        let backend = match device.kind() {
            DeviceKind::Cpu => {
                let threads = options.threads.threads.max(options.batch_threads.unwrap_or(0));
                Backend::cpu(ThreadPool::new(ThreadPoolOptions { threads, ..options.threads }))
            }
            _ => Backend::start(device)?,
        };
        Ok(Self { memory: ComputeBuffer::new(&backend), backend })
    }
}

/// All devices of an engine and what each of them computes.
#[derive(Debug)]
pub(crate) struct Workers {
    pub(crate) processor: Worker,
    gpus: BTreeMap<usize, Worker>,
    pub(crate) sites: Sites,
    declined: Vec<Declined>,
}

impl Workers {
    /// Starts the devices that the placement names, and asks them for the operations that their
    /// parts of the model need.
    pub(crate) fn start(
        directory: &ModelDirectory,
        options: &EngineOptions,
    ) -> Result<Self, LoadError> {
        let processor = Worker::start(Device::cpu(), options)?;
        let (layers, placement) = (&options.layers, &options.placement);
        if !placement.uses_gpus() {
            let sites = Sites::processor(layers);
            return Ok(Self { processor, gpus: BTreeMap::new(), sites, declined: Vec::new() });
        }
        let mut chooser = Chooser {
            directory,
            options,
            devices: placement.devices(),
            memories: BTreeMap::new(),
            declined: Vec::new(),
        };
        let layer_sites = layers
            .iter()
            .enumerate()
            .map(|(index, layer)| chooser.site(placement.gpu_of_layer(index), Some(layer)))
            .collect::<Result<Vec<Site>, LoadError>>()?;
        let head = chooser.site(placement.head_gpu.filter(|_| options.head), None)?;
        let Chooser { devices, memories, declined, .. } = chooser;
        let gpus = memories
            .keys()
            .map(|gpu| Ok((*gpu, Worker::start(devices[*gpu], options)?)))
            .collect::<Result<_, LoadError>>()?;
        let sites = Sites::new(layers, layer_sites, head, memories);
        Ok(Self { processor, gpus, sites, declined })
    }

    /// The device of a site in use.
    pub(crate) fn at(&mut self, site: Site) -> &mut Worker {
        match site {
            Site::Processor => &mut self.processor,
            Site::Gpu(gpu) => self.gpus.get_mut(&gpu).expect("started for the sites in use"),
        }
    }
}

/// Decides which parts GPUs take.
struct Chooser<'o> {
    directory: &'o ModelDirectory,
    options: &'o EngineOptions,
    devices: Vec<Device>,
    /// Of the GPUs that take something.
    memories: BTreeMap<usize, BufferKind>,
    declined: Vec<Declined>,
}

impl Chooser<'_> {
    /// Where a layer, or the head, is computed that was to be in `gpu`.
    fn site(&mut self, gpu: Option<usize>, layer: Option<usize>) -> Result<Site, LoadError> {
        let Some(gpu) = gpu else { return Ok(Site::Processor) };
        let seen = self.devices.len();
        let device = *self.devices.get(gpu).ok_or(LoadError::NoGpu { gpu, seen })?;
        if let Some(operation) = self.lacking(device, layer)? {
            self.declined.push(Declined { layer, gpu: device.name(), operation });
            return Ok(Site::Processor);
        }
        self.memories.insert(gpu, device.memory());
        Ok(Site::Gpu(gpu))
    }

    /// The operation of a layer, or of the head, that a device lacks: in steps of one row, whose
    /// kernels often differ, or in the largest.
    fn lacking(&self, device: Device, layer: Option<usize>) -> Result<Option<String>, TensorError> {
        let hyper = &self.directory.hyper;
        let end = hyper.block_count;
        let window = layer.map_or(end..end, |layer| layer..layer + 1);
        let held: LayerSet = window.clone().into();
        let parts = Parts {
            layers: &held,
            embedding: false,
            head: layer.is_none(),
            placement: &self.options.placement,
            sites: &Sites::processor(&held),
            batch_rows: self.options.batch_rows_max,
        };
        let weights = Weights::imagined(self.directory, parts)?;
        let shape = CacheShape::of(self.options);
        let cache = Cache::imagined(hyper, &held, shape)?;
        let sources = Sources { hyper, weights: &weights, cache: &cache };
        let part = Part {
            layers: window,
            from_tokens: false,
            head: layer.is_none(),
            site: Site::Processor,
        };
        let rows = [1, self.options.batch_rows_max.min(self.options.context_tokens)];
        let graphs = rows.map(|rows| graphs::build(largest_key(&part, rows, sources), sources));
        Ok(graphs.iter().find_map(|window| window.graph.lacking(device)))
    }
}

/// The graph of a part for so many rows of one slot at the end of its context.
fn largest_key(part: &Part, rows: usize, sources: Sources<'_>) -> GraphKey {
    let shape = sources.cache.shape();
    let (cells, window_cells) =
        sources.cache.cells_for(shape.context_tokens, sources.hyper.sliding_window);
    let group =
        Group { first_slot: 0, slots: 1, first_row: 0, rows_per_slot: rows, cells, window_cells };
    // With no more than one row per slot wanted, the head alone gets only these.
    let selected = part.head.then(|| rows.min(shape.slots));
    GraphKey {
        groups: if part.layers.is_empty() { Vec::new() } else { vec![group] },
        layers: part.layers.clone(),
        from_tokens: part.from_tokens,
        product: if part.head { Product::Logits { states: 0 } } else { Product::Hidden },
        selected,
        rows,
    }
}

/// What passes between devices within a step; kept so that none is allocated per token.
#[derive(Debug, Default)]
pub(crate) struct Carry {
    parts: Vec<Part>,
    hidden: Vec<f32>,
    /// Rows that the head gets, in the order wanted.
    wanted: Vec<usize>,
    /// The places of those rows among themselves.
    places: Vec<usize>,
    rows: Vec<Row>,
}

impl Engine {
    /// Bytes held in the memory of each GPU in use.
    pub fn gpu_memory(&self) -> Vec<GpuMemory> {
        let Workers { gpus, sites, .. } = &self.workers;
        let memory = |(gpu, worker): (&usize, &Worker)| {
            let site = Site::Gpu(*gpu);
            GpuMemory {
                gpu: *gpu,
                name: worker.backend.device().name(),
                layers: self.held.iter().filter(|layer| sites.of_layer(*layer) == site).count(),
                head: self.holds_head() && sites.head() == site,
                weights_bytes: self.weights.gpu_bytes.get(gpu).copied().unwrap_or(0),
                cache_bytes: self.cache.bytes(site),
                compute_bytes: worker.memory.bytes() as u64,
            }
        };
        gpus.iter().map(memory).collect()
    }

    /// Layers, and maybe the head, that were to be in GPUs and are on the processor, because an
    /// operation is lacking there.
    pub fn declined(&self) -> &[Declined] {
        &self.workers.declined
    }

    /// Runs a step on all devices in its way, one after the other.
    pub(crate) fn run_parts(
        &mut self,
        step: &Step<'_>,
        scratch: &mut Scratch,
        product: &mut Vec<f32>,
    ) -> Result<(), StepError> {
        let selection = step.wanted.selection();
        let head = step.wanted.needs_head() && selection != Some((&[], &[]));
        let from_tokens = matches!(step.entering, Entering::Tokens(_));
        let mut carry = std::mem::take(&mut scratch.carry);
        self.workers.sites.cut(step.layers.clone(), from_tokens, head, &mut carry.parts);
        let done = match carry.parts.len() {
            // No layer, and nothing wanted of the head.
            0 => {
                product.clear();
                Ok(())
            }
            1 => self.compute(step, scratch, product),
            _ => self.pass_on(step, scratch, &mut carry, product),
        };
        scratch.carry = carry;
        done
    }

    fn pass_on(
        &mut self,
        step: &Step<'_>,
        scratch: &mut Scratch,
        carry: &mut Carry,
        product: &mut Vec<f32>,
    ) -> Result<(), StepError> {
        let Carry { parts, hidden, wanted, places, rows } = carry;
        let (logits, states) = step.wanted.selection().unwrap_or((&[], &[]));
        wanted.clear();
        wanted.extend(logits.iter().chain(states));
        places.clear();
        places.extend(0..wanted.len());
        // The head looks at no positions.
        rows.clear();
        rows.resize(wanted.len(), Row { slot: 0, position: 0 });
        for (index, part) in parts.iter().enumerate() {
            let last = index + 1 == parts.len();
            let before_head = parts.get(index + 1).is_some_and(|next| next.layers.is_empty());
            let head_alone = part.head && part.layers.is_empty();
            let (of_logits, of_states) = places.split_at(logits.len());
            let part_step = Step {
                layers: part.layers.clone(),
                rows: if head_alone { rows } else { step.rows },
                entering: if index == 0 { step.entering } else { Entering::Hidden(hidden) },
                wanted: match step.wanted {
                    _ if before_head => Wanted::HiddenOf(wanted),
                    _ if !last => Wanted::Hidden,
                    Wanted::Logits(_) if head_alone => Wanted::Logits(of_logits),
                    Wanted::LogitsAndStates(..) if head_alone => {
                        Wanted::LogitsAndStates(of_logits, of_states)
                    }
                    whole => whole,
                },
            };
            self.compute(&part_step, scratch, product)?;
            if !last {
                std::mem::swap(hidden, product);
            }
        }
        Ok(())
    }

    /// Reserves working memory for the largest step of every held window, so that it does not
    /// move later.
    pub(crate) fn reserve(&mut self) -> Result<(), AllocateError> {
        let block_count = self.hyper.block_count;
        let mut windows = self.held.ranges().to_vec();
        if self.holds_embedding() && !windows.iter().any(|window| window.start == 0) {
            windows.push(0..0);
        }
        if self.holds_head() && !windows.iter().any(|window| window.end == block_count) {
            windows.push(block_count..block_count);
        }
        windows.into_iter().try_for_each(|window| self.reserve_window(window))
    }

    fn reserve_window(&mut self, layers: Range<usize>) -> Result<(), AllocateError> {
        let from_tokens = self.holds_embedding() && layers.start == 0;
        let head = self.holds_head() && layers.end == self.hyper.block_count;
        let mut parts = Vec::new();
        self.workers.sites.cut(layers, from_tokens, head, &mut parts);
        let rows = self.batch_rows_max.min(self.cache.shape().context_tokens);
        for part in parts {
            let mut largest =
                graphs::build(largest_key(&part, rows, self.sources()), self.sources());
            self.workers.at(part.site).memory.allocate(&mut largest.graph)?;
        }
        Ok(())
    }
}
