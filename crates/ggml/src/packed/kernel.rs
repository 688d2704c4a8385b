//! The loop over a product, which is the same for all types of weights.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::OnceLock;

use llama_cpp_sys_2 as sys;

use super::panels::{COLUMNS, Rounding};
use super::{exact, k_quants, q4_1};
use crate::element::ElementType;

/// Room for unpacked weights, on the stack of each thread.
const UNPACKED_BYTES: usize = 96 << 10;

/// Rows of weights that are multiplied at once at most.
const OUTPUTS_MAX: usize = 16;

/// Unpacked weights that stay in the first cache beside a panel.
const NEAR_BYTES: usize = 32 << 10;

/// A type of weights and how it is unpacked. A block of weights has as many elements as one of
/// rounded activations.
#[derive(Clone, Copy, Debug)]
pub(super) struct Format {
    /// ggml's type.
    pub(super) weights: sys::ggml_type,
    /// How ggml rounds what such weights are multiplied with.
    pub(super) rounding: Rounding,
    /// Rows of activations from which on the kernel gives ggml's bits and is faster.
    pub(super) rows_min: usize,
    /// Rows of weights that are multiplied at once, a group.
    pub(super) outputs: usize,
    /// Bytes of a block.
    pub(super) block_bytes: usize,
    /// Bytes of a block of a group, unpacked.
    pub(super) unpacked_block_bytes: usize,
    /// Whether products can be continued after some blocks, and are added to what is there.
    pub(super) continues: bool,
    /// Where a block has 16-bit floats, and the largest to try them with.
    pub(super) halves: &'static [(usize, f32)],
}

/// A product that threads compute together.
pub(super) struct Product {
    /// `outputs` rows of `elements`.
    pub(super) weights: *const u8,
    /// Panels of `rows` rows of `elements`.
    pub(super) panels: *const u8,
    pub(super) elements: usize,
    pub(super) outputs: usize,
    pub(super) rows: usize,
    /// `rows` rows of `outputs`.
    pub(super) into: *mut f32,
}

/// Multiplies an unpacked group of weight rows with a panel: weights, panel, blocks, and the products,
/// those of the first row of activations first.
pub(super) type Multiply = unsafe fn(*const u8, *const u8, usize, &mut [f32]);

/// Unpacks a group of weight rows: rows, blocks, and room for them.
pub(super) type Unpack = unsafe fn(&[*const u8], usize, *mut u8);

/// A way to multiply weights of one type that was found to give ggml's bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    pub(super) format: &'static Format,
    pub(super) unpack: Unpack,
    pub(super) multiply: Multiply,
}

