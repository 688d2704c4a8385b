//! Cached keys and values, per layer and slot.
//!
//! A layer that sees everything keeps position `p` in cell `p`. A layer with a sliding window keeps
//! it in cell `p mod cells`, with as many cells as the window and one batch need.

use std::ops::Range;
use std::rc::Rc;

use motley_ggml::{BufferKind, ElementType, TensorError, TensorId, TensorSet, TensorSpec};
use motley_model::HyperParameters;

use crate::rows::{RowsError, Run};

/// How cached keys and values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheElement {
    /// 16-bit floats.
    #[default]
    F16,
    /// 8-bit blocks: about half the memory, slightly different logits.
    Q8_0,
}

impl CacheElement {
    /// ggml's type.
    pub fn element(self) -> ElementType {
        match self {
            Self::F16 => ElementType::F16,
            Self::Q8_0 => ElementType::Q8_0,
        }
    }
}

/// Sizes of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheShape {
    pub(crate) slots: usize,
    pub(crate) context_tokens: usize,
    pub(crate) batch_rows_max: usize,
    pub(crate) element: CacheElement,
}

/// Attention reads cells in multiples of this, so that graphs serve many lengths.
const CELLS_STEP: usize = 256;

impl CacheShape {
    /// Cells per slot of a layer that sees everything.
    pub(crate) fn full_cells(&self) -> usize {
        self.context_tokens.next_multiple_of(CELLS_STEP)
    }

    /// Cells per slot of a layer that sees `window` tokens: the window and one batch.
    pub(crate) fn window_cells(&self, window: usize) -> usize {
        (window + self.batch_rows_max).next_multiple_of(CELLS_STEP).min(self.full_cells())
    }
}

/// One layer's part of the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerCache {
    pub(crate) keys: TensorId,
    pub(crate) values: TensorId,
    pub(crate) cells: usize,
    pub(crate) window: Option<usize>,
    key_row_bytes: usize,
    value_row_bytes: usize,
}

/// What a slot holds in one layer.
#[derive(Clone, Copy, Debug, Default)]
struct Filled {
    /// Positions 0 up to here are cached.
    tokens: usize,
    /// Positions up to here were ever written since the slot was cleared.
    reach: usize,
}

/// A slot's cache could not be moved.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CacheError {
    /// The layers are not held here.
    #[error("layers {layers:?} are not held here; layers {held:?} are")]
    NotHeld {
        /// Layers asked for.
        layers: Range<usize>,
        /// Layers of this engine.
        held: Range<usize>,
    },
    /// The slot does not exist.
    #[error("slot {slot} does not exist; there are {slots}")]
    UnknownSlot {
        /// The slot asked for.
        slot: usize,
        /// Slots of the engine.
        slots: usize,
    },
    /// More tokens than the slot holds, or than fit.
    #[error("{tokens} tokens of slot {slot} in layer {layer}, which has {available}")]
    Tokens {
        /// The slot.
        slot: usize,
        /// The layer.
        layer: usize,
        /// Tokens asked for.
        tokens: usize,
        /// Tokens cached, or that fit.
        available: usize,
    },
    /// The bytes are not those of so many tokens and layers.
    #[error("{bytes} bytes of cache where the layers and tokens need {expected}")]
    Length {
        /// Bytes given.
        bytes: usize,
        /// Bytes needed.
        expected: usize,
    },
}

/// Keys and values of all held layers.
#[derive(Debug)]
pub(crate) struct Cache {
    pub(crate) set: Rc<TensorSet>,
    held: Range<usize>,
    layers: Vec<LayerCache>,
    shape: CacheShape,
    filled: Vec<Filled>,
}

