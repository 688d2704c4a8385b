//! The nouns of a cluster: units, device and link profiles, model profiles, workloads and plans.
//!
//! Holds values that are valid by construction: a `…Spec` is what a file says, the type without the
//! suffix is the proof that it makes sense. Must not know clocks, files, sockets, ggml or how a plan
//! is found. Start at [`Cluster`], [`ModelProfile`] and [`Workload`] (the input of planning), then
//! [`Plan`] (its output, and what the ring runs).

#![forbid(unsafe_code)]

mod catalogue;
mod cluster;
mod device;
mod document;
mod field;
mod limits;
mod link;
mod model;
mod plan;
mod quant;
mod units;
mod workload;

pub use catalogue::{
    BatchedDecodeRow, Benchmark, Catalogue, CatalogueDevice, CatalogueModel, ComputeFigures,
    DeviceRole, DiskFigures, EffectiveFigures, ExpertFit, Figure, LatencyAblation, LatencyRow,
    MemoryFigures, NamedClusterError, builtin_cluster, builtin_cluster_names, builtin_model,
    builtin_model_names,
};
pub use cluster::{Cluster, ClusterSpec};
pub use device::{
    AttentionClass, Combination, CpuQuota, DeviceProfile, DeviceSpec, DiskSpec, GpuKind, GpuSpec,
    HeadTable, LayerTable, MeasuredPoint, MemorySpec, Os, Phase, PowerSpec, ProcessorSpec,
};
pub use document::{
    Document, FormatVersion, ReadError, WriteError, from_json, from_toml, to_json, to_toml,
};
pub use field::{FieldError, FieldProblem};
pub use link::{Link, LinkGroup, LinkMatrix, LinkPair, LinkSpec, Route};
pub use model::{
    Attention, BufferDemand, Experts, KvType, LayerSpec, ModelProfile, ModelSpec,
    compute_buffer_bytes,
};
pub use plan::{
    HandOver, HandOverRoute, KvPlace, LayerRange, MemberSpec, MemoryClaim, Plan, PlanFault,
    PlanPrediction, PlanSpec, ReplicaPrediction, ReplicaSpec, Residency, ResidencyRun, Role,
    Window,
};
pub use quant::{FileType, ModelShape, QuantError, WeightType, quantised_model};
pub use units::{
    Bytes, BytesPerSecond, DeviceId, Flops, FlopsPerSecond, Joules, LayerIndex, ReplicaId, Seconds,
    TokensPerSecond, UnitError, Watts,
};
pub use workload::{
    Arrivals, PREFILL_ROWS_MIN, TokenLength, Workload, WorkloadSpec, prefill_chunk_rows,
};
