//! Rows of activations as the kernels read them: eight side by side, block by block, with the
//! numbers of little-endian processors, the only ones that have a kernel.

use llama_cpp_sys_2 as sys;

/// Rows of activations in a panel.
pub(super) const COLUMNS: usize = 8;

/// Elements that are rounded at once, a whole number of blocks.
pub(super) const PIECE: usize = 512;

/// Room for a rounded piece, aligned as ggml's blocks are.
#[repr(align(8))]
pub(super) struct Rounded([u8; ROUNDED_BYTES]);

/// A block of ggml's `Q8_1`: scale, scale times the sum of the quants, both as 16-bit floats, and
/// the quants.
const Q8_1_BYTES: usize = 4 + 32;

/// A block of ggml's `Q8_K`: scale, quants, and the sum of each 16 of them in 16 bits.
const Q8_K_BYTES: usize = 4 + 256 + 2 * 16;

/// Bytes of a rounded piece at most.
const ROUNDED_BYTES: usize = {
    let (q8_1, q8_k) = (PIECE / 32 * Q8_1_BYTES, PIECE / 256 * Q8_K_BYTES);
    if q8_1 > q8_k { q8_1 } else { q8_k }
};

/// How activations are rounded to 8 bits, which ggml chooses by the type of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// Blocks of 32. In a panel: the quants row by row, then the scale of each row, then scale times
    /// sum of each row.
    Q8_1,
    /// Blocks of 256. In a panel: ggml's blocks, row by row.
    Q8K,
}

impl Rounding {
    /// Elements that share a scale.
    pub(super) const fn block(self) -> usize {
        match self {
            Self::Q8_1 => 32,
            Self::Q8K => 256,
        }
    }

    /// Bytes of a block of a panel.
    pub(super) const fn panel_block_bytes(self) -> usize {
        match self {
            Self::Q8_1 => COLUMNS * (32 + 4 + 4),
            Self::Q8K => COLUMNS * Q8_K_BYTES,
        }
    }

    /// Bytes of the panel of up to eight rows of so many elements.
    pub(super) fn panel_bytes(self, elements: usize) -> usize {
        elements / self.block() * self.panel_block_bytes()
    }

    /// Bytes of all panels.
    pub(super) fn bytes(self, elements: usize, rows: usize) -> usize {
        rows.div_ceil(COLUMNS) * self.panel_bytes(elements)
    }

    /// Rounds the same piece of up to eight rows as ggml does and lays it out; rows that are missing
    /// become zeros.
    pub(super) fn pack<'r>(
        self,
        pieces: impl ExactSizeIterator<Item = &'r [f32]>,
        into: &mut [u8],
    ) {
        if pieces.len() < COLUMNS {
            into.fill(0);
        }
        for (column, piece) in pieces.enumerate() {
            assert_eq!(into.len(), self.panel_bytes(piece.len()), "bytes of a piece of a panel");
            let mut rounded = Rounded::default();
            let blocks = self.round(piece, &mut rounded).chunks_exact(self.block_bytes());
            for (block, place) in blocks.zip(into.chunks_exact_mut(self.panel_block_bytes())) {
                match self {
                    Self::Q8_1 => place_q8_1(block, column, place),
                    Self::Q8K => put(place, column, block),
                }
            }
        }
    }

    /// ggml's own rounding of a piece.
    pub(super) fn round<'b>(self, piece: &[f32], into: &'b mut Rounded) -> &'b [u8] {
        let bytes = piece.len() / self.block() * self.block_bytes();
        let into = &mut into.0[..bytes];
        assert!(piece.len().is_multiple_of(self.block()), "whole blocks");
        // SAFETY: the traits are static; the function reads the values and writes their blocks.
        unsafe {
            let traits = &*sys::ggml_get_type_traits_cpu(self.ggml_type());
            let from_float = traits.from_float.expect("products need it");
            from_float(piece.as_ptr(), into.as_mut_ptr().cast(), piece.len() as i64);
        }
        into
    }

    /// ggml's type of rounded rows.
    fn ggml_type(self) -> sys::ggml_type {
        match self {
            Self::Q8_1 => sys::GGML_TYPE_Q8_1,
            Self::Q8K => sys::GGML_TYPE_Q8_K,
        }
    }

    /// Bytes of ggml's block.
    fn block_bytes(self) -> usize {
        match self {
            Self::Q8_1 => Q8_1_BYTES,
            Self::Q8K => Q8_K_BYTES,
        }
    }
}

impl Default for Rounded {
    fn default() -> Self {
        Self([0; ROUNDED_BYTES])
    }
}

/// Lays out a block of `Q8_1` as one of eight.
fn place_q8_1(block: &[u8], column: usize, place: &mut [u8]) {
    let (numbers, quants) = block.split_at(4);
    let (all_quants, all_numbers) = place.split_at_mut(COLUMNS * quants.len());
    put(all_quants, column, quants);
    for (number, all) in numbers.chunks_exact(2).zip(all_numbers.chunks_exact_mut(COLUMNS * 4)) {
        put(all, column, &f32_of([number[0], number[1]]).to_le_bytes());
    }
}

/// Writes one of eight fields that lie side by side.
fn put(all: &mut [u8], column: usize, one: &[u8]) {
    all[column * one.len()..][..one.len()].copy_from_slice(one);
}

/// The value of a 16-bit float.
fn f32_of(bytes: [u8; 2]) -> f32 {
    // SAFETY: a pure function.
    unsafe { sys::ggml_fp16_to_fp32(u16::from_le_bytes(bytes)) }
}
