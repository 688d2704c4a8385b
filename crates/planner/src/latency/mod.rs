//! One sequence as fast as possible: the ring of PLANNER 3, its published search and exact ones.
//!
//! A problem becomes an `instance` of whole numbers; `search` chooses devices, head and rounds and
//! asks `allocate` for the division of layers; `realise` turns the winner into a plan, trimming
//! devices whose real layers are larger than the mean. `paper` is the published iteration. `milp` puts
//! the division to HiGHS, which tests use as a second opinion: it agrees but is far slower.

mod allocate;
mod build;
mod instance;
mod labels;
#[cfg(all(test, feature = "highs"))]
mod milp;
mod options;
mod order;
mod paper;
mod prefill;
mod published;
mod realise;
mod refuse;
mod ring;
mod search;
#[cfg(test)]
mod tests;
mod why;

use motley_cluster::Plan;

use crate::problem::{
    Budget, BudgetUse, Method, Objective, PlanError, PlanOutcome, Problem, Quality, Reason,
};
use crate::waiting::{Demand, Goal, Sums};

use build::Trim;
use instance::Instance;
use realise::realise;
use ring::Assignment;

/// Real layers are placed anew at most this often, each time with one layer less on some device.
const TRIMS_MAX: usize = 1024;

/// A latency plan by one of Halda's methods.
pub(crate) fn plan(
    problem: &Problem,
    method: Method,
    budget: Budget,
) -> Result<PlanOutcome, PlanError> {
    let solved = match method {
        Method::HaldaPaper => published::solve(problem)?,
        _ => solve(problem, budget)?,
    };
    let mut reasons = why::reasons(problem, &solved, budget);
    reasons.extend(solved.reasons);
    Ok(PlanOutcome {
        objective_value: objective_value(problem, &solved.plan),
        plan: solved.plan,
        method,
        quality: solved.quality,
        reasons,
        used: solved.used,
    })
}

/// An assignment with its plan.
struct Solved {
    instance: Instance,
    best: Assignment,
    plan: Plan,
    quality: Quality,
    used: BudgetUse,
    reasons: Vec<Reason>,
}

fn solve(problem: &Problem, budget: Budget) -> Result<Solved, PlanError> {
    let scope = build::scope(problem, budget);
    let mut used = BudgetUse::default();
    let mut trim = Trim::none(problem);
    for _ in 0..TRIMS_MAX {
        let instance = build::instance(problem, &trim);
        let found = search::search(&instance, &scope);
        used.evaluations += found.divisions;
        let Some(best) = found.best else {
            return Err(refuse::refusal(problem, &instance, &scope, budget));
        };
        match realise(problem, &instance, &best) {
            Ok(plan) => {
                let quality = if found.exact { Quality::Optimal } else { Quality::Heuristic };
                let reasons = Vec::new();
                return Ok(Solved { instance, best, plan, quality, used, reasons });
            }
            Err(overfull) => trim.shrink(overfull),
        }
    }
    let instance = build::instance(problem, &trim);
    Err(refuse::refusal(problem, &instance, &scope, budget))
}

/// The plan's value in the objective's unit, as load plans count it: one slot, one request at a time.
fn objective_value(problem: &Problem, plan: &Plan) -> f64 {
    let (predicted, workload) = (plan.predicted(), &problem.workload);
    let late = workload.ttft_limit_s.is_some_and(|limit| predicted.ttft_s > limit)
        || workload.tpot_limit_s.is_some_and(|limit| predicted.tpot_s > limit);
    if late && problem.objective == Objective::Goodput {
        return 0.0;
    }
    let demand = Demand::of(workload);
    let goal = Goal { objective: problem.objective, waiting: problem.options.waiting };
    let (ttft, tpot) = (predicted.ttft_s.value(), predicted.tpot_s.value());
    let sums = Sums::one_at_a_time(&demand, goal, (ttft, tpot));
    let devices = plan.devices_used().len() as f64;
    goal.value(&demand.key(goal, &sums, [ttft, tpot, devices]))
}