impl Cache {
    pub(crate) fn new(
        hyper: &HyperParameters,
        held: Range<usize>,
        shape: CacheShape,
        memory: BufferKind,
    ) -> Result<Self, TensorError> {
        let element = shape.element.element();
        let mut specs = Vec::new();
        for layer in &hyper.layers[held.clone()] {
            let cells =
                layer.window_tokens.map_or(shape.full_cells(), |window| shape.window_cells(window));
            for (name, row) in [
                ("keys", hyper.key_row_elements(layer)),
                ("values", hyper.value_row_elements(layer)),
            ] {
                specs.push(TensorSpec {
                    name: name.to_owned(),
                    element,
                    shape: [row, (cells * shape.slots) as u64, 1, 1],
                });
            }
        }
        let set = TensorSet::allocate(memory, &specs)?;
        let ids: Vec<TensorId> = set.ids().collect();
        let layers = hyper.layers[held.clone()]
            .iter()
            .zip(ids.as_chunks::<2>().0)
            .map(|(layer, &[keys, values])| {
                let cells = layer
                    .window_tokens
                    .map_or(shape.full_cells(), |window| shape.window_cells(window));
                LayerCache {
                    keys,
                    values,
                    cells,
                    window: layer.window_tokens,
                    key_row_bytes: set.tensor_bytes(keys) / (cells * shape.slots),
                    value_row_bytes: set.tensor_bytes(values) / (cells * shape.slots),
                }
            })
            .collect::<Vec<_>>();
        let filled = vec![Filled::default(); layers.len() * shape.slots];
        Ok(Self { set, held, layers, shape, filled })
    }

    pub(crate) fn layer(&self, layer: usize) -> &LayerCache {
        &self.layers[layer - self.held.start]
    }

    pub(crate) fn shape(&self) -> CacheShape {
        self.shape
    }

    /// Cells that a run ending before position `end` looks at, in unlimited and sliding layers.
    pub(crate) fn cells_for(&self, end: usize, window: Option<usize>) -> (usize, usize) {
        let wanted = end.next_multiple_of(CELLS_STEP);
        let full = wanted.min(self.shape.full_cells());
        let sliding = window.map_or(full, |window| wanted.min(self.shape.window_cells(window)));
        (full, sliding)
    }

    /// Refuses runs that would read cells which were never written or were overwritten.
    pub(crate) fn check(&self, layers: Range<usize>, runs: &[Run]) -> Result<(), RowsError> {
        for layer in layers {
            let cache = self.layer(layer);
            for run in runs {
                let filled = self.filled[self.index(layer, run.slot)];
                let (slot, position) = (run.slot, run.first_position);
                if position > filled.tokens {
                    return Err(RowsError::Gap { slot, layer, position, cached: filled.tokens });
                }
                if let Some(window) = cache.window {
                    let oldest_needed = (position + 1).saturating_sub(window);
                    let oldest_kept = filled.reach.saturating_sub(cache.cells);
                    if position < filled.tokens && oldest_needed < oldest_kept {
                        return Err(RowsError::Overwritten { slot, layer, position });
                    }
                }
            }
        }
        Ok(())
    }

    /// Notes that the runs' positions are cached now.
    pub(crate) fn advance(&mut self, layers: Range<usize>, runs: &[Run]) {
        for layer in layers {
            for run in runs {
                let index = self.index(layer, run.slot);
                let filled = &mut self.filled[index];
                filled.tokens = run.positions().end;
                filled.reach = filled.reach.max(filled.tokens);
            }
        }
    }

    /// Forgets what a slot holds.
    pub(crate) fn clear(&mut self, slot: usize) {
        for layer in self.held.clone() {
            let index = self.index(layer, slot);
            self.filled[index] = Filled::default();
        }
    }

    /// Bytes that [`export`](Self::export) gives.
    pub(crate) fn export_bytes(&self, layers: Range<usize>, tokens: usize) -> usize {
        layers
            .map(|layer| {
                let cache = self.layer(layer);
                kept(cache, tokens).len() * (cache.key_row_bytes + cache.value_row_bytes)
            })
            .sum()
    }

