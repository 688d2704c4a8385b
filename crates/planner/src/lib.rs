//! Problem in, plan out: who computes which layers, in which memory, in which role, and why.
//!
//! Holds the cost model and the searches over it. Must not know clocks, files, sockets or engines,
//! and draws randomness only from the seed in [`Budget`]. Start at [`plan`]; then [`CostModel`].
//!
//! `problem` is the question and the answer, `cost` PLANNER 1.3, 2, 3.7, 3.9 and 8.2, `dispatch` leads
//! from method to search, `waiting` 4.5 and 6.1 for all of them. Searches: `latency` (Halda published,
//! MILP, exact, device choice), `load` (partition, slots, roles, genetic, Pareto, baselines). Then
//! `explain`, `export`. A search sees `problem`, `cost` and `waiting`, never another search.

#![forbid(unsafe_code)]

mod cost;
mod dispatch;
mod explain;
mod export;
mod latency;
mod load;
mod problem;
mod waiting;

pub use cost::{
    CostModel, DiskModel, Fit, GpuShare, MemoryBudget, MemoryDemand, Pass, RingDevice, RingLoad,
    RingTime, Site, StageShape, Stream, StreamDemand, cyclic_lru_time, excess_time, lru_loads,
    pass_energy, rested_time, ring_time, stage_demand, stage_fit, windowed_lru_time,
};
pub use dispatch::plan;
pub use explain::{
    Basis, Change, ChangeEffect, Drawing, DrawnReplica, Explanation, Ink, Lane, LaneRun, NextLayer,
    NextLayerPlace, Refusal, ReplicaFacts, SingleDevice, SlotRoom, UnusedDevice, UsedDevice,
    explain, explain_as_it_is, explain_refusal,
};
pub use export::{Export, ExportCommand, ExportTarget, export};
pub use load::{
    EmptyStages, Partition, PartitionCosts, partition_by_bottleneck, partition_under_floor,
};
pub use problem::{
    Budget, BudgetUse, IterationRepair, LimitKind, Method, Objective, PlanError, PlanOptions,
    PlanOutcome, Problem, Quality, Reason, Remedy, Shortage, WaitingModel,
};
pub use waiting::{Congestion, congestion, state_dependent_wait};
