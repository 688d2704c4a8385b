//! What layers and their surroundings take in memory, for dealing them out and for admission.

use motley_cluster::{LayerIndex, Residency as Kept, ResidencyRun};
use motley_engine::{
    CacheElement, EngineOptions, LayerSet, LayoutChoice, Placement, Residency, StreamOptions,
    interleaved_bytes_max,
};
use motley_model::ModelDirectory;

use crate::memory::{self, Duty, Usage};

/// Memory of a model's parts for one way of using it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Weights, keys and values of each layer.
    pub(crate) layer_bytes: Vec<u64>,
    /// Of them keys and values.
    layer_cache_bytes: Vec<u64>,
    /// Embedding and projection, as far as they stay in memory.
    ends_bytes: u64,
    /// Intermediate values and the program, without logits and vocabulary, ...
    work_bytes: u64,
    /// ... and with them.
    head_work_bytes: u64,
    /// What of either is kept for forms that nobody has asked for yet, and for the uncounted.
    spare_bytes: u64,
    head_spare_bytes: u64,
}

impl Sizes {
    /// Sizes of a model for an engine with these slots, context and batches.
    ///
    /// # Errors
    /// When the cache cannot have its type or size.
    pub(crate) fn new(directory: &ModelDirectory, options: &EngineOptions) -> anyhow::Result<Self> {
        let needed = |duty| {
            let usage = Usage {
                duty,
                slots: options.slots as u64,
                batch_rows: options.batch_rows_max as u64,
                cache: options.cache,
            };
            memory::needed(directory, &usage, options.context_tokens as u64)
        };
        let (member, head) = (needed(Duty::Layers)?, needed(Duty::Forms)?);
        let model = &member.model;
        // Each token needs one row of an embedding that is not the projection too.
        let mapped = options.placement.maps_embedding() && directory.output.is_some();
        let embedding_bytes = if mapped { 0 } else { model.embedding_bytes };
        let layers = model.layer_weights_bytes.iter().zip(&model.layer_cache_bytes);
        Ok(Self {
            layer_bytes: layers.map(|(weights, cache)| weights + cache).collect(),
            layer_cache_bytes: model.layer_cache_bytes.clone(),
            ends_bytes: embedding_bytes + model.head_bytes,
            work_bytes: member.compute_bytes + member.program_bytes,
            head_work_bytes: head.compute_bytes + head.program_bytes,
            spare_bytes: member.program_bytes - Duty::Layers.program_used_bytes(directory),
            head_spare_bytes: head.program_bytes - Duty::Forms.program_used_bytes(directory),
        })
    }

    /// Sizes of a model that is not there.
    #[cfg(test)]
    pub(crate) fn made(layer_bytes: &[u64], ends_bytes: u64, work_bytes: u64) -> Self {
        let layer_cache_bytes = vec![0; layer_bytes.len()];
        Self {
            layer_bytes: layer_bytes.to_vec(),
            layer_cache_bytes,
            ends_bytes,
            work_bytes,
            head_work_bytes: work_bytes,
            spare_bytes: 0,
            head_spare_bytes: 0,
        }
    }

    /// What is kept free of what a device's program may take.
    pub(crate) fn spare_bytes(&self, head: bool) -> u64 {
        if head { self.head_spare_bytes } else { self.spare_bytes }
    }

    /// Intermediate values and the program itself.
    pub(crate) fn work_bytes(&self, head: bool) -> u64 {
        if head { self.head_work_bytes } else { self.work_bytes }
    }

    /// Embedding and projection, as far as they stay in memory.
    pub(crate) fn ends_bytes(&self) -> u64 {
        self.ends_bytes
    }

    /// What a device needs beside its layers.
    pub(crate) fn fixed_bytes(&self, head: bool) -> u64 {
        self.work_bytes(head) + if head { self.ends_bytes } else { 0 }
    }
}

/// Layers through which weights are streamed: one is read while another is used.
const STREAMED_LAYERS: u64 = 2;

/// What layers take, by where they are kept.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    /// What stays in memory, keys and values among it.
    kept_bytes: u64,
    /// Weights that are streamed, of all layers and of the widest.
    streamed_bytes: u64,
    widest_streamed_bytes: u64,
}

