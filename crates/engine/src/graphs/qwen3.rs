//! Qwen 3, dense: every head's query and key are normed before they are rotated.

use motley_ggml::Tensor;

use crate::graphs::llama::residual_feed_forward;
use crate::graphs::parts::LayerGraph;

/// One layer; nothing where only the cache is wanted.
pub(super) fn layer<'g>(graph: &LayerGraph<'_, 'g>, x: Tensor<'g>) -> Option<Tensor<'g>> {
    let weights = graph.weights;
    let normed = graph.norm(x, &weights.attention_norm);
    let [query, key, value] = graph.query_key_value(normed);
    let query = graph.rope(graph.optional_norm(query, weights.query_norm.as_ref()));
    let key = graph.rope(graph.optional_norm(key, weights.key_norm.as_ref()));
    let attended = graph.attend(query, key, value, graph.hyper.attention_scale)?;
    Some(residual_feed_forward(graph, attended, x))
}
