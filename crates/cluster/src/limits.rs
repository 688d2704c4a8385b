//! What a profile may claim before it is called absurd; each bound is far outside today's machines.

pub(crate) const MEMORY_BYTES_MAX: u64 = 64 << 40;
pub(crate) const BANDWIDTH_MIN: f64 = 1e3;
pub(crate) const BANDWIDTH_MAX: f64 = 1e14;
pub(crate) const COMPUTE_MIN: f64 = 1e6;
pub(crate) const COMPUTE_MAX: f64 = 1e18;
/// One layer, one hop or one table entry never takes longer than this.
pub(crate) const STEP_SECONDS_MAX: f64 = 3600.0;
/// Linux takes no shorter period of a quota than a millisecond.
pub(crate) const QUOTA_PERIOD_SECONDS_MIN: f64 = 1e-4;
pub(crate) const RTT_SECONDS_MAX: f64 = 60.0;
pub(crate) const POWER_WATTS_MAX: f64 = 100_000.0;
pub(crate) const DEVICES_MAX: usize = 4096;
pub(crate) const GPUS_MAX: usize = 64;
pub(crate) const LAYERS_MAX: usize = 1024;
pub(crate) const WIDTH_MAX: u32 = 1 << 22;
pub(crate) const EXPERTS_MAX: u32 = 4096;
pub(crate) const CONTEXT_TOKENS_MAX: u32 = 1 << 24;
pub(crate) const BATCH_TOKENS_MAX: u32 = 1 << 20;
pub(crate) const REQUESTS_MAX: u32 = 10_000_000;
pub(crate) const SLOTS_MAX: u32 = 65_536;
pub(crate) const NAME_BYTES_MAX: usize = 128;

const _: () = assert!(DEVICES_MAX <= u16::MAX as usize, "a device id is sixteen bits");