/// What these layers take, given as first and last plus one, kept as `residency` says; without a
/// word on it, in memory. What a GPU keeps does not count.
fn taken(sizes: &Sizes, layers: &[(u32, u32)], residency: &[ResidencyRun]) -> Taken {
    let mut taken = Taken::default();
    for layer in layers.iter().flat_map(|(first, end)| *first..*end) {
        let all = sizes.layer_bytes.get(layer as usize).copied().unwrap_or(0);
        let cache = sizes.layer_cache_bytes.get(layer as usize).copied().unwrap_or(0);
        match kept(residency, layer) {
            Some(Kept::Gpu) => {}
            Some(Kept::Stream) => {
                let weights = all.saturating_sub(cache);
                taken.kept_bytes += cache;
                taken.streamed_bytes += weights;
                taken.widest_streamed_bytes = taken.widest_streamed_bytes.max(weights);
            }
            _ => taken.kept_bytes += all,
        }
    }
    taken
}

/// Memory that these layers need at least.
pub(crate) fn layer_bytes(sizes: &Sizes, layers: &[(u32, u32)], residency: &[ResidencyRun]) -> u64 {
    let taken = taken(sizes, layers, residency);
    taken.kept_bytes + STREAMED_LAYERS * taken.widest_streamed_bytes
}

/// Memory that these layers take where `left_bytes` are left for them; nothing where a GPU keeps some.
pub(crate) fn whole_bytes(
    sizes: &Sizes,
    layers: &[(u32, u32)],
    residency: &[ResidencyRun],
    left_bytes: u64,
) -> Option<u64> {
    let buffer_bytes = stream_buffer_bytes(sizes, layers, residency, left_bytes).unwrap_or(0);
    let in_gpu = residency.iter().any(|run| run.weights == Kept::Gpu);
    (!in_gpu).then(|| taken(sizes, layers, residency).kept_bytes + buffer_bytes)
}

/// Memory for weights on their way from disk: all that is left beside everything else, as far as
/// there is something to read, since plans count on reading so far ahead while others compute.
/// Nothing where nothing is streamed.
pub(crate) fn stream_buffer_bytes(
    sizes: &Sizes,
    layers: &[(u32, u32)],
    residency: &[ResidencyRun],
    budget_bytes: u64,
) -> Option<u64> {
    let Taken { kept_bytes, streamed_bytes, .. } = taken(sizes, layers, residency);
    let left_bytes = budget_bytes.saturating_sub(kept_bytes);
    (streamed_bytes > 0).then(|| left_bytes.min(streamed_bytes))
}

fn kept(residency: &[ResidencyRun], layer: u32) -> Option<Kept> {
    let layer = LayerIndex::new(layer);
    residency.iter().find(|run| run.layers.contains(layer)).map(|run| run.weights)
}

/// The engine's words for how a plan keeps these layers. Where nothing is streamed, all are kept as
/// the device's owner wants, but for those of a GPU. A head goes into the GPU that has any of its
/// device's layers, as plans take for granted. What is streamed comes through `buffer_bytes`.
pub(crate) fn placement(
    layers: &[(u32, u32)],
    residency: &[ResidencyRun],
    wish: Placement,
    buffer_bytes: Option<u64>,
) -> Placement {
    let mut layers: Vec<u32> = layers.iter().flat_map(|(first, end)| *first..*end).collect();
    layers.sort_unstable();
    let is = |layer: &u32, what| kept(residency, *layer) == Some(what);
    let beside_gpus = if layers.iter().any(|layer| is(layer, Kept::Stream)) {
        let place = |layer: &u32| {
            if is(layer, Kept::Stream) { Residency::Stream } else { Residency::Ram }
        };
        let buffer_bytes = buffer_bytes.and_then(|bytes| usize::try_from(bytes).ok());
        Placement::per_layer(layers.iter().map(place).collect())
            .streamed_by(StreamOptions { buffer_bytes, ..StreamOptions::default() })
    } else {
        wish
    };
    if !layers.iter().any(|layer| is(layer, Kept::Gpu)) {
        return beside_gpus;
    }
    let gpus = layers.iter().map(|layer| is(layer, Kept::Gpu).then_some(0)).collect();
    beside_gpus.with_gpu_layers(gpus).with_gpu_head(0)
}

