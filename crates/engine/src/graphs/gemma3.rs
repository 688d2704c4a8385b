//! Gemma 3: normed heads, norms before and after both parts, most layers with a sliding window.

use motley_ggml::Tensor;

use crate::graphs::parts::LayerGraph;

/// One layer; nothing where only the cache is wanted.
pub(super) fn layer<'g>(graph: &LayerGraph<'_, 'g>, x: Tensor<'g>) -> Option<Tensor<'g>> {
    let (builder, weights) = (graph.builder, graph.weights);
    let normed = graph.norm(x, &weights.attention_norm);
    let [query, key, value] = graph.query_key_value(normed);
    let query = graph.rope(graph.optional_norm(query, weights.query_norm.as_ref()));
    let key = graph.rope(graph.optional_norm(key, weights.key_norm.as_ref()));
    let query = builder.scale(query, graph.hyper.attention_scale);
    let attended = graph.attend(query, key, value, 1.0)?;
    let (attended, x) = (graph.select(attended), graph.select(x));
    let attended = graph.optional_norm(attended, weights.attention_post_norm.as_ref());
    let x = builder.add(attended, x);
    let fed = graph.feed_forward(graph.norm(x, &weights.feed_forward_norm));
    let fed = graph.optional_norm(fed, weights.feed_forward_post_norm.as_ref());
    Some(builder.add(fed, x))
}
