//! How a control message stands on the wire: a fixed header, JSON, and for a few types raw bytes.

use super::ControlMessage;
use crate::frame::{ClusterId, MAGIC, array, u32_at, u64_at};
use crate::limits::{BLOCK_BYTES_MAX, CONTROL_BYTES_MAX};

/// Bytes of a control message's header.
pub const CONTROL_HEADER_BYTES: usize = 32;

/// Version of header and hello. It never changes, so that any two versions can tell each other
/// which they are.
const ENVELOPE_VERSION: u16 = 1;
pub(crate) const KIND_MESSAGE: u16 = 2;
pub(crate) const KIND_MESSAGE_WITH_BYTES: u16 = 3;
const CHECKSUM_AT: usize = 28;

const _: () = assert!(CHECKSUM_AT + 4 == CONTROL_HEADER_BYTES);

/// Why a control message is refused. The connection it came over is closed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// It does not begin as everything of this protocol does.
    #[error("not a message of this protocol: it begins with {0:02x?}")]
    Magic([u8; 4]),
    /// A header of another form.
    #[error("control header version {found}, expected {ENVELOPE_VERSION}")]
    Version {
        /// The version found.
        found: u16,
    },
    /// A kind that does not exist, or that has no place on this connection.
    #[error("unexpected frame kind {0}")]
    Kind(u16),
    /// A message of another cluster.
    #[error("message of cluster {:016x}", found.0)]
    Cluster {
        /// The cluster found.
        found: ClusterId,
    },
    /// Longer than allowed.
    #[error("{found} bytes of {part}, at most {most} are allowed")]
    TooLong {
        /// `message` or `raw bytes`.
        part: &'static str,
        /// The length found.
        found: u64,
        /// The largest allowed.
        most: u64,
    },
    /// A checksum does not match.
    #[error("checksum of the {part} does not match")]
    Checksum {
        /// `message` or `raw bytes`.
        part: &'static str,
    },
    /// Not a message, or one with a part that is not known or not allowed.
    #[error("not a control message")]
    Json(#[source] serde_json::Error),
    /// The bytes that follow are not as many as the message says.
    #[error("{found} raw bytes follow a message of type {name}, which has {expected}")]
    RawBytes {
        /// Type of the message.
        name: &'static str,
        /// Bytes that follow.
        found: u64,
        /// Bytes it says.
        expected: u64,
    },
}

/// The fixed part of a control message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlHeader {
    /// The cluster.
    pub cluster: ClusterId,
    /// Bytes of JSON.
    pub json_bytes: u32,
    /// Raw bytes after them.
    pub raw_bytes: u32,
    /// CRC-32 of the raw bytes.
    pub raw_checksum: u32,
    /// CRC-32 of the header before this field, and of the JSON.
    pub checksum: u32,
}

/// Appends a message without its raw bytes, which follow it on the wire.
///
/// # Errors
/// The message is longer than the protocol allows, or says another number of raw bytes.
pub fn encode_control(
    message: &ControlMessage,
    cluster: ClusterId,
    raw: &[u8],
    bytes: &mut Vec<u8>,
) -> Result<(), ControlError> {
    check_raw_bytes(message, raw.len() as u64)?;
    let start = bytes.len();
    bytes.extend_from_slice(&[0; CONTROL_HEADER_BYTES]);
    let json_start = bytes.len();
    serde_json::to_writer(&mut *bytes, message).map_err(ControlError::Json)?;
    let json_bytes = bytes.len() - json_start;
    if json_bytes as u64 > u64::from(CONTROL_BYTES_MAX) {
        bytes.truncate(start);
        return Err(too_long("message", json_bytes as u64, CONTROL_BYTES_MAX));
    }
    let mut header = ControlHeader {
        cluster,
        json_bytes: json_bytes as u32,
        raw_bytes: raw.len() as u32,
        raw_checksum: crc32fast::hash(raw),
        checksum: 0,
    };
    header.checksum = checksum(&header.encode(), &bytes[json_start..]);
    bytes[start..json_start].copy_from_slice(&header.encode());
    Ok(())
}