/// How these layers may be laid out: interleaved copies are for devices with memory to spare.
pub(crate) fn layout(
    directory: &ModelDirectory,
    (layers, head): (&LayerSet, bool),
    (needed_bytes, budget_bytes): (u64, u64),
    wish: LayoutChoice,
) -> LayoutChoice {
    let copies_bytes = interleaved_bytes_max(directory, layers, head);
    match needed_bytes.saturating_add(copies_bytes) <= budget_bytes {
        true => wish,
        false => LayoutChoice::Plain,
    }
}

/// Refuses a part of a model that does not fit.
///
/// # Errors
/// With what it needs and what there is.
pub(crate) fn admit(
    sizes: &Sizes,
    layers: &[(u32, u32)],
    residency: &[ResidencyRun],
    budget_bytes: u64,
) -> anyhow::Result<()> {
    let needed = layer_bytes(sizes, layers, residency) + sizes.fixed_bytes(false);
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

#[cfg(test)]
mod tests {
    use motley_cluster::{KvPlace, LayerRange};

    use super::*;

    #[test]
    fn streamed_layers_need_their_cache_and_two_of_them_in_memory() {
        let sizes = Sizes {
            layer_bytes: vec![110, 110, 120, 110],
            layer_cache_bytes: vec![10; 4],
            ends_bytes: 5,
            work_bytes: 7,
            head_work_bytes: 9,
            spare_bytes: 0,
            head_spare_bytes: 0,
        };
        let run = |first, count, weights| ResidencyRun {
            layers: LayerRange::with_len(first, count),
            weights,
            kv: KvPlace::Ram,
        };
        let residency = [run(0, 1, Kept::Ram), run(1, 2, Kept::Stream)];
        assert_eq!(layer_bytes(&sizes, &[(0, 3)], &[]), 340);
        assert_eq!(layer_bytes(&sizes, &[(0, 3)], &residency), 110 + 20 + 2 * 110);
        assert_eq!(layer_bytes(&sizes, &[(0, 9)], &[]), 450, "there are no more layers");
        assert!(admit(&sizes, &[(0, 3)], &residency, 357).is_ok());
        assert_eq!(
            admit(&sizes, &[(0, 3)], &residency, 356).unwrap_err().to_string(),
            "the layers need 357 B, this device gives 356 B"
        );
        let buffer = |budget| stream_buffer_bytes(&sizes, &[(0, 3)], &residency, budget);
        assert_eq!(buffer(110 + 20 + 70), Some(70), "all that is left");
        assert_eq!(buffer(1000), Some(100 + 110), "no more than is read");
        assert_eq!(buffer(0), Some(0), "the engine knows what it needs at least");
        assert_eq!(stream_buffer_bytes(&sizes, &[(0, 1)], &residency, 1000), None);
        let whole = |residency: &[_], left| whole_bytes(&sizes, &[(0, 3)], residency, left);
        assert_eq!(whole(&residency, 200), Some(200), "buffers take all that is left");
        assert_eq!(whole(&residency, 1000), Some(110 + 20 + 100 + 110));
        assert_eq!(whole(&[run(1, 1, Kept::Gpu)], 1000), None);
        let placement = |layers: &[(u32, u32)], residency: &[ResidencyRun], wish| {
            placement(layers, residency, wish, None)
        };
        let wish = || Placement::from(Residency::Mapped);
        assert_eq!(placement(&[(0, 3)], &[], wish()), wish());
        assert_eq!(placement(&[(0, 1)], &residency, wish()), wish(), "nothing is streamed");
        let (ram, stream) = (Residency::Ram, Residency::Stream);
        let per_layer = Placement::per_layer(vec![ram, stream, stream, ram]);
        // Windows of several rounds, and a layer of which nothing is said.
        assert_eq!(placement(&[(2, 4), (0, 2)], &residency, wish()), per_layer);
        // The GPU's layers take no memory of the device.
        let residency = [run(0, 2, Kept::Gpu), run(2, 1, Kept::Stream)];
        assert_eq!(layer_bytes(&sizes, &[(0, 4)], &residency), 10 + 2 * 110 + 110);
        let gpus = vec![Some(0), Some(0), None, None];
        let expected = Placement::per_layer(vec![ram, ram, stream, ram]);
        let expected = expected.with_gpu_layers(gpus.clone()).with_gpu_head(0);
        assert_eq!(placement(&[(0, 4)], &residency, wish()), expected);
        let expected = wish().with_gpu_layers(gpus[..2].to_vec()).with_gpu_head(0);
        assert_eq!(placement(&[(0, 2)], &residency, wish()), expected);
    }
}
