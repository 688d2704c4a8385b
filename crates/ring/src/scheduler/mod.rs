//! What runs next: the head's knowledge of every sequence, and the choice of micro-batches.
//!
//! The loop of its driver reads: [`Scheduler::next_batch`] while it gives one, then wait for a
//! micro-batch to come back, [`Scheduler::completed`], choose tokens, [`Scheduler::push_token`] or
//! [`Scheduler::finish`]. `queue` decides who gets a slot, `slots` what a slot holds.

mod pace;
mod queue;
mod slots;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use motley_cluster::{PREFILL_ROWS_MIN, prefill_chunk_rows};

use crate::assignment::Assignment;
use crate::batch::{Batch, MicroBatchId, Run, SlotIndex, Wanted};
use crate::limits::{WAITING_MAX, WAITING_PER_CALLER_MAX};

use pace::Pace;
use queue::Queue;
pub use queue::SubmitRefused;
pub use slots::{ReuseRule, SlotPhase, SlotState};
use slots::{Sequence, Slot};

/// Rows of prompts in a micro-batch while other sequences wait for their next token, for each
/// prompt that waits: at least so many, and more where more cost the others little.
///
/// On a processor a micro-batch of 32 to 64 rows costs about as much as its rows, so that more
/// would only make the others wait longer. Where many prompts wait, more are waiting for their
/// first token than for their next; and a prompt counts once more for each that was complete before
/// it was begun.
const PREFILL_ROWS_WHILE_DECODING: u32 = 64;

/// The least rows into which a short prompt is cut for the sake of others' next tokens, and what
/// its pieces are multiples of, so that the shapes of few graphs serve.
const PIECE_ROWS: u32 = 8;

/// Rows of a prompt in a micro-batch where all of them are wanted: logits of one row take up to a
/// megabyte.
const WANTED_ROWS_MAX: u32 = 64;

/// Who asks. Callers share the slots evenly and never see what others have computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallerId(pub u64);

/// One request; the driver never uses a number twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// What a scheduler schedules on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulerOptions {
    /// Sequences that run at once.
    pub slots: u32,
    /// Tokens of context of each slot.
    pub context_tokens: u32,
    /// Rows of a micro-batch.
    pub batch_rows_max: u32,
    /// Micro-batches on their way at once: the stages of the ring.
    pub groups: u32,
    /// Rows of prompts in a micro-batch while other sequences wait for their next token, for each
    /// prompt that waits. A prompt that has no more and waits alone comes in smaller pieces where
    /// measured times say that it would hold the others up for long otherwise; where they say that
    /// more rows cost the others little, there are more.
    pub prefill_rows_while_decoding: u32,
    /// Requests that wait for a slot.
    pub waiting_max: u32,
    /// Requests of one caller that wait for a slot.
    pub waiting_per_caller_max: u32,
    /// When a slot may go back.
    pub reuse: ReuseRule,
}

impl SchedulerOptions {
    /// The options of a deployment, with defaults for what it leaves open.
    #[must_use]
    pub fn of_assignment(assignment: &Assignment, reuse: ReuseRule) -> Self {
        let spec = assignment.spec();
        Self {
            slots: spec.slots,
            context_tokens: spec.context_tokens,
            batch_rows_max: spec.batch_rows_max,
            groups: spec.groups,
            prefill_rows_while_decoding: PREFILL_ROWS_WHILE_DECODING,
            waiting_max: WAITING_MAX,
            waiting_per_caller_max: WAITING_PER_CALLER_MAX,
            reuse,
        }
    }
}

/// A request for tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// Its number.
    pub request: RequestId,
    /// Who asks.
    pub caller: CallerId,
    /// Splits a caller's requests into groups that do not share what they have computed.
    pub cache_salt: Option<u64>,
    /// The prompt.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most; the context is a limit too.
    pub tokens_max: u32,
    /// Higher ones get a slot before lower ones of the callers that have as few.
    pub priority: i32,
    /// All rows of the prompt are wanted at the head, for their probabilities or for an
    /// embedding; then nothing is reused.
    pub prompt_rows: bool,
}

/// A micro-batch to be computed. One value can be filled again and again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MicroBatch {
    /// Its number.
    pub id: MicroBatchId,
    /// Its rows.
    pub batch: Batch,
    /// The token of each row.
    pub tokens: Vec<u32>,
    /// The request of each run.
    pub requests: Vec<RequestId>,
}

