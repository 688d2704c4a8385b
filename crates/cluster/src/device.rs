//! What one machine can do: memory, disk, processors, measured tables, power (PLANNER 1.1).

use std::collections::BTreeMap;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

use crate::document::Document;
use crate::field::{FieldError, FieldProblem, check_at_most, check_name, check_range};
use crate::limits::{
    BANDWIDTH_MAX, BANDWIDTH_MIN, BATCH_TOKENS_MAX, COMPUTE_MAX, COMPUTE_MIN, CONTEXT_TOKENS_MAX,
    GPUS_MAX, MEMORY_BYTES_MAX, POWER_WATTS_MAX, QUOTA_PERIOD_SECONDS_MIN, STEP_SECONDS_MAX,
};
use crate::quant::WeightType;
use crate::units::{Bytes, BytesPerSecond, FlopsPerSecond, Seconds, Watts};

/// Operating system; it decides how memory pressure turns into disk reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Os {
    /// Linux.
    Linux,
    /// macOS.
    Macos,
    /// Android.
    Android,
    /// Windows.
    Windows,
}

/// How a GPU is driven; it decides the process reserve and the reload behaviour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GpuKind {
    /// NVIDIA CUDA.
    Cuda,
    /// Apple Metal.
    Metal,
    /// Anything else, such as Vulkan.
    Other,
}

/// Prompt evaluation or token generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Many tokens of one sequence in one pass.
    Prefill,
    /// One token each of several sequences in one pass.
    Decode,
}

/// Class of attention a layer has; measured tables distinguish it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttentionClass {
    /// Attends to the whole context.
    Full,
    /// Attends to a window.
    Sliding,
}

/// How compute and memory time of a layer combine; one convention per processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Combination {
    /// The rates are peaks that overlap: the larger time counts.
    Roofline,
    /// Compute and memory follow each other: the times add (Halda's equations).
    Sum,
    /// The FLOP rates were measured with weights coming from memory: memory time is already inside.
    FlopsIncludeMemory,
}

/// A device's memory, in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemorySpec {
    /// All of it.
    pub ram_total_bytes: Bytes,
    /// Usable without swapping; discounts are already applied.
    pub ram_available_bytes: Bytes,
    /// Free swap space.
    #[serde(default)]
    pub swap_available_bytes: Bytes,
    /// Memory of other processes that the system may swap out.
    #[serde(default)]
    pub swappable_bytes: Bytes,
}

/// A device's disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskSpec {
    /// Sequential read rate.
    pub sequential_bytes_per_s: BytesPerSecond,
    /// Random read rate at page size.
    pub random_bytes_per_s: BytesPerSecond,
}

/// One measured time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredPoint {
    /// Tokens in the pass: micro-batch tokens in prefill, sequences in decode.
    pub batch_tokens: u32,
    /// Context tokens each sequence already had.
    #[serde(default)]
    pub depth_tokens: u32,
    /// Time of one layer, or of the head.
    pub time_ms: f64,
}

/// Measured time of one layer of a model (`layer_ms[phase][batch]`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerTable {
    /// Name of the model it was measured on; the table speaks for no other.
    pub model: String,
    /// Kind of layer.
    pub attention: AttentionClass,
    /// Phase.
    pub phase: Phase,
    /// Points in rising `batch_tokens`, and of the same batch in rising `depth_tokens`. The first
    /// of each batch is taken for look-up by batch, the others tell what more context costs.
    pub points: Vec<MeasuredPoint>,
}

/// Measured time of the output head of a model (`head_ms[phase][batch]`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeadTable {
    /// Name of the model it was measured on.
    pub model: String,
    /// Phase.
    pub phase: Phase,
    /// Points in strictly rising `batch_tokens` (rows of logits).
    pub points: Vec<MeasuredPoint>,
}

