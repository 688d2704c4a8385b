//! Load planning: groups, roles and slots for many requests (PLANNER 2, 4 to 7).
//!
//! `setting` tabulates the problem; `split` and `replica` say what a group of devices can do; `front`
//! and `grouping` what groups add up to, `bounds` what they cannot pass; `pareto`, `genetic`,
//! `hierarchical` and `baselines` search; `outcome` builds the plan, `shortage` explains why there is
//! none. Everything that is compared goes through the same choices, so methods differ by their search
//! alone.

mod baselines;
mod bounds;
mod exact;
mod front;
mod genetic;
mod grouping;
mod hierarchical;
mod outcome;
mod pareto;
mod partition;
mod random;
mod reasons;
mod replica;
mod ring;
mod setting;
mod shortage;
mod split;
#[cfg(test)]
mod tests;

use motley_cluster::DeviceId;

use self::front::Point;
use self::grouping::{Library, RoleRule};
use self::outcome::{outcome, place};
use self::replica::{Choice, Wanted};
use self::setting::Setting;
use crate::problem::{Budget, Method, Objective, PlanError, PlanOutcome, Problem, Quality};
use crate::waiting::Key;

pub use partition::{
    EmptyStages, Partition, PartitionCosts, partition_by_bottleneck, partition_under_floor,
};

/// Devices up to which the genetic search is the default where the exact one is too large.
const GENETIC_MAX: usize = 64;

/// Devices up to which the genetic search also starts from a local search's grouping.
const LOCAL_SEARCH_MAX: usize = 16;

/// Plans by one of the load methods.
pub(crate) fn plan(
    problem: &Problem,
    method: Method,
    budget: Budget,
) -> Result<PlanOutcome, PlanError> {
    let devices = usable(problem);
    let setting = Setting::new(problem, budget, &devices);
    if problem.objective == Objective::Latency {
        return latency(&setting, method);
    }
    let found = match method {
        Method::Auto => return automatic(&setting, &devices),
        Method::Pareto => return exact(&setting),
        Method::Hierarchical => return hierarchical::plan(problem, budget, &devices),
        Method::Genetic => {
            separate_roles(&setting)?;
            evolve(&setting, wanted(&setting), RoleRule::Exact)
        }
        Method::FinishingTime | Method::AdaptedSplitwise => {
            let rule = match method {
                Method::FinishingTime => RoleRule::FinishingTime,
                _ => RoleRule::StrongestFirst,
            };
            evolve(&setting, Wanted { separate: true, mixed: false }, rule)
        }
        Method::MixedPool => baselines::mixed_pool(&setting),
        Method::Hexgen2Like => baselines::hexgen2_like(&setting, wanted(&setting)),
        Method::ParallaxLike => baselines::parallax_like(&setting, wanted(&setting)),
        _ => return single_replica(&setting, method),
    };
    finish(&setting, found, method, Quality::Heuristic)
}

/// Devices that are not excluded.
fn usable(problem: &Problem) -> Vec<DeviceId> {
    problem.cluster.ids().filter(|id| !problem.options.excluded.contains(id)).collect()
}

fn wanted(setting: &Setting<'_>) -> Wanted {
    Wanted { separate: true, mixed: setting.problem.options.allow_mixed }
}

fn automatic(setting: &Setting<'_>, devices: &[DeviceId]) -> Result<PlanOutcome, PlanError> {
    if setting.goal.objective == Objective::FinishingTime {
        return plan(setting.problem, Method::FinishingTime, setting.budget);
    }
    if pareto::pairs(&setting.counts()) <= pareto::PAIRS_DEFAULT {
        return exact(setting);
    }
    let by_sites = hierarchical::plan(setting.problem, setting.budget, devices);
    if devices.len() > GENETIC_MAX {
        return by_sites;
    }
    let genetic = plan(setting.problem, Method::Genetic, setting.budget);
    better(setting, by_sites, genetic)
}

