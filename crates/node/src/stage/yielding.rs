//! An engine that gives memory to other programs: between two steps, and within long ones.

use std::sync::Arc;
use std::time::Instant;

use motley_engine::{
    Engine, EngineOptions, Entering, LayoutChoice, LoadError, Model, Placement, ResidencyError,
    Step, StepError, Wanted,
};

use super::pace::Pace;
use crate::memory::{EngineShare, Holding};
use crate::terminal;

/// An engine and what it does for other programs, if anything.
#[derive(Debug)]
pub(crate) struct YieldingEngine {
    engine: Engine,
    yielder: Option<Yielder>,
    pace: Pace,
    /// Hidden states between two parts of a step.
    hidden: Vec<f32>,
}

impl YieldingEngine {
    /// With nothing for `yielder` it keeps its memory.
    pub(crate) fn new(engine: Engine, yielder: Option<Yielder>) -> Self {
        Self { engine, yielder, pace: Pace::new(), hidden: Vec::new() }
    }

    /// The engine as it is now.
    pub(crate) fn get(&self) -> &Engine {
        &self.engine
    }

    /// As [`Engine::clear`].
    pub(crate) fn clear(&mut self, slot: usize) {
        self.engine.clear(slot);
    }

    /// As [`Engine::rest`].
    pub(crate) fn rest(&self) {
        self.engine.rest();
    }

    /// Gives memory to other programs, or takes it back, if that is asked for.
    pub(crate) fn follow(&mut self) {
        if let Some(yielder) = &mut self.yielder
            && let Err(error) = yielder.follow(&mut self.engine)
        {
            // Steps fail from now on, and whoever asks hears of that.
            terminal::note(&format!("weights are lost: {:#}\n", anyhow::Error::from(error)));
            self.yielder = None;
        }
    }

    /// Of so many slots those that new requests may have, at least one.
    pub(crate) fn slots(&self, slots: u32) -> u32 {
        let halvings = self.yielder.as_ref().map_or(0, |it| it.share.wish().slot_halvings);
        (slots >> halvings.min(31)).max(1)
    }

    /// As [`Engine::run`], and between the parts of a long step memory is given away.
    ///
    /// # Errors
    /// As [`Engine::run`]; a step that fails in a later part leaves its slots unknown: clear them.
    pub(crate) fn run(&mut self, step: &Step<'_>, product: &mut Vec<f32>) -> Result<(), StepError> {
        let (rows, layers) = (step.rows.len(), step.layers.len());
        let parts = if self.yielder.is_some() { self.pace.parts(rows, layers) } else { 1 };
        let began = Instant::now();
        let mut hidden = std::mem::take(&mut self.hidden);
        for part in 0..parts {
            let start = step.layers.start + layers * part / parts;
            let end = step.layers.start + layers * (part + 1) / parts;
            let window = Step {
                layers: start..end,
                rows: step.rows,
                entering: if part == 0 { step.entering } else { Entering::Hidden(&hidden) },
                wanted: if part + 1 == parts { step.wanted } else { Wanted::Hidden },
            };
            self.engine.run(&window, product)?;
            if part + 1 < parts {
                std::mem::swap(&mut hidden, product);
                self.follow();
            }
        }
        self.hidden = hidden;
        self.pace.learn(rows, layers, began.elapsed());
        Ok(())
    }
}

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
    fn follow(&mut self, engine: &mut Engine) -> Result<(), LoadError> {
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    use motley_engine::{CacheElement, Residency, Row};
    use motley_ggml::ThreadPoolOptions;

    use super::*;
    use crate::memory::{PressureWatch, ShortMemory};
    use crate::small_model::small_model;

    fn options(layers: usize) -> EngineOptions {
        EngineOptions {
            layers: (0..layers).into(),
            embedding: true,
            head: true,
            slots: 1,
            context_tokens: 64,
            batch_rows_max: 64,
            cache: CacheElement::F16,
            threads: ThreadPoolOptions { threads: 1, poll_percent: 0, pinned: false },
            batch_threads: None,
            layout: LayoutChoice::Plain,
            placement: Residency::Ram.into(),
        }
    }

    #[test]
    fn memory_is_given_away_within_a_step_and_its_result_stays() {
        let Some(model) = small_model() else { return };
        let model = Arc::new(model);
        let options = options(model.directory().hyper.block_count);
        let tokens: Vec<_> = (100..140).collect();
        let rows: Vec<_> = (0..tokens.len()).map(|position| Row { slot: 0, position }).collect();
        let step = Step {
            layers: 0..options.layers.len(),
            rows: &rows,
            entering: Entering::Tokens(&tokens),
            wanted: Wanted::Logits(&[39]),
        };
        let mut expected = Vec::new();
        Engine::load(&model, &options).unwrap().run(&step, &mut expected).unwrap();

        let engine = Engine::load(&model, &options).unwrap();
        let before = engine.memory().weights_allocated_bytes;
        let watch = PressureWatch::start(ShortMemory, 1_000_000_000).unwrap();
        let (woken, wakes) = sync_channel(100);
        let share = watch.engine(move || {
            let _ = woken.try_send(());
        });
        let yielder = Yielder::new(share, &engine, Arc::clone(&model), &options).unwrap();
        while yielder.share.wish().yield_bytes == 0 {
            wakes.recv_timeout(Duration::from_secs(20)).expect("the watch looks soon");
        }
        let mut engine = YieldingEngine::new(engine, Some(yielder));
        engine.pace.learn(rows.len(), step.layers.len(), Duration::from_secs(1));
        let mut product = Vec::new();
        engine.run(&step, &mut product).unwrap();
        assert_eq!(product, expected);
        let after = engine.get().memory();
        assert!(after.weights_allocated_bytes < before, "{after:?} instead of {before}");
        assert!(engine.get().stream_figures().is_some_and(|figures| figures.streamed_bytes > 0));
        engine.clear(0);
        engine.run(&step, &mut product).unwrap();
        assert_eq!(product, expected, "and with streamed weights");
    }
}
