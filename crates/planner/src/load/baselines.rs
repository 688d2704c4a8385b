//! Other systems' ideas over the same evaluator (PLANNER 7).

use super::front::Point;
use super::genetic;
use super::grouping::{Library, RoleRule};
use super::pareto;
use super::replica::{Choice, Wanted, choices, prescribed};
use super::setting::{Batch, Load, Setting, TypeId};
use crate::waiting::{Key, WORST, compare};

/// Steps of local search after which `hexgen2-like` gives up.
const LOCAL_STEPS: usize = 40;

fn key_of(setting: &Setting<'_>, choice: &Choice) -> Key {
    let rest = [choice.ttft, choice.tpot, choice.order.len() as f64];
    setting.demand.key(setting.goal, &choice.sums, rest)
}

fn best_of(setting: &Setting<'_>, found: impl Iterator<Item = Choice>) -> Option<Choice> {
    found.min_by(|a, b| compare(&key_of(setting, a), &key_of(setting, b)))
}

/// Splitwise's mixed pool: every replica does both.
pub(super) fn mixed_pool(setting: &Setting<'_>) -> Option<(Key, Point)> {
    let wanted = Wanted { separate: false, mixed: true };
    let counts = setting.counts();
    if pareto::pairs(&counts) <= pareto::PAIRS_MAX {
        return pareto::search(setting, &counts, wanted).best;
    }
    let mut library = Library::new(setting, wanted);
    genetic::search(&mut library, &setting.devices(), RoleRule::Exact, &[])
}

/// The device that serves best alone, in both roles.
pub(super) fn best_single(setting: &Setting<'_>) -> Option<Choice> {
    let wanted = Wanted { separate: false, mixed: true };
    let alone = (0..setting.types.len()).flat_map(|kind| choices(setting, &[kind], wanted));
    best_of(setting, alone)
}

/// The group with the best key as the only replica: every set of devices up to the exact search's
/// size, beyond it the fastest devices, however many.
pub(super) fn fastest_group(setting: &Setting<'_>) -> Option<Choice> {
    let wanted = Wanted { separate: false, mixed: true };
    let counts = setting.counts();
    let all = setting.devices();
    let mut groups: Vec<Vec<TypeId>> = Vec::new();
    if !setting.problem.options.allow_idle {
        groups.push(all);
    } else if pareto::pairs(&counts) <= pareto::PAIRS_MAX {
        let states: usize = counts.iter().map(|count| count + 1).product();
        groups.extend((1..states).map(|state| {
            let mut rest = state;
            let digit = |(kind, count): (usize, &usize)| {
                let here = rest % (count + 1);
                rest /= count + 1;
                vec![kind; here]
            };
            counts.iter().enumerate().flat_map(digit).collect()
        }));
    } else {
        let mut ranked = all;
        let time = |kind: TypeId| setting.least_layer_time(kind, Batch::Tokens(1));
        ranked.sort_by(|a, b| time(*a).total_cmp(&time(*b)));
        groups.extend((1..=ranked.len().min(setting.layers as usize)).map(|count| {
            let mut group = ranked[..count].to_vec();
            group.sort_unstable();
            group
        }));
    }
    best_of(setting, groups.iter().flat_map(|group| choices(setting, group, wanted)))
}

/// One ring with layers in proportion to memory (exo).
pub(super) fn by_memory(setting: &Setting<'_>) -> Option<Choice> {
    proportional(setting, |kind| setting.types[kind].room())
}

/// One ring with layers in proportion to compute rate (cake).
pub(super) fn by_flops(setting: &Setting<'_>) -> Option<Choice> {
    proportional(setting, |kind| {
        let device = setting.problem.cluster.device(setting.types[kind].members[0]);
        let processor = device.gpu().map_or(&device.cpu, |gpu| &gpu.processor);
        processor.flops_per_s.values().map(|rate| rate.value()).fold(0.0, f64::max)
    })
}

/// One ring with equal layers.
pub(super) fn evenly(setting: &Setting<'_>) -> Option<Choice> {
    proportional(setting, |_| 1.0)
}

