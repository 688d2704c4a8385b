//! Crate `motley-ggml`.
