//! The head's side of a cluster's life: who is there, deployments, and who is lost.

mod deploying;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use motley_cluster::ResidencyRun;

use crate::assignment::{Assignment, AssignmentError, AssignmentSpec};
use crate::batch::MicroBatchId;
use crate::control::{
    Activity, Addresses, ControlMessage, Hello, LinkQuality, ModelDigest, ModelManifestRef, Name,
    NodeId, OfEpoch, Peer, PeerLost, Ping, Pong, ProfileJson, RefusalCode, Refused, Text, Welcome,
};
use crate::follower::slept;
use crate::frame::Epoch;
use crate::limits::{
    HEARTBEAT_INTERVAL, LOST_AFTER, MEMBERS_MAX, PROTOCOL_VERSION, PROTOCOL_VERSION_MIN,
    SUSPECT_AFTER,
};
use crate::route::MemberIndex;

use deploying::Deploying;

/// What the head says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoordinatorOptions {
    /// Its key. It joins its own cluster by a hello like every node, and is never silent.
    pub node: NodeId,
    /// What people call it.
    pub name: Name,
    /// Its build of this program.
    pub build: Name,
    /// Its build of ggml.
    pub engine_build: Name,
    /// The highest epoch it ever heard of.
    pub epoch_seen: Epoch,
}

/// A node was let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// The answer to its hello.
    pub welcome: Welcome,
    /// Names its connection, so that the end of an older one means nothing.
    pub session: u64,
}

/// One node's part of a deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeploymentMember {
    /// The node.
    pub node: NodeId,
    /// How each of its layers is kept.
    pub residency: Vec<ResidencyRun>,
}

/// A deployment to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deployment {
    /// What is the same for all members; its epoch is replaced by the next one.
    pub assignment: AssignmentSpec,
    /// The members, in the order of the route's list.
    pub members: Vec<DeploymentMember>,
    /// The model.
    pub model: ModelManifestRef,
    /// Nodes that have it.
    pub sources: Vec<NodeId>,
}

/// Why a deployment is not begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DeployRefused {
    /// Its numbers do not fit the protocol.
    #[error(transparent)]
    Assignment(#[from] AssignmentError),
    /// It has other members than its route.
    #[error("{found} members, the route has {expected}")]
    Members {
        /// Members named.
        found: usize,
        /// Members of the route.
        expected: usize,
    },
    /// A node that is not there, or twice.
    #[error("node {0} is not in the cluster, or named twice")]
    Node(NodeId),
    /// A list that is longer than a message can carry.
    #[error("more layers or sources than a message can carry")]
    TooLong,
}

/// Why a deployment failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeployFault {
    /// The member says why.
    #[error("{0}")]
    Member(Text),
    /// A connection between it and another member broke or could not be opened.
    #[error("no connection between it and another: {0}")]
    Unreachable(Text),
    /// It made no progress for so long.
    #[error("no progress for {} s", .0.as_secs())]
    Stalled(Duration),
    /// It did not answer the commit.
    #[error("no answer to the commit for {} s", .0.as_secs())]
    CommitUnanswered(Duration),
    /// It went away.
    #[error("the node was lost")]
    Lost,
    /// Another deployment was begun, or this one was given up.
    #[error("the deployment was given up")]
    GivenUp,
}

/// Why a node is no longer there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LossReason {
    /// Its control connection closed.
    Closed,
    /// Nothing came from it for so long.
    Silent(Duration),
    /// It said hello again on another connection.
    Reconnected,
    /// It went away on purpose.
    Left(Text),
    /// It sent what a member does not send.
    Protocol(&'static str),
}