/// Layers by weight, largest remainders first; who gets none is left out. The best master counts.
fn proportional(setting: &Setting<'_>, weight: impl Fn(TypeId) -> f64) -> Option<Choice> {
    let devices = setting.devices();
    let total: f64 = devices.iter().map(|kind| weight(*kind)).sum();
    let layers = f64::from(setting.layers);
    let shares: Vec<f64> = devices.iter().map(|kind| layers * weight(*kind) / total).collect();
    let mut counts: Vec<u32> = shares.iter().map(|share| share.floor() as u32).collect();
    let mut by_rest: Vec<usize> = (0..devices.len()).collect();
    by_rest.sort_by(|a, b| shares[*b].fract().total_cmp(&shares[*a].fract()).then(a.cmp(b)));
    let missing = setting.layers - counts.iter().sum::<u32>();
    for device in by_rest.into_iter().take(missing as usize) {
        counts[device] += 1;
    }
    let held: Vec<(TypeId, u32)> =
        devices.into_iter().zip(counts).filter(|(_, count)| *count > 0).collect();
    let kinds: Vec<TypeId> = held.iter().map(|(kind, _)| *kind).collect();
    let masters = (0..held.len())
        .filter(|place| *place == 0 || held[*place] != held[place - 1])
        .filter(|place| setting.may_be_master(kinds[*place], &kinds));
    best_of(
        setting,
        masters.filter_map(|master| {
            let mut ring = held.clone();
            let first = ring.remove(master);
            ring.insert(0, first);
            in_ring(setting, &ring)
        }),
    )
}

fn in_ring(setting: &Setting<'_>, ring: &[(TypeId, u32)]) -> Option<Choice> {
    let order: Vec<TypeId> = ring.iter().map(|(kind, _)| *kind).collect();
    let ends = ring.iter().scan(0, |end, (_, count)| {
        *end += count;
        Some(*end)
    });
    prescribed(setting, &order, &ends.collect::<Vec<u32>>())
}

/// The fastest GPU takes what it holds, then the next; CPUs take the rest in the same order.
pub(super) fn fill_fastest(setting: &Setting<'_>) -> Option<Choice> {
    let load = Load { batch: Batch::Tokens(1), slots: 1, whole_context: true };
    let mut devices = setting.devices();
    let time = |kind: TypeId| setting.least_layer_time(kind, Batch::Tokens(1));
    let has_gpu = |kind: TypeId| setting.types[kind].has_gpu;
    devices.sort_by(|a, b| has_gpu(*b).cmp(&has_gpu(*a)).then(time(*a).total_cmp(&time(*b))));
    let fits = |place: usize, kind: TypeId, gpu_only: bool| {
        let held = |count: &u32| {
            let stage = setting.stage(kind, (0, *count), place == 0, load);
            stage.is_some_and(|stage| !gpu_only || stage.gpu_layers == *count)
        };
        (0..=setting.layers).take_while(held).last().unwrap_or(0)
    };
    let mut left = setting.layers;
    let mut counts = vec![0; devices.len()];
    for gpu_only in [true, false] {
        for (place, kind) in devices.iter().enumerate() {
            let most = fits(place, *kind, gpu_only && has_gpu(*kind));
            if gpu_only && !has_gpu(*kind) {
                continue;
            }
            let more = most.saturating_sub(counts[place]).min(left);
            counts[place] += more;
            left -= more;
        }
    }
    let ring: Vec<(TypeId, u32)> =
        devices.into_iter().zip(counts).filter(|(_, n)| *n > 0).collect();
    if left > 0 {
        return None;
    }
    in_ring(setting, &ring)
}

/// HexGen-2's idea: groups of balanced memory, then moves and swaps that start at any replica and
/// stay while they help.
pub(super) fn hexgen2_like(setting: &Setting<'_>, wanted: Wanted) -> Option<(Key, Point)> {
    let mut library = Library::new(setting, wanted);
    let devices = setting.devices();
    let groups = hexgen2_groups(&mut library, &devices)?;
    library.score(&typed(&devices, &groups), RoleRule::Exact)
}