/// Rows of a request that came back to the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// The request.
    pub request: RequestId,
    /// Where its rows begin among the wanted ones.
    pub first_row: u32,
    /// Number of its wanted rows.
    pub rows: u32,
    /// Position of the first of these rows.
    pub first_position: u32,
    /// The next token is to be chosen from the last of these rows.
    pub chooses: bool,
}

/// What follows a chosen token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The sequence goes on.
    GoOn,
    /// As many tokens as were asked for: finish it.
    LengthReached,
    /// The slot is full: finish it.
    ContextFull,
}

/// What is where; all but `slots_free` are 0 when nothing is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SchedulerCounts {
    /// Requests that wait for a slot.
    pub waiting: u32,
    /// Requests that have one.
    pub running: u32,
    /// Ended requests whose last micro-batches are still on their way.
    pub ending: u32,
    /// Micro-batches on their way.
    pub micro_batches: u32,
    /// Slots without a sequence.
    pub slots_free: u32,
}

/// A micro-batch on its way.
#[derive(Debug)]
struct InFlight {
    id: MicroBatchId,
    runs: Vec<Run>,
    requests: Vec<RequestId>,
}

/// Sequences, slots and micro-batches of one ring.
///
/// It owns the truth about a sequence: its tokens, and how far they are computed. A request ends
/// when the driver says so ([`finish`](Self::finish)) or when it is named by
/// [`failed`](Self::failed), [`lost_all`](Self::lost_all) or [`resize`](Self::resize); after that
/// its number means nothing here.
#[derive(Debug)]
pub struct Scheduler {
    options: SchedulerOptions,
    queue: Queue,
    slots: Vec<Slot>,
    /// The slot of each running request.
    places: BTreeMap<RequestId, SlotIndex>,
    in_flight: Vec<InFlight>,
    /// Kept for their allocations.
    spare: Vec<InFlight>,
    shares: Vec<u32>,
    order: Vec<u32>,
    next_id: u64,
    /// The last micro-batch was a prompt's alone, and next tokens rested.
    tokens_rested: bool,
    pace: Pace,
    held: bool,
    /// Sequences at once, of which those that run already may be more.
    slots_max: u32,
    /// Counts events, to tell older from newer.
    moment: u64,
}

impl Scheduler {
    /// An empty scheduler.
    ///
    /// # Panics
    /// Options that are zero where something must be possible are a bug of the caller.
    #[must_use]
    pub fn new(options: SchedulerOptions) -> Self {
        check(&options);
        Self {
            queue: Queue::new(options.waiting_max, options.waiting_per_caller_max),
            slots: (0..options.slots).map(|_| Slot::default()).collect(),
            slots_max: options.slots,
            options,
            places: BTreeMap::new(),
            in_flight: Vec::new(),
            spare: Vec::new(),
            shares: Vec::new(),
            order: Vec::new(),
            next_id: 0,
            tokens_rested: false,
            pace: Pace::default(),
            held: false,
            moment: 0,
        }
    }

    /// The options in force.
    #[must_use]
    pub const fn options(&self) -> &SchedulerOptions {
        &self.options
    }

    /// Stops giving slots to requests that wait, so that what runs can end before another
    /// deployment, or gives them again.
    pub const fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// Gives slots to new requests only while fewer than `slots` have one: there is memory for so
    /// many. What runs goes on.
    pub fn limit_slots(&mut self, slots: u32) {
        self.slots_max = slots.max(1);
    }

    /// Takes a request, which gets a slot at once if one is free.
    ///
    /// # Errors
    /// The request cannot run, or too many wait.
    pub fn submit(&mut self, ask: Ask) -> Result<(), SubmitRefused> {
        if ask.prompt.is_empty() {
            return Err(SubmitRefused::EmptyPrompt);
        }
        let (tokens, context_tokens) = (ask.prompt.len(), self.options.context_tokens);
        if tokens >= context_tokens as usize {
            return Err(SubmitRefused::PromptTooLong { tokens, context_tokens });
        }
        if self.places.contains_key(&ask.request) || self.queue.contains(ask.request) {
            return Err(SubmitRefused::RequestExists);
        }
        let slot_is_free = self.has_free_slot();
        self.queue.push(ask, slot_is_free)?;
        self.admit();
        Ok(())
    }

