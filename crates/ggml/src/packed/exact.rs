//! Whether a kernel gives ggml's bits: how ggml adds depends on how it was compiled and on the
//! processor, so it is tried.

use llama_cpp_sys_2 as sys;

use super::kernel::{Format, Kernel, Product};
use super::panels::{COLUMNS, PIECE};
use crate::backend::{Backend, Device};
use crate::element::ElementType;
use crate::graph::{ComputeBuffer, Graph};
use crate::tensors::{TensorSet, TensorSpec};
use crate::threads::{ThreadPool, ThreadPoolOptions};

/// Blocks of a row.
const BLOCKS: usize = 9;

/// Whether products of made-up rows are ggml's to the last bit: of the fewest that the kernel takes,
/// of a panel and of several, for ggml takes other ways for few and for many.
pub(super) fn is_exact(kernel: Kernel) -> bool {
    let mut draw = Draw(0x9e37_79b9_7f4a_7c15);
    [kernel.format.rows_min, COLUMNS, 3 * COLUMNS].into_iter().all(|rows| {
        let elements = BLOCKS * kernel.format.rounding.block();
        let outputs = kernel.outputs_of_a_part(elements);
        let weights: Vec<u8> =
            (0..outputs * BLOCKS).flat_map(|_| draw.block(kernel.format)).collect();
        let values: Vec<f32> = (0..rows * elements).map(|_| draw.value()).collect();
        let ours = ours(kernel, &weights, &values, rows);
        let theirs = theirs(kernel.format, &weights, &values, rows);
        theirs.is_some_and(|theirs| {
            ours.iter().map(|value| value.to_bits()).eq(theirs.iter().map(|value| value.to_bits()))
        })
    })
}

/// The product by the kernel.
fn ours(kernel: Kernel, weights: &[u8], values: &[f32], rows: usize) -> Vec<f32> {
    let Format { rounding, block_bytes, .. } = *kernel.format;
    let outputs = weights.len() / (BLOCKS * block_bytes);
    let elements = values.len() / rows;
    let mut panels = vec![0; rounding.bytes(elements, rows)];
    let all = panels.chunks_exact_mut(rounding.panel_bytes(elements));
    for (values, panel) in values.chunks(COLUMNS * elements).zip(all) {
        for (index, into) in panel.chunks_mut(rounding.panel_bytes(PIECE)).enumerate() {
            let piece = index * PIECE..elements.min((index + 1) * PIECE);
            rounding.pack(values.chunks_exact(elements).map(|row| &row[piece.clone()]), into);
        }
    }
    let mut found = vec![0.0_f32; rows * outputs];
    let product = Product {
        weights: weights.as_ptr(),
        panels: panels.as_ptr(),
        elements,
        outputs,
        rows,
        into: found.as_mut_ptr(),
    };
    // SAFETY: the product's memory is as large as it says, and this thread's alone.
    unsafe { kernel.run(&product, 0..outputs) };
    found
}

/// The product by ggml, or nothing where memory is short.
fn theirs(format: &Format, weights: &[u8], values: &[f32], rows: usize) -> Option<Vec<f32>> {
    let pool = ThreadPoolOptions { threads: 1, poll_percent: 0, pinned: false };
    let mut backend = Backend::cpu(ThreadPool::new(pool));
    let outputs = weights.len() / (BLOCKS * format.block_bytes);
    let elements = values.len() / rows;
    let spec = TensorSpec {
        name: "weight".to_owned(),
        element: ElementType::from_id(format.weights)?,
        shape: [elements as u64, outputs as u64, 1, 1],
    };
    let set = TensorSet::allocate(Device::cpu().memory(), &[spec]).ok()?;
    let weight = set.ids().next()?;
    set.write(weight, 0, weights).ok()?;
    let (mut graph, (input, output)) = Graph::build(4, |builder| {
        let (x, input) = builder.input(ElementType::F32, [elements, rows, 1, 1]);
        let product = builder.mul_mat(builder.stored(&set, weight), x);
        (input, builder.output(product))
    });
    ComputeBuffer::new(&backend).allocate(&mut graph).ok()?;
    graph.write::<f32>(input, values);
    backend.compute(&graph).ok()?;
    let mut product = vec![0.0; rows * outputs];
    graph.read::<f32>(output, &mut product);
    Some(product)
}

/// Made-up numbers, by splitmix64.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Between -2 and 2.
    fn value(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 22) as f32 - 2.0
    }

    /// A block of weights.
    fn block(&mut self, format: &Format) -> Vec<u8> {
        let mut block: Vec<u8> =
            (0..format.block_bytes).map(|_| (self.next() >> 56) as u8).collect();
        for (at, largest) in format.halves {
            // SAFETY: a pure function.
            let bits = unsafe { sys::ggml_fp32_to_fp16(self.value() / 2.0 * largest) };
            block[*at..][..2].copy_from_slice(&bits.to_le_bytes());
        }
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::kernel::candidates;

    #[test]
    fn every_kernel_that_the_processor_has_gives_ggml_s_bits() {
        for kernel in candidates() {
            assert!(is_exact(kernel), "{kernel:?}");
        }
    }
}
