//! Fronts of what plans can add up to, and the roles that reach them (PLANNER 5, method B).

use std::cmp::Ordering;
use std::rc::Rc;

use super::replica::{Choice, Choices};
use super::setting::Setting;
use crate::waiting::{Key, Sums, WORST, compare};

/// Replicas chosen so far, shared between the plans that begin alike.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) choices: Rc<Choices>,
    pub(super) index: usize,
    pub(super) before: Option<Rc<Self>>,
}

impl Chosen {
    pub(super) fn choice(&self) -> &Choice {
        &self.choices[self.index]
    }

    /// From the last replica to the first.
    pub(super) fn list(self: &Rc<Self>) -> Vec<Choice> {
        let mut list = Vec::new();
        let mut next = Some(self);
        while let Some(chosen) = next {
            list.push(chosen.choice().clone());
            next = chosen.before.as_ref();
        }
        list
    }
}

/// What a partial plan adds up to, and where it comes from.
#[derive(Debug, Clone)]
pub(super) struct Offer<T> {
    pub(super) sums: Sums,
    /// Slowest prefill, slowest time per token, devices used: for ties only.
    pub(super) rest: [f64; 3],
    pub(super) origin: T,
}

/// A partial plan.
pub(super) type Point = Offer<Option<Rc<Chosen>>>;

impl Point {
    /// The plan with no replica.
    pub(super) const NOTHING: Self = Self { sums: Sums::NONE, rest: [0.0; 3], origin: None };

    /// With one replica more.
    pub(super) fn with(&self, choices: &Rc<Choices>, index: usize) -> Self {
        let offer = self.offer(&choices[index], ());
        let before = self.origin.clone();
        let chosen = Chosen { choices: Rc::clone(choices), index, before };
        Self { sums: offer.sums, rest: offer.rest, origin: Some(Rc::new(chosen)) }
    }

    pub(super) fn key(&self, setting: &Setting<'_>) -> Key {
        setting.demand.key(setting.goal, &self.sums, self.rest)
    }
}

impl<T> Offer<T> {
    /// What one replica more adds up to.
    pub(super) fn offer<U>(&self, choice: &Choice, origin: U) -> Offer<U> {
        let [ttft, tpot, devices] = self.rest;
        let devices = devices + choice.order.len() as f64;
        let rest = [ttft.max(choice.ttft), tpot.max(choice.tpot), devices];
        Offer { sums: self.sums.plus(choice.sums), rest, origin }
    }

    fn beats(&self, other: &Self) -> bool {
        self.sums.covers(&other.sums)
            && (self.sums != other.sums || self.rest.iter().zip(&other.rest).all(|(a, b)| a <= b))
    }

    /// Most of each sum first, so that whoever covers another comes earlier.
    fn order(&self, other: &Self) -> Ordering {
        let (own, their) = (&self.sums, &other.sums);
        their
            .prefill
            .total_cmp(&own.prefill)
            .then_with(|| their.decode.total_cmp(&own.decode))
            .then_with(|| their.slots.total_cmp(&own.slots))
            .then_with(|| lexicographic(&self.rest, &other.rest))
    }
}

/// Drops offers that another covers, and thins the rest to `most` if there are more.
pub(super) fn reduce<T>(mut offers: Vec<Offer<T>>, most: usize) -> Vec<Offer<T>> {
    offers.sort_unstable_by(Offer::order);
    let mut kept: Vec<Offer<T>> = Vec::new();
    // Most slots with at least so much decoding among those kept, which have no less prefill:
    // decoding falls, slots rise. Whoever is under a step of these stairs is covered.
    let mut stairs: Vec<(f64, f64)> = Vec::new();
    for offer in offers {
        let (decode, slots) = (offer.sums.decode, offer.sums.slots);
        let place = stairs.partition_point(|(other, _)| *other >= decode);
        let covered = place > 0 && stairs[place - 1].1 >= slots;
        if covered {
            // The same sums count once more only where they are reached better otherwise.
            let same = |other: &&Offer<T>| other.sums == offer.sums;
            let twins = kept.iter().rev().take_while(same);
            if kept.last().is_none_or(|last| last.sums != offer.sums)
                || twins.into_iter().any(|twin| twin.beats(&offer))
            {
                continue;
            }
        } else {
            // The new step takes away those that it covers.
            let from = stairs.partition_point(|(other, _)| *other > decode);
            let covers = stairs[from..].iter().take_while(|(_, other)| *other <= slots).count();
            stairs.splice(from..from + covers, [(decode, slots)]);
        }
        kept.push(offer);
    }
    if kept.len() <= most {
        return kept;
    }
    let spacing = (kept.len() - 1) as f64 / (most - 1) as f64;
    let mut wanted = (0..most).map(|index| (index as f64 * spacing).round() as usize).peekable();
    let mut thinned = Vec::with_capacity(most);
    for (index, offer) in kept.into_iter().enumerate() {
        if wanted.next_if_eq(&index).is_some() {
            thinned.push(offer);
        }
    }
    thinned
}

fn lexicographic(a: &[f64; 3], b: &[f64; 3]) -> Ordering {
    a.iter().zip(b).map(|(x, y)| x.total_cmp(y)).find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
}

/// The best point and its key; `None` if none serves.
pub(super) fn best(setting: &Setting<'_>, points: &[Point]) -> Option<(Key, Point)> {
    let keyed = points.iter().map(|point| (point.key(setting), point));
    let (key, point) = keyed.min_by(|(a, _), (b, _)| compare(a, b))?;
    (compare(&key, &WORST).is_lt()).then(|| (key, point.clone()))
}

/// Every way to give these groups roles and slots, reduced: exact for any objective of the sums
/// while the front has no more than `most` points.
pub(super) fn roles(groups: &[Rc<Choices>], most: usize) -> Vec<Point> {
    let mut front = vec![Point::NOTHING];
    for choices in groups {
        let mut offers = Vec::with_capacity(front.len() * choices.len());
        for (place, point) in front.iter().enumerate() {
            let each = choices.iter().enumerate();
            offers.extend(each.map(|(index, choice)| point.offer(choice, (place, index))));
        }
        let kept = reduce(offers, most);
        front =
            kept.iter().map(|offer| front[offer.origin.0].with(choices, offer.origin.1)).collect();
    }
    front
}

/// Joins every plan of one set of devices with every plan of another.
pub(super) fn join(a: &[Point], b: &[Point], most: usize) -> Vec<Point> {
    let mut offers = Vec::with_capacity(a.len() * b.len());
    for (first, x) in a.iter().enumerate() {
        for (second, y) in b.iter().enumerate() {
            let rest = [x.rest[0].max(y.rest[0]), x.rest[1].max(y.rest[1]), x.rest[2] + y.rest[2]];
            offers.push(Offer { sums: x.sums.plus(y.sums), rest, origin: (first, second) });
        }
    }
    reduce(offers, most)
        .into_iter()
        .map(|offer| {
            let mut point = a[offer.origin.0].clone();
            let mut links = Vec::new();
            let mut next = b[offer.origin.1].origin.as_ref();
            while let Some(chosen) = next {
                links.push((Rc::clone(&chosen.choices), chosen.index));
                next = chosen.before.as_ref();
            }
            for (choices, index) in links.into_iter().rev() {
                point = point.with(&choices, index);
            }
            point
        })
        .collect()
}