    /// Fills `micro_batch` with what should run next. False when nothing can run, or enough is on
    /// its way.
    pub fn next_batch(&mut self, micro_batch: &mut MicroBatch) -> bool {
        self.admit();
        if self.in_flight.len() >= self.options.groups as usize {
            return false;
        }
        self.share_rows();
        micro_batch.batch.clear();
        micro_batch.tokens.clear();
        micro_batch.requests.clear();
        for index in 0..self.order.len() {
            let slot = self.order[index];
            let share = self.shares[slot as usize];
            if share > 0 {
                self.slots[slot as usize].send(SlotIndex(slot), share, micro_batch);
            }
        }
        if micro_batch.batch.runs().is_empty() {
            return false;
        }
        micro_batch.id = MicroBatchId(self.next_id);
        self.next_id += 1;
        let mut sent = self.spare.pop().unwrap_or(InFlight {
            id: micro_batch.id,
            runs: Vec::new(),
            requests: Vec::new(),
        });
        sent.id = micro_batch.id;
        sent.runs.extend_from_slice(micro_batch.batch.runs());
        sent.requests.extend_from_slice(&micro_batch.requests);
        self.in_flight.push(sent);
        true
    }

    /// Notes how long a micro-batch was on its way, before it is told that it came back.
    pub fn took(&mut self, id: MicroBatchId, time: Duration) {
        if let Some(sent) = self.in_flight.iter().find(|sent| sent.id == id) {
            let rows = sent.runs.iter().map(|run| run.rows).sum();
            self.pace.learn(rows, time);
        }
    }

    /// Notes that a micro-batch came back, and fills `ready` with the requests whose rows were
    /// wanted, in the order of the batch. False if it was not on its way any more.
    pub fn completed(&mut self, id: MicroBatchId, ready: &mut Vec<Ready>) -> bool {
        ready.clear();
        let Some(back) = self.take(id) else { return false };
        let mut first_row = 0;
        for (run, request) in back.runs.iter().zip(&back.requests) {
            let slot = &mut self.slots[run.slot.0 as usize];
            let sequence = slot.sequence.as_mut().expect("a slot is kept until its rows are back");
            assert_eq!(sequence.request, *request, "a slot is kept until its rows are back");
            sequence.in_flight -= 1;
            if !sequence.broken {
                assert_eq!(sequence.computed, run.first_position, "chunks come back in order");
                sequence.computed = run.end_position();
            }
            let rows = run.wanted_rows();
            if rows > 0 && !sequence.ended {
                let first_position = run.end_position() - rows;
                let chooses = run.end_position() as usize == sequence.tokens.len();
                let request = *request;
                ready.push(Ready { request, first_row, rows, first_position, chooses });
            }
            first_row += rows;
            self.moment += 1;
            slot.free_if_over(self.moment);
        }
        self.recycle(back);
        true
    }

    /// Appends the token that was chosen.
    ///
    /// # Panics
    /// A request that does not run, or whose logits have not come back, is a bug of the caller.
    pub fn push_token(&mut self, request: RequestId, token: u32) -> Next {
        self.moment += 1;
        let moment = self.moment;
        let context_tokens = self.options.context_tokens as usize;
        let sequence = self.running_mut(request).expect("a token is chosen for a running request");
        assert_eq!(sequence.computed as usize, sequence.tokens.len(), "its logits came back");
        sequence.tokens.push(token);
        sequence.waiting_since = moment;
        if sequence.tokens.len() >= sequence.length_max {
            sequence.complete = true;
            return Next::LengthReached;
        }
        if sequence.tokens.len() >= context_tokens {
            sequence.complete = true;
            return Next::ContextFull;
        }
        Next::GoOn
    }

    /// Ends a request: it is complete, its caller has gone, or it failed by itself. Its slot is
    /// free as soon as none of its micro-batches is on its way. False if it had ended.
    pub fn finish(&mut self, request: RequestId) -> bool {
        if self.queue.remove(request) {
            return true;
        }
        let Some(slot) = self.places.remove(&request) else { return false };
        let slot = &mut self.slots[slot.0 as usize];
        if let Some(sequence) = &mut slot.sequence {
            sequence.ended = true;
        }
        self.moment += 1;
        slot.free_if_over(self.moment);
        true
    }

