//! The loop of the engine thread at a ring's head: admit, send micro-batches on their way, compute
//! this device's stops, choose tokens.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use motley_engine::{Engine, Sampler};
use motley_ggml::Token;
use motley_ring::{
    Accepted, Ask, Assignment, Computed, FrameRefused, Member, MicroBatch, MicroBatchId, Next,
    Ready, RequestId, ReuseRule, Scheduler, SchedulerOptions, SlotPhase, Work,
};

use super::listener::{AnswerError, FinishReason};
use super::seat::Seat;
use super::sequence::{Chosen, Sequence};
use super::{Busy, DriverState, Message, Purpose, TokenTimes};
use crate::stage::{Arrival, HeadRows, Links, Payload, Scratch, YieldingEngine, receive_soon};

/// How long the thread waits before it looks again for readers that are behind or gone.
const REST: Duration = Duration::from_millis(1);

/// How long it waits for a frame before it looks for readers that are gone.
const LOOK_AROUND: Duration = Duration::from_millis(20);

/// An engine with its part of the ring, and all sequences.
pub(super) struct Head {
    engine: YieldingEngine,
    sampler: Sampler,
    member: Member<Payload>,
    links: Links,
    scheduler: Scheduler,
    sequences: BTreeMap<RequestId, Sequence>,
    reused: Reused,
    shown: Arc<Mutex<DriverState>>,
    counted: Counted,
    draining: bool,
    lost: Option<Arc<str>>,
}

/// Why a head left its seat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// It was told to, and everything it had begun has ended.
    Drained,
    /// A member of its ring is gone.
    Lost {
        /// The member's name.
        node: Arc<str>,
    },
    /// The program ends.
    Stopped,
}

/// Values that steps fill again and again, so that none is allocated per token.
#[derive(Debug, Default)]
struct Reused {
    scratch: Scratch,
    micro_batch: MicroBatch,
    ready: Vec<Ready>,
    tokens: Vec<Token>,
    product: Vec<f32>,
    refused: Vec<(MicroBatchId, FrameRefused)>,
    /// Slots whose sequence wants states, not logits.
    embeds: Vec<bool>,
}

/// Totals since the start.
#[derive(Debug, Default)]
struct Counted {
    prefix_queried_tokens: u64,
    prefix_hit_tokens: u64,
    steps: u64,
    busy: Duration,
    tokens: TokenTimes,
    /// Micro-batches on their way, in the order in which they come back.
    sent: VecDeque<Sent>,
}

#[derive(Debug)]
struct Sent {
    id: MicroBatchId,
    since: Instant,
    /// It has one row, and no other was on its way beside it.
    is_lone_token: bool,
}

impl Counted {
    /// What has come back. What was before it never will.
    fn back(&mut self, id: MicroBatchId) -> Option<Sent> {
        while self.sent.front().is_some_and(|sent| sent.id < id) {
            self.sent.pop_front();
        }
        self.sent.pop_front_if(|sent| sent.id == id)
    }
}

impl Head {
    pub(super) fn new(
        engine: YieldingEngine,
        sampler: Sampler,
        assignment: Arc<Assignment>,
        links: Links,
        shown: Arc<Mutex<DriverState>>,
    ) -> Self {
        let reuse = reuse_rule(engine.get());
        let options = SchedulerOptions::of_assignment(&assignment, reuse);
        // Requests are counted when they are submitted; here all of them find a place.
        let options =
            SchedulerOptions { waiting_max: u32::MAX, waiting_per_caller_max: u32::MAX, ..options };
        let head = assignment.route().head();
        Self {
            engine,
            sampler,
            member: Member::new(head, assignment),
            links,
            scheduler: Scheduler::new(options),
            sequences: BTreeMap::new(),
            reused: Reused::default(),
            shown,
            counted: Counted::default(),
            draining: false,
            lost: None,
        }
    }

    /// Answers requests until it is told to leave, a member of the ring is lost, or `stop` is set.
    pub(super) fn serve(&mut self, seat: &mut Seat, stop: &AtomicBool) -> Leaving {
        for (ask, sequence) in std::mem::take(&mut seat.waiting) {
            self.submit(ask, sequence);
        }
        let mut idle = true;
        let leaving = loop {
            if stop.load(Ordering::Relaxed) {
                break Leaving::Stopped;
            }
            self.take_messages(seat, idle);
            if let Some(node) = self.lost.take() {
                break Leaving::Lost { node };
            }
            if self.draining && self.sequences.is_empty() {
                break Leaving::Drained;
            }
            self.look_after_readers();
            self.engine.follow();
            self.scheduler.limit_slots(self.engine.slots(self.scheduler.options().slots));
            self.begin_micro_batches();
            idle = match self.member.next_work() {
                Some(work) => {
                    self.compute(work);
                    false
                }
                None => true,
            };
            self.show();
        };
        self.end_all(&leaving);
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = DriverState::default();
        leaving
    }

