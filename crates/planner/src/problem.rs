//! The question a planner is asked and the answers it can give.

use motley_cluster::{
    Bytes, Cluster, DeviceId, ModelProfile, Plan, ReplicaId, Role, Seconds, TokensPerSecond,
    Workload,
};
use serde::{Deserialize, Serialize};

use crate::cost::DiskModel;

/// What to make small or large.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Objective {
    /// Lowest time per output token of a single request.
    Latency,
    /// Lowest waiting under the arrivals.
    Waiting,
    /// Most requests per second within the TTFT and TPOT limits.
    Goodput,
    /// Most generated tokens per second.
    Throughput,
    /// Lowest time from a request's arrival to its last token, ignoring other requests.
    FinishingTime,
}

/// How to search; every method uses the same cost model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// What suits the objective and the size.
    Auto,
    /// prima.cpp's published iteration.
    HaldaPaper,
    /// The one-shot MILP.
    Halda,
    /// Exhaustive ring search for small clusters.
    HaldaExact,
    /// E2LLM's genetic search.
    Genetic,
    /// Exact Pareto search over subsets.
    Pareto,
    /// Sites first, then devices, for very large clusters.
    Hierarchical,
    /// HexGen's objective over the same search.
    FinishingTime,
    /// Strongest replicas prefill, their number from the ratio of phases.
    AdaptedSplitwise,
    /// Every replica does both.
    MixedPool,
    /// Constructive grouping with local search along bottlenecks.
    Hexgen2Like,
    /// Layer allocation by pipelines² over stages.
    ParallaxLike,
    /// One ring, layers by memory.
    MemoryProportional,
    /// One ring, layers by compute rate.
    FlopsProportional,
    /// Fastest GPU first.
    FillFastestGpu,
    /// One ring, equal layers.
    Uniform,
    /// The one device that serves best alone.
    BestSingleDevice,
}

impl Method {
    /// Every method, in the order comparisons list them.
    pub const ALL: [Self; 17] = [
        Self::Auto,
        Self::Halda,
        Self::HaldaPaper,
        Self::HaldaExact,
        Self::Pareto,
        Self::Genetic,
        Self::Hierarchical,
        Self::FinishingTime,
        Self::AdaptedSplitwise,
        Self::MixedPool,
        Self::Hexgen2Like,
        Self::ParallaxLike,
        Self::MemoryProportional,
        Self::FlopsProportional,
        Self::FillFastestGpu,
        Self::Uniform,
        Self::BestSingleDevice,
    ];

    /// Name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::HaldaPaper => "halda-paper",
            Self::Halda => "halda",
            Self::HaldaExact => "halda-exact",
            Self::Genetic => "genetic",
            Self::Pareto => "pareto",
            Self::Hierarchical => "hierarchical",
            Self::FinishingTime => "finishing-time",
            Self::AdaptedSplitwise => "adapted-splitwise",
            Self::MixedPool => "mixed-pool",
            Self::Hexgen2Like => "hexgen2-like",
            Self::ParallaxLike => "parallax-like",
            Self::MemoryProportional => "memory-proportional",
            Self::FlopsProportional => "flops-proportional",
            Self::FillFastestGpu => "fill-fastest-gpu",
            Self::Uniform => "uniform",
            Self::BestSingleDevice => "best-single-device",
        }
    }

    /// The method with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.name() == name)
    }
}

/// How waiting under load is predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitingModel {
    /// E2LLM's congestion formula (PLANNER 4.5): the slower phase against the arrival interval.
    Congestion,
    /// Queues that know slots and the length of the run (PLANNER 6.1).
    Concurrency,
}

/// What a search may and may not do.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanOptions {
    /// What happens to layers that do not fit in memory.
    pub disk_model: DiskModel,
    /// Layers may be streamed from disk at all.
    pub allow_streaming: bool,
    /// Devices may be left out; the papers' modes forbid it.
    pub allow_idle: bool,
    /// Roles may be `mixed`; E2LLM's mode forbids it.
    pub allow_mixed: bool,
    /// How waiting is predicted.
    pub waiting: WaitingModel,
    /// Most slots a replica may have.
    pub slots_max: u32,
    /// Sequences whose keys and values a latency plan keeps room for, although it is planned for
    /// one at a time.
    pub kept_sequences: u32,
    /// Fewest rounds a ring may have, as far as there are layers for them.
    pub rounds_min: u32,
    /// Most rounds a ring may have.
    pub rounds_max: u32,
    /// Devices that must not be used.
    pub excluded: Vec<DeviceId>,
}

