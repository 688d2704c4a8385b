//! Control messages: everything but activations that members tell each other.

mod envelope;
mod text;

use motley_cluster::{KvType, ResidencyRun};
use serde::{Deserialize, Serialize};

use crate::assignment::Assignment;
use crate::batch::MicroBatchId;
use crate::frame::Epoch;
use crate::limits::{ADDRESSES_MAX, LAYERS_MAX, MEMBERS_MAX};
use crate::route::MemberIndex;

pub use envelope::{CONTROL_HEADER_BYTES, ControlError, ControlHeader, encode_control};
pub use text::{Address, List, ModelDigest, Name, NodeId, ProfileJson, Text, TextError};

/// Addresses of one node, the best first.
pub type Addresses = List<Address, ADDRESSES_MAX>;

/// One message. On the wire it is a JSON object of one entry: type and content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlMessage {
    /// First of whoever opens a connection.
    Hello(Box<Hello>),
    /// The answer that lets it in.
    Welcome(Welcome),
    /// The answer that does not.
    Refused(Refused),
    /// Head to member: get ready for a deployment.
    Prepare(Box<Prepare>),
    /// Member to head: how far that is.
    Progress(Progress),
    /// Member to head: ready.
    Prepared(Prepared),
    /// Member to head: it cannot be done.
    PrepareFailed(PrepareFailed),
    /// Head to member: from now on this deployment.
    Commit(OfEpoch),
    /// Member to head: done.
    Committed(OfEpoch),
    /// Head to member: this deployment is over, or will not be.
    Release(OfEpoch),
    /// Member to head: what it held is free.
    Released(OfEpoch),
    /// Head to member, every heartbeat interval.
    Ping(Ping),
    /// Member to head, at once.
    Pong(Pong),
    /// Member to head: a micro-batch could not be computed.
    StepFailed(StepFailed),
    /// Member to head: the data connection to another member is broken.
    PeerLost(PeerLost),
    /// Either way: the sender goes away on purpose.
    Leave(Leave),
    /// First on a connection that will carry activations one way, and its answer when the
    /// receiver is ready for them.
    Edge(Edge),
    /// Asks for the digests of a model's blocks.
    FetchManifest(FetchManifest),
    /// The manifest follows as raw bytes.
    Manifest(Manifest),
    /// Asks for a block of a model.
    FetchBlock(FetchBlock),
    /// The block follows as raw bytes.
    Block(Block),
    /// The block is not here.
    NoBlock(FetchBlock),
    /// Head to node: measure how fast this model's layers are.
    Survey(Box<Survey>),
    /// Node to head: how fast it is.
    Surveyed(Box<Surveyed>),
    /// Node to head: it cannot be measured.
    SurveyFailed(SurveyFailed),
    /// Head to node: measure the ways to these nodes.
    MeasureLinks(MeasureLinks),
    /// Node to head: the way to another node.
    LinkMeasured(LinkMeasured),
    /// First on a connection that measures the way to the receiver, then again and again. Its raw
    /// bytes mean nothing.
    Probe(Probe),
    /// The answer; its raw bytes mean nothing.
    Probed(Probed),
}

/// Who knocks. These fields never change; what a later version adds goes into the profile, so that
/// any version can read any other's hello and say why it refuses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// Oldest protocol version it speaks.
    pub protocol_min: u16,
    /// Newest protocol version it speaks.
    pub protocol_max: u16,
    /// Its build of this program.
    pub build: Name,
    /// Its build of ggml: all members of a ring have the same one.
    pub engine_build: Name,
    /// Its key.
    pub node: NodeId,
    /// What people call it.
    pub name: Name,
    /// Where it can be reached.
    pub addresses: Addresses,
    /// Memory it gives to models.
    pub memory_budget_bytes: u64,
    /// The highest epoch it ever heard of.
    pub epoch_seen: Epoch,
    /// What it has measured of itself.
    pub profile: ProfileJson,
}

/// Lets a node in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Welcome {
    /// The protocol version both will speak.
    pub protocol: u16,
    /// The head's key.
    pub node: NodeId,
    /// What people call it.
    pub name: Name,
    /// Its build of this program.
    pub build: Name,
    /// The epoch in force.
    pub epoch: Epoch,
}

