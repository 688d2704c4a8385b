//! What a plan promises of a model that this device serves alone.

use std::fmt::Write as _;
use std::sync::Arc;

use motley_model::ModelDirectory;
use motley_ring::NodeId;

use super::place::{Allowance, Candidate, Copies, Goal, KnownLinks, Question, place};
use super::survey::ProfileSource;
use crate::plan;

/// How a model is served here.
#[derive(Clone, Debug)]
pub(crate) struct ServedAlone<'a> {
    /// As the model is called in profiles.
    pub(crate) model_name: &'a str,
    pub(crate) directory: &'a ModelDirectory,
    /// As this device is called.
    pub(crate) device_name: String,
    pub(crate) budget_bytes: u64,
    pub(crate) goal: Goal,
    pub(crate) allowance: Allowance,
}

/// The numbers that a plan predicts and its reasons, in lines; nothing where this device was not
/// measured with the model yet, or the model cannot be planned for.
pub(crate) fn promise_alone(source: &ProfileSource, served: ServedAlone<'_>) -> Option<String> {
    let ServedAlone { model_name, directory, device_name, budget_bytes, goal, allowance } = served;
    let surveyed = Arc::new(source.known(model_name, directory)?);
    let only =
        Candidate { node: NodeId([0; 32]), name: device_name, budget_bytes, surveyed, factor: 1.0 };
    let question = Question {
        candidates: vec![only],
        links: KnownLinks::default(),
        model: Arc::new(plan::model_profile(directory, model_name).ok()?),
        goal,
        allowances: vec![allowance],
        copies: Arc::new(Copies::of_model(directory)),
    };
    let placement = place(&question, None).ok()?;
    let mut text = promised(placement.token_s, placement.first_token_s);
    for reason in &placement.reasons {
        // Writing to a string succeeds.
        let _ = writeln!(text, "  {reason}");
    }
    Some(text)
}

/// What is told of a plan's times, in a line.
pub(super) fn promised(token_s: f64, first_token_s: f64) -> String {
    let (token_ms, first_ms) = (token_s * 1e3, first_token_s * 1e3);
    format!("predicted: {token_ms:.1} ms per token, {first_ms:.0} ms to the first one\n")
}
