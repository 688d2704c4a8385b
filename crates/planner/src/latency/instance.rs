//! Latency planning as numbers: what a device's layers, memory, disk and hops cost, in whole ticks.
//!
//! Whole numbers make sums independent of their order, so that ties are ties on every machine and a
//! permuted cluster has the same optimum.

use crate::cost::{DiskModel, Stream, StreamDemand, rested};

/// A time in ticks of the instance, scaled by [`TIE`].
pub(super) type Ticks = i64;

/// Ticks are multiples of this; what is below counts devices, so that a sum decides ties by itself.
pub(super) const TIE: Ticks = 1 << 12;

/// Larger than any sum of costs and small enough to be added to one.
pub(super) const NEVER: Ticks = i64::MAX / 4;

/// Largest sum of times, in ticks; what is below is the resolution.
const TICKS_MAX: f64 = (1_u64 << 49) as f64;

/// The finest tick: a picosecond.
const TICK_MIN_S: f64 = 1e-12;

/// Length of a tick.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Clock {
    tick_s: f64,
}

impl Clock {
    /// A clock whose ticks can count up to this time.
    pub(super) fn up_to(longest_s: f64) -> Self {
        Self { tick_s: (longest_s / TICKS_MAX).max(TICK_MIN_S) }
    }

    pub(super) fn ticks(self, seconds: f64) -> Ticks {
        let ticks = (seconds / self.tick_s).round();
        if ticks >= TICKS_MAX { NEVER } else { ticks as Ticks * TIE }
    }

    /// Ticks one byte takes at this rate, not rounded.
    pub(super) fn per_byte(self, seconds_per_byte: f64) -> f64 {
        seconds_per_byte / self.tick_s
    }

    pub(super) fn seconds(self, ticks: Ticks) -> f64 {
        (ticks / TIE) as f64 * self.tick_s
    }
}

/// A device in one part: as head or not.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Member {
    /// Time of one CPU layer (α).
    pub(super) cpu_layer: Ticks,
    /// Time of one GPU layer (α^g).
    pub(super) gpu_layer: Ticks,
    /// Layers its GPU can hold; 0 without one.
    pub(super) gpu_layers_max: u32,
    /// Copies between RAM and GPU in a round that uses both.
    pub(super) copy: Ticks,
    /// Fixed time of a round.
    pub(super) step: Ticks,
    /// Bytes of one layer (b).
    pub(super) layer_bytes: i64,
    /// Bytes of its keys and values (b' - b).
    pub(super) kv_bytes: i64,
    /// RAM for CPU layers, with shared memory for all layers; negative if even fixed parts miss.
    pub(super) room_bytes: i64,
    /// Taken off the room as soon as there is a CPU layer: its compute buffer.
    pub(super) cpu_fixed_bytes: i64,
    /// GPU layers take from the same room.
    pub(super) shared: bool,
    /// Metal under memory pressure reloads everything (set M2), this many bytes beyond the layers.
    pub(super) reload_all: Option<i64>,
    /// Ticks one byte takes to read, unscaled.
    pub(super) read_per_byte: f64,
    /// Of layers that do not stay only chosen experts are read.
    pub(super) chosen: Option<Chosen>,
    /// Its threads may run for a part of each period only.
    pub(super) quota: Option<Quota>,
    /// Time of embedding and head without rest; nothing where it is not the head.
    pub(super) head: Ticks,
}

/// Periods of which threads may run for a part, see [`crate::rested_time`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Quota {
    /// The part.
    pub(super) share: f64,
    /// The rest of a period.
    pub(super) gap: Ticks,
}

impl Quota {
    /// Time of a step after a rest, by the time that it takes without.
    pub(super) fn rested(&self, throttled: Ticks) -> Ticks {
        let whole = |ticks: Ticks| (ticks / TIE) as f64;
        rested(self.share, whole(self.gap), whole(throttled)).round() as Ticks * TIE
    }
}

