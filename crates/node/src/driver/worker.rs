//! The loop of the engine thread: admit, choose a batch, run it, account for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

use motley_engine::{Engine, Entering, Row, RowsError, Sampler, Step, StepError, Wanted};
use motley_ggml::Token;

use super::sequence::{Outlet, Sequence};
use super::{AnswerError, Job};

/// How long the thread waits when all readers are behind.
const REST: Duration = Duration::from_millis(1);

/// An engine with its slots.
#[derive(Debug)]
pub(super) struct Worker {
    engine: Engine,
    sampler: Sampler,
    slots: Vec<Slot>,
    /// Sequences that have ended and whose last events have not been taken yet.
    ending: Vec<Outlet>,
    batch: Batch,
    logits: Vec<f32>,
}

/// A place for a sequence.
#[derive(Debug, Default)]
struct Slot {
    /// Tokens whose keys and values the engine holds, while no sequence is here.
    history: Vec<Token>,
    sequence: Option<Sequence>,
}

/// What runs next; reused, so that nothing is allocated per token.
#[derive(Debug, Default)]
struct Batch {
    rows: Vec<Row>,
    tokens: Vec<Token>,
    /// Rows whose logits are wanted.
    wanted: Vec<usize>,
    /// Rows of each slot.
    shares: Vec<usize>,
}

impl Worker {
    pub(super) fn new(engine: Engine, sampler: Sampler) -> Self {
        let slots = (0..engine.slots()).map(|_| Slot::default()).collect();
        let (ending, batch, logits) = (Vec::new(), Batch::default(), Vec::new());
        Self { engine, sampler, slots, ending, batch, logits }
    }

    /// Answers jobs until `stop` is set or nobody can send any more.
    pub(super) fn serve(mut self, jobs: &Receiver<Job>, stop: &AtomicBool) {
        let mut stalled = false;
        while !stop.load(Ordering::Relaxed) && self.admit(jobs, stalled) {
            self.let_go();
            self.choose_batch();
            stalled = self.batch.rows.is_empty();
            if !stalled {
                self.step();
            }
        }
    }

    /// Gives waiting jobs a slot each; false when no job can come any more.
    ///
    /// Without anything to do the thread sleeps until a job comes.
    fn admit(&mut self, jobs: &Receiver<Job>, stalled: bool) -> bool {
        let mut wait = stalled.then_some(REST);
        while self.slots.iter().any(|slot| slot.sequence.is_none()) {
            let idle = self.slots.iter().all(|slot| slot.sequence.is_none());
            let job = if idle && self.ending.is_empty() {
                jobs.recv().map_err(|_| TryRecvError::Disconnected)
            } else if let Some(rest) = wait.take() {
                jobs.recv_timeout(rest).map_err(|error| match error {
                    RecvTimeoutError::Timeout => TryRecvError::Empty,
                    RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
                })
            } else {
                jobs.try_recv()
            };
            match job {
                Ok(job) => self.place(job),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
        if let Some(rest) = wait {
            // Every slot is taken and every reader is behind: there is no event to wait for.
            std::thread::sleep(rest);
        }
        true
    }

    /// Puts a job into the free slot that holds most of its prompt; of equal ones into the one
    /// that loses least.
    fn place(&mut self, job: Job) {
        let prompt = &job.request.prompt;
        let common = |slot: &Slot| {
            slot.history.iter().zip(prompt).take_while(|(old, new)| old == new).count()
        };
        let free = self.slots.iter_mut().filter(|slot| slot.sequence.is_none());
        let best = free
            .map(|slot| (common(slot), slot))
            .max_by_key(|(common, slot)| (*common, std::cmp::Reverse(slot.history.len())));
        let (cached, slot) = best.expect("jobs are taken when a slot is free");
        slot.history.clear();
        slot.sequence = Some(Sequence::new(job, self.engine.context_tokens(), cached));
    }

    /// Frees the slots of sequences that nobody reads.
    fn let_go(&mut self) {
        for slot in &mut self.slots {
            if let Some(sequence) = slot.sequence.take_if(|sequence| sequence.is_abandoned()) {
                slot.history.extend_from_slice(sequence.computed_tokens());
            }
        }
        self.ending.retain_mut(|outlet| !outlet.flush());
    }

    /// Tokens of answers come first, so that long prompts do not hold them up; prompts share the
    /// rows that are left. A sequence whose reader is behind rests.
    fn choose_batch(&mut self) {
        let batch = &mut self.batch;
        batch.rows.clear();
        batch.tokens.clear();
        batch.wanted.clear();
        batch.shares.clear();
        batch.shares.resize(self.slots.len(), 0);
        let mut room = self.engine.batch_rows_max();
        for decoding in [true, false] {
            for (slot, share) in self.slots.iter_mut().zip(&mut batch.shares) {
                let Some(sequence) = &mut slot.sequence else { continue };
                if sequence.is_decoding() == decoding && sequence.flush() {
                    *share = sequence.pending().len().min(room);
                    room -= *share;
                }
            }
        }
        for (index, (slot, share)) in self.slots.iter().zip(&batch.shares).enumerate() {
            let Some(sequence) = slot.sequence.as_ref().filter(|_| *share > 0) else { continue };
            let positions = sequence.position()..sequence.position() + share;
            batch.rows.extend(positions.map(|position| Row { slot: index, position }));
            batch.tokens.extend_from_slice(&sequence.pending()[..*share]);
            if *share == sequence.pending().len() {
                batch.wanted.push(batch.rows.len() - 1);
            }
        }
    }

    fn step(&mut self) {
        let step = Step {
            layers: 0..self.engine.hyper().block_count,
            rows: &self.batch.rows,
            entering: Entering::Tokens(&self.batch.tokens),
            wanted: Wanted::Logits(&self.batch.wanted),
        };
        match self.engine.run(&step, &mut self.logits) {
            Ok(()) => self.account(),
            Err(StepError::Rows(RowsError::Overwritten { slot, .. })) => {
                // A sliding window keeps too little to go back as far as the common prefix.
                self.engine.clear(slot);
                if let Some(sequence) = &mut self.slots[slot].sequence {
                    sequence.restart();
                }
            }
            Err(error) => self.fail(&Arc::new(error)),
        }
    }

    /// Chooses a token for every sequence whose logits were computed.
    fn account(&mut self) {
        let vocabulary_size = self.engine.hyper().vocabulary_size;
        let mut logits = self.logits.chunks_exact(vocabulary_size);
        for (slot, share) in self.slots.iter_mut().zip(&self.batch.shares) {
            let Some(sequence) = slot.sequence.as_mut().filter(|_| *share > 0) else { continue };
            sequence.advance(*share);
            if !sequence.pending().is_empty() {
                continue;
            }
            let logits = logits.next().expect("a row of logits for every row wanted");
            if sequence.choose(logits, &mut self.sampler)
                && let Some(ended) = slot.sequence.take()
            {
                slot.history.extend_from_slice(ended.computed_tokens());
                self.ending.push(ended.into_outlet());
            }
        }
    }

    /// Ends the sequences of a batch that failed. What their slots hold is unknown then.
    fn fail(&mut self, error: &Arc<StepError>) {
        for (index, share) in self.batch.shares.iter().enumerate() {
            if let Some(mut sequence) = self.slots[index].sequence.take_if(|_| *share > 0) {
                self.engine.clear(index);
                sequence.fail(AnswerError::Step(Arc::clone(error)));
                self.ending.push(sequence.into_outlet());
            }
        }
    }
}
