//! `motley plan compare`: the same problem by every method.

use motley_planner::{
    Budget, Method, Objective, PlanError, PlanOutcome, Problem, explain_refusal, plan,
};
use serde_json::{Value as Json, json};

use super::{document, question};
use crate::failure::{Failure, Kind};
use crate::terminal::{self, Progress, Table};

/// Plans with every method under the default budget each.
///
/// # Errors
/// When no method finds a plan: for the reason of the first.
pub(super) fn execute(problem: &Problem, as_json: bool) -> Result<(), Failure> {
    let answers: Vec<(Method, Result<PlanOutcome, PlanError>)> = Method::ALL
        .into_iter()
        .filter(|method| *method != Method::Auto)
        .map(|method| {
            let _progress = Progress::start(&format!("planning by {}", method.name()));
            (method, plan(problem, method, Budget::DEFAULT))
        })
        .collect();
    if as_json {
        return Ok(terminal::print_json(&as_document(problem, &answers))?);
    }
    if let Some((method, error)) = refused_by_all(&answers) {
        let refusal = explain_refusal(problem, method, error, Budget::DEFAULT);
        let cause = anyhow::anyhow!("no method finds a plan: {}", refusal.cause);
        return Err(Failure::new(Kind::Refused, cause).hint(refusal.remedies.join("; or ")));
    }
    Ok(terminal::print(&table(problem, &answers))?)
}

/// The most telling error, if nothing else came.
fn refused_by_all(
    answers: &[(Method, Result<PlanOutcome, PlanError>)],
) -> Option<(Method, &PlanError)> {
    if answers.iter().any(|(_, answer)| answer.is_ok()) {
        return None;
    }
    let errors = || answers.iter().filter_map(|(m, answer)| Some((*m, answer.as_ref().err()?)));
    errors()
        .find(|(_, error)| matches!(error, PlanError::Infeasible { .. }))
        .or_else(|| errors().next())
}

fn table(problem: &Problem, answers: &[(Method, Result<PlanOutcome, PlanError>)]) -> String {
    let mut rows: Vec<(&Method, &PlanOutcome)> =
        answers.iter().filter_map(|(m, answer)| Some((m, answer.as_ref().ok()?))).collect();
    let rising = !matches!(problem.objective, Objective::Goodput | Objective::Throughput);
    rows.sort_by(|a, b| {
        let order = a.1.objective_value.total_cmp(&b.1.objective_value);
        if rising { order } else { order.reverse() }
    });
    let value = match problem.objective {
        Objective::Latency | Objective::Waiting | Objective::FinishingTime => "objective s",
        Objective::Goodput => "requests/s",
        Objective::Throughput => "objective tok/s",
    };
    let mut table = Table::new([
        "method",
        value,
        "tpot ms",
        "ttft ms",
        "max wait s",
        "tok/s",
        "devices",
        "replicas",
    ]);
    for (method, outcome) in rows {
        let predicted = outcome.plan.predicted();
        table.row([
            method.name().to_owned(),
            format!("{:.4}", outcome.objective_value),
            format!("{:.1}", predicted.tpot_s.as_ms()),
            format!("{:.0}", predicted.ttft_s.as_ms()),
            format!("{:.2}", predicted.max_wait_s.value()),
            format!("{:.2}", predicted.throughput_tok_per_s.value()),
            outcome.plan.devices_used().len().to_string(),
            outcome.plan.replicas().len().to_string(),
        ]);
    }
    let mut text = format!("{} on {}\n", problem.model.name, problem.cluster.name());
    text.push_str(&question::workload_line(problem));
    text.push('\n');
    text.push_str(&table.render());
    let none = answers.iter().filter_map(|(m, answer)| Some((m, answer.as_ref().err()?)));
    for (method, error) in none {
        text.push_str(&format!("{}: {}\n", method.name(), short(error)));
    }
    text
}

fn short(error: &PlanError) -> String {
    match error {
        PlanError::Infeasible { .. } => "no feasible plan".to_owned(),
        PlanError::NotApplicable { reason, .. } => format!("does not apply: {reason}"),
        PlanError::BudgetExhausted { .. } => error.to_string(),
    }
}

fn as_document(problem: &Problem, answers: &[(Method, Result<PlanOutcome, PlanError>)]) -> Json {
    let methods = answers.iter().map(|(method, answer)| {
        let mut entry = match answer {
            Ok(outcome) => document::figures(outcome),
            Err(error) => json!({ "why": short(error) }),
        };
        entry["method"] = json!(method.name());
        entry["feasible"] = json!(answer.is_ok());
        if let Ok(outcome) = answer {
            entry["objective_value"] = json!(outcome.objective_value);
            entry["quality"] = json!(outcome.quality);
        }
        entry
    });
    json!({
        "cluster": problem.cluster.name(),
        "model": problem.model.name,
        "objective": problem.objective,
        "methods": methods.collect::<Vec<Json>>(),
    })
}