/// What a CPU or a GPU does with a layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessorSpec {
    /// Sustained rate by weight type times f32; at least one entry.
    pub flops_per_s: BTreeMap<WeightType, FlopsPerSecond>,
    /// Memory read rate.
    pub read_bytes_per_s: BytesPerSecond,
    /// Fraction of that rate reached on dense weights, above 0 and at most 1.
    #[serde(default = "one")]
    pub read_efficiency: f64,
    /// Fraction reached on expert layers, where it is lower; else the dense one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expert_read_efficiency: Option<f64>,
    /// Exponent of batch in the count of distinct experts: 1 routes independently, less correlates.
    #[serde(default = "one")]
    pub expert_gamma: f64,
    /// How compute and memory time combine.
    pub combination: Combination,
    /// Appending one K and one V row of one layer.
    #[serde(default)]
    pub kv_copy_s: Seconds,
    /// Fixed time of one layer in one pass (launches).
    #[serde(default)]
    pub layer_overhead_s: Seconds,
    /// Extra time of one layer per token in the pass, beyond compute and memory.
    #[serde(default)]
    pub token_overhead_s: Seconds,
    /// Measured layer times, preferred over the analytic form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layer_tables: Vec<LayerTable>,
    /// Measured head times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub head_tables: Vec<HeadTable>,
}

impl ProcessorSpec {
    /// The rate for a weight type; a type without an entry gets the slowest one, never a guess above it.
    ///
    /// # Panics
    /// The table is empty, which a checked [`DeviceProfile`] excludes.
    #[must_use]
    pub fn rate(&self, weight: WeightType) -> FlopsPerSecond {
        self.flops_per_s
            .get(&weight)
            .or_else(|| self.flops_per_s.values().min())
            .copied()
            .expect("a checked profile has at least one rate")
    }

    fn check(&self) -> Result<(), FieldError> {
        if self.flops_per_s.is_empty() {
            return Err(FieldError::new("flops_per_s", FieldProblem::Empty));
        }
        for (weight, rate) in &self.flops_per_s {
            check_range(
                &format!("flops_per_s.{weight}"),
                rate.value(),
                (COMPUTE_MIN, COMPUTE_MAX),
            )?;
        }
        let bandwidth = (BANDWIDTH_MIN, BANDWIDTH_MAX);
        check_range("read_bytes_per_s", self.read_bytes_per_s.value(), bandwidth)?;
        check_range("read_efficiency", self.read_efficiency, (1e-3, 1.0))?;
        if let Some(efficiency) = self.expert_read_efficiency {
            check_range("expert_read_efficiency", efficiency, (1e-3, 1.0))?;
        }
        check_range("expert_gamma", self.expert_gamma, (0.1, 1.0))?;
        let step = (0.0, STEP_SECONDS_MAX);
        check_range("kv_copy_s", self.kv_copy_s.value(), step)?;
        check_range("layer_overhead_s", self.layer_overhead_s.value(), step)?;
        check_range("token_overhead_s", self.token_overhead_s.value(), step)?;
        for (index, table) in self.layer_tables.iter().enumerate() {
            check_points(&format!("layer_tables[{index}].points"), &table.points, true)?;
        }
        for (index, table) in self.head_tables.iter().enumerate() {
            check_points(&format!("head_tables[{index}].points"), &table.points, false)?;
        }
        Ok(())
    }
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuSpec {
    /// How it is driven.
    pub kind: GpuKind,
    /// Device memory; for unified memory the part the GPU may address.
    pub total_bytes: Bytes,
    /// What weights, KV and the head may take: free memory after user limit, process reserve and
    /// compute buffers (about 2 GB below the total on a discrete card, PLANNER 8.2).
    pub usable_bytes: Bytes,
    /// Host to device copy rate; irrelevant for unified memory.
    pub copy_bytes_per_s: BytesPerSecond,
    /// What it computes.
    pub processor: ProcessorSpec,
}

/// How much of each period the system lets a device's compute threads run, all of them at once, where
/// it limits them (Linux's quota of processor time over the number of threads that use it up).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuQuota {
    /// Time of a period in which they run.
    pub run_s: Seconds,
    /// Length of a period.
    pub period_s: Seconds,
}

impl CpuQuota {
    /// Part of the time in which the threads run that never rest.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.run_s.value() / self.period_s.value()
    }
}

/// Power draw. GPU figures are on top of the rest of the machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerSpec {
    /// Doing nothing.
    pub idle_w: Watts,
    /// With the CPU computing.
    pub cpu_busy_w: Watts,
    /// With a GPU computing.
    pub gpu_busy_w: Watts,
}