    /// Says that the reader of an answer is behind, so that nothing is computed for it, or no
    /// longer so. False if the request does not run.
    pub fn rest(&mut self, request: RequestId, resting: bool) -> bool {
        match self.running_mut(request) {
            Some(sequence) => {
                sequence.resting = resting;
                true
            }
            None => false,
        }
    }

    /// A micro-batch could not be computed: the requests in it end, and are appended to `ended`.
    /// What their slots hold is unknown, so that it is not used again.
    pub fn failed(&mut self, id: MicroBatchId, ended: &mut Vec<RequestId>) -> bool {
        let Some(lost) = self.take(id) else { return false };
        for run in &lost.runs {
            let slot = &mut self.slots[run.slot.0 as usize];
            let sequence = slot.sequence.as_mut().expect("a slot is kept until its rows are back");
            sequence.in_flight -= 1;
            sequence.broken = true;
            if !std::mem::replace(&mut sequence.ended, true) {
                self.places.remove(&sequence.request);
                ended.push(sequence.request);
            }
            self.moment += 1;
            slot.free_if_over(self.moment);
        }
        self.recycle(lost);
        true
    }

    /// The ring has lost a member, and with it a part of every cache: all requests that have a slot
    /// end, and are appended to `ended`. Those that wait go on waiting.
    pub fn lost_all(&mut self, ended: &mut Vec<RequestId>) {
        ended.extend(self.places.keys());
        self.places.clear();
        self.in_flight.clear();
        for slot in &mut self.slots {
            *slot = Slot::default();
        }
    }

    /// Goes on with another deployment. Requests that have a slot end as in
    /// [`lost_all`](Self::lost_all), those that wait stay unless the new context is too short for
    /// them; all that end are appended to `ended`.
    pub fn resize(&mut self, options: SchedulerOptions, ended: &mut Vec<RequestId>) {
        check(&options);
        self.lost_all(ended);
        self.queue.resize(&options, ended);
        self.slots.resize_with(options.slots as usize, Slot::default);
        self.slots_max = options.slots;
        self.options = options;
        // Another ring has another pace.
        self.pace = Pace::default();
    }

    /// Tokens of a running request's prompt that its slot held when it came.
    #[must_use]
    pub fn cached_tokens(&self, request: RequestId) -> Option<u32> {
        self.running(request).map(|sequence| sequence.cached)
    }

    /// All tokens of a running request, prompt and answer.
    #[must_use]
    pub fn tokens(&self, request: RequestId) -> Option<&[u32]> {
        self.running(request).map(|sequence| sequence.tokens.as_slice())
    }

    /// What each slot does, in order.
    #[must_use]
    pub fn slot_states(&self) -> Vec<SlotState> {
        let slots = self.slots.iter().enumerate();
        slots.map(|(index, slot)| slot.state(SlotIndex(index as u32))).collect()
    }

    /// What is where.
    #[must_use]
    pub fn counts(&self) -> SchedulerCounts {
        let ended = |slot: &&Slot| slot.sequence.as_ref().is_some_and(|sequence| sequence.ended);
        let ending = self.slots.iter().filter(ended).count() as u32;
        let free = self.slots.iter().filter(|slot| slot.sequence.is_none()).count() as u32;
        SchedulerCounts {
            waiting: self.queue.len(),
            running: self.places.len() as u32,
            ending,
            micro_batches: self.in_flight.len() as u32,
            slots_free: free,
        }
    }

    fn running(&self, request: RequestId) -> Option<&Sequence> {
        let slot = self.places.get(&request)?;
        self.slots[slot.0 as usize].sequence.as_ref()
    }

    fn running_mut(&mut self, request: RequestId) -> Option<&mut Sequence> {
        let slot = self.places.get(&request)?;
        self.slots[slot.0 as usize].sequence.as_mut()
    }

    fn take(&mut self, id: MicroBatchId) -> Option<InFlight> {
        let at = self.in_flight.iter().position(|sent| sent.id == id)?;
        Some(self.in_flight.remove(at))
    }

    fn recycle(&mut self, mut back: InFlight) {
        back.runs.clear();
        back.requests.clear();
        self.spare.push(back);
    }

