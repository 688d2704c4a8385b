//! What depends on the hardware alone.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use motley_cluster::{
    BytesPerSecond, Combination, DeviceProfile, DeviceSpec, DiskSpec, FlopsPerSecond, Os,
    ProcessorSpec, Seconds, WeightType,
};
use motley_engine::ProcessorMeter;
use motley_ggml::ThreadPoolOptions;
use motley_model::TensorType;
use serde::{Deserialize, Serialize};

use super::facts::Facts;
use super::gpus::GpuRates;
use super::{Measured, Options, ProfileError, Progress, cache, disk, gpus};
use crate::{loading, memory};

/// Weight types measured by a quick look: those of most files, and of caches.
pub(super) const QUICK_TYPES: [TensorType; 5] =
    [TensorType::F16, TensorType::Q8_0, TensorType::Q4_0, TensorType::Q4_K, TensorType::Q6_K];

/// The type whose products tell how much of the memory's rate is reached: that of most weights.
pub(super) const TYPICAL_TYPE: TensorType = TensorType::Q4_K;

/// Elements of the rows of keys and values whose appending is timed.
pub(super) const CACHE_ROW_ELEMENTS: usize = 1024;

/// What is kept between runs: everything but memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Rates {
    cpu: ProcessorSpec,
    disk: DiskSpec,
    step_overhead_s: Seconds,
    #[serde(default)]
    gpus: Vec<GpuRates>,
    notes: Vec<String>,
}

