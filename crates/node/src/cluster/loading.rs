//! How far an engine's loading is, for the head: without progress it takes a node for stuck.

use std::sync::Arc;

use motley_engine::{LayerSet, Model};
use motley_ring::{Epoch, Progress};

/// A load under way.
#[derive(Debug)]
pub(super) struct Loading {
    model: Arc<Model>,
    /// Bytes that engines had read of the model before.
    before_bytes: u64,
    /// Bytes fetched before the load began, which the head knows of.
    fetched_bytes: u64,
    /// Bytes of the layers' weights.
    layers_bytes: u64,
    told_bytes: u64,
}

impl Loading {
    /// A load of `layers` that begins now, after so many bytes were fetched.
    pub(super) fn begin(model: Arc<Model>, layers: &LayerSet, fetched_bytes: u64) -> Self {
        let matrices = |layer: usize| model.directory().layers[layer].matrices();
        let layers_bytes = layers.iter().flat_map(matrices).map(|it| it.bytes).sum();
        let before_bytes = model.loaded_bytes();
        Self { model, before_bytes, fetched_bytes, layers_bytes, told_bytes: 0 }
    }

    /// What to tell the head, if more was loaded since the last call.
    pub(super) fn progress(&mut self, epoch: Epoch) -> Option<Progress> {
        let bytes = self.model.loaded_bytes() - self.before_bytes;
        if bytes <= self.told_bytes {
            return None;
        }
        self.told_bytes = bytes;
        // What is kept in two layouts is read twice.
        let total_bytes = self.fetched_bytes + self.layers_bytes.max(bytes);
        Some(Progress { epoch, done_bytes: self.fetched_bytes + bytes, total_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::small_model::small_model;
    use motley_engine::{CacheElement, Engine, EngineOptions, LayoutChoice, Placement, Residency};
    use motley_ggml::ThreadPoolOptions;

    fn load(model: &Model, placement: Placement) {
        let options = EngineOptions {
            layers: (0..4).into(),
            embedding: false,
            head: false,
            slots: 1,
            context_tokens: 64,
            batch_rows_max: 8,
            cache: CacheElement::F16,
            threads: ThreadPoolOptions { threads: 1, poll_percent: 0, pinned: false },
            batch_threads: None,
            layout: LayoutChoice::Plain,
            placement,
        };
        drop(Engine::load(model, &options).unwrap());
    }

    #[test]
    fn every_way_of_loading_is_seen() {
        let Some(model) = small_model() else { return };
        let model = Arc::new(model);
        let layers: LayerSet = (0..4).into();
        for residency in [Residency::Ram, Residency::Mapped] {
            let mut loading = Loading::begin(Arc::clone(&model), &layers, 1000);
            assert_eq!(loading.progress(Epoch(7)), None, "nothing yet");
            load(&model, residency.into());
            let progress = loading.progress(Epoch(7)).expect("progress of a load");
            assert!(progress.done_bytes >= 1000 + loading.layers_bytes, "{progress:?}");
            assert!(progress.total_bytes >= progress.done_bytes);
            assert_eq!(loading.progress(Epoch(7)), None, "no more than before");
        }
        let mut loading = Loading::begin(Arc::clone(&model), &layers, 0);
        load(&model, Placement::within(1 << 30));
        assert!(loading.progress(Epoch(7)).is_some(), "pieces that may move are read too");
    }
}