    /// Whether a request may have a slot now.
    fn has_free_slot(&self) -> bool {
        let free = self.slots.iter().filter(|slot| slot.sequence.is_none()).count();
        let taken = self.slots.len() - free;
        !self.held && free > 0 && taken < self.slots_max as usize
    }

    /// Gives waiting requests the free slots.
    fn admit(&mut self) {
        while !self.queue.is_empty() && self.has_free_slot() {
            let slots = &self.slots;
            let running = |caller| {
                let sequences = slots.iter().filter_map(|slot| slot.sequence.as_ref());
                sequences.filter(|sequence| sequence.caller == caller && !sequence.ended).count()
            };
            let Some(ask) = self.queue.pop(running) else { return };
            let rule = self.options.reuse;
            let free = self.slots.iter_mut().enumerate();
            let free = free.filter(|(_, slot)| slot.sequence.is_none());
            let best = free
                .map(|(index, slot)| (slot.fitness(&ask, rule), index, slot))
                .max_by_key(|(fitness, index, _)| (*fitness, usize::MAX - index));
            let (_, index, slot) = best.expect("a slot is free");
            let reused = slot.reusable(&ask, rule);
            self.moment += 1;
            self.places.insert(ask.request, SlotIndex(index as u32));
            slot.place(ask, reused, self.moment);
        }
    }

    /// Decides how many rows each slot has in the next micro-batch, and in which order they come.
    ///
    /// Next tokens of answers come first, so that long prompts do not hold them up, and only as
    /// many as make the groups even; they are sent in the order of slots, which attention can join.
    /// Prompts follow one after the other, not side by side: the first of them is answered sooner,
    /// the last no later, and attention over many rows of one sequence costs less than over a few
    /// of each. Where one ends, no other begins: its first token would come later for that, and on a
    /// processor rows cost as much in one micro-batch as in two. The one with the fewest rows left
    /// comes first, so that a short prompt passes a long
    /// one, and every other time the one that has waited longest, so that none waits for ever.
    fn share_rows(&mut self) {
        let Self { options, slots, shares, order, next_id, .. } = self;
        shares.clear();
        shares.resize(slots.len(), 0);
        order.clear();
        let decoding = |slot: &Slot| slot.sequence.as_ref().is_some_and(Sequence::is_decoding);
        let active = slots.iter().filter(|slot| decoding(slot)).count() as u32;
        let even_share = active.div_ceil(options.groups).min(options.batch_rows_max);
        let ready = |slot: &Slot| decoding(slot) && slot.pending() > 0;
        order.extend((0..slots.len() as u32).filter(|slot| ready(&slots[*slot as usize])));
        let waiting_since = |slot: &u32| slots[*slot as usize].waiting_since();
        order.sort_unstable_by_key(waiting_since);
        order.truncate(even_share as usize);
        order.sort_unstable();
        for slot in &*order {
            shares[*slot as usize] = 1;
        }
        let first = order.len();
        let prompts = (0..slots.len() as u32).filter(|slot| {
            let slot = &slots[*slot as usize];
            !decoding(slot) && slot.pending() > 0
        });
        order.extend(prompts);
        let prompts = &mut order[first..];
        if *next_id % 2 == 0 {
            prompts.sort_unstable_by_key(|slot| {
                (slots[*slot as usize].pending(), waiting_since(slot))
            });
        } else {
            prompts.sort_unstable_by_key(waiting_since);
        }
        let first = first as u32;
        let alone = self.prompt_needs_all(first);
        let tokens_rested = std::mem::replace(&mut self.tokens_rested, alone);
        if !alone {
            return self.share_prompts(first, active > 0);
        }
        if tokens_rested {
            self.tokens_rested = false;
            return;
        }
        for slot in &self.order[..first as usize] {
            self.shares[*slot as usize] = 0;
        }
        self.order.drain(..first as usize);
        self.share_prompts(0, true);
    }

    /// Whether the first prompt takes one micro-batch less where next tokens, those of the `first`
    /// slots of the order, are not in them, and so many prompts wait that it may fill one.
    ///
    /// Then next tokens and a prompt take turns: a prompt that fits into a micro-batch is not cut
    /// in two for a few rows, and nobody waits longer for a next token than for one micro-batch.
    fn prompt_needs_all(&self, first: u32) -> bool {
        let (tokens, prompts) = self.order.split_at(first as usize);
        let Some(prompt) = prompts.first() else { return false };
        let most = self.options.batch_rows_max;
        if tokens.is_empty() || self.room_beside_tokens(prompts, first) < most {
            return false;
        }
        let slot = &self.slots[*prompt as usize];
        let pending = slot.pending();
        // One that is cut more finely for other reasons has room beside them.
        let is_cut = chunk_rows(&self.options, slot) < pending.min(most);
        !is_cut && first < most && pending.div_ceil(most) < pending.div_ceil(most - first)
    }

