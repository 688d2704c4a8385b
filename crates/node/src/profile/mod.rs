//! `motley profile`: what this device can do, measured: memory, processor, disk, and the layers of a
//! model.
//!
//! [`device`] gives what depends on the hardware alone, [`model_tables`] the times of a model's
//! layers and head from its directory; no weights need to be here. Both keep their results in the
//! cache folder until hardware, build or model change. Memory is asked anew each time.
//! [`load_engine`] likewise keeps which layouts of weights are faster.

mod arguments;
mod cache;
mod corrections;
mod disk;
mod facts;
mod gpus;
mod hardware;
mod layouts;
mod quota;
mod report;
mod tables;

use std::path::PathBuf;

use motley_cluster::{DeviceProfile, FieldError, UnitError};
use motley_engine::MeasureError;
use motley_ggml::ThreadPool;

use crate::failure::Failure;
use crate::identity::host_name;
use crate::{loading, store};

pub(crate) use arguments::{Arguments, execute};
pub(crate) use corrections::{keep_corrections, kept_corrections};
pub(crate) use hardware::{device, kept_device};
pub(crate) use layouts::load_engine;
pub(crate) use tables::{all_tables, kept_tables, model_tables, variants};
#[cfg(test)]
pub(crate) use tables::{narrow_model, plain_model};

/// How and where to measure.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Name of the device in plans.
    pub(crate) name: String,
    /// Where results are kept, and made-up weights while they are needed.
    pub(crate) cache: PathBuf,
    /// The folder of models, whose disk is measured.
    pub(crate) store: PathBuf,
    /// Compute threads.
    pub(crate) threads: usize,
    /// Memory that may be used of each GPU; nothing for what is free.
    pub(crate) gpu_memory_bytes: Option<u64>,
    /// How long to measure.
    pub(crate) effort: Effort,
    /// Measure anew, whatever is kept.
    pub(crate) refresh: bool,
}

impl Options {
    /// For this device as it is, with results in the user's cache folder.
    ///
    /// # Errors
    /// When there are no such threads.
    pub(crate) fn new(
        models: Option<PathBuf>,
        threads: Option<usize>,
        effort: Effort,
    ) -> Result<Self, Failure> {
        let threads = threads.unwrap_or_else(loading::threads_default);
        loading::in_range("--threads", threads, ThreadPool::THREADS_MAX)?;
        let cache = cache_folder();
        let store = store::folder(models).unwrap_or_else(|| cache.clone());
        Ok(Self {
            name: host_name(),
            cache,
            store,
            threads,
            gpu_memory_bytes: None,
            effort,
            refresh: false,
        })
    }
}

/// The user's folder for what can be made again, or the system's for what is soon forgotten.
fn cache_folder() -> PathBuf {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        .or_else(|| absolute("LOCALAPPDATA"))
        .unwrap_or_else(std::env::temp_dir)
        .join("motley")
        .join("profile")
}

/// How long to measure.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Effort {
    /// About 5 seconds with a model.
    Quick,
    /// The same for the device, but longer for the model, as a device does that joins: a plan is no
    /// better than the times it is made from, and a moment in which others compute is soon over.
    Joining,
    /// About 30 seconds with a model.
    Full,
}

impl Effort {
    fn is_full(self) -> bool {
        self == Self::Full
    }
}

/// How far a measurement is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress<'a> {
    /// What is measured.
    pub(crate) what: &'a str,
    /// How much of it is done, from 0 to 1.
    pub(crate) part: f64,
}

/// A device as it was measured.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// What plans take.
    pub(crate) device: DeviceProfile,
    /// What could not be measured as it should, and what stands in for it.
    pub(crate) notes: Vec<String>,
    /// Whether it was kept from an earlier measurement, memory apart.
    pub(crate) kept: bool,
}

/// Why a device could not be measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProfileError {
    /// The processor or the model.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// A figure that no device has.
    #[error("a measured figure is impossible")]
    Figure(#[from] FieldError),
    /// A rate that cannot be.
    #[error("a measured rate is impossible")]
    Rate(#[from] UnitError),
    /// The system does not tell its memory.
    #[error("the system does not tell how much memory there is")]
    Memory,
}
