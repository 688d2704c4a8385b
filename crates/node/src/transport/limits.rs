//! Every limit of the transport.

use std::time::Duration;

/// Where members listen unless told otherwise.
pub(crate) const CLUSTER_PORT: u16 = 11_556;

/// From the first byte to a member let in or refused.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// For an applicant's request and the answer to it.
pub(crate) const ENROLMENT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a refused visitor's bytes are read on, so that the reason reaches it: a socket that is
/// closed with unread bytes resets the connection, and the reason is lost.
pub(crate) const FAREWELL_TIMEOUT: Duration = Duration::from_millis(500);

/// Bytes of a refused visitor that are read on at most.
pub(crate) const FAREWELL_BYTES_MAX: usize = 64 << 10;

/// Visitors that have not shown yet who they are, at most.
pub(crate) const HANDSHAKES_MAX: usize = 128;

/// Of these from one address at most, so that one machine cannot keep all others out.
pub(crate) const HANDSHAKES_PER_ADDRESS_MAX: usize = 64;

/// How long the listener waits after the system refused a connection, for example because there are
/// too many open files.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Idle time after which the system asks whether the other side is still there, and between asking
/// again. Heartbeats of the ring are faster; this ends forgotten connections.
pub(crate) const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
pub(crate) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// Plaintext that is encrypted before it is written: four full TLS records. Small enough that the
/// receiver decrypts the first part while the next is encrypted, large enough for few system calls.
pub(crate) const SEND_CHUNK_BYTES: usize = 64 << 10;

/// Bytes that one read takes from the socket at most.
pub(crate) const RECEIVE_CHUNK_BYTES: usize = 64 << 10;

const _: () = assert!(HANDSHAKES_PER_ADDRESS_MAX * 2 <= HANDSHAKES_MAX);
const _: () = assert!(RECEIVE_CHUNK_BYTES > 16_640, "a whole TLS record fits");
