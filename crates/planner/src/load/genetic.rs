//! E2LLM's genetic search over groupings (PLANNER 4.4).

use std::collections::BTreeMap;

use super::front::Point;
use super::grouping::{Library, RoleRule};
use super::random::Random;
use super::setting::TypeId;
use crate::waiting::{Key, WORST, compare};

const POPULATION: usize = 64;
const GENERATIONS: usize = 150;
const ELITES: usize = 6;
const TOURNAMENT: usize = 3;
const STAGNANT_MAX: usize = 40;
/// Above so many devices every individual brings new groups to compute, and patience costs seconds.
const LARGE: usize = 24;
const STAGNANT_LARGE: usize = 8;
const MUTATION: f64 = 0.3;

/// Both chromosomes: an order of devices and the sizes of consecutive groups.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Genome {
    order: Vec<usize>,
    sizes: Vec<usize>,
}

impl Genome {
    /// Groups of types, sorted in themselves and among themselves: what the plan depends on.
    fn groups(&self, types: &[TypeId]) -> Vec<Vec<TypeId>> {
        let mut groups = Vec::with_capacity(self.sizes.len());
        let mut start = 0;
        for size in &self.sizes {
            let devices = &self.order[start..start + size];
            let mut group: Vec<TypeId> = devices.iter().map(|device| types[*device]).collect();
            group.sort_unstable();
            groups.push(group);
            start += size;
        }
        groups.sort_unstable();
        groups
    }
}

/// The best grouping found from the seed, with its key. `starts` are groupings of positions in
/// `types` to begin with besides the built-in ones.
pub(super) fn search(
    library: &mut Library<'_, '_>,
    types: &[TypeId],
    rule: RoleRule,
    starts: &[Vec<Vec<usize>>],
) -> Option<(Key, Point)> {
    let mut random = Random::new(library.setting.budget.seed);
    let mut scores = Scores { known: BTreeMap::new(), best: None };
    let mut population = first_population(library, types, starts, &mut random);
    let mut elites: Vec<(Key, Genome)> = Vec::new();
    let mut stagnant = 0;
    for _ in 0..GENERATIONS {
        let before = scores.best.as_ref().map(|(key, _)| *key);
        let scored: Vec<(Key, Genome)> = population
            .drain(..)
            .map(|genome| (scores.score(library, &genome.groups(types), rule), genome))
            .collect();
        elites.extend(scored.iter().cloned());
        elites.sort_by(|a, b| compare(&a.0, &b.0));
        elites.dedup_by(|a, b| a.1.groups(types) == b.1.groups(types));
        elites.truncate(ELITES);
        let improved = scores.best.as_ref().map(|(key, _)| *key) != before;
        stagnant = if improved { 0 } else { stagnant + 1 };
        let patience = if types.len() > LARGE { STAGNANT_LARGE } else { STAGNANT_MAX };
        if stagnant >= patience || library.setting.exhausted() {
            break;
        }
        let pool: Vec<&(Key, Genome)> = scored.iter().chain(&elites).collect();
        for _ in 0..POPULATION {
            let (one, other) = (pick(&pool, &mut random), pick(&pool, &mut random));
            let mut child = cross(one, other, &mut random);
            if random.chance(MUTATION) {
                mutate(&mut child, &mut random);
            }
            population.push(child);
        }
    }
    scores.best
}

/// Keys by canonical grouping.
struct Scores {
    known: BTreeMap<Vec<Vec<TypeId>>, Key>,
    best: Option<(Key, Point)>,
}

impl Scores {
    fn score(
        &mut self,
        library: &mut Library<'_, '_>,
        groups: &[Vec<TypeId>],
        rule: RoleRule,
    ) -> Key {
        if let Some(known) = self.known.get(groups) {
            return *known;
        }
        let found = library.score(groups, rule);
        let key = found.as_ref().map_or(WORST, |(key, _)| *key);
        self.known.insert(groups.to_vec(), key);
        let best = self.best.as_ref().map_or(WORST, |(key, _)| *key);
        if compare(&key, &best).is_lt() {
            self.best = found;
        }
        key
    }
}

