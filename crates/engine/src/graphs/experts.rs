//! Mixtures of experts in place of a feed-forward network. As in the other parts, the order of
//! operations is llama.cpp's.

use motley_ggml::Tensor;

use crate::graphs::ExpertInputs;
use crate::graphs::parts::LayerGraph;
use crate::weights::Weight;

impl<'g> LayerGraph<'_, 'g> {
    /// The sum of the networks of the experts that the router chooses, by their shares.
    pub(super) fn mixture(&self, x: Tensor<'g>, router: &Weight) -> Tensor<'g> {
        let (builder, weights) = (self.builder, self.weights);
        let used = self.hyper.experts.expect("a router comes with experts").used;
        let [width, rows, ..] = x.shape();
        let route = builder.route(self.project(x, router, None), used);
        let shares = builder.route_shares(&route);
        builder.expand(shares);
        let ids = match weights.expert_slots {
            None => route.chosen,
            Some(limit) => {
                let (ids, slots) = builder.expert_ids(used, rows, limit);
                let order = builder.route_order(&route);
                let inputs = ExpertInputs { layer: self.layer, order, slots };
                self.experts.borrow_mut().push(inputs);
                ids
            }
        };
        let x = builder.reshape(x, [width, 1, rows, 1]);
        let up = builder.mul_mat_experts(self.stored(&weights.up), x, &ids);
        let gate = builder.mul_mat_experts(self.stored(&weights.gate), x, &ids);
        let gated = builder.swiglu(gate, up);
        let products = builder.mul_mat_experts(self.stored(&weights.down), gated, &ids);
        builder.sum_experts(builder.mul(products, shares))
    }
}
