//! What is read next, and where it goes: everything that the reader's threads decide.

use std::collections::VecDeque;

use motley_ggml::Region;

use crate::stream::pieces::Read;
use crate::stream::pool::Pool;
use crate::stream::reader::Fetched;
use crate::stream::source::ReadError;

/// Reads ahead that one read on the side waits for at most.
const READS_PER_FETCH: u32 = 8;

#[derive(Debug)]
pub(super) struct State {
    /// Bytes of each piece.
    sizes: Vec<usize>,
    /// For each piece the one that is expected after it.
    follows: Vec<Option<usize>>,
    /// What is read ahead next.
    upcoming: Option<usize>,
    last_taken: Option<usize>,
    /// Pieces being read ahead or ready, in the order in which they are expected.
    ahead: VecDeque<Entry>,
    /// Memory for pieces ahead that none has.
    buffer: Pool,
    /// Pieces read on the side.
    fetches: VecDeque<Entry>,
    pub(super) fetched: VecDeque<Fetched>,
    reads_since_fetch: u32,
    serial: u64,
    pub(super) reads_done: u64,
    pub(super) bytes_read: u64,
    pub(super) paused: bool,
    pub(super) stop: bool,
    /// Threads that run.
    pub(super) alive: usize,
}

/// A piece on its way.
#[derive(Debug)]
struct Entry {
    serial: u64,
    piece: usize,
    /// Not begun, the first one last.
    waiting: Vec<(Read, Region)>,
    reading: usize,
    done: Vec<Region>,
    failed: Option<ReadError>,
}

/// A read to do.
#[derive(Debug)]
pub(super) struct Job {
    serial: u64,
    pub(super) read: Read,
    pub(super) region: Region,
}

impl State {
    pub(super) fn new(sizes: Vec<usize>, buffer: Region, alive: usize) -> Self {
        Self {
            follows: vec![None; sizes.len()],
            sizes,
            upcoming: None,
            last_taken: None,
            ahead: VecDeque::new(),
            buffer: Pool::new(buffer),
            fetches: VecDeque::new(),
            fetched: VecDeque::new(),
            reads_since_fetch: 0,
            serial: 0,
            reads_done: 0,
            bytes_read: 0,
            paused: false,
            stop: false,
            alive,
        }
    }

    pub(super) fn set_order(&mut self, order: &[usize]) {
        self.cancel();
        self.follows.fill(None);
        for (index, piece) in order.iter().enumerate() {
            self.follows[*piece] = Some(order[(index + 1) % order.len()]);
        }
        // Goes on after what was used last, wherever that is in the new order.
        let after = |last| order.iter().copied().find(|piece| *piece > last);
        self.upcoming = self.last_taken.and_then(after).or(order.first().copied());
    }

    /// Notes that `piece` is used next: passes over what was expected before it, or begins anew
    /// where it was not expected at all.
    pub(super) fn expect(&mut self, piece: usize) {
        if let Some(place) = self.ahead.iter().position(|entry| entry.piece == piece) {
            for _ in 0..place {
                let skipped = self.ahead.pop_front().expect("found behind it");
                self.dissolve(skipped);
            }
        } else if self.upcoming != Some(piece) || !self.ahead.is_empty() {
            self.cancel();
            self.upcoming = Some(piece);
        }
        if let Some(last) = self.last_taken.replace(piece) {
            self.follows[last] = Some(piece);
        }
    }

    /// The memory of an expected piece, once it is all there.
    pub(super) fn take(&mut self, piece: usize) -> Option<Result<Region, ReadError>> {
        let first = self.ahead.front()?;
        assert_eq!(first.piece, piece, "expected just before");
        if let Some(error) = first.failed.clone() {
            self.cancel();
            self.upcoming = Some(piece);
            return Some(Err(error));
        }
        if !first.is_complete() {
            return None;
        }
        let entry = self.ahead.pop_front().expect("there is a first");
        Some(Ok(entry.into_region()))
    }

    pub(super) fn pause(&mut self) {
        self.paused = true;
        self.upcoming = self.ahead.front().map(|entry| entry.piece).or(self.upcoming);
        self.cancel();
    }

    pub(super) fn take_unread(&mut self, piece: usize) -> Option<Region> {
        self.buffer.take_next(self.sizes[piece])
    }

