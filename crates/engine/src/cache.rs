//! Cached keys and values, per layer and slot.
//!
//! A layer that sees everything keeps position `p` in cell `p`. A layer with a sliding window keeps
//! it in cell `p mod cells`, with as many cells as the window and one batch need.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use motley_ggml::{ElementType, TensorError, TensorId, TensorSet, TensorSpec};
use motley_model::HyperParameters;

use crate::engine::EngineOptions;
use crate::layer_set::LayerSet;
use crate::reuse::{ReuseRule, SlotHistory};
use crate::rows::{RowsError, Run};
use crate::sites::{Site, Sites};

/// How cached keys and values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheElement {
    /// 16-bit floats.
    #[default]
    F16,
    /// 8-bit blocks: about half the memory, slightly different logits.
    Q8_0,
    /// Keys as 16-bit floats, values in 8-bit blocks.
    F16Q8_0,
    /// Keys in 8-bit blocks, values as 16-bit floats.
    Q8_0F16,
}

impl CacheElement {
    /// ggml's types of keys and of values.
    pub fn elements(self) -> [ElementType; 2] {
        match self {
            Self::F16 => [ElementType::F16; 2],
            Self::Q8_0 => [ElementType::Q8_0; 2],
            Self::F16Q8_0 => [ElementType::F16, ElementType::Q8_0],
            Self::Q8_0F16 => [ElementType::Q8_0, ElementType::F16],
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
    pub(crate) fn of(options: &EngineOptions) -> Self {
        Self {
            slots: options.slots,
            context_tokens: options.context_tokens,
            batch_rows_max: options.batch_rows_max,
            element: options.cache,
        }
    }

    /// Cells per slot of a layer that sees everything.
    pub(crate) fn full_cells(&self) -> usize {
        self.context_tokens.next_multiple_of(CELLS_STEP)
    }

    /// Cells per slot of a layer that sees `window` tokens: the window and one batch.
    pub(crate) fn window_cells(&self, window: usize) -> usize {
        Self::cells_of_window(window, self.context_tokens, self.batch_rows_max)
    }

    /// As [`window_cells`](Self::window_cells), for a cache of these sizes.
    pub(crate) fn cells_of_window(
        window: usize,
        context_tokens: usize,
        batch_rows_max: usize,
    ) -> usize {
        let full = context_tokens.next_multiple_of(CELLS_STEP);
        (window + batch_rows_max).next_multiple_of(CELLS_STEP).min(full)
    }
}

/// One layer's part of the cache.
#[derive(Clone, Debug)]
pub(crate) struct LayerCache {
    pub(crate) set: Rc<TensorSet>,
    pub(crate) keys: TensorId,
    pub(crate) values: TensorId,
    pub(crate) cells: usize,
    pub(crate) window: Option<usize>,
    key_row_bytes: usize,
    value_row_bytes: usize,
}

impl LayerCache {
    fn rule(&self) -> ReuseRule {
        self.window.map_or(ReuseRule::UNLIMITED, |window| ReuseRule::sliding(window, self.cells))
    }
}

/// A slot's cache could not be moved.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CacheError {
    /// The layers are not held here.
    #[error("layers {layers:?} are not held here together; held are {held}")]
    NotHeld {
        /// Layers asked for.
        layers: Range<usize>,
        /// Layers of this engine.
        held: LayerSet,
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
    held: LayerSet,
    layers: Vec<LayerCache>,
    shape: CacheShape,
    histories: Vec<SlotHistory>,
    bytes: BTreeMap<Site, u64>,
}

impl Cache {
    /// An empty cache of each layer in the memory of its site.
    pub(crate) fn new(
        hyper: &HyperParameters,
        held: &LayerSet,
        shape: CacheShape,
        sites: &Sites,
    ) -> Result<Self, TensorError> {
        Self::made(hyper, held, shape, sites, |site, specs| {
            TensorSet::allocate(sites.memory(site), specs)
        })
    }

    /// A cache without memory, to build graphs that are never run.
    pub(crate) fn imagined(
        hyper: &HyperParameters,
        held: &LayerSet,
        shape: CacheShape,
    ) -> Result<Self, TensorError> {
        let sites = Sites::processor(held);
        Self::made(hyper, held, shape, &sites, |_, specs| TensorSet::imagined(specs))
    }

    fn made(
        hyper: &HyperParameters,
        held: &LayerSet,
        shape: CacheShape,
        sites: &Sites,
        make: impl Fn(Site, &[TensorSpec]) -> Result<Rc<TensorSet>, TensorError>,
    ) -> Result<Self, TensorError> {
        let cells_of = |layer: usize| {
            let window = hyper.layers[layer].window_tokens;
            window.map_or(shape.full_cells(), |window| shape.window_cells(window))
        };
        let mut by_site: BTreeMap<Site, Vec<usize>> = BTreeMap::new();
        held.iter().for_each(|layer| by_site.entry(sites.of_layer(layer)).or_default().push(layer));
        let mut bytes = BTreeMap::new();
        let mut made: BTreeMap<usize, LayerCache> = BTreeMap::new();
        for (site, layers) in by_site {
            let specs: Vec<TensorSpec> = layers
                .iter()
                .flat_map(|layer| specs(hyper, *layer, shape, cells_of(*layer)))
                .collect();
            let set = make(site, &specs)?;
            bytes.insert(site, set.allocated_bytes() as u64);
            let ids: Vec<TensorId> = set.ids().collect();
            for (layer, &[keys, values]) in layers.into_iter().zip(ids.as_chunks::<2>().0) {
                let cells = cells_of(layer);
                let row_bytes = |id| set.tensor_bytes(id) / (cells * shape.slots);
                let cache = LayerCache {
                    set: Rc::clone(&set),
                    keys,
                    values,
                    cells,
                    window: hyper.layers[layer].window_tokens,
                    key_row_bytes: row_bytes(keys),
                    value_row_bytes: row_bytes(values),
                };
                made.insert(layer, cache);
            }
        }
        let histories = vec![SlotHistory::default(); made.len() * shape.slots];
        let layers = made.into_values().collect();
        Ok(Self { held: held.clone(), layers, shape, histories, bytes })
    }

    /// Bytes in the memory of a site.
    pub(crate) fn bytes(&self, site: Site) -> u64 {
        self.bytes.get(&site).copied().unwrap_or(0)
    }

    pub(crate) fn layer(&self, layer: usize) -> &LayerCache {
        &self.layers[self.position(layer)]
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
                let history = self.histories[self.index(layer, run.slot)];
                let (slot, position, cached) = (run.slot, run.first_position, history.tokens());
                if position > cached {
                    return Err(RowsError::Gap { slot, layer, position, cached });
                }
                if !cache.rule().allows(&history, position) {
                    return Err(RowsError::Overwritten { slot, layer, position });
                }
            }
        }
        Ok(())
    }