/// Why a node is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// No protocol version in common.
    ProtocolVersion,
    /// Another build of ggml, whose results may differ.
    EngineBuild,
    /// Another cluster.
    WrongCluster,
    /// A token that was never issued, has been used or is too old.
    Token,
    /// A key that is not, or no longer, of this cluster.
    UnknownNode,
    /// The hello names another key than the connection was made with.
    Identity,
    /// As many nodes as a cluster can have.
    ClusterFull,
}

/// Does not let a node in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refused {
    /// Why.
    pub code: RefusalCode,
    /// Why, in words.
    pub message: Text,
    /// What to do about it.
    pub advice: Text,
}

/// A node and where it can be reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// Its key.
    pub node: NodeId,
    /// Where it listens.
    pub addresses: Addresses,
}

/// Which model, exactly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelManifestRef {
    /// What people call it.
    pub name: Name,
    /// Digest of its manifest.
    pub digest: ModelDigest,
    /// Length of its file.
    pub file_bytes: u64,
    /// Length of its blocks; the last one may be shorter.
    pub block_bytes: u32,
}

/// A member's part of a deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prepare {
    /// What is the same for all members.
    pub assignment: Assignment,
    /// Which of them the receiver is.
    pub member: MemberIndex,
    /// How each of its layers is kept.
    pub residency: List<ResidencyRun, { LAYERS_MAX as usize }>,
    /// The model.
    pub model: ModelManifestRef,
    /// Nodes that have it.
    pub sources: List<Peer, MEMBERS_MAX>,
    /// All members, in the order of the route's list.
    pub members: List<Peer, MEMBERS_MAX>,
}

impl Prepare {
    /// The deployment.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.assignment.epoch()
    }
}

/// How far a preparation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// The deployment.
    pub epoch: Epoch,
    /// Bytes fetched and loaded.
    pub done_bytes: u64,
    /// Bytes there are.
    pub total_bytes: u64,
}

/// A member is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prepared {
    /// The deployment.
    pub epoch: Epoch,
    /// Memory it takes here.
    pub memory_bytes: u64,
}

/// A member cannot get ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrepareFailed {
    /// The deployment.
    pub epoch: Epoch,
    /// Why.
    pub cause: Text,
}

/// A message that only names a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfEpoch {
    /// The deployment.
    pub epoch: Epoch,
}

/// A sign of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ping {
    /// Comes back in the answer.
    pub nonce: u64,
}

/// What a member's engine has done since its deployment began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Activity {
    /// Time it computed.
    pub busy_ns: u64,
    /// Time it waited.
    pub idle_ns: u64,
    /// Frames it took.
    pub frames: u64,
    /// Time of the steps that computed one row: one token of one sequence.
    pub token_ns: u64,
    /// Number of those steps.
    pub token_steps: u64,
}

impl Activity {
    /// Nothing done yet.
    pub const NONE: Self = Self { busy_ns: 0, idle_ns: 0, frames: 0, token_ns: 0, token_steps: 0 };
}

/// The answer to a sign of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pong {
    /// Of the ping.
    pub nonce: u64,
    /// What the member has done.
    pub activity: Activity,
}

/// A micro-batch was not computed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepFailed {
    /// The deployment.
    pub epoch: Epoch,
    /// The micro-batch.
    pub micro_batch: MicroBatchId,
    /// Why.
    pub cause: Text,
}

/// A data connection is broken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerLost {
    /// The deployment.
    pub epoch: Epoch,
    /// The member at the other end.
    pub member: MemberIndex,
    /// What happened.
    pub cause: Text,
}

/// The sender goes away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leave {
    /// Why.
    pub reason: Text,
}

/// A data connection between two members of a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edge {
    /// The deployment.
    pub epoch: Epoch,
    /// The member that sends.
    pub from: MemberIndex,
    /// The member that receives.
    pub to: MemberIndex,
}

/// Asks for a model's manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FetchManifest {
    /// The model.
    pub model: ModelDigest,
}