    pub(super) fn fetch(&mut self, piece: usize, region: Region, reads: &[Read]) {
        let entry = self.entry(piece, region, reads);
        self.fetches.push_back(entry);
    }

    /// The next read, if there is one and memory for it.
    pub(super) fn next_job(&mut self, pieces: &[Vec<Read>]) -> Option<Job> {
        if self.reads_since_fetch >= READS_PER_FETCH
            && let Some(job) = self.next_fetch()
        {
            return Some(job);
        }
        if let Some(job) = self.next_ahead(pieces) {
            self.reads_since_fetch += 1;
            return Some(job);
        }
        self.next_fetch()
    }

    fn next_fetch(&mut self) -> Option<Job> {
        self.reads_since_fetch = 0;
        self.fetches.iter_mut().find_map(Entry::begin)
    }

    fn next_ahead(&mut self, pieces: &[Vec<Read>]) -> Option<Job> {
        if self.paused {
            return None;
        }
        if let Some(job) = self.ahead.iter_mut().find_map(Entry::begin) {
            return Some(job);
        }
        // What failed is reported before anything else is tried.
        if self.ahead.iter().any(|entry| entry.failed.is_some()) {
            return None;
        }
        let piece = self.upcoming?;
        let region = self.buffer.take_next(self.sizes[piece])?;
        let mut entry = self.entry(piece, region, &pieces[piece]);
        let job = entry.begin();
        self.ahead.push_back(entry);
        self.upcoming = self.follows[piece];
        job
    }

    pub(super) fn finish(&mut self, job: Job, done: Result<(), ReadError>) {
        self.reads_done += 1;
        self.bytes_read += job.region.bytes() as u64;
        let Job { serial, region, .. } = job;
        if let Some(entry) = self.ahead.iter_mut().find(|entry| entry.serial == serial) {
            entry.end(region, done);
        } else if let Some(place) = self.fetches.iter().position(|entry| entry.serial == serial) {
            self.fetches[place].end(region, done);
            if self.fetches[place].is_complete() {
                let mut entry = self.fetches.remove(place).expect("found there");
                let (piece, failed) = (entry.piece, entry.failed.take());
                self.fetched.push_back(Fetched { piece, region: entry.into_region(), failed });
            }
        } else {
            // Nobody waits for it any more.
            self.release(region);
        }
    }

    /// Returns memory for pieces ahead.
    pub(super) fn release(&mut self, region: Region) {
        self.buffer.give_back(region);
    }

    fn entry(&mut self, piece: usize, mut region: Region, reads: &[Read]) -> Entry {
        self.serial += 1;
        let waiting = reads
            .iter()
            .rev()
            .map(|read| (*read, region.split_off(read.place)))
            .collect::<Vec<_>>();
        Entry { serial: self.serial, piece, waiting, reading: 0, done: Vec::new(), failed: None }
    }

    fn cancel(&mut self) {
        while let Some(entry) = self.ahead.pop_front() {
            self.dissolve(entry);
        }
    }

    /// Frees what a piece holds; reads on their way free theirs when they end.
    fn dissolve(&mut self, entry: Entry) {
        let waiting = entry.waiting.into_iter().map(|(_, region)| region);
        waiting.chain(entry.done).for_each(|region| self.release(region));
    }
}

impl Entry {
    fn begin(&mut self) -> Option<Job> {
        if self.failed.is_some() {
            return None;
        }
        let (read, region) = self.waiting.pop()?;
        self.reading += 1;
        Some(Job { serial: self.serial, read, region })
    }

    fn end(&mut self, region: Region, done: Result<(), ReadError>) {
        self.reading -= 1;
        self.done.push(region);
        if let Err(error) = done {
            // The rest is not worth reading.
            self.done.extend(self.waiting.drain(..).map(|(_, region)| region));
            self.failed.get_or_insert(error);
        }
    }

    fn is_complete(&self) -> bool {
        self.waiting.is_empty() && self.reading == 0
    }

    /// All of the piece's memory in one.
    fn into_region(mut self) -> Region {
        self.done.sort_unstable_by_key(Region::offset);
        let mut parts = self.done.into_iter();
        let mut whole = parts.next().expect("a piece has at least one read");
        parts.for_each(|part| whole.join(part).expect("parts of one region follow each other"));
        whole
    }
}
