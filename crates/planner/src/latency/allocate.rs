//! The exact division of layers among devices for a given head and number of rounds.
//!
//! The token takes max(ΣB, max(B + S)) + ΣR: busy times B, overlapped streaming S, added time R
//! (PLANNER 3.7). Once a bound on B + S is fixed, what remains is a sum, which a dynamic program over
//! devices and layers minimises exactly; the best bound is found by bisection, because a looser one
//! never makes the sum larger. A device may be allowed to stay out, so one run covers all subsets.

use super::instance::{NEVER, TIE, Ticks};
use super::labels::{self, Task};
use super::options::{Split, SplitTable};

/// A device that takes part or may take part.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seat<'a> {
    pub(super) table: &'a SplitTable,
    /// Its hops per token if it takes part.
    pub(super) hops: Ticks,
    /// Those of them that a stream does not read beside.
    pub(super) hops_beside_stream: Ticks,
    /// What staying out costs; `None` if it must take part.
    pub(super) absent: Option<Ticks>,
}

impl Seat<'_> {
    /// What the token takes at least for the stream's sake.
    pub(super) fn streaming(&self, split: &Split) -> Ticks {
        self.hops_beside_stream + split.busy + split.overlapped
    }

    /// What the token takes at least with this split.
    fn least(&self, split: &Split) -> Ticks {
        (self.hops + split.busy).max(self.streaming(split)) + split.added
    }
}

/// Layers for every seat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Allocation {
    /// Time per token, without what does not depend on the division.
    pub(super) token: Ticks,
    /// Busy time in it, which decides between equal tokens.
    pub(super) busy: Ticks,
    /// A split per seat; `None` stays out.
    pub(super) splits: Vec<Option<Split>>,
}

