//! Threads that read parts of tensors to any place in memory, many at a time.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use motley_ggml::{Arena, Region};

use crate::stream::pieces::Read;
use crate::stream::source::{ReadError, Source};

/// Without a finished read for this long, a wait for weights ends with an error.
const STALL: Duration = Duration::from_secs(30);

/// How often a wait looks whether the threads still run.
const LOOK: Duration = Duration::from_secs(1);

/// Bytes of a file and where they go.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) file: usize,
    pub(crate) offset: u64,
    /// As long as what is read.
    pub(crate) target: Region,
}

/// Reads what it is given, each read by the next free thread.
///
/// Direct reads begin and end at blocks of the disk, and tensors do not: each thread reads into
/// memory of its own and copies from there.
#[derive(Debug)]
pub(crate) struct Loader {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    source: Source,
    state: Mutex<State>,
    work: Condvar,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Job>,
    reading: usize,
    done: Vec<Region>,
    failed: Option<ReadError>,
    reads_done: u64,
    bytes_read: u64,
    stop: bool,
    alive: usize,
}

impl Loader {
    /// Starts `threads` threads for jobs of at most `job_bytes`.
    pub(crate) fn start(
        source: Source,
        threads: usize,
        job_bytes: usize,
    ) -> Result<Self, ReadError> {
        let state = Mutex::new(State { alive: threads, ..State::default() });
        let (work, arrived) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { source, state, work, arrived });
        let mut loader = Self { shared, threads: Vec::new() };
        let bytes = Self::thread_bytes(job_bytes);
        for index in 0..threads {
            let (_, memory) = Arena::reserve(bytes).map_err(|source| {
                loader.shared.lock().alive -= threads - index;
                ReadError::OutOfMemory { bytes, source: Arc::new(source) }
            })?;
            let shared = Arc::clone(&loader.shared);
            let thread = std::thread::Builder::new().name(format!("experts-{index}"));
            match thread.spawn(move || shared.work(memory)) {
                Ok(thread) => loader.threads.push(thread),
                Err(_) => {
                    loader.shared.lock().alive -= threads - index;
                    return Err(ReadError::NotRunning);
                }
            }
        }
        Ok(loader)
    }

    /// Memory of one thread: a job, and the rest of a block at both of its ends.
    pub(crate) fn thread_bytes(job_bytes: usize) -> usize {
        job_bytes.next_multiple_of(Arena::ALIGNMENT) + 2 * Arena::ALIGNMENT
    }

    /// Bytes read since the start, whole blocks.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.shared.lock().bytes_read
    }

    /// Whether files are read past the system's cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.shared.source.direct
    }

    /// Carries out all jobs and returns their memory in any order, with the first error if there
    /// was one. Where the disk gives nothing for too long, the memory does not come back.
    pub(crate) fn load(
        &self,
        jobs: impl IntoIterator<Item = Job>,
    ) -> Result<(Vec<Region>, Option<ReadError>), ReadError> {
        let mut state = self.shared.lock();
        state.waiting.extend(jobs);
        self.shared.work.notify_all();
        let (mut seen, mut since) = (state.reads_done, Instant::now());
        while !state.waiting.is_empty() || state.reading > 0 {
            if state.alive == 0 {
                return Err(ReadError::NotRunning);
            }
            let waited = self.shared.arrived.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if state.reads_done != seen {
                (seen, since) = (state.reads_done, Instant::now());
            } else if since.elapsed() > STALL {
                return Err(ReadError::Stalled { waited_s: since.elapsed().as_secs() });
            }
        }
        let failed = state.failed.take();
        Ok((std::mem::take(&mut state.done), failed))
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.work.notify_all();
        let busy = self.shared.lock().reading > 0;
        // A thread in a read that never ends keeps what it needs and is left alone.
        if !busy {
            self.threads.drain(..).for_each(|thread| drop(thread.join()));
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, mut memory: Region) {
        let _ending = Ending(self);
        let mut state = self.lock();
        while !state.stop {
            let Some(mut job) = state.waiting.pop_front() else {
                let waited = self.work.wait_timeout(state, LOOK);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            };
            state.reading += 1;
            drop(state);
            let (bytes, done) = self.read(&mut job, &mut memory);
            state = self.lock();
            state.reading -= 1;
            state.reads_done += 1;
            state.bytes_read += bytes;
            state.done.push(job.target);
            if let Err(error) = done {
                state.failed.get_or_insert(error);
            }
            self.arrived.notify_all();
        }
    }

    fn read(&self, job: &mut Job, memory: &mut Region) -> (u64, Result<(), ReadError>) {
        let block = Arena::ALIGNMENT as u64;
        let offset = job.offset / block * block;
        let skipped = usize::try_from(job.offset - offset).expect("less than a block");
        let needed = skipped + job.target.bytes();
        let bytes = needed.next_multiple_of(Arena::ALIGNMENT);
        let rest = memory.split_off(bytes);
        let read = Read { file: job.file, offset, bytes, needed, place: 0 };
        let done = self.source.read(&read, memory);
        if done.is_ok() {
            job.target.bytes_mut().copy_from_slice(&memory.bytes_mut()[skipped..needed]);
        }
        memory.join(rest).expect("cut just before");
        (bytes as u64, done)
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