/// What the head is to do, or to know, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum CoordinatorOutput {
    /// Send this to a node; to the head's own follower directly.
    Send {
        /// The node.
        to: NodeId,
        /// The message.
        message: ControlMessage,
    },
    /// A member's preparation goes on.
    Progress {
        /// The deployment.
        epoch: Epoch,
        /// The node.
        node: NodeId,
        /// Bytes fetched and loaded.
        done_bytes: u64,
        /// Bytes there are.
        total_bytes: u64,
    },
    /// All members are ready for this deployment, while another is in force: stop giving slots, let
    /// what runs end, then [`commit`](Coordinator::commit).
    Ready {
        /// The deployment.
        epoch: Epoch,
    },
    /// All members serve this deployment: micro-batches can begin.
    Deployed {
        /// What is the same for all members.
        assignment: Arc<Assignment>,
        /// The members, in the order of the route's list.
        members: Vec<NodeId>,
    },
    /// A deployment failed; what served before it serves on, unless it is named as lost.
    DeployFailed {
        /// The deployment.
        epoch: Epoch,
        /// The node it failed at, if it was one.
        node: Option<NodeId>,
        /// Why.
        cause: DeployFault,
    },
    /// A node has been silent for a while.
    Suspect {
        /// The node.
        node: NodeId,
        /// For how long.
        silent_for: Duration,
    },
    /// A node is no longer there; close its connections.
    Lost {
        /// The node.
        node: NodeId,
        /// Why.
        why: LossReason,
        /// The deployment that is over, because the node served in it.
        ended: Option<Epoch>,
    },
    /// A micro-batch of the deployment in force could not be computed.
    StepFailed {
        /// The node that tried.
        node: NodeId,
        /// The micro-batch.
        micro_batch: MicroBatchId,
        /// Why.
        cause: Text,
    },
    /// A data connection of the deployment in force is broken. The deployment is over: its members
    /// were told to release it.
    EdgeLost {
        /// The node that says so.
        node: NodeId,
        /// The member at the other end.
        peer: MemberIndex,
        /// What happened.
        cause: Text,
        /// The deployment.
        ended: Epoch,
    },
    /// A node has measured itself; nobody has judged the profile yet.
    Surveyed {
        /// The node.
        node: NodeId,
        /// The model it measured with.
        model: ModelDigest,
        /// What it says of itself.
        profile: ProfileJson,
    },
    /// A node cannot measure itself.
    SurveyFailed {
        /// The node.
        node: NodeId,
        /// Why.
        cause: Text,
    },
    /// A node has measured the way to another one.
    LinkMeasured {
        /// The node.
        node: NodeId,
        /// The other one.
        to: NodeId,
        /// Its quality; nothing if there is no way.
        quality: Option<LinkQuality>,
    },
}

/// A message that was not expected. The connection is closed; a member that sent it is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CoordinatorFault {
    /// The node is not in the cluster.
    #[error("node {0} is not in the cluster")]
    Stranger(NodeId),
    /// Members do not send it.
    #[error("a member does not send {name}")]
    NotFromMember {
        /// Type of the message.
        name: &'static str,
    },
}

/// What is known of a node.
#[derive(Debug, Clone, PartialEq)]
pub struct MemberState {
    /// What it said when it came.
    pub name: Name,
    /// Its build of this program.
    pub build: Name,
    /// Where it can be reached.
    pub addresses: Addresses,
    /// Memory it gives to models.
    pub memory_budget_bytes: u64,
    /// What it has measured of itself.
    pub profile: ProfileJson,
    /// Since when it has been silent.
    pub heard: Duration,
    /// It has been silent for longer than is usual.
    pub suspected: bool,
    /// Last round trip of a sign of life.
    pub round_trip: Option<Duration>,
    /// What its engine has done.
    pub activity: Activity,
    session: u64,
}

/// A deployment in force.
#[derive(Debug)]
struct Serving {
    assignment: Arc<Assignment>,
    members: Vec<NodeId>,
}

/// The head's side of the cluster's life.
///
/// Contract with the driver as for [`Follower`](crate::Follower): one input, then carry out
/// [`poll_output`](Self::poll_output) until it gives nothing, and [`poll`](Self::poll) at the latest
/// at [`next_deadline`](Self::next_deadline). Signs of life travel apart from tokens: a slow engine
/// is not a lost node.
#[derive(Debug)]
pub struct Coordinator {
    options: CoordinatorOptions,
    members: BTreeMap<NodeId, MemberState>,
    epoch: Epoch,
    serving: Option<Serving>,
    deploying: Option<Deploying>,
    pinged: Option<Duration>,
    polled: Duration,
    sessions: u64,
    outputs: VecDeque<CoordinatorOutput>,
}

impl Coordinator {
    /// A head without members.
    #[must_use]
    pub const fn new(options: CoordinatorOptions, now: Duration) -> Self {
        let epoch = options.epoch_seen;
        Self {
            options,
            members: BTreeMap::new(),
            epoch,
            serving: None,
            deploying: None,
            pinged: None,
            polled: now,
            sessions: 0,
            outputs: VecDeque::new(),
        }
    }

