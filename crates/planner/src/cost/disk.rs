//! What layers cost that do not fit in memory: three models (PLANNER 3.9).

use motley_cluster::{Bytes, BytesPerSecond, Seconds};
use serde::{Deserialize, Serialize};

/// How weights beyond memory are paid for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskModel {
    /// Plain mmap: free while it fits, read anew as a whole once it does not.
    CyclicLru,
    /// Halda's rule: only the excess is read, not overlapped.
    Excess,
    /// Pinned layers and streaming that overlaps other devices' work, a window at a time
    /// ([`super::ring_time`]): prima.cpp's way, as published.
    RingOverlap,
    /// Pinned layers and a stream that never pauses while its buffer has room, also while its own
    /// device computes: the engine's way ([`super::Stream`]).
    Streaming,
}

/// Disk time of one pass over `used` bytes with room for `capacity`, under a least-recently-used
/// cache and cyclic access: nothing or everything.
#[must_use]
pub fn cyclic_lru_time(used: Bytes, capacity: Bytes, disk: BytesPerSecond) -> Seconds {
    if used <= capacity { Seconds::ZERO } else { used / disk }
}

/// Disk time of one pass if only what exceeds `capacity` is read.
#[must_use]
pub fn excess_time(used: Bytes, capacity: Bytes, disk: BytesPerSecond) -> Seconds {
    used.saturating_sub(capacity) / disk
}

/// Layers read when a window is prefetched in order and then computed in order, with room for
/// `capacity` layers and none of them present: a window that does not fit is read twice.
#[must_use]
pub const fn lru_loads(window: u32, capacity: u32) -> u32 {
    if window <= capacity { window } else { 2 * window }
}

/// Token time of one device that prefetches windows of `window` of its `layers` under such a cache.
/// A single window is not prefetched ahead of itself: it is read once and not overlapped. Reading a
/// window that fits overlaps computing another.
#[must_use]
pub fn windowed_lru_time(
    layers: u32,
    window: u32,
    capacity: u32,
    layer_times: (Seconds, Seconds),
) -> Seconds {
    let (compute, disk) = layer_times;
    let computing = compute.times(f64::from(layers));
    if layers <= capacity {
        return computing;
    }
    let reading = disk.times(f64::from(layers));
    if window <= capacity { computing.max(reading) } else { computing + reading }
}
