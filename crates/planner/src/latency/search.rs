//! Which devices, which head, how many rounds: exact where hops are alike or devices few.

use super::allocate::{Seat, allocate, least_work, whole};
use super::instance::{Instance, Member, NEVER, TIE, Ticks};
use super::options::{Rounds, SplitTable};
use super::order::{EXACT_DEVICES_MAX, Tours, hop, order};
use super::ring::{Assignment, Ring};

/// What a search may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scope {
    /// Devices that may hold layers, rising.
    pub(super) devices: Vec<usize>,
    /// Devices that may be head, rising.
    pub(super) heads: Vec<usize>,
    /// A device that must hold layers.
    pub(super) required: Option<usize>,
    /// Most divisions to compute; when they are used up the best so far is the answer.
    pub(super) divisions_max: u64,
}

/// What a search found and what it took.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) best: Option<Assignment>,
    /// Nothing in the scope is better.
    pub(super) exact: bool,
    /// Divisions computed.
    pub(super) divisions: u64,
}

/// The best assignment in the scope.
pub(super) fn search(instance: &Instance, scope: &Scope) -> Found {
    let mut run =
        Run { instance, scope, hops: Hops::of(instance, scope), best: None, divisions: 0 };
    let mut all_tables = Vec::new();
    let mut least = None;
    for rounds in instance.rounds() {
        if rounds > 1 && run.settled(&mut least, rounds) {
            break;
        }
        let tables = run.tables(rounds);
        run.alone(&tables);
        for head in &scope.heads {
            run.with_head(&tables, *head);
        }
        all_tables.push(tables);
    }
    let few = scope.devices.len() <= EXACT_DEVICES_MAX + 1;
    let exact = (run.hops.uniform || few) && run.divisions < scope.divisions_max;
    if !exact {
        run.improve(&all_tables);
    }
    Found { best: run.best, exact, divisions: run.divisions }
}

/// The best of the devices that may be head, each alone.
pub(super) fn best_alone(instance: &Instance, scope: &Scope) -> Option<Assignment> {
    let hops = Hops::of(instance, scope);
    let mut run = Run { instance, scope, hops, best: None, divisions: 0 };
    for rounds in instance.rounds() {
        let tables = run.tables(rounds);
        for head in scope.heads.iter().filter(|head| scope.devices.contains(head)) {
            run.try_ring(&tables, Ring { head: *head, order: vec![*head] });
        }
    }
    run.best
}

/// The best of what this ring becomes with one more device that must hold layers: with its head, any
/// of its devices, and any number of rounds. The best only where hops are alike.
pub(super) fn best_with(
    instance: &Instance,
    ring: &Assignment,
    device: usize,
) -> Option<Assignment> {
    let head = ring.ring.head;
    let mut devices = ring.ring.order.clone();
    devices.push(device);
    devices.sort_unstable();
    let scope =
        Scope { devices, heads: vec![head], required: Some(device), divisions_max: u64::MAX };
    let hops = Hops::of(instance, &scope);
    let mut run = Run { instance, scope: &scope, hops, best: None, divisions: 0 };
    let mut least = None;
    // Beginning near the best, so that most other numbers are ruled out at once.
    let (fewest, most) = instance.rounds().into_inner();
    let below = (fewest..ring.rounds).rev();
    let above = ring.rounds + 1..=most;
    for rounds in std::iter::once(ring.rounds).chain(below).chain(above) {
        if rounds > ring.rounds && run.settled(&mut least, rounds) {
            break;
        }
        let tables = run.tables(rounds);
        if let Some(members) = run.lowest(&tables, rounds, head) {
            run.try_set(&tables, head, &members);
            run.try_set(&tables, head, &scope.devices);
        }
    }
    run.best
}

/// Split tables of the scope's devices for one number of rounds.
struct Tables {
    rounds: u32,
    plain: Vec<Option<SplitTable>>,
    as_head: Vec<Option<SplitTable>>,
}

impl Tables {
    fn new(instance: &Instance, scope: &Scope, rounds: Rounds, bound: Ticks) -> Self {
        let mut plain = vec![None; instance.devices()];
        let mut as_head = plain.clone();
        // Of twins one table is made, and copied.
        let mut made: Vec<(&Member, SplitTable)> = Vec::new();
        let mut table = |member| {
            if let Some((_, known)) = made.iter().find(|(other, _)| *other == member) {
                return known.clone();
            }
            let table = SplitTable::new(instance, member, rounds, bound);
            made.push((member, table.clone()));
            table
        };
        for device in &scope.devices {
            plain[*device] = Some(table(&instance.plain[*device]));
            if let Some((member, _)) = &instance.as_head[*device] {
                as_head[*device] = Some(table(member));
            }
        }
        let (Rounds::Exactly(rounds) | Rounds::AtLeast(rounds)) = rounds;
        Self { rounds, plain, as_head }
    }

    fn of(&self, device: usize, head: usize) -> &SplitTable {
        let table = if device == head { &self.as_head[device] } else { &self.plain[device] };
        table.as_ref().expect("tables exist for every device of the scope")
    }
}

