//! What one device can do with a number of layers: the splits worth considering.

use super::instance::{Instance, Member, RoundShape, Ticks};

/// One way for a device to hold some layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Split {
    pub(super) cpu: u32,
    pub(super) gpu: u32,
    /// Busy time per token without hops.
    pub(super) busy: Ticks,
    /// Streaming that overlaps other devices' work.
    pub(super) overlapped: Ticks,
    /// Disk time that adds to the token.
    pub(super) added: Ticks,
}

impl Split {
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

impl SplitTable {
    pub(super) fn new(instance: &Instance, member: &Member, rounds: u32) -> Self {
        let mut table = Self { splits: Vec::new(), starts: vec![0] };
        for layers in 0..=instance.layers {
            let uneven = instance.shape == RoundShape::Uneven;
            if layers >= rounds && (uneven || layers.is_multiple_of(rounds)) {
                table.add(instance, member, layers, rounds);
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

    fn add(&mut self, instance: &Instance, member: &Member, layers: u32, rounds: u32) {
        let first = self.splits.len();
        for gpu in gpu_counts(instance, member, layers, rounds) {
            let cpu = layers - gpu;
            if let Some(disk) = instance.disk(member, cpu, gpu, rounds) {
                let busy = member.busy(cpu, gpu, rounds);
                let (overlapped, added) = (disk.overlapped, disk.added);
                let split = Split { cpu, gpu, busy, overlapped, added };
                if !self.splits[first..].iter().any(|other| other.no_worse_than(&split)) {
                    let mut kept = self.splits.split_off(first);
                    kept.retain(|other| !split.no_worse_than(other));
                    self.splits.append(&mut kept);
                    self.splits.push(split);
                }
            }
        }
    }
}

/// Numbers of GPU layers among which the best is: busy time is linear in them but for the copies,
/// so mostly all or none; where they decide what is streamed, every number.
fn gpu_counts(
    instance: &Instance,
    member: &Member,
    layers: u32,
    rounds: u32,
) -> impl Iterator<Item = u32> {
    let step = if instance.shape == RoundShape::Equal { rounds } else { 1 };
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
