//! Deployments that this device takes frames of: where the connections of others find them.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use motley_ring::{Assignment, Edge, Epoch, MemberIndex, NodeId};

use crate::stage::{Arrival, EdgeError, EdgePlace, OpenEdges};
use crate::transport::Closer;

/// A deployment as the connections of others see it.
pub(crate) struct Stage {
    pub(crate) assignment: Arc<Assignment>,
    /// This device's place in the route.
    pub(crate) own: MemberIndex,
    /// The nodes of the route, in its order.
    pub(crate) nodes: Vec<NodeId>,
    /// Takes what comes; false when nobody does any more.
    pub(crate) deliver: Box<dyn Fn(Arrival) -> bool + Send + Sync>,
    /// Is told of a connection that broke, with the member at its other end.
    pub(crate) broken: Arc<dyn Fn(MemberIndex, EdgeError) + Send + Sync>,
}

/// Why a data connection is not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EdgeRefused {
    /// No such deployment is being prepared here.
    #[error("epoch {} is not being prepared here", epoch.0)]
    UnknownEpoch {
        /// The deployment.
        epoch: Epoch,
    },
    /// The route has no such edge, or the node is not who it says it is.
    #[error("member {} is not {node}, or sends nothing to this device", from.0)]
    NotOnRoute {
        /// The member it says it is.
        from: MemberIndex,
        /// The node that it is.
        node: NodeId,
    },
}

/// The deployments of this device, by epoch.
#[derive(Default)]
pub(crate) struct Stages {
    entries: Mutex<BTreeMap<Epoch, Entry>>,
    changed: Condvar,
}

struct Entry {
    stage: Arc<Stage>,
    open: OpenEdges,
}

impl Stages {
    /// Takes connections of a deployment from now on.
    pub(crate) fn add(&self, stage: Stage) {
        let epoch = stage.assignment.epoch();
        let entry = Entry { stage: Arc::new(stage), open: OpenEdges::default() };
        self.lock().insert(epoch, entry);
        self.changed.notify_all();
    }

    /// Takes none any more, and closes those that are open.
    pub(crate) fn remove(&self, epoch: Epoch) {
        let removed = self.lock().remove(&epoch);
        drop(removed);
    }

    /// Closes `closer`'s connection when the deployment is over.
    pub(crate) fn keep(&self, epoch: Epoch, closer: Closer) {
        match self.lock().get_mut(&epoch) {
            Some(entry) => entry.open.add(closer),
            None => closer.close(),
        }
    }

    /// The stage that a connection from `node` asks for. One that is not there yet is waited for:
    /// its member may hear of the deployment later than the sender.
    ///
    /// # Errors
    /// When it does not come, or the connection has no place on its route.
    pub(crate) fn find(
        &self,
        edge: Edge,
        node: NodeId,
        patience: Duration,
    ) -> Result<(Arc<Stage>, EdgePlace), EdgeRefused> {
        let until = Instant::now() + patience;
        let mut entries = self.lock();
        let stage = loop {
            if let Some(entry) = entries.get(&edge.epoch) {
                break Arc::clone(&entry.stage);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(EdgeRefused::UnknownEpoch { epoch: edge.epoch });
            }
            let waited = self.changed.wait_timeout(entries, left);
            entries = waited.unwrap_or_else(PoisonError::into_inner).0;
        };
        let (from, to) = (edge.from, edge.to);
        let known = stage.nodes.get(from.index()) == Some(&node);
        let on_route = stage.assignment.route().edges().contains(&(from, to));
        if !known || !on_route || to != stage.own {
            return Err(EdgeRefused::NotOnRoute { from, node });
        }
        let place = EdgePlace { assignment: Arc::clone(&stage.assignment), from, to };
        Ok((stage, place))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Epoch, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