/// A model's manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The model.
    pub model: ModelDigest,
    /// Number of bytes that follow.
    pub bytes: u32,
}

/// Asks for a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FetchBlock {
    /// The model.
    pub model: ModelDigest,
    /// Which block of it.
    pub index: u32,
}

/// A block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Block {
    /// The model.
    pub model: ModelDigest,
    /// Which block of it.
    pub index: u32,
    /// Number of bytes that follow.
    pub bytes: u32,
}

/// What a node is to measure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Survey {
    /// The model whose layers are to be measured.
    pub model: ModelManifestRef,
    /// Nodes that have it.
    pub sources: List<Peer, MEMBERS_MAX>,
    /// Tokens of context that a sequence may have.
    pub context_tokens: u32,
    /// Rows of a micro-batch.
    pub batch_rows_max: u32,
    /// How keys and values are kept.
    pub kv_type: KvType,
    /// Nodes that may connect to this one from now on, to measure the way.
    pub others: List<NodeId, MEMBERS_MAX>,
}

/// Which ways a node is to measure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasureLinks {
    /// The nodes at their other ends.
    pub peers: List<Peer, MEMBERS_MAX>,
}

/// How fast a node is, in general and with one model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Surveyed {
    /// The model.
    pub model: ModelDigest,
    /// What was measured.
    pub profile: ProfileJson,
}

/// A node that cannot be measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SurveyFailed {
    /// The model.
    pub model: ModelDigest,
    /// Why.
    pub cause: Text,
}

/// Quality of the way between two nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkQuality {
    /// Round trip of a short message.
    pub round_trip_ns: u64,
    /// Rate from the node that tells to the other.
    pub out_bytes_per_s: u64,
    /// Rate from the other node.
    pub in_bytes_per_s: u64,
}

/// The way from the sender to another node, both ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkMeasured {
    /// The other node.
    pub to: NodeId,
    /// Its quality; nothing if the other node cannot be reached.
    pub quality: Option<LinkQuality>,
}

/// A message that measures a way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probe {
    /// Number of bytes that follow.
    pub bytes: u32,
    /// Number of bytes that are to follow the answer.
    pub answer_bytes: u32,
}

/// The answer to a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probed {
    /// Number of bytes that follow.
    pub bytes: u32,
}

impl ControlMessage {
    /// The type, as on the wire.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Hello(_) => "hello",
            Self::Welcome(_) => "welcome",
            Self::Refused(_) => "refused",
            Self::Prepare(_) => "prepare",
            Self::Progress(_) => "progress",
            Self::Prepared(_) => "prepared",
            Self::PrepareFailed(_) => "prepare_failed",
            Self::Commit(_) => "commit",
            Self::Committed(_) => "committed",
            Self::Release(_) => "release",
            Self::Released(_) => "released",
            Self::Ping(_) => "ping",
            Self::Pong(_) => "pong",
            Self::StepFailed(_) => "step_failed",
            Self::PeerLost(_) => "peer_lost",
            Self::Leave(_) => "leave",
            Self::Edge(_) => "edge",
            Self::FetchManifest(_) => "fetch_manifest",
            Self::Manifest(_) => "manifest",
            Self::FetchBlock(_) => "fetch_block",
            Self::Block(_) => "block",
            Self::NoBlock(_) => "no_block",
            Self::Survey(_) => "survey",
            Self::Surveyed(_) => "surveyed",
            Self::SurveyFailed(_) => "survey_failed",
            Self::MeasureLinks(_) => "measure_links",
            Self::LinkMeasured(_) => "link_measured",
            Self::Probe(_) => "probe",
            Self::Probed(_) => "probed",
        }
    }

    /// Number of raw bytes that must follow.
    #[must_use]
    pub const fn raw_bytes(&self) -> u64 {
        match self {
            Self::Manifest(manifest) => manifest.bytes as u64,
            Self::Block(block) => block.bytes as u64,
            Self::Probe(probe) => probe.bytes as u64,
            Self::Probed(probed) => probed.bytes as u64,
            _ => 0,
        }
    }
}
