//! What a model costs: bytes and floating-point operations per layer, and memory for its use.

use crate::TensorType;
use crate::directory::ModelDirectory;
use crate::hyper::LayerShape;

/// How a model is to be used, as far as memory depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheQuery {
    /// Tokens of context of each slot.
    pub context_tokens: u64,
    /// Sequences at once.
    pub slots: u64,
    /// Tokens computed at once, by which a sliding window's cache must be longer than the window.
    pub micro_batch_tokens: u64,
    /// The types of cached keys and of cached values.
    pub cache_types: [TensorType; 2],
}

/// Memory that a use of a model takes beside the buffers of its computation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryNeeded {
    /// Bytes of every layer's weights.
    pub layer_weights_bytes: Vec<u64>,
    /// Bytes of every layer's keys and values, over all slots.
    pub layer_cache_bytes: Vec<u64>,
    /// Bytes of the embedding.
    pub embedding_bytes: u64,
    /// Bytes of the head; zero for the matrix where it is the embedding.
    pub head_bytes: u64,
    /// Bytes of all weights.
    pub weights_bytes: u64,
    /// Bytes of all keys and values.
    pub cache_bytes: u64,
    /// Bytes of weights, keys and values.
    pub total_bytes: u64,
}

/// Why the memory of a use cannot be told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The keys or values of one token do not fill whole blocks.
    #[error("keys and values cannot be cached as {cache_type}: the {elements} elements of one token in layer {layer} are no multiple of {}", cache_type.block_elements())]
    PartialBlock {
        /// The layer.
        layer: usize,
        /// Elements of one token's keys or values.
        elements: u64,
        /// The type asked for.
        cache_type: TensorType,
    },
    /// More bytes than 64 bits can count.
    #[error("{slots} slots of {context_tokens} tokens need more memory than can be counted")]
    Overflow {
        /// Sequences at once.
        slots: u64,
        /// Tokens of context of each slot.
        context_tokens: u64,
    },
}

impl ModelDirectory {
    /// Bytes of the weights of a layer.
    ///
    /// # Panics
    ///
    /// If the model has no such layer.
    pub fn layer_bytes(&self, layer: usize) -> u64 {
        self.layers[layer].bytes()
    }

    /// Floating-point operations of one token in a layer with `context_tokens` before it.
    ///
    /// Two per parameter of the matrices, of experts only those that one token uses, and four per head, element and token it attends to:
    /// score and weighted sum, a multiplication and an addition each.
    ///
    /// # Panics
    ///
    /// If the model has no such layer.
    pub fn layer_flops_per_token(&self, layer: usize, context_tokens: u64) -> u64 {
        let shape = &self.hyper.layers[layer];
        let attention = 4 * shape.head_count as u64 * self.hyper.key_length as u64;
        let visible = shape.visible_tokens(context_tokens);
        let used = self.hyper.experts.map_or(0, |experts| experts.used);
        let products = self.layers[layer].products(used);
        let matrices = 2 * products.map(|(_, elements)| elements).sum::<u64>();
        matrices.saturating_add(attention.saturating_mul(visible))
    }

    /// Floating-point operations of the head for one token.
    pub fn head_flops_per_token(&self) -> u64 {
        2 * self.head_matrix().elements()
    }

    /// Bytes of the embedding matrix.
    pub fn embedding_bytes(&self) -> u64 {
        self.embedding.bytes
    }

    /// Bytes that the head reads for one token: its matrix, the norm before it and a bias. Where
    /// the matrix is the embedding, a device that has both holds it once.
    pub fn head_bytes(&self) -> u64 {
        let bias = self.output_bias.as_ref().map_or(0, |bias| bias.bytes);
        self.head_matrix().bytes + self.output_norm.bytes + bias
    }

    /// Bytes of all weights.
    pub fn weights_bytes(&self) -> u64 {
        self.tensors().map(|tensor| tensor.bytes).sum()
    }

    /// Bytes that one token's key and value take in a layer.
    ///
    /// # Errors
    ///
    /// [`MemoryError::PartialBlock`] if they do not fill whole blocks of their types.
    ///
    /// # Panics
    ///
    /// If the model has no such layer.
    pub fn cache_bytes_per_token(
        &self,
        layer: usize,
        [of_keys, of_values]: [TensorType; 2],
    ) -> Result<u64, MemoryError> {
        let shape = &self.hyper.layers[layer];
        let row = |cache_type: TensorType, elements: u64| {
            let partial = MemoryError::PartialBlock { layer, elements, cache_type };
            cache_type.row_bytes(elements).ok_or(partial)
        };
        let keys = row(of_keys, self.hyper.key_row_elements(shape))?;
        Ok(keys + row(of_values, self.hyper.value_row_elements(shape))?)
    }

    /// Memory for the weights and for the keys and values of all slots. Layers with a sliding
    /// window cache the window and one micro-batch, at most the context.
    ///
    /// # Errors
    ///
    /// [`MemoryError`] if the cache cannot have this type or size.
    pub fn memory_needed(&self, query: &CacheQuery) -> Result<MemoryNeeded, MemoryError> {
        let overflow =
            MemoryError::Overflow { slots: query.slots, context_tokens: query.context_tokens };
        let cache_of = |(layer, shape): (usize, &LayerShape)| {
            let per_token = self.cache_bytes_per_token(layer, query.cache_types)?;
            cached_tokens(shape, query)
                .checked_mul(query.slots)
                .and_then(|tokens| tokens.checked_mul(per_token))
                .ok_or(overflow.clone())
        };
        let layer_cache_bytes =
            self.hyper.layers.iter().enumerate().map(cache_of).collect::<Result<Vec<_>, _>>()?;
        let sum = |sum: u64, bytes: &u64| sum.checked_add(*bytes);
        let cache_bytes = layer_cache_bytes.iter().try_fold(0, sum).ok_or(overflow.clone())?;
        let weights_bytes = self.weights_bytes();
        let tied_bytes = if self.output.is_none() { self.embedding.bytes } else { 0 };
        Ok(MemoryNeeded {
            layer_weights_bytes: self.layers.iter().map(|layer| layer.bytes()).collect(),
            layer_cache_bytes,
            embedding_bytes: self.embedding_bytes(),
            head_bytes: self.head_bytes() - tied_bytes,
            weights_bytes,
            cache_bytes,
            total_bytes: weights_bytes.checked_add(cache_bytes).ok_or(overflow)?,
        })
    }
}

fn cached_tokens(shape: &LayerShape, query: &CacheQuery) -> u64 {
    let window = shape
        .window_tokens
        .map_or(u64::MAX, |window| query.micro_batch_tokens.saturating_add(window as u64));
    query.context_tokens.min(window)
}