/// The better of two outcomes, the first among equals; one that failed is no competitor.
fn better(
    setting: &Setting<'_>,
    first: Result<PlanOutcome, PlanError>,
    second: Result<PlanOutcome, PlanError>,
) -> Result<PlanOutcome, PlanError> {
    match (first, second) {
        (Ok(first), Ok(second)) => {
            let largest =
                matches!(setting.goal.objective, Objective::Goodput | Objective::Throughput);
            let gain = second.objective_value - first.objective_value;
            let wins = if largest { gain > 0.0 } else { gain < 0.0 };
            Ok(if wins { second } else { first })
        }
        (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
        (Err(error), Err(_)) => Err(error),
    }
}

/// The exact search. Where links differ it assumes that hand-overs go over each card's best link;
/// what the real ways cost more is the distance to the bound, and site by site may do better.
fn exact(setting: &Setting<'_>) -> Result<PlanOutcome, PlanError> {
    const METHOD: Method = Method::Pareto;
    separate_roles(setting)?;
    if setting.goal.objective == Objective::FinishingTime {
        let reason = "a mean over replicas does not add up; use finishing-time";
        return Err(PlanError::NotApplicable { method: METHOD, reason });
    }
    let counts = setting.counts();
    if pareto::pairs(&counts) > pareto::PAIRS_MAX {
        let reason = "too many different devices for an exact search";
        return Err(PlanError::NotApplicable { method: METHOD, reason });
    }
    let searched = exact::search(setting, &counts, wanted(setting));
    let quality = if searched.complete { Quality::Optimal } else { Quality::Heuristic };
    let bound = searched.best.as_ref().map(|(key, _)| setting.goal.value(key));
    let mut whole = finish(setting, searched.best, METHOD, quality);
    if setting.uniform_wires() {
        return whole;
    }
    if let (Ok(outcome), Some(bound), true) = (&mut whole, bound, searched.complete) {
        outcome.quality = hierarchical::distance(setting.goal, outcome.objective_value, bound);
    }
    let devices = usable(setting.problem);
    let by_sites = hierarchical::plan(setting.problem, setting.budget, &devices);
    better(setting, whole, by_sites)
}

/// Two replicas need two devices unless one may do both.
fn separate_roles(setting: &Setting<'_>) -> Result<(), PlanError> {
    let devices = setting.devices().len();
    if setting.problem.options.allow_mixed || devices >= 2 {
        return Ok(());
    }
    Err(shortage::too_few_devices(devices))
}

fn evolve(setting: &Setting<'_>, wanted: Wanted, rule: RoleRule) -> Option<(Key, Point)> {
    let mut library = Library::new(setting, wanted);
    let devices = setting.devices();
    let starts = match rule {
        RoleRule::Exact if devices.len() <= LOCAL_SEARCH_MAX => {
            baselines::hexgen2_groups(&mut library, &devices).into_iter().collect()
        }
        _ => Vec::new(),
    };
    genetic::search(&mut library, &devices, rule, &starts)
}

/// One replica for one request: the group with the lowest time per token.
fn latency(setting: &Setting<'_>, method: Method) -> Result<PlanOutcome, PlanError> {
    match method {
        Method::Auto | Method::Pareto => {
            let found = baselines::fastest_group(setting);
            let quality = if found.is_some() { Quality::Optimal } else { Quality::Heuristic };
            let choice = found.or_else(|| ring::best_ring(setting));
            let choice = choice.ok_or_else(|| shortage::explain(setting))?;
            outcome(setting, &place(setting, vec![choice], 0), Method::Pareto, quality)
        }
        Method::MemoryProportional
        | Method::FlopsProportional
        | Method::FillFastestGpu
        | Method::Uniform
        | Method::BestSingleDevice => single_replica(setting, method),
        _ => {
            let reason = "it groups devices for many requests, which latency does not need";
            Err(PlanError::NotApplicable { method, reason })
        }
    }
}

fn single_replica(setting: &Setting<'_>, method: Method) -> Result<PlanOutcome, PlanError> {
    let choice: Option<Choice> = match method {
        Method::MemoryProportional => baselines::by_memory(setting),
        Method::FlopsProportional => baselines::by_flops(setting),
        Method::Uniform => baselines::evenly(setting),
        Method::FillFastestGpu => baselines::fill_fastest(setting),
        Method::BestSingleDevice => baselines::best_single(setting),
        _ => return Err(PlanError::NotApplicable { method, reason: "it plans for latency" }),
    };
    let choice = choice.ok_or_else(|| shortage::explain_single(setting, method))?;
    outcome(setting, &place(setting, vec![choice], 0), method, Quality::Heuristic)
}

/// A plan from what a search found; else a lone ring that streams; else what is short.
fn finish(
    setting: &Setting<'_>,
    found: Option<(Key, Point)>,
    method: Method,
    quality: Quality,
) -> Result<PlanOutcome, PlanError> {
    if let Some((_, point)) = found {
        let mut choices = point.origin.as_ref().map(front::Chosen::list).unwrap_or_default();
        choices.reverse();
        return outcome(setting, &place(setting, choices, 0), method, quality);
    }
    if setting.exhausted() {
        return Err(PlanError::BudgetExhausted { evaluations: setting.budget.evaluations });
    }
    match ring::best_ring(setting) {
        Some(choice) => {
            outcome(setting, &place(setting, vec![choice], 0), method, Quality::Heuristic)
        }
        None => Err(shortage::explain(setting)),
    }
}