/// The experts of a mean layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chosen {
    /// Bytes of all of them; the rest of a layer always stays.
    pub(super) all_bytes: i64,
    /// Bytes of those that a token chooses.
    pub(super) token_bytes: i64,
}

/// What the layers of one device that do not stay in memory cost per token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct DiskCost {
    /// Waiting within the device's own windows.
    pub(super) waits: Ticks,
    /// Overlaps other devices' work.
    pub(super) overlapped: Ticks,
    /// Adds to the token.
    pub(super) added: Ticks,
    /// CPU layers that stay in RAM.
    pub(super) pinned: u32,
    /// Layers' room that the stream needs.
    pub(super) buffer: u32,
}

/// Which windows a ring may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RoundShape {
    /// The same in every round, as in PLANNER 3.7.
    Equal,
    /// A device's windows differ by at most one layer, the later rounds being the shorter ones.
    Uneven,
}

/// Everything a search sees.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Instance {
    pub(super) clock: Clock,
    /// Layers (L).
    pub(super) layers: u32,
    /// Devices as they are when they are not head.
    pub(super) plain: Vec<Member>,
    /// Devices as head, where they can be: their member form and what the head costs per token.
    pub(super) as_head: Vec<Option<(Member, Ticks)>>,
    /// Time from one device to another (τ), if there is a way.
    pub(super) hops: Vec<Vec<Option<Ticks>>>,
    pub(super) disk: DiskModel,
    pub(super) allow_streaming: bool,
    pub(super) rounds_min: u32,
    pub(super) rounds_max: u32,
    pub(super) shape: RoundShape,
    /// Layer slots a stream needs at least.
    pub(super) buffer_min: u32,
    /// The head may hold no layers.
    pub(super) idle_head: bool,
}

impl Member {
    /// Time of computing `cpu` and `gpu` layers in `rounds` rounds, without hops and without rest.
    /// Rounds without a layer cost no step.
    pub(super) fn throttled(&self, cpu: u32, gpu: u32, rounds: u32) -> Ticks {
        let both = if cpu > 0 && gpu > 0 { self.copy } else { 0 };
        self.cpu_layer * i64::from(cpu)
            + self.gpu_layer * i64::from(gpu)
            + self.step * i64::from(rounds.min(cpu + gpu))
            + both * i64::from(rounds)
    }

    /// The same where the device rests between its windows, while others compute. A head embeds and
    /// projects just before its first window, so that the window's time is what both take together
    /// less what [`Self::head_time`] counts.
    pub(super) fn busy(&self, cpu: u32, gpu: u32, rounds: u32) -> Ticks {
        let Some(quota) = self.quota.filter(|_| gpu == 0 && rounds > 0) else {
            return self.throttled(cpu, gpu, rounds);
        };
        let window = |layers: u32| self.throttled(layers, 0, 1);
        let (layers, longer) = (cpu / rounds, cpu % rounds);
        let first = window(layers + u32::from(longer > 0));
        let begun = quota.rested(self.head + first) - self.head_time();
        let longer_windows = quota.rested(first) * i64::from(longer.saturating_sub(1));
        let windows = rounds - longer.max(1);
        begun + longer_windows + quota.rested(window(layers)) * i64::from(windows)
    }

    /// No more than [`Self::busy`] in as many rounds or more.
    pub(super) fn busy_at_least(&self, cpu: u32, gpu: u32, rounds: u32) -> Ticks {
        let throttled = self.throttled(cpu, gpu, rounds);
        match self.quota.filter(|_| gpu == 0) {
            // Every window's time is rounded.
            Some(quota) => {
                let ticks = (throttled / TIE) as f64 * quota.share - f64::from(cpu + 1);
                ticks.max(0.0).floor() as Ticks * TIE
            }
            None => throttled,
        }
    }

    /// Time of embedding and head, after a rest.
    pub(super) fn head_time(&self) -> Ticks {
        self.quota.map_or(self.head, |quota| quota.rested(self.head))
    }

