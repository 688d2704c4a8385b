//! An engine that gives memory to other programs, between two steps.

use std::sync::Arc;

use motley_engine::{
    Engine, EngineOptions, LayoutChoice, LoadError, Model, Placement, ResidencyError,
};

use crate::memory::{EngineShare, Holding};
use crate::terminal;

/// What an engine gives away and takes back.
#[derive(Debug)]
pub(crate) struct Yielder {
    share: EngineShare,
    model: Arc<Model>,
    /// How the weights are kept where memory suffices.
    placement: Placement,
    layout: LayoutChoice,
    /// Bytes of the engine then, and of them those that can be given away.
    full_bytes: u64,
    yieldable_bytes: u64,
    yielded_bytes: u64,
    /// Whether the engine has all weights placed for good where memory suffices.
    is_fixed: bool,
}

impl Yielder {
    /// For an engine that was just loaded; nothing for one with layers in GPUs, which do not move.
    pub(crate) fn new(
        share: EngineShare,
        engine: &Engine,
        model: Arc<Model>,
        options: &EngineOptions,
    ) -> Option<Self> {
        if options.placement.uses_gpus() {
            return None;
        }
        let memory = engine.memory();
        let is_fixed = engine.stream_figures().is_none();
        // Beside movable weights the system may drop what is mapped.
        let dropped = if is_fixed { 0 } else { memory.weights_mapped_bytes };
        let yielder = Self {
            share,
            placement: options.placement.clone(),
            layout: options.layout,
            full_bytes: memory.total_bytes() - dropped,
            yieldable_bytes: engine.yieldable_bytes(model.directory()),
            yielded_bytes: 0,
            is_fixed,
            model,
        };
        yielder.tell(engine);
        Some(yielder)
    }

    /// Does what is asked of the engine, if that has changed. What keys and values it holds stays.
    ///
    /// # Errors
    /// When weights cannot be loaded anew; the engine is of no use any more then.
    pub(crate) fn follow(&mut self, engine: &mut Engine) -> Result<(), LoadError> {
        let wanted = self.share.wish().yield_bytes.min(self.yieldable_bytes);
        if wanted == self.yielded_bytes {
            return Ok(());
        }
        let budget = self.full_bytes - wanted;
        if wanted == 0 && self.is_fixed {
            engine.place_anew(&self.model, &self.placement, self.layout)?;
        } else if let Err(ResidencyError::Fixed) = engine.set_memory_budget(budget) {
            let placement = Placement::within(budget);
            engine.place_anew(&self.model, &placement, LayoutChoice::Plain)?;
        }
        self.yielded_bytes = wanted;
        self.tell(engine);
        let streamed = engine.stream_figures().map_or(0, |figures| figures.streamed_bytes);
        terminal::note(&format!(
            "memory: {} left to other programs, {} of the weights are streamed\n",
            terminal::bytes(wanted),
            terminal::bytes(streamed)
        ));
        Ok(())
    }

    /// Of so many slots those that new requests may have, at least one.
    pub(crate) fn slots(&self, slots: u32) -> u32 {
        (slots >> self.share.wish().slot_halvings.min(31)).max(1)
    }

    fn tell(&self, engine: &Engine) {
        let mapped = engine.memory().weights_mapped_bytes;
        self.share.tell(Holding {
            yieldable_bytes: self.yieldable_bytes,
            yielded_bytes: self.yielded_bytes,
            // Beside movable weights only single rows of what is mapped are needed.
            mapped_bytes: if engine.stream_figures().is_some() { 0 } else { mapped },
        });
    }
}