/// What this device can do, without any model.
///
/// # Errors
/// When the processor cannot be measured, or the system tells no memory.
pub(crate) fn device(
    options: &Options,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Measured, ProfileError> {
    let facts = Facts::gather(options.threads, &options.store);
    let path = path(options);
    let kept = (!options.refresh).then(|| cache::load(&path, &facts, options.effort)).flatten();
    let is_kept = kept.is_some();
    let rates: Rates = match kept {
        Some(rates) => rates,
        None => {
            let rates = measure(options, progress)?;
            // A folder that cannot be written means only that the next run measures again.
            let _ = cache::store(&path, &facts, options.effort, &rates);
            rates
        }
    };
    let notes = rates.notes.clone();
    Ok(Measured { device: as_it_is(options, facts, rates)?, notes, kept: is_kept })
}

/// What this device was measured to do the last time; nothing if it was not, or has changed since.
pub(crate) fn kept_device(options: &Options) -> Option<DeviceProfile> {
    let facts = Facts::gather(options.threads, &options.store);
    let rates = cache::load(&path(options), &facts, options.effort)?;
    as_it_is(options, facts, rates).ok()
}

/// The device with these rates and the memory that it has now.
fn as_it_is(options: &Options, facts: Facts, rates: Rates) -> Result<DeviceProfile, ProfileError> {
    let spec = DeviceSpec {
        name: plain_name(&options.name),
        hardware: Some(plain_name(&format!("{}, {} cores", facts.processor, facts.cores))),
        os: os(),
        unified_memory: false,
        cores: facts.cores,
        threads: facts.threads,
        cpu_quota: facts.processor_time.and_then(|time| time.for_threads(facts.threads)),
        step_overhead_s: rates.step_overhead_s,
        memory: memory::spec().ok_or(ProfileError::Memory)?,
        disk: rates.disk,
        cpu: rates.cpu,
        gpus: gpus::specs(&rates.gpus, options.gpu_memory_bytes),
        power: None,
    };
    Ok(DeviceProfile::new(spec)?)
}

fn path(options: &Options) -> PathBuf {
    options.cache.join("device.json")
}

/// The compute threads as an engine has them.
pub(super) fn threads(options: &Options) -> ThreadPoolOptions {
    ThreadPoolOptions {
        threads: options.threads,
        poll_percent: loading::POLL_PERCENT,
        pinned: false,
    }
}

fn measure(
    options: &Options,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Rates, ProfileError> {
    let quick = !options.effort.is_full();
    let ms = |full: u64, short: u64| Duration::from_millis(if quick { short } else { full });
    // A device with little memory would be killed for measuring it.
    let spare = memory::spec().map_or(u64::MAX, |spec| spec.ram_available_bytes.count() / 4);
    let spare = usize::try_from(spare).unwrap_or(usize::MAX).max(16 << 20);
    let megabytes =
        |full: usize, short: usize| ((if quick { short } else { full }) << 20).min(spare);
    let mut tell = |what: &str, part: f64| progress(Progress { what, part });
    tell("memory", 0.0);
    let mut meter = ProcessorMeter::new(threads(options));
    let read = meter.read_rate(megabytes(512, 256), ms(700, 200));
    let types: Vec<TensorType> = if quick {
        QUICK_TYPES.to_vec()
    } else {
        TensorType::ALL.iter().copied().filter(|of| weight_type(*of).is_some()).collect()
    };
    let mut flops_per_s = BTreeMap::new();
    for (index, tensor_type) in types.iter().enumerate() {
        tell("processor", index as f64 / types.len() as f64);
        if let Some(weight) = weight_type(*tensor_type) {
            flops_per_s.insert(weight, flops(meter.product_rate(*tensor_type, ms(200, 100))?));
        }
    }
    let typical = meter.weight_rate(TYPICAL_TYPE, megabytes(256, 128), ms(400, 150))?;
    let kv_copy = meter.row_copy(CACHE_ROW_ELEMENTS, ms(50, 20))?;
    let overhead = meter.pass_overhead(ms(100, 40))?;
    drop(meter);
    tell("disk", 0.0);
    let mut disk = disk::measure(&options.store, ms(2000, 600));
    tell("disk", 1.0);
    let gpus = gpus::measure(quick, &mut disk.notes, progress);
    Ok(Rates {
        cpu: ProcessorSpec {
            flops_per_s,
            read_bytes_per_s: rate(read),
            // Some kernels keep more bytes in flight than a plain sum does.
            read_efficiency: (typical / read).clamp(0.001, 1.0),
            expert_read_efficiency: None,
            expert_gamma: 1.0,
            combination: Combination::Roofline,
            kv_copy_s: seconds(kv_copy),
            layer_overhead_s: Seconds::ZERO,
            token_overhead_s: Seconds::ZERO,
            layer_tables: Vec::new(),
            head_tables: Vec::new(),
        },
        disk: DiskSpec {
            sequential_bytes_per_s: rate(disk.sequential_bytes_per_s),
            random_bytes_per_s: rate(disk.random_bytes_per_s.min(disk.sequential_bytes_per_s)),
        },
        step_overhead_s: seconds(overhead),
        gpus,
        notes: disk.notes,
    })
}

/// The planner's name of a tensor type, if plans know it.
pub(super) fn weight_type(tensor_type: TensorType) -> Option<WeightType> {
    let name = tensor_type.name();
    WeightType::ALL.iter().copied().find(|known| known.label().eq_ignore_ascii_case(name))
}

fn os() -> Os {
    if cfg!(target_os = "macos") {
        Os::Macos
    } else if cfg!(target_os = "android") {
        Os::Android
    } else if cfg!(target_os = "windows") {
        Os::Windows
    } else {
        Os::Linux
    }
}

/// Text as a name in documents: characters that they do not take become `-`.
pub(super) fn plain_name(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || " ._-+():".contains(c);
    let name: String = text.chars().map(|c| if plain(c) { c } else { '-' }).take(128).collect();
    if name.trim().is_empty() { "device".to_owned() } else { name }
}

fn rate(bytes_per_s: f64) -> BytesPerSecond {
    BytesPerSecond::new(bytes_per_s).expect("bytes in a measured time are a rate")
}

fn flops(per_s: f64) -> FlopsPerSecond {
    FlopsPerSecond::new(per_s).expect("operations in a measured time are a rate")
}

fn seconds(time: Duration) -> Seconds {
    Seconds::new(time.as_secs_f64()).expect("a duration is not negative")
}