impl Kernel {
    /// The kernel for weights of a type on this processor; all are looked for once.
    pub(super) fn of(weights: ElementType) -> Option<&'static Self> {
        static FOUND: OnceLock<Vec<Kernel>> = OnceLock::new();
        let found = FOUND.get_or_init(|| {
            let mut found: Vec<Self> = Vec::new();
            for kernel in candidates() {
                let is_same = |other: &Self| other.format.weights == kernel.format.weights;
                if !found.iter().any(is_same) && exact::is_exact(kernel) {
                    found.push(kernel);
                }
            }
            found
        });
        found.iter().find(|kernel| kernel.format.weights == weights.id())
    }

    /// Whether rows of weights may have so many elements.
    pub(super) fn takes(self, elements: usize) -> bool {
        self.format.continues || self.group_bytes(elements) <= UNPACKED_BYTES
    }

    /// Rows of weights that a thread takes at once: as many groups as stay near, 16 rows at most.
    pub(super) fn outputs_of_a_part(self, elements: usize) -> usize {
        let groups_max = OUTPUTS_MAX / self.format.outputs;
        let groups = NEAR_BYTES / self.group_bytes(elements).max(1);
        self.format.outputs * groups.clamp(1, groups_max)
    }

    /// Computes the products of so many rows of the weights, at most those of a part.
    ///
    /// # Safety
    /// The product's memory is as it says, and nothing else reads or writes these outputs.
    pub(super) unsafe fn run(self, product: &Product, outputs: Range<usize>) {
        let Format { rounding, unpacked_block_bytes, continues, .. } = *self.format;
        let blocks = product.elements / rounding.block();
        let pieces =
            if continues { (blocks * unpacked_block_bytes).div_ceil(NEAR_BYTES) } else { 1 };
        let at_once = blocks.div_ceil(pieces);
        let groups = outputs.len().div_ceil(self.format.outputs);
        let mut unpacked = [const { MaybeUninit::<u8>::uninit() }; UNPACKED_BYTES];
        let unpacked = unpacked.as_mut_ptr().cast::<u8>();
        assert!(groups * at_once * unpacked_block_bytes <= UNPACKED_BYTES, "a part fits");
        for first in (0..blocks).step_by(at_once) {
            let piece = Piece { blocks: first..blocks.min(first + at_once), unpacked };
            for group in 0..groups {
                // SAFETY: all groups fit into the room, and these outputs are of the product.
                unsafe { self.unpack(product, &outputs, group, &piece) };
            }
            for panel in 0..product.rows.div_ceil(COLUMNS) {
                for group in 0..groups {
                    let start = outputs.start + group * self.format.outputs;
                    let outputs = start..outputs.end.min(start + self.format.outputs);
                    let bytes = group * piece.blocks.len() * unpacked_block_bytes;
                    // SAFETY: the group was unpacked there, and panel and outputs are of the product.
                    unsafe { self.multiply(product, outputs, panel, &piece.after(bytes)) };
                }
            }
        }
    }

    /// Unpacks a piece of one of the groups of these outputs.
    ///
    /// # Safety
    /// As for [`run`](Self::run), and the piece has room for the group.
    unsafe fn unpack(self, product: &Product, outputs: &Range<usize>, group: usize, piece: &Piece) {
        let Format { rounding, block_bytes, unpacked_block_bytes, .. } = *self.format;
        let row_bytes = product.elements / rounding.block() * block_bytes;
        let mut rows = [product.weights; OUTPUTS_MAX];
        let rows = &mut rows[..self.format.outputs];
        for (index, row) in rows.iter_mut().enumerate() {
            // Rows that are missing are those of the last.
            let output = outputs.start + group * self.format.outputs + index;
            let output = output.min(outputs.end - 1);
            // SAFETY: inside the weights.
            *row = unsafe { row.add(output * row_bytes + piece.blocks.start * block_bytes) };
        }
        let blocks = piece.blocks.len();
        // SAFETY: rows have these blocks, and there is room for them.
        unsafe {
            let into = piece.unpacked.add(group * blocks * unpacked_block_bytes);
            (self.unpack)(rows, blocks, into);
        }
    }

    /// Multiplies an unpacked group with a panel, and adds to what earlier pieces gave.
    ///
    /// # Safety
    /// As for [`run`](Self::run), and the group is of these outputs.
    unsafe fn multiply(
        self,
        product: &Product,
        outputs: Range<usize>,
        panel: usize,
        piece: &Piece,
    ) {
        let Format { rounding, outputs: group, .. } = *self.format;
        let first_row = panel * COLUMNS;
        let rows = COLUMNS.min(product.rows - first_row);
        let mut products = [0.0; OUTPUTS_MAX * COLUMNS];
        let products = &mut products[..group * COLUMNS];
        // SAFETY: the panel is of the product, and so are these rows and outputs of the result.
        unsafe {
            let panel = product.panels.add(panel * rounding.panel_bytes(product.elements));
            let panel = panel.add(piece.blocks.start * rounding.panel_block_bytes());
            let into = product.into.add(first_row * product.outputs + outputs.start);
            if piece.blocks.start > 0 {
                for (row, products) in products.chunks_exact_mut(group).take(rows).enumerate() {
                    let from = into.add(row * product.outputs);
                    from.copy_to_nonoverlapping(products.as_mut_ptr(), outputs.len());
                }
            }
            (self.multiply)(piece.unpacked, panel, piece.blocks.len(), products);
            for (row, products) in products.chunks_exact(group).take(rows).enumerate() {
                let into = into.add(row * product.outputs);
                into.copy_from_nonoverlapping(products.as_ptr(), outputs.len());
            }
        }
    }

    /// Bytes of a group of whole rows, unpacked.
    fn group_bytes(self, elements: usize) -> usize {
        elements / self.format.rounding.block() * self.format.unpacked_block_bytes
    }
}

/// Some blocks of rows of weights, and the room that they are unpacked into.
struct Piece {
    blocks: Range<usize>,
    unpacked: *mut u8,
}

impl Piece {
    /// The same blocks, after so many bytes of the room.
    fn after(&self, bytes: usize) -> Self {
        Self { blocks: self.blocks.clone(), unpacked: self.unpacked.wrapping_add(bytes) }
    }
}

/// Kernels that the processor has, those for the same weights by speed, the fastest first.
pub(super) fn candidates() -> Vec<Kernel> {
    [q4_1::kernels(), k_quants::kernels()].concat()
}
