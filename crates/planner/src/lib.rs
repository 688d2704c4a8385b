//! Crate `motley-planner`.
