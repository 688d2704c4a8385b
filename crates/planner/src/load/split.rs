//! The fast form of the partition: counts of alike layers first, then real boundaries (PLANNER 4.2).

use super::setting::{Counted, Load, Setting, StageUse, TypeId};

/// What a split is to keep small: max(Σ stages + wires, pressure · max(stage, wire)).
///
/// With `pressure` g it is the time per token of g groups (PLANNER 4.3); a very large one asks for
/// the least bottleneck first and the least sum second.
#[derive(Debug, Clone, Copy)]
pub(super) struct Aim {
    pub(super) pressure: f64,
    /// Sum of all hops of a pass.
    pub(super) hops_total: f64,
    /// The longest hop.
    pub(super) hops_max: f64,
    /// A split with a larger value is of no use.
    pub(super) worth: f64,
}

/// Only the bottleneck counts.
pub(super) const BOTTLENECK: f64 = 1e6;

impl Aim {
    pub(super) fn value(&self, total: f64, slowest: f64) -> f64 {
        (total + self.hops_total).max(self.pressure * slowest.max(self.hops_max))
    }
}

/// A split of all layers over members in ring order, the master first.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Split {
    /// Where each member's layers end.
    pub(super) ends: Vec<u32>,
    pub(super) stages: Vec<StageUse>,
    pub(super) total: f64,
    pub(super) slowest: f64,
}

impl Split {
    pub(super) fn window(&self, member: usize) -> (u32, u32) {
        let start = member.checked_sub(1).map_or(0, |before| self.ends[before]);
        (start, self.ends[member])
    }
}

/// The best split of the model over `order`, whose first is the master, by counts alone; its
/// boundaries are only moved if real layers would not fit.
pub(super) fn quick_split(
    setting: &Setting<'_>,
    order: &[TypeId],
    load: Load,
    aim: Aim,
) -> Option<Split> {
    let tables: Vec<&Counted> = order
        .iter()
        .enumerate()
        .map(|(position, kind)| setting.counted(*kind, position == 0, load))
        .collect();
    // A master may hold the head alone where devices may be idle; others take part or are not members.
    let master_least = usize::from(!setting.problem.options.allow_idle);
    let counts = best_counts(&tables, setting.layers as usize, master_least, aim)?;
    let mut ends = Vec::with_capacity(order.len());
    let mut end = 0;
    for count in counts {
        end += count as u32;
        ends.push(end);
    }
    settle(setting, order, load, aim, (ends, false))
}

/// As [`quick_split`], and then every boundary where it is best.
pub(super) fn best_split(
    setting: &Setting<'_>,
    order: &[TypeId],
    load: Load,
    aim: Aim,
) -> Option<Split> {
    let split = quick_split(setting, order, load, aim)?;
    polish(setting, order, (load, aim), split)
}

/// Every boundary of a split moved to where it is best.
pub(super) fn polish(
    setting: &Setting<'_>,
    order: &[TypeId],
    (load, aim): (Load, Aim),
    split: Split,
) -> Option<Split> {
    if setting.uniform_layers || order.len() == 1 {
        return Some(split);
    }
    settle(setting, order, load, aim, (split.ends, true))
}

/// Counts that keep the aim small. Cost per member rises with two slopes (GPU layers come first), so
/// handing layers out where they cost least gives the least sum; a limit on the stage is then moved
/// to where sum and bottleneck meet.
fn best_counts(
    tables: &[&Counted],
    layers: usize,
    master_least: usize,
    aim: Aim,
) -> Option<Vec<usize>> {
    if room(tables) < layers {
        return None;
    }
    let segments = segments(tables);
    let least = (master_least, 1);
    let mut hand_out = HandOut { tables, segments: &segments, layers, least, most: Vec::new() };
    let mut counts = Vec::with_capacity(tables.len());
    let (total, mut high) = hand_out.within(f64::INFINITY, &mut counts)?;
    if total + aim.hops_total > aim.worth {
        return None;
    }
    let mut best = aim.value(total, high);
    if aim.pressure * high.max(aim.hops_max) <= total + aim.hops_total || tables.len() == 1 {
        return (best <= aim.worth).then_some(counts);
    }
    let mut low = 0.0;
    let mut found = Vec::with_capacity(tables.len());
    // Whether any split is worth it shows at the largest bottleneck that still is.
    let mut limit = aim.worth / aim.pressure;
    if limit < high {
        let (total, _) = hand_out.within(limit, &mut found)?;
        if total + aim.hops_total > aim.worth {
            return None;
        }
    } else {
        limit = f64::midpoint(low, high);
    }
    for _ in 0..24 {
        match hand_out.within(limit, &mut found) {
            None => low = limit,
            Some((total, slowest)) => {
                let value = aim.value(total, slowest);
                if value < best {
                    best = value;
                    counts.clone_from(&found);
                }
                if aim.pressure * slowest > total + aim.hops_total {
                    high = slowest.min(limit);
                } else {
                    low = limit;
                }
            }
        }
        // Between two neighbouring stage times every limit gives the same counts.
        if high - low <= 1e-6 * high || !tables.iter().any(|table| table.has_between(low, high)) {
            break;
        }
        limit = f64::midpoint(low, high);
    }
    (best <= aim.worth).then_some(counts)
}

