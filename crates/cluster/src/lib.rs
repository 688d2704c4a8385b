//! Crate `motley-cluster`.
