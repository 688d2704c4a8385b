//! Does a stage fit its device (PLANNER 1.3 and 8.2).

use motley_cluster::{
    BufferDemand, Bytes, DeviceProfile, KvPlace, LayerIndex, LayerRange, ModelProfile, Workload,
    compute_buffer_bytes,
};

/// What a device is to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageShape<'a> {
    /// Layers in GPU memory.
    pub gpu: &'a [LayerRange],
    /// Layers pinned in RAM.
    pub ram: &'a [LayerRange],
    /// Layers streamed from disk.
    pub stream: &'a [LayerRange],
    /// The device also embeds, projects and samples.
    pub head: bool,
    /// Sequences at once.
    pub slots: u32,
    /// Context tokens per slot, see [`super::CostModel::kv_tokens_per_slot`].
    pub kv_tokens: u32,
    /// Where CPU layers keep their KV: E2LLM's engine keeps it on the GPU, a ring in RAM.
    pub cpu_kv: KvPlace,
}

/// What that takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryDemand {
    /// Of the GPU.
    pub gpu: Bytes,
    /// Of RAM.
    pub ram: Bytes,
}

/// What a device has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryBudget {
    /// On the GPU; nothing without one.
    pub gpu: Bytes,
    /// In RAM; with unified memory the same memory as `gpu`.
    pub ram: Bytes,
    /// GPU and RAM are one memory, whose size is `gpu`.
    pub shared: bool,
}

impl MemoryBudget {
    /// GPU memory held back on a card whose usable part nobody measured: process, buffers, display.
    ///
    /// The published plans on the 12 GB cards agree with 2.0 to 2.1 GB. Two stages on the 6 GB
    /// laptop card leave only 1.7 to 1.9 GB, depending on which layers its GPU takes; this is the
    /// largest round figure with which all nine plans fit either way.
    pub const GPU_HELD_BACK: Bytes = Bytes::new(1_700_000_000);

    /// What a device's profile allows.
    #[must_use]
    pub fn of(device: &DeviceProfile) -> Self {
        let ram = device.memory.ram_available_bytes;
        match device.gpu() {
            Some(gpu) if device.unified_memory => {
                Self { gpu: gpu.usable_bytes, ram: gpu.usable_bytes, shared: true }
            }
            Some(gpu) => Self { gpu: gpu.usable_bytes, ram, shared: false },
            None => Self { gpu: Bytes::ZERO, ram, shared: false },
        }
    }
}

/// Whether a demand fits a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// It does.
    Fits,
    /// It does not, by these amounts.
    Short {
        /// Missing GPU memory.
        gpu: Bytes,
        /// Missing RAM.
        ram: Bytes,
    },
}

/// Memory a stage takes: GPU weights, KV, head and embedding by the rule of PLANNER 8.2; pinned
/// layers, two slots for streamed ones, what is no expert of streamed ones with experts, and the
/// CPU's compute buffer in RAM. What a GPU's own buffers take is already off its usable memory.
#[must_use]
pub fn stage_demand(
    device: &DeviceProfile,
    model: &ModelProfile,
    workload: &Workload,
    stage: &StageShape<'_>,
) -> MemoryDemand {
    let weights = |ranges: &[LayerRange]| -> Bytes {
        layers(ranges).map(|layer| model.layer_bytes(layer)).sum()
    };
    let kv = |ranges: &[LayerRange]| -> Bytes {
        layers(ranges).map(|layer| kept_kv(model, workload, stage, layer)).sum()
    };
    let has_gpu = device.gpu().is_some();
    let head = if stage.head { model.head_resident_bytes() } else { Bytes::ZERO };
    let moving = |layer: LayerIndex| moving_bytes(model, layer);
    let widest = layers(stage.stream).map(moving).max();
    let stays = |layer: LayerIndex| model.layer_bytes(layer).saturating_sub(moving(layer));
    let beside: Bytes = layers(stage.stream).map(stays).sum();
    let mut demand = MemoryDemand {
        gpu: weights(stage.gpu) + kv(stage.gpu),
        ram: weights(stage.ram) + widest.unwrap_or_default().times(2) + beside,
    };
    let cpu_kv = kv(stage.ram) + kv(stage.stream);
    if has_gpu && stage.cpu_kv == KvPlace::Gpu {
        demand.gpu += cpu_kv;
    } else {
        demand.ram += cpu_kv;
    }
    if has_gpu {
        demand.gpu += head;
    } else {
        demand.ram += head;
    }
    let cpu_layers = layers(stage.ram).chain(layers(stage.stream)).next().is_some();
    if cpu_layers || (stage.head && !has_gpu) {
        demand.ram += compute_buffer_bytes(
            model,
            &BufferDemand {
                micro_batch_tokens: workload.micro_batch_tokens,
                context_tokens: stage.kv_tokens,
                flash_attention: workload.flash_attention,
                runs_head: stage.head && !has_gpu,
                gpu: None,
            },
        );
    }
    demand
}

/// Compares a demand with a budget.
#[must_use]
pub fn stage_fit(demand: MemoryDemand, budget: MemoryBudget) -> Fit {
    let (gpu, ram) = if budget.shared {
        let short = (demand.gpu + demand.ram).saturating_sub(budget.gpu);
        (short, Bytes::ZERO)
    } else {
        (demand.gpu.saturating_sub(budget.gpu), demand.ram.saturating_sub(budget.ram))
    };
    if gpu == Bytes::ZERO && ram == Bytes::ZERO { Fit::Fits } else { Fit::Short { gpu, ram } }
}

fn layers(ranges: &[LayerRange]) -> impl Iterator<Item = LayerIndex> + '_ {
    ranges.iter().flat_map(|range| range.iter())
}

/// Bytes of a streamed layer that do not stay: its experts, or all of it where it has none.
pub(crate) fn moving_bytes(model: &ModelProfile, layer: LayerIndex) -> Bytes {
    let experts = model.experts.map_or(0, |experts| u64::from(experts.count));
    let bytes = model.layer(layer).expert_bytes.times(experts);
    if bytes > Bytes::ZERO { bytes } else { model.layer_bytes(layer) }
}

/// KV all slots of a stage keep of one layer.
fn kept_kv(
    model: &ModelProfile,
    workload: &Workload,
    stage: &StageShape<'_>,
    layer: LayerIndex,
) -> Bytes {
    let layer = model.layer(layer);
    let kept = layer.attention.kept_tokens(stage.kv_tokens, workload.micro_batch_tokens);
    let rows = u64::from(kept) * u64::from(stage.slots);
    workload.kv_type.bytes(layer.kv_elements_per_token).times(rows)
}
