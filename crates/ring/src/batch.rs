//! What a micro-batch computes: runs of rows, each run consecutive positions of one slot.

use serde::{Deserialize, Serialize};

/// Position of a slot in its ring.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct SlotIndex(pub u32);

/// A micro-batch; never reused while its cluster runs.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct MicroBatchId(pub u64);

/// The rows of a run whose final hidden state the head needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// None: a chunk in the middle of a prompt.
    None,
    /// The last one, to choose the next token.
    Last,
    /// All of them, for the log probabilities of a prompt.
    All,
}

/// Consecutive positions of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The slot.
    pub slot: SlotIndex,
    /// Position of the first row.
    pub first_position: u32,
    /// Number of rows, at least one.
    pub rows: u32,
    /// Which rows the head needs.
    pub wanted: Wanted,
    /// The slot held something else: whatever it has cached is forgotten first.
    pub fresh: bool,
}

impl Run {
    /// Number of rows that the head needs.
    #[must_use]
    pub const fn wanted_rows(&self) -> u32 {
        match self.wanted {
            Wanted::None => 0,
            Wanted::Last => 1,
            Wanted::All => self.rows,
        }
    }

    /// Position after the last row.
    #[must_use]
    pub const fn end_position(&self) -> u32 {
        self.first_position + self.rows
    }
}

/// Runs that are computed together, every slot at most once. Rows follow in the order of the runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Batch {
    runs: Vec<Run>,
    rows: u32,
    wanted_rows: u32,
}

impl Batch {
    /// Runs in the order of their rows.
    ///
    /// # Panics
    /// A run without rows, or more rows than can be counted, is a bug of the caller; runs from the
    /// wire have been checked by [`FrameHeader::decode_runs`](crate::FrameHeader::decode_runs).
    #[must_use]
    pub fn new(runs: Vec<Run>) -> Self {
        let mut batch = Self { runs: Vec::new(), rows: 0, wanted_rows: 0 };
        for run in runs {
            batch.push(run);
        }
        batch
    }

    /// Adds a run.
    ///
    /// # Panics
    /// As [`Batch::new`].
    pub fn push(&mut self, run: Run) {
        assert!(run.rows > 0, "a run has rows");
        assert!(run.first_position.checked_add(run.rows).is_some(), "a position fits 32 bits");
        self.rows = self.rows.checked_add(run.rows).expect("rows of a batch fit 32 bits");
        self.wanted_rows += run.wanted_rows();
        self.runs.push(run);
    }

    /// Takes all runs out; what they were kept in stays allocated.
    pub fn clear(&mut self) {
        self.runs.clear();
        self.rows = 0;
        self.wanted_rows = 0;
    }

    /// The runs.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Number of rows.
    #[must_use]
    pub const fn rows(&self) -> u32 {
        self.rows
    }

    /// Number of rows that the head needs.
    #[must_use]
    pub const fn wanted_rows(&self) -> u32 {
        self.wanted_rows
    }

    /// Indices of the rows that the head needs, rising.
    pub fn wanted_indices(&self) -> impl Iterator<Item = usize> + '_ {
        let mut next = 0;
        self.runs.iter().flat_map(move |run| {
            let end = next + run.rows as usize;
            let first = end - run.wanted_rows() as usize;
            next = end;
            first..end
        })
    }
}

/// How activations are written on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WireElement {
    /// 32-bit floats: nothing is lost.
    F32,
    /// 16-bit floats.
    F16,
    /// Blocks of 32 values, each a 16-bit scale and 32 signed bytes.
    Q8_0,
}

impl WireElement {
    /// Bytes of so many values; `None` if they are not whole blocks or cannot be counted.
    #[must_use]
    pub const fn bytes(self, values: u64) -> Option<u64> {
        match self {
            Self::F32 => values.checked_mul(4),
            Self::F16 => values.checked_mul(2),
            Self::Q8_0 if values.is_multiple_of(32) => (values / 32).checked_mul(34),
            Self::Q8_0 => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(rows: u32, wanted: Wanted) -> Run {
        Run { slot: SlotIndex(0), first_position: 3, rows, wanted, fresh: false }
    }

    #[test]
    fn wanted_rows_are_the_last_of_their_runs() {
        let batch = Batch::new(vec![
            run(1, Wanted::Last),
            run(4, Wanted::None),
            run(3, Wanted::Last),
            run(2, Wanted::All),
        ]);
        assert_eq!(batch.rows(), 10);
        assert_eq!(batch.wanted_rows(), 4);
        assert_eq!(batch.wanted_indices().collect::<Vec<_>>(), [0, 7, 8, 9]);
    }

    #[test]
    fn elements_have_the_bytes_of_their_formats() {
        let bytes = |element: WireElement| element.bytes(896);
        assert_eq!(
            [WireElement::F32, WireElement::F16, WireElement::Q8_0].map(bytes),
            [Some(3584), Some(1792), Some(952)]
        );
        assert_eq!(WireElement::Q8_0.bytes(33), None);
        assert_eq!(WireElement::F32.bytes(u64::MAX), None);
    }
}
