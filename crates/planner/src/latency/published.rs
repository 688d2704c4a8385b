//! The published iteration on a real problem: its view of the devices, and its answer as a plan.

use motley_cluster::{DeviceId, Os};

use super::build::{self, Trim, decode_pass};
use super::instance::Instance;
use super::order::order;
use super::paper::{Iterated, Kind, PaperDevice, PaperProblem, iterate_and_drop};
use super::realise::realise;
use super::ring::{Assignment, Ring, measured};
use super::search::search;
use super::{Solved, TRIMS_MAX, refuse};
use crate::cost::{CostModel, MemoryBudget, Site};
use crate::problem::{Budget, BudgetUse, Method, PlanError, Problem, Quality, Reason};

/// Plans by the published iteration. Its windows are measured by the direct cost of the problem's
/// disk model, which may differ from its own objective. The publication takes the head as given; where
/// the cluster leaves it free, every head is tried and the best result counts.
pub(super) fn solve(problem: &Problem) -> Result<Solved, PlanError> {
    let budget = Budget { evaluations: u64::MAX, ..Budget::DEFAULT };
    let scope = build::scope(problem, budget);
    if scope.devices.len() > problem.model.layers_count() as usize {
        let reason = "there are more devices than layers";
        return Err(PlanError::NotApplicable { method: Method::HaldaPaper, reason });
    }
    let mut best: Option<Solved> = None;
    for head in scope.heads.iter().filter(|head| scope.devices.contains(head)) {
        let mut devices = scope.devices.clone();
        devices.sort_by_key(|device| (device != head, *device));
        if let Some(solved) = with_head(problem, &devices)
            && best.as_ref().is_none_or(|best| solved.best.key() < best.best.key())
        {
            best = Some(solved);
        }
    }
    let instance = build::instance(problem, &Trim::none(problem));
    best.ok_or_else(|| match search(&instance, &scope).best {
        Some(_) => {
            let reason = "its windows do not fit the memory of the devices";
            PlanError::NotApplicable { method: Method::HaldaPaper, reason }
        }
        None => refuse::refusal(problem, &instance, &scope, budget),
    })
}

/// The iteration over these devices, the first being the head.
fn with_head(problem: &Problem, devices: &[usize]) -> Option<Solved> {
    let (kept, run) = iterate_and_drop(&view(problem, devices));
    let kept: Vec<usize> = kept.iter().map(|at| devices[*at]).collect();
    let mut trim = Trim::none(problem);
    for _ in 0..TRIMS_MAX {
        let instance = build::instance(problem, &trim);
        let best = assignment(&instance, &kept, &run)?;
        match realise(problem, &instance, &best) {
            Ok(plan) => {
                let used = BudgetUse { evaluations: run.trace.len() as u64, milps: 0 };
                let repaired = |repair| Reason::IterationRepaired { repair };
                let reasons = run.repairs.iter().copied().map(repaired).collect();
                let quality = Quality::Heuristic;
                return Some(Solved { instance, best, plan, quality, used, reasons });
            }
            Err(overfull) => trim.shrink(overfull),
        }
    }
    None
}

/// The iteration's windows on a ring in the order of the shortest tour. GPU layers are cut to what
/// real layers allow.
fn assignment(instance: &Instance, kept: &[usize], run: &Iterated) -> Option<Assignment> {
    let head = kept[0];
    instance.as_head[head].as_ref()?;
    let ring = Ring { head, order: order(instance, head, &kept[1..])? };
    let layers: Vec<(u32, u32)> = ring
        .order
        .iter()
        .map(|device| {
            let at = kept.iter().position(|other| other == device).expect("tours visit all");
            let member = instance.member(*device, head);
            let rounds = run.windows.rounds;
            let total = run.windows.layers[at] * rounds;
            let gpu = (run.windows.gpu[at] * rounds).min(member.gpu_layers_max);
            (total - gpu, gpu)
        })
        .collect();
    measured(instance, &ring, run.windows.rounds, &layers)
}

/// The problem as the published equations see it, devices in this order, the head first.
fn view(problem: &Problem, devices: &[usize]) -> PaperProblem {
    let model = &problem.model;
    let costs = CostModel::new(&problem.cluster, model, &problem.workload);
    let pass = decode_pass(&problem.workload);
    let plain = model.mean_layer_bytes().as_f64();
    let kv = build::layer_kv_bytes(problem);
    let head = DeviceId::new(devices[0] as u16);
    // The published runtime computes the output on the CPU unless told otherwise; ours does so only
    // without a GPU, and the direct cost is ours.
    let head_time = costs
        .head_time(head, Site::Gpu, pass)
        .or_else(|| costs.head_time(head, Site::Cpu, pass))
        .unwrap_or_default();
    let device = |(at, index): (usize, &usize)| {
        let id = DeviceId::new(*index as u16);
        let next = DeviceId::new(devices[(at + 1) % devices.len()] as u16);
        let profile = problem.cluster.device(id);
        let alpha = costs.mean_layer_time(id, Site::Cpu, pass).unwrap_or_default().value();
        let gpu = costs.mean_layer_time(id, Site::Gpu, pass);
        let hop = costs.hop_time(id, next, pass).unwrap_or_default();
        let xi = hop + costs.copy_time(id, 2, pass) + profile.step_overhead_s;
        let kind = match profile.os {
            Os::Macos if profile.is_metal() => Kind::Metal,
            Os::Macos => Kind::Macos,
            Os::Linux | Os::Android | Os::Windows => Kind::Linux,
        };
        let budget = MemoryBudget::of(profile);
        let memory = &profile.memory;
        let swap = if profile.os == Os::Android {
            memory.swappable_bytes.min(memory.swap_available_bytes).as_f64()
        } else {
            0.0
        };
        PaperDevice {
            alpha,
            beta: gpu.map(|gpu| gpu.value() - alpha),
            xi: xi.value(),
            kind,
            memory: budget.ram.as_f64() + swap,
            gpu_free: budget.gpu.as_f64(),
            // What the GPU's buffers take is already off its usable memory.
            buffers: (build::cpu_buffer(problem, at == 0 && gpu.is_none()).as_f64(), 0.0),
            disk: profile.reload_rate().value(),
        }
    };
    PaperProblem {
        layers: model.layers_count(),
        layer_bytes: (plain, plain + kv),
        head_bytes: (model.embedding_row_bytes().as_f64(), model.output_bytes.as_f64()),
        head_time: (head_time + costs.embedding_time(head, pass)).value(),
        devices: devices.iter().enumerate().map(device).collect(),
    }
}
