//! Exact search over all ways to group devices (PLANNER 5, method B).

use std::rc::Rc;

use super::bounds::{Bounds, Outside};
use super::front::{Offer, Point, best, reduce};
use super::replica::{Beyond, Choices, Wanted, choices_beyond};
use super::setting::{Setting, TypeId};
use crate::waiting::{Key, Sums};

/// Most pairs of a set of devices and one of its subsets that an exact search is started for.
pub(super) const PAIRS_MAX: f64 = 6e6;

/// Offers that wait to be compared; fewer comparisons of small lists beat one of a large list.
pub(super) const PENDING_MAX: usize = 2048;

/// The same for the default method: about twelve different devices, or more of fewer types.
pub(super) const PAIRS_DEFAULT: f64 = 6e5;

/// Pairs the search will look at for so many devices of each type: identical devices count once.
pub(super) fn pairs(counts: &[usize]) -> f64 {
    let of_type = |count: &usize| (*count as f64 + 1.0) * (*count as f64 + 2.0) / 2.0;
    counts.iter().map(of_type).product()
}

/// How far an exact search came.
#[derive(Debug)]
pub(super) struct Searched {
    pub(super) best: Option<(Key, Point)>,
    /// The front of all plans.
    pub(super) front: Vec<Point>,
    /// Nothing was left out.
    pub(super) complete: bool,
}

/// The front of every set of devices, from the empty one up. A set is one group holding its first
/// device, or that device idle, next to the front of the rest; its front is therefore exact, and so
/// is the best of any objective that only gains from each sum.
///
/// `counts` says how many devices of each type there are to use.
pub(super) fn search(setting: &Setting<'_>, counts: &[usize], wanted: Wanted) -> Searched {
    let sets = Sets::new(counts);
    let states = sets.states();
    let mut table = Table {
        setting,
        sets,
        fronts: vec![Vec::new(); states],
        options: vec![Rc::default(); states],
        bounds: Bounds::new(setting, counts),
    };
    table.fronts[0] = vec![Point::NOTHING];
    let mut complete = true;
    for state in 1..states {
        let set = table.sets.set(state);
        if setting.exhausted() {
            complete = false;
            break;
        }
        table.fill(state, &set, wanted);
    }
    // Ended early, the largest set that was finished still has plans.
    let front = table.fronts.pop().filter(|front| !front.is_empty());
    let front = front.or_else(|| {
        let any = table.fronts.iter().rev().find(|front| best(setting, front).is_some());
        any.filter(|_| setting.problem.options.allow_idle).cloned()
    });
    let front = front.unwrap_or_default();
    Searched { best: best(setting, &front), front, complete }
}

/// Sets of devices as numbers: how many there are of each type, in mixed radix.
pub(super) struct Sets {
    counts: Vec<usize>,
    strides: Vec<usize>,
}

impl Sets {
    pub(super) fn new(counts: &[usize]) -> Self {
        let next = |stride: &mut usize, count: &usize| {
            let own = *stride;
            *stride *= count + 1;
            Some(own)
        };
        Self { counts: counts.to_vec(), strides: counts.iter().scan(1, next).collect() }
    }

    /// Sets, the empty one included; the last has all devices.
    pub(super) fn states(&self) -> usize {
        self.counts.iter().map(|count| count + 1).product()
    }

    /// The number of one device of a type.
    pub(super) fn stride(&self, kind: TypeId) -> usize {
        self.strides[kind]
    }

    /// How many devices of each type a set has.
    pub(super) fn set(&self, state: usize) -> Vec<usize> {
        let digit = |(stride, count): (&usize, &usize)| state / stride % (count + 1);
        self.strides.iter().zip(&self.counts).map(digit).collect()
    }

    /// Every subset that holds the set's first device, the set itself last.
    pub(super) fn each_block(&self, set: &[usize], mut visit: impl FnMut(usize)) {
        let Some(first) = set.iter().position(|count| *count > 0) else { return };
        let mut block = vec![0; set.len()];
        block[first] = 1;
        let mut code = self.strides[first];
        let kinds: Vec<usize> = (first..set.len()).filter(|kind| set[*kind] > 0).collect();
        loop {
            visit(code);
            let more = kinds.iter().find(|kind| {
                if block[**kind] < set[**kind] {
                    block[**kind] += 1;
                    code += self.strides[**kind];
                    return true;
                }
                let least = usize::from(**kind == first);
                code -= (block[**kind] - least) * self.strides[**kind];
                block[**kind] = least;
                false
            });
            if more.is_none() {
                return;
            }
        }
    }
}

