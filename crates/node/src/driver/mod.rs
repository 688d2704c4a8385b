//! One thread that owns the engine of a ring's head and answers requests.
//!
//! Requests wait in a queue of limited length, get a slot, and share micro-batches: prompt chunks
//! and single tokens of many sequences run together, and several micro-batches are on their way
//! through a ring at once. One device alone is a ring of one member. Who asks gives a [`Listener`],
//! which is told everything, the end exactly once.
//! `head` is the loop, `seat` what outlives a head, `sequence` a request, `admission` the queue's
//! limits, `listener` who is told, `constrainer` who limits the choice of tokens.

mod admission;
mod constrainer;
mod head;
mod listener;
mod seat;
mod sequence;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use motley_engine::{
    EngineMemory, EngineOptions, GpuMemory, LoadError, Model, Sampler, SamplingParameters,
};
use motley_ggml::Token;
use motley_ring::{
    Assignment, AssignmentError, AssignmentSpec, ClusterId, Epoch, Route, WireElement,
};

pub(crate) use admission::QueueLimits;
use admission::{Admission, Pass};
pub(crate) use constrainer::{Constrainer, ConstraintError};
use head::Head;
pub(crate) use head::Leaving;
pub(crate) use listener::{
    Answer, AnswerError, Ended, Event, FinishReason, Listener, Prefill, Verdict,
};

use seat::Seat;

use crate::gpus;
use crate::memory::{EngineShare, PressureWatch};
use crate::profile::load_engine;
use crate::stage::{Arrival, Links, Yielder, YieldingEngine};

/// Messages that wait for the engine thread at most: requests are limited before, frames by the
/// micro-batches on their way.
const MESSAGES_WAITING_MAX: usize = 2048;

/// What is asked of the engine.
pub(crate) struct Request {
    /// Names the request in lists of what runs.
    pub(crate) id: String,
    pub(crate) caller: CallerKey,
    /// Higher is more urgent.
    pub(crate) priority: i32,
    /// The prompt, not empty and shorter than the context.
    pub(crate) prompt: Vec<Token>,
    /// What it is computed for.
    pub(crate) purpose: Purpose,
    /// How tokens are chosen.
    pub(crate) parameters: SamplingParameters,
    /// Forces a form of the answer, if there is one.
    pub(crate) constrainer: Option<Box<dyn Constrainer>>,
    /// Tokens to generate at most, none to score the prompt alone; the context is a limit too.
    pub(crate) answer_tokens_max: usize,
    /// Is told what happens.
    pub(crate) listener: Box<dyn Listener>,
}

/// What a prompt is computed for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// An answer.
    #[default]
    Answer,
    /// An answer, and how probable the prompt's own tokens were, with so many alternatives each.
    AnswerAndScores {
        /// Alternatives.
        top: u8,
    },
    /// The mean of its final hidden states, and no answer.
    Embedding,
}

/// On whose behalf a request runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallerKey {
    /// Shares the slots with others; nothing for callers who are not told apart.
    pub(crate) caller: Option<u64>,
    /// Only requests with the same value share what they have computed.
    pub(crate) prefix: u64,
}

/// Why a request was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SubmitError {
    /// Nothing to continue.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// No room for the prompt and one token.
    #[error("the prompt has {tokens} tokens, the context only {context_tokens}")]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens of a slot.
        context_tokens: usize,
    },
    /// The queue is full.
    #[error("{waiting} requests wait already")]
    Busy {
        /// Requests that wait.
        waiting: usize,
    },
    /// This caller has too many requests.
    #[error("{waiting} requests of this caller wait already")]
    CallerBusy {
        /// Requests of the caller that wait.
        waiting: usize,
    },
    /// The engine thread ended.
    #[error("the engine has stopped")]
    Stopped,
}

/// A request with its place in the queue.
struct Job {
    request: Request,
    submitted: Instant,
    pass: Pass,
}

