//! What tells one machine and build from another: results measured on other ones are worthless.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::quota::ProcessorTime;
use crate::{loading, memory, version};

/// Everything that rates depend on, as far as the system tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Facts {
    /// This program.
    pub(super) build: String,
    /// The kernels.
    pub(super) engine_build: String,
    /// Target and vector instructions that the kernels were compiled for.
    pub(super) target: String,
    pub(super) processor: String,
    pub(super) cores: u32,
    pub(super) threads: u32,
    pub(super) ram_total_bytes: u64,
    /// GPUs that this build sees.
    #[serde(default)]
    pub(super) gpus: Vec<String>,
    /// The volume of the folder of models.
    pub(super) store_volume: String,
    /// What may be used of the processors, where that is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) processor_time: Option<ProcessorTime>,
}

impl Facts {
    pub(super) fn gather(threads: usize, store: &Path) -> Self {
        let cores = loading::core_count().unwrap_or(threads);
        Self {
            build: env!("CARGO_PKG_VERSION").to_owned(),
            engine_build: format!("llama-cpp-sys-2 {}", version::LLAMA_CPP_SYS_VERSION),
            target: format!("{} {}", version::target(), version::processor_features().join(" ")),
            processor: processor_name(),
            cores: u32::try_from(cores).unwrap_or(u32::MAX),
            threads: u32::try_from(threads).unwrap_or(u32::MAX),
            ram_total_bytes: memory::spec().map_or(0, |spec| spec.ram_total_bytes.count()),
            gpus: super::gpus::names(),
            store_volume: volume(store),
            processor_time: ProcessorTime::of_this_process(),
        }
    }
}

/// The processor's name, or its architecture where the system has none.
fn processor_name() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    processor_of(&text).unwrap_or(std::env::consts::ARCH).to_owned()
}

/// The name in a text like `/proc/cpuinfo`; x86 and some ARM systems have one.
fn processor_of(cpuinfo: &str) -> Option<&str> {
    ["model name", "Hardware", "cpu model"].iter().find_map(|key| {
        let line = cpuinfo.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim()).filter(|name| !name.is_empty())
    })
}

/// What tells the volume of a folder from others: its device number.
#[cfg(unix)]
fn volume(folder: &Path) -> String {
    use std::os::unix::fs::MetadataExt as _;
    super::disk::existing(folder).metadata().map_or_else(|_| String::new(), |m| m.dev().to_string())
}

/// Without device numbers, the folder stands for its volume.
#[cfg(not(unix))]
fn volume(folder: &Path) -> String {
    folder.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_named_as_the_system_names_them() {
        let intel = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R)\n";
        assert_eq!(processor_of(intel), Some("Intel(R) Xeon(R)"));
        let phone = "processor\t: 0\nBogoMIPS\t: 38.40\n\nHardware\t: Qualcomm SM8550\n";
        assert_eq!(processor_of(phone), Some("Qualcomm SM8550"));
        assert_eq!(processor_of("processor\t: 0\nFeatures\t: fp asimd\n"), None);
    }
}
