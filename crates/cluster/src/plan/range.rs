//! A half-open run of layers.

use serde::{Deserialize, Serialize};

use crate::units::LayerIndex;

/// Layers `start..end`, possibly none. Written as a pair of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "(u32, u32)", into = "(u32, u32)")]
pub struct LayerRange {
    start: u32,
    end: u32,
}

impl LayerRange {
    /// Layers `start..end`; `None` if they run backwards.
    #[must_use]
    pub const fn new(start: u32, end: u32) -> Option<Self> {
        if start <= end { Some(Self { start, end }) } else { None }
    }

    /// `count` layers from `start`.
    #[must_use]
    pub const fn with_len(start: u32, count: u32) -> Self {
        Self { start, end: start.saturating_add(count) }
    }

    /// First layer.
    #[must_use]
    pub const fn start(self) -> u32 {
        self.start
    }

    /// Layer after the last one.
    #[must_use]
    pub const fn end(self) -> u32 {
        self.end
    }

    /// Number of layers.
    #[must_use]
    pub const fn len(self) -> u32 {
        self.end - self.start
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Whether a layer is among them.
    #[must_use]
    pub const fn contains(self, layer: LayerIndex) -> bool {
        let index = layer.index() as u64;
        index >= self.start as u64 && index < self.end as u64
    }

    /// The layers, rising.
    pub fn iter(self) -> impl Iterator<Item = LayerIndex> {
        (self.start..self.end).map(LayerIndex::new)
    }
}

impl TryFrom<(u32, u32)> for LayerRange {
    type Error = String;
    fn try_from((start, end): (u32, u32)) -> Result<Self, String> {
        Self::new(start, end).ok_or_else(|| format!("layers {start}..{end} run backwards"))
    }
}

impl From<LayerRange> for (u32, u32) {
    fn from(range: LayerRange) -> Self {
        (range.start, range.end)
    }
}