fn room(tables: &[&Counted]) -> usize {
    tables.iter().map(|table| table.times.len().saturating_sub(1)).sum()
}

/// Slope, member and whether it is beyond the knee; rising.
fn segments(tables: &[&Counted]) -> Vec<(f64, usize, bool)> {
    let mut segments: Vec<(f64, usize, bool)> = Vec::with_capacity(2 * tables.len());
    for (member, table) in tables.iter().enumerate() {
        segments.push((table.slopes[0], member, false));
        segments.push((table.slopes[1], member, true));
    }
    segments.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.2.cmp(&b.2)).then(a.1.cmp(&b.1)));
    segments
}

/// Whether some master may reach the aim's worth: no master can if not even a group could whose head
/// costs nothing and whose members may all rest.
pub(super) fn within_reach(setting: &Setting<'_>, group: &[TypeId], load: Load, aim: Aim) -> bool {
    let tables: Vec<&Counted> =
        group.iter().map(|kind| setting.counted(*kind, false, load)).collect();
    let layers = setting.layers as usize;
    // Limits on stages only add to the sum, so the sum under the loosest useful limit decides.
    let limit = aim.worth / aim.pressure;
    let within: usize = tables.iter().filter_map(|table| table.within(limit)).sum();
    if within < layers {
        return false;
    }
    let segments = segments(&tables);
    let mut hand_out =
        HandOut { tables: &tables, segments: &segments, layers, least: (0, 0), most: Vec::new() };
    let mut counts = Vec::with_capacity(tables.len());
    let total = hand_out.within(limit, &mut counts).map(|(total, _)| total);
    total.is_some_and(|total| total + aim.hops_total <= aim.worth)
}

/// Layers given to members in order of what one more costs.
struct HandOut<'t> {
    tables: &'t [&'t Counted],
    /// As of [`segments`].
    segments: &'t [(f64, usize, bool)],
    layers: usize,
    /// Least layers of the master and of every other member.
    least: (usize, usize),
    /// Most layers of each member under the limit.
    most: Vec<usize>,
}

impl HandOut<'_> {
    /// Least sum with no stage above `limit`: the counts, their sum and slowest.
    fn within(&mut self, limit: f64, counts: &mut Vec<usize>) -> Option<(f64, f64)> {
        counts.clear();
        self.most.clear();
        let mut left = self.layers;
        for (member, table) in self.tables.iter().enumerate() {
            let least = if member == 0 { self.least.0 } else { self.least.1 };
            let most = table.within(limit)?;
            if most < least {
                return None;
            }
            left = left.checked_sub(least)?;
            counts.push(least);
            self.most.push(most);
        }
        for (_, member, beyond) in self.segments {
            if left == 0 {
                break;
            }
            let most = self.most[*member];
            let most = if *beyond { most } else { most.min(self.tables[*member].knee) };
            let more = most.saturating_sub(counts[*member]).min(left);
            counts[*member] += more;
            left -= more;
        }
        if left > 0 {
            return None;
        }
        let times = self.tables.iter().zip(counts.iter()).map(|(table, count)| table.times[*count]);
        Some(times.fold((0.0, 0.0_f64), |(sum, max), time| (sum + time, max.max(time))))
    }
}

/// Puts real layers into the counted stages and moves boundaries while that helps: real layers differ
/// in bytes and time by where they are.
fn settle(
    setting: &Setting<'_>,
    order: &[TypeId],
    load: Load,
    aim: Aim,
    (mut ends, polish): (Vec<u32>, bool),
) -> Option<Split> {
    let weigh = |ends: &[u32]| -> (usize, f64, Option<Split>) {
        let mut split = Split {
            ends: ends.to_vec(),
            stages: Vec::with_capacity(order.len()),
            total: 0.0,
            slowest: 0.0,
        };
        let mut misfits = 0;
        for (member, kind) in order.iter().enumerate() {
            match setting.stage(*kind, split.window(member), member == 0, load) {
                Some(stage) => {
                    split.total += stage.time;
                    split.slowest = split.slowest.max(stage.time);
                    split.stages.push(stage);
                }
                None => misfits += 1,
            }
        }
        let value = aim.value(split.total, split.slowest);
        (misfits, value, (misfits == 0).then_some(split))
    };
    let mut best = weigh(&ends);
    if setting.uniform_layers || order.len() == 1 || (best.0 == 0 && !polish) {
        return best.2;
    }
    let first_least = u32::from(!setting.problem.options.allow_idle);
    for _ in 0..4 * order.len() {
        let mut moved = false;
        for boundary in 0..order.len() - 1 {
            let low = boundary.checked_sub(1).map_or(first_least, |before| ends[before] + 1);
            let high = ends[boundary + 1] - 1;
            for target in [ends[boundary].saturating_sub(1), ends[boundary] + 1] {
                if target < low || target > high {
                    continue;
                }
                let kept = std::mem::replace(&mut ends[boundary], target);
                let found = weigh(&ends);
                if (found.0, found.1) < (best.0, best.1) {
                    best = found;
                    moved = true;
                } else {
                    ends[boundary] = kept;
                }
            }
        }
        if !moved {
            break;
        }
    }
    best.2
}
