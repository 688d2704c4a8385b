//! A deployment under way: every member prepares, then every member commits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{DeployFault, DeployRefused, Deployment};
use crate::assignment::{Assignment, AssignmentSpec};
use crate::control::{List, ModelManifestRef, NodeId, Peer, Prepare};
use crate::frame::Epoch;
use crate::limits::{COMMIT_TIMEOUT, MEMBERS_MAX, PREPARE_STALL_TIMEOUT};
use crate::route::MemberIndex;

/// How far one member is.
#[derive(Debug)]
enum Stage {
    /// It loads; the last progress and when it came.
    Preparing { done_bytes: u64, moved: Duration },
    /// It has loaded.
    Prepared,
    /// It was told to commit.
    Committing { since: Duration },
    /// It serves.
    Committed,
}

#[derive(Debug)]
pub(super) struct Deploying {
    assignment: Arc<Assignment>,
    /// Nodes in the order of the route's list.
    order: Vec<NodeId>,
    stages: BTreeMap<NodeId, Stage>,
    prepares: Vec<Prepare>,
}

impl Deploying {
    pub(super) fn new(
        deployment: Deployment,
        epoch: Epoch,
        peer: impl Fn(&NodeId) -> Result<Peer, DeployRefused>,
        now: Duration,
    ) -> Result<Self, DeployRefused> {
        let Deployment { assignment, members, model, sources } = deployment;
        let assignment = Assignment::new(AssignmentSpec { epoch, ..assignment })?;
        let (found, expected) = (members.len(), usize::from(assignment.route().members()));
        if found != expected {
            return Err(DeployRefused::Members { found, expected });
        }
        let mut stages = BTreeMap::new();
        for member in &members {
            let stage = Stage::Preparing { done_bytes: 0, moved: now };
            if stages.insert(member.node, stage).is_some() {
                return Err(DeployRefused::Node(member.node));
            }
        }
        let order: Vec<NodeId> = members.iter().map(|member| member.node).collect();
        let peers = |nodes: &[NodeId]| -> Result<List<Peer, MEMBERS_MAX>, DeployRefused> {
            let peers: Vec<Peer> = nodes.iter().map(&peer).collect::<Result<_, _>>()?;
            List::new(peers).map_err(|_| DeployRefused::TooLong)
        };
        let (sources, peers) = (peers(&sources)?, peers(&order)?);
        let mut prepares = Vec::with_capacity(members.len());
        for (index, member) in members.into_iter().enumerate() {
            let residency = List::new(member.residency).map_err(|_| DeployRefused::TooLong)?;
            let model: ModelManifestRef = model.clone();
            prepares.push(Prepare {
                assignment: assignment.clone(),
                member: MemberIndex(index as u16),
                residency,
                model,
                sources: sources.clone(),
                members: peers.clone(),
            });
        }
        Ok(Self { assignment: Arc::new(assignment), order, stages, prepares })
    }

    /// What each member is told, once.
    pub(super) fn take_prepares(&mut self) -> impl Iterator<Item = (NodeId, Prepare)> + '_ {
        let prepares = std::mem::take(&mut self.prepares);
        self.order.iter().copied().zip(prepares)
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.assignment.epoch()
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.order.iter().copied()
    }

    pub(super) fn has(&self, node: NodeId) -> bool {
        self.stages.contains_key(&node)
    }

    pub(super) fn into_parts(self) -> (Arc<Assignment>, Vec<NodeId>) {
        (self.assignment, self.order)
    }

    /// Only more bytes count as progress.
    pub(super) fn progress(&mut self, node: NodeId, bytes: u64, now: Duration) {
        if let Some(Stage::Preparing { done_bytes, moved }) = self.stages.get_mut(&node)
            && bytes > *done_bytes
        {
            (*done_bytes, *moved) = (bytes, now);
        }
    }

    pub(super) fn prepared(&mut self, node: NodeId) {
        if let Some(stage @ Stage::Preparing { .. }) = self.stages.get_mut(&node) {
            *stage = Stage::Prepared;
        }
    }

    pub(super) fn committed(&mut self, node: NodeId) {
        if let Some(stage @ Stage::Committing { .. }) = self.stages.get_mut(&node) {
            *stage = Stage::Committed;
        }
    }

    /// Whether all are ready and none was told to commit.
    pub(super) fn is_prepared(&self) -> bool {
        self.stages.values().all(|stage| matches!(stage, Stage::Prepared))
    }

    /// All are told to commit.
    pub(super) fn begin_commit(&mut self, now: Duration) {
        for stage in self.stages.values_mut() {
            *stage = Stage::Committing { since: now };
        }
    }

    pub(super) fn is_committed(&self) -> bool {
        self.stages.values().all(|stage| matches!(stage, Stage::Committed))
    }

    /// The first member that has taken too long.
    pub(super) fn overdue(&self, now: Duration) -> Option<(NodeId, DeployFault)> {
        self.stages.iter().find_map(|(node, stage)| {
            let fault = match stage {
                Stage::Preparing { moved, .. } if now >= *moved + PREPARE_STALL_TIMEOUT => {
                    DeployFault::Stalled(now - *moved)
                }
                Stage::Committing { since } if now >= *since + COMMIT_TIMEOUT => {
                    DeployFault::CommitUnanswered(now - *since)
                }
                _ => return None,
            };
            Some((*node, fault))
        })
    }

    /// Does not count time in which the head itself did not run.
    pub(super) fn forgive(&mut self, slept: Duration) {
        for stage in self.stages.values_mut() {
            match stage {
                Stage::Preparing { moved, .. } => *moved += slept,
                Stage::Committing { since } => *since += slept,
                Stage::Prepared | Stage::Committed => {}
            }
        }
    }
}