impl PlanOptions {
    /// Everything the runtime can do.
    #[must_use]
    pub const fn full() -> Self {
        Self {
            disk_model: DiskModel::Streaming,
            allow_streaming: true,
            allow_idle: true,
            allow_mixed: true,
            waiting: WaitingModel::Concurrency,
            slots_max: 64,
            kept_sequences: 1,
            rounds_min: 1,
            rounds_max: 32,
            excluded: Vec::new(),
        }
    }

    /// E2LLM's rules: resident layers, every device used, separate roles.
    #[must_use]
    pub const fn e2llm_paper() -> Self {
        Self {
            disk_model: DiskModel::CyclicLru,
            allow_streaming: false,
            allow_idle: false,
            allow_mixed: false,
            waiting: WaitingModel::Congestion,
            slots_max: 64,
            kept_sequences: 1,
            rounds_min: 1,
            rounds_max: 1,
            excluded: Vec::new(),
        }
    }
}

/// What is to be planned.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// Devices and links.
    pub cluster: Cluster,
    /// The model.
    pub model: ModelProfile,
    /// What is asked of it.
    pub workload: Workload,
    /// What to optimise.
    pub objective: Objective,
    /// Freedom of the search.
    pub options: PlanOptions,
}

/// How much a search may do, counted in work so that results repeat on any machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Evaluations of one candidate (a replica, or an assignment) the search may make.
    pub evaluations: u64,
    /// Branch-and-bound nodes each MILP may open.
    pub milp_nodes: u32,
    /// Seed of random choices.
    pub seed: u64,
}

impl Budget {
    /// Enough for the clusters people have: 64 individuals over 150 generations, and MILPs that end.
    pub const DEFAULT: Self = Self { evaluations: 2_000_000, milp_nodes: 100_000, seed: 1 };
}

/// What a search used of its budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BudgetUse {
    /// Evaluations made.
    pub evaluations: u64,
    /// MILPs solved.
    pub milps: u64,
}

/// How good an answer is known to be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Quality {
    /// Nothing is better under the cost model and the options.
    Optimal,
    /// Nothing known.
    Heuristic,
    /// At most this fraction worse than the best (0.1 is 10 %).
    WithinBound {
        /// The fraction.
        gap: f64,
    },
}

/// What limits a number of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// The speed floor.
    Floor,
    /// Memory for keys and values.
    Memory,
    /// No more requests come.
    Arrival,
    /// The option `slots_max`.
    Option,
}

/// One fact that decided the plan; words are made from these, never the other way round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Reason {
    /// The objective's value of the chosen plan and of the best single device.
    AgainstSingleDevice {
        /// The best single device, if one can serve alone.
        device: Option<DeviceId>,
        /// Its time per output token.
        single_tpot: Option<Seconds>,
        /// The plan's.
        plan_tpot: Seconds,
    },
    /// A device has its share because of these times and limits.
    Share {
        /// The device.
        device: DeviceId,
        /// Layers it holds.
        layers: u32,
        /// Layers its GPU could hold at most.
        gpu_layers_max: u32,
        /// Layers its memory could hold at most without streaming.
        resident_layers_max: u32,
        /// Its time per layer.
        layer_time: Seconds,
    },
    /// A device is left out.
    LeftOut {
        /// The device.
        device: DeviceId,
        /// Time per token it would save by taking layers over.
        gain: Seconds,
        /// Time per token its hop would cost.
        hop_cost: Seconds,
        /// The best plan with it, if one is feasible.
        tpot_with: Option<Seconds>,
    },
    /// The published iteration would have crashed or run forever here.
    IterationRepaired {
        /// How it was helped on.
        repair: IterationRepair,
    },
    /// A device only forwards.
    RelayOnly {
        /// The device.
        device: DeviceId,
    },
    /// Why a replica has its slots.
    Slots {
        /// The replica.
        replica: ReplicaId,
        /// Its slots.
        slots: u32,
        /// What stops one more.
        limited_by: LimitKind,
    },
    /// Why a replica has its role.
    RoleChosen {
        /// The replica.
        replica: ReplicaId,
        /// Its role.
        role: Role,
        /// The objective's key if it had the best other role vector.
        next_best: Option<f64>,
    },
    /// Where a pass spends its time.
    Bottleneck {
        /// The replica.
        replica: ReplicaId,
        /// The slowest device.
        device: DeviceId,
        /// Its time per pass.
        stage: Seconds,
        /// Time the whole pass takes.
        pass: Seconds,
    },
    /// One change and what it would bring.
    WouldHelp {
        /// The change.
        remedy: Remedy,
        /// The objective now, in its own unit.
        now: f64,
        /// The objective then.
        then: f64,
    },
}

