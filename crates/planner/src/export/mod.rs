//! A plan as command lines of engines that people already run, with what each of them loses.
//!
//! What an engine can do is stated where it is used; every sentence about a loss is computed from
//! the plan, so that a plan within an engine's limits is exported without one.

mod llama_cpp;
mod prima;
#[cfg(test)]
mod tests;

use motley_cluster::{Bytes, DeviceId, KvType, MemberSpec, ReplicaSpec, Residency, Role, Seconds};
use serde::Serialize;

use crate::cost::{CostModel, Pass, cyclic_lru_time};
use crate::explain::{bytes, time};
use crate::problem::{PlanOutcome, Problem};

/// An engine that a plan can be written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExportTarget {
    /// llama.cpp with its RPC backend.
    LlamaCpp,
    /// prima.cpp.
    PrimaCpp,
}

impl ExportTarget {
    /// Every target.
    pub const ALL: [Self; 2] = [Self::LlamaCpp, Self::PrimaCpp];

    /// Name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LlamaCpp => "llama.cpp",
            Self::PrimaCpp => "prima.cpp",
        }
    }

    /// The target with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|target| target.name() == name)
    }
}

/// Commands for one engine, in the order they are to be started.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Export {
    /// The engine.
    pub target: ExportTarget,
    /// The commands.
    pub commands: Vec<ExportCommand>,
    /// What of the plan the engine cannot do, one sentence each.
    pub losses: Vec<String>,
}

/// A command line and where it runs. Devices stand for their addresses by their names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExportCommand {
    /// The device.
    pub device: DeviceId,
    /// Its name.
    pub name: String,
    /// The command line.
    pub line: String,
}

/// Writes a plan for an engine; `model_file` is what its `-m` gets.
#[must_use]
pub fn export(
    problem: &Problem,
    outcome: &PlanOutcome,
    target: ExportTarget,
    model_file: &str,
) -> Export {
    let source = Source {
        problem,
        outcome,
        costs: CostModel::new(&problem.cluster, &problem.model, &problem.workload),
        model_file: quoted(model_file),
    };
    match target {
        ExportTarget::LlamaCpp => llama_cpp::export(&source),
        ExportTarget::PrimaCpp => prima::export(&source),
    }
}

impl Export {
    /// The commands as a script with remarks, then the losses.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::from("# device names stand for addresses\n");
        for command in &self.commands {
            text.push_str(&format!("# on {}\n{}\n", command.name, command.line));
        }
        if self.losses.is_empty() {
            text.push_str(&format!("# {} can do all of this plan\n", self.target.name()));
        } else {
            text.push_str(&format!("# what {} cannot do of this plan:\n", self.target.name()));
            for loss in &self.losses {
                text.push_str(&format!("# - {loss}\n"));
            }
        }
        text
    }
}

/// What the exports read.
struct Source<'a> {
    problem: &'a Problem,
    outcome: &'a PlanOutcome,
    costs: CostModel<'a>,
    model_file: String,
}

