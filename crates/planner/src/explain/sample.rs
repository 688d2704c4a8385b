//! Plans made by hand, for tests that must not move when a search does.

use motley_cluster::{
    Bytes, DeviceId, FormatVersion, KvPlace, LayerRange, MemberSpec, MemoryClaim, Plan,
    PlanPrediction, PlanSpec, ReplicaPrediction, ReplicaSpec, Residency, ResidencyRun, Role,
    Seconds, TokensPerSecond, Workload, builtin_cluster, builtin_model,
};

use crate::cost::{CostModel, MemoryBudget, Pass, Site, StageShape, stage_demand};
use crate::problem::{
    BudgetUse, LimitKind, Method, Objective, PlanError, PlanOptions, PlanOutcome, Problem, Quality,
    Reason,
};

/// A device and its layers: start, end, where.
pub(crate) type Share = (&'static str, &'static [(u32, u32, Residency)]);

/// One replica; a member's runs are one window each round, `rounds` times.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) role: Role,
    pub(crate) slots: u32,
    pub(crate) groups: u32,
    pub(crate) head: &'static str,
    pub(crate) members: &'static [Share],
}

pub(crate) fn problem(cluster: &str, model: &str, objective: Objective) -> Problem {
    Problem {
        cluster: builtin_cluster(cluster).expect("a built-in cluster"),
        model: builtin_model(model).expect("a built-in model"),
        workload: Workload::single_user(512.0, 256.0, 4096).expect("a workload"),
        objective,
        options: PlanOptions::full(),
    }
}

/// 70B on prima.cpp's home cluster, with layers everywhere and some from disk.
pub(crate) const HOME_70B: &[Sample] = &[Sample {
    role: Role::Mixed,
    slots: 1,
    groups: 1,
    head: "D1",
    members: &[
        ("D1", &[(0, 1, Residency::Gpu)]),
        ("D2", &[(1, 6, Residency::Ram), (6, 19, Residency::Gpu)]),
        ("D3", &[(19, 33, Residency::Ram), (33, 53, Residency::Gpu), (53, 79, Residency::Stream)]),
        ("D4", &[(79, 80, Residency::Ram)]),
    ],
}];

/// Qwen3 on four of E2LLM's devices: one replica per phase, one device idle.
pub(crate) const FOUR_QWEN3: &[Sample] = &[
    Sample {
        role: Role::Prefill,
        slots: 1,
        groups: 1,
        head: "Dev.2",
        members: &[
            ("Dev.2", &[(0, 6, Residency::Gpu), (6, 32, Residency::Ram)]),
            ("Dev.5", &[(32, 48, Residency::Gpu)]),
        ],
    },
    Sample {
        role: Role::Decode,
        slots: 4,
        groups: 1,
        head: "Dev.1",
        members: &[("Dev.1", &[(0, 16, Residency::Gpu), (16, 48, Residency::Ram)])],
    },
];

/// Shares evaluated by the cost model, as if a search had found them.
pub(crate) fn outcome(problem: &Problem, samples: &[Sample]) -> Option<PlanOutcome> {
    let costs = CostModel::new(&problem.cluster, &problem.model, &problem.workload);
    let mut replicas = Vec::new();
    let mut memory = Vec::new();
    for sample in samples {
        let members: Vec<MemberSpec> =
            sample.members.iter().map(|share| member(problem, share)).collect();
        let predicted = predicted(&costs, sample, &members);
        for own in &members {
            memory.push(claim(problem, &costs, sample, own));
        }
        let head = problem.cluster.find(sample.head).expect("a device");
        replicas.push(ReplicaSpec {
            role: sample.role,
            slots: sample.slots,
            groups: sample.groups,
            rounds: 1,
            head,
            members,
            predicted,
        });
    }
    let tpot = replicas.iter().map(|replica| replica.predicted.tpot_s).max()?;
    let decode = replicas.iter().map(|replica| replica.predicted.decode_tok_per_s);
    let decode = decode.fold(rate(0.0), |sum, more| sum + more);
    let prefill = replicas.iter().map(|replica| replica.predicted.prefill_tok_per_s);
    let prefill = prefill.fold(rate(0.0), |sum, more| sum + more);
    let plan = Plan::new(PlanSpec {
        version: FormatVersion::default(),
        model: problem.model.name.clone(),
        layers: problem.model.layers_count(),
        devices: problem.cluster.devices().iter().map(|device| device.name.clone()).collect(),
        context_tokens: problem.workload.context_tokens,
        kv_type: problem.workload.kv_type,
        replicas,
        hand_overs: hand_overs(problem, samples),
        memory,
        predicted: PlanPrediction {
            ttft_s: seconds(2.0),
            tpot_s: tpot,
            wait_s: Seconds::ZERO,
            max_wait_s: Seconds::ZERO,
            prefill_tok_per_s: prefill,
            decode_tok_per_s: decode,
            throughput_tok_per_s: decode,
            energy_j_per_token: None,
        },
    });
    let plan = plan.ok()?;
    let plan_role = plan.replicas()[0].role;
    Some(PlanOutcome {
        objective_value: tpot.value(),
        plan,
        method: Method::Pareto,
        quality: Quality::Heuristic,
        reasons: vec![
            Reason::Slots {
                replica: motley_cluster::ReplicaId::new(samples.len() as u16 - 1),
                slots: samples[samples.len() - 1].slots,
                limited_by: if samples.len() > 1 { LimitKind::Floor } else { LimitKind::Arrival },
            },
            Reason::RoleChosen {
                replica: motley_cluster::ReplicaId::new(0),
                role: plan_role,
                next_best: (samples.len() > 1).then_some(2.0 * tpot.value()),
            },
        ],
        used: BudgetUse { evaluations: 1, milps: 0 },
    })
}

