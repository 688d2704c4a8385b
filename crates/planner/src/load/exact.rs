//! The best of all ways to group devices, for clusters whose whole fronts are too large (PLANNER 5).
//!
//! Prices turn what a plan adds up to into one number, and the most a set of devices can be worth at
//! a price is a sum over its groups, found set by set without any front. Whatever a plan's part and
//! the rest of the devices are worth together at most, a plan as good as the best known must be worth
//! more at every price ([`Level`]): that rules out most choices before they are computed and nearly
//! all parts of plans before they are compared. What remains goes through fronts as in `pareto`.

use std::rc::Rc;

use motley_cluster::Role;

use super::bounds::Bounds;
use super::front::{Offer, Point, best, reduce};
use super::pareto::{Origin, PENDING_MAX, Searched, Sets, group};
use super::replica::{Beyond, Choice, Choices, Wanted, choices_beyond, hopes};
use super::setting::Setting;
use crate::waiting::{Key, Level, Price, Sums, WORST, compare};

/// Prices that are kept at a time.
const PRICES: usize = 16;
type Worths = [f64; PRICES];

/// Rounding that must not cost the best plan, as part of a worth.
const ROUNDING: f64 = 1e-9;

/// Steps of the prefill's share in which the price that rules out most is looked for.
const COARSE: f64 = 0.06;
const FINE: f64 = 0.01;

/// The most a set is worth at each price, and what it then adds up to.
#[derive(Clone, Copy)]
struct Peak {
    worths: Worths,
    sums: [Sums; PRICES],
}

impl Peak {
    const NONE: Self = Self { worths: [f64::NEG_INFINITY; PRICES], sums: [Sums::NONE; PRICES] };
    const NOTHING: Self = Self { worths: [0.0; PRICES], sums: [Sums::NONE; PRICES] };

    fn raise(&mut self, other: &Self) {
        for price in 0..PRICES {
            if other.worths[price] > self.worths[price] {
                self.worths[price] = other.worths[price];
                self.sums[price] = other.sums[price];
            }
        }
    }
}

struct Search<'s, 'a> {
    setting: &'s Setting<'a>,
    bounds: Bounds<'s, 'a>,
    sets: Sets,
    /// What one device of each type is worth at most.
    potentials: Vec<Worths>,
    prices: [Price; PRICES],
    choices: Vec<Rc<Choices>>,
    /// Of each set as one group.
    own: Vec<Peak>,
    /// Of each set in any groups.
    peaks: Vec<Peak>,
    /// What a set can be worth as one group at most, and what in any groups.
    hopes: Vec<Worths>,
    tops: Vec<Worths>,
    /// Key of the best plan known, as far as sums decide it.
    known: Key,
    /// What anything as good is worth at least.
    needed: Worths,
}

/// The best plan; the same as [`super::pareto::search`] finds, and a front of plans about as good.
pub(super) fn search(setting: &Setting<'_>, counts: &[usize], wanted: Wanted) -> Searched {
    let sets = Sets::new(counts);
    let states = sets.states();
    let mut search = Search {
        setting,
        bounds: Bounds::new(setting, counts),
        sets,
        potentials: Vec::new(),
        prices: [Price { prefill: 0.0, decode: 0.0, slots: 0.0 }; PRICES],
        choices: vec![Rc::default(); states],
        own: vec![Peak::NONE; states],
        peaks: vec![Peak::NONE; states],
        hopes: vec![[f64::NEG_INFINITY; PRICES]; states],
        tops: vec![[f64::NEG_INFINITY; PRICES]; states],
        known: WORST,
        needed: [f64::NEG_INFINITY; PRICES],
    };
    search.peaks[0] = Peak::NOTHING;
    search.prices = search.first_prices();
    let by_price = search.prices.map(|price| search.bounds.worths(&price));
    search.potentials =
        (0..counts.len()).map(|kind| std::array::from_fn(|price| by_price[price][kind])).collect();
    let complete = search.choose_all(counts, wanted);
    search.reprice((0.5, COARSE));
    search.reprice((search.tightest(), FINE));
    let fronts = search.fronts();
    // Ended early, the largest set that was finished still has plans.
    let any = fronts.iter().rev().find(|front| best(setting, front).is_some());
    let partial = any.filter(|_| setting.problem.options.allow_idle);
    let front = fronts.last().filter(|front| !front.is_empty()).or(partial);
    let front = front.cloned().unwrap_or_default();
    Searched { best: best(setting, &front), front, complete }
}

