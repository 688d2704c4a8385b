//! Crate `motley-model`.
