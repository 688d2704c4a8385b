//! Which layers an engine holds.

use std::fmt;
use std::ops::Range;

/// Layers of a model, as sorted ranges with gaps between them.
///
/// A ring with several rounds gives one device several windows, such as layers 0 to 3 and 12 to 15.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerSet {
    ranges: Vec<Range<usize>>,
}

impl LayerSet {
    /// No layer: for an engine that holds the embedding or the head only.
    pub const fn none() -> Self {
        Self { ranges: Vec::new() }
    }

    /// The union of `ranges`; neighbours become one range, empty ranges vanish.
    ///
    /// # Panics
    /// When a range ends before it starts.
    pub fn new(ranges: impl IntoIterator<Item = Range<usize>>) -> Self {
        let mut sorted: Vec<Range<usize>> = ranges.into_iter().collect();
        assert!(sorted.iter().all(|range| range.start <= range.end), "a range that ends too early");
        sorted.retain(|range| !range.is_empty());
        sorted.sort_unstable_by_key(|range| range.start);
        let mut joined: Vec<Range<usize>> = Vec::new();
        for range in sorted {
            match joined.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => joined.push(range),
            }
        }
        Self { ranges: joined }
    }

    /// The ranges, in order; no two touch.
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// Every layer, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        self.ranges.iter().cloned().flatten()
    }

    /// Number of layers.
    pub fn len(&self) -> usize {
        self.ranges.iter().map(Range::len).sum()
    }

    /// Whether there is no layer.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether all of `window`, which is not empty, is here.
    pub fn contains(&self, window: &Range<usize>) -> bool {
        let holds = |range: &Range<usize>| range.start <= window.start && window.end <= range.end;
        !window.is_empty() && self.ranges.iter().any(holds)
    }

    /// The number of layers here before `layer`, which is here too.
    pub(crate) fn index_of(&self, layer: usize) -> Option<usize> {
        let mut before = 0;
        for range in &self.ranges {
            if range.contains(&layer) {
                return Some(before + layer - range.start);
            }
            before += range.len();
        }
        None
    }
}

impl From<Range<usize>> for LayerSet {
    fn from(range: Range<usize>) -> Self {
        Self::new([range])
    }
}

impl fmt::Display for LayerSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        for (index, range) in self.ranges.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{range:?}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_sorted_joined_and_counted_across_gaps() {
        let set = LayerSet::new([12..16, 0..2, 7..7, 2..4, 13..15]);
        assert_eq!(set.ranges(), [0..4, 12..16]);
        assert_eq!(set.to_string(), "0..4, 12..16");
        assert_eq!(set.len(), 8);
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 1, 2, 3, 12, 13, 14, 15]);
        for (index, layer) in set.iter().enumerate() {
            assert_eq!(set.index_of(layer), Some(index));
        }
        assert_eq!(set.index_of(4), None);
    }

    #[test]
    fn a_window_lies_in_one_range_or_is_not_held() {
        let set = LayerSet::new([0..4, 12..16]);
        assert!(set.contains(&(0..4)) && set.contains(&(13..15)));
        assert!(!set.contains(&(3..5)) && !set.contains(&(2..14)) && !set.contains(&(1..1)));
        assert!(!LayerSet::none().contains(&(0..1)));
        assert_eq!(LayerSet::from(3..3), LayerSet::none());
    }
}
