//! Short measurements of what the processor does with weights, for plans made before a model runs.
//!
//! [`ProcessorMeter`] times single products, [`ModelMeter`] the engine's own graphs on a few layers
//! of a model whose weights need not be here: only their shapes and types count, so that made-up
//! bytes take their place. Every figure is the lower quartile of several short runs, because
//! whatever else the machine does makes a run longer and never shorter.

mod cut;
mod fill;
mod meter;
mod processor;

#[cfg(test)]
mod tests;

use std::time::Duration;

use motley_ggml::{AllocateError, ComputeError, QuantizeError, StartError, TensorError};
use motley_model::TensorType;

use crate::cache::CacheError;
use crate::engine::{LoadError, StepError};

pub use meter::{MeterOptions, ModelMeter, PassKind, PassTimes, TimedPass};
pub use processor::ProcessorMeter;

/// Why something could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The processor has no way to multiply with this type.
    #[error("weights of type {tensor_type} cannot be multiplied here")]
    Type {
        /// The type.
        tensor_type: TensorType,
    },
    /// A GPU is there, but refuses to work.
    #[error("cannot use the GPU")]
    Gpu(#[from] StartError),
    /// The bytes of a matrix could not be made.
    #[error("cannot make weights to measure with")]
    Fill(#[from] QuantizeError),
    /// The file of made-up weights could not be written or mapped.
    #[error("cannot write weights to measure with")]
    File(#[from] std::io::Error),
    /// Memory for weights was refused.
    #[error("cannot hold weights to measure with")]
    Tensors(#[from] TensorError),
    /// Memory for intermediate values was refused.
    #[error("cannot reserve working memory to measure with")]
    Memory(#[from] AllocateError),
    /// The engine could not be made.
    #[error("cannot load layers to measure")]
    Load(#[from] LoadError),
    /// A context could not be put in place.
    #[error("cannot fill the cache to measure with")]
    Cache(#[from] CacheError),
    /// A pass failed.
    #[error("cannot run layers to measure")]
    Step(#[from] StepError),
    /// A product failed.
    #[error("cannot compute to measure")]
    Compute(#[from] ComputeError),
    /// Not even one layer and the head fit into the memory allowed.
    #[error(
        "a layer and the head need {needed_bytes} bytes to be measured, {allowed_bytes} are allowed"
    )]
    Room {
        /// Bytes of the smallest measurement.
        needed_bytes: u64,
        /// Bytes allowed.
        allowed_bytes: u64,
    },
}

/// The lower quartile: near the undisturbed time, yet not the luckiest run.
///
/// # Panics
/// When there are no times.
fn lower_quartile(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 4]
}
