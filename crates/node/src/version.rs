//! `motley version`: what this program was built from and what it can compute on.

use std::fmt::Write as _;

use motley_ggml::{DeviceKind, devices};
use motley_model::Architecture;
use serde_json::json;

use crate::failure::Failure;
use crate::terminal;

/// The bindings that carry llama.cpp and ggml; a test compares it with the lock file.
pub(crate) const LLAMA_CPP_SYS_VERSION: &str = "0.1.161";

/// Arguments of `motley version`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(arguments: &Arguments) -> Result<(), Failure> {
    let version = env!("CARGO_PKG_VERSION");
    let architectures: Vec<&str> = Architecture::ALL.iter().map(|known| known.name()).collect();
    let features = processor_features();
    if arguments.json {
        let devices: Vec<_> = devices()
            .iter()
            .map(|device| {
                json!({
                    "name": device.name(),
                    "description": device.description(),
                    "kind": kind_name(device.kind()),
                })
            })
            .collect();
        return Ok(terminal::print_json(&json!({
            "version": version,
            "llama_cpp_sys_2": LLAMA_CPP_SYS_VERSION,
            "target": target(),
            "processor_features": features,
            "architectures": architectures,
            "devices": devices,
        }))?);
    }
    let mut text = format!("motley {version}\n");
    let _ = writeln!(text, "llama.cpp      llama-cpp-sys-2 {LLAMA_CPP_SYS_VERSION}");
    let _ = writeln!(text, "built for      {} with {}", target(), features.join(" "));
    let _ = writeln!(text, "architectures  {}", architectures.join(", "));
    for device in devices() {
        let _ = writeln!(text, "device         {} ({})", device.name(), device.description());
    }
    Ok(terminal::print(&text)?)
}

pub(crate) fn target() -> String {
    format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS)
}

fn kind_name(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::Cpu => "cpu",
        DeviceKind::Gpu => "gpu",
        DeviceKind::IntegratedGpu => "integrated-gpu",
        DeviceKind::Accelerator => "accelerator",
    }
}

/// Vector instructions this program was compiled with; kernels get the same.
pub(crate) fn processor_features() -> Vec<&'static str> {
    [
        ("sse4.2", cfg!(target_feature = "sse4.2")),
        ("avx", cfg!(target_feature = "avx")),
        ("avx2", cfg!(target_feature = "avx2")),
        ("f16c", cfg!(target_feature = "f16c")),
        ("fma", cfg!(target_feature = "fma")),
        ("avx512f", cfg!(target_feature = "avx512f")),
        ("avx512bw", cfg!(target_feature = "avx512bw")),
        ("avx512vnni", cfg!(target_feature = "avx512vnni")),
        ("neon", cfg!(target_feature = "neon")),
        ("dotprod", cfg!(target_feature = "dotprod")),
        ("i8mm", cfg!(target_feature = "i8mm")),
        ("sve", cfg!(target_feature = "sve")),
    ]
    .into_iter()
    .filter_map(|(name, present)| present.then_some(name))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bindings_have_the_version_that_is_shown() {
        let lock = include_str!("../../../Cargo.lock");
        let entry = format!("name = \"llama-cpp-sys-2\"\nversion = \"{LLAMA_CPP_SYS_VERSION}\"");
        assert!(lock.contains(&entry));
    }
}