impl ControlHeader {
    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; CONTROL_HEADER_BYTES] {
        let mut bytes = [0; CONTROL_HEADER_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        let kind = if self.raw_bytes > 0 { KIND_MESSAGE_WITH_BYTES } else { KIND_MESSAGE };
        put(0, &MAGIC);
        put(4, &ENVELOPE_VERSION.to_le_bytes());
        put(6, &kind.to_le_bytes());
        put(8, &self.cluster.0.to_le_bytes());
        put(16, &self.json_bytes.to_le_bytes());
        put(20, &self.raw_bytes.to_le_bytes());
        put(24, &self.raw_checksum.to_le_bytes());
        put(CHECKSUM_AT, &self.checksum.to_le_bytes());
        bytes
    }

    /// Reads a header, before anything else is read. `json_bytes_max` is
    /// [`HELLO_BYTES_MAX`](crate::limits::HELLO_BYTES_MAX) until the peer is welcome, and
    /// [`CONTROL_BYTES_MAX`] from then on.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn decode(
        bytes: &[u8; CONTROL_HEADER_BYTES],
        cluster: ClusterId,
        json_bytes_max: u32,
    ) -> Result<Self, ControlError> {
        let magic = array(bytes, 0);
        if magic != MAGIC {
            return Err(ControlError::Magic(magic));
        }
        let found = u16::from_le_bytes(array(bytes, 4));
        if found != ENVELOPE_VERSION {
            return Err(ControlError::Version { found });
        }
        let header = Self {
            cluster: ClusterId(u64_at(bytes, 8)),
            json_bytes: u32_at(bytes, 16),
            raw_bytes: u32_at(bytes, 20),
            raw_checksum: u32_at(bytes, 24),
            checksum: u32_at(bytes, CHECKSUM_AT),
        };
        let kind = u16::from_le_bytes(array(bytes, 6));
        match kind {
            KIND_MESSAGE if header.raw_bytes == 0 => {}
            KIND_MESSAGE_WITH_BYTES if header.raw_bytes > 0 => {}
            _ => return Err(ControlError::Kind(kind)),
        }
        if header.cluster != cluster {
            return Err(ControlError::Cluster { found: header.cluster });
        }
        if header.json_bytes > json_bytes_max.min(CONTROL_BYTES_MAX) {
            return Err(too_long("message", header.json_bytes.into(), json_bytes_max));
        }
        if header.raw_bytes > BLOCK_BYTES_MAX {
            return Err(too_long("raw bytes", header.raw_bytes.into(), BLOCK_BYTES_MAX));
        }
        Ok(header)
    }

    /// Reads the message that belongs to the header.
    ///
    /// # Errors
    /// The checksum, the JSON, or a number of raw bytes that the message does not say.
    pub fn decode_message(&self, json: &[u8]) -> Result<ControlMessage, ControlError> {
        let whole = json.len() == self.json_bytes as usize;
        if !whole || checksum(&self.encode(), json) != self.checksum {
            return Err(ControlError::Checksum { part: "message" });
        }
        let message = serde_json::from_slice(json).map_err(ControlError::Json)?;
        check_raw_bytes(&message, self.raw_bytes.into())?;
        Ok(message)
    }

    /// Compares the raw bytes with their checksum.
    ///
    /// # Errors
    /// They do not match.
    pub fn check_raw(&self, raw: &[u8]) -> Result<(), ControlError> {
        let matches =
            raw.len() == self.raw_bytes as usize && crc32fast::hash(raw) == self.raw_checksum;
        if matches { Ok(()) } else { Err(ControlError::Checksum { part: "raw bytes" }) }
    }
}

fn check_raw_bytes(message: &ControlMessage, found: u64) -> Result<(), ControlError> {
    let (expected, most) = (message.raw_bytes(), BLOCK_BYTES_MAX);
    if expected > u64::from(most) {
        return Err(too_long("raw bytes", expected, most));
    }
    if found != expected {
        return Err(ControlError::RawBytes { name: message.name(), found, expected });
    }
    Ok(())
}

fn checksum(header: &[u8; CONTROL_HEADER_BYTES], json: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&header[..CHECKSUM_AT]);
    hasher.update(json);
    hasher.finalize()
}

const fn too_long(part: &'static str, found: u64, most: u32) -> ControlError {
    ControlError::TooLong { part, found, most: most as u64 }
}
