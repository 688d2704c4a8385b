//! Sets of bytes of a file.

/// Ranges from a first byte to one beyond the last: sorted, apart from each other, none empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RangeSet(Vec<(u64, u64)>);

impl RangeSet {
    /// A set of ranges that may be anything, as a file says them; nothing if they are not sorted,
    /// apart and below `end`.
    pub(super) fn from_sorted(ranges: Vec<(u64, u64)>, end: u64) -> Option<Self> {
        let mut least = 0;
        for (index, (first, after)) in ranges.iter().enumerate() {
            let apart = index == 0 || *first > least;
            if !apart || first >= after || *after > end {
                return None;
            }
            least = *after;
        }
        Some(Self(ranges))
    }

    pub(super) fn ranges(&self) -> &[(u64, u64)] {
        &self.0
    }

    /// Bytes in the set.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|(first, after)| after - first).sum()
    }

    /// Adds a range.
    pub(super) fn insert(&mut self, first: u64, after: u64) {
        if first >= after {
            return;
        }
        let begin = self.0.partition_point(|range| range.1 < first);
        let end = self.0.partition_point(|range| range.0 <= after);
        let touching = &self.0[begin..end];
        let first = touching.first().map_or(first, |range| range.0.min(first));
        let after = touching.last().map_or(after, |range| range.1.max(after));
        self.0.splice(begin..end, [(first, after)]);
    }

    /// Takes a range away.
    pub(super) fn remove(&mut self, first: u64, after: u64) {
        if first >= after {
            return;
        }
        let mut left = Vec::with_capacity(self.0.len() + 1);
        for (start, end) in self.0.drain(..) {
            let before = (start, end.min(first));
            let behind = (start.max(after), end);
            left.extend([before, behind].into_iter().filter(|(start, end)| start < end));
        }
        self.0 = left;
    }

    /// The first range below `end` that is not in the set, of at most `bytes_max` bytes.
    pub(super) fn first_gap(&self, end: u64, bytes_max: u64) -> Option<(u64, u64)> {
        let start = match self.0.first() {
            Some((0, after)) => *after,
            _ => 0,
        };
        let next = self.0.iter().map(|range| range.0).find(|first| *first > start);
        let after = next.unwrap_or(end).min(end).min(start.saturating_add(bytes_max));
        (start < after).then_some((start, after))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The set against one that holds every byte by itself.
        #[test]
        fn it_is_a_set_of_bytes(steps in prop::collection::vec((any::<bool>(), 0u64..40, 0u64..40), 0..30)) {
            let (mut set, mut bytes) = (RangeSet::default(), BTreeSet::new());
            for (add, first, after) in steps {
                if add {
                    set.insert(first, after);
                    bytes.extend(first..after);
                } else {
                    set.remove(first, after);
                    bytes.retain(|byte| *byte < first || *byte >= after.max(first));
                }
                let held: Vec<u64> = set.ranges().iter().flat_map(|(first, after)| *first..*after).collect();
                prop_assert_eq!(&held, &bytes.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(set.bytes(), bytes.len() as u64);
                prop_assert_eq!(RangeSet::from_sorted(set.ranges().to_vec(), 40), Some(set.clone()));
                let missing = (0..40).find(|byte| !bytes.contains(byte));
                prop_assert_eq!(set.first_gap(40, 100).map(|gap| gap.0), missing);
                if let Some((first, after)) = set.first_gap(40, 5) {
                    prop_assert!(after - first <= 5 && (first..after).all(|byte| !bytes.contains(&byte)));
                }
            }
        }
    }

    #[test]
    fn what_a_file_says_is_not_believed() {
        for ranges in
            [vec![(3, 3)], vec![(5, 4)], vec![(0, 9)], vec![(0, 2), (1, 3)], vec![(0, 2), (2, 3)]]
        {
            assert_eq!(RangeSet::from_sorted(ranges, 8), None);
        }
    }
}
