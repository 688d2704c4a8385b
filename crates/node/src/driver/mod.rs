//! One thread that owns the engine and answers requests through bounded channels.
//!
//! Requests wait in a queue of limited length, get a slot, and share batches: prompt chunks and
//! single tokens of many sequences run together. A slot remembers what it computed, so that a
//! request that begins like an earlier one computes only the rest. Who asks gets an [`Answer`],
//! which ends exactly once; dropping it frees the slot after the step that runs.
//! `worker` is the loop, `sequence` what a slot is doing.

mod sequence;
#[cfg(test)]
mod tests;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use motley_engine::{
    Engine, EngineMemory, EngineOptions, LoadError, Model, SampleError, Sampler,
    SamplingParameters, StepError,
};
use motley_ggml::Token;

use worker::Worker;

/// Requests that wait for a slot at most.
const REQUESTS_WAITING_MAX: usize = 64;

/// Events of one answer that wait to be read at most; a sequence whose reader is slower rests.
const EVENTS_WAITING_MAX: usize = 256;

/// What is asked of the engine.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The prompt, not empty and shorter than the context.
    pub(crate) prompt: Vec<Token>,
    /// How tokens are chosen.
    pub(crate) parameters: SamplingParameters,
    /// Tokens to generate at most; the context is a limit too.
    pub(crate) answer_tokens_max: usize,
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
    #[error("{REQUESTS_WAITING_MAX} requests wait already")]
    Busy,
    /// The engine thread ended.
    #[error("the engine has stopped")]
    Stopped,
}

/// What happens to a request, in order: one `Prefilled`, any number of `Token`, one `Finished`;
/// or `Failed` at any time, as the last.
#[derive(Debug)]
pub(crate) enum Event {
    /// The prompt is computed; the first token follows at once.
    Prefilled {
        /// Tokens of the prompt that were in the slot already.
        cached_tokens: usize,
        /// From leaving the queue until the first token was chosen.
        time: Duration,
    },
    /// A token of the answer.
    Token(Token),
    /// The answer is complete.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// Tokens chosen, an end token included.
        tokens: usize,
        /// From the first token to the last.
        time: Duration,
    },
    /// The answer cannot be completed.
    Failed(AnswerError),
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FinishReason {
    /// The model chose an end token.
    End,
    /// As many tokens as were asked for.
    Length,
    /// The context is full.
    ContextFull,
}