    /// What a token takes at least for the quota's sake: no rest makes up for a whole token's work.
    pub(super) fn run_time(&self, cpu: u32, gpu: u32, rounds: u32) -> Ticks {
        let limited = self.quota.is_some() && gpu == 0;
        if limited { self.head + self.throttled(cpu, gpu, rounds) } else { 0 }
    }

    /// Time of reading bytes.
    pub(super) fn read(&self, bytes: i64) -> Ticks {
        (bytes.max(0) as f64 * self.read_per_byte).round() as Ticks * TIE
    }

    /// Whether these layers stay in memory.
    pub(super) fn fits(&self, cpu: u32, gpu: u32) -> bool {
        self.over(cpu, gpu) <= 0
    }

    /// Bytes by which the layers exceed the room.
    fn over(&self, cpu: u32, gpu: u32) -> i64 {
        let counted = if self.shared { cpu + gpu } else { cpu };
        let fixed = if cpu > 0 { self.cpu_fixed_bytes } else { 0 };
        if counted == 0 {
            return 0;
        }
        i64::from(counted) * (self.layer_bytes + self.kv_bytes) + fixed - self.room_bytes
    }
}

impl Instance {
    pub(super) fn devices(&self) -> usize {
        self.plain.len()
    }

    /// A device's form in a ring with this head.
    pub(super) fn member(&self, device: usize, head: usize) -> &Member {
        match &self.as_head[device] {
            Some((member, _)) if device == head => member,
            _ => &self.plain[device],
        }
    }

    /// Disk cost of `cpu` and `gpu` layers; `None` if the device cannot hold them at all.
    pub(super) fn disk(
        &self,
        member: &Member,
        cpu: u32,
        gpu: u32,
        rounds: u32,
    ) -> Option<DiskCost> {
        self.disk_spread(member, (cpu, gpu), rounds, rounds)
    }

    /// No more than [`Self::disk`] for as many rounds or more.
    pub(super) fn disk_at_least(
        &self,
        member: &Member,
        cpu: u32,
        gpu: u32,
        rounds: u32,
    ) -> Option<DiskCost> {
        self.disk_spread(member, (cpu, gpu), rounds, self.layers + 1)
    }

    /// Disk cost with a buffer for windows of this many rounds.
    fn disk_spread(
        &self,
        member: &Member,
        (cpu, gpu): (u32, u32),
        rounds: u32,
        windows: u32,
    ) -> Option<DiskCost> {
        if gpu > member.gpu_layers_max {
            return None;
        }
        let over = member.over(cpu, gpu);
        if over <= 0 {
            return Some(DiskCost { pinned: cpu, ..DiskCost::default() });
        }
        if !self.allow_streaming {
            return None;
        }
        let bytes = |layers: u32| i64::from(layers) * member.layer_bytes;
        // Keys and values cannot be streamed, so they come off the room first.
        let mut left = member.room_bytes - i64::from(cpu) * member.kv_bytes;
        if let (DiskModel::Streaming, Some(chosen)) = (self.disk, member.chosen) {
            return self.choose(member, chosen, (cpu, gpu), left);
        }
        if let Some(beyond) = member.reload_all {
            left -= i64::from(gpu) * (member.layer_bytes + member.kv_bytes);
            if left < bytes(self.buffer_min) {
                return None;
            }
            let added = member.read(bytes(cpu + gpu) + beyond);
            return Some(DiskCost { added, buffer: self.buffer_min, ..DiskCost::default() });
        }
        left -= if cpu > 0 { member.cpu_fixed_bytes } else { 0 };
        if member.shared {
            left -= i64::from(gpu) * (member.layer_bytes + member.kv_bytes);
        }
        if cpu == 0 || left < bytes(self.buffer_min) {
            return None;
        }
        let capacity = u32::try_from(left / member.layer_bytes).unwrap_or(u32::MAX);
        let spare = capacity - self.buffer_min;
        let cost = match self.disk {
            DiskModel::Excess => {
                let (added, pinned) = (member.read(over), spare.min(cpu - 1));
                DiskCost { added, pinned, buffer: self.buffer_min, ..DiskCost::default() }
            }
            DiskModel::CyclicLru => {
                let added = member.read(bytes(cpu));
                DiskCost { added, buffer: self.buffer_min, ..DiskCost::default() }
            }
            DiskModel::RingOverlap => {
                let buffer = cpu.div_ceil(windows).max(self.buffer_min);
                if buffer <= capacity {
                    let pinned = capacity - buffer;
                    let overlapped = member.read(bytes(cpu - pinned));
                    DiskCost { overlapped, pinned, buffer, ..DiskCost::default() }
                } else {
                    let added = member.read(2 * bytes(cpu));
                    DiskCost { added, buffer: self.buffer_min, ..DiskCost::default() }
                }
            }
            DiskModel::Streaming => self.stream(member, (cpu, gpu), (rounds, windows), capacity),
        };
        Some(cost)
    }

