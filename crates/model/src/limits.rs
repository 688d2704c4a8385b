//! The largest hyper-parameters that are believed.
//!
//! They are generous against every published model and small enough that all sizes computed from
//! them fit 64 bits, which the assertions below show.

/// Blocks of a model; llama.cpp's own limit.
pub(crate) const BLOCK_COUNT_MAX: u64 = 512;

/// Tokens of context. The longest published context is ten million.
pub(crate) const CONTEXT_LENGTH_MAX: u64 = 1 << 26;

/// Elements of a hidden state.
pub(crate) const EMBEDDING_LENGTH_MAX: u64 = 1 << 20;

/// Elements between the two feed-forward matrices.
pub(crate) const FEED_FORWARD_LENGTH_MAX: u64 = 1 << 24;

/// Experts of a layer; llama.cpp's own limit.
pub(crate) const EXPERT_COUNT_MAX: u64 = 512;

/// Attention heads of a layer.
pub(crate) const HEAD_COUNT_MAX: u64 = 1 << 12;

/// Elements of one head's key or value.
pub(crate) const HEAD_LENGTH_MAX: u64 = 1 << 14;

/// Tokens of a vocabulary.
pub(crate) const VOCABULARY_SIZE_MAX: u64 = 1 << 24;

/// Parts of a split file; the format stores 16 bits.
pub(crate) const SPLIT_COUNT_MAX: u64 = 65_535;

// Floating-point operations of one token in one layer: no product of these limits overflows. Of
// experts only those that a token uses count, and the tensors' bytes were checked by the reader.
const _: () = assert!(
    2 * EMBEDDING_LENGTH_MAX
        * (3 * FEED_FORWARD_LENGTH_MAX * EXPERT_COUNT_MAX
            + EXPERT_COUNT_MAX
            + 4 * HEAD_COUNT_MAX * HEAD_LENGTH_MAX)
        < 1 << 60
);
const _: () = assert!(4 * HEAD_COUNT_MAX * HEAD_LENGTH_MAX * CONTEXT_LENGTH_MAX < 1 << 60);
