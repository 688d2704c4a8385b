//! In which order a ring visits its devices: head first, shortest tour by hop times.

use super::instance::{Instance, NEVER, Ticks};

/// Up to this many devices beside the head every tour is considered.
pub(super) const EXACT_DEVICES_MAX: usize = 9;

/// Shortest tours from one head over every set of up to [`EXACT_DEVICES_MAX`] other devices
/// (Held and Karp's recurrence).
#[derive(Debug, Clone)]
pub(super) struct Tours {
    head: usize,
    others: Vec<usize>,
    /// Per set and last device: the shortest path from the head and the device before the last.
    paths: Vec<Vec<(Ticks, usize)>>,
}

impl Tours {
    pub(super) fn new(instance: &Instance, head: usize, others: &[usize]) -> Self {
        assert!(others.len() <= EXACT_DEVICES_MAX, "{} devices are too many", others.len());
        let count = others.len();
        let mut paths = vec![vec![(NEVER, usize::MAX); count]; 1 << count];
        for set in 1..1_usize << count {
            for last in (0..count).filter(|last| set & 1 << last != 0) {
                let before = set & !(1 << last);
                let mut best = (NEVER, usize::MAX);
                if before == 0 {
                    best.0 = hop(instance, head, others[last]);
                }
                for previous in (0..count).filter(|previous| before & 1 << previous != 0) {
                    let (path, _) = paths[before][previous];
                    let longer = path + hop(instance, others[previous], others[last]);
                    // Among equals the later device comes later.
                    if path < NEVER && longer <= best.0 {
                        best = (longer, previous);
                    }
                }
                paths[set][last] = best;
            }
        }
        Self { head, others: others.to_vec(), paths }
    }

    /// The shortest tour over the head and a set of the others (a bit per position).
    pub(super) fn order(&self, instance: &Instance, set: usize) -> Option<Vec<usize>> {
        let count = self.others.len();
        if set == 0 {
            return Some(vec![self.head]);
        }
        let closed = |last: &usize| {
            let (path, _) = self.paths[set][*last];
            if path >= NEVER { NEVER } else { path + hop(instance, self.others[*last], self.head) }
        };
        let inside = (0..count).filter(|last| set & 1 << last != 0);
        let mut last = inside.rev().min_by_key(closed).filter(|last| closed(last) < NEVER)?;
        let mut left = set;
        let mut order = Vec::new();
        while left != 0 {
            order.push(self.others[last]);
            let (_, previous) = self.paths[left][last];
            left &= !(1 << last);
            last = previous;
        }
        order.push(self.head);
        order.reverse();
        Some(order)
    }
}

/// A short tour over the head and any number of others: shortest for few, else by cheapest
/// insertion and moving single devices. `None` if no tour was found.
pub(super) fn order(instance: &Instance, head: usize, others: &[usize]) -> Option<Vec<usize>> {
    if others.len() <= EXACT_DEVICES_MAX {
        let tours = Tours::new(instance, head, others);
        return tours.order(instance, (1 << others.len()) - 1);
    }
    let mut tour = vec![head];
    for device in others {
        let at = best_place(instance, &tour, *device);
        tour.insert(at, *device);
    }
    loop {
        let before = length(instance, &tour);
        for device in others {
            let at = tour.iter().position(|other| other == device).expect("it is in the tour");
            let mut moved = tour.clone();
            moved.remove(at);
            let place = best_place(instance, &moved, *device);
            moved.insert(place, *device);
            if length(instance, &moved) < length(instance, &tour) {
                tour = moved;
            }
        }
        let after = length(instance, &tour);
        if after >= before {
            return (after < NEVER).then_some(tour);
        }
    }
}

fn best_place(instance: &Instance, tour: &[usize], device: usize) -> usize {
    let with = |at: &usize| {
        let mut longer = tour.to_vec();
        longer.insert(*at, device);
        length(instance, &longer)
    };
    (1..=tour.len()).min_by_key(with).expect("a tour has a place")
}

fn length(instance: &Instance, tour: &[usize]) -> Ticks {
    let next = tour.iter().cycle().skip(1);
    tour.iter().zip(next).fold(0, |sum, (from, to)| (sum + hop(instance, *from, *to)).min(NEVER))
}

/// Time of a hop; [`NEVER`] where there is no way, nothing to itself.
pub(super) fn hop(instance: &Instance, from: usize, to: usize) -> Ticks {
    if from == to {
        return 0;
    }
    instance.hops[from][to].unwrap_or(NEVER)
}