/// What comes to the engine thread.
enum Message {
    Job(Box<Job>),
    /// Something from the members of the ring.
    Ring(Arrival),
    /// End what runs, begin nothing, and leave the seat, if it serves this deployment: a head that
    /// has gone by itself may have left the word to its successor.
    Drain(Epoch),
    /// Look whether the program is to end.
    LookAround,
}

/// Hands what comes over the network to the head.
#[derive(Clone, Debug)]
pub(crate) struct HeadInbox(SyncSender<Message>);

impl HeadInbox {
    /// Hands over an arrival, waiting for room; false when there will be no head any more.
    pub(crate) fn deliver(&self, arrival: Arrival) -> bool {
        self.0.send(Message::Ring(arrival)).is_ok()
    }
}

/// What an engine is, told by its thread once it is loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EngineFacts {
    /// Sequences at a time.
    pub(crate) slots: usize,
    /// Tokens of context per slot.
    pub(crate) context_tokens: usize,
    /// Bytes held.
    pub(crate) memory: EngineMemory,
    /// Bytes held in GPUs.
    pub(crate) gpu_bytes: u64,
}

/// What the slots of a driver are doing.
#[derive(Clone, Debug, Default)]
pub(crate) struct DriverState {
    /// The request of each slot.
    pub(crate) slots: Vec<Option<Busy>>,
    /// Requests that wait for a slot.
    pub(crate) waiting: usize,
    /// Tokens whose keys and values are held.
    pub(crate) held_tokens: usize,
    /// Prompt tokens looked up among those held, in total.
    pub(crate) prefix_queried_tokens: u64,
    /// Prompt tokens found there, in total.
    pub(crate) prefix_hit_tokens: u64,
    /// Pieces of work computed on this device, in total, and the time they took.
    pub(crate) steps: u64,
    pub(crate) busy: std::time::Duration,
    /// What single tokens took, in total.
    pub(crate) tokens: TokenTimes,
}

/// Times of micro-batches of one row: one token of one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenTimes {
    /// Pieces of work for them that were computed on this device.
    pub(crate) steps: u64,
    /// Time of those.
    pub(crate) computed: std::time::Duration,
    /// Tokens that went around the ring alone.
    pub(crate) rounds: u64,
    /// Time from the beginning of those to their logits.
    pub(crate) around: std::time::Duration,
}

/// A slot's request.
#[derive(Clone, Debug)]
pub(crate) struct Busy {
    pub(crate) id: Arc<str>,
    pub(crate) prompt_tokens: usize,
    /// Of these, computed or found.
    pub(crate) prefilled_tokens: usize,
    pub(crate) answer_tokens: usize,
    pub(crate) answer_tokens_max: usize,
}

/// What a head is to be: its part of the ring, and the way to the other members.
pub(crate) struct Deployment {
    pub(crate) model: Arc<Model>,
    pub(crate) options: EngineOptions,
    pub(crate) assignment: Arc<Assignment>,
    pub(crate) links: Links,
}

impl Deployment {
    /// All layers on this machine.
    ///
    /// # Errors
    /// When the sizes are beyond what a ring can be.
    pub(crate) fn alone(
        model: Arc<Model>,
        options: EngineOptions,
    ) -> Result<Self, AssignmentError> {
        let hyper = &model.directory().hyper;
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let assignment = Assignment::new(AssignmentSpec {
            cluster: ClusterId(0),
            epoch: Epoch(1),
            route: Route::solo(count(hyper.block_count)),
            slots: count(options.slots),
            context_tokens: count(options.context_tokens),
            batch_rows_max: count(options.batch_rows_max),
            groups: 1,
            width: count(hyper.embedding_length),
            wire_element: WireElement::F32,
            kv_type: crate::stage::kv_type(options.cache),
        })?;
        let links = Links::none();
        Ok(Self { model, options, assignment: Arc::new(assignment), links })
    }
}

/// An engine on its thread, loading or loaded, that does not answer yet. Dropping it frees the engine.
#[derive(Debug)]
pub(crate) struct Standby {
    go: SyncSender<Vec<Token>>,
    facts: Arc<OnceLock<EngineFacts>>,
    thread: EngineThread,
}