    /// Notes that the runs' positions are cached now.
    pub(crate) fn advance(&mut self, layers: Range<usize>, runs: &[Run]) {
        for layer in layers {
            let rule = self.layer(layer).rule();
            for run in runs {
                let index = self.index(layer, run.slot);
                self.histories[index] = rule.extended(self.histories[index], run.positions().end);
            }
        }
    }

    /// Forgets what a slot holds.
    pub(crate) fn clear(&mut self, slot: usize) {
        for layer in 0..self.layers.len() {
            self.histories[layer * self.shape.slots + slot] = SlotHistory::default();
        }
    }

    /// Bytes that [`export`](Self::export) gives.
    pub(crate) fn export_bytes(&self, layers: Range<usize>, tokens: usize) -> usize {
        layers
            .map(|layer| {
                let cache = self.layer(layer);
                cache.rule().visible(tokens).len() * (cache.key_row_bytes + cache.value_row_bytes)
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
            let history = self.histories[self.index(layer, slot)];
            let positions = cache.rule().visible(tokens);
            if !cache.rule().allows(&history, tokens) {
                let available = history.tokens();
                return Err(CacheError::Tokens { slot, layer, tokens, available });
            }
            for (id, row_bytes) in
                [(cache.keys, cache.key_row_bytes), (cache.values, cache.value_row_bytes)]
            {
                for cells in self.cell_runs(cache, slot, positions.clone()) {
                    let start = bytes.len();
                    bytes.resize(start + cells.len() * row_bytes, 0);
                    cache
                        .set
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
            let cache = self.layer(layer).clone();
            for (id, row_bytes) in
                [(cache.keys, cache.key_row_bytes), (cache.values, cache.value_row_bytes)]
            {
                for cells in self.cell_runs(&cache, slot, cache.rule().visible(tokens)) {
                    let (now, later) = rest.split_at(cells.len() * row_bytes);
                    cache
                        .set
                        .write(id, cells.start * row_bytes, now)
                        .expect("cells lie inside the cache");
                    rest = later;
                }
            }
            let index = self.index(layer, slot);
            self.histories[index] = cache.rule().imported(tokens);
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
        if !self.held.contains(layers) {
            let held = self.held.clone();
            return Err(CacheError::NotHeld { layers: layers.clone(), held });
        }
        if slot >= self.shape.slots {
            return Err(CacheError::UnknownSlot { slot, slots: self.shape.slots });
        }
        Ok(())
    }

    fn index(&self, layer: usize, slot: usize) -> usize {
        self.position(layer) * self.shape.slots + slot
    }

    fn position(&self, layer: usize) -> usize {
        self.held.index_of(layer).expect("checked: the layer is held here")
    }
}

/// Keys and values of a layer.
fn specs(
    hyper: &HyperParameters,
    layer: usize,
    shape: CacheShape,
    cells: usize,
) -> [TensorSpec; 2] {
    let layer = &hyper.layers[layer];
    let [of_keys, of_values] = shape.element.elements();
    let spec = |name: &str, element: ElementType, row: u64| TensorSpec {
        name: name.to_owned(),
        element,
        shape: [row, (cells * shape.slots) as u64, 1, 1],
    };
    [
        spec("keys", of_keys, hyper.key_row_elements(layer)),
        spec("values", of_values, hyper.value_row_elements(layer)),
    ]
}