/// Why an answer cannot be completed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AnswerError {
    /// The engine failed; all sequences of its batch share the error.
    #[error("cannot compute the next token")]
    Step(#[source] Arc<StepError>),
    /// No token could be chosen.
    #[error("cannot choose the next token")]
    Sample(#[from] SampleError),
    /// The engine thread ended.
    #[error("the engine has stopped")]
    Stopped,
}

/// The reader's end of a request.
#[derive(Debug)]
pub(crate) struct Answer {
    events: Receiver<Event>,
    cancelled: Arc<AtomicBool>,
}

impl Answer {
    /// The next event, or nothing if none came in `limit`.
    pub(crate) fn next_within(&self, limit: Duration) -> Option<Event> {
        match self.events.recv_timeout(limit) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Event::Failed(AnswerError::Stopped)),
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

/// A request with the engine's end of its answer.
#[derive(Debug)]
struct Job {
    request: Request,
    events: SyncSender<Event>,
    cancelled: Arc<AtomicBool>,
}

/// What an engine is, told by its thread once it is loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EngineFacts {
    /// Tokens of context per slot.
    pub(crate) context_tokens: usize,
    /// Bytes held.
    pub(crate) memory: EngineMemory,
}

/// An engine that is being loaded on its thread, while the caller loads the vocabulary.
#[derive(Debug)]
pub(crate) struct Loading {
    end_tokens: SyncSender<Vec<Token>>,
    loaded: Receiver<Result<EngineFacts, LoadFailure>>,
    jobs: SyncSender<Job>,
    // Dropped last: the thread ends when the channels above are closed.
    thread: EngineThread,
}

impl Loading {
    /// Starts the thread and loads the parts of `model` that `options` name.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub(crate) fn start(model: Arc<Model>, options: EngineOptions) -> std::io::Result<Self> {
        let (end_tokens, receive_end_tokens) = sync_channel(1);
        let (send_loaded, loaded) = sync_channel(1);
        let (jobs, receive_jobs) = sync_channel(REQUESTS_WAITING_MAX);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let work = move || {
            let worker = match load(&model, &options, &receive_end_tokens, &send_loaded) {
                Ok(worker) => worker,
                Err(failure) => {
                    // Nobody waits any more when this cannot be sent.
                    let _ = send_loaded.send(Err(failure));
                    return;
                }
            };
            worker.serve(&receive_jobs, &stopped);
        };
        let handle = thread::Builder::new().name("engine".to_owned()).spawn(work)?;
        let thread = EngineThread { stop, handle: Some(handle) };
        Ok(Self { end_tokens, loaded, jobs, thread })
    }

    /// Waits until the engine is loaded. `end_tokens` are those by which the model ends an answer.
    ///
    /// # Errors
    /// When the engine cannot be loaded.
    pub(crate) fn finish(self, end_tokens: Vec<Token>) -> Result<Driver, LoadFailure> {
        // The channel has room for its one message; if the thread ended, `loaded` says why.
        let _ = self.end_tokens.send(end_tokens);
        let facts = self.loaded.recv().map_err(|_| LoadFailure::Stopped)??;
        Ok(Driver { facts, jobs: self.jobs, _thread: self.thread })
    }
}

/// Loads the engine, waits for the end tokens and reports what was made.
fn load(
    model: &Model,
    options: &EngineOptions,
    end_tokens: &Receiver<Vec<Token>>,
    loaded: &SyncSender<Result<EngineFacts, LoadFailure>>,
) -> Result<Worker, LoadFailure> {
    let engine = Engine::load(model, options)?;
    let end_tokens = end_tokens.recv().map_err(|_| LoadFailure::Stopped)?;
    let sampler = Sampler::new(engine.hyper().vocabulary_size, &end_tokens)?;
    let facts = EngineFacts { context_tokens: engine.context_tokens(), memory: engine.memory() };
    let _ = loaded.send(Ok(facts));
    Ok(Worker::new(engine, sampler))
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

/// A loaded engine on its thread. Dropping it ends the thread after the step that runs.
#[derive(Debug)]
pub(crate) struct Driver {
    facts: EngineFacts,
    jobs: SyncSender<Job>,
    // Dropped after the channel, whose end tells the thread to end.
    _thread: EngineThread,
}

impl Driver {
    /// What the engine is.
    pub(crate) fn facts(&self) -> EngineFacts {
        self.facts
    }

    /// Hands a request to the engine.
    ///
    /// # Errors
    /// When the prompt does not fit the context or too many requests wait.
    pub(crate) fn submit(&self, request: Request) -> Result<Answer, SubmitError> {
        let (tokens, context_tokens) = (request.prompt.len(), self.facts.context_tokens);
        if tokens == 0 {
            return Err(SubmitError::EmptyPrompt);
        }
        if tokens >= context_tokens {
            return Err(SubmitError::PromptTooLong { tokens, context_tokens });
        }
        let (send, events) = sync_channel(EVENTS_WAITING_MAX);
        let cancelled = Arc::new(AtomicBool::new(false));
        let job = Job { request, events: send, cancelled: Arc::clone(&cancelled) };
        match self.jobs.try_send(job) {
            Ok(()) => Ok(Answer { events, cancelled }),
            Err(TrySendError::Full(_)) => Err(SubmitError::Busy),
            Err(TrySendError::Disconnected(_)) => Err(SubmitError::Stopped),
        }
    }
}
