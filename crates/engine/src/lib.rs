//! Crate `motley-engine`.
