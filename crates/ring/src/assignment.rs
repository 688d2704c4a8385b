//! What one deployment fixes for every member of a ring.

use std::ops::Range;

use motley_cluster::KvType;
use serde::{Deserialize, Serialize};

use crate::batch::WireElement;
use crate::frame::{ClusterId, Epoch, FrameShape};
use crate::limits::{BATCH_ROWS_MAX, CONTEXT_TOKENS_MAX, PAYLOAD_BYTES_MAX, SLOTS_MAX, WIDTH_MAX};
use crate::route::{MemberIndex, Route};

/// An assignment as it is written; [`Assignment`] is the proven form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AssignmentSpec {
    /// The cluster.
    pub cluster: ClusterId,
    /// The deployment.
    pub epoch: Epoch,
    /// Who computes what, in which order.
    pub route: Route,
    /// Sequences the ring carries at once.
    pub slots: u32,
    /// Tokens of context of each slot.
    pub context_tokens: u32,
    /// Rows of a micro-batch.
    pub batch_rows_max: u32,
    /// Micro-batches on their way at once.
    pub groups: u32,
    /// Values of a row of activations.
    pub width: u32,
    /// How activations are written.
    pub wire_element: WireElement,
    /// How keys and values are kept.
    pub kv_type: KvType,
}

/// A deployment whose numbers fit together and the protocol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "AssignmentSpec", into = "AssignmentSpec")]
pub struct Assignment(AssignmentSpec);

/// Why an assignment cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AssignmentError {
    /// A number out of range.
    #[error("{what} are {found}, from 1 to {most} are possible")]
    Count {
        /// What was counted.
        what: &'static str,
        /// The number found.
        found: u64,
        /// The largest possible.
        most: u64,
    },
    /// A row cannot be cut into whole blocks of the number format.
    #[error("rows of {width} values are no whole blocks of the number format")]
    Blocks {
        /// Values of a row.
        width: u32,
    },
}

impl Assignment {
    /// Proves a specification.
    ///
    /// # Errors
    /// The first number that is out of range.
    pub fn new(spec: AssignmentSpec) -> Result<Self, AssignmentError> {
        let count = |what, found: u32, most: u64| {
            let found = u64::from(found);
            if (1..=most).contains(&found) {
                Ok(())
            } else {
                Err(AssignmentError::Count { what, found, most })
            }
        };
        count("slots", spec.slots, u64::from(SLOTS_MAX))?;
        count("tokens of context", spec.context_tokens, u64::from(CONTEXT_TOKENS_MAX))?;
        count("rows of a micro-batch", spec.batch_rows_max, u64::from(BATCH_ROWS_MAX))?;
        count("micro-batches", spec.groups, crate::limits::MICRO_BATCHES_MAX as u64)?;
        count("values of a row", spec.width, u64::from(WIDTH_MAX))?;
        let row = spec.wire_element.bytes(u64::from(spec.width));
        let row = row.ok_or(AssignmentError::Blocks { width: spec.width })?;
        let found = row * u64::from(spec.batch_rows_max);
        if found > PAYLOAD_BYTES_MAX {
            let (what, most) = ("bytes of activations", PAYLOAD_BYTES_MAX);
            return Err(AssignmentError::Count { what, found, most });
        }
        Ok(Self(spec))
    }

    /// What was proven.
    #[must_use]
    pub const fn spec(&self) -> &AssignmentSpec {
        &self.0
    }

    /// The deployment.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.0.epoch
    }

    /// Who computes what, in which order.
    #[must_use]
    pub const fn route(&self) -> &Route {
        &self.0.route
    }

    /// What the codec must know to read the deployment's frames.
    #[must_use]
    pub fn frame_shape(&self) -> FrameShape {
        FrameShape {
            cluster: self.0.cluster,
            epoch: self.0.epoch,
            stops: self.0.route.stops().len() as u32,
            slots: self.0.slots,
            context_tokens: self.0.context_tokens,
            batch_rows_max: self.0.batch_rows_max,
            width: self.0.width,
            element: self.0.wire_element,
        }
    }

    /// Bytes of so many rows on the wire.
    #[must_use]
    pub fn payload_bytes(&self, rows: u32) -> u64 {
        let values = u64::from(rows) * u64::from(self.0.width);
        self.0.wire_element.bytes(values).expect("rows are whole blocks, which was proven")
    }

    /// The layers of a member, in the order it computes them.
    pub fn windows_of(&self, member: MemberIndex) -> impl Iterator<Item = Range<u32>> + '_ {
        self.0.route.windows_of(member)
    }
}

impl TryFrom<AssignmentSpec> for Assignment {
    type Error = AssignmentError;
    fn try_from(spec: AssignmentSpec) -> Result<Self, AssignmentError> {
        Self::new(spec)
    }
}

impl From<Assignment> for AssignmentSpec {
    fn from(assignment: Assignment) -> Self {
        assignment.0
    }
}