fn first_population(
    library: &Library<'_, '_>,
    types: &[TypeId],
    starts: &[Vec<Vec<usize>>],
    random: &mut Random,
) -> Vec<Genome> {
    let count = types.len();
    let mut population: Vec<Genome> = starts
        .iter()
        .map(|groups| Genome {
            order: groups.concat(),
            sizes: groups.iter().map(Vec::len).collect(),
        })
        .collect();
    let order: Vec<usize> = (0..count).collect();
    population.push(Genome { order: order.clone(), sizes: vec![1; count] });
    population.push(Genome { order, sizes: vec![count] });
    for groups in 2..=(count / 2).min(POPULATION / 4) {
        let balanced = balanced(library, types, groups);
        let sizes = balanced.iter().map(Vec::len).collect();
        population.push(Genome { order: balanced.concat(), sizes });
    }
    while population.len() < POPULATION {
        let mut order: Vec<usize> = (0..count).collect();
        random.shuffle(&mut order);
        population.push(Genome { order, sizes: composition(count, random) });
    }
    population
}

/// So many groups of about equal memory: largest device first, to the group with the least.
pub(super) fn balanced(
    library: &Library<'_, '_>,
    types: &[TypeId],
    groups: usize,
) -> Vec<Vec<usize>> {
    let room = |device: &usize| library.setting.types[types[*device]].room();
    let mut devices: Vec<usize> = (0..types.len()).collect();
    devices.sort_by(|a, b| room(b).total_cmp(&room(a)));
    let mut filled: Vec<(f64, Vec<usize>)> = vec![(0.0, Vec::new()); groups];
    for device in devices {
        let least = (0..groups).min_by(|a, b| filled[*a].0.total_cmp(&filled[*b].0));
        if let Some(group) = least {
            filled[group].0 += room(&device);
            filled[group].1.push(device);
        }
    }
    filled.into_iter().map(|(_, group)| group).filter(|group| !group.is_empty()).collect()
}

/// Group sizes that add up to `count`.
fn composition(count: usize, random: &mut Random) -> Vec<usize> {
    let mut sizes = Vec::new();
    let mut left = count;
    while left > 0 {
        let size = 1 + random.below(left);
        sizes.push(size);
        left -= size;
    }
    // The first draws are the largest; no place in the order is to be special.
    random.shuffle(&mut sizes);
    sizes
}

fn pick<'p>(pool: &[&'p (Key, Genome)], random: &mut Random) -> &'p Genome {
    let mut best = pool[random.below(pool.len())];
    for _ in 1..TOURNAMENT {
        let other = pool[random.below(pool.len())];
        if compare(&other.0, &best.0).is_lt() {
            best = other;
        }
    }
    &best.1
}

/// A slice of one parent's order, the rest in the other's order; sizes of either.
fn cross(one: &Genome, other: &Genome, random: &mut Random) -> Genome {
    let count = one.order.len();
    let (a, b) = (random.below(count), random.below(count));
    let (from, to) = (a.min(b), a.max(b) + 1);
    let mut copied = vec![false; count];
    for device in &one.order[from..to] {
        copied[*device] = true;
    }
    let mut rest = other.order.iter().copied().filter(|device| !copied[*device]);
    let order =
        (0..count)
            .map(|place| {
                if (from..to).contains(&place) {
                    one.order[place]
                } else {
                    rest.next().unwrap_or(0)
                }
            })
            .collect();
    let sizes = if random.chance(0.5) { one.sizes.clone() } else { other.sizes.clone() };
    Genome { order, sizes }
}

/// 20 % swap two devices, 50 % redraw the sizes behind a cut, 15 % redraw all sizes, 15 % redraw both.
fn mutate(genome: &mut Genome, random: &mut Random) {
    let count = genome.order.len();
    match random.below(100) {
        0..20 => {
            let (a, b) = (random.below(count), random.below(count));
            genome.order.swap(a, b);
        }
        20..70 => {
            genome.sizes.truncate(random.below(genome.sizes.len()));
            let kept: usize = genome.sizes.iter().sum();
            genome.sizes.extend(composition(count - kept, random));
        }
        70..85 => genome.sizes = composition(count, random),
        _ => {
            random.shuffle(&mut genome.order);
            genome.sizes = composition(count, random);
        }
    }
}
