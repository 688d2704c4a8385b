//! Splitting layers over the members of one replica (PLANNER 4.2).

use motley_cluster::{LayerRange, Seconds};

/// What a split costs. Members are in ring order; one of them is the master.
pub trait PartitionCosts {
    /// Layers to split (N).
    fn layers(&self) -> u32;
    /// Members (m).
    fn members(&self) -> usize;
    /// Time of a member for these layers, as master with head and output; `None` if they do not fit.
    fn stage(&self, member: usize, layers: LayerRange, master: bool) -> Option<Seconds>;
    /// Time on the wire into a member, from the one before it; not asked of the first.
    fn link(&self, member: usize) -> Seconds;
}

/// Which splits are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmptyStages {
    /// Every member has a layer, as in E2LLM.
    Forbidden,
    /// A member may have none; the master then still runs the head.
    Allowed,
}

/// A split.
#[derive(Debug, Clone, PartialEq)]
pub struct Partition {
    /// The master.
    pub master: usize,
    /// Layers of each member.
    pub windows: Vec<LayerRange>,
    /// The slowest stage or link (`T_slow`).
    pub slowest: Seconds,
    /// All stages and links (Λ).
    pub total: Seconds,
}

/// E2LLM's Algorithm 1: the split with the lowest `T_slow` over all masters; among equals the lowest
/// Λ, then the lowest master. `None` if nothing fits.
#[must_use]
pub fn partition_by_bottleneck(
    costs: &dyn PartitionCosts,
    empty: EmptyStages,
) -> Option<Partition> {
    let masters = (0..costs.members()).filter_map(|master| {
        let bound = bottleneck(costs, empty, master)?;
        least_total(costs, empty, master, bound)
    });
    masters.min_by_key(|split| (split.slowest, split.total, split.master))
}

/// The split with the highest rate of `groups` micro-batches among those whose time per token keeps
/// `tpot_max`: every distinct `T_slow` is tried with its lowest Λ, so none is missed. The time per
/// token of g groups is max(Λ, g·`T_slow`) (PLANNER 4.3). `None` if no split keeps the limit.
#[must_use]
pub fn partition_under_floor(
    costs: &dyn PartitionCosts,
    empty: EmptyStages,
    groups: u32,
    tpot_max: Seconds,
) -> Option<Partition> {
    let tpot = |split: &Partition| split.total.max(split.slowest.times(f64::from(groups)));
    let mut best: Option<Partition> = None;
    for master in 0..costs.members() {
        for bound in distinct_times(costs, master) {
            let Some(split) = least_total(costs, empty, master, bound) else { continue };
            let better = best
                .as_ref()
                .is_none_or(|best| (tpot(&split), split.slowest) < (tpot(best), best.slowest));
            if tpot(&split) <= tpot_max && better {
                best = Some(split);
            }
        }
    }
    best
}

/// All times a stage or link can take, rising.
fn distinct_times(costs: &dyn PartitionCosts, master: usize) -> Vec<Seconds> {
    let mut times = Vec::new();
    for member in 0..costs.members() {
        for start in 0..=costs.layers() {
            for end in start..=costs.layers() {
                times.extend(stage(costs, member, (start, end), master));
            }
        }
        if member > 0 {
            times.push(costs.link(member));
        }
    }
    times.sort_unstable();
    times.dedup();
    times
}

fn stage(
    costs: &dyn PartitionCosts,
    member: usize,
    layers: (u32, u32),
    master: usize,
) -> Option<Seconds> {
    if layers.0 == layers.1 && member != master {
        return Some(Seconds::ZERO);
    }
    costs.stage(member, LayerRange::new(layers.0, layers.1)?, member == master)
}

/// The recurrence over max(before, stage, link).
fn bottleneck(costs: &dyn PartitionCosts, empty: EmptyStages, master: usize) -> Option<Seconds> {
    let chart =
        chart(costs, empty, master, |before, stage, link| Some(before.max(stage).max(link)));
    chart.last()?.last()?.map(|(time, _)| time)
}

/// The recurrence over sums, for stages and links of at most `bound`.
fn least_total(
    costs: &dyn PartitionCosts,
    empty: EmptyStages,
    master: usize,
    bound: Seconds,
) -> Option<Partition> {
    let chart = chart(costs, empty, master, |before, stage, link| {
        (stage <= bound && link <= bound).then(|| before + stage + link)
    });
    let (total, _) = (*chart.last()?.last()?)?;
    let mut end = costs.layers();
    let mut windows = Vec::with_capacity(costs.members());
    let mut slowest = Seconds::ZERO;
    for member in (0..costs.members()).rev() {
        let (_, start) = chart[member][end as usize]?;
        let link = if member == 0 { Seconds::ZERO } else { costs.link(member) };
        slowest = slowest.max(stage(costs, member, (start, end), master)?).max(link);
        windows.push(LayerRange::with_len(start, end - start));
        end = start;
    }
    windows.reverse();
    Some(Partition { master, windows, slowest, total })
}

/// Per member and number of layers done: the best value and where the member's window starts.
type Chart = Vec<Vec<Option<(Seconds, u32)>>>;

fn chart(
    costs: &dyn PartitionCosts,
    empty: EmptyStages,
    master: usize,
    join: impl Fn(Seconds, Seconds, Seconds) -> Option<Seconds>,
) -> Chart {
    let layers = costs.layers();
    let mut chart: Chart = Vec::with_capacity(costs.members());
    for member in 0..costs.members() {
        let link = if member == 0 { Seconds::ZERO } else { costs.link(member) };
        let mut row = vec![None; layers as usize + 1];
        for end in 0..=layers {
            let mut best: Option<(Seconds, u32)> = None;
            let last_start =
                if empty == EmptyStages::Forbidden { end.checked_sub(1) } else { Some(end) };
            for start in last_start.map_or(0..0, |last| 0..last + 1) {
                let before = match chart.last() {
                    None => (start == 0).then_some(Seconds::ZERO),
                    Some(previous) => previous[start as usize].map(|(time, _)| time),
                };
                let Some(before) = before else { continue };
                let Some(stage) = stage(costs, member, (start, end), master) else { continue };
                let Some(value) = join(before, stage, link) else { continue };
                if best.is_none_or(|(time, _)| value < time) {
                    best = Some((value, start));
                }
            }
            row[end as usize] = best;
        }
        chart.push(row);
    }
    chart
}
