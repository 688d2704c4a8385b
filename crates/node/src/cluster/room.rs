//! What layers and their surroundings take in memory, for dealing them out and for admission.

use motley_engine::{CacheElement, EngineOptions};
use motley_model::ModelDirectory;

use crate::memory::{self, Needed, Usage};

/// Memory of a model's parts for one way of using it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Weights, keys and values of each layer.
    pub(crate) layer_bytes: Vec<u64>,
    /// Embedding and projection.
    ends_bytes: u64,
    /// Intermediate values and the program.
    work_bytes: u64,
}

impl Sizes {
    /// Sizes of a model for an engine with these slots, context and batches.
    ///
    /// # Errors
    /// When the cache cannot have its type or size.
    pub(crate) fn new(directory: &ModelDirectory, options: &EngineOptions) -> anyhow::Result<Self> {
        let usage = Usage {
            slots: options.slots as u64,
            batch_rows: options.batch_rows_max as u64,
            cache: options.cache,
        };
        let needed = memory::needed(directory, &usage, options.context_tokens as u64)?;
        let model = &needed.model;
        let layers = model.layer_weights_bytes.iter().zip(&model.layer_cache_bytes);
        Ok(Self {
            layer_bytes: layers.map(|(weights, cache)| weights + cache).collect(),
            ends_bytes: model.embedding_bytes + model.head_bytes,
            work_bytes: needed.compute_bytes + Needed::PROGRAM_BYTES,
        })
    }

    /// Sizes of a model that is not there.
    #[cfg(test)]
    pub(crate) fn made(layer_bytes: &[u64], ends_bytes: u64, work_bytes: u64) -> Self {
        Self { layer_bytes: layer_bytes.to_vec(), ends_bytes, work_bytes }
    }

    /// Intermediate values and the program itself.
    pub(crate) fn work_bytes(&self) -> u64 {
        self.work_bytes
    }

    /// What a device needs beside its layers.
    pub(crate) fn fixed_bytes(&self, head: bool) -> u64 {
        self.work_bytes + if head { self.ends_bytes } else { 0 }
    }
}

/// Memory of these layers, given as first and last plus one.
pub(crate) fn layer_bytes(sizes: &Sizes, layers: &[(u32, u32)]) -> u64 {
    let windows = layers
        .iter()
        .filter_map(|(first, end)| sizes.layer_bytes.get(*first as usize..*end as usize));
    windows.flatten().sum()
}

/// Refuses a part of a model that does not fit.
///
/// # Errors
/// With what it needs and what there is.
pub(crate) fn admit(sizes: &Sizes, layers: &[(u32, u32)], budget_bytes: u64) -> anyhow::Result<()> {
    let needed = layer_bytes(sizes, layers) + sizes.fixed_bytes(false);
    anyhow::ensure!(
        needed <= budget_bytes,
        "the layers need {}, this device gives {}",
        crate::terminal::bytes(needed),
        crate::terminal::bytes(budget_bytes)
    );
    Ok(())
}

/// The engine's word for a cache type of the plan.
pub(crate) fn cache_element(kv_type: motley_cluster::KvType) -> Option<CacheElement> {
    match kv_type {
        motley_cluster::KvType::F16 => Some(CacheElement::F16),
        motley_cluster::KvType::Q8_0 => Some(CacheElement::Q8_0),
        motley_cluster::KvType::Q4_0 => None,
    }
}