/// The best allocation whose token is below `bound`; `None` if there is none.
pub(super) fn allocate(seats: &[Seat<'_>], layers: u32, bound: Ticks) -> Option<Allocation> {
    let search = Search::new(seats, layers as usize, bound);
    if search.limits.is_empty() {
        return search.sum_only();
    }
    let overlapping = search.bisect();
    if !search.adds {
        return overlapping;
    }
    // Adding is rarely worth it: with the bound just found, mostly no such split is left.
    let bound = overlapping.as_ref().map_or(bound, |found| found.token);
    let search = Search::new(seats, layers as usize, bound);
    if !search.adds {
        return overlapping;
    }
    let mixed = if search.limits.is_empty() { search.sum_only() } else { search.every_limit() };
    mixed.or(overlapping)
}

/// The least busy and added time of allocations whose token may be below `bound`.
pub(super) fn least_work(seats: &[Seat<'_>], layers: u32, bound: Ticks) -> Ticks {
    Sums::new(&Search::new(seats, layers as usize, bound), NEVER, true).total()
}

struct Search<'a, 'b> {
    seats: &'a [Seat<'b>],
    layers: usize,
    bound: Ticks,
    /// Values of B + S that occur, rising; 0 first.
    limits: Vec<Ticks>,
    /// Some split below the bound adds disk time.
    adds: bool,
}

impl<'a, 'b> Search<'a, 'b> {
    fn new(seats: &'a [Seat<'b>], layers: usize, bound: Ticks) -> Self {
        let mut limits = Vec::new();
        let mut adds = false;
        for seat in seats {
            for split in seat.table.all() {
                if seat.least(split) >= bound {
                    continue;
                }
                if split.overlapped > 0 {
                    limits.push(seat.streaming(split));
                }
                adds |= split.added > 0;
            }
        }
        if !limits.is_empty() {
            limits.push(0);
        }
        limits.sort_unstable();
        limits.dedup();
        Self { seats, layers, bound, limits, adds }
    }

    /// Nothing overlaps: the sum is the answer.
    fn sum_only(&self) -> Option<Allocation> {
        let sums = Sums::new(self, NEVER, true);
        (sums.total() < self.bound).then(|| self.allocation(&sums))
    }

    /// Without adding splits the token is max(sum(limit), limit), least where the two cross.
    fn bisect(&self) -> Option<Allocation> {
        let (mut low, mut high) = (0, self.limits.len() - 1);
        let loosest = Sums::new(self, self.limits[high], false);
        if loosest.total() >= self.bound {
            return None;
        }
        while low < high {
            let middle = usize::midpoint(low, high);
            if Sums::new(self, self.limits[middle], false).total() <= self.limits[middle] {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        let mut best: Option<Allocation> = None;
        for at in [low.checked_sub(1), Some(low)].into_iter().flatten() {
            let sums = Sums::new(self, self.limits[at], false);
            if sums.total() < self.bound {
                let found = self.allocation(&sums);
                let better =
                    |best: &Allocation| (found.token, found.busy) < (best.token, best.busy);
                if best.as_ref().is_none_or(better) {
                    best = Some(found);
                }
            }
        }
        best
    }

    /// Streaming overlaps in some splits and adds in others: every limit is tried, with the added
    /// time as a second dimension.
    fn every_limit(&self) -> Option<Allocation> {
        // Sums only fall as the limit rises, so those at or above the bound come first.
        let hopeless = |limit: &Ticks| Sums::new(self, *limit, true).total() >= self.bound;
        let first = self.limits.partition_point(hopeless);
        let mut best: Option<Allocation> = None;
        for limit in &self.limits[first..] {
            let bound = best.as_ref().map_or(self.bound, |best| best.token);
            if *limit >= bound {
                break;
            }
            let sums = Sums::new(self, *limit, true);
            if sums.total() >= bound {
                continue;
            }
            let mut found = Some(self.allocation(&sums));
            // No token is below the least sum, so one that equals it needs no second look.
            if found.as_ref().is_some_and(|found| found.token > sums.total()) {
                let bound = found.as_ref().map_or(bound, |found| found.token.min(bound));
                let (layers, rest) = (self.layers, &sums.rest[..]);
                let task = Task { layers, limit: *limit, bound, rest };
                found = labels::allocate(self.seats, &task).or(found);
            }
            best = found.filter(|found| found.token < bound).or(best);
        }
        best
    }

    fn allocation(&self, sums: &Sums) -> Allocation {
        let splits = sums.splits(self);
        measure(self.seats, splits)
    }

    /// The split of a seat with the least busy and added time under the limit.
    fn cheapest(&self, seat: &Seat<'_>, layers: usize, rule: Rule) -> Option<(Ticks, Split)> {
        let mut best: Option<(Ticks, Split)> = None;
        for split in seat.table.of(layers) {
            let busy = split.busy + seat.hops;
            let streams = split.overlapped > 0 && seat.streaming(split) > rule.limit;
            let adds = split.added > 0 && !rule.adding;
            let cost = busy + split.added;
            if streams || adds || seat.least(split) >= self.bound {
                continue;
            }
            if best.is_none_or(|(least, _)| cost < least) {
                best = Some((cost, *split));
            }
        }
        best
    }
}

/// Token and busy time of a ring, from each device's hops (or its cost of staying out), the hops
/// that its stream does not read beside, and its split.
pub(super) fn token_of(
    parts: impl Iterator<Item = (Ticks, Ticks, Option<Split>)>,
) -> (Ticks, Ticks) {
    let (mut busy, mut longest, mut added) = (0, 0, 0);
    for (hops, hops_beside_stream, split) in parts {
        busy += hops + split.map_or(0, |split| split.busy);
        if let Some(split) = split {
            longest = longest.max(hops_beside_stream + split.busy + split.overlapped);
            added += split.added;
        }
    }
    (busy.max(longest) + added, busy)
}

/// [`token_of`] seats.
pub(super) fn measure(seats: &[Seat<'_>], splits: Vec<Option<Split>>) -> Allocation {
    let hops = |seat: &Seat<'_>, split: &Option<Split>| match split {
        Some(_) => seat.hops,
        None => seat.absent.unwrap_or(NEVER),
    };
    let parts = seats
        .iter()
        .zip(&splits)
        .map(|(seat, split)| (hops(seat, split), seat.hops_beside_stream, *split));
    let (token, busy) = token_of(parts);
    Allocation { token, busy, splits }
}

/// Which splits a sum may use.
#[derive(Debug, Clone, Copy)]
struct Rule {
    /// Busy plus overlapped time of those that stream.
    limit: Ticks,
    /// Those that add disk time, too.
    adding: bool,
}

/// Least sums under a rule: for each seat on, the cost of giving each number of layers to it and
/// those after it.
struct Sums {
    rule: Rule,
    /// Per seat, cost of taking this many layers.
    own: Vec<Vec<Ticks>>,
    /// Per seat, least cost from it on.
    rest: Vec<Vec<Ticks>>,
}

impl Sums {
    fn new(search: &Search<'_, '_>, limit: Ticks, adding: bool) -> Self {
        let rule = Rule { limit, adding };
        let size = search.layers + 1;
        let mut own = Vec::with_capacity(search.seats.len());
        for seat in search.seats {
            let cost = |layers| search.cheapest(seat, layers, rule).map_or(NEVER, |(cost, _)| cost);
            let mut costs: Vec<Ticks> = (0..size).map(cost).collect();
            costs[0] = seat.absent.unwrap_or(NEVER);
            own.push(costs);
        }
        let mut after = vec![NEVER; size];
        after[0] = 0;
        let mut rest = vec![after];
        for costs in own.iter().rev() {
            let next = &rest[rest.len() - 1];
            let mut here = vec![NEVER; size];
            for (taken, cost) in costs.iter().enumerate() {
                if *cost < NEVER {
                    for (value, beyond) in here[taken..].iter_mut().zip(next) {
                        *value = (*value).min(cost + beyond);
                    }
                }
            }
            rest.push(here);
        }
        rest.reverse();
        Self { rule, own, rest }
    }

    fn total(&self) -> Ticks {
        *self.rest[0].last().expect("there is a cost for every number of layers")
    }

    /// The choices behind the total; among equals the fewest layers for the first seat, and so on.
    fn splits(&self, search: &Search<'_, '_>) -> Vec<Option<Split>> {
        let mut left = search.layers;
        let mut splits = Vec::with_capacity(search.seats.len());
        for (index, seat) in search.seats.iter().enumerate() {
            let costs = &self.own[index];
            let after = &self.rest[index + 1];
            let taken = (0..=left)
                .find(|taken| {
                    costs[*taken] < NEVER
                        && costs[*taken] + after[left - taken] == self.rest[index][left]
                })
                .expect("a least cost has a choice");
            let split = search.cheapest(seat, taken, self.rule).map(|(_, split)| split);
            splits.push(if taken == 0 { None } else { split });
            left -= taken;
        }
        splits
    }
}

/// Whole ticks of a time, without the count of devices.
pub(super) const fn whole(ticks: Ticks) -> Ticks {
    ticks / TIE
}