impl Search<'_, '_> {
    /// Each sum alone, decoding with slots, and shares of both phases.
    fn first_prices(&self) -> [Price; PRICES] {
        let alone = |prefill: f64, decode: f64, slots: f64| Price { prefill, decode, slots };
        let all = |price: &Price| -> f64 { self.bounds.worths(price).iter().sum() };
        let [decode, slots] = [alone(0.0, 1.0, 0.0), alone(0.0, 0.0, 1.0)];
        let slot = if all(&slots) > 0.0 { all(&decode) / all(&slots) } else { 0.0 };
        let share = |part: f64| alone(part, 1.0 - part, 0.0);
        let with_slots = |part: f64| alone(0.0, 1.0, part * slot);
        [
            alone(1.0, 0.0, 0.0),
            decode,
            slots,
            with_slots(0.25),
            with_slots(0.5),
            with_slots(1.0),
            with_slots(2.0),
            with_slots(4.0),
            share(0.05),
            share(0.1),
            share(0.15),
            share(0.2),
            share(0.27),
            share(0.35),
            share(0.5),
            share(0.7),
        ]
    }

    fn worths(&self, sums: &Sums) -> Worths {
        let demand = &self.setting.demand;
        let (prefill, decode) = (sums.prefill / demand.prompt, sums.decode / demand.generated);
        self.prices
            .map(|price| price.prefill * prefill + price.decode * decode + price.slots * sums.slots)
    }

    /// The choices of every set as one group, small sets first. `false` if the budget ran out.
    fn choose_all(&mut self, counts: &[usize], wanted: Wanted) -> bool {
        let devices: usize = counts.iter().sum();
        let mut by_size: Vec<Vec<usize>> = vec![Vec::new(); devices + 1];
        for state in 1..self.sets.states() {
            by_size[self.sets.set(state).iter().sum::<usize>()].push(state);
        }
        self.hope(wanted);
        for (size, states) in by_size.iter().enumerate() {
            for state in states {
                if self.setting.exhausted() {
                    self.sweep();
                    return false;
                }
                self.combine(*state);
                self.choose(*state, 2 * size > devices, wanted);
            }
            // What small groups make of all devices is something larger ones must pass.
            if size > 0 && (size == devices || size == devices / 4 || size == devices / 2) {
                self.sweep();
            }
            self.top();
        }
        true
    }

    /// The set's peak from its groups; its choices as one group, if known, are among them.
    fn combine(&mut self, state: usize) {
        let set = self.sets.set(state);
        let Some(first) = set.iter().position(|count| *count > 0) else { return };
        let mut worths = [f64::NEG_INFINITY; PRICES];
        let mut blocks = [0_u32; PRICES];
        if self.setting.problem.options.allow_idle {
            worths = self.peaks[state - self.sets.stride(first)].worths;
        }
        self.sets.each_block(&set, |block| {
            if self.choices[block].is_empty() {
                return;
            }
            let (own, rest) = (&self.own[block].worths, &self.peaks[state - block].worths);
            for price in 0..PRICES {
                let worth = own[price] + rest[price];
                if worth > worths[price] {
                    worths[price] = worth;
                    blocks[price] = block as u32;
                }
            }
        });
        let mut peak = Peak { worths, ..Peak::NONE };
        for (price, block) in blocks.into_iter().enumerate() {
            let block = block as usize;
            peak.sums[price] = if block == 0 {
                self.peaks[state - self.sets.stride(first)].sums[price]
            } else {
                self.own[block].sums[price].plus(self.peaks[state - block].sums[price])
            };
        }
        self.peaks[state] = peak;
    }