/// How the published iteration of Halda was helped on (PLANNER 3.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum IterationRepair {
    /// A number of rounds has no feasible windows under some sets, so it was passed over.
    InfeasibleRoundsSkipped {
        /// The rounds.
        rounds: u32,
    },
    /// No number of rounds was feasible; the device with the slowest disk was forced to fit.
    NoFeasibleRounds,
    /// Nothing was feasible and nothing left to force; the last windows stand.
    ProportionalWindowsKept,
    /// The iteration came back to where it had been.
    CycleEnded,
    /// The iteration neither stopped nor repeated.
    CapReached,
}

/// A change that makes a plan possible or better.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Remedy {
    /// More RAM in a device.
    AddRam {
        /// The device.
        device: DeviceId,
        /// How much more.
        bytes: Bytes,
    },
    /// More free GPU memory in a device.
    FreeGpuMemory {
        /// The device.
        device: DeviceId,
        /// How much more.
        bytes: Bytes,
    },
    /// A wire instead of Wi-Fi.
    WireDevice {
        /// The device.
        device: DeviceId,
    },
    /// A shorter context.
    ShrinkContext {
        /// Largest context that works.
        context_tokens: u32,
    },
    /// 8-bit keys and values.
    QuantiseKv,
    /// A file of at most this size.
    SmallerModel {
        /// Largest file that works.
        file_bytes: Bytes,
    },
    /// A lower speed floor.
    LowerFloor {
        /// Highest floor that works.
        tok_per_s: TokensPerSecond,
    },
    /// Allow streaming from disk.
    AllowStreaming,
    /// One more device with this much memory.
    AddDevice {
        /// Memory it needs.
        bytes: Bytes,
    },
}

/// What a problem lacks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Shortage {
    /// Memory of all devices together.
    ClusterMemory {
        /// Needed.
        needed: Bytes,
        /// Available.
        available: Bytes,
    },
    /// Memory of the device that must be head.
    HeadMemory {
        /// The head with the most room.
        device: DeviceId,
        /// Needed.
        needed: Bytes,
        /// Available.
        available: Bytes,
    },
    /// Speed: the fastest feasible plan is below the floor.
    Speed {
        /// The floor.
        floor: TokensPerSecond,
        /// The best that can be reached.
        reachable: TokensPerSecond,
    },
    /// Devices: separate roles need two replicas.
    Devices {
        /// Needed.
        needed: u32,
        /// Available.
        available: u32,
    },
    /// A way between two devices that must both take part.
    Link {
        /// Sender.
        from: DeviceId,
        /// Receiver.
        to: DeviceId,
    },
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The resources do not suffice.
    #[error("no feasible plan: {shortage:?}")]
    Infeasible {
        /// What is short and by how much.
        shortage: Shortage,
        /// What would make it fit, most modest first.
        remedies: Vec<Remedy>,
    },
    /// The method does not serve this objective or size.
    #[error("method {} does not apply: {reason}", method.name())]
    NotApplicable {
        /// The method.
        method: Method,
        /// Why, in a few words.
        reason: &'static str,
    },
    /// The budget ended before any plan was found.
    #[error("the budget of {evaluations} evaluations ended before a feasible plan was found")]
    BudgetExhausted {
        /// What was allowed.
        evaluations: u64,
    },
}

/// A plan and what is known about it.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanOutcome {
    /// The plan, with its predicted numbers.
    pub plan: Plan,
    /// The method that found it; never `Auto`.
    pub method: Method,
    /// The objective's value: seconds, or tokens or requests per second.
    pub objective_value: f64,
    /// How good it is known to be.
    pub quality: Quality,
    /// Why it is as it is.
    pub reasons: Vec<Reason>,
    /// Work done.
    pub used: BudgetUse,
}
