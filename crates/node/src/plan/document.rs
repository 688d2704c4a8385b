//! A plan as JSON.

use motley_planner::{Explanation, Export, PlanOutcome, Problem};
use serde_json::{Value as Json, json};

use crate::failure::Failure;

/// The whole answer; `plan` is what `motley` runs.
pub(super) fn of(
    problem: &Problem,
    outcome: &PlanOutcome,
    explanation: Option<&Explanation>,
    export: Option<&Export>,
) -> Result<Json, Failure> {
    let mut document = json!({
        "cluster": problem.cluster.name(),
        "model": problem.model.name,
        "objective": problem.objective,
        "objective_value": outcome.objective_value,
        "method": outcome.method,
        "quality": outcome.quality,
        "predicted": figures(outcome),
        "reasons": outcome.reasons,
        "used": outcome.used,
        "plan": outcome.plan,
    });
    if let Some(explanation) = explanation {
        document["explanation"] = serde_json::to_value(explanation)?;
    }
    if let Some(export) = export {
        document["export"] = serde_json::to_value(export)?;
    }
    Ok(document)
}

/// The figures that methods are compared by.
pub(super) fn figures(outcome: &PlanOutcome) -> Json {
    let predicted = outcome.plan.predicted();
    json!({
        "tpot_ms": predicted.tpot_s.as_ms(),
        "ttft_ms": predicted.ttft_s.as_ms(),
        "max_wait_s": predicted.max_wait_s.value(),
        "throughput_tok_s": predicted.throughput_tok_per_s.value(),
        "devices_used": outcome.plan.devices_used().len(),
    })
}