/// Answers requests with the engine that is in its seat, one after another: a ring that changes
/// loads its next engine beside the running one. Requests wait while the seat is empty.
///
/// Dropping it ends the engine's thread after the step that runs; requests that are not answered by
/// then are told that the engine has stopped.
pub(crate) struct Driver {
    jobs: SyncSender<Message>,
    admission: Arc<Admission>,
    state: Arc<Mutex<DriverState>>,
    facts: Mutex<Option<EngineFacts>>,
    seat: Arc<Mutex<Option<Seat>>>,
    end_tokens: OnceLock<Vec<Token>>,
    watch: OnceLock<Arc<PressureWatch>>,
    running: Mutex<Option<EngineThread>>,
}

/// Told when a head has left its seat, so that another may take it.
pub(crate) type OnLeave = Box<dyn FnOnce(Leaving) + Send>;

impl Driver {
    /// A driver with an empty seat.
    pub(crate) fn new() -> Self {
        let (jobs, inbox) = sync_channel(MESSAGES_WAITING_MAX);
        Self {
            jobs,
            admission: Arc::new(Admission::new()),
            state: Arc::default(),
            facts: Mutex::new(None),
            seat: Arc::new(Mutex::new(Some(Seat::new(inbox)))),
            end_tokens: OnceLock::new(),
            watch: OnceLock::new(),
            running: Mutex::new(None),
        }
    }

    /// Tells by which tokens the model ends an answer, before the first engine is started. They are
    /// not needed to load one, so that the vocabulary can be loaded meanwhile.
    pub(crate) fn end_answers_by(&self, end_tokens: Vec<Token>) {
        self.end_tokens.get_or_init(|| end_tokens);
    }

    /// Lets the engines that are loaded from now on give memory to other programs.
    pub(crate) fn yield_to(&self, watch: Arc<PressureWatch>) {
        self.watch.get_or_init(|| watch);
    }

    fn engine_share(&self) -> Option<EngineShare> {
        let jobs = self.jobs.clone();
        // A thread with messages before it looks around anyway.
        let wake = move || drop(jobs.try_send(Message::LookAround));
        self.watch.get().map(|watch| watch.engine(wake))
    }

    /// How many requests may wait, if not as many as ships.
    pub(crate) fn limit_waiting(&self, limits: QueueLimits) {
        self.admission.set_limits(limits);
    }

    /// Where what comes over the network is to go.
    pub(crate) fn inbox(&self) -> HeadInbox {
        HeadInbox(self.jobs.clone())
    }

