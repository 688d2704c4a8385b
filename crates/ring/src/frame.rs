//! Data frames: a fixed header, the table of runs, then activations whose size the plan has fixed.
//!
//! `docs/WIRE.md` draws every byte. Activations are never looked into and never copied: a sender
//! writes what [`FrameHeader::encode_prefix`] gives and then its own bytes, a receiver decodes the
//! header, knows what follows, and reads it where it wants it.

use crate::batch::{Batch, MicroBatchId, Run, SlotIndex, Wanted, WireElement};
use crate::limits::{
    BATCH_ROWS_MAX, CONTEXT_TOKENS_MAX, PAYLOAD_BYTES_MAX, PROTOCOL_VERSION, SLOTS_MAX, STOPS_MAX,
};

/// First bytes of everything on the wire.
pub const MAGIC: [u8; 4] = *b"MTLY";
/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 64;
/// Bytes of one run in the table.
pub const RUN_BYTES: usize = 16;

pub(crate) const KIND_ACTIVATIONS: u16 = 1;

const PREFIX_CHECKSUM_AT: usize = 60;

const _: () = assert!(PREFIX_CHECKSUM_AT + 4 == HEADER_BYTES);

/// Names a cluster on the wire.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(transparent)]
pub struct ClusterId(pub u64);

/// Number of a deployment. A cluster's epochs only rise; 0 is before the first.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(transparent)]
pub struct Epoch(pub u64);

/// What a plan says about the frames of one epoch; nothing else is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameShape {
    /// The cluster.
    pub cluster: ClusterId,
    /// The epoch. Frames of others need only keep the protocol's limits, so that they can be
    /// skipped.
    pub epoch: Epoch,
    /// Stops of the route.
    pub stops: u32,
    /// Sequences of the ring.
    pub slots: u32,
    /// Tokens of context of each slot.
    pub context_tokens: u32,
    /// Rows of a micro-batch.
    pub batch_rows_max: u32,
    /// Values of a row.
    pub width: u32,
    /// How they are written.
    pub element: WireElement,
}

/// The fixed part of a data frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// The cluster.
    pub cluster: ClusterId,
    /// The deployment.
    pub epoch: Epoch,
    /// The micro-batch.
    pub micro_batch: MicroBatchId,
    /// The stop of the route that the frame goes to.
    pub stop: u32,
    /// Entries of the table.
    pub runs: u32,
    /// Rows of the micro-batch: the sum of the runs' rows.
    pub rows: u32,
    /// Bytes of activations.
    pub payload_bytes: u32,
    /// How activations are written.
    pub element: WireElement,
    /// CRC-32 of the activations.
    pub payload_checksum: u32,
    /// CRC-32 of the header before this field, and of the table.
    pub prefix_checksum: u32,
}

/// Why a frame is refused. The connection it came over is closed: what follows cannot be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// It does not begin with [`MAGIC`].
    #[error("not a frame of this protocol: it begins with {0:02x?}")]
    Magic([u8; 4]),
    /// Another version of the protocol.
    #[error("protocol version {found}, expected {PROTOCOL_VERSION}")]
    Version {
        /// The version found.
        found: u16,
    },
    /// A kind that does not exist, or that has no place on this connection.
    #[error("unexpected frame kind {0}")]
    Kind(u16),
    /// A number format that does not exist.
    #[error("unknown element {0}")]
    Element(u8),
    /// A frame of another cluster.
    #[error("frame of cluster {:016x}", found.0)]
    Cluster {
        /// The cluster found.
        found: ClusterId,
    },
    /// Bytes that are kept for later are not zero.
    #[error("reserved bytes are not zero")]
    Reserved,
    /// A number beyond what the plan or the protocol allows.
    #[error("{what} is {found}, at most {most} is allowed")]
    TooMuch {
        /// What was counted.
        what: &'static str,
        /// The number found.
        found: u64,
        /// The largest allowed.
        most: u64,
    },
    /// A number that the plan has fixed is another one.
    #[error("{what} is {found}, expected {expected}")]
    Mismatch {
        /// What was counted.
        what: &'static str,
        /// The number found.
        found: u64,
        /// The number expected.
        expected: u64,
    },
    /// A run that cannot be.
    #[error("run {index} of the table is malformed")]
    Run {
        /// Its place in the table.
        index: u32,
    },
    /// A checksum does not match.
    #[error("checksum of the {part} does not match")]
    Checksum {
        /// `header` or `payload`.
        part: &'static str,
    },
}