    /// The choices of a set as one group that no plan of its parts covers and that may be part of a
    /// plan as good as the best known. Of the devices beside a large set everything is known.
    fn choose(&mut self, state: usize, large: bool, wanted: Wanted) {
        let beside = self.sets.states() - 1 - state;
        let outside = if large { self.peaks[beside].worths } else { self.tops[beside] };
        let set = self.sets.set(state);
        let inside = self.hopes[state];
        self.hopes[state] = [f64::NEG_INFINITY; PRICES];
        let left: Worths = std::array::from_fn(|price| self.needed[price] - outside[price]);
        if (0..PRICES).any(|price| inside[price] < left[price]) {
            return;
        }
        let worth = |sums: &Sums| {
            let worths = self.worths(sums);
            (0..PRICES).all(|price| worths[price] >= left[price])
        };
        let needed = |role: Role, slots: f64| {
            let rate = |(price, left): (&Price, &f64)| {
                let requests = match role {
                    Role::Mixed => price.prefill + price.decode,
                    Role::Prefill | Role::Decode => price.decode,
                };
                if requests > 0.0 { (left - price.slots * slots) / requests } else { 0.0 }
            };
            let requests = self.prices.iter().zip(&left).map(rate).fold(0.0, f64::max);
            requests * self.setting.demand.generated
        };
        let offered = self.peaks[state].sums;
        let beyond = Beyond { offered: &offered, worth: &worth, needed: &needed };
        let mut own = choices_beyond(self.setting, &group(&set), wanted, beyond);
        own.retain(|choice| {
            worth(&choice.sums) && !offered.iter().any(|sums| sums.covers(&choice.sums))
        });
        if own.is_empty() {
            return;
        }
        let peak = self.peak_of(&own);
        self.own[state] = peak;
        self.hopes[state] = peak.worths;
        self.peaks[state].raise(&peak);
        self.choices[state] = Rc::new(own);
    }

    /// The most a set's devices are worth at each price, whatever they form.
    fn potential(&self, set: &[usize]) -> Worths {
        let mut sum = [0.0; PRICES];
        for (worths, count) in self.potentials.iter().zip(set) {
            for price in 0..PRICES {
                sum[price] += worths[price] * *count as f64;
            }
        }
        sum
    }

    fn hope(&mut self, wanted: Wanted) {
        for state in 1..self.sets.states() {
            let set = self.sets.set(state);
            let most = self.potential(&set);
            let hopes = hopes(self.setting, &group(&set), wanted);
            let mut worths = [f64::NEG_INFINITY; PRICES];
            for sums in &hopes {
                let own = self.worths(sums);
                for price in 0..PRICES {
                    worths[price] = worths[price].max(own[price].min(most[price]));
                }
            }
            self.hopes[state] = worths;
        }
        self.top();
    }

    /// The most every set can be worth by what is known.
    fn top(&mut self) {
        self.tops[0] = [0.0; PRICES];
        for state in 1..self.sets.states() {
            let set = self.sets.set(state);
            let Some(first) = set.iter().position(|count| *count > 0) else { continue };
            let mut worths = if self.setting.problem.options.allow_idle {
                self.tops[state - self.sets.stride(first)]
            } else {
                [f64::NEG_INFINITY; PRICES]
            };
            self.sets.each_block(&set, |block| {
                let (own, rest) = (&self.hopes[block], &self.tops[state - block]);
                for price in 0..PRICES {
                    worths[price] = worths[price].max(own[price] + rest[price]);
                }
            });
            self.tops[state] = worths;
        }
    }

    fn peak_of(&self, choices: &[Choice]) -> Peak {
        let mut peak = Peak::NONE;
        for choice in choices {
            let one = Peak { worths: self.worths(&choice.sums), sums: [choice.sums; PRICES] };
            peak.raise(&one);
        }
        peak
    }

    /// Every set's peak anew, and the best of the plans that peaks of two halves make.
    fn sweep(&mut self) {
        let states = self.sets.states();
        for state in 1..states {
            self.combine(state);
        }
        let (demand, goal) = (&self.setting.demand, self.setting.goal);
        let all = &self.peaks[states - 1];
        let mut best = self.known;
        let mut learn = |sums: &Sums| {
            let key = demand.key(goal, sums, [0.0; 3]);
            if compare(&key, &best).is_lt() {
                best = key;
            }
        };
        all.sums.iter().for_each(&mut learn);
        for state in 0..states {
            let (part, rest) = (&self.peaks[state], &self.peaks[states - 1 - state]);
            // From the price that favours decoding most to the one that favours prefill most.
            let (decodes, prefills) = (self.extreme(true), self.extreme(false));
            if part.worths[decodes].is_finite() && rest.worths[prefills].is_finite() {
                learn(&part.sums[decodes].plus(rest.sums[prefills]));
            }
        }
        self.known = best;
        self.need();
    }

    /// The price that favours one phase most.
    fn extreme(&self, decode: bool) -> usize {
        let share = |price: &usize| {
            let Price { prefill, decode, .. } = self.prices[*price];
            prefill / (prefill + decode).max(f64::MIN_POSITIVE)
        };
        let found = if decode {
            (0..PRICES)
                .filter(|price| self.prices[*price].decode > 0.0)
                .min_by(|a, b| share(a).total_cmp(&share(b)))
        } else {
            (0..PRICES).max_by(|a, b| share(a).total_cmp(&share(b)))
        };
        found.unwrap_or(0)
    }