/// A device as a file states it; [`DeviceProfile`] is the checked form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceSpec {
    /// Unique in its cluster.
    pub name: String,
    /// What machine it is, so that equal ones can be merged in searches; else its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<String>,
    /// Operating system.
    pub os: Os,
    /// CPU and GPU share one memory.
    pub unified_memory: bool,
    /// Physical cores.
    pub cores: u32,
    /// Worker threads used for computing.
    pub threads: u32,
    /// What the system lets them use of the processors, where that is less than all the time. Times
    /// and rates of the profile are those of threads that never rest, and so contain it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_quota: Option<CpuQuota>,
    /// Fixed time of one pass over the device's window (sync, wake-up).
    #[serde(default)]
    pub step_overhead_s: Seconds,
    /// Memory.
    pub memory: MemorySpec,
    /// Disk.
    pub disk: DiskSpec,
    /// CPU.
    pub cpu: ProcessorSpec,
    /// GPUs; the planner uses the first, the others are listed for the runtime.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuSpec>,
    /// Power, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<PowerSpec>,
}

/// A device whose figures are possible and do not contradict each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "DeviceSpec", into = "DeviceSpec")]
pub struct DeviceProfile(DeviceSpec);

impl DeviceProfile {
    /// Checks a specification.
    ///
    /// # Errors
    /// Names the first field that is out of range or contradicts another.
    pub fn new(spec: DeviceSpec) -> Result<Self, FieldError> {
        check_name("name", &spec.name)?;
        if let Some(hardware) = &spec.hardware {
            check_name("hardware", hardware)?;
        }
        check_range("cores", f64::from(spec.cores), (1.0, 4096.0))?;
        check_range("threads", f64::from(spec.threads), (1.0, 8192.0))?;
        check_range("step_overhead_s", spec.step_overhead_s.value(), (0.0, STEP_SECONDS_MAX))?;
        if let Some(quota) = &spec.cpu_quota {
            check_quota(quota).map_err(|e| e.within("cpu_quota"))?;
        }
        check_memory(&spec.memory).map_err(|e| e.within("memory"))?;
        check_disk(&spec.disk).map_err(|e| e.within("disk"))?;
        spec.cpu.check().map_err(|e| e.within("cpu"))?;
        check_range("gpus", spec.gpus.len() as f64, (0.0, GPUS_MAX as f64))?;
        for (index, gpu) in spec.gpus.iter().enumerate() {
            check_gpu(gpu, &spec).map_err(|e| e.within(&format!("gpus[{index}]")))?;
        }
        if let Some(power) = &spec.power {
            check_power(power).map_err(|e| e.within("power"))?;
        }
        Ok(Self(spec))
    }

    /// A copy to change and check again.
    #[must_use]
    pub fn to_spec(&self) -> DeviceSpec {
        self.0.clone()
    }

    /// The GPU that layers are planned on.
    #[must_use]
    pub fn gpu(&self) -> Option<&GpuSpec> {
        self.0.gpus.first()
    }

    /// macOS with Metal: memory pressure reloads everything (PLANNER 3.2, set M2).
    #[must_use]
    pub fn is_metal(&self) -> bool {
        self.0.os == Os::Macos && self.gpu().is_some_and(|gpu| gpu.kind == GpuKind::Metal)
    }

    /// The rate that re-reading weights reaches: sequential on Linux, random elsewhere (PLANNER 3.2).
    #[must_use]
    pub fn reload_rate(&self) -> BytesPerSecond {
        match self.0.os {
            Os::Linux => self.0.disk.sequential_bytes_per_s,
            Os::Macos | Os::Android | Os::Windows => self.0.disk.random_bytes_per_s,
        }
    }

    /// Name shared by identical machines, so that searches solve one of them only.
    #[must_use]
    pub fn hardware_name(&self) -> &str {
        self.0.hardware.as_deref().unwrap_or(&self.0.name)
    }

    /// Whether two devices differ in nothing but their name.
    #[must_use]
    pub fn is_twin_of(&self, other: &Self) -> bool {
        let named = |spec: &DeviceSpec| DeviceSpec { name: String::new(), ..spec.clone() };
        self.hardware_name() == other.hardware_name() && named(&self.0) == named(&other.0)
    }
}

impl Document for DeviceProfile {
    const KIND: &'static str = "device profile";
}

impl Deref for DeviceProfile {
    type Target = DeviceSpec;
    fn deref(&self) -> &DeviceSpec {
        &self.0
    }
}

impl TryFrom<DeviceSpec> for DeviceProfile {
    type Error = FieldError;
    fn try_from(spec: DeviceSpec) -> Result<Self, FieldError> {
        Self::new(spec)
    }
}

