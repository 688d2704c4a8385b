//! The most of everything that a file may have. Beyond these no real model lies.

/// Metadata pairs; models have about 30, merged tool outputs a few hundred.
pub(super) const METADATA_COUNT_MAX: u64 = 65_536;

/// Tensors of one file; expert models with unmerged experts have some 50,000.
pub(super) const TENSOR_COUNT_MAX: u64 = 262_144;

/// Bytes of a metadata key, by the format's text.
pub(super) const KEY_BYTES_MAX: u64 = 65_535;

/// Bytes of a tensor name: ggml holds 64 with the closing zero.
pub(super) const TENSOR_NAME_BYTES_MAX: u64 = 63;

/// The largest alignment: pages of 64 KiB are the largest that matter.
pub(super) const ALIGNMENT_MAX: u32 = 65_536;

/// Bytes of the shortest metadata pair: key length, type, one byte of value. An empty key is
/// counted in, so that it is refused for what it is.
pub(super) const METADATA_BYTES_MIN: u64 = 8 + 4 + 1;

/// Bytes of the shortest tensor entry: name length, dimension count, one dimension, type, offset.
pub(super) const TENSOR_BYTES_MIN: u64 = 8 + 4 + 8 + 4 + 8;
