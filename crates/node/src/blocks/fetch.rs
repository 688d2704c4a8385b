//! Brings missing blocks from any device that has them, several at once, and believes none.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::error::Error;
use std::fmt;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread;

use super::layout::bytes_of;
use super::manifest::Manifest;
use super::partial::{PartialError, PartialModel, VerifiedBlock};

/// Verified blocks that wait to be written at most. With one block in hand and one asked for ahead
/// per source, this bounds the memory of a fetch.
const WAITING_BLOCKS_MAX: usize = 2;

/// After so many bytes what was written is made to last: what a crash costs at most.
const CHECKPOINT_BYTES: u64 = 64 << 20;

/// Why a source gave no block.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SourceError {
    /// It does not have this one; others it may have.
    #[error("it does not have the block")]
    Missing,
    /// It cannot give any more.
    #[error("it failed")]
    Failed(#[source] Box<dyn Error + Send + Sync>),
}

/// Someone who has blocks.
pub(crate) trait BlockSource: Send {
    /// What people call it.
    fn name(&self) -> String;

    /// One block. `next`, if there is one, will be asked for afterwards, so that it can be requested
    /// ahead; only after an error it may never be. An answer must come in bounded time.
    fn fetch(&mut self, index: usize, next: Option<usize>) -> Result<Vec<u8>, SourceError>;
}

/// How a source failed.
#[derive(Debug)]
pub(crate) struct SourceFault {
    /// Which.
    pub(crate) source: String,
    /// At which block.
    pub(crate) index: usize,
    /// How.
    pub(crate) kind: FaultKind,
}

/// The ways in which a source fails.
#[derive(Debug)]
pub(crate) enum FaultKind {
    /// What it sent is not the block.
    WrongContent,
    /// It gave nothing.
    Failed(Box<dyn Error + Send + Sync>),
}

impl fmt::Display for SourceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (source, index) = (&self.source, self.index);
        match &self.kind {
            FaultKind::WrongContent => write!(f, "{source} sent wrong content for block {index}"),
            FaultKind::Failed(error) => write!(f, "{source} failed at block {index}: {error}"),
        }
    }
}

/// How far a fetch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Bytes that have come.
    pub(crate) done_bytes: u64,
    /// Bytes that were missing at the beginning.
    pub(crate) total_bytes: u64,
}

/// What a fetch brought.
#[derive(Debug, Default)]
pub(crate) struct FetchReport {
    /// Blocks that were missing and came.
    pub(crate) blocks: usize,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Bytes from each source that gave any.
    pub(crate) bytes_by_source: BTreeMap<String, u64>,
    /// Sources that were put aside on the way.
    pub(crate) faults: Vec<SourceFault>,
}

/// Why not all blocks came. Those that did are kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    /// They could not be written.
    #[error(transparent)]
    Partial(#[from] PartialError),
    /// No source is left.
    #[error("{missing} blocks are missing and no device can give them{}", list(faults))]
    NoSource {
        /// How many blocks.
        missing: usize,
        /// How the sources failed.
        faults: Vec<SourceFault>,
    },
    /// No source has it.
    #[error("no device has block {index} of the model{}", list(faults))]
    Nowhere {
        /// Which block.
        index: usize,
        /// How other sources failed.
        faults: Vec<SourceFault>,
    },
}

fn list(faults: &[SourceFault]) -> String {
    faults.iter().map(|fault| format!("; {fault}")).collect()
}

/// A model that blocks are fetched into. Between two uses it may give blocks to others.
pub(crate) trait Filled {
    /// Does something with it.
    fn with<T>(&mut self, action: impl FnOnce(&mut PartialModel) -> T) -> T;
}

impl Filled for PartialModel {
    fn with<T>(&mut self, action: impl FnOnce(&mut Self) -> T) -> T {
        action(self)
    }
}

/// Brings those of the `wanted` blocks that are not here, from all `sources` at once. A source
/// that fails or sends wrong content is put aside; its blocks come from the others.
pub(crate) fn fetch(
    model: &mut impl Filled,
    wanted: &BTreeSet<usize>,
    sources: Vec<Box<dyn BlockSource>>,
    progress: impl FnMut(Progress),
) -> Result<FetchReport, FetchError> {
    let missing = model.with(|model| {
        let missing = model.missing(wanted)?;
        model.check_space(&missing).map(|()| missing)
    })?;
    let manifest = model.with(|model| std::sync::Arc::clone(model.manifest()));
    let total_bytes = bytes_of(&manifest, &missing);
    let board = Board::new(&missing, sources.len());
    let written = thread::scope(|scope| {
        let (arrived, arrivals) = mpsc::sync_channel(WAITING_BLOCKS_MAX);
        for (number, source) in sources.into_iter().enumerate() {
            let (arrived, board, manifest) = (arrived.clone(), &board, &*manifest);
            scope.spawn(move || work(source, number, board, manifest, &arrived));
        }
        drop(arrived);
        let written = write_all(model, &arrivals, total_bytes, progress);
        // Whoever still fetches finds nobody to give it to.
        drop(arrivals);
        board.stop();
        written
    });
    // What came is kept, whatever else went wrong.
    let kept = model.with(PartialModel::checkpoint);
    let mut report = written?;
    kept?;
    let Board { state, .. } = board;
    let state = state.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    let faults = state.faults;
    if let Some(index) = state.nowhere {
        return Err(FetchError::Nowhere { index, faults });
    }
    match missing.len() - report.blocks {
        0 => {
            report.faults = faults;
            Ok(report)
        }
        missing => Err(FetchError::NoSource { missing, faults }),
    }
}

