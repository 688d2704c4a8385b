//! The published ablation on the home cluster: without scheduler, without prefetch (PLANNER 9).

use motley_cluster::{Workload, builtin_cluster, builtin_model};

use super::super::build::{self, Trim};
use super::super::order::order;
use super::super::ring::{Ring, measured};
use super::super::search::search;
use crate::cost::DiskModel;
use crate::problem::{Budget, Objective, PlanOptions, Problem};

#[test]
fn no_scheduler_and_no_prefetch_are_worse_in_the_published_order() {
    let problem = Problem {
        cluster: builtin_cluster("prima-home").expect("built in"),
        model: builtin_model("llama-3-70b-q4_k_s").expect("built in"),
        workload: Workload::single_user(64.0, 64.0, 512).expect("valid"),
        objective: Objective::Latency,
        options: PlanOptions::full(),
    };
    let instance = build::instance(&problem, &Trim::none(&problem));
    let scope = build::scope(&problem, Budget::DEFAULT);
    let full = search(&instance, &scope).best.expect("feasible");

    // The same division read from disk without overlap.
    let mut no_prefetch = instance.clone();
    no_prefetch.disk = DiskModel::Excess;
    let layers: Vec<(u32, u32)> = full.splits.iter().map(|s| (s.cpu, s.gpu)).collect();
    let unfetched =
        measured(&no_prefetch, &full.ring, full.rounds, &layers).expect("holds without overlap");

    // Equal windows whatever the device, GPUs filled, the first device that can be head.
    let mut mapped = instance.clone();
    mapped.disk = DiskModel::CyclicLru;
    let unplanned = (0..4).find_map(|head| {
        let others: Vec<usize> = (0..4).filter(|device| *device != head).collect();
        let ring = Ring { head, order: order(&instance, head, &others).expect("linked") };
        let window = |device: &usize| {
            let member = mapped.member(*device, head);
            // Shared memory is left to the layers that are read through it.
            let gpu = if member.shared { 0 } else { member.gpu_layers_max.min(20) };
            (20 - gpu, gpu)
        };
        let equal: Vec<(u32, u32)> = ring.order.iter().map(window).collect();
        measured(&mapped, &ring, 1, &equal)
    });
    let unplanned = unplanned.expect("everything can be read");

    assert!(full.token < unfetched.token);
    assert!(unfetched.token < unplanned.token);
    // Published: 674, 755 and 20 848 ms.
    let ratio = unplanned.token as f64 / full.token as f64;
    assert!(ratio > 5.0, "{ratio}");
}