/// Bounds on the hops of a ring.
struct Hops {
    /// All hops are equal, so that the bounds are exact.
    uniform: bool,
    /// Per device, the least time to leave it for another.
    out_min: Vec<Ticks>,
}

impl Hops {
    fn of(instance: &Instance, scope: &Scope) -> Self {
        let mut involved: Vec<usize> = scope.devices.iter().chain(&scope.heads).copied().collect();
        involved.sort_unstable();
        involved.dedup();
        let mut uniform = true;
        let mut out_min = vec![NEVER; instance.devices()];
        let mut any = None;
        for from in &involved {
            for to in involved.iter().filter(|to| *to != from) {
                let time = hop(instance, *from, *to);
                uniform &= *any.get_or_insert(time) == time;
                out_min[*from] = out_min[*from].min(time);
            }
        }
        Self { uniform, out_min }
    }
}

struct Run<'a> {
    instance: &'a Instance,
    scope: &'a Scope,
    hops: Hops,
    best: Option<Assignment>,
    divisions: u64,
}

impl Run<'_> {
    fn offer(&mut self, found: Option<Assignment>) {
        if let Some(found) = found
            && self.best.as_ref().is_none_or(|best| found.key() < best.key())
        {
            self.best = Some(found);
        }
    }

    /// Tables of what may still be better; a tie more, because the best so far may come to have more
    /// rounds.
    fn tables(&self, rounds: u32) -> Tables {
        let bound = self.bound(rounds) + TIE;
        Tables::new(self.instance, self.scope, Rounds::Exactly(rounds), bound)
    }

    /// What a token must stay below to be of interest with this number of rounds: equal times count
    /// only with no more rounds.
    fn bound(&self, rounds: u32) -> Ticks {
        let Some(best) = &self.best else { return NEVER };
        let time = whole(best.token) * TIE;
        if rounds <= best.rounds { time + TIE } else { time }
    }

    fn wanted(&self, devices: &[usize]) -> bool {
        self.scope.required.is_none_or(|required| devices.contains(&required))
    }

    /// A device alone, or alone behind an idle head.
    fn alone(&mut self, tables: &Tables) {
        for head in &self.scope.heads {
            for device in &self.scope.devices {
                self.try_ring(tables, Ring { head: *head, order: vec![*device] });
            }
        }
    }

    /// Divides the layers over one ring, if it may be and may be better.
    fn try_ring(&mut self, tables: &Tables, ring: Ring) {
        let instance = self.instance;
        let bound = self.bound(tables.rounds);
        let possible = self.divisions < self.scope.divisions_max
            && instance.as_head[ring.head].is_some()
            && (instance.idle_head || !ring.idle_head())
            && self.wanted(&ring.order)
            && ring.hops_total(instance, tables.rounds) + ring.constant(instance) < bound;
        if !possible {
            return;
        }
        let own: Vec<&SplitTable> =
            ring.order.iter().map(|device| tables.of(*device, ring.head)).collect();
        self.divisions += 1;
        let found = ring.divide(instance, &own, tables.rounds, bound);
        self.offer(found);
    }

    /// Whether no ring with at least this many rounds can be better, even if streams took no more
    /// memory than with the most rounds: more rounds then only cost more hops.
    fn settled(&self, least: &mut Option<Tables>, rounds: u32) -> bool {
        let instance = self.instance;
        let bound = self.bound(rounds) + TIE;
        let new = || Tables::new(instance, self.scope, Rounds::AtLeast(rounds), bound);
        let tables = least.get_or_insert_with(new);
        let alone = |head: usize, device: usize| {
            let ring = Ring { head, order: vec![device] };
            if instance.as_head[head].is_none() || (ring.idle_head() && !instance.idle_head) {
                return false;
            }
            let table = tables.of(device, head);
            ring.divide(instance, &[table], rounds, self.bound(rounds)).is_some()
        };
        // A device alone sends nothing between rounds, so that bounds on hops do not hold for it.
        self.scope.heads.iter().all(|head| {
            self.lowest(tables, rounds, *head).is_none()
                && !self.scope.devices.iter().any(|device| alone(*head, *device))
        })
    }

    /// The best division of layers with every hop at its least: its devices, in no order. `None` if
    /// even that does not beat the best so far.
    fn lowest(&self, tables: &Tables, rounds: u32, head: usize) -> Option<Vec<usize>> {
        let instance = self.instance;
        let (_, constant) = instance.as_head[head].as_ref()?;
        let bound = self.bound(rounds);
        let rounds = i64::from(rounds);
        let leave = |device: usize| self.hops.out_min[device].min(NEVER / 64);
        // A head outside the devices is idle in any case, and its first hop is part of no seat.
        let outside = if self.scope.devices.contains(&head) { 0 } else { leave(head) };
        let apart = constant + outside;
        let seat = |device: &usize| {
            let absent = match *device == head {
                _ if self.scope.required == Some(*device) => None,
                true if instance.idle_head => Some(leave(head)),
                true => None,
                false => Some(0),
            };
            let table = tables.of(*device, head);
            let hops = leave(*device).saturating_mul(rounds).min(NEVER);
            let hops_beside_stream = instance.hops_beside_stream(hops, apart);
            Seat { table, hops: hops + 1, hops_beside_stream, absent }
        };
        let seats: Vec<Seat<'_>> = self.scope.devices.iter().map(seat).collect();
        let found = allocate(&seats, instance.layers, bound - apart)?;
        let taking = self.scope.devices.iter().zip(&found.splits);
        Some(taking.filter(|(_, split)| split.is_some()).map(|(device, _)| *device).collect())
    }

    /// All rings with this head and number of rounds.
    fn with_head(&mut self, tables: &Tables, head: usize) {
        if self.divisions >= self.scope.divisions_max {
            return;
        }
        self.divisions += 1;
        let Some(members) = self.lowest(tables, tables.rounds, head) else { return };
        self.try_set(tables, head, &members);
        if self.hops.uniform || self.scope.devices.len() > EXACT_DEVICES_MAX + 1 {
            return;
        }
        let others: Vec<usize> =
            self.scope.devices.iter().copied().filter(|device| *device != head).collect();
        let tours = Tours::new(self.instance, head, &others);
        let least = self.least_work(tables, head);
        for set in 1..1_usize << others.len() {
            if let Some(tour) = tours.order(self.instance, set)
                && self.may_be_better(tables, &tour, least)
            {
                self.try_tour(tables, tour);
            }
        }
    }

    /// The least busy time of any division among any devices, without hops.
    fn least_work(&self, tables: &Tables, head: usize) -> Ticks {
        let seat = |device: &usize| {
            let table = tables.of(*device, head);
            Seat { table, hops: 0, hops_beside_stream: 0, absent: Some(0) }
        };
        let seats: Vec<Seat<'_>> = self.scope.devices.iter().map(seat).collect();
        least_work(&seats, self.instance.layers, self.bound(tables.rounds))
    }

    /// Whether a tour, or the same with an idle head, leaves enough time for the work.
    fn may_be_better(&self, tables: &Tables, tour: &[usize], least: Ticks) -> bool {
        let head = tour[0];
        let room = self.bound(tables.rounds) - least;
        let fits = |order: &[usize]| {
            let ring = Ring { head, order: order.to_vec() };
            let hops = ring.hops_total(self.instance, tables.rounds);
            hops + ring.constant(self.instance) < room
        };
        fits(tour) || (self.instance.idle_head && fits(&tour[1..]))
    }

    /// The ring over a set, in the order of the shortest tour.
    fn try_set(&mut self, tables: &Tables, head: usize, members: &[usize]) {
        let others: Vec<usize> = members.iter().copied().filter(|device| *device != head).collect();
        if let Some(tour) = order(self.instance, head, &others) {
            self.try_tour(tables, tour);
        }
    }

    /// A tour whose first device is the head: with layers on it, and with none.
    fn try_tour(&mut self, tables: &Tables, tour: Vec<usize>) {
        let head = tour[0];
        let without = tour[1..].to_vec();
        if self.scope.devices.contains(&head) {
            self.try_ring(tables, Ring { head, order: tour });
        }
        if self.instance.idle_head && !without.is_empty() {
            self.try_ring(tables, Ring { head, order: without });
        }
    }

    /// Starting from the best ring and from all devices: leave one out, take one in, as long as it
    /// helps.
    fn improve(&mut self, tables: &[Tables]) {
        let best = self.best.as_ref().map(|best| best.ring.order.clone());
        for mut members in [Some(self.scope.devices.clone()), best].into_iter().flatten() {
            loop {
                let before = self.best.as_ref().map(Assignment::key);
                for set in neighbours(&self.scope.devices, &members) {
                    self.try_every_head(tables, &set);
                }
                let Some(best) = self.best.as_ref().filter(|best| Some(best.key()) != before)
                else {
                    break;
                };
                members = best.ring.order.clone();
                members.sort_unstable();
            }
        }
    }

    fn try_every_head(&mut self, tables: &[Tables], set: &[usize]) {
        for head in self.scope.heads.clone() {
            let others: Vec<usize> = set.iter().copied().filter(|device| *device != head).collect();
            if let Some(tour) = order(self.instance, head, &others) {
                for tables in tables {
                    self.try_tour(tables, tour.clone());
                }
            }
        }
    }
}

/// The set itself, and every set with one device fewer or more.
fn neighbours(devices: &[usize], members: &[usize]) -> Vec<Vec<usize>> {
    let mut sets = vec![members.to_vec()];
    for device in devices {
        let mut other: Vec<usize> =
            members.iter().copied().filter(|member| member != device).collect();
        if other.len() == members.len() {
            other.push(*device);
            other.sort_unstable();
        }
        sets.push(other);
    }
    sets.retain(|set| !set.is_empty());
    sets
}
