//! Rows of activations as the kernel reads them: eight side by side, block by block, with the
//! numbers of little-endian processors, the only ones that have a kernel.

use llama_cpp_sys_2 as sys;

/// Elements that share a scale, of weights and of activations.
pub(super) const BLOCK: usize = 32;

/// Rows of activations in a panel.
pub(super) const COLUMNS: usize = 8;

/// Bytes of a block of a panel: its quants row by row, then the scale of each row, then the sum of
/// each row.
pub(super) const PANEL_BLOCK_BYTES: usize = COLUMNS * (BLOCK + 8);

/// A block of ggml's `Q8_1`: scale, scale times the sum of the quants, both as 16-bit floats, and
/// the quants.
const Q8_1_BYTES: usize = 4 + BLOCK;

/// Blocks that are rounded at once.
const BLOCKS_AT_ONCE: usize = 16;

/// Bytes of the panel of up to eight rows of so many elements.
pub(super) fn panel_bytes(elements: usize) -> usize {
    elements / BLOCK * PANEL_BLOCK_BYTES
}

/// Bytes of all panels.
pub(super) fn bytes(elements: usize, rows: usize) -> usize {
    rows.div_ceil(COLUMNS) * panel_bytes(elements)
}

/// Rounds up to eight rows as ggml does and lays them out; rows that are missing become zeros.
pub(super) fn pack(rows: &[f32], elements: usize, panel: &mut [u8]) {
    assert_eq!(panel.len(), panel_bytes(elements), "bytes of a panel");
    let count = rows.len() / elements;
    if count < COLUMNS {
        panel.fill(0);
    }
    for (column, row) in rows.chunks_exact(elements).enumerate() {
        for (index, part) in row.chunks(BLOCKS_AT_ONCE * BLOCK).enumerate() {
            let mut rounded = [0_u8; BLOCKS_AT_ONCE * Q8_1_BYTES];
            let blocks = quantize(part, &mut rounded);
            let first = index * BLOCKS_AT_ONCE * PANEL_BLOCK_BYTES;
            let places = panel[first..].chunks_exact_mut(PANEL_BLOCK_BYTES);
            for (block, place) in blocks.chunks_exact(Q8_1_BYTES).zip(places) {
                let (numbers, quants) = block.split_at(4);
                place[column * BLOCK..][..BLOCK].copy_from_slice(quants);
                for (number, field) in numbers.chunks_exact(2).zip(0..) {
                    let number = f32_of([number[0], number[1]]);
                    let at = COLUMNS * BLOCK + (field * COLUMNS + column) * 4;
                    place[at..at + 4].copy_from_slice(&number.to_le_bytes());
                }
            }
        }
    }
}

/// ggml's own rounding to `Q8_1` of whole blocks.
pub(super) fn quantize<'b>(values: &[f32], into: &'b mut [u8]) -> &'b [u8] {
    let bytes = values.len() / BLOCK * Q8_1_BYTES;
    assert!(values.len().is_multiple_of(BLOCK) && bytes <= into.len(), "whole blocks that fit");
    // SAFETY: the traits are static; the function reads the values and writes a block for each 32.
    unsafe {
        let traits = &*sys::ggml_get_type_traits_cpu(sys::GGML_TYPE_Q8_1);
        let from_float = traits.from_float.expect("Q8_1 is what Q4_1 is multiplied with");
        from_float(values.as_ptr(), into.as_mut_ptr().cast(), values.len() as i64);
    }
    &into[..bytes]
}

/// The value of a 16-bit float.
fn f32_of(bytes: [u8; 2]) -> f32 {
    // SAFETY: a pure function.
    unsafe { sys::ggml_fp16_to_fp32(u16::from_le_bytes(bytes)) }
}
