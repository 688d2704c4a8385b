//! What a pass costs on a device and between devices, in time, bytes and energy (PLANNER 2).

mod disk;
mod energy;
mod layer;
mod memory;
mod quota;
mod ring;
mod stream;

use motley_cluster::{
    Bytes, Cluster, DeviceId, DeviceProfile, KvType, LayerIndex, LayerRange, ModelProfile, Phase,
    ProcessorSpec, Role, Route, Seconds, Workload,
};

pub use disk::{DiskModel, cyclic_lru_time, excess_time, lru_loads, windowed_lru_time};
pub use energy::pass_energy;
pub(crate) use memory::moving_bytes;
pub use memory::{Fit, MemoryBudget, MemoryDemand, StageShape, stage_demand, stage_fit};
pub use quota::rested_time;
pub(crate) use quota::{gap, rested};
pub use ring::{RingDevice, RingLoad, RingTime, ring_time};
pub use stream::{Stream, StreamDemand};

/// Which processor of a device computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Site {
    /// The CPU.
    Cpu,
    /// The first GPU.
    Gpu,
}

/// Time a device spends on each processor.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct GpuShare {
    /// On the CPU.
    pub cpu: Seconds,
    /// On the GPU.
    pub gpu: Seconds,
}

/// One micro-batch going through layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// Phase.
    pub phase: Phase,
    /// Tokens in it.
    pub tokens: u32,
    /// Sequences they belong to.
    pub sequences: u32,
    /// Context tokens each sequence has when the pass begins.
    pub depth_tokens: u32,
}

impl Pass {
    /// One token each of `sequences` sequences.
    #[must_use]
    pub const fn decode(sequences: u32, depth_tokens: u32) -> Self {
        Self { phase: Phase::Decode, tokens: sequences, sequences, depth_tokens }
    }

    /// `tokens` prompt tokens of one sequence.
    #[must_use]
    pub const fn prefill(tokens: u32, depth_tokens: u32) -> Self {
        Self { phase: Phase::Prefill, tokens, sequences: 1, depth_tokens }
    }

    /// Rows of logits it needs: one per sequence, which in prefill is the last token's.
    #[must_use]
    pub const fn logit_rows(&self) -> u32 {
        self.sequences
    }
}

/// The costs of one model under one workload on one cluster.
#[derive(Debug, Clone, Copy)]
pub struct CostModel<'a> {
    cluster: &'a Cluster,
    model: &'a ModelProfile,
    workload: &'a Workload,
}

impl<'a> CostModel<'a> {
    /// Binds the three.
    #[must_use]
    pub const fn new(
        cluster: &'a Cluster,
        model: &'a ModelProfile,
        workload: &'a Workload,
    ) -> Self {
        Self { cluster, model, workload }
    }