    /// Ends what runs when the head leaves its seat.
    fn end_all(&mut self, leaving: &Leaving) {
        let error = match leaving {
            Leaving::Lost { node } => AnswerError::NodeLost { node: Arc::clone(node) },
            Leaving::Drained | Leaving::Stopped => AnswerError::Stopped,
        };
        for (_, sequence) in std::mem::take(&mut self.sequences) {
            sequence.end(Err(error.clone()));
        }
    }

    /// Takes all messages that have come. With nothing to compute the thread sleeps until one
    /// comes.
    fn take_messages(&mut self, seat: &mut Seat, idle: bool) {
        if idle {
            let message = match self.patience() {
                None => {
                    self.engine.rest();
                    seat.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected)
                }
                Some(patience) if self.scheduler.counts().micro_batches > 0 => {
                    receive_soon(&seat.inbox, patience, || self.engine.rest())
                }
                Some(patience) => seat.inbox.recv_timeout(patience),
            };
            match message {
                Ok(message) => self.take(message, seat),
                Err(RecvTimeoutError::Timeout) => return,
                // The driver is gone: nobody can ask any more.
                Err(RecvTimeoutError::Disconnected) => self.drain(seat),
            }
        }
        while let Ok(message) = seat.inbox.try_recv() {
            self.take(message, seat);
        }
    }

    /// How long to wait for a message when there is nothing to compute; for ever when nothing
    /// runs.
    fn patience(&self) -> Option<Duration> {
        let counts = self.scheduler.counts();
        match (self.sequences.is_empty(), counts.micro_batches) {
            (true, _) => None,
            // Only readers who are behind hold the others up.
            (false, 0) => Some(REST),
            (false, _) => Some(LOOK_AROUND),
        }
    }

    fn take(&mut self, message: Message, seat: &mut Seat) {
        match message {
            Message::Job(job) => {
                let (ask, sequence) = seat.register(*job);
                if self.draining {
                    seat.waiting.push((ask, sequence));
                } else {
                    self.submit(ask, sequence);
                }
            }
            Message::Drain(epoch) => {
                if epoch == self.member.assignment().epoch() {
                    self.drain(seat);
                }
            }
            Message::LookAround => {}
            Message::Ring(Arrival::Frame { from, header, batch, payload }) => {
                match self.member.handle_frame(from, &header, batch, payload) {
                    Ok(Accepted::Queued | Accepted::Dropped) => {}
                    Ok(Accepted::Forward(outgoing)) => self.links.send(outgoing),
                    Err(refused) => {
                        let error = AnswerError::Ring(refused.to_string().into());
                        self.fail(header.micro_batch, &error);
                    }
                }
            }
            Message::Ring(Arrival::StepFailed { epoch, micro_batch, cause }) => {
                if epoch == self.member.assignment().epoch() {
                    self.fail(micro_batch, &AnswerError::Ring(cause.into()));
                }
            }
            Message::Ring(Arrival::Lost { epoch, node }) => {
                if epoch == self.member.assignment().epoch() {
                    self.drain(seat);
                    self.lost = Some(node);
                }
            }
        }
    }

    fn submit(&mut self, ask: Ask, mut sequence: Sequence) {
        let request = ask.request;
        sequence.keep(&ask);
        match self.scheduler.submit(ask) {
            Ok(()) => drop(self.sequences.insert(request, sequence)),
            // Requests are counted and measured before they come here; only a ring that has
            // become smaller refuses any.
            Err(refused) => sequence.end(Err(AnswerError::Refused(refused.to_string().into()))),
        }
    }

    /// Begins nothing any more: requests without a row on its way go back to wait.
    fn drain(&mut self, seat: &mut Seat) {
        self.draining = true;
        let waiting = self.sequences.extract_if(.., |_, sequence| !sequence.is_admitted());
        for (request, mut sequence) in waiting {
            self.scheduler.finish(request);
            if let Some(ask) = sequence.take_ask() {
                seat.waiting.push((ask, sequence));
            }
        }
    }

    /// Ends requests that nobody reads, and lets those rest whose readers are behind.
    fn look_after_readers(&mut self) {
        let Self { sequences, scheduler, .. } = self;
        sequences.retain(|request, sequence| {
            if sequence.is_abandoned() {
                scheduler.finish(*request);
                return false;
            }
            let behind = !sequence.has_room();
            if sequence.set_resting(behind) {
                scheduler.rest(*request, behind);
            }
            true
        });
    }

    fn begin_micro_batches(&mut self) {
        let micro_batch = &mut self.reused.micro_batch;
        while self.scheduler.next_batch(micro_batch) {
            for (run, request) in micro_batch.batch.runs().iter().zip(&micro_batch.requests) {
                let Some(sequence) = self.sequences.get_mut(request) else { continue };
                let (slot, embeds) = (run.slot.0 as usize, &mut self.reused.embeds);
                embeds.resize(embeds.len().max(slot + 1), false);
                // A slot keeps its sequence until all its rows are back.
                embeds[slot] = sequence.purpose == Purpose::Embedding;
                if sequence.admit() {
                    let cached = self.scheduler.cached_tokens(*request).unwrap_or(0);
                    self.counted.prefix_queried_tokens += sequence.prompt_tokens as u64;
                    self.counted.prefix_hit_tokens += u64::from(cached);
                }
            }
            let tokens = micro_batch.tokens.iter().map(|token| token.cast_signed()).collect();
            let batch = std::mem::take(&mut micro_batch.batch);
            let is_lone_token = batch.rows() == 1 && self.scheduler.counts().micro_batches == 1;
            let (id, since) = (micro_batch.id, Instant::now());
            self.counted.sent.iter_mut().for_each(|sent| sent.is_lone_token = false);
            self.counted.sent.push_back(Sent { id, since, is_lone_token });
            if let Err(refused) = self.member.begin(micro_batch.id, batch, Payload::Tokens(tokens))
            {
                // It builds on rows that have just failed.
                self.reused.refused.push((micro_batch.id, refused));
            }
        }
        while let Some((micro_batch, refused)) = self.reused.refused.pop() {
            self.fail(micro_batch, &AnswerError::Ring(refused.to_string().into()));
        }
    }

    fn compute(&mut self, work: Work<Payload>) {
        let began = Instant::now();
        let mut product = std::mem::take(&mut self.reused.product);
        let Reused { scratch, embeds, .. } = &mut self.reused;
        let head = HeadRows { embeds };
        let computed = scratch.compute(&mut self.engine, &work, head, &mut product);
        let took = began.elapsed();
        self.counted.busy += took;
        self.counted.steps += 1;
        if work.batch.rows() == 1 {
            self.counted.tokens.steps += 1;
            self.counted.tokens.computed += took;
        }
        if let Err(error) = computed {
            let error = AnswerError::Step(Arc::new(error));
            let mut failed = Vec::new();
            self.member.failed(work, &mut failed);
            failed.into_iter().for_each(|micro_batch| self.fail(micro_batch, &error));
            return;
        }
        match self.member.computed(work, Payload::Values(product)) {
            Computed::Send(outgoing) => self.links.send(outgoing),
            Computed::Done { micro_batch, product, .. } => {
                if let Some(sent) = self.counted.back(micro_batch) {
                    let took = sent.since.elapsed();
                    self.scheduler.took(micro_batch, took);
                    if sent.is_lone_token {
                        self.counted.tokens.rounds += 1;
                        self.counted.tokens.around += took;
                    }
                }
                self.account(micro_batch, product.values());
                if let Payload::Values(values) = product {
                    self.reused.product = values;
                }
            }
        }
    }

    /// Does with the rows that came back what their sequences are for.
    fn account(&mut self, micro_batch: MicroBatchId, product: &[f32]) {
        let width = self.engine.get().hyper().embedding_length;
        let mut ready = std::mem::take(&mut self.reused.ready);
        self.scheduler.completed(micro_batch, &mut ready);
        for ready in &ready {
            let Some(sequence) = self.sequences.get_mut(&ready.request) else { continue };
            let rows = ready.first_row as usize..(ready.first_row + ready.rows) as usize;
            let scratch = &self.reused.scratch;
            if sequence.purpose == Purpose::Embedding {
                rows.for_each(|row| sequence.add_state(scratch.row_of(row, product, width)));
                if ready.chooses {
                    self.scheduler.finish(ready.request);
                    self.sequences
                        .remove(&ready.request)
                        .into_iter()
                        .for_each(Sequence::end_embedding);
                }
                continue;
            }
            let last = rows.end - 1;
            if let Err(error) = self.score(ready, product) {
                self.scheduler.finish(ready.request);
                self.end(ready.request, Err(error));
            } else if ready.chooses {
                let logits = self.reused.scratch.row_of(last, product, width);
                self.choose(ready.request, logits);
            }
        }
        self.reused.ready = ready;
    }

    /// Tells how probable the prompt's tokens were that follow these rows, if that is asked for.
    fn score(&mut self, ready: &Ready, product: &[f32]) -> Result<(), AnswerError> {
        let Some(sequence) = self.sequences.get_mut(&ready.request) else { return Ok(()) };
        if !matches!(sequence.purpose, Purpose::AnswerAndScores { .. }) {
            return Ok(());
        }
        let width = self.engine.get().hyper().embedding_length;
        let tokens = self.scheduler.tokens(ready.request).unwrap_or(&[]);
        let prompt = &tokens[..sequence.prompt_tokens.min(tokens.len())];
        let followers = prompt.iter().skip(ready.first_position as usize + 1);
        for (row, token) in (ready.first_row..ready.first_row + ready.rows).zip(followers) {
            let logits = self.reused.scratch.row_of(row as usize, product, width);
            sequence.score(logits, token.cast_signed(), &mut self.sampler)?;
        }
        Ok(())
    }

    fn choose(&mut self, request: RequestId, logits: &[f32]) {
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        if sequence.answer_tokens_max == 0 {
            self.scheduler.finish(request);
            self.sequences.remove(&request).into_iter().for_each(Sequence::end_scores);
            return;
        }
        let Some(so_far) = self.scheduler.tokens(request) else { return };
        let tokens = &mut self.reused.tokens;
        tokens.clear();
        tokens.extend(so_far.iter().map(|token| token.cast_signed()));
        let cached = self.scheduler.cached_tokens(request).unwrap_or(0) as usize;
        let outcome = match sequence.choose(logits, tokens, cached, &mut self.sampler) {
            Chosen::Token(token) => {
                match self.scheduler.push_token(request, token.cast_unsigned()) {
                    Next::GoOn => return,
                    Next::LengthReached => Ok(FinishReason::Length),
                    Next::ContextFull => Ok(FinishReason::ContextFull),
                }
            }
            Chosen::End(outcome) => outcome,
        };
        self.scheduler.finish(request);
        self.end(request, outcome);
    }

    /// Ends the sequences of a micro-batch that failed.
    fn fail(&mut self, micro_batch: MicroBatchId, error: &AnswerError) {
        let mut ended = Vec::new();
        self.scheduler.failed(micro_batch, &mut ended);
        for request in ended {
            self.end(request, Err(error.clone()));
        }
    }

    fn end(&mut self, request: RequestId, outcome: Result<FinishReason, AnswerError>) {
        if let Some(sequence) = self.sequences.remove(&request) {
            sequence.end(outcome);
        }
    }

    /// Publishes what the slots are doing.
    fn show(&self) {
        let mut held_tokens = 0;
        let slots = self.scheduler.slot_states().into_iter().map(|slot| {
            held_tokens += slot.computed_tokens as usize;
            let request = slot.request.filter(|_| slot.phase != SlotPhase::Ending)?;
            let sequence = self.sequences.get(&request)?;
            Some(Busy {
                id: Arc::clone(&sequence.id),
                prompt_tokens: sequence.prompt_tokens,
                prefilled_tokens: (slot.computed_tokens as usize).min(sequence.prompt_tokens),
                answer_tokens: sequence.answer_tokens(),
                answer_tokens_max: sequence.answer_tokens_max,
            })
        });
        let slots = slots.collect();
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        *shown = DriverState {
            slots,
            waiting: 0,
            held_tokens,
            prefix_queried_tokens: self.counted.prefix_queried_tokens,
            prefix_hit_tokens: self.counted.prefix_hit_tokens,
            steps: self.counted.steps,
            busy: self.counted.busy,
            tokens: self.counted.tokens,
        };
    }
}

/// How far a slot can go back on every member of the ring, in the scheduler's terms.
fn reuse_rule(engine: &Engine) -> ReuseRule {
    let count = |tokens: usize| u32::try_from(tokens).unwrap_or(u32::MAX);
    match engine.reuse_rule().window_and_kept() {
        None => ReuseRule::Anywhere,
        Some((window, kept)) => {
            ReuseRule::SlidingWindow { window_tokens: count(window), kept_tokens: count(kept) }
        }
    }
}