    /// Cost of reading experts when they are chosen. The whole device waits: no other work can begin,
    /// and what will be chosen is not known before. With E layers' experts more than RAM holds, of
    /// which those in slots are as likely to be chosen as others, a token reads E times what it
    /// chooses of a layer ([`crate::CostModel::streamed_bytes`]).
    fn choose(
        &self,
        member: &Member,
        chosen: Chosen,
        (cpu, gpu): (u32, u32),
        mut left: i64,
    ) -> Option<DiskCost> {
        left -= i64::from(cpu) * (member.layer_bytes - chosen.all_bytes);
        left -= if cpu > 0 { member.cpu_fixed_bytes } else { 0 };
        if member.shared {
            left -= i64::from(gpu) * (member.layer_bytes + member.kv_bytes);
        }
        let slots = i64::from(self.buffer_min) * chosen.all_bytes;
        if cpu == 0 || left < slots {
            return None;
        }
        let capacity = u32::try_from(left / chosen.all_bytes).unwrap_or(u32::MAX);
        let waits = member.read(i64::from(cpu.saturating_sub(capacity)) * chosen.token_bytes);
        let pinned = capacity - self.buffer_min;
        Some(DiskCost { waits, pinned, buffer: self.buffer_min, ..DiskCost::default() })
    }

    /// Cost of a stream that reads on while its own device computes, with this much room in layers.
    fn stream(
        &self,
        member: &Member,
        (cpu, gpu): (u32, u32),
        (rounds, windows): (u32, u32),
        capacity: u32,
    ) -> DiskCost {
        let layer = member.read(member.layer_bytes);
        let computing = member.busy(cpu, 0, rounds) - member.step * i64::from(rounds.min(cpu));
        let demand = StreamDemand {
            layers: cpu,
            capacity,
            buffer_min: self.buffer_min,
            rounds: windows,
            read_within: u32::try_from(computing / layer.max(1)).unwrap_or(u32::MAX),
        };
        let Stream { pinned, buffer, streamed, within } = Stream::of(&demand);
        let waits = (layer * i64::from(within) - computing).max(0);
        let busy = member.busy(cpu, gpu, rounds) + waits;
        let overlapped = (layer * i64::from(streamed) - busy).max(0);
        DiskCost { waits, overlapped, added: 0, pinned, buffer }
    }

    /// What a device's part of the ring's time must have room for beside its busy and streaming
    /// time: its hops. A stream that never pauses reads while its device sends, and during the
    /// `constant` time of head and embedding, which is no part of the ring's.
    pub(super) fn hops_beside_stream(&self, hops: Ticks, constant: Ticks) -> Ticks {
        if self.disk == DiskModel::Streaming { -constant } else { hops }
    }

    /// Numbers of rounds worth trying: only overlap ever prefers more than one (PLANNER 3.7).
    pub(super) fn rounds(&self) -> std::ops::RangeInclusive<u32> {
        match self.disk {
            DiskModel::RingOverlap | DiskModel::Streaming => {
                let most = self.rounds_max.min(self.layers).max(1);
                self.rounds_min.clamp(1, most)..=most
            }
            DiskModel::Excess | DiskModel::CyclicLru => 1..=1,
        }
    }
}