/// "Plans" by keeping the shares and counting anew; the best single device is not known.
pub(crate) fn same_shares(
    samples: &[Sample],
) -> impl Fn(&Problem, Method, crate::Budget) -> Result<PlanOutcome, PlanError> {
    move |problem, method, _| {
        let none = PlanError::NotApplicable { method, reason: "shares are fixed" };
        if method == Method::BestSingleDevice {
            return Err(none);
        }
        outcome(problem, samples).ok_or(none)
    }
}

fn seconds(value: f64) -> Seconds {
    Seconds::new(value).expect("a time")
}

fn rate(value: f64) -> TokensPerSecond {
    TokensPerSecond::new(value).expect("a rate")
}

fn member(problem: &Problem, (name, runs): &Share) -> MemberSpec {
    let (start, end) = (runs[0].0, runs[runs.len() - 1].1);
    let residency = runs.iter().map(|(start, end, weights)| ResidencyRun {
        layers: LayerRange::with_len(*start, end - start),
        weights: *weights,
        kv: if *weights == Residency::Gpu { KvPlace::Gpu } else { KvPlace::Ram },
    });
    MemberSpec {
        device: problem.cluster.find(name).expect("a device"),
        windows: vec![LayerRange::with_len(start, end - start)],
        residency: residency.collect(),
        relays_to_next: Vec::new(),
    }
}

fn pass(costs: &CostModel<'_>, sample: &Sample) -> Pass {
    match sample.role {
        Role::Prefill => Pass::prefill(512, 0),
        _ => Pass::decode(sample.slots, costs.workload().mean_depth_tokens()),
    }
}

fn predicted(costs: &CostModel<'_>, sample: &Sample, members: &[MemberSpec]) -> ReplicaPrediction {
    let pass = pass(costs, sample);
    let stage = |member: &MemberSpec| -> Seconds {
        let layer_time = |run: &ResidencyRun| {
            let site = if run.weights == Residency::Gpu { Site::Gpu } else { Site::Cpu };
            let times = run.layers.iter().map(|layer| {
                let time = costs.layer_time(member.device, site, layer, pass).expect("a processor");
                let disk = costs.cluster().device(member.device).reload_rate();
                let read = costs.model().layer_bytes(layer) / disk;
                if run.weights == Residency::Stream { time.max(read) } else { time }
            });
            times.sum::<Seconds>()
        };
        member.residency.iter().map(layer_time).sum()
    };
    let stages: Vec<Seconds> = members.iter().map(stage).collect();
    let hops = (0..members.len()).map(|at| {
        let next = &members[(at + 1) % members.len()];
        costs.hop_time(members[at].device, next.device, pass).expect("a way")
    });
    let hops: Vec<Seconds> = hops.collect();
    let tpot: Seconds = stages.iter().chain(&hops).copied().sum();
    let per_second = f64::from(pass.tokens) / tpot.value();
    let prefills = sample.role == Role::Prefill;
    ReplicaPrediction {
        prefill_tok_per_s: rate(if sample.role == Role::Decode { 0.0 } else { per_second }),
        decode_tok_per_s: rate(if prefills { 0.0 } else { per_second }),
        tpot_s: if prefills { Seconds::ZERO } else { tpot },
        stage_s: stages,
        hop_s: hops,
    }
}

fn claim(
    problem: &Problem,
    costs: &CostModel<'_>,
    sample: &Sample,
    member: &MemberSpec,
) -> MemoryClaim {
    let of = |weights| -> Vec<LayerRange> {
        let runs = member.residency.iter().filter(|run| run.weights == weights);
        runs.map(|run| run.layers).collect()
    };
    let device = problem.cluster.device(member.device);
    let demand = stage_demand(
        device,
        &problem.model,
        &problem.workload,
        &StageShape {
            gpu: &of(Residency::Gpu),
            ram: &of(Residency::Ram),
            stream: &of(Residency::Stream),
            head: problem.cluster.find(sample.head) == Some(member.device),
            slots: sample.slots,
            kv_tokens: costs.kv_tokens_per_slot(sample.role),
            cpu_kv: KvPlace::Ram,
        },
    );
    let budget = MemoryBudget::of(device);
    let ram = if budget.shared { Bytes::ZERO } else { budget.ram };
    MemoryClaim {
        device: member.device,
        gpu_bytes: demand.gpu,
        gpu_budget_bytes: budget.gpu,
        ram_bytes: demand.ram,
        ram_budget_bytes: ram.max(demand.ram),
    }
}

fn hand_overs(problem: &Problem, samples: &[Sample]) -> Vec<motley_cluster::HandOver> {
    let [from, to] = samples else { return Vec::new() };
    let id = |name: &str| -> DeviceId { problem.cluster.find(name).expect("a device") };
    let routes = from.members.iter().map(|(name, runs)| motley_cluster::HandOverRoute {
        layers: LayerRange::with_len(runs[0].0, runs[runs.len() - 1].1 - runs[0].0),
        from: id(name),
        to: id(to.members[0].0),
        relays: Vec::new(),
    });
    vec![motley_cluster::HandOver {
        from: motley_cluster::ReplicaId::new(0),
        to: motley_cluster::ReplicaId::new(1),
        routes: routes.collect(),
    }]
}
