//! Data connections: one thread writes what goes to a member, one reads what comes from another.

use std::sync::Arc;
use std::sync::mpsc::{Receiver as Inbox, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use motley_ggml::QuantizeError;
use motley_ring::limits::{MICRO_BATCHES_MAX, READ_TIMEOUT, WRITE_TIMEOUT};
use motley_ring::{
    Assignment, FrameError, FrameHeader, FrameRefused, HEADER_BYTES, MemberIndex, Outgoing,
};

use super::activations::ActivationFormat;
use super::compute::Payload;
use super::links::Arrival;
use crate::transport::{Closer, Connection, ReceiveError, Receiver, SendError, Sender};

/// How often a thread that waits for a connection looks whether it is still wanted.
const LOOK_AROUND: Duration = Duration::from_millis(500);

/// Why a data connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EdgeError {
    /// The connection broke or went silent in the middle of a frame.
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    /// The other side does not take what is sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// What came is no frame of this deployment.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The sender follows another plan.
    #[error(transparent)]
    Refused(#[from] FrameRefused),
    /// Activations cannot be packed or unpacked.
    #[error(transparent)]
    Activations(#[from] QuantizeError),
}

/// Which members a connection joins, and for which deployment.
#[derive(Clone, Debug)]
pub(crate) struct EdgePlace {
    pub(crate) assignment: Arc<Assignment>,
    pub(crate) from: MemberIndex,
    pub(crate) to: MemberIndex,
}

impl EdgePlace {
    fn format(&self) -> ActivationFormat {
        let spec = self.assignment.spec();
        ActivationFormat { element: spec.wire_element, width: spec.width as usize }
    }
}

/// Starts a thread that writes what is sent to the way it returns, until the way is dropped. If the
/// connection breaks, `broken` is called.
///
/// The way has room for every micro-batch that can be under way, so that an engine never waits for
/// a connection.
///
/// # Errors
/// When the system refuses a thread.
pub(crate) fn write_edge(
    connection: Connection,
    place: EdgePlace,
    broken: impl FnOnce(EdgeError) + Send + 'static,
) -> std::io::Result<SyncSender<Outgoing<Payload>>> {
    let (way, outgoing) = sync_channel(MICRO_BATCHES_MAX);
    let work = move || {
        let (_, mut sender) = connection.split();
        match write_frames(&mut sender, &place, &outgoing) {
            // The other side has what it needs; how it takes the end does not matter.
            Ok(()) => drop(sender.finish(WRITE_TIMEOUT)),
            Err(error) => broken(error),
        }
    };
    thread::Builder::new().name("edge out".to_owned()).spawn(work)?;
    Ok(way)
}

fn write_frames(
    sender: &mut Sender,
    place: &EdgePlace,
    outgoing: &Inbox<Outgoing<Payload>>,
) -> Result<(), EdgeError> {
    let shape = place.assignment.frame_shape();
    let format = place.format();
    let (mut prefix, mut packed) = (Vec::new(), Vec::new());
    while let Ok(next) = outgoing.recv() {
        let bytes = format.bytes(next.payload.values(), &mut packed)?;
        let header = FrameHeader::new(&shape, next.micro_batch, next.stop, &next.batch, bytes);
        prefix.clear();
        header.encode_prefix(&next.batch, &mut prefix);
        sender.send(&[&prefix, bytes], WRITE_TIMEOUT)?;
    }
    Ok(())
}

/// Reads frames until the connection ends or nobody takes them any more.
///
/// # Errors
/// When the connection breaks, or something else than a frame of this deployment comes.
pub(crate) fn read_edge(
    receiver: &mut Receiver,
    place: &EdgePlace,
    mut deliver: impl FnMut(Arrival) -> bool,
) -> Result<(), EdgeError> {
    let shape = place.assignment.frame_shape();
    let format = place.format();
    let mut table = Vec::new();
    loop {
        let mut header = [0; HEADER_BYTES];
        match receiver.receive(&mut header, LOOK_AROUND) {
            Ok(()) => {}
            Err(ReceiveError::Idle) => continue,
            Err(ReceiveError::Closed) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let header = FrameHeader::decode(&header, &shape)?;
        table.resize(header.table_bytes(), 0);
        receiver.receive(&mut table, READ_TIMEOUT).map_err(in_the_middle)?;
        let batch = header.decode_runs(&table)?;
        let wanted = place.assignment.expects_frame((place.from, place.to), &header, &batch)?;
        let byte_count = header.payload_bytes as usize;
        let values = format.read(byte_count, |bytes| {
            if !bytes.is_empty() {
                receiver.receive(bytes, READ_TIMEOUT).map_err(in_the_middle)?;
            }
            Ok::<(), EdgeError>(header.check_payload(bytes)?)
        })?;
        let payload = Payload::Values(values);
        if wanted && !deliver(Arrival::Frame { from: place.from, header, batch, payload }) {
            return Ok(());
        }
    }
}

/// Silence in the middle of a frame breaks the connection.
fn in_the_middle(error: ReceiveError) -> ReceiveError {
    match error {
        ReceiveError::Idle => ReceiveError::Stalled,
        other => other,
    }
}

/// Connections of a deployment; they are closed when it is over.
#[derive(Debug, Default)]
pub(crate) struct OpenEdges(Vec<Closer>);

impl OpenEdges {
    /// Closes `closer`'s connection with the others.
    pub(crate) fn add(&mut self, closer: Closer) {
        self.0.push(closer);
    }
}

impl Drop for OpenEdges {
    fn drop(&mut self) {
        self.0.iter().for_each(Closer::close);
    }
}

/// Waits for the next message of an engine thread, or until it is to look around.
pub(crate) fn next_arrival(inbox: &Inbox<Arrival>) -> Result<Option<Arrival>, RecvTimeoutError> {
    match inbox.recv_timeout(LOOK_AROUND) {
        Ok(arrival) => Ok(Some(arrival)),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(error) => Err(error),
    }
}
