//! The engine's weights that may move between memory and disk.

use std::time::Duration;

use motley_ggml::TensorError;

use crate::engine::{Engine, LoadError, Step, StepError};
use crate::placement::{Placement, Residency, Rule};
use crate::sites::Site;
use crate::stream::{ExpertFigures, ExpertStore, ReadError, ReadRate, Reading, Store, spread};

/// What an engine streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamFigures {
    /// Bytes of weights that are read each time all held layers are used; of experts what one token
    /// reads if all are equally likely to be chosen.
    pub streamed_bytes: u64,
    /// Of these, bytes that every token reads, whichever experts it uses.
    pub dense_streamed_bytes: u64,
    /// Bytes of weights of layers that stay in memory or are on their way there.
    pub resident_bytes: u64,
    /// Bytes read from disk since the engine was loaded, whole blocks.
    pub bytes_read: u64,
    /// Whether the system's cache is passed by.
    pub direct: bool,
    /// The experts, where they come and go.
    pub experts: Option<ExpertFigures>,
}

/// Where the weights of one layer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerWeightsBytes {
    /// The layer.
    pub layer: usize,
    /// Bytes that stay in memory or are on their way there.
    pub resident_bytes: u64,
    /// Bytes that are read for each use.
    pub streamed_bytes: u64,
}

