//! Products of Q4_1, Q4_K and Q6_K weights with many rows at once, to the last bit as ggml's own.
//!
//! ggml unpacks weights again for each row of activations, or lays out more than few rows need. Here
//! weights are unpacked once, and a group of their rows is multiplied with eight rows of activations
//! in registers. Every element of the product adds the same terms in the same order as ggml's kernel
//! does, where the order matters, so that no bit differs; [`Kernel::of`] makes sure of that before
//! anything is computed, and gives no kernel where it is not so or the processor lacks what it takes.
//!
//! How activations are laid out is in `panels`, the loop over a product in `kernel`, its check in
//! `exact`, and what is special to types of weights in `q4_1` and `k_quants`.

mod exact;
mod k_quants;
mod kernel;
mod panels;
mod q4_1;

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use llama_cpp_sys_2 as sys;

use crate::element::ElementType;
use crate::graph::{Builder, Tensor, as_i64};

pub(crate) use kernel::Kernel;
pub(crate) use panels::Rounding;
use panels::{COLUMNS, PIECE};

/// What ggml takes for "as many threads as there are".
const ALL_THREADS: c_int = -1;

/// What the threads share that compute one product.
#[derive(Debug)]
pub(crate) struct Turns {
    kernel: Kernel,
    /// The next part of the weights that nobody computes yet.
    next: AtomicUsize,
    /// Threads that have found no more.
    done: AtomicUsize,
}

impl<'g> Builder<'g> {
    /// Matrix product as [`mul_mat`](Self::mul_mat), the same to the last bit, but faster where many
    /// rows are multiplied: nothing where they are too few, the weights are of another type or
    /// interleaved, or the processor lacks what it takes. For the processor only.
    pub fn mul_mat_packed(&self, weight: Tensor<'g>, a: Tensor<'g>) -> Option<Tensor<'g>> {
        let ([elements, outputs, ..], [width, rows, ..]) = (weight.shape(), a.shape());
        assert_eq!(elements, width, "{weight:?} cannot multiply {a:?}");
        let is_matrix = |tensor: Tensor<'g>| {
            tensor.is_contiguous() && tensor.shape()[2] == 1 && tensor.shape()[3] == 1
        };
        // SAFETY: the tensor is live. Interleaved weights have something there.
        let is_plain = unsafe { weight.raw.as_ref() }.extra.is_null();
        if a.element() != ElementType::F32 || !is_plain || !is_matrix(weight) || !is_matrix(a) {
            return None;
        }
        let kernel = *Kernel::of(weight.element())?;
        if rows < kernel.format.rows_min || !kernel.takes(elements) {
            return None;
        }
        let panels = self.packed(a, &kernel.format.rounding);
        let turns = self.keep(Turns { kernel, next: 0.into(), done: 0.into() });
        self.take_one();
        let mut operands = [weight.raw.as_ptr(), panels.raw.as_ptr()];
        // SAFETY: the operands are live and of the shapes that `multiply` expects; the graph keeps
        // the turns.
        Some(self.node(unsafe {
            sys::ggml_custom_4d(
                self.context.as_ptr(),
                sys::GGML_TYPE_F32,
                as_i64(outputs),
                as_i64(rows),
                1,
                1,
                operands.as_mut_ptr(),
                2,
                Some(multiply),
                ALL_THREADS,
                turns.cast_mut().cast(),
            )
        }))
    }

    /// The rows of a matrix, rounded to 8 bits and laid out for products; once for all products in
    /// a row that have the same rows, rounded alike.
    fn packed(&self, a: Tensor<'g>, rounding: &'static Rounding) -> Tensor<'g> {
        if let Some((rows, same, panels)) = self.last_packed.get()
            && (rows, same) == (a.raw, *rounding)
        {
            return self.node(panels.as_ptr());
        }
        let [elements, rows, ..] = a.shape();
        self.take_one();
        let bytes = as_i64(rounding.bytes(elements, rows));
        let mut operands = [a.raw.as_ptr()];
        // SAFETY: the operand is live; `pack` reads it and writes the result, as sized here.
        let panels = self.node(unsafe {
            sys::ggml_custom_4d(
                self.context.as_ptr(),
                sys::GGML_TYPE_I8,
                bytes,
                1,
                1,
                1,
                operands.as_mut_ptr(),
                1,
                Some(pack),
                ALL_THREADS,
                std::ptr::from_ref(rounding).cast_mut().cast(),
            )
        });
        self.last_packed.set(Some((a.raw, *rounding, panels.raw)));
        panels
    }
}

/// One thread's part of [`Builder::packed`].
///
/// # Safety
/// Called by ggml for a node that `packed` made with this rounding, with memory for it and its
/// operand.
unsafe extern "C" fn pack(
    dst: *mut sys::ggml_tensor,
    ith: c_int,
    nth: c_int,
    rounding: *mut c_void,
) {
    // SAFETY: as the caller promises; threads write pieces of their own.
    unsafe {
        let rounding = *rounding.cast::<Rounding>();
        let rows = &*(*dst).src[0];
        let (elements, count) = (rows.ne[0] as usize, rows.ne[1] as usize);
        let panel_bytes = rounding.panel_bytes(elements);
        let pieces = elements.div_ceil(PIECE);
        for turn in (ith as usize..count.div_ceil(COLUMNS) * pieces).step_by(nth as usize) {
            let (panel, start) = (turn / pieces, turn % pieces * PIECE);
            let length = PIECE.min(elements - start);
            let first = panel * COLUMNS;
            let piece_of = |row: usize| {
                let data = rows.data.cast::<f32>().add((first + row) * elements + start);
                std::slice::from_raw_parts(data, length)
            };
            let into = panel * panel_bytes + rounding.panel_bytes(start);
            let into = (*dst).data.cast::<u8>().add(into);
            let into = std::slice::from_raw_parts_mut(into, rounding.panel_bytes(length));
            rounding.pack((0..COLUMNS.min(count - first)).map(piece_of), into);
        }
    }
}

/// One thread's part of [`Builder::mul_mat_packed`]: it takes parts of the weights until none is left.
///
/// # Safety
/// Called by ggml, once by each of `nth` threads, for a node that `mul_mat_packed` made, with memory
/// for it and its operands.
unsafe extern "C" fn multiply(
    dst: *mut sys::ggml_tensor,
    _: c_int,
    nth: c_int,
    turns: *mut c_void,
) {
    // SAFETY: as the caller promises; the turns live as long as the graph, and are shared by
    // reference only. Each part of the weights is one thread's, and so are its products.
    unsafe {
        let turns = &*turns.cast::<Turns>();
        let (weights, panels) = (&*(*dst).src[0], &*(*dst).src[1]);
        let [elements, outputs] = [weights.ne[0] as usize, weights.ne[1] as usize];
        let rows = (*dst).ne[1] as usize;
        let product = kernel::Product {
            weights: weights.data.cast(),
            panels: panels.data.cast(),
            elements,
            outputs,
            rows,
            into: (*dst).data.cast(),
        };
        let part = turns.kernel.outputs_of_a_part(elements);
        loop {
            let first = turns.next.fetch_add(part, Ordering::Relaxed);
            if first >= outputs {
                break;
            }
            turns.kernel.run(&product, first..outputs.min(first + part));
        }
        // The last to leave makes the turns ready for the next time, which begins behind a barrier.
        if turns.done.fetch_add(1, Ordering::AcqRel) + 1 == nth as usize {
            turns.next.store(0, Ordering::Relaxed);
            turns.done.store(0, Ordering::Relaxed);
        }
    }
}