struct Arrived {
    block: VerifiedBlock,
    source: String,
}

fn write_all(
    model: &mut impl Filled,
    arrivals: &Receiver<Arrived>,
    total_bytes: u64,
    mut progress: impl FnMut(Progress),
) -> Result<FetchReport, PartialError> {
    let mut report = FetchReport::default();
    let mut unsafe_bytes = 0;
    progress(Progress { done_bytes: 0, total_bytes });
    while let Ok(Arrived { block, source }) = arrivals.recv() {
        model.with(|model| model.write(&block))?;
        let bytes = block.len() as u64;
        report.blocks += 1;
        report.bytes += bytes;
        *report.bytes_by_source.entry(source).or_default() += bytes;
        unsafe_bytes += bytes;
        if unsafe_bytes >= CHECKPOINT_BYTES {
            model.with(PartialModel::checkpoint)?;
            unsafe_bytes = 0;
        }
        progress(Progress { done_bytes: report.bytes, total_bytes });
    }
    Ok(report)
}

/// One source's thread: takes blocks from the board until all are there or the source fails.
fn work(
    mut source: Box<dyn BlockSource>,
    number: usize,
    board: &Board,
    manifest: &Manifest,
    arrived: &SyncSender<Arrived>,
) {
    let name = source.name();
    let mut ahead = None;
    while let Some(index) = ahead.take().or_else(|| board.take(number)) {
        ahead = board.take_at_once(number);
        let kind = match source.fetch(index, ahead) {
            Ok(bytes) => match VerifiedBlock::new(manifest, index, bytes) {
                Ok(block) => {
                    if arrived.send(Arrived { block, source: name.clone() }).is_err() {
                        return;
                    }
                    board.done();
                    continue;
                }
                Err(_) => FaultKind::WrongContent,
            },
            Err(SourceError::Missing) => {
                board.lacks(number, index);
                continue;
            }
            Err(SourceError::Failed(error)) => FaultKind::Failed(error),
        };
        let fault = SourceFault { source: name, index, kind };
        return board.give_up(number, [Some(index), ahead], fault);
    }
}

/// What is still to be fetched, and by whom it can be.
struct Board {
    state: Mutex<BoardState>,
    changed: Condvar,
}

#[derive(Default)]
struct BoardState {
    open: VecDeque<usize>,
    /// Blocks that a source has taken and not brought yet.
    in_flight: usize,
    /// Sources that have not failed.
    alive: BTreeSet<usize>,
    /// Which sources do not have which blocks.
    lacking: BTreeMap<usize, BTreeSet<usize>>,
    nowhere: Option<usize>,
    faults: Vec<SourceFault>,
    stopped: bool,
}

impl Board {
    fn new(missing: &BTreeSet<usize>, sources: usize) -> Self {
        let state = BoardState {
            open: missing.iter().copied().collect(),
            alive: (0..sources).collect(),
            ..BoardState::default()
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, BoardState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The next block for a source, waiting while others may still fail and leave it theirs.
    fn take(&self, source: usize) -> Option<usize> {
        let mut state = self.lock();
        loop {
            if state.stopped || (state.open.is_empty() && state.in_flight == 0) {
                return None;
            }
            if let Some(index) = state.take(source) {
                return Some(index);
            }
            state = self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    fn take_at_once(&self, source: usize) -> Option<usize> {
        self.lock().take(source)
    }

    fn done(&self) {
        self.lock().in_flight -= 1;
        self.changed.notify_all();
    }

    fn lacks(&self, source: usize, index: usize) {
        let mut state = self.lock();
        state.in_flight -= 1;
        state.open.push_back(index);
        state.lacking.entry(index).or_default().insert(source);
        state.look_for_nowhere();
        self.changed.notify_all();
    }

    fn give_up(&self, source: usize, taken: [Option<usize>; 2], fault: SourceFault) {
        let mut state = self.lock();
        for index in taken.into_iter().flatten() {
            state.in_flight -= 1;
            state.open.push_front(index);
        }
        state.alive.remove(&source);
        state.faults.push(fault);
        state.look_for_nowhere();
        self.changed.notify_all();
    }

    fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }
}

impl BoardState {
    fn take(&mut self, source: usize) -> Option<usize> {
        if self.stopped {
            return None;
        }
        let lacking = &self.lacking;
        let can = |index: &usize| !lacking.get(index).is_some_and(|who| who.contains(&source));
        let position = self.open.iter().position(can)?;
        let index = self.open.remove(position)?;
        self.in_flight += 1;
        Some(index)
    }

    /// Stops if a block remains that no living source has.
    fn look_for_nowhere(&mut self) {
        if self.alive.is_empty() {
            self.stopped = true;
            return;
        }
        let lost = |(_, who): &(&usize, &BTreeSet<usize>)| self.alive.is_subset(who);
        if let Some((&index, _)) = self.lacking.iter().find(lost) {
            self.nowhere = Some(index);
            self.stopped = true;
        }
    }
}
