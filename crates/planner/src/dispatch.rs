//! From method to search.

use crate::latency;
use crate::load;
use crate::problem::{Budget, Method, Objective, PlanError, PlanOutcome, Problem};

/// Finds a plan. The same problem, method and budget give the same plan on every machine.
///
/// # Errors
/// No plan is feasible (with what is short and what would help), the method does not apply, or the
/// budget ended first.
pub fn plan(problem: &Problem, method: Method, budget: Budget) -> Result<PlanOutcome, PlanError> {
    if budget.evaluations == 0 {
        return Err(PlanError::BudgetExhausted { evaluations: 0 });
    }
    if problem.options.excluded.len() >= problem.cluster.devices().len() {
        return Err(PlanError::NotApplicable { method, reason: "every device is excluded" });
    }
    match method {
        Method::HaldaPaper | Method::Halda | Method::HaldaExact => {
            latency::plan(problem, method, budget)
        }
        Method::Auto if problem.objective == Objective::Latency => {
            latency::plan(problem, Method::Halda, budget)
        }
        _ => load::plan(problem, method, budget),
    }
}
