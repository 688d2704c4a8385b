//! What comes from other members, and the way to them.

use std::collections::BTreeMap;
use std::sync::Arc;

use motley_ring::{Batch, Epoch, FrameHeader, MemberIndex, MicroBatchId, Outgoing};

use super::Payload;
use super::edges::Way;

/// Something that comes to an engine thread from the ring.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// A frame of activations, whose header has been checked against the plan.
    Frame { from: MemberIndex, header: FrameHeader, batch: Batch, payload: Payload },
    /// A member could not compute a micro-batch.
    StepFailed { epoch: Epoch, micro_batch: MicroBatchId, cause: String },
    /// A member is gone.
    Lost { epoch: Epoch, node: Arc<str> },
}

/// The ways to the members that this one sends to.
#[derive(Debug, Default)]
pub(crate) struct Links {
    ways: BTreeMap<MemberIndex, Way>,
}

impl Links {
    /// No ways: this member is alone.
    pub(crate) fn none() -> Self {
        Self::default()
    }

    /// Adds a way.
    pub(crate) fn add(&mut self, to: MemberIndex, way: Way) {
        self.ways.insert(to, way);
    }

    /// Sends on what was computed. What cannot be sent is lost with its connection, of which the
    /// head hears from whoever watches it.
    pub(crate) fn send(&self, outgoing: Outgoing<Payload>) {
        if let Some(way) = self.ways.get(&outgoing.to) {
            way.send(outgoing);
        }
    }
}