    /// What anything as good as the best known plan is worth.
    fn need(&mut self) {
        if compare(&self.known, &WORST).is_ge() {
            return;
        }
        let mut key = self.known;
        key[0] += key[0].abs() * ROUNDING;
        key[1] += key[1].abs() * ROUNDING;
        let (demand, goal) = (&self.setting.demand, self.setting.goal);
        let level = Level::new(demand, goal, &key, self.bounds.slots_max());
        self.needed = self.prices.map(|price| level.least_worth(&price) * (1.0 - ROUNDING));
    }

    /// Prices around the one that rules out most.
    fn reprice(&mut self, (centre, step): (f64, f64)) {
        let share = |place: usize| {
            let away = place as f64 - (PRICES - 1) as f64 / 2.0;
            let prefill = (centre + away * step).clamp(0.0, 1.0);
            Price { prefill, decode: 1.0 - prefill, slots: 0.0 }
        };
        self.prices = std::array::from_fn(share);
        for state in 0..self.own.len() {
            if !self.choices[state].is_empty() {
                self.own[state] = self.peak_of(&self.choices[state]);
            }
        }
        self.need();
        self.sweep();
    }

    /// The prefill's share at which all devices are worth least beyond what is needed.
    fn tightest(&self) -> f64 {
        let all = &self.peaks[self.peaks.len() - 1];
        let spare = |price: &usize| all.worths[*price] / self.needed[*price];
        let least = (0..PRICES).min_by(|a, b| spare(a).total_cmp(&spare(b)));
        least.map_or(0.5, |price| self.prices[price].prefill)
    }

    /// Fronts of all sets that may be what a plan's first groups leave, as far as they may be part of
    /// a plan as good as the best known. A first group holds the first device.
    fn fronts(&self) -> Vec<Vec<Point>> {
        let states = self.sets.states();
        let all = self.sets.set(states - 1);
        let Some(first) = all.iter().position(|count| *count > 0) else { return Vec::new() };
        let mut fronts: Vec<Vec<Point>> = vec![Vec::new(); states];
        fronts[0] = vec![Point::NOTHING];
        for state in 1..states {
            let set = self.sets.set(state);
            if state + 1 == states || set[first] < all[first] {
                fronts[state] = self.front(&fronts, state, &set);
            }
        }
        fronts
    }

    fn front(&self, fronts: &[Vec<Point>], state: usize, set: &[usize]) -> Vec<Point> {
        let beside = &self.peaks[self.sets.states() - 1 - state].worths;
        let left: Worths = std::array::from_fn(|price| self.needed[price] - beside[price]);
        let enough = |worths: &Worths| (0..PRICES).all(|price| worths[price] >= left[price]);
        if !enough(&self.peaks[state].worths) {
            return Vec::new();
        }
        let mut offers: Vec<Offer<Origin>> = Vec::new();
        let first = set.iter().position(|count| *count > 0).unwrap_or(0);
        if self.setting.problem.options.allow_idle {
            let rest = state - self.sets.stride(first);
            let points = fronts[rest].iter().enumerate();
            offers.extend(points.filter(|(_, point)| enough(&self.worths(&point.sums))).map(
                |(place, point)| {
                    let origin = Origin { rest, place, block: 0, index: 0 };
                    Offer { sums: point.sums, rest: point.rest, origin }
                },
            ));
        }
        self.sets.each_block(set, |block| {
            let rest = state - block;
            let (own, peak) = (&self.own[block].worths, &self.peaks[rest].worths);
            if fronts[rest].is_empty()
                || self.choices[block].is_empty()
                || !enough(&std::array::from_fn(|price| own[price] + peak[price]))
            {
                return;
            }
            for (index, choice) in self.choices[block].iter().enumerate() {
                let points = fronts[rest].iter().enumerate();
                let joined = points.map(|(place, point)| {
                    point.offer(choice, Origin { rest, place, block, index })
                });
                offers.extend(joined.filter(|offer| enough(&self.worths(&offer.sums))));
            }
            if offers.len() > PENDING_MAX {
                offers = reduce(std::mem::take(&mut offers), usize::MAX);
            }
        });
        let point = |Offer { origin, .. }: Offer<Origin>| {
            let before = &fronts[origin.rest][origin.place];
            if origin.block == 0 {
                return before.clone();
            }
            before.with(&self.choices[origin.block], origin.index)
        };
        reduce(offers, usize::MAX).into_iter().map(point).collect()
    }
}