    /// Judges a hello. The driver has compared its key with the connection's before.
    ///
    /// # Errors
    /// The answer to send before the connection is closed.
    pub fn joined(&mut self, hello: Hello, now: Duration) -> Result<Admission, Box<Refused>> {
        let protocol = judge(&hello, &self.options)?;
        if self.members.contains_key(&hello.node) {
            self.lose(hello.node, LossReason::Reconnected);
        } else if self.members.len() >= MEMBERS_MAX {
            return Err(refusal(
                RefusalCode::ClusterFull,
                &format!("the cluster has {MEMBERS_MAX} nodes, which is the most"),
                "remove a node first",
            ));
        }
        self.epoch = self.epoch.max(hello.epoch_seen);
        self.sessions += 1;
        let session = self.sessions;
        let member = MemberState {
            name: hello.name,
            build: hello.build,
            addresses: hello.addresses,
            memory_budget_bytes: hello.memory_budget_bytes,
            profile: hello.profile,
            heard: now,
            suspected: false,
            round_trip: None,
            activity: Activity::default(),
            session,
        };
        self.members.insert(hello.node, member);
        let welcome = Welcome {
            protocol,
            node: self.options.node,
            name: self.options.name.clone(),
            build: self.options.build.clone(),
            epoch: self.epoch,
        };
        Ok(Admission { welcome, session })
    }

    /// Takes a message of a member.
    ///
    /// # Errors
    /// It was not expected; if a member sent it, the member is lost.
    pub fn handle(
        &mut self,
        from: NodeId,
        message: ControlMessage,
        now: Duration,
    ) -> Result<(), CoordinatorFault> {
        let Some(member) = self.members.get_mut(&from) else {
            return Err(CoordinatorFault::Stranger(from));
        };
        member.heard = member.heard.max(now);
        member.suspected = false;
        match message {
            ControlMessage::Pong(Pong { nonce, activity }) => {
                member.activity = activity;
                member.round_trip = now.checked_sub(Duration::from_nanos(nonce));
            }
            ControlMessage::Progress(progress) => {
                if let Some(deploying) = self.deploying_in(progress.epoch) {
                    deploying.progress(from, progress.done_bytes, now);
                    self.outputs.push_back(CoordinatorOutput::Progress {
                        epoch: progress.epoch,
                        node: from,
                        done_bytes: progress.done_bytes,
                        total_bytes: progress.total_bytes,
                    });
                }
            }
            ControlMessage::Prepared(prepared) => {
                if let Some(deploying) = self.deploying_in(prepared.epoch) {
                    deploying.prepared(from);
                    self.announce(now);
                }
            }
            ControlMessage::PrepareFailed(failed) => {
                if self.deploying_in(failed.epoch).is_some() {
                    self.fail(Some(from), DeployFault::Member(failed.cause));
                }
            }
            ControlMessage::Committed(OfEpoch { epoch }) => {
                if let Some(deploying) = self.deploying_in(epoch) {
                    deploying.committed(from);
                    self.go_on();
                }
            }
            ControlMessage::Released(_) => {}
            ControlMessage::StepFailed(failed) if self.serves(failed.epoch) => {
                let (micro_batch, cause) = (failed.micro_batch, failed.cause);
                self.outputs.push_back(CoordinatorOutput::StepFailed {
                    node: from,
                    micro_batch,
                    cause,
                });
            }
            ControlMessage::PeerLost(lost) => self.edge_lost(from, lost),
            // Of a deployment that is over.
            ControlMessage::StepFailed(_) => {}
            ControlMessage::Leave(leave) => self.lose(from, LossReason::Left(leave.reason)),
            message @ (ControlMessage::Surveyed(_)
            | ControlMessage::SurveyFailed(_)
            | ControlMessage::LinkMeasured(_)) => self.measured(from, message),
            other => {
                let name = other.name();
                self.lose(from, LossReason::Protocol(name));
                return Err(CoordinatorFault::NotFromMember { name });
            }
        }
        Ok(())
    }

    /// A member's control connection closed.
    pub fn closed(&mut self, node: NodeId, session: u64) {
        if self.members.get(&node).is_some_and(|member| member.session == session) {
            self.lose(node, LossReason::Closed);
        }
    }

    /// Begins a deployment and gives its epoch. One that is under way is given up; one in force
    /// serves on until the new one is ready and [`commit`](Self::commit) is called.
    ///
    /// # Errors
    /// It cannot be made with the nodes that are there; nothing has changed then.
    pub fn deploy(
        &mut self,
        deployment: Deployment,
        now: Duration,
    ) -> Result<Epoch, DeployRefused> {
        let epoch = Epoch(self.epoch.0 + 1);
        let peer = |node: &NodeId| match self.members.get(node) {
            Some(member) => Ok(Peer { node: *node, addresses: member.addresses.clone() }),
            None => Err(DeployRefused::Node(*node)),
        };
        let mut deploying = Deploying::new(deployment, epoch, peer, now)?;
        self.fail(None, DeployFault::GivenUp);
        self.epoch = epoch;
        for (to, prepare) in deploying.take_prepares() {
            let message = ControlMessage::Prepare(Box::new(prepare));
            self.outputs.push_back(CoordinatorOutput::Send { to, message });
        }
        self.deploying = Some(deploying);
        Ok(epoch)
    }

