//! Llama: norms before attention and feed-forward, rotary positions on neighbouring elements.

use motley_ggml::Tensor;

use crate::graphs::parts::LayerGraph;

/// One layer; nothing where only the cache is wanted.
pub(super) fn layer<'g>(graph: &LayerGraph<'_, 'g>, x: Tensor<'g>) -> Option<Tensor<'g>> {
    let normed = graph.norm(x, &graph.weights.attention_norm);
    let [query, key, value] = graph.query_key_value(normed);
    let (query, key) = (graph.rope(query), graph.rope(key));
    let attended = graph.attend(query, key, value, graph.hyper.attention_scale)?;
    Some(residual_feed_forward(graph, attended, x))
}

/// Adds attention's result to the layer's input, then the feed-forward network's to that.
pub(super) fn residual_feed_forward<'g>(
    graph: &LayerGraph<'_, 'g>,
    attended: Tensor<'g>,
    x: Tensor<'g>,
) -> Tensor<'g> {
    let x = graph.builder.add(graph.select(attended), graph.select(x));
    let normed = graph.norm(x, &graph.weights.feed_forward_norm);
    graph.builder.add(graph.feed_forward(normed), x)
}