/// A set as types with repetition.
pub(super) fn group(set: &[usize]) -> Vec<TypeId> {
    set.iter().enumerate().flat_map(|(kind, count)| vec![kind; *count]).collect()
}

struct Table<'s, 'a> {
    setting: &'s Setting<'a>,
    sets: Sets,
    fronts: Vec<Vec<Point>>,
    options: Vec<Rc<Choices>>,
    bounds: Bounds<'s, 'a>,
}

/// A plan of the rest and a choice of the block; block 0 leaves a device idle.
#[derive(Debug, Clone, Copy)]
pub(super) struct Origin {
    pub(super) rest: usize,
    pub(super) place: usize,
    pub(super) block: usize,
    pub(super) index: usize,
}

impl Table<'_, '_> {
    fn fill(&mut self, state: usize, set: &[usize], wanted: Wanted) {
        let first = set.iter().position(|count| *count > 0).unwrap_or(0);
        let outside = self.bounds.outside(set);
        let mut offers: Vec<Offer<Origin>> = Vec::new();
        if self.setting.problem.options.allow_idle {
            let rest = state - self.sets.stride(first);
            for (place, point) in self.fronts[rest].iter().enumerate() {
                let origin = Origin { rest, place, block: 0, index: 0 };
                offers.push(Offer { sums: point.sums, rest: point.rest, origin });
            }
        }
        self.sets.each_block(set, |block| {
            if block != state {
                self.offer(state - block, block, &mut offers);
                if offers.len() > PENDING_MAX {
                    offers = self.prune(&outside, std::mem::take(&mut offers));
                }
            }
        });
        let kept = self.prune(&outside, offers);
        let mut front: Vec<Point> = kept.iter().map(|offer| self.point(&offer.origin)).collect();
        // The set as one group counts only where parts of it do not do better.
        let group = group(set);
        let offered: Vec<Sums> = front.iter().map(|point| point.sums).collect();
        let worth = |sums: &Sums| self.bounds.worth(&outside, sums);
        let beyond = Beyond { offered: &offered, worth: &worth, needed: &|_, _| 0.0 };
        let mut own = choices_beyond(self.setting, &group, wanted, beyond);
        own.retain(|choice| !offered.iter().any(|sums| sums.covers(&choice.sums)));
        let own = Rc::new(own);
        if !own.is_empty() {
            front.extend((0..own.len()).map(|index| Point::NOTHING.with(&own, index)));
            front = reduce(front, usize::MAX);
        }
        let complete = best(self.setting, &front);
        let complete = complete.filter(|_| self.setting.problem.options.allow_idle);
        if let Some((key, _)) = complete {
            // With idle devices allowed every set's plan is a plan.
            self.bounds.learn(key[0]);
        }
        self.options[state] = own;
        self.fronts[state] = front;
    }

    /// Offers that no other covers and that may begin a better plan than the best so far: whoever
    /// cannot pass it, even if all devices outside the set did their best, is dropped.
    fn prune(&self, outside: &Outside, mut offers: Vec<Offer<Origin>>) -> Vec<Offer<Origin>> {
        offers.retain(|offer| self.bounds.worth(outside, &offer.sums));
        reduce(offers, usize::MAX)
    }

    /// Every plan of `rest` with every choice of the block.
    fn offer(&self, rest: usize, block: usize, offers: &mut Vec<Offer<Origin>>) {
        for (index, choice) in self.options[block].iter().enumerate() {
            for (place, point) in self.fronts[rest].iter().enumerate() {
                offers.push(point.offer(choice, Origin { rest, place, block, index }));
            }
        }
    }

    fn point(&self, origin: &Origin) -> Point {
        let before = &self.fronts[origin.rest][origin.place];
        if origin.block == 0 {
            return before.clone();
        }
        before.with(&self.options[origin.block], origin.index)
    }
}