    /// Rows that prompts may have beside so many next tokens, whatever the size of a micro-batch.
    fn room_beside_tokens(&self, prompts: &[u32], tokens: u32) -> u32 {
        let overtaken = |slot: &u32| self.slots[*slot as usize].overtaken();
        let weight: u32 = prompts.iter().map(|slot| 1 + overtaken(slot)).sum();
        let usual = self.options.prefill_rows_while_decoding;
        let Some(bearable) = self.pace.rows_beside(tokens) else {
            return usual.saturating_mul(weight);
        };
        match prompts {
            [slot] if self.slots[*slot as usize].rows_to_compute() <= usual => {
                (bearable - bearable % PIECE_ROWS).clamp(PIECE_ROWS.min(usual), usual)
            }
            _ => usual.max(bearable).saturating_mul(weight),
        }
    }

    /// Decides how many rows of the prompts, which follow the `first` slots of the order, come in
    /// the next micro-batch.
    ///
    /// While others decode, room grows with the prompts that wait and with those that were complete
    /// before them: of many that came together, the last must not wait longer still because all
    /// others have their first token. One that has begun gains nothing more, so that a long one does
    /// not hold the others up more and more. What does not fit into one micro-batch is cut evenly:
    /// as many steps, and none that is much longer than the next.
    fn share_prompts(&mut self, first: u32, others_decode: bool) {
        let mut room = self.options.batch_rows_max - first;
        if others_decode {
            room = room.min(self.room_beside_tokens(&self.order[first as usize..], first));
        }
        let Self { options, slots, shares, order, .. } = self;
        let prompts = &order[first as usize..];
        let (mut none_yet, mut ending) = (true, 0);
        for slot in prompts {
            let index = *slot as usize;
            let pending = slots[index].pending();
            let most = chunk_rows(options, &slots[index]).min(room);
            let rows = if others_decode { even_part(pending, most) } else { most };
            let ends = rows == pending;
            if rows > 0 && (none_yet || ends || rows >= PREFILL_ROWS_MIN && ending == 0) {
                shares[index] = rows;
                // What the cut leaves free is for nobody: the step is to be shorter for it.
                room -= most;
                none_yet = false;
                ending += u32::from(ends);
            }
        }
        for slot in prompts {
            let index = *slot as usize;
            if shares[index] == 0 {
                slots[index].overtake(ending);
            }
        }
    }
}

/// Rows of a prompt in one micro-batch at most: a lone prompt is cut so that all stages work on it.
fn chunk_rows(options: &SchedulerOptions, slot: &Slot) -> u32 {
    let most = if slot.wants_all_rows() { WANTED_ROWS_MAX } else { options.batch_rows_max };
    let chunk = prefill_chunk_rows(slot.prompt_tokens(), options.groups, options.batch_rows_max);
    slot.pending().min(chunk).min(most)
}

/// The first of as few parts of `pending` rows as possible, none above `most`, that differ little.
fn even_part(pending: u32, most: u32) -> u32 {
    let parts = pending.div_ceil(most.max(1)).max(1);
    pending.div_ceil(parts).max(PREFILL_ROWS_MIN).min(most)
}

fn check(options: &SchedulerOptions) {
    assert!(options.slots > 0 && options.groups > 0, "something can run");
    assert!(options.batch_rows_max > 0 && options.prefill_rows_while_decoding > 0);
    assert!(options.context_tokens > 0 && options.waiting_max > 0);
    assert!(options.waiting_per_caller_max > 0);
}

/// The rows that the head needs of a chunk.
const fn wanted(sequence: &Sequence, end: usize) -> Wanted {
    if sequence.prompt_rows && (sequence.sent as usize) < sequence.prompt_tokens {
        Wanted::All
    } else if end == sequence.tokens.len() {
        Wanted::Last
    } else {
        Wanted::None
    }
}
