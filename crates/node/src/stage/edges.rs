//! Data connections: what goes to a member, and a thread that reads what comes from another.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{
    Receiver as Inbox, RecvTimeoutError, SyncSender, TryRecvError, sync_channel,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

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

/// Frames up to this many values are written by the engine's own thread: they fit the system's
/// buffers, and waking another thread would cost more than writing them.
const VALUES_AT_ONCE: usize = 16 << 10;

/// The way to a member. Frames keep their order.
pub(crate) struct Way {
    /// Frames for the thread that writes long ones. It has room for every micro-batch that can be
    /// under way, so that an engine never waits for a connection.
    queue: SyncSender<Outgoing<Payload>>,
    /// Frames in the queue or in that thread's hands.
    queued: Arc<AtomicUsize>,
    writer: Arc<Mutex<FrameWriter>>,
}

impl Way {
    /// A way over `connection`, with a thread of its own for long frames that ends when the way is
    /// dropped. If the connection breaks, `broken` is called.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub(crate) fn open(
        connection: Connection,
        place: EdgePlace,
        broken: impl FnOnce(EdgeError) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (_, sender) = connection.split();
        let writer = FrameWriter {
            sender: Some(sender),
            place,
            prefix: Vec::new(),
            packed: Vec::new(),
            broken: Some(Box::new(broken)),
        };
        let writer = Arc::new(Mutex::new(writer));
        let (queue, outgoing) = sync_channel::<Outgoing<Payload>>(MICRO_BATCHES_MAX);
        let queued = Arc::new(AtomicUsize::new(0));
        let (own, count) = (Arc::clone(&writer), Arc::clone(&queued));
        thread::Builder::new().name("edge out".to_owned()).spawn(move || {
            while let Ok(next) = outgoing.recv() {
                lock(&own).write(&next);
                count.fetch_sub(1, Ordering::AcqRel);
            }
            lock(&own).finish();
        })?;
        Ok(Self { queue, queued, writer })
    }

    /// Sends a frame. What cannot be sent is lost with its connection.
    pub(crate) fn send(&self, outgoing: Outgoing<Payload>) {
        let short = outgoing.payload.values().len() <= VALUES_AT_ONCE;
        if short && self.queued.load(Ordering::Acquire) == 0 {
            return lock(&self.writer).write(&outgoing);
        }
        self.queued.fetch_add(1, Ordering::AcqRel);
        if self.queue.send(outgoing).is_err() {
            self.queued.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Way").field("queued", &self.queued).finish_non_exhaustive()
    }
}

/// Writes frames to a connection until it breaks.
struct FrameWriter {
    /// Nothing once it broke.
    sender: Option<Sender>,
    place: EdgePlace,
    prefix: Vec<u8>,
    packed: Vec<u8>,
    broken: Option<Box<dyn FnOnce(EdgeError) + Send>>,
}

impl FrameWriter {
    fn write(&mut self, next: &Outgoing<Payload>) {
        if let Err(error) = self.try_write(next) {
            self.sender = None;
            if let Some(broken) = self.broken.take() {
                broken(error);
            }
        }
    }

    fn try_write(&mut self, next: &Outgoing<Payload>) -> Result<(), EdgeError> {
        let Some(sender) = &mut self.sender else { return Ok(()) };
        let shape = self.place.assignment.frame_shape();
        let bytes = self.place.format().bytes(next.payload.values(), &mut self.packed)?;
        let header = FrameHeader::new(&shape, next.micro_batch, next.stop, &next.batch, bytes);
        self.prefix.clear();
        header.encode_prefix(&next.batch, &mut self.prefix);
        Ok(sender.send(&[&self.prefix, bytes], WRITE_TIMEOUT)?)
    }

    fn finish(&mut self) {
        if let Some(sender) = self.sender.take() {
            // The other side has what it needs; how it takes the end does not matter.
            let _ = sender.finish(WRITE_TIMEOUT);
        }
    }
}

fn lock(writer: &Mutex<FrameWriter>) -> MutexGuard<'_, FrameWriter> {
    writer.lock().unwrap_or_else(PoisonError::into_inner)
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
        receiver.receive(&mut table, READ_TIMEOUT).map_err(ReceiveError::in_the_middle)?;
        let batch = header.decode_runs(&table)?;
        let wanted = place.assignment.expects_frame((place.from, place.to), &header, &batch)?;
        let byte_count = header.payload_bytes as usize;
        let values = format.read(byte_count, |bytes| {
            if !bytes.is_empty() {
                receiver.receive(bytes, READ_TIMEOUT).map_err(ReceiveError::in_the_middle)?;
            }
            Ok::<(), EdgeError>(header.check_payload(bytes)?)
        })?;
        let payload = Payload::Values(values);
        if wanted && !deliver(Arrival::Frame { from: place.from, header, batch, payload }) {
            return Ok(());
        }
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

/// How long an engine thread looks for its next message before it sleeps. Waking a thread that
/// sleeps takes longer than a hop; while it looks, it lets every other thread go first.
const WATCHFUL: Duration = Duration::from_micros(500);

/// Waits for the next message of an engine thread in the midst of its work, watchfully at first;
/// nothing if none comes in `patience`. Before it sleeps, the threads that compute may `rest`.
///
/// # Errors
/// When none can come any more.
pub(crate) fn receive_soon<T>(
    inbox: &Inbox<T>,
    patience: Duration,
    rest: impl FnOnce(),
) -> Result<T, RecvTimeoutError> {
    let began = Instant::now();
    while began.elapsed() < WATCHFUL {
        match inbox.try_recv() {
            Ok(message) => return Ok(message),
            Err(TryRecvError::Empty) => thread::yield_now(),
            Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
        }
    }
    rest();
    inbox.recv_timeout(patience)
}

/// Waits for the next message of a member's engine, or until it is to look around.
pub(crate) fn next_arrival(
    inbox: &Inbox<Arrival>,
    rest: impl FnOnce(),
) -> Result<Option<Arrival>, RecvTimeoutError> {
    match receive_soon(inbox, LOOK_AROUND, rest) {
        Ok(arrival) => Ok(Some(arrival)),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(error) => Err(error),
    }
}
