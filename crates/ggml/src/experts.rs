//! Operations of mixtures of experts: each row is multiplied with the matrices chosen for it.

use llama_cpp_sys_2 as sys;

use crate::element::ElementType;
use crate::graph::{Builder, Input, Output, Tensor};

/// Which experts a router chose for each row, and with what share.
#[derive(Clone, Copy, Debug)]
pub struct Route<'g> {
    /// Softmax of the scores, `[experts, rows]`.
    shares: Tensor<'g>,
    /// All experts of each row, those with the largest share first, `[experts, rows]`.
    order: Tensor<'g>,
    /// The first of them.
    pub chosen: ExpertIds<'g>,
}

/// For each row the matrices that it is multiplied with, `[used, rows]`, each below a limit.
#[derive(Clone, Copy, Debug)]
pub struct ExpertIds<'g> {
    tensor: Tensor<'g>,
    limit: usize,
}

/// Smallest sum of shares that others are divided by, against a division by zero: the smallest
/// normal number of 16 bits, as llama.cpp has it.
const SHARES_SUM_MIN: f32 = 6.103_515_6e-5;

impl<'g> Builder<'g> {
    /// Chooses for each row of `scores` `[experts, rows]` the `used` experts with the largest.
    pub fn route(&self, scores: Tensor<'g>, used: usize) -> Route<'g> {
        let [experts, rows, ..] = scores.shape();
        assert_eq!(scores.element(), ElementType::F32, "scores");
        assert!(scores.is_contiguous() && scores.shape()[2..] == [1, 1], "scores of one matrix");
        assert!((1..=experts).contains(&used), "{used} of {experts} experts");
        self.take_one();
        // SAFETY: contiguous 32-bit floats.
        let shares =
            self.node(unsafe { sys::ggml_soft_max(self.context.as_ptr(), scores.raw.as_ptr()) });
        self.take_one();
        // SAFETY: a matrix of 32-bit floats. Its rows come from a softmax: all numbers of a row
        // can be compared, or none is one and all are equal, so that sorting ends in either case.
        let order = self.node(unsafe {
            sys::ggml_argsort(self.context.as_ptr(), shares.raw.as_ptr(), sys::GGML_SORT_ORDER_DESC)
        });
        let row_bytes = order.strides_bytes()[1];
        let strides = [row_bytes, row_bytes * rows, row_bytes * rows];
        let tensor = self.view(order, [used, rows, 1, 1], strides, 0);
        // Sorting gives each row every number below `experts` once.
        Route { shares, order, chosen: ExpertIds { tensor, limit: experts } }
    }

    /// All experts of each row in the order of their shares, `[experts, rows]`; readable as soon as
    /// they are computed.
    pub fn route_order(&self, route: &Route<'g>) -> Output {
        self.output(route.order)
    }

    /// The shares of the chosen experts, scaled to a sum of one, `[1, used, rows]`.
    pub fn route_shares(&self, route: &Route<'g>) -> Tensor<'g> {
        let [experts, rows, ..] = route.shares.shape();
        let used = route.chosen.used();
        let table = self.reshape(route.shares, [1, experts, rows, 1]);
        self.take_one();
        // SAFETY: one table of `experts` rows and one list of indices below `experts` per row.
        let shares = self.node(unsafe {
            sys::ggml_get_rows(
                self.context.as_ptr(),
                table.raw.as_ptr(),
                route.chosen.tensor.raw.as_ptr(),
            )
        });
        let shares = self.reshape(shares, [used, rows, 1, 1]);
        self.take_one();
        // SAFETY: 32-bit floats.
        let sum =
            self.node(unsafe { sys::ggml_sum_rows(self.context.as_ptr(), shares.raw.as_ptr()) });
        self.take_one();
        // SAFETY: 32-bit floats; the sum is used nowhere else, which is overwritten.
        let sum = self.node(unsafe {
            sys::ggml_clamp(self.context.as_ptr(), sum.raw.as_ptr(), SHARES_SUM_MIN, f32::INFINITY)
        });
        self.take_one();
        // SAFETY: one divisor per row, which repeats over it.
        let shares = self.node(unsafe {
            sys::ggml_div(self.context.as_ptr(), shares.raw.as_ptr(), sum.raw.as_ptr())
        });
        self.reshape(shares, [1, used, rows, 1])
    }

    /// Declares matrices to multiply with that the caller names before each run: `used` for each of
    /// `rows`, each below `limit`.
    pub fn expert_ids(&self, used: usize, rows: usize, limit: usize) -> (ExpertIds<'g>, Input) {
        let (tensor, input) = self.declare_input(ElementType::I32, [used, rows, 1, 1], Some(limit));
        (ExpertIds { tensor, limit }, input)
    }

    /// Products of each row with the matrices chosen for it: `experts` `[k, n, count]` with `a`
    /// `[k, 1, rows]`, or `[k, used, rows]` with an input of its own for each, gives
    /// `[n, used, rows]`.
    pub fn mul_mat_experts(
        &self,
        experts: Tensor<'g>,
        a: Tensor<'g>,
        ids: &ExpertIds<'g>,
    ) -> Tensor<'g> {
        let (w, x) = (experts.shape(), a.shape());
        let [used, rows, ..] = ids.tensor.shape();
        assert_eq!(a.element(), ElementType::F32, "rows");
        assert!(ids.limit <= w[2], "experts below {} of {experts:?}", ids.limit);
        assert!(w[0] == x[0] && w[3] == 1 && x[3] == 1, "{experts:?} cannot multiply {a:?}");
        assert!(x[2] == rows && (x[1] == 1 || x[1] == used), "{a:?} for {:?}", ids.tensor);
        self.take_one();
        // SAFETY: the shapes were checked, and every id is below the number of matrices.
        self.node(unsafe {
            sys::ggml_mul_mat_id(
                self.context.as_ptr(),
                experts.raw.as_ptr(),
                a.raw.as_ptr(),
                ids.tensor.raw.as_ptr(),
            )
        })
    }

    /// Sums `[n, used, rows]` over the experts of each row; the result is `[n, rows]`.
    pub fn sum_experts(&self, a: Tensor<'g>) -> Tensor<'g> {
        let [width, used, rows, _] = a.shape();
        let [_, expert_stride, row_stride, _] = a.strides_bytes();
        self.expand(a);
        let plane = row_stride * rows;
        let parts: Vec<Tensor<'g>> = (0..used)
            .map(|expert| {
                let shape = [width, rows, 1, 1];
                let part = self.view(a, shape, [row_stride, plane, plane], expert * expert_stride);
                self.expand(part);
                part
            })
            .collect();
        if used == 1 {
            self.take_one();
            // SAFETY: any operand is valid.
            return self
                .node(unsafe { sys::ggml_cont(self.context.as_ptr(), parts[0].raw.as_ptr()) });
        }
        let mut sum = parts[0];
        for part in &parts[1..] {
            sum = self.add(sum, *part);
            self.expand(sum);
        }
        sum
    }
}

impl ExpertIds<'_> {
    /// Matrices for each row.
    pub fn used(&self) -> usize {
        self.tensor.shape()[0]
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.tensor.shape()[1]
    }
}
