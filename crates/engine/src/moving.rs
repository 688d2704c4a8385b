//! An engine whose weights are loaded anew, kept in another way, while what its slots hold stays.

use motley_model::ModelDirectory;

use crate::engine::{Engine, LayoutChoice, LoadError, layouts, mapped_files};
use crate::kept_graphs::KeptGraphs;
use crate::layer_set::LayerSet;
use crate::model::Model;
use crate::placement::Placement;
use crate::stream::{StreamOptions, stream_buffer_bytes};
use crate::weights::{Parts, Weights};

/// What whole blocks of the disk may add to the matrices of a layer.
const ROUNDING_BYTES_PER_LAYER: u64 = 64 << 10;

impl Engine {
    /// Loads the weights of `model` anew, kept as `placement` says; cached keys and values stay.
    /// For weights that were placed for good and must make room, or that may be so again; layers in
    /// GPUs do not move, so that engines that have some are not for this. Another layout may change
    /// results in their last bits.
    ///
    /// # Errors
    /// As [`load`](Self::load). The engine holds nothing then, and refuses every step.
    pub fn place_anew(
        &mut self,
        model: &Model,
        placement: &Placement,
        layout: LayoutChoice,
    ) -> Result<(), LoadError> {
        if let Some(given) = placement.residencies()
            && given != self.held.len()
        {
            return Err(LoadError::Placement { given, layers: self.held.len() });
        }
        let held = std::mem::replace(&mut self.held, LayerSet::none());
        let (embedding, head) = (self.holds_embedding(), self.holds_head());
        // What was there goes first: there is no room for both.
        self.graphs = KeptGraphs::default();
        self.weights = Weights::none();
        self.store = None;
        self.layouts = layouts(&mut self.workers.processor.backend, model, layout, placement)?;
        let sites = &self.workers.sites;
        let batch_rows = self.batch_rows_max;
        let parts = Parts { layers: &held, embedding, head, placement, sites, batch_rows };
        let (weights, store) =
            Weights::load(model.files(), model.directory(), parts, &self.layouts)?;
        self.mapped_files = mapped_files(model, &weights);
        (self.weights, self.store, self.changes_known) = (weights, store, 0);
        self.held = held;
        self.follow_experts();
        self.reserve()?;
        self.place_weights(placement)?;
        if model.files().iter().any(|file| file.was_truncated()) {
            return Err(LoadError::Truncated);
        }
        Ok(())
    }

    /// Bytes that the engine could give away of those it holds now, if every layer were streamed.
    /// Of mapped weights all count, although the system can take them by itself.
    pub fn yieldable_bytes(&self, directory: &ModelDirectory) -> u64 {
        let matrices = |layer: usize| directory.layers[layer].matrices().map(|it| it.bytes);
        let movable: u64 = self.held.iter().flat_map(matrices).sum();
        let buffer = stream_buffer_bytes(directory, &StreamOptions::default());
        let memory = self.memory();
        match self.stream_figures() {
            Some(figures) if figures.streamed_bytes > 0 => figures.resident_bytes,
            Some(figures) => figures.resident_bytes.saturating_sub(buffer),
            None => {
                let weights = memory.weights_mapped_bytes + memory.weights_allocated_bytes;
                let rounding = ROUNDING_BYTES_PER_LAYER * self.held.len() as u64;
                movable.min(weights).saturating_sub(buffer + rounding)
            }
        }
    }
}