    /// The first `tokens` cached tokens of a slot: per layer all keys, then all values, a row per
    /// position; of layers with a sliding window only the positions that a next token can see.
    pub(crate) fn export(
        &self,
        layers: Range<usize>,
        slot: usize,
        tokens: usize,
    ) -> Result<Vec<u8>, CacheError> {
        self.check_move(&layers, slot)?;
        let mut bytes = Vec::with_capacity(self.export_bytes(layers.clone(), tokens));
        for layer in layers {
            let cache = self.layer(layer);
            let filled = self.filled[self.index(layer, slot)];
            let oldest_kept = match cache.window {
                Some(_) => filled.reach.saturating_sub(cache.cells),
                None => 0,
            };
            let positions = kept(cache, tokens);
            if tokens > filled.tokens || positions.start < oldest_kept {
                let available = filled.tokens;
                return Err(CacheError::Tokens { slot, layer, tokens, available });
            }
            for (id, row_bytes) in
                [(cache.keys, cache.key_row_bytes), (cache.values, cache.value_row_bytes)]
            {
                for cells in self.cell_runs(cache, slot, positions.clone()) {
                    let start = bytes.len();
                    bytes.resize(start + cells.len() * row_bytes, 0);
                    self.set
                        .read(id, cells.start * row_bytes, &mut bytes[start..])
                        .expect("cells lie inside the cache");
                }
            }
        }
        Ok(bytes)
    }

    /// Replaces what a slot holds in `layers` by exported bytes.
    pub(crate) fn import(
        &mut self,
        layers: Range<usize>,
        slot: usize,
        tokens: usize,
        bytes: &[u8],
    ) -> Result<(), CacheError> {
        self.check_move(&layers, slot)?;
        if tokens > self.shape.context_tokens {
            let available = self.shape.context_tokens;
            return Err(CacheError::Tokens { slot, layer: layers.start, tokens, available });
        }
        let expected = self.export_bytes(layers.clone(), tokens);
        if bytes.len() != expected {
            return Err(CacheError::Length { bytes: bytes.len(), expected });
        }
        let mut rest = bytes;
        for layer in layers {
            let cache = *self.layer(layer);
            for (id, row_bytes) in
                [(cache.keys, cache.key_row_bytes), (cache.values, cache.value_row_bytes)]
            {
                for cells in self.cell_runs(&cache, slot, kept(&cache, tokens)) {
                    let (now, later) = rest.split_at(cells.len() * row_bytes);
                    self.set
                        .write(id, cells.start * row_bytes, now)
                        .expect("cells lie inside the cache");
                    rest = later;
                }
            }
            let index = self.index(layer, slot);
            self.filled[index] = Filled { tokens, reach: tokens };
        }
        Ok(())
    }

    /// The cells of `positions` in cell numbers of the whole tensor: one run, or two where a
    /// sliding layer wraps around.
    fn cell_runs(
        &self,
        cache: &LayerCache,
        slot: usize,
        positions: Range<usize>,
    ) -> impl Iterator<Item = Range<usize>> + use<> {
        let base = slot * cache.cells;
        let first = positions.start % cache.cells;
        let before_wrap = positions.len().min(cache.cells - first);
        let after_wrap = positions.len() - before_wrap;
        [base + first..base + first + before_wrap, base..base + after_wrap]
            .into_iter()
            .filter(|cells| !cells.is_empty())
    }

    fn check_move(&self, layers: &Range<usize>, slot: usize) -> Result<(), CacheError> {
        if layers.start < self.held.start || layers.end > self.held.end || layers.is_empty() {
            let held = self.held.clone();
            return Err(CacheError::NotHeld { layers: layers.clone(), held });
        }
        if slot >= self.shape.slots {
            return Err(CacheError::UnknownSlot { slot, slots: self.shape.slots });
        }
        Ok(())
    }

    fn index(&self, layer: usize, slot: usize) -> usize {
        (layer - self.held.start) * self.shape.slots + slot
    }
}

/// Positions of the first `tokens` that the next token of a layer can still see.
fn kept(cache: &LayerCache, tokens: usize) -> Range<usize> {
    match cache.window {
        Some(window) => (tokens + 1).saturating_sub(window)..tokens,
        None => 0..tokens,
    }
}
