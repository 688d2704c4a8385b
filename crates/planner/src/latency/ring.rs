//! A ring with its layers, and the one function that says how long its token takes.

use super::allocate::{Seat, allocate, token_of, whole};
use super::instance::{Instance, NEVER, Ticks};
use super::options::{Rounds, Split, SplitTable};
use super::order::hop;

/// Devices in ring order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ring {
    pub(super) head: usize,
    /// Those that hold layers; the head is first among them or idle.
    pub(super) order: Vec<usize>,
}

/// Who computes how much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Assignment {
    pub(super) ring: Ring,
    pub(super) rounds: u32,
    /// Per device of the order.
    pub(super) splits: Vec<Split>,
    /// Time per token.
    pub(super) token: Ticks,
    /// Busy time in it.
    pub(super) busy: Ticks,
}

impl Ring {
    pub(super) fn idle_head(&self) -> bool {
        self.order.first() != Some(&self.head)
    }

    /// Time of a device's hops per token: to its successor once a round. After the last round the
    /// token goes back to the head.
    pub(super) fn hops(&self, instance: &Instance, at: usize, rounds: u32) -> Ticks {
        let next = self.order[(at + 1) % self.order.len()];
        let once = hop(instance, self.order[at], next);
        let inner = if at + 1 < self.order.len() { rounds } else { rounds - 1 };
        let last =
            if at + 1 < self.order.len() { 0 } else { hop(instance, self.order[at], self.head) };
        once.saturating_mul(i64::from(inner)).saturating_add(last).min(NEVER)
    }

    /// Time of all hops per token but the first one of an idle head.
    pub(super) fn hops_total(&self, instance: &Instance, rounds: u32) -> Ticks {
        let hops = (0..self.order.len()).map(|at| self.hops(instance, at, rounds));
        hops.fold(0, |sum, time| (sum + time).min(NEVER))
    }

    /// Time of the hop from an idle head to the first device.
    pub(super) fn first_hop(&self, instance: &Instance) -> Ticks {
        hop(instance, self.head, self.order[0])
    }

    /// The best division of layers with a token below `bound`, every device taking part. The token
    /// passes a device in every round, with few layers in some rounds for nothing.
    pub(super) fn divide(
        &self,
        instance: &Instance,
        tables: &[&SplitTable],
        rounds: u32,
        bound: Ticks,
    ) -> Option<Assignment> {
        let constant = self.constant(instance);
        let seats = self.seats(instance, tables, rounds);
        let found = allocate(&seats, instance.layers, bound - constant)?;
        let splits = found.splits.into_iter().flatten().collect();
        let (token, busy) = (found.token + constant, found.busy + constant);
        Some(Assignment { ring: self.clone(), rounds, splits, token, busy })
    }

    fn seats<'a>(
        &self,
        instance: &Instance,
        tables: &[&'a SplitTable],
        rounds: u32,
    ) -> Vec<Seat<'a>> {
        let constant = self.constant(instance);
        let seat = |(at, table): (usize, &&'a SplitTable)| {
            let hops = self.hops(instance, at, rounds);
            let hops_beside_stream = instance.hops_beside_stream(hops, constant);
            Seat { table, hops: hops + 1, hops_beside_stream, absent: None }
        };
        tables.iter().enumerate().map(seat).collect()
    }

    /// What the token takes whatever the division: embedding, head, the way to and from an idle one.
    pub(super) fn constant(&self, instance: &Instance) -> Ticks {
        let head = instance.as_head[self.head].as_ref().map_or(0, |(_, constant)| *constant);
        head + self.first_hop(instance)
    }
}

/// Measures an assignment given as CPU and GPU layers per device of the ring: the direct cost all
/// methods are compared by. `None` if a device cannot hold its layers.
pub(super) fn measured(
    instance: &Instance,
    ring: &Ring,
    rounds: u32,
    layers: &[(u32, u32)],
) -> Option<Assignment> {
    let mut splits = Vec::with_capacity(layers.len());
    for (device, (cpu, gpu)) in ring.order.iter().zip(layers) {
        let member = instance.member(*device, ring.head);
        splits.push(Split::new(instance, member, (*cpu, *gpu), Rounds::Exactly(rounds))?);
    }
    let constant = ring.constant(instance);
    let parts = splits.iter().enumerate().map(|(at, split)| {
        let hops = ring.hops(instance, at, rounds);
        (hops + 1, instance.hops_beside_stream(hops, constant), Some(*split))
    });
    let (token, busy) = token_of(parts);
    let (token, busy) = (token + constant, busy + constant);
    Some(Assignment { ring: ring.clone(), rounds, splits, token, busy })
}

impl Assignment {
    /// What decides between assignments: the time, then fewer rounds, fewer devices, less busy time,
    /// and the places of head and layers in the list of devices.
    pub(super) fn key(&self) -> impl Ord + use<> {
        let devices = self.ring.order.len();
        let mut layers: Vec<(usize, u32, u32)> = Vec::new();
        for (device, split) in self.ring.order.iter().zip(&self.splits) {
            layers.push((*device, split.cpu + split.gpu, split.gpu));
        }
        layers.sort_unstable();
        (whole(self.token), self.rounds, devices, whole(self.busy), self.ring.head, layers)
    }
}
