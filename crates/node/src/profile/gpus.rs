//! What each GPU of this build can do.

use std::collections::BTreeMap;
use std::time::Duration;

use motley_cluster::{
    Bytes, BytesPerSecond, Combination, FlopsPerSecond, GpuKind, GpuSpec, ProcessorSpec, Seconds,
};
use motley_engine::{MeasureError, ProcessorMeter};
use motley_ggml::{Device, gpus};
use motley_model::TensorType;
use serde::{Deserialize, Serialize};

use super::hardware::{CACHE_ROW_ELEMENTS, QUICK_TYPES, TYPICAL_TYPE, weight_type};
use super::{ProfileError, Progress};
use crate::gpus::room_bytes;

/// Bytes of weights that tell how fast a GPU reads its memory, and those of one copy to it.
const WEIGHTS_BYTES: usize = 128 << 20;
const COPY_BYTES: usize = 16 << 20;

/// What is kept of a GPU between runs: everything but memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct GpuRates {
    name: String,
    copy_bytes_per_s: BytesPerSecond,
    processor: ProcessorSpec,
}

/// Names of the GPUs that this build sees.
pub(super) fn names() -> Vec<String> {
    gpus().iter().map(|gpu| format!("{} {}", gpu.name(), gpu.description())).collect()
}

/// Measures every GPU; those that refuse are told of in `notes`.
pub(super) fn measure(
    quick: bool,
    notes: &mut Vec<String>,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Vec<GpuRates> {
    let mut measured = Vec::new();
    for gpu in gpus() {
        progress(Progress { what: &gpu.name(), part: 0.0 });
        match measure_one(gpu, quick) {
            Ok(rates) => measured.push(rates),
            Err(error) => {
                let error = anyhow::Error::from(error);
                notes.push(format!("{} is not measured: {error:#}", gpu.name()));
            }
        }
    }
    measured
}

fn measure_one(gpu: Device, quick: bool) -> Result<GpuRates, ProfileError> {
    let ms = |full: u64, short: u64| Duration::from_millis(if quick { short } else { full });
    let mut meter = ProcessorMeter::of_gpu(gpu)?;
    let mut flops_per_s = BTreeMap::new();
    for tensor_type in QUICK_TYPES {
        let Some(weight) = weight_type(tensor_type) else { continue };
        match meter.product_rate(tensor_type, ms(150, 40)) {
            Ok(rate) => drop(flops_per_s.insert(weight, FlopsPerSecond::new(rate)?)),
            // A type that the GPU cannot multiply with.
            Err(MeasureError::Memory(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mut read = |of: TensorType| meter.weight_rate(of, WEIGHTS_BYTES, ms(200, 50));
    let (typical, plain) = (read(TYPICAL_TYPE)?, read(TensorType::F16)?);
    let fastest = typical.max(plain);
    let kv_copy = meter.row_copy(CACHE_ROW_ELEMENTS, ms(50, 20))?;
    Ok(GpuRates {
        name: gpu.name(),
        copy_bytes_per_s: BytesPerSecond::new(meter.copy_rate(COPY_BYTES, ms(200, 50))?)?,
        processor: ProcessorSpec {
            flops_per_s,
            read_bytes_per_s: BytesPerSecond::new(fastest)?,
            read_efficiency: (typical / fastest).clamp(0.001, 1.0),
            expert_read_efficiency: None,
            expert_gamma: 1.0,
            combination: Combination::Roofline,
            kv_copy_s: Seconds::new(kv_copy.as_secs_f64())?,
            layer_overhead_s: Seconds::ZERO,
            token_overhead_s: Seconds::ZERO,
            layer_tables: Vec::new(),
            head_tables: Vec::new(),
        },
    })
}

/// The GPUs with the memory that they have now, or that may be used of each.
pub(super) fn specs(rates: &[GpuRates], most_bytes: Option<u64>) -> Vec<GpuSpec> {
    let gpus = gpus();
    let found = |rates: &GpuRates| {
        let gpu = gpus.iter().find(|gpu| gpu.name() == rates.name)?;
        let (free, total) = gpu.memory_bytes();
        Some(GpuSpec {
            kind: kind(&rates.name),
            total_bytes: Bytes::new(total as u64),
            usable_bytes: Bytes::new(room_bytes(free as u64).min(most_bytes.unwrap_or(u64::MAX))),
            copy_bytes_per_s: rates.copy_bytes_per_s,
            processor: rates.processor.clone(),
        })
    };
    rates.iter().filter_map(found).collect()
}

/// How a GPU of this name of ggml's is driven.
fn kind(name: &str) -> GpuKind {
    let begins = |start: &str| name.starts_with(start);
    if begins("CUDA") || begins("ROCm") {
        GpuKind::Cuda
    } else if (begins("Metal") || begins("MTL")) && cfg!(target_os = "macos") {
        GpuKind::Metal
    } else {
        GpuKind::Other
    }
}
