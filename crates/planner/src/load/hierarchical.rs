//! Very large clusters: sites by their links, sites into cells, cells exactly (PLANNER 5, 7).

use std::collections::BTreeMap;

use motley_cluster::DeviceId;

use super::bounds::Bounds;
use super::front::{Chosen, Point, best, join};
use super::grouping::RoleRule;
use super::outcome::{Placed, outcome, place};
use super::pareto;
use super::setting::Setting;
use super::{evolve, shortage, wanted};
use crate::problem::{Budget, Method, Objective, PlanError, PlanOutcome, Problem, Quality};
use crate::waiting::{Goal, compare};

/// Devices of one cell: enough for several replicas, few enough for an exact search in a blink.
const CELL: usize = 8;
/// Pairs up to which a whole site is searched at once.
const SITE_PAIRS_MAX: f64 = 7e3;
/// Points a site's front keeps.
const FRONT_MAX: usize = 48;
/// Part of a device's best link rate that a link must have to be inside a site.
const SITE_LINK_PART: f64 = 0.5;

/// Plans site by site. Every site prefills for itself, since hand-overs between sites would take
/// their slow links; so it counts with the requests it can carry through both phases.
pub(super) fn plan(
    problem: &Problem,
    budget: Budget,
    devices: &[DeviceId],
) -> Result<PlanOutcome, PlanError> {
    let whole = Setting::new(problem, budget, devices);
    let sites = sites(problem, devices);
    let mut placed: Vec<Placed> = Vec::new();
    for (site, members) in sites.iter().enumerate() {
        let setting = Setting::new(problem, budget, members);
        let point = site_plan(&setting, sites.len() == 1);
        whole.evaluations.set(whole.evaluations.get() + setting.evaluations.get());
        let Some(point) = point else { continue };
        let mut choices = point.origin.as_ref().map(Chosen::list).unwrap_or_default();
        choices.reverse();
        let found = place(&setting, choices, site);
        placed.extend(found.into_iter().map(|one| renamed(&whole, one)));
    }
    if placed.is_empty() {
        return Err(shortage::explain(&whole));
    }
    let mut found = outcome(&whole, &placed, Method::Hierarchical, Quality::Heuristic)?;
    let bound = Bounds::new(&whole, &whole.counts()).objective(found.objective_value);
    found.quality = distance(whole.goal, found.objective_value, bound);
    Ok(found)
}

/// How far a value is from a bound that nothing can pass.
pub(super) fn distance(goal: Goal, value: f64, bound: f64) -> Quality {
    let gap = match goal.objective {
        Objective::Goodput | Objective::Throughput => 1.0 - value / bound,
        Objective::Latency | Objective::Waiting | Objective::FinishingTime => value / bound - 1.0,
    };
    match gap {
        gap if !gap.is_finite() => Quality::Heuristic,
        gap if gap <= 1e-9 => Quality::Optimal,
        gap => Quality::WithinBound { gap },
    }
}

/// The same replica with its types by the whole cluster's names.
fn renamed(whole: &Setting<'_>, mut placed: Placed) -> Placed {
    placed.choice.order = placed.devices.iter().map(|device| whole.type_of(*device)).collect();
    placed
}

/// Devices that reach each other well, as connected sets.
pub(super) fn sites(problem: &Problem, devices: &[DeviceId]) -> Vec<Vec<DeviceId>> {
    let links = problem.cluster.links();
    let rate = |a: DeviceId, b: DeviceId| {
        let one_way = |a, b| links.direct(a, b).map_or(0.0, |link| link.bytes_per_s.value());
        one_way(a, b).min(one_way(b, a))
    };
    let best: Vec<f64> = devices
        .iter()
        .map(|a| devices.iter().filter(|b| *b != a).map(|b| rate(*a, *b)).fold(0.0, f64::max))
        .collect();
    let mut site_of: Vec<usize> = vec![usize::MAX; devices.len()];
    let mut sites: Vec<Vec<DeviceId>> = Vec::new();
    for start in 0..devices.len() {
        if site_of[start] != usize::MAX {
            continue;
        }
        site_of[start] = sites.len();
        let mut reached = vec![start];
        let mut next = 0;
        while let Some(here) = reached.get(next).copied() {
            next += 1;
            for other in 0..devices.len() {
                let good = rate(devices[here], devices[other]);
                let needed = SITE_LINK_PART * best[here].max(best[other]);
                if site_of[other] == usize::MAX && good > 0.0 && good >= needed {
                    site_of[other] = sites.len();
                    reached.push(other);
                }
            }
        }
        reached.sort_unstable();
        sites.push(reached.into_iter().map(|place| devices[place]).collect());
    }
    sites
}

/// The best plan of one site: by the objective if it is alone, else by what it carries.
fn site_plan(setting: &Setting<'_>, alone: bool) -> Option<Point> {
    let counts = setting.counts();
    if pareto::pairs(&counts) <= SITE_PAIRS_MAX {
        let front = pareto::search(setting, &counts, wanted(setting)).front;
        return pick(setting, &front, alone);
    }
    let mut size = CELL;
    while size < setting.devices().len() {
        let cells = deal(setting, size);
        if cells.iter().any(|cell| pareto::pairs(cell) > pareto::PAIRS_MAX) {
            break;
        }
        let front = join_cells(setting, &cells);
        if let Some(point) = pick(setting, &front, alone) {
            return Some(point);
        }
        // No cell holds the model, so cells must be larger.
        size *= 2;
    }
    evolve(setting, wanted(setting), RoleRule::Exact).map(|(_, point)| point)
}

fn pick(setting: &Setting<'_>, front: &[Point], alone: bool) -> Option<Point> {
    if alone {
        return best(setting, front).map(|(_, point)| point);
    }
    let serving = front.iter().filter(|point| point.sums.prefill > 0.0 && point.sums.decode > 0.0);
    let carries = |point: &Point| setting.demand.capacity(&point.sums);
    let most = serving.max_by(|a, b| {
        carries(a).total_cmp(&carries(b)).then_with(|| compare(&b.key(setting), &a.key(setting)))
    });
    most.cloned()
}

/// Cells of about `size` devices, as alike as the site allows: devices dealt in order of type.
fn deal(setting: &Setting<'_>, size: usize) -> Vec<Vec<usize>> {
    let devices = setting.devices();
    let count = devices.len().div_ceil(size);
    let mut cells = vec![vec![0; setting.types.len()]; count];
    for (place, kind) in devices.iter().enumerate() {
        cells[place % count][*kind] += 1;
    }
    cells
}

fn join_cells(setting: &Setting<'_>, cells: &[Vec<usize>]) -> Vec<Point> {
    let mut known: BTreeMap<&[usize], Vec<Point>> = BTreeMap::new();
    let mut front = vec![Point::NOTHING];
    for cell in cells {
        let own = known.entry(cell).or_insert_with(|| {
            // Types the cell lacks would only multiply its states by one.
            pareto::search(setting, cell, wanted(setting)).front
        });
        front = join(&front, own, FRONT_MAX);
    }
    front
}
