//! Weights that are read from disk for each use, and those kept in memory beside them.
//!
//! A layer's matrices are cut into pieces in the order of their use. Reader threads fill pieces
//! ahead of use, past the system's cache, into one small buffer that wraps around; the order of
//! use is cyclic, so that they run ahead across layers, windows, rounds and tokens. Experts are read
//! when a router has chosen them, into slots where the hottest stay.

use motley_model::ModelDirectory;

mod experts;
mod pieces;
mod pool;
mod rate;
mod reader;
mod source;
mod spread;
mod store;

pub use experts::ExpertFigures;
pub use rate::{ReadRate, read_rate};
pub use source::ReadError;

pub(crate) use experts::{ExpertLayer, ExpertSizes, ExpertStore};
pub(crate) use pieces::cut_layer;
pub(crate) use spread::spread;
pub(crate) use store::{Declared, Group, Needs, Reading, Store, StoreError};

/// How weights are read from disk; the default is what measurements favoured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamOptions {
    /// Matrices of a layer that are used one after the other are read as one piece up to this
    /// size; a matrix is never cut.
    pub piece_bytes: usize,
    /// Memory for pieces on their way; at least twice the largest piece. Nothing for a few pieces.
    pub buffer_bytes: Option<usize>,
    /// Reads on their way at a time, where the file can be read past the system's cache; else 1.
    pub reads: usize,
    /// Bytes of one read at most.
    pub read_bytes: usize,
    /// Whether to read past the system's cache where that works.
    pub direct: bool,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self {
            piece_bytes: 8 << 20,
            buffer_bytes: None,
            reads: 2,
            read_bytes: 4 << 20,
            direct: true,
        }
    }
}

impl StreamOptions {
    /// Memory for pieces on their way, of which the largest has `largest_bytes`.
    pub(crate) fn buffer_bytes(&self, largest_bytes: usize) -> usize {
        let least = 2 * largest_bytes;
        self.buffer_bytes.unwrap_or(PIECES_ON_THEIR_WAY * largest_bytes).max(least)
    }
}

/// Memory that an engine takes for pieces of the model's layers on their way.
pub fn stream_buffer_bytes(directory: &ModelDirectory, options: &StreamOptions) -> u64 {
    let pieces = directory.layers.iter().flat_map(|layer| cut_layer(layer, options.piece_bytes));
    let largest = pieces.map(|tensors| pieces::Piece::new(&tensors).bytes).max();
    options.buffer_bytes(largest.unwrap_or(0)) as u64
}

/// Memory that an engine takes at least for experts that come and go, for batches of so many rows:
/// those of one layer of each shape, and what kernels need for them.
pub fn expert_slots_bytes(directory: &ModelDirectory, batch_rows: usize) -> u64 {
    let Some(experts) = directory.hyper.experts else { return 0 };
    let sizes = ExpertSizes { experts, batch_rows };
    experts::least_bytes(directory.layers.iter(), sizes)
}

/// Pieces on their way where nothing else is asked for: one in use, two being read, one spare.
const PIECES_ON_THEIR_WAY: usize = 4;