    /// Starts a thread that loads an engine and reports how that went. It takes the seat when
    /// [`start`](Self::start) says so, and calls `on_leave` when it leaves it.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub(crate) fn load(
        &self,
        deployment: Deployment,
        loaded: impl FnOnce(Result<EngineFacts, LoadError>) + Send + 'static,
        on_leave: OnLeave,
    ) -> std::io::Result<Standby> {
        let (go, told) = sync_channel::<Vec<Token>>(1);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (seat, state) = (Arc::clone(&self.seat), Arc::clone(&self.state));
        let facts = Arc::new(OnceLock::new());
        let found = Arc::clone(&facts);
        let share = self.engine_share();
        let work = move || {
            let Deployment { model, options, assignment, links } = deployment;
            let engine = match load_engine(&model, &options) {
                Ok(engine) => engine,
                Err(error) => return loaded(Err(error)),
            };
            gpus::tell(&engine);
            let own = EngineFacts {
                slots: engine.slots(),
                context_tokens: engine.context_tokens(),
                memory: engine.memory(),
                gpu_bytes: engine.gpu_memory().iter().map(GpuMemory::total_bytes).sum(),
            };
            found.get_or_init(|| own);
            loaded(Ok(own));
            let yielder = share.and_then(|share| Yielder::new(share, &engine, model, &options));
            let Ok(end_tokens) = told.recv() else { return };
            let sampler = Sampler::new(engine.hyper().vocabulary_size, &end_tokens);
            let sampler = sampler.expect("a vocabulary has no more tokens than its model logits");
            let engine = YieldingEngine::new(engine, yielder);
            let mut head = Head::new(engine, sampler, assignment, links, state);
            let taken = lock(&seat).take();
            let mut taken = taken.expect("the seat is empty when a head is started");
            let leaving = head.serve(&mut taken, &stopped);
            // The engine is freed before another takes the seat.
            drop(head);
            *lock(&seat) = Some(taken);
            on_leave(leaving);
        };
        let handle = thread::Builder::new().name("engine".to_owned()).spawn(work)?;
        Ok(Standby { go, facts, thread: EngineThread { stop, handle: Some(handle) } })
    }

    /// Gives the seat, which is empty, to an engine that has been loaded.
    pub(crate) fn start(&self, standby: Standby) {
        let Standby { go, facts, thread } = standby;
        if let Some(facts) = facts.get() {
            self.admission.set_slots(facts.slots);
            *lock(&self.facts) = Some(*facts);
        }
        // A thread that has ended already has said why when it was loaded.
        let _ = go.send(self.end_tokens.get().cloned().unwrap_or_default());
        // The one before has left its seat, so that this waits for nothing.
        *lock(&self.running) = Some(thread);
    }

    /// Tells the head of this deployment to finish what runs and to leave its seat; requests that
    /// wait go on waiting.
    pub(crate) fn drain(&self, epoch: Epoch) {
        // Without a head there is nobody to tell.
        let _ = self.jobs.send(Message::Drain(epoch));
    }

    /// Tells all requests that wait for a head that none will come.
    pub(crate) fn refuse_waiting(&self, error: &AnswerError) {
        if let Some(seat) = lock(&self.seat).as_mut() {
            seat.refuse(error);
        }
    }

    /// What the engine is; nothing before the first one answers.
    pub(crate) fn facts(&self) -> Option<EngineFacts> {
        *lock(&self.facts)
    }

    /// What the slots were doing after the last step.
    pub(crate) fn state(&self) -> DriverState {
        let mut state = lock(&self.state).clone();
        state.slots.resize(self.facts().map_or(0, |facts| facts.slots), None);
        state.waiting = self.admission.inside().saturating_sub(state.running());
        state
    }

    /// Hands a request to the engine. Whether it is taken is decided at once.
    ///
    /// # Errors
    /// When the prompt does not fit the context or too many requests wait.
    pub(crate) fn submit(&self, request: Request) -> Result<(), SubmitError> {
        let tokens = request.prompt.len();
        if tokens == 0 {
            return Err(SubmitError::EmptyPrompt);
        }
        let context_tokens = self.facts().map_or(usize::MAX, |facts| facts.context_tokens);
        if tokens >= context_tokens {
            return Err(SubmitError::PromptTooLong { tokens, context_tokens });
        }
        let pass = Admission::enter(&self.admission, request.caller.caller)?;
        let job = Job { request, submitted: Instant::now(), pass };
        self.jobs.try_send(Message::Job(Box::new(job))).map_err(|error| match error {
            TrySendError::Full(_) => SubmitError::Busy { waiting: MESSAGES_WAITING_MAX },
            TrySendError::Disconnected(_) => SubmitError::Stopped,
        })
    }
}

/// A lock that a thread which panicked does not keep others from.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The engine thread. Dropping it waits for the step that runs, which keeps ggml's threads from
/// running while the process is torn down.
#[derive(Debug)]
struct EngineThread {
    stop: Arc<AtomicBool>,
    handle: Option<JoinHandle<()>>,
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(handle) = self.handle.take() {
            let _ = handle.join();
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The thread may be waiting for a message.
        let thread = lock(&self.running).take();
        if let Some(thread) = &thread {
            thread.stop.store(true, Ordering::Relaxed);
            let _ = self.jobs.try_send(Message::LookAround);
        }
        drop(thread);
        self.refuse_waiting(&AnswerError::Stopped);
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("facts", &self.facts()).finish_non_exhaustive()
    }
}

impl DriverState {
    /// Requests that have a slot.
    pub(crate) fn running(&self) -> usize {
        self.slots.iter().flatten().count()
    }
}
