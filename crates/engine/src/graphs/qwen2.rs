//! Qwen 2 and 2.5: Llama's layer with biases on queries, keys and values.

use motley_ggml::Tensor;

use crate::graphs::llama;
use crate::graphs::parts::LayerGraph;

/// One layer; nothing where only the cache is wanted. The biases are weights like others, and the
/// pairing of rotated elements is a hyper-parameter, so that the graph is Llama's.
pub(super) fn layer<'g>(graph: &LayerGraph<'_, 'g>, x: Tensor<'g>) -> Option<Tensor<'g>> {
    llama::layer(graph, x)
}