    /// Switches to the deployment that is [`Ready`](CoordinatorOutput::Ready). The driver has let
    /// all micro-batches come back and begins none before
    /// [`Deployed`](CoordinatorOutput::Deployed). False if nothing is ready.
    pub fn commit(&mut self, now: Duration) -> bool {
        let ready = self.deploying.as_ref().is_some_and(Deploying::is_prepared);
        if ready {
            self.send_commits(now);
        }
        ready
    }

    /// Ends the deployment in force, and gives up one that is under way.
    pub fn release(&mut self) {
        self.fail(None, DeployFault::GivenUp);
        self.end_serving();
    }

    /// The deployment in force and its members.
    #[must_use]
    pub fn serving(&self) -> Option<(&Arc<Assignment>, &[NodeId])> {
        self.serving.as_ref().map(|serving| (&serving.assignment, serving.members.as_slice()))
    }

    /// The highest epoch so far; the driver keeps it for the next start.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The nodes that are there.
    #[must_use]
    pub const fn members(&self) -> &BTreeMap<NodeId, MemberState> {
        &self.members
    }

    /// Looks at the time: sends signs of life, and finds who is silent or makes no progress.
    pub fn poll(&mut self, now: Duration) {
        let slept = slept(self.polled, now);
        self.polled = self.polled.max(now);
        let own = self.options.node;
        if self.pinged.is_none_or(|pinged| now >= pinged + HEARTBEAT_INTERVAL) {
            self.pinged = Some(now);
            let nonce = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
            for node in self.members.keys().filter(|node| **node != own) {
                let message = ControlMessage::Ping(Ping { nonce });
                self.outputs.push_back(CoordinatorOutput::Send { to: *node, message });
            }
        }
        let mut lost = Vec::new();
        for (node, member) in self.members.iter_mut().filter(|(node, _)| **node != own) {
            member.heard = (member.heard + slept).min(now.max(member.heard));
            let silent_for = now.saturating_sub(member.heard);
            if silent_for >= LOST_AFTER {
                lost.push((*node, silent_for));
            } else if silent_for >= SUSPECT_AFTER && !member.suspected {
                member.suspected = true;
                self.outputs.push_back(CoordinatorOutput::Suspect { node: *node, silent_for });
            }
        }
        for (node, silent_for) in lost {
            self.lose(node, LossReason::Silent(silent_for));
        }
        if let Some(deploying) = &mut self.deploying {
            deploying.forgive(slept);
            if let Some((node, cause)) = deploying.overdue(now) {
                self.fail(Some(node), cause);
            }
        }
    }

    /// When to look at the time again.
    #[must_use]
    pub fn next_deadline(&self) -> Duration {
        self.pinged.map_or(self.polled, |pinged| pinged + HEARTBEAT_INTERVAL)
    }

    /// What is to be done next.
    pub fn poll_output(&mut self) -> Option<CoordinatorOutput> {
        self.outputs.pop_front()
    }

    /// A node tells what it has measured.
    fn measured(&mut self, node: NodeId, message: ControlMessage) {
        let output = match message {
            ControlMessage::Surveyed(surveyed) => {
                let (model, profile) = (surveyed.model, surveyed.profile);
                CoordinatorOutput::Surveyed { node, model, profile }
            }
            ControlMessage::SurveyFailed(failed) => {
                CoordinatorOutput::SurveyFailed { node, cause: failed.cause }
            }
            ControlMessage::LinkMeasured(link) => {
                CoordinatorOutput::LinkMeasured { node, to: link.to, quality: link.quality }
            }
            _ => return,
        };
        self.outputs.push_back(output);
    }

    /// A data connection cannot be opened, or is broken.
    fn edge_lost(&mut self, from: NodeId, lost: PeerLost) {
        let PeerLost { epoch, member, cause } = lost;
        if let Some(deploying) = self.deploying_in(epoch) {
            // Whoever cannot be reached is at fault, not the one that says so; but all have
            // reached the head.
            let peer = deploying.nodes().nth(member.index());
            let at = peer.filter(|peer| *peer != self.options.node).unwrap_or(from);
            self.fail(Some(at), DeployFault::Unreachable(cause));
        } else if self.serves(epoch) {
            self.end_serving();
            self.outputs.push_back(CoordinatorOutput::EdgeLost {
                node: from,
                peer: member,
                cause,
                ended: epoch,
            });
        }
    }

