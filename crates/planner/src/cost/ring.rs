//! Token time of a ring whose devices stream layers while others compute (PLANNER 3.7).

use motley_cluster::{Bytes, BytesPerSecond, Seconds};

/// What ring time needs to know of a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RingDevice {
    /// Time of one CPU layer (α).
    pub cpu_layer: Seconds,
    /// Time of one GPU layer (α^g); unused without GPU layers.
    pub gpu_layer: Seconds,
    /// Cost of taking part in one round: hop and copies (ξ).
    pub round_cost: Seconds,
    /// CPU layers that RAM holds next to everything else (cap).
    pub resident_layers: u32,
    /// Bytes of one layer (b).
    pub layer_bytes: Bytes,
    /// Rate of streaming (s).
    pub disk: BytesPerSecond,
}

/// Layers of one device in each round; rounds may differ, such as a short last one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingLoad {
    /// Per round: layers on the CPU and on the GPU.
    pub rounds: Vec<(u32, u32)>,
}

impl RingLoad {
    /// The same window in every round: `window` layers, `gpu` of them on the GPU.
    ///
    /// # Panics
    /// More GPU layers than layers, which is a bug of the caller.
    #[must_use]
    pub fn uniform(rounds: u32, window: u32, gpu: u32) -> Self {
        assert!(gpu <= window, "{gpu} GPU layers in a window of {window}");
        Self { rounds: vec![(window - gpu, gpu); rounds as usize] }
    }

    fn cpu_total(&self) -> u32 {
        self.rounds.iter().map(|(cpu, _)| cpu).sum()
    }

    fn cpu_largest(&self) -> u32 {
        self.rounds.iter().map(|(cpu, _)| *cpu).max().unwrap_or(0)
    }
}

/// Time of one token around a ring.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RingTime {
    /// Time per token.
    pub token: Seconds,
    /// Part of it in which every device computes or sends.
    pub busy: Seconds,
    /// Part of it spent waiting for disks.
    pub stalled: Seconds,
}

/// Time of one token with `in_flight` tokens circulating (1: a single sequence).
///
/// A device streams during everybody's busy time, so it only stalls by what is left: the token takes
/// the larger of all busy times and the slowest device's busy plus streaming time. A window larger
/// than the pinned room loads every layer twice and overlaps nothing (prefetch-release). For equal
/// rounds this is k·max(ΣB, max(B+F)) of PLANNER 3.7; for unequal rounds it is taken over the token.
/// With several tokens in flight the sum of busy times becomes the largest one.
///
/// # Panics
/// The lists differ in length, which is a bug of the caller.
#[must_use]
pub fn ring_time(devices: &[RingDevice], loads: &[RingLoad], in_flight: u32) -> RingTime {
    assert_eq!(devices.len(), loads.len(), "one load per device");
    let busy: Vec<f64> = devices.iter().zip(loads).map(|(d, l)| busy_time(d, l)).collect();
    let shared =
        if in_flight > 1 { busy.iter().copied().fold(0.0, f64::max) } else { busy.iter().sum() };
    let mut streamed: f64 = 0.0;
    let mut released = 0.0;
    for ((device, load), own) in devices.iter().zip(loads).zip(&busy) {
        match stream_time(device, load) {
            Streaming::Overlapped(time) => streamed = streamed.max(own + time),
            Streaming::Released(time) => released += time,
        }
    }
    let token = shared.max(streamed) + released;
    RingTime { token: seconds(token), busy: seconds(shared), stalled: seconds(token - shared) }
}

enum Streaming {
    Overlapped(f64),
    Released(f64),
}

fn busy_time(device: &RingDevice, load: &RingLoad) -> f64 {
    let round = |(cpu, gpu): &(u32, u32)| {
        if cpu + gpu == 0 {
            return 0.0;
        }
        device.cpu_layer.value() * f64::from(*cpu)
            + device.gpu_layer.value() * f64::from(*gpu)
            + device.round_cost.value()
    };
    load.rounds.iter().map(round).sum()
}

/// Streaming time of one token.
fn stream_time(device: &RingDevice, load: &RingLoad) -> Streaming {
    let (total, largest) = (load.cpu_total(), load.cpu_largest());
    let capacity = device.resident_layers;
    let layer = (device.layer_bytes / device.disk).value();
    if total <= capacity {
        return Streaming::Overlapped(0.0);
    }
    if largest <= capacity {
        // One window's room is the buffer; the rest of the room is pinned.
        return Streaming::Overlapped(f64::from(total + largest - capacity) * layer);
    }
    Streaming::Released(2.0 * f64::from(total) * layer)
}

fn seconds(value: f64) -> Seconds {
    Seconds::new(value).expect("sums and maxima of times are times")
}
