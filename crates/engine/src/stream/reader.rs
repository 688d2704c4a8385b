//! Threads that fill pieces ahead of their use.

mod state;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use motley_ggml::Region;

use crate::stream::StreamOptions;
use crate::stream::pieces::{Piece, Read};
use crate::stream::reader::state::State;
use crate::stream::source::{ReadError, Source};

/// Without a finished read for this long, a wait for weights ends with an error.
const STALL: Duration = Duration::from_secs(30);

/// How often a wait looks whether the threads still run.
const LOOK: Duration = Duration::from_secs(1);

/// How long dropping waits for reads that are on their way.
const FAREWELL: Duration = Duration::from_secs(10);

/// Reads pieces in a cyclic order ahead of their use, and others on the side.
///
/// The holder takes pieces in the order of use and gives their memory back. What it takes out of
/// order is read on demand, and the order is learned from it: after each piece the one is expected
/// that followed it last.
#[derive(Debug)]
pub(crate) struct Reader {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    pieces: Vec<Vec<Read>>,
    source: Source,
    state: Mutex<State>,
    /// Something may be there to read.
    work: Condvar,
    /// Something was read, or a thread has ended.
    arrived: Condvar,
}

impl Reader {
    /// Starts the threads; nothing is read until an order is set. `buffer` takes pieces on their
    /// way.
    pub(crate) fn start(
        source: Source,
        pieces: &[&Piece],
        buffer: Region,
        options: &StreamOptions,
    ) -> Result<Self, ReadError> {
        // Two readers of one cached file would break the system's reading ahead.
        let count = if source.direct { options.reads.max(1) } else { 1 };
        let sizes = pieces.iter().map(|piece| piece.bytes).collect();
        let shared = Arc::new(Shared {
            pieces: pieces.iter().map(|piece| piece.reads(options.read_bytes)).collect(),
            source,
            state: Mutex::new(State::new(sizes, buffer, count)),
            work: Condvar::new(),
            arrived: Condvar::new(),
        });
        let mut reader = Self { shared, threads: Vec::new() };
        for index in 0..count {
            let shared = Arc::clone(&reader.shared);
            let thread = std::thread::Builder::new().name(format!("read-{index}"));
            match thread.spawn(move || shared.work()) {
                Ok(thread) => reader.threads.push(thread),
                Err(_) => {
                    reader.shared.lock().alive -= count - index;
                    return Err(ReadError::NotRunning);
                }
            }
        }
        Ok(reader)
    }

    /// Whether files are read past the system's cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.shared.source.direct
    }

    /// Bytes read since the start.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.shared.lock().bytes_read
    }

    /// Reads these pieces from now on, one after the other and then again from the first.
    pub(crate) fn set_order(&self, order: &[usize]) {
        self.shared.lock().set_order(order);
        self.shared.work.notify_all();
    }

    /// Waits for a piece and hands its memory over; [`give_back`](Self::give_back) returns it.
    /// `before_waiting` is called if it is not there yet.
    pub(crate) fn take(
        &self,
        piece: usize,
        before_waiting: impl FnOnce(),
    ) -> Result<Region, ReadError> {
        let mut state = self.shared.lock();
        state.expect(piece);
        self.shared.work.notify_all();
        self.shared.wait(state, |state| state.take(piece), before_waiting)?
    }

    /// As [`take`](Self::take), with whatever bytes lie there: for measuring computation alone.
    /// Nothing is read ahead until [`resume`](Self::resume).
    pub(crate) fn take_unread(&self, piece: usize) -> Result<Region, ReadError> {
        let mut state = self.shared.lock();
        state.pause();
        self.shared.wait(state, |state| state.take_unread(piece), || {})
    }

    /// Reads ahead again.
    pub(crate) fn resume(&self) {
        self.shared.lock().paused = false;
        self.shared.work.notify_all();
    }

    /// Returns the memory of a piece that was taken.
    pub(crate) fn give_back(&self, region: Region) {
        self.shared.lock().release(region);
        self.shared.work.notify_all();
    }

    /// Begins to read a piece into memory of the caller's, beside those of the order.
    pub(crate) fn fetch(&self, piece: usize, region: Region) {
        self.shared.lock().fetch(piece, region, &self.shared.pieces[piece]);
        self.shared.work.notify_all();
    }

    /// A fetched piece, if one has arrived.
    pub(crate) fn fetched(&self) -> Option<Fetched> {
        self.shared.lock().fetched.pop_front()
    }

    /// Waits for a fetched piece.
    pub(crate) fn wait_fetched(&self) -> Result<Fetched, ReadError> {
        self.shared.wait(self.shared.lock(), |state| state.fetched.pop_front(), || {})
    }
}

/// A piece that was fetched, or why not; its memory comes back in any case.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) piece: usize,
    pub(crate) region: Region,
    pub(crate) failed: Option<ReadError>,
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.stop = true;
        self.shared.work.notify_all();
        let end = Instant::now() + FAREWELL;
        while state.alive > 0 && Instant::now() < end {
            state = self.shared.wait_for(state, LOOK);
        }
        // A thread in a read that never ends keeps what it needs and is left alone.
        let ended = state.alive == 0;
        drop(state);
        if ended {
            self.threads.drain(..).for_each(|thread| drop(thread.join()));
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for<'s>(
        &'s self,
        state: MutexGuard<'s, State>,
        limit: Duration,
    ) -> MutexGuard<'s, State> {
        self.arrived.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits until `ready` gives something, as long as reads come to an end; if it has to, `before`
    /// comes first.
    fn wait<'s, T>(
        &'s self,
        mut state: MutexGuard<'s, State>,
        mut ready: impl FnMut(&mut State) -> Option<T>,
        before: impl FnOnce(),
    ) -> Result<T, ReadError> {
        let (mut seen, mut since) = (state.reads_done, Instant::now());
        let mut before = Some(before);
        loop {
            if let Some(found) = ready(&mut state) {
                return Ok(found);
            }
            if state.alive == 0 {
                return Err(ReadError::NotRunning);
            }
            if let Some(before) = before.take() {
                before();
            }
            state = self.wait_for(state, LOOK);
            if state.reads_done != seen {
                (seen, since) = (state.reads_done, Instant::now());
            } else if since.elapsed() > STALL {
                return Err(ReadError::Stalled { waited_s: since.elapsed().as_secs() });
            }
        }
    }

    /// What each thread does.
    fn work(&self) {
        let _ending = Ending(self);
        let mut state = self.lock();
        while !state.stop {
            let Some(mut job) = state.next_job(&self.pieces) else {
                // Woken by every change; the limit only bounds the wait.
                state =
                    self.work.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            };
            drop(state);
            let done = self.source.read(&job.read, &mut job.region);
            state = self.lock();
            state.finish(job, done);
            self.arrived.notify_all();
        }
    }
}

/// Notes that a thread has ended, also by a panic.
struct Ending<'s>(&'s Shared);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.lock().alive -= 1;
        self.0.arrived.notify_all();
    }
}