/// Residencies could not be changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ResidencyError {
    /// The engine was loaded with all weights placed for good.
    #[error("the weights of this engine cannot move: all of them are placed for good")]
    Fixed,
    /// Another number of residencies than layers.
    #[error("{given} residencies for {layers} layers")]
    Count {
        /// Residencies given.
        given: usize,
        /// Layers held.
        layers: usize,
    },
    /// A mapped layer, or one that is to be.
    #[error("layer {layer} cannot move: mapped layers stay mapped, and no other can become so")]
    Mapped {
        /// The layer.
        layer: usize,
    },
    /// A layer of a GPU, or one that is to be.
    #[error("layer {layer} cannot move: layers stay in their GPU, and no other can go there")]
    Gpu {
        /// The layer.
        layer: usize,
    },
    /// Too little memory even with every layer streamed.
    #[error("{budget_bytes} bytes are too few: {least_bytes} are needed with every layer streamed")]
    Budget {
        /// Bytes that were to suffice.
        budget_bytes: u64,
        /// Bytes of cache, working memory, buffers and what cannot be streamed.
        least_bytes: u64,
    },
    /// Weights could not be read.
    #[error("cannot read the model's weights")]
    Read(#[from] ReadError),
    /// Tensors of another size were refused.
    #[error("cannot hold the model's experts")]
    Experts(#[from] TensorError),
}

impl Engine {
    /// What is streamed; nothing where all weights are placed for good.
    pub fn stream_figures(&self) -> Option<StreamFigures> {
        self.store.as_ref().map(|store| StreamFigures {
            streamed_bytes: store.streamed_bytes(),
            dense_streamed_bytes: store.dense_streamed_bytes(),
            resident_bytes: store.resident_bytes() - store.fixed_bytes(),
            bytes_read: store.bytes_read(),
            direct: store.is_direct(),
            experts: store.experts.as_ref().map(ExpertStore::figures),
        })
    }

    /// Where the matrices of each held layer are; nothing where all weights are placed for good.
    pub fn layer_weights(&self) -> Vec<LayerWeightsBytes> {
        let Some(store) = &self.store else { return Vec::new() };
        let of_layer = |layer| {
            let (resident_bytes, streamed_bytes) = store.layer_bytes(layer);
            LayerWeightsBytes { layer, resident_bytes, streamed_bytes }
        };
        self.held.iter().map(of_layer).collect()
    }

    /// Changes where layers are kept, one residency per held layer. Layers that leave memory do so
    /// now; those that come are read in the background and streamed until they have arrived.
    ///
    /// # Errors
    /// When the weights were placed for good, or a layer is mapped or in a GPU, or to be so.
    pub fn set_residency(&mut self, residencies: &[Residency]) -> Result<(), ResidencyError> {
        let Some(store) = &mut self.store else { return Err(ResidencyError::Fixed) };
        let layers: Vec<usize> = self.held.iter().collect();
        if residencies.len() != layers.len() {
            let (given, layers) = (residencies.len(), layers.len());
            return Err(ResidencyError::Count { given, layers });
        }
        for (layer, residency) in layers.iter().zip(residencies) {
            let site = self.workers.sites.of_layer(*layer);
            if site != Site::of(*residency) {
                return Err(ResidencyError::Gpu { layer: *layer });
            }
            if site != Site::Processor {
                continue;
            }
            let (resident, streamed) = store.layer_bytes(*layer);
            let mapped = resident + streamed == 0;
            if mapped != (*residency == Residency::Mapped) {
                return Err(ResidencyError::Mapped { layer: *layer });
            }
        }
        let place = |layer| layers.iter().position(|known| *known == layer).expect("held here");
        let stays: Vec<bool> =
            store.movable().map(|(layer, _)| residencies[place(layer)] == Residency::Ram).collect();
        store.set_staying(&stays);
        let stays = |layer| residencies[place(layer)] == Residency::Ram;
        Ok(self.set_expert_slots(|experts| experts.set_staying(stays))?)
    }

    /// Keeps as many pieces of layers in memory as fit into `bytes` beside everything else that the
    /// engine holds; as [`set_residency`](Self::set_residency) in the background.
    ///
    /// # Errors
    /// When the weights were placed for good, or not even the buffers fit.
    pub fn set_memory_budget(&mut self, bytes: u64) -> Result<(), ResidencyError> {
        let Some(needed) = self.memory_needed() else { return Err(ResidencyError::Fixed) };
        if needed.least_bytes() > bytes {
            let least_bytes = needed.least_bytes();
            return Err(ResidencyError::Budget { budget_bytes: bytes, least_bytes });
        }
        Ok(self.spread_within(bytes, needed)?)
    }

    /// Waits until the layers that are on their way to memory have arrived.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn settle(&mut self) -> Result<(), ReadError> {
        self.store.as_mut().map_or(Ok(()), Store::settle)
    }

    /// Runs a step with whatever bytes lie in the stream's buffer instead of reading weights: what
    /// computation alone takes. The result means nothing, so that the rows' slots are cleared.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_without_reading(
        &mut self,
        step: &Step<'_>,
        product: &mut Vec<f32>,
    ) -> Result<(), StepError> {
        self.reading = Reading::Nothing;
        let done = self.run(step, product);
        self.reading = Reading::Disk;
        done
    }

    /// Reads ahead again after [runs without reading](Self::run_without_reading), and forgets what
    /// they left in the slots.
    pub fn resume_reading(&mut self) {
        (0..self.slots()).for_each(|slot| self.clear(slot));
        if let Some(store) = &self.store {
            store.resume();
        }
    }

    /// How fast streamed weights can be read where nothing is computed, measured for about
    /// `duration` by the engine's own reader; nothing where none are streamed.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn measure_read_rate(&mut self, duration: Duration) -> Result<Option<ReadRate>, ReadError> {
        self.rest();
        self.store.as_mut().map_or(Ok(None), |store| store.read_rate(duration))
    }

    /// Brings what is to stay into memory, at load.
    pub(crate) fn place_weights(&mut self, placement: &Placement) -> Result<(), LoadError> {
        let Some(needed) = self.memory_needed() else { return Ok(()) };
        match placement.rule {
            Rule::Within(budget_bytes) => {
                let (least_bytes, whole_bytes) = (needed.least_bytes(), needed.whole_bytes());
                if least_bytes > budget_bytes && whole_bytes > budget_bytes {
                    return Err(LoadError::Budget { budget_bytes, least_bytes, whole_bytes });
                }
                self.spread_within(budget_bytes, needed)?;
            }
            Rule::Uniform(_) | Rule::PerLayer(_) => {
                let place = |layer| self.held.index_of(layer).expect("held here");
                let residency = |layer| placement.of_layer(place(layer));
                let store = self.store.as_mut().expect("known from the memory needed");
                let stays: Vec<bool> =
                    store.movable().map(|(layer, _)| residency(layer) == Residency::Ram).collect();
                store.set_staying(&stays);
                let stays: Vec<bool> =
                    self.held.iter().map(|layer| residency(layer) == Residency::Ram).collect();
                let held = self.held.clone();
                let place = |layer| held.index_of(layer).expect("held here");
                self.set_expert_slots(|experts| experts.set_staying(|layer| stays[place(layer)]))?;
            }
        }
        Ok(self.settle()?)
    }

    /// Divides `bytes`: what every token needs comes before experts, of which each token needs few.
    fn spread_within(&mut self, bytes: u64, needed: MemoryNeeded) -> Result<(), TensorError> {
        let store = self.store.as_mut().expect("known from the memory needed");
        let sizes: Vec<usize> = store.movable().map(|(_, bytes)| bytes).collect();
        let room = bytes.saturating_sub(needed.fixed_bytes + needed.experts_least_bytes);
        let fits = room >= needed.movable_bytes;
        let stays = if fits {
            vec![true; sizes.len()]
        } else {
            spread(&sizes, room.saturating_sub(needed.buffer_bytes))
        };
        store.set_staying(&stays);
        let left = if fits { room - needed.movable_bytes } else { 0 };
        self.set_expert_slots(|experts| experts.set_bytes(needed.experts_least_bytes + left))
    }

    /// Changes the number of slots for experts, if there are any, and all that depends on it.
    fn set_expert_slots(
        &mut self,
        change: impl FnOnce(&mut ExpertStore) -> Result<bool, TensorError>,
    ) -> Result<(), TensorError> {
        let experts = self.store.as_mut().and_then(|store| store.experts.as_mut());
        if experts.map_or(Ok(false), change)? {
            self.follow_experts();
        }
        Ok(())
    }

    /// Takes the tensors of experts as they are now; graphs with others are worthless.
    pub(crate) fn follow_experts(&mut self) {
        if let Some(store) = &self.store {
            self.weights.follow_experts(store);
            self.graphs.clear();
        }
    }

    /// What has to be in memory; nothing where all weights are placed for good.
    fn memory_needed(&self) -> Option<MemoryNeeded> {
        let store = self.store.as_ref()?;
        let memory = self.memory();
        let movable_bytes = store.movable().map(|(_, bytes)| bytes as u64).sum();
        let copied = memory.weights_allocated_bytes - store.resident_bytes();
        Some(MemoryNeeded {
            fixed_bytes: copied + store.fixed_bytes() + memory.cache_bytes + memory.compute_bytes,
            buffer_bytes: store.buffer_bytes_if_streamed(),
            movable_bytes,
            experts_least_bytes: store.experts.as_ref().map_or(0, ExpertStore::least_bytes),
            experts_whole_bytes: store.experts.as_ref().map_or(0, ExpertStore::whole_bytes),
        })
    }

    /// Takes in what has arrived in the background, and cuts kept graphs anew where that changed
    /// which weights stay.
    pub(crate) fn follow_store(&mut self) -> Result<(), ReadError> {
        let Some(store) = &mut self.store else { return Ok(()) };
        store.refresh()?;
        if store.changes() != self.changes_known {
            self.changes_known = store.changes();
            self.graphs.iter_mut().for_each(|window| store.cut(window));
        }
        Ok(())
    }
}

/// Bytes that an engine with movable weights needs.
#[derive(Clone, Copy, Debug)]
struct MemoryNeeded {
    /// Cache, working memory and the weights that always stay.
    fixed_bytes: u64,
    /// The stream's buffer, if anything is streamed.
    buffer_bytes: u64,
    /// Weights that may be streamed.
    movable_bytes: u64,
    /// Slots for the experts of one layer.
    experts_least_bytes: u64,
    /// Slots for all experts.
    experts_whole_bytes: u64,
}

impl MemoryNeeded {
    fn least_bytes(&self) -> u64 {
        self.fixed_bytes + self.experts_least_bytes + self.buffer_bytes.min(self.movable_bytes)
    }

    fn whole_bytes(&self) -> u64 {
        self.fixed_bytes + self.experts_whole_bytes + self.movable_bytes
    }
}