impl From<DeviceProfile> for DeviceSpec {
    fn from(profile: DeviceProfile) -> Self {
        profile.0
    }
}

fn one() -> f64 {
    1.0
}

fn check_quota(quota: &CpuQuota) -> Result<(), FieldError> {
    let period = quota.period_s.value();
    check_range("period_s", period, (QUOTA_PERIOD_SECONDS_MIN, STEP_SECONDS_MAX))?;
    check_range("run_s", quota.run_s.value(), (period * 1e-4, period))
}

fn check_memory(memory: &MemorySpec) -> Result<(), FieldError> {
    let total = memory.ram_total_bytes.as_f64();
    check_range("ram_total_bytes", total, (1.0, MEMORY_BYTES_MAX as f64))?;
    let available = memory.ram_available_bytes.as_f64();
    check_at_most("ram_available_bytes", available, "ram_total_bytes", total)?;
    check_at_most("swappable_bytes", memory.swappable_bytes.as_f64(), "ram_total_bytes", total)?;
    let swap = memory.swap_available_bytes.as_f64();
    check_range("swap_available_bytes", swap, (0.0, MEMORY_BYTES_MAX as f64))
}

fn check_disk(disk: &DiskSpec) -> Result<(), FieldError> {
    let range = (BANDWIDTH_MIN, BANDWIDTH_MAX);
    let sequential = disk.sequential_bytes_per_s.value();
    check_range("sequential_bytes_per_s", sequential, range)?;
    check_range("random_bytes_per_s", disk.random_bytes_per_s.value(), range)?;
    let random = disk.random_bytes_per_s.value();
    check_at_most("random_bytes_per_s", random, "sequential_bytes_per_s", sequential)
}

fn check_gpu(gpu: &GpuSpec, device: &DeviceSpec) -> Result<(), FieldError> {
    let total = gpu.total_bytes.as_f64();
    check_range("total_bytes", total, (1.0, MEMORY_BYTES_MAX as f64))?;
    check_at_most("usable_bytes", gpu.usable_bytes.as_f64(), "total_bytes", total)?;
    if device.unified_memory {
        let ram = device.memory.ram_total_bytes.as_f64();
        check_at_most("total_bytes", total, "memory.ram_total_bytes", ram)?;
    }
    if gpu.kind == GpuKind::Metal && device.os != Os::Macos {
        return Err(FieldError::new("kind", FieldProblem::Needs("os = macos for metal")));
    }
    let copy = gpu.copy_bytes_per_s.value();
    check_range("copy_bytes_per_s", copy, (BANDWIDTH_MIN, BANDWIDTH_MAX))?;
    gpu.processor.check().map_err(|e| e.within("processor"))
}

fn check_power(power: &PowerSpec) -> Result<(), FieldError> {
    let range = (0.0, POWER_WATTS_MAX);
    check_range("cpu_busy_w", power.cpu_busy_w.value(), range)?;
    check_range("gpu_busy_w", power.gpu_busy_w.value(), range)?;
    check_at_most("idle_w", power.idle_w.value(), "cpu_busy_w", power.cpu_busy_w.value())
}

fn check_points(
    field: &str,
    points: &[MeasuredPoint],
    several_depths: bool,
) -> Result<(), FieldError> {
    if points.is_empty() {
        return Err(FieldError::new(field, FieldProblem::Empty));
    }
    let (mut before, mut deeper_than) = (0, 0);
    for (index, point) in points.iter().enumerate() {
        let name = |part: &str| format!("{field}[{index}].{part}");
        // Rising batches, and rising depths of the same batch, keep look-up unambiguous.
        let same = several_depths && index > 0 && point.batch_tokens == before;
        let batch_min = f64::from(before) + if same { 0.0 } else { 1.0 };
        let batches = (batch_min, f64::from(BATCH_TOKENS_MAX));
        check_range(&name("batch_tokens"), f64::from(point.batch_tokens), batches)?;
        let depth_min = if same { f64::from(deeper_than) + 1.0 } else { 0.0 };
        let depth = f64::from(point.depth_tokens);
        check_range(&name("depth_tokens"), depth, (depth_min, f64::from(CONTEXT_TOKENS_MAX)))?;
        check_range(&name("time_ms"), point.time_ms, (0.0, STEP_SECONDS_MAX * 1e3))?;
        (before, deeper_than) = (point.batch_tokens, point.depth_tokens);
    }
    Ok(())
}
