//! One thread that owns the engine of a ring's head and answers requests.
//!
//! Requests wait in a queue of limited length, get a slot, and share micro-batches: prompt chunks
//! and single tokens of many sequences run together, and several micro-batches are on their way
//! through a ring at once. One device alone is a ring of one member. Who asks gives a [`Listener`],
//! which is told everything, the end exactly once.
//! `head` is the loop, `sequence` a request, `admission` the queue's limits, `listener` who is told.

mod admission;
mod head;
mod listener;
mod sequence;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use motley_engine::{Engine, EngineMemory, EngineOptions, LoadError, Model, SampleError, Sampler};
use motley_engine::SamplingParameters;
use motley_ggml::Token;
use motley_ring::{
    Assignment, AssignmentError, AssignmentSpec, ClusterId, Epoch, Route, WireElement,
};

use admission::{Admission, Pass};
use head::Head;
pub(crate) use listener::{
    Answer, AnswerError, Ended, Event, FinishReason, Listener, Prefill, Verdict,
};

use crate::stage::{Arrival, Links};

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
    /// How tokens are chosen.
    pub(crate) parameters: SamplingParameters,
    /// Tokens to generate at most; the context is a limit too.
    pub(crate) answer_tokens_max: usize,
    /// Is told what happens.
    pub(crate) listener: Box<dyn Listener>,
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
}

/// Hands what comes over the network to a head.
#[derive(Clone)]
pub(crate) struct HeadInbox(SyncSender<Message>);

impl HeadInbox {
    /// Hands over an arrival, waiting for room; false when the head has ended.
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
    /// Micro-batches on their way.
    pub(crate) micro_batches: usize,
    /// Pieces of work computed on this device, in total, and the time they took.
    pub(crate) steps: u64,
    pub(crate) busy: std::time::Duration,
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
    pub(crate) fn alone(model: Arc<Model>, options: EngineOptions) -> Result<Self, AssignmentError> {
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

/// An engine that is being loaded on its thread, while the caller loads the vocabulary.
#[derive(Debug)]
pub(crate) struct Loading {
    end_tokens: SyncSender<Vec<Token>>,
    loaded: Receiver<Result<EngineFacts, LoadFailure>>,
    jobs: SyncSender<Message>,
    admission: Arc<Admission>,
    state: Arc<Mutex<DriverState>>,
    // Dropped last: the thread ends when the channels above are closed.
    thread: EngineThread,
}

impl Loading {
    /// Starts the thread and loads the parts of the model that the deployment gives this device.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub(crate) fn start(deployment: Deployment) -> std::io::Result<Self> {
        let (end_tokens, receive_end_tokens) = sync_channel(1);
        let (send_loaded, loaded) = sync_channel(1);
        let (jobs, inbox) = sync_channel(MESSAGES_WAITING_MAX);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let admission = Arc::new(Admission::new(deployment.options.slots));
        let state = Arc::new(Mutex::new(DriverState::default()));
        let shown = Arc::clone(&state);
        let work = move || match load(deployment, &receive_end_tokens, &send_loaded, shown) {
            Ok(head) => head.serve(&inbox, &stopped),
            // Nobody waits any more when this cannot be sent.
            Err(failure) => drop(send_loaded.send(Err(failure))),
        };
        let handle = thread::Builder::new().name("engine".to_owned()).spawn(work)?;
        let thread = EngineThread { stop, handle: Some(handle) };
        Ok(Self { end_tokens, loaded, jobs, admission, state, thread })
    }

    /// Where what comes over the network is to go.
    pub(crate) fn inbox(&self) -> HeadInbox {
        HeadInbox(self.jobs.clone())
    }

    /// Waits until the engine is loaded. `end_tokens` are those by which the model ends an answer.
    ///
    /// # Errors
    /// When the engine cannot be loaded.
    pub(crate) fn finish(self, end_tokens: Vec<Token>) -> Result<Driver, LoadFailure> {
        // The channel has room for its one message; if the thread ended, `loaded` says why.
        let _ = self.end_tokens.send(end_tokens);
        let facts = self.loaded.recv().map_err(|_| LoadFailure::Stopped)??;
        let Self { jobs, admission, state, thread, .. } = self;
        Ok(Driver { facts, jobs, admission, state, _thread: thread })
    }
}

/// Loads the engine, waits for the end tokens and reports what was made.
fn load(
    deployment: Deployment,
    end_tokens: &Receiver<Vec<Token>>,
    loaded: &SyncSender<Result<EngineFacts, LoadFailure>>,
    shown: Arc<Mutex<DriverState>>,
) -> Result<Head, LoadFailure> {
    let engine = Engine::load(&deployment.model, &deployment.options)?;
    let end_tokens = end_tokens.recv().map_err(|_| LoadFailure::Stopped)?;
    let sampler = Sampler::new(engine.hyper().vocabulary_size, &end_tokens)?;
    let facts = EngineFacts {
        slots: engine.slots(),
        context_tokens: engine.context_tokens(),
        memory: engine.memory(),
    };
    let head = Head::new(engine, sampler, deployment.assignment, deployment.links, shown);
    let _ = loaded.send(Ok(facts));
    Ok(head)
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

/// Why no driver came out of loading.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadFailure {
    /// The engine could not be made.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The end tokens are none of the model's.
    #[error(transparent)]
    EndTokens(#[from] SampleError),
    /// The engine thread ended without a word, which is a fault of ours.
    #[error("the engine has stopped")]
    Stopped,
}

/// A loaded engine on its thread. Dropping it ends the thread after the step that runs; requests
/// that are not answered by then are told that the engine has stopped.
#[derive(Debug)]
pub(crate) struct Driver {
    facts: EngineFacts,
    jobs: SyncSender<Message>,
    admission: Arc<Admission>,
    state: Arc<Mutex<DriverState>>,
    // Dropped after the channel, whose end tells the thread to end.
    _thread: EngineThread,
}

impl Driver {
    /// What the engine is.
    pub(crate) fn facts(&self) -> EngineFacts {
        self.facts
    }

    /// What the slots were doing after the last step.
    pub(crate) fn state(&self) -> DriverState {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner).clone();
        state.slots.resize(self.facts.slots, None);
        state.waiting = self.admission.inside().saturating_sub(state.running());
        state
    }

    /// Hands a request to the engine. Whether it is taken is decided at once.
    ///
    /// # Errors
    /// When the prompt does not fit the context or too many requests wait.
    pub(crate) fn submit(&self, request: Request) -> Result<(), SubmitError> {
        let (tokens, context_tokens) = (request.prompt.len(), self.facts.context_tokens);
        if tokens == 0 {
            return Err(SubmitError::EmptyPrompt);
        }
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

impl DriverState {
    /// Requests that have a slot.
    pub(crate) fn running(&self) -> usize {
        self.slots.iter().flatten().count()
    }
}