    /// The cluster.
    #[must_use]
    pub const fn cluster(&self) -> &'a Cluster {
        self.cluster
    }

    /// The model.
    #[must_use]
    pub const fn model(&self) -> &'a ModelProfile {
        self.model
    }

    /// The workload.
    #[must_use]
    pub const fn workload(&self) -> &'a Workload {
        self.workload
    }

    /// Time of one layer: measured where the device has a table for this model, kind and batch,
    /// else analytic. `None` if the device lacks the processor.
    #[must_use]
    pub fn layer_time(
        &self,
        device: DeviceId,
        site: Site,
        layer: LayerIndex,
        pass: Pass,
    ) -> Option<Seconds> {
        let processor = processor(self.cluster.device(device), site)?;
        Some(layer::layer_time(processor, self.model, self.workload.kv_type, layer, pass))
    }

    /// Mean of [`Self::layer_time`] over all layers: Halda's α (CPU) and α^g (GPU), memory and KV
    /// copies included.
    #[must_use]
    pub fn mean_layer_time(&self, device: DeviceId, site: Site, pass: Pass) -> Option<Seconds> {
        let mut total = Seconds::ZERO;
        for index in 0..self.model.layers_count() {
            total += self.layer_time(device, site, LayerIndex::new(index), pass)?;
        }
        Some(total.times(1.0 / f64::from(self.model.layers_count())))
    }

    /// Time of final norm and output matrix for the pass. `None` without the processor.
    #[must_use]
    pub fn head_time(&self, device: DeviceId, site: Site, pass: Pass) -> Option<Seconds> {
        let processor = processor(self.cluster.device(device), site)?;
        Some(layer::head_time(processor, self.model, pass))
    }

    /// Bytes that a pass reads of a layer that does not stay in memory. Of a dense layer all of them;
    /// of a mixture the rest stays, and of X experts those are read that the pass chooses and that are
    /// not among the part `cached`, each expert being as likely as another:
    /// X·(1 − (1 − x/X)^n) · bytes of an expert · (1 − cached).
    #[must_use]
    pub fn streamed_bytes(&self, layer: LayerIndex, tokens: u32, cached: f64) -> Bytes {
        let spec = self.model.layer(layer);
        let Some(experts) = self.model.experts.filter(|_| spec.expert_bytes > Bytes::ZERO) else {
            return self.model.layer_bytes(layer);
        };
        let chosen = layer::distinct_experts(experts, 1.0, f64::from(tokens));
        let absent = 1.0 - cached.clamp(0.0, 1.0);
        Bytes::from_real(spec.expert_bytes.as_f64() * chosen * absent).unwrap_or_default()
    }

    /// Mean of [`Self::streamed_bytes`] over all layers, with nothing cached.
    #[must_use]
    pub fn mean_streamed_bytes(&self, tokens: u32) -> Bytes {
        let layers = self.model.layers_count();
        let read = |layer| self.streamed_bytes(LayerIndex::new(layer), tokens, 0.0);
        let all: Bytes = (0..layers).map(read).sum();
        Bytes::new(all.count() / u64::from(layers))
    }

    /// Time of looking the pass's tokens up in the embedding table, in RAM.
    #[must_use]
    pub fn embedding_time(&self, device: DeviceId, pass: Pass) -> Seconds {
        let cpu = &self.cluster.device(device).cpu;
        let touched = self.model.embedding_row_bytes().times(u64::from(pass.tokens));
        (touched / cpu.read_bytes_per_s).times(1.0 / cpu.read_efficiency)
    }

    /// Bytes of hidden state a pass sends from one member to the next.
    #[must_use]
    pub fn activation_bytes(&self, pass: Pass) -> Bytes {
        self.model.activation_bytes_per_token().times(u64::from(pass.tokens))
    }

    /// Time of sending a pass's hidden state (τ), over relays if need be. Zero to itself; `None`
    /// if there is no way.
    #[must_use]
    pub fn hop_time(&self, from: DeviceId, to: DeviceId, pass: Pass) -> Option<Seconds> {
        Some(self.route(from, to)?.transfer(self.activation_bytes(pass)))
    }

    /// The way between two devices.
    #[must_use]
    pub fn route(&self, from: DeviceId, to: DeviceId) -> Option<Route> {
        self.cluster.links().route(from, to)
    }

    /// Bytes of keys and values that `tokens` tokens have in these layers, by the workload's type.
    #[must_use]
    pub fn kv_bytes(&self, layers: LayerRange, tokens: u32) -> Bytes {
        layers.iter().map(|layer| self.layer_kv_bytes(layer, tokens)).sum()
    }

    /// Time of handing the keys and values of a prompt's layers over.
    #[must_use]
    pub fn hand_over_time(
        &self,
        from: DeviceId,
        to: DeviceId,
        layers: LayerRange,
        tokens: u32,
    ) -> Option<Seconds> {
        Some(self.route(from, to)?.transfer(self.kv_bytes(layers, tokens)))
    }

    /// Time of `switches` changes between CPU and GPU layers inside one pass; free where memory is
    /// shared or there is no GPU.
    #[must_use]
    pub fn copy_time(&self, device: DeviceId, switches: u32, pass: Pass) -> Seconds {
        let device = self.cluster.device(device);
        match device.gpu() {
            Some(gpu) if !device.unified_memory => {
                (self.activation_bytes(pass) / gpu.copy_bytes_per_s).times(f64::from(switches))
            }
            _ => Seconds::ZERO,
        }
    }

    /// Context tokens a slot of this role must hold: a prefill slot its prompt (two standard
    /// deviations above the mean), others the whole context.
    #[must_use]
    pub fn kv_tokens_per_slot(&self, role: Role) -> u32 {
        let prompt = self.workload.prompt_tokens;
        let long = (prompt.mean * (1.0 + 2.0 * prompt.variation)).ceil();
        match role {
            Role::Prefill => (long as u32).clamp(1, self.workload.context_tokens),
            Role::Decode | Role::Mixed => self.workload.context_tokens,
        }
    }

    fn layer_kv_bytes(&self, layer: LayerIndex, tokens: u32) -> Bytes {
        kv_of(self.model, self.workload.kv_type, layer, tokens)
    }
}

/// KV bytes of one layer for `tokens` tokens; a sliding layer needs its window only.
fn kv_of(model: &ModelProfile, kv: KvType, layer: LayerIndex, tokens: u32) -> Bytes {
    let layer = model.layer(layer);
    let kept = layer.attention.seen_tokens(tokens);
    kv.bytes(layer.kv_elements_per_token).times(u64::from(kept))
}

fn processor(device: &DeviceProfile, site: Site) -> Option<&ProcessorSpec> {
    match site {
        Site::Cpu => Some(&device.cpu),
        Site::Gpu => device.gpu().map(|gpu| &gpu.processor),
    }
}