impl FrameHeader {
    /// The header of a batch that goes to `stop` with these activations. The checksum of the header
    /// is made by [`encode_prefix`](Self::encode_prefix).
    ///
    /// # Panics
    /// More bytes than a frame can carry are a bug of the caller: the plan fixed their number.
    #[must_use]
    pub fn new(
        shape: &FrameShape,
        micro_batch: MicroBatchId,
        stop: u32,
        batch: &Batch,
        payload: &[u8],
    ) -> Self {
        assert!(payload.len() as u64 <= PAYLOAD_BYTES_MAX, "activations fit a frame");
        Self {
            cluster: shape.cluster,
            epoch: shape.epoch,
            micro_batch,
            stop,
            runs: batch.runs().len() as u32,
            rows: batch.rows(),
            payload_bytes: payload.len() as u32,
            element: shape.element,
            payload_checksum: crc32fast::hash(payload),
            prefix_checksum: 0,
        }
    }

    /// Appends header and table to `prefix`; the activations follow them on the wire.
    pub fn encode_prefix(&self, batch: &Batch, prefix: &mut Vec<u8>) {
        let start = prefix.len();
        prefix.extend_from_slice(&self.encode());
        for run in batch.runs() {
            prefix.extend_from_slice(&encode_run(run));
        }
        let checksum =
            prefix_checksum(&prefix[start..start + HEADER_BYTES], &prefix[start + HEADER_BYTES..]);
        let at = start + PREFIX_CHECKSUM_AT;
        prefix[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
    }

    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC);
        put(4, &PROTOCOL_VERSION.to_le_bytes());
        put(6, &KIND_ACTIVATIONS.to_le_bytes());
        put(8, &self.cluster.0.to_le_bytes());
        put(16, &self.epoch.0.to_le_bytes());
        put(24, &self.micro_batch.0.to_le_bytes());
        put(32, &self.stop.to_le_bytes());
        put(36, &self.runs.to_le_bytes());
        put(40, &self.rows.to_le_bytes());
        put(44, &self.payload_bytes.to_le_bytes());
        put(48, &[element_code(self.element)]);
        put(56, &self.payload_checksum.to_le_bytes());
        put(PREFIX_CHECKSUM_AT, &self.prefix_checksum.to_le_bytes());
        bytes
    }

    /// Reads a header and compares it with what the plan allows, before anything else is read.
    ///
    /// # Errors
    /// The first field that is wrong. The checksum is compared by
    /// [`decode_runs`](Self::decode_runs).
    pub fn decode(bytes: &[u8; HEADER_BYTES], shape: &FrameShape) -> Result<Self, FrameError> {
        let magic = array(bytes, 0);
        if magic != MAGIC {
            return Err(FrameError::Magic(magic));
        }
        let found = u16::from_le_bytes(array(bytes, 4));
        if found != PROTOCOL_VERSION {
            return Err(FrameError::Version { found });
        }
        let kind = u16::from_le_bytes(array(bytes, 6));
        if kind != KIND_ACTIVATIONS {
            return Err(FrameError::Kind(kind));
        }
        let header = Self {
            cluster: ClusterId(u64_at(bytes, 8)),
            epoch: Epoch(u64_at(bytes, 16)),
            micro_batch: MicroBatchId(u64_at(bytes, 24)),
            stop: u32_at(bytes, 32),
            runs: u32_at(bytes, 36),
            rows: u32_at(bytes, 40),
            payload_bytes: u32_at(bytes, 44),
            element: element_from(bytes[48])?,
            payload_checksum: u32_at(bytes, 56),
            prefix_checksum: u32_at(bytes, PREFIX_CHECKSUM_AT),
        };
        if header.cluster != shape.cluster {
            return Err(FrameError::Cluster { found: header.cluster });
        }
        if bytes[49..56].iter().any(|byte| *byte != 0) {
            return Err(FrameError::Reserved);
        }
        header.check_limits()?;
        if header.epoch == shape.epoch {
            header.check_shape(shape)?;
        }
        Ok(header)
    }

    /// Bytes of the table that follows.
    #[must_use]
    pub const fn table_bytes(&self) -> usize {
        self.runs as usize * RUN_BYTES
    }

    /// Reads the table that belongs to a self.
    ///
    /// # Errors
    /// The checksum of both, a run without rows, a position or slot beyond the limits, rows that do not
    /// add up, a slot that comes twice.
    pub fn decode_runs(&self, table: &[u8]) -> Result<Batch, FrameError> {
        let length = (table.len(), self.table_bytes());
        if length.0 != length.1 {
            return Err(FrameError::Mismatch {
                what: "length of the table",
                found: length.0 as u64,
                expected: length.1 as u64,
            });
        }
        if prefix_checksum(&self.encode(), table) != self.prefix_checksum {
            return Err(FrameError::Checksum { part: "header" });
        }
        let mut runs = Vec::with_capacity(self.runs as usize);
        let (chunks, _) = table.as_chunks::<RUN_BYTES>();
        for (index, chunk) in chunks.iter().enumerate() {
            runs.push(decode_run(chunk).ok_or(FrameError::Run { index: index as u32 })?);
        }
        let rows = runs.iter().map(|run| u64::from(run.rows)).sum();
        if rows != u64::from(self.rows) {
            let expected = self.rows.into();
            return Err(FrameError::Mismatch { what: "number of rows", found: rows, expected });
        }
        let mut slots: Vec<(SlotIndex, u32)> =
            runs.iter().enumerate().map(|(index, run)| (run.slot, index as u32)).collect();
        slots.sort_unstable();
        if let Some(pair) = slots.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(FrameError::Run { index: pair[1].1 });
        }
        Ok(Batch::new(runs))
    }

    /// Compares the activations with their checksum.
    ///
    /// # Errors
    /// They do not match.
    pub fn check_payload(&self, payload: &[u8]) -> Result<(), FrameError> {
        let matches = payload.len() == self.payload_bytes as usize
            && crc32fast::hash(payload) == self.payload_checksum;
        if matches { Ok(()) } else { Err(FrameError::Checksum { part: "payload" }) }
    }

    fn check_limits(&self) -> Result<(), FrameError> {
        at_most("stop", self.stop, STOPS_MAX as u64 - 1)?;
        at_most("number of rows", self.rows, u64::from(BATCH_ROWS_MAX))?;
        at_most("number of runs", self.runs, u64::from(self.rows.min(SLOTS_MAX)))?;
        at_most("length of activations", self.payload_bytes, PAYLOAD_BYTES_MAX)?;
        if self.runs == 0 {
            return Err(FrameError::Mismatch { what: "number of runs", found: 0, expected: 1 });
        }
        Ok(())
    }

    fn check_shape(&self, shape: &FrameShape) -> Result<(), FrameError> {
        at_most("stop", self.stop, u64::from(shape.stops.saturating_sub(1)))?;
        at_most("number of rows", self.rows, u64::from(shape.batch_rows_max))?;
        at_most("number of runs", self.runs, u64::from(shape.slots))?;
        if self.element != shape.element {
            return Err(FrameError::Mismatch {
                what: "element",
                found: element_code(self.element).into(),
                expected: element_code(shape.element).into(),
            });
        }
        // How many of the rows travel depends on the stop and the table; see `Member`.
        let most = shape.element.bytes(u64::from(self.rows) * u64::from(shape.width));
        at_most("length of activations", self.payload_bytes, most.unwrap_or(0))
    }
}

