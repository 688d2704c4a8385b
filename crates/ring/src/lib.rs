//! The protocol of a ring: devices that compute the layers of one model together, as state machines.
//!
//! Holds frames and control messages, routes, the members' and the head's decisions, deployments and
//! failure. Must not know clocks, sockets, files, threads, ggml, or what activations are: it deals
//! in handles and sizes. One device alone is a ring of one member.
//! Start at [`Route`] and [`Member`]; [`Scheduler`] is the head's choice of what runs next,
//! [`Coordinator`] and [`Follower`] are the life of a cluster.

#![forbid(unsafe_code)]

mod assignment;
mod batch;
mod control;
mod coordinator;
mod follower;
mod frame;
pub mod limits;
mod member;
mod route;
mod scheduler;

pub use assignment::{Assignment, AssignmentError, AssignmentSpec};
pub use batch::{Batch, MicroBatchId, Run, SlotIndex, Wanted, WireElement};
pub use control::{
    Activity, Address, Addresses, Block, CONTROL_HEADER_BYTES, ControlError, ControlHeader,
    ControlMessage, Edge, FetchBlock, FetchManifest, Hello, Leave, LinkMeasured, LinkQuality, List,
    Manifest, MeasureLinks, ModelDigest, ModelManifestRef, Name, NodeId, OfEpoch, Peer, PeerLost,
    Ping, Pong, Prepare, PrepareFailed, Prepared, Probe, Probed, ProfileJson, Progress,
    RefusalCode, Refused, StepFailed, Survey, SurveyFailed, Surveyed, Text, TextError, Welcome,
    encode_control,
};
pub use coordinator::{
    Admission, Coordinator, CoordinatorFault, CoordinatorOptions, CoordinatorOutput, DeployFault,
    DeployRefused, Deployment, DeploymentMember, LossReason, MemberState,
};
pub use follower::{Follower, FollowerFault, FollowerOutput, FollowerState};
pub use frame::{
    ClusterId, Epoch, FrameError, FrameHeader, FrameShape, HEADER_BYTES, MAGIC, RUN_BYTES,
};
pub use member::{Accepted, Computed, FrameRefused, Member, Outgoing, Work};
pub use route::{MemberIndex, Route, RouteError, Stop};
pub use scheduler::{
    Ask, CallerId, MicroBatch, Next, Ready, RequestId, ReuseRule, Scheduler, SchedulerCounts,
    SchedulerOptions, SlotPhase, SlotState, SubmitRefused,
};
