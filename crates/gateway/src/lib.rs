//! Crate `motley-gateway`.