    fn deploying_in(&mut self, epoch: Epoch) -> Option<&mut Deploying> {
        self.deploying.as_mut().filter(|deploying| deploying.epoch() == epoch)
    }

    fn serves(&self, epoch: Epoch) -> bool {
        self.serving.as_ref().is_some_and(|serving| serving.assignment.epoch() == epoch)
    }

    /// Commits what all are prepared for, unless something in force must end first.
    fn announce(&mut self, now: Duration) {
        let Some(deploying) = self.deploying.as_ref().filter(|deploying| deploying.is_prepared())
        else {
            return;
        };
        if self.serving.is_some() {
            let epoch = deploying.epoch();
            self.outputs.push_back(CoordinatorOutput::Ready { epoch });
        } else {
            self.send_commits(now);
        }
    }

    fn send_commits(&mut self, now: Duration) {
        let Some(deploying) = &mut self.deploying else { return };
        deploying.begin_commit(now);
        let message = ControlMessage::Commit(OfEpoch { epoch: deploying.epoch() });
        for to in deploying.nodes() {
            let message = message.clone();
            self.outputs.push_back(CoordinatorOutput::Send { to, message });
        }
    }

    /// Serves when all have committed.
    fn go_on(&mut self) {
        let Some(done) = self.deploying.take_if(|deploying| deploying.is_committed()) else {
            return;
        };
        self.end_serving();
        let (assignment, members) = done.into_parts();
        let serving = Serving { assignment: Arc::clone(&assignment), members: members.clone() };
        self.serving = Some(serving);
        self.outputs.push_back(CoordinatorOutput::Deployed { assignment, members });
    }

    fn fail(&mut self, node: Option<NodeId>, cause: DeployFault) {
        let Some(failed) = self.deploying.take() else { return };
        let epoch = failed.epoch();
        self.send_release(epoch, failed.nodes().collect());
        self.outputs.push_back(CoordinatorOutput::DeployFailed { epoch, node, cause });
    }

    fn end_serving(&mut self) -> Option<Epoch> {
        let over = self.serving.take()?;
        let epoch = over.assignment.epoch();
        self.send_release(epoch, over.members);
        Some(epoch)
    }

    fn send_release(&mut self, epoch: Epoch, nodes: Vec<NodeId>) {
        let message = ControlMessage::Release(OfEpoch { epoch });
        for to in nodes.into_iter().filter(|node| self.members.contains_key(node)) {
            let message = message.clone();
            self.outputs.push_back(CoordinatorOutput::Send { to, message });
        }
    }

    fn lose(&mut self, node: NodeId, why: LossReason) {
        if self.members.remove(&node).is_none() {
            return;
        }
        if self.deploying.as_ref().is_some_and(|deploying| deploying.has(node)) {
            self.fail(Some(node), DeployFault::Lost);
        }
        let served = self.serving.as_ref().is_some_and(|serving| serving.members.contains(&node));
        let ended = if served { self.end_serving() } else { None };
        self.outputs.push_back(CoordinatorOutput::Lost { node, why, ended });
    }
}

/// The protocol version to speak with a node.
fn judge(hello: &Hello, own: &CoordinatorOptions) -> Result<u16, Box<Refused>> {
    let (oldest, newest) = (hello.protocol_min, hello.protocol_max);
    let protocol = newest.min(PROTOCOL_VERSION);
    if protocol < oldest.max(PROTOCOL_VERSION_MIN) {
        let message = format!(
            "this cluster speaks protocol versions {PROTOCOL_VERSION_MIN} to {PROTOCOL_VERSION}, \
             the node {oldest} to {newest}"
        );
        let older = if newest < PROTOCOL_VERSION_MIN { "the node" } else { "the cluster" };
        let advice = format!("install the newer version on {older}");
        return Err(refusal(RefusalCode::ProtocolVersion, &message, &advice));
    }
    if hello.engine_build != own.engine_build {
        let message = format!(
            "this cluster computes with {}, the node with {}, whose results may differ",
            own.engine_build, hello.engine_build
        );
        let advice = format!("install version {} on the node", own.build);
        return Err(refusal(RefusalCode::EngineBuild, &message, &advice));
    }
    Ok(protocol)
}

fn refusal(code: RefusalCode, message: &str, advice: &str) -> Box<Refused> {
    Box::new(Refused { code, message: Text::cut(message), advice: Text::cut(advice) })
}