impl Source<'_> {
    fn replicas(&self) -> &[ReplicaSpec] {
        self.outcome.plan.replicas()
    }

    fn name(&self, device: DeviceId) -> &str {
        &self.problem.cluster.device(device).name
    }

    /// The device's name where an address is wanted.
    fn host(&self, device: DeviceId) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() || ".-_".contains(c) { c } else { '-' };
        self.name(device).chars().map(plain).collect()
    }

    fn has_gpu(&self, device: DeviceId) -> bool {
        self.problem.cluster.device(device).gpu().is_some()
    }

    /// Context, slots, micro-batch, cache types and flash attention, which both engines name alike.
    fn common_flags(&self, replica: &ReplicaSpec, flash: &str) -> String {
        let workload = &self.problem.workload;
        let context = u64::from(workload.context_tokens) * u64::from(replica.slots);
        let mut flags =
            format!("-c {context} -np {} -ub {}", replica.slots, workload.micro_batch_tokens);
        let cache = match workload.kv_type {
            KvType::F16 => None,
            KvType::Q8_0 => Some("q8_0"),
            KvType::Q4_0 => Some("q4_0"),
        };
        if workload.flash_attention || cache.is_some() {
            flags.push(' ');
            flags.push_str(flash);
        }
        if let Some(cache) = cache {
            flags.push_str(&format!(" -ctk {cache} -ctv {cache}"));
        }
        flags
    }

    fn decode_pass(&self, replica: &ReplicaSpec) -> Pass {
        Pass::decode(replica.slots, self.problem.workload.mean_depth_tokens())
    }

    /// Weights of a member's layers that are not on its GPU.
    fn cpu_weights(&self, member: &MemberSpec) -> Bytes {
        let runs = member.residency.iter().filter(|run| run.weights != Residency::Gpu);
        let layers = runs.flat_map(|run| run.layers.iter());
        layers.map(|layer| self.problem.model.layer_bytes(layer)).sum()
    }

    /// Reading time per token when a member's CPU layers are mapped instead of pinned and streamed:
    /// with more of them than RAM holds, each token reads them all (PLANNER 3.9).
    fn mapped_reading(&self, member: &MemberSpec) -> Seconds {
        let claims = &self.outcome.plan.spec().memory;
        let claim = claims.iter().find(|claim| claim.device == member.device);
        let budget = claim.map_or(Bytes::ZERO, |claim| claim.ram_budget_bytes);
        let rate = self.problem.cluster.device(member.device).reload_rate();
        cyclic_lru_time(self.cpu_weights(member), budget, rate)
    }

    /// Losses that engines without separate roles, groups or hand-over share.
    fn role_losses(&self, engine: &str) -> Vec<String> {
        let mut losses = Vec::new();
        let of = |role| self.replicas().iter().filter(|replica| replica.role == role).count();
        let (prefill, decode) = (of(Role::Prefill), of(Role::Decode));
        if prefill > 0 {
            losses.push(format!(
                "{engine} hands no keys and values over: the {prefill} prefill and {decode} decode \
                 replicas become independent servers that each do both"
            ));
        }
        for (index, replica) in self.replicas().iter().enumerate() {
            let rate = replica.predicted.decode_tok_per_s.value();
            if replica.groups > 1 {
                losses.push(format!(
                    "replica {index}: its {} groups cannot circulate at once; with one batch every \
                     stage waits for the others, so of the planned {rate:.1} tok/s at most {:.1} \
                     remain",
                    replica.groups,
                    one_batch_rate(replica)
                ));
            }
        }
        losses
    }
}

/// Tokens per second of a replica whose slots pass the stages as one batch, taking the stage times
/// of a group for those of the batch, which is the best case.
fn one_batch_rate(replica: &ReplicaSpec) -> f64 {
    let pass: Seconds =
        replica.predicted.stage_s.iter().chain(&replica.predicted.hop_s).copied().sum();
    if pass == Seconds::ZERO { 0.0 } else { f64::from(replica.slots) / pass.value() }
}

/// A sentence on mapped instead of streamed weights, if it costs anything.
fn mapped_loss(source: &Source<'_>, member: &MemberSpec) -> Option<String> {
    let streamed = member.count(Residency::Stream);
    let reading = source.mapped_reading(member);
    if streamed == 0 && reading == Seconds::ZERO {
        return None;
    }
    let name = source.name(member.device);
    if reading == Seconds::ZERO {
        return Some(format!(
            "{name}: {streamed} layers are mapped instead of streamed and compete with the rest of \
             the memory"
        ));
    }
    Some(format!(
        "{name}: its {} of CPU layers are mapped instead of pinned and streamed; they exceed its \
         memory, so each token reads them anew, about {}",
        bytes(source.cpu_weights(member)),
        time(reading)
    ))
}

/// A word for a POSIX shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/+:@%=".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}