fn encode_run(run: &Run) -> [u8; RUN_BYTES] {
    let mut bytes = [0; RUN_BYTES];
    bytes[0..4].copy_from_slice(&run.slot.0.to_le_bytes());
    bytes[4..8].copy_from_slice(&run.first_position.to_le_bytes());
    bytes[8..12].copy_from_slice(&run.rows.to_le_bytes());
    bytes[12] = match run.wanted {
        Wanted::None => 0,
        Wanted::Last => 1,
        Wanted::All => 2,
    };
    bytes[13] = u8::from(run.fresh);
    bytes
}

fn decode_run(bytes: &[u8; RUN_BYTES]) -> Option<Run> {
    let wanted = match bytes[12] {
        0 => Wanted::None,
        1 => Wanted::Last,
        2 => Wanted::All,
        _ => return None,
    };
    let fresh = match bytes[13] {
        0 => false,
        1 => true,
        _ => return None,
    };
    let slot = SlotIndex(u32_at(bytes, 0));
    let run = Run { slot, first_position: u32_at(bytes, 4), rows: u32_at(bytes, 8), wanted, fresh };
    let end = run.first_position.checked_add(run.rows)?;
    let possible = run.rows > 0
        && run.rows <= BATCH_ROWS_MAX
        && end <= CONTEXT_TOKENS_MAX
        && run.slot.0 < SLOTS_MAX
        && (!fresh || run.first_position == 0)
        && bytes[14..] == [0, 0];
    possible.then_some(run)
}

fn prefix_checksum(header: &[u8], table: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&header[..PREFIX_CHECKSUM_AT]);
    hasher.update(table);
    hasher.finalize()
}

const fn element_code(element: WireElement) -> u8 {
    match element {
        WireElement::F32 => 1,
        WireElement::F16 => 2,
        WireElement::Q8_0 => 3,
    }
}

const fn element_from(code: u8) -> Result<WireElement, FrameError> {
    match code {
        1 => Ok(WireElement::F32),
        2 => Ok(WireElement::F16),
        3 => Ok(WireElement::Q8_0),
        _ => Err(FrameError::Element(code)),
    }
}

fn at_most(what: &'static str, found: u32, most: u64) -> Result<(), FrameError> {
    let found = u64::from(found);
    if found <= most { Ok(()) } else { Err(FrameError::TooMuch { what, found, most }) }
}

pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a slice of N bytes")
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}
