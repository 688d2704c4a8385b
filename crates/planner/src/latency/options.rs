//! What one device can do with a number of layers: the splits worth considering.

use super::instance::{Instance, Member, RoundShape, Ticks};

/// One way for a device to hold some layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Split {
    pub(super) cpu: u32,
    pub(super) gpu: u32,
    /// Busy time per token without hops, waiting for the disk within own windows included.
    pub(super) busy: Ticks,
    /// Streaming, or waiting for a quota, that overlaps other devices' work.
    pub(super) overlapped: Ticks,
    /// Disk time that adds to the token.
    pub(super) added: Ticks,
}

impl Split {
    /// What `cpu` and `gpu` layers cost a device; `None` if it cannot hold them.
    pub(super) fn new(
        instance: &Instance,
        member: &Member,
        (cpu, gpu): (u32, u32),
        rounds: Rounds,
    ) -> Option<Self> {
        let (disk, busy, rounds) = match rounds {
            Rounds::Exactly(rounds) => {
                let disk = instance.disk(member, cpu, gpu, rounds)?;
                (disk, member.busy(cpu, gpu, rounds), rounds)
            }
            Rounds::AtLeast(rounds) => {
                let disk = instance.disk_at_least(member, cpu, gpu, rounds)?;
                (disk, member.busy_at_least(cpu, gpu, rounds), rounds)
            }
        };
        let busy = busy + disk.waits;
        let overlapped = disk.overlapped.max(member.run_time(cpu, gpu, rounds) - busy);
        Some(Self { cpu, gpu, busy, overlapped, added: disk.added })
    }

    pub(super) const fn layers(&self) -> u32 {
        self.cpu + self.gpu
    }

    fn no_worse_than(&self, other: &Self) -> bool {
        self.busy <= other.busy
            && self.busy + self.overlapped <= other.busy + other.overlapped
            && self.added <= other.added
    }
}

/// The splits of one device for every number of layers, none of them worse than another in all of
/// busy time, busy plus overlapped streaming, and added time.
#[derive(Debug, Clone)]
pub(super) struct SplitTable {
    splits: Vec<Split>,
    /// Where the splits of each number of layers begin.
    starts: Vec<u32>,
}

/// For which numbers of rounds splits are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rounds {
    Exactly(u32),
    /// No split costs more than with any larger number.
    AtLeast(u32),
}

impl SplitTable {
    /// Splits with which a token can be below the bound.
    pub(super) fn new(instance: &Instance, member: &Member, rounds: Rounds, bound: Ticks) -> Self {
        let mut table = Self { splits: Vec::new(), starts: vec![0] };
        let mut possible = true;
        for layers in 0..=instance.layers {
            if possible && layers > 0 && layers.is_multiple_of(step(instance, rounds)) {
                // What takes too long with these layers does so with more.
                possible = table.add(instance, member, layers, (rounds, bound));
            }
            table.starts.push(table.splits.len() as u32);
        }
        table
    }

    pub(super) fn of(&self, layers: usize) -> &[Split] {
        &self.splits[self.starts[layers] as usize..self.starts[layers + 1] as usize]
    }

    /// Every split.
    pub(super) fn all(&self) -> &[Split] {
        &self.splits
    }

    fn add(
        &mut self,
        instance: &Instance,
        member: &Member,
        layers: u32,
        (rounds, bound): (Rounds, Ticks),
    ) -> bool {
        let first = self.splits.len();
        for gpu in gpu_counts(instance, member, layers, rounds) {
            let cpu = layers - gpu;
            if let Some(split) = Split::new(instance, member, (cpu, gpu), rounds) {
                if split.busy + split.overlapped + split.added >= bound {
                    continue;
                }
                if !self.splits[first..].iter().any(|other| other.no_worse_than(&split)) {
                    let mut kept = self.splits.split_off(first);
                    kept.retain(|other| !split.no_worse_than(other));
                    self.splits.append(&mut kept);
                    self.splits.push(split);
                }
            }
        }
        self.splits.len() > first
    }
}

/// What numbers of layers are multiples of.
fn step(instance: &Instance, rounds: Rounds) -> u32 {
    match rounds {
        Rounds::Exactly(rounds) if instance.shape == RoundShape::Equal => rounds,
        Rounds::Exactly(_) | Rounds::AtLeast(_) => 1,
    }
}

/// Numbers of GPU layers among which the best is: busy time is linear in them but for the copies,
/// so mostly all or none; where they decide what is streamed, every number.
fn gpu_counts(
    instance: &Instance,
    member: &Member,
    layers: u32,
    rounds: Rounds,
) -> impl Iterator<Item = u32> {
    let step = step(instance, rounds);
    let most = member.gpu_layers_max.min(layers) / step * step;
    let resident = member.fits(layers - most, most);
    let faster = member.gpu_layer <= member.cpu_layer;
    // Where GPU layers take from the room, or from what keys must find room in, any number may be best.
    let apart = !member.shared && member.reload_all.is_none();
    let ends = faster && (resident || apart);
    // Rising numbers of CPU layers: with equal times the GPU is preferred.
    let stride = if ends { most.max(1) } else { step };
    (0..=most).rev().step_by(stride as usize)
}
