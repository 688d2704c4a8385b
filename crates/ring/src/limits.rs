//! Every limit of the protocol. `docs/WIRE.md` repeats the table, and a test compares the two.

use std::time::Duration;

/// Version of data frames and control messages that this build speaks.
pub const PROTOCOL_VERSION: u16 = 1;
/// Oldest version that this build still speaks.
pub const PROTOCOL_VERSION_MIN: u16 = 1;

/// Devices of one ring, relays included.
pub const MEMBERS_MAX: usize = 64;
/// Stops of a token's way: a model of 1024 layers can be cut that finely.
pub const STOPS_MAX: usize = 2048;
/// Layers of a model.
pub const LAYERS_MAX: u32 = 1024;
/// Sequences a ring carries at once.
pub const SLOTS_MAX: u32 = 4096;
/// Rows of one micro-batch.
pub const BATCH_ROWS_MAX: u32 = 8192;
/// Tokens of context of one slot.
pub const CONTEXT_TOKENS_MAX: u32 = 1 << 24;
/// Values of one row of activations.
pub const WIDTH_MAX: u32 = 1 << 20;
/// Micro-batches on their way at once.
pub const MICRO_BATCHES_MAX: usize = 256;
/// Activations of one frame.
pub const PAYLOAD_BYTES_MAX: u64 = 1 << 30;

/// A control message, as JSON.
pub const CONTROL_BYTES_MAX: u32 = 1 << 20;
/// The first message of a peer that nothing is known of yet.
pub const HELLO_BYTES_MAX: u32 = 128 << 10;
/// A device profile inside a hello, as JSON.
pub const PROFILE_BYTES_MAX: usize = 64 << 10;
/// One block of a model file, or the list of all its blocks.
pub const BLOCK_BYTES_MAX: u32 = 4 << 20;
/// Raw bytes of one probe or of its answer.
pub const PROBE_BYTES_MAX: u32 = 1 << 20;
/// A name of a node, a version or a number format.
pub const NAME_BYTES_MAX: usize = 128;
/// An explanation that a person will read.
pub const TEXT_BYTES_MAX: usize = 1024;
/// A network address with its port.
pub const ADDRESS_BYTES_MAX: usize = 262;
/// Addresses of one node.
pub const ADDRESSES_MAX: usize = 16;

/// From an open connection to a complete hello.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Preparing without any progress.
pub const PREPARE_STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// From a commit to its answer, and from a release to its answer.
pub const COMMIT_TIMEOUT: Duration = Duration::from_secs(10);
/// From a survey to its answer; a node that takes longer gets no layers.
pub const SURVEY_TIMEOUT: Duration = Duration::from_secs(120);
/// All probes of one way.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two pings.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(100);
/// Silence after which a member is suspected.
pub const SUSPECT_AFTER: Duration = Duration::from_millis(500);
/// Silence after which a member is lost.
pub const LOST_AFTER: Duration = Duration::from_secs(2);
/// Writing one frame to a peer that does not read.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// From the first byte of a frame to its last.
pub const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Requests that wait for a slot, unless the operator says otherwise.
pub const WAITING_MAX: u32 = 512;
/// Requests of one caller that wait for a slot, unless the operator says otherwise.
pub const WAITING_PER_CALLER_MAX: u32 = 16;

const _: () = assert!(PROTOCOL_VERSION_MIN <= PROTOCOL_VERSION);
const _: () = assert!(LAYERS_MAX as usize <= STOPS_MAX, "every layer may be a stop");
const _: () = assert!(PAYLOAD_BYTES_MAX <= u32::MAX as u64, "a length is four bytes");
const _: () = assert!(SLOTS_MAX <= BATCH_ROWS_MAX, "every slot may have a row in a batch");
const _: () = assert!((PROFILE_BYTES_MAX as u64) < HELLO_BYTES_MAX as u64);
const _: () = assert!(HELLO_BYTES_MAX <= CONTROL_BYTES_MAX);
const _: () = assert!(PROBE_BYTES_MAX <= BLOCK_BYTES_MAX, "a probe is an ordinary message");
const _: () = assert!(
    HEARTBEAT_INTERVAL.as_millis() * 4 <= SUSPECT_AFTER.as_millis(),
    "one or two late pings are no reason for suspicion"
);
const _: () = assert!(SUSPECT_AFTER.as_millis() * 2 <= LOST_AFTER.as_millis());