/// Its grouping, as positions in `devices`; `None` if no start is feasible.
pub(super) fn hexgen2_groups(
    library: &mut Library<'_, '_>,
    devices: &[TypeId],
) -> Option<Vec<Vec<usize>>> {
    let mut best: Option<(Key, Vec<Vec<usize>>)> = None;
    for count in 1..=devices.len() {
        let groups = genetic::balanced(library, devices, count);
        let key = score(library, devices, &groups);
        if best.as_ref().map_or(WORST, |(known, _)| *known) > key {
            best = Some((key, groups));
        }
    }
    let (mut key, mut groups) = best?;
    for _ in 0..LOCAL_STEPS {
        let Some((next, changed)) = improve(library, devices, &groups, key) else { break };
        (key, groups) = (next, changed);
    }
    Some(groups)
}

fn typed(devices: &[TypeId], groups: &[Vec<usize>]) -> Vec<Vec<TypeId>> {
    let kinds = |group: &Vec<usize>| group.iter().map(|device| devices[*device]).collect();
    groups.iter().map(kinds).collect()
}

fn score(library: &mut Library<'_, '_>, devices: &[TypeId], groups: &[Vec<usize>]) -> Key {
    library.score(&typed(devices, groups), RoleRule::Exact).map_or(WORST, |(key, _)| key)
}

/// The first move of one device, or swap of two, that helps.
fn improve(
    library: &mut Library<'_, '_>,
    devices: &[TypeId],
    groups: &[Vec<usize>],
    key: Key,
) -> Option<(Key, Vec<Vec<usize>>)> {
    for from in 0..groups.len() {
        for place in 0..groups[from].len() {
            for to in (0..groups.len()).filter(|to| *to != from) {
                let mut moved = groups.to_vec();
                let device = moved[from].remove(place);
                moved[to].push(device);
                let target = moved[to].len() - 1;
                moved.retain(|group| !group.is_empty());
                let found = score(library, devices, &moved);
                if compare(&found, &key).is_lt() {
                    return Some((found, moved));
                }
                for other in 0..target {
                    if devices[groups[to][other]] == devices[device] || to < from {
                        continue;
                    }
                    let mut swapped = groups.to_vec();
                    swapped[from][place] = groups[to][other];
                    swapped[to][other] = device;
                    let found = score(library, devices, &swapped);
                    if compare(&found, &key).is_lt() {
                        return Some((found, swapped));
                    }
                }
            }
        }
    }
    None
}

/// Parallax's idea: the number of pipelines with the largest pipelines² over stages, layers within
/// each by our split.
pub(super) fn parallax_like(setting: &Setting<'_>, wanted: Wanted) -> Option<(Key, Point)> {
    let load = Load { batch: Batch::Tokens(1), slots: 1, whole_context: true };
    let capacity = |kind: TypeId| setting.counted(kind, true, load).times.len().saturating_sub(1);
    let mut devices = setting.devices();
    devices.retain(|kind| capacity(*kind) > 0);
    devices.sort_by_key(|kind| std::cmp::Reverse(capacity(*kind)));
    let mut pipelines: Vec<Vec<TypeId>> = Vec::new();
    let mut best: Option<(f64, usize)> = None;
    let (mut open, mut room) = (Vec::new(), 0);
    // Largest first, each pipeline closed once it holds the model: k pipelines in the fewest stages.
    for kind in devices {
        open.push(kind);
        room += capacity(kind);
        if room >= setting.layers as usize {
            pipelines.push(std::mem::take(&mut open));
            room = 0;
            let stages: usize = pipelines.iter().map(Vec::len).sum();
            let merit = (pipelines.len() * pipelines.len()) as f64 / stages as f64;
            if best.is_none_or(|(known, _)| merit > known) {
                best = Some((merit, pipelines.len()));
            }
        }
    }
    pipelines.truncate(best?.1);
    if !setting.problem.options.allow_idle {
        // The paper's rule leaves nobody out; who is left joins the last pipeline.
        let mut rest = setting.devices();
        for kind in pipelines.iter().flatten() {
            if let Some(place) = rest.iter().position(|other| other == kind) {
                rest.remove(place);
            }
        }
        pipelines.last_mut()?.extend(rest);
    }
    let mut library = Library::new(setting, wanted);
    library.score(&pipelines, RoleRule::Exact)
}
