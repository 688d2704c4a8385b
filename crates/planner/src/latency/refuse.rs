//! Why there is no latency plan, and what would help.

use motley_cluster::{Bytes, Cluster, DeviceId, DeviceProfile, KvType, Workload, WorkloadSpec};

use super::build::{self, Trim, layer_kv_bytes};
use super::instance::Instance;
use super::search::{Scope, search};
use crate::cost::MemoryBudget;
use crate::problem::{Budget, PlanError, Problem, Remedy, Shortage};

/// Memory is sold in modules of this size.
const RAM_STEP: Bytes = Bytes::new(8 << 30);

/// Sizes tried beyond what is short in sum.
const RAM_STEPS_MAX: u64 = 4;

/// The refusal of a problem whose search found nothing.
pub(super) fn refusal(
    problem: &Problem,
    instance: &Instance,
    scope: &Scope,
    budget: Budget,
) -> PlanError {
    if scope.divisions_max < u64::MAX
        && solvable(problem, Budget { evaluations: u64::MAX, ..budget })
    {
        return PlanError::BudgetExhausted { evaluations: scope.divisions_max };
    }
    PlanError::Infeasible {
        shortage: shortage(problem, instance, scope),
        remedies: remedies(problem, scope),
    }
}

fn shortage(problem: &Problem, instance: &Instance, scope: &Scope) -> Shortage {
    let id = |device: usize| DeviceId::new(device as u16);
    let budget_of = |device: usize| MemoryBudget::of(problem.cluster.device(id(device)));
    let room = |device: usize| {
        let budget = budget_of(device);
        if problem.cluster.device(id(device)).gpu().is_some() { budget.gpu } else { budget.ram }
    };
    if scope.heads.iter().all(|head| instance.as_head[*head].is_none()) {
        let roomiest = scope.heads.iter().copied().max_by_key(|head| room(*head));
        let head = roomiest.expect("a scope has heads");
        let no_gpu = problem.cluster.device(id(head)).gpu().is_none();
        let buffer = if no_gpu { build::cpu_buffer(problem, true) } else { Bytes::ZERO };
        let needed = problem.model.head_resident_bytes() + buffer;
        return Shortage::HeadMemory { device: id(head), needed, available: room(head) };
    }
    for from in &scope.devices {
        let cut_off = |to: &&usize| *to != from && instance.hops[*from][**to].is_none();
        if let Some(to) = scope.devices.iter().find(cut_off) {
            return Shortage::Link { from: id(*from), to: id(*to) };
        }
    }
    let kv = layer_kv_bytes(problem);
    let kv = Bytes::from_real(kv * f64::from(problem.model.layers_count())).unwrap_or_default();
    let available = scope.devices.iter().map(|device| {
        let budget = budget_of(*device);
        if budget.shared { budget.gpu } else { budget.gpu + budget.ram }
    });
    Shortage::ClusterMemory { needed: problem.model.file_bytes() + kv, available: available.sum() }
}

/// Changes that were tried and make a plan possible, most modest first.
fn remedies(problem: &Problem, scope: &Scope) -> Vec<Remedy> {
    let mut found = Vec::new();
    let mut try_one = |remedy: Remedy, changed: Problem| {
        if solvable(&changed, Budget::DEFAULT) {
            found.push(remedy);
        }
    };
    if !problem.options.allow_streaming {
        let mut changed = problem.clone();
        changed.options.allow_streaming = true;
        try_one(Remedy::AllowStreaming, changed);
    }
    if problem.workload.kv_type == KvType::F16
        && let Some(changed) = with_workload(problem, |spec| spec.kv_type = KvType::Q8_0)
    {
        try_one(Remedy::QuantiseKv, changed);
    }
    let least = problem.workload.prompt_tokens.mean + problem.workload.generated_tokens.mean;
    let mut context_tokens = problem.workload.context_tokens / 2;
    while f64::from(context_tokens) >= least {
        let shorter = with_workload(problem, |spec| spec.context_tokens = context_tokens);
        if let Some(changed) = shorter.filter(|changed| solvable(changed, Budget::DEFAULT)) {
            try_one(Remedy::ShrinkContext { context_tokens }, changed);
            break;
        }
        context_tokens /= 2;
    }
    let instance = build::instance(problem, &Trim::none(problem));
    if let Shortage::ClusterMemory { needed, available } = shortage(problem, &instance, scope)
        && needed > available
    {
        let short = needed.saturating_sub(available);
        found.extend(more_ram(problem, scope, short));
        found.push(Remedy::AddDevice { bytes: short });
        let file_bytes = problem.model.file_bytes().saturating_sub(short);
        found.push(Remedy::SmallerModel { file_bytes });
    }
    found
}

/// The least RAM, in steps as it is sold, that makes a plan possible in one device.
fn more_ram(problem: &Problem, scope: &Scope, short: Bytes) -> Option<Remedy> {
    let first = short.count().div_ceil(RAM_STEP.count()).max(1);
    (first..first + RAM_STEPS_MAX).find_map(|steps| {
        let bytes = RAM_STEP.times(steps);
        let fits = |device: &&usize| {
            let larger = with_ram(problem, **device, bytes);
            larger.is_some_and(|changed| solvable(&changed, Budget::DEFAULT))
        };
        let device = *scope.devices.iter().find(fits)?;
        Some(Remedy::AddRam { device: DeviceId::new(device as u16), bytes })
    })
}

/// With more RAM in one device; `None` where memory is soldered to the GPU.
fn with_ram(problem: &Problem, device: usize, bytes: Bytes) -> Option<Problem> {
    let mut spec = problem.cluster.to_spec();
    let mut larger = spec.devices[device].to_spec();
    if larger.unified_memory {
        return None;
    }
    larger.memory.ram_total_bytes += bytes;
    larger.memory.ram_available_bytes += bytes;
    spec.devices[device] = DeviceProfile::new(larger).ok()?;
    let cluster = Cluster::new(spec).ok()?;
    Some(Problem { cluster, ..problem.clone() })
}

fn with_workload(problem: &Problem, change: impl FnOnce(&mut WorkloadSpec)) -> Option<Problem> {
    let mut spec = problem.workload.to_spec();
    change(&mut spec);
    let workload = Workload::new(spec).ok()?;
    Some(Problem { workload, ..problem.clone() })
}

fn solvable(problem: &Problem, budget: Budget) -> bool {
    let instance = build::instance(problem, &Trim::none(problem));
    search(&instance, &build::scope(problem, budget)).best.is_some()
}
