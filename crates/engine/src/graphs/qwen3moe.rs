//! Qwen 3 with experts: the attention of the dense models, a mixture in place of each network.

use motley_ggml::Tensor;

use crate::graphs::parts::LayerGraph;
use crate::graphs::qwen3;

/// One layer; nothing where only the cache is wanted.
pub(super) fn layer<'g>(graph: &LayerGraph<'_, 'g>, x: Tensor<'g>) -> Option<Tensor<'g>> {
    // The feed-forward part is a mixture wherever a layer has a router.
    qwen3::layer(graph, x)
}
