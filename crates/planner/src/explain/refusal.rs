//! Why there is no plan, in words, and what would make one possible.

use motley_cluster::{Bytes, KvType, Workload};
use serde::Serialize;

use super::changes::{Change, apply};
use super::figures::{bytes, three_digits};
use super::words::change_words;
use crate::dispatch::plan;
use crate::problem::{Budget, Method, PlanError, Problem, Remedy, Shortage};

/// The answer where no plan exists.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Refusal {
    /// What is short and by how much.
    pub cause: String,
    /// What would make it fit, most modest first.
    pub remedies: Vec<String>,
}

/// Puts a failed planning into words. Where the search named no remedy, modest changes are planned
/// with until `budget` is used, and those that lead to a plan are listed.
#[must_use]
pub fn explain_refusal(
    problem: &Problem,
    method: Method,
    error: &PlanError,
    budget: Budget,
) -> Refusal {
    let PlanError::Infeasible { shortage, remedies } = error else {
        return Refusal { cause: error.to_string(), remedies: Vec::new() };
    };
    // A file of no bytes is a way of saying that no file would do.
    let nothing = Remedy::SmallerModel { file_bytes: Bytes::ZERO };
    let possible = remedies.iter().filter(|remedy| **remedy != nothing);
    let mut words: Vec<String> = possible.map(|remedy| remedy_words(problem, remedy)).collect();
    if words.is_empty() {
        words = tried(problem, method, budget);
    }
    Refusal { cause: shortage_words(problem, shortage), remedies: words }
}

fn name(problem: &Problem, device: motley_cluster::DeviceId) -> &str {
    &problem.cluster.device(device).name
}

fn shortage_words(problem: &Problem, shortage: &Shortage) -> String {
    match shortage {
        Shortage::ClusterMemory { needed, available } => format!(
            "memory is short by {}: {} needs {}, all devices together have {}",
            bytes(needed.saturating_sub(*available)),
            problem.model.name,
            bytes(*needed),
            bytes(*available)
        ),
        Shortage::HeadMemory { device, needed, available } => format!(
            "memory of the head is short by {}: embedding and output need {}, {} has {}",
            bytes(needed.saturating_sub(*available)),
            bytes(*needed),
            name(problem, *device),
            bytes(*available)
        ),
        Shortage::Speed { floor, reachable } => format!(
            "speed is short by {} tok/s: the floor is {} tok/s per request, the fastest plan \
             reaches {}",
            three_digits((floor.value() - reachable.value()).max(0.0)),
            three_digits(floor.value()),
            three_digits(reachable.value())
        ),
        Shortage::Devices { needed, available } => format!(
            "devices are short by {}: separate prefill and decode need {needed}, {available} can \
             serve",
            needed.saturating_sub(*available)
        ),
        Shortage::Link { from, to } => format!(
            "a link is missing: {} cannot reach {}, not even over others",
            name(problem, *from),
            name(problem, *to)
        ),
    }
}

fn remedy_words(problem: &Problem, remedy: &Remedy) -> String {
    match remedy {
        Remedy::AddRam { device, bytes: more } => {
            format!("add {} of RAM to {}", bytes(*more), name(problem, *device))
        }
        Remedy::FreeGpuMemory { device, bytes: more } => {
            format!("free {} of GPU memory on {}", bytes(*more), name(problem, *device))
        }
        Remedy::WireDevice { device } => format!("connect {} by wire", name(problem, *device)),
        Remedy::ShrinkContext { context_tokens } => {
            format!("shrink the context to {context_tokens} tokens")
        }
        Remedy::QuantiseKv => "store keys and values in 8 bits (kv_type = \"q8_0\")".to_owned(),
        Remedy::SmallerModel { file_bytes } => {
            format!("use a file of at most {}", bytes(*file_bytes))
        }
        Remedy::LowerFloor { tok_per_s } => {
            format!("lower the floor to {} tok/s", three_digits(tok_per_s.value()))
        }
        Remedy::AllowStreaming => "allow layers to be read from disk".to_owned(),
        Remedy::AddDevice { bytes: more } => format!("add a device with {}", bytes(*more)),
    }
}

/// Modest changes that make a plan possible, found by planning.
fn tried(problem: &Problem, method: Method, budget: Budget) -> Vec<String> {
    let mut words = Vec::new();
    let mut left = budget.evaluations;
    let mut feasible = |problem: &Problem| {
        if left == 0 {
            return false;
        }
        let outcome = plan(problem, method, budget);
        left = left.saturating_sub(outcome.as_ref().map_or(1, |o| o.used.evaluations.max(1)));
        outcome.is_ok()
    };
    if problem.workload.kv_type == KvType::F16
        && apply(problem, &Change::QuantiseKv).is_some_and(|changed| feasible(&changed))
    {
        words.push(remedy_words(problem, &Remedy::QuantiseKv));
    }
    let mut context = problem.workload.context_tokens / 2;
    while let Some(changed) = with_context(problem, context) {
        if feasible(&changed) {
            words.push(format!("shrink the context to {context} tokens"));
            break;
        }
        context /= 2;
    }
    let mut streamed = problem.clone();
    streamed.options.allow_streaming = true;
    if !problem.options.allow_streaming && feasible(&streamed) {
        words.push(remedy_words(problem, &Remedy::AllowStreaming));
    }
    let smaller = Change::SmallerWeights { file_bytes: Bytes::ZERO };
    if let Some(changed) = apply(problem, &smaller)
        && feasible(&changed)
    {
        let change = Change::SmallerWeights { file_bytes: changed.model.file_bytes() };
        words.push(change_words(problem, &change));
    }
    words
}

fn with_context(problem: &Problem, context_tokens: u32) -> Option<Problem> {
    let mut spec = problem.workload.to_spec();
    spec.context_tokens = context_tokens;
    let workload = Workload::new(spec).ok()?;
    Some(Problem { workload, ..problem.clone() })
}
