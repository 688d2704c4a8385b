//! Products of Q4_1 weights with many rows at once, to the last bit as ggml's own.
//!
//! ggml multiplies one row of Q4_1 weights with one row of activations at a time, and unpacks the
//! weights again for each. Here they are unpacked once, and two rows of them are multiplied with
//! eight rows of activations in registers. Every element of the product adds the same terms in the
//! same order as ggml's kernel does, so that no bit differs; [`Kernel::find`] makes sure of that
//! before anything is computed, and gives no kernel where it is not so or the processor lacks what
//! it takes.

mod kernel;
mod packed;

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use llama_cpp_sys_2 as sys;

use crate::element::ElementType;
use crate::graph::{Builder, Tensor, as_i64};

pub(crate) use kernel::Kernel;
use packed::COLUMNS;

/// The fewest rows for which packing pays: eight are multiplied at once, whether they are there or
/// not.
const ROWS_MIN: usize = 4;

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
    /// rows are multiplied: nothing where they are too few, the weights are of another type, or the
    /// processor lacks what it takes. For the processor only.
    pub fn mul_mat_packed(&self, weight: Tensor<'g>, a: Tensor<'g>) -> Option<Tensor<'g>> {
        let ([elements, outputs, ..], [width, rows, ..]) = (weight.shape(), a.shape());
        assert_eq!(elements, width, "{weight:?} cannot multiply {a:?}");
        let is_matrix = |tensor: Tensor<'g>| {
            tensor.is_contiguous() && tensor.shape()[2] == 1 && tensor.shape()[3] == 1
        };
        if rows < ROWS_MIN
            || elements > kernel::ELEMENTS_MAX
            || weight.element() != ElementType::Q4_1
            || a.element() != ElementType::F32
            || !is_matrix(weight)
            || !is_matrix(a)
        {
            return None;
        }
        let kernel = *Kernel::get()?;
        let panels = self.packed(a);
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
    /// a row that have the same rows.
    fn packed(&self, a: Tensor<'g>) -> Tensor<'g> {
        if let Some((rows, panels)) = self.last_packed.get()
            && rows == a.raw
        {
            return self.node(panels.as_ptr());
        }
        let [elements, rows, ..] = a.shape();
        self.take_one();
        let bytes = as_i64(packed::bytes(elements, rows));
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
                std::ptr::null_mut(),
            )
        });
        self.last_packed.set(Some((a.raw, panels.raw)));
        panels
    }
}

impl Kernel {
    /// The kernel for this processor, looked for once.
    fn get() -> Option<&'static Self> {
        static FOUND: OnceLock<Option<Kernel>> = OnceLock::new();
        FOUND.get_or_init(Self::find).as_ref()
    }
}

/// One thread's part of [`Builder::packed`].
///
/// # Safety
/// Called by ggml for a node that `packed` made, with memory for it and its operand.
unsafe extern "C" fn pack(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, _: *mut c_void) {
    // SAFETY: as the caller promises; threads write panels of their own.
    unsafe {
        let rows = &*(*dst).src[0];
        let (elements, count) = (rows.ne[0] as usize, rows.ne[1] as usize);
        let panel_bytes = packed::panel_bytes(elements);
        let panels = count.div_ceil(COLUMNS);
        for panel in (ith as usize..panels).step_by(nth as usize) {
            let first = panel * COLUMNS;
            let data = rows.data.cast::<f32>().add(first * elements);
            let rows = std::slice::from_raw_parts(data, COLUMNS.min(count - first) * elements);
            let into = (*dst).data.cast::<u8>().add(panel * panel_bytes);
            packed::pack(rows, elements, std::slice::from_raw_parts_mut(into, panel_bytes));
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
        let part = kernel::outputs_of_a_part(elements);
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
