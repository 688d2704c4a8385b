//! Made-up weights: bytes that compute as fast as real ones.
//!
//! Zeros would not do: untouched pages share one page of memory, and some kernels skip zeros.
//! Denormals and infinities would not do either, so that values are small, normal and random.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{self, Write};

use motley_ggml::{ElementType, QuantizeError, quantize_rows};

use crate::sampling::PositionedRandom;

/// Elements that are made and packed per type and row length; a matrix repeats them. What a
/// kernel does depends on no value, and each repetition has memory of its own.
const PATTERN_ELEMENTS: usize = 1 << 17;

/// For types that cannot be packed without further data: as half-precision scales and as small
/// numbers these bytes are sound, and as numbers of a code book they exist in every one.
const SOUND_BYTE: u8 = 0x2e;

/// Makes rows of matrices; packs each type and row length once.
#[derive(Debug, Default)]
pub(super) struct Filler {
    patterns: BTreeMap<(u32, usize), Vec<u8>>,
}

impl Filler {
    /// Whole rows of normal weights for vectors of `row_elements`.
    pub(super) fn rows(
        &mut self,
        element: ElementType,
        row_elements: usize,
    ) -> Result<&[u8], QuantizeError> {
        match self.patterns.entry((element.id(), row_elements)) {
            Entry::Occupied(made) => Ok(made.into_mut()),
            Entry::Vacant(place) => Ok(place.insert(pattern(element, row_elements)?)),
        }
    }

    /// Writes a matrix of `bytes` bytes in all.
    pub(super) fn write(
        &mut self,
        (element, row_elements): (ElementType, usize),
        bytes: u64,
        out: &mut impl Write,
    ) -> Result<io::Result<()>, QuantizeError> {
        let rows = self.rows(element, row_elements)?;
        let mut left = bytes;
        while left > 0 {
            let part = usize::try_from(left).unwrap_or(usize::MAX).min(rows.len());
            if let Err(error) = out.write_all(&rows[..part]) {
                return Ok(Err(error));
            }
            left -= part as u64;
        }
        Ok(Ok(()))
    }
}

fn pattern(element: ElementType, row_elements: usize) -> Result<Vec<u8>, QuantizeError> {
    let rows = (PATTERN_ELEMENTS / row_elements).max(1);
    let random = PositionedRandom::new(u64::from(element.id()));
    let scale = (3.0 / row_elements as f32).sqrt();
    // Uniform with the deviation that keeps vectors as long as they come.
    let draw = |bits: u64| scale * ((bits >> 40) as f32 / (1_u64 << 23) as f32 - 1.0);
    let values: Vec<f32> = random.sequence(0).take(rows * row_elements).map(draw).collect();
    let mut packed = Vec::new();
    match quantize_rows(element, &values, row_elements, &mut packed) {
        Ok(()) => Ok(packed),
        Err(QuantizeError::Unsupported { .. }) => {
            let row_bytes = element.row_bytes(row_elements).unwrap_or(0);
            Ok(vec![SOUND_BYTE; rows * row_bytes])
        }
        Err(error) => Err(error),
    }
}
