//! Built-in devices, models and clusters: published figures with their sources, and what follows.

mod clusters;
mod convert;
mod figures;

use crate::model::ModelProfile;

pub use clusters::{NamedClusterError, builtin_cluster, builtin_cluster_names};
pub use figures::{
    BatchedDecodeRow, Benchmark, Catalogue, CatalogueDevice, CatalogueModel, ComputeFigures,
    DeviceRole, DiskFigures, EffectiveFigures, ExpertFit, Figure, LatencyAblation, LatencyRow,
    MemoryFigures,
};

/// A built-in model by its id, such as `llama-3-8b-q4_k_m`.
#[must_use]
pub fn builtin_model(id: &str) -> Option<ModelProfile> {
    Catalogue::builtin().models.iter().find(|model| model.id == id).map(CatalogueModel::profile)
}

/// Ids of the built-in models.
#[must_use]
pub fn builtin_model_names() -> Vec<String> {
    Catalogue::builtin().models.iter().map(|model| model.id.clone()).collect()
}
