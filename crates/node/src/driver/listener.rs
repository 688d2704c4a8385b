//! Who is told what happens to a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use motley_engine::{SampleError, Sampled, StepError, TokenLogProbabilities};
use motley_ggml::Token;

use super::constrainer::ConstraintError;

/// Events of one answer that wait to be read at most; a sequence whose reader is slower rests.
const EVENTS_WAITING_MAX: usize = 256;

/// Is told what happens to a request, in order: `scored` or `embedded` if asked for, once
/// `prefilled`, any number of times `token`, once `ended`; or `ended` at any time. Called on the engine thread, so nothing here may block.
pub(crate) trait Listener: Send {
    /// Whether nobody listens any more; the request is dropped then.
    fn is_gone(&self) -> bool;

    /// Whether another token can be taken; a sequence whose reader is behind rests.
    fn has_room(&self) -> bool;

    /// The prompt is computed; the first token follows at once.
    fn prefilled(&mut self, prefill: &Prefill);

    /// How probable a token of the prompt was after those before it, in their order, before
    /// `prefilled`; only told to those who asked for it.
    fn scored(&mut self, probabilities: &TokenLogProbabilities);

    /// The mean of the prompt's final hidden states, before the end; only told to those who asked
    /// for it.
    fn embedded(&mut self, mean: Vec<f32>);

    /// A token was chosen, which may be one that ends the answer.
    fn token(&mut self, sampled: &Sampled) -> Verdict;

    /// Nothing more comes.
    fn ended(self: Box<Self>, outcome: Result<Ended, AnswerError>);
}

/// Whether an answer goes on after a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    GoOn,
    /// The text has met a stop string.
    Stop,
}

/// How the prompt was computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefill {
    /// Tokens of the prompt that were in the slot already.
    pub(crate) cached_tokens: usize,
    /// From the request to its slot.
    pub(crate) queued: Duration,
    /// From the slot until the first token was chosen.
    pub(crate) time: Duration,
}

/// How an answer ended well.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) reason: FinishReason,
    /// Tokens chosen, an end token included.
    pub(crate) tokens: usize,
    /// From the first token to the last.
    pub(crate) time: Duration,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FinishReason {
    /// The model chose an end token.
    End,
    /// The listener met a stop string.
    Stop,
    /// As many tokens as were asked for.
    Length,
    /// The context is full.
    ContextFull,
}

/// Why an answer cannot be completed.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum AnswerError {
    /// The engine failed; all sequences of its batch share the error.
    #[error("cannot compute the next token")]
    Step(#[source] Arc<StepError>),
    /// No token could be chosen.
    #[error("cannot choose the next token")]
    Sample(#[from] SampleError),
    /// The form that was asked for cannot be kept.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// A member of the ring could not do its part, in its own words.
    #[error("a member of the ring failed: {0}")]
    Ring(Arc<str>),
    /// A member of the ring is gone, and with it a part of every sequence's cache.
    #[error("{node} was lost")]
    NodeLost {
        /// Its name.
        node: Arc<str>,
    },
    /// No devices are left that could answer.
    #[error("no plan: {reason}")]
    NoPlan {
        /// Why, in words.
        reason: Arc<str>,
    },
    /// The scheduler did not take what was admitted, which is a fault of ours.
    #[error("cannot schedule: {0}")]
    Refused(Arc<str>),
    /// The engine thread ended.
    #[error("the engine has stopped")]
    Stopped,
}

/// What an [`Answer`] yields; the last event is `Ended`.
#[derive(Debug)]
pub(crate) enum Event {
    Prefilled(Prefill),
    /// A token of the answer, no end token.
    Token(Token),
    Ended(Result<Ended, AnswerError>),
}

/// The reader's end of a request whose events travel through a channel. Dropping it drops the
/// request.
#[derive(Debug)]
pub(crate) struct Answer {
    events: Receiver<Event>,
    gone: Arc<AtomicBool>,
    waiting: Arc<AtomicUsize>,
}

impl Answer {
    /// Both ends of a new answer.
    pub(crate) fn channel() -> (AnswerListener, Self) {
        let (send, events) = channel();
        let gone = Arc::new(AtomicBool::new(false));
        let waiting = Arc::new(AtomicUsize::new(0));
        let listener =
            AnswerListener { events: send, gone: Arc::clone(&gone), waiting: Arc::clone(&waiting) };
        (listener, Self { events, gone, waiting })
    }

    /// The next event, or nothing if none came in `limit`.
    pub(crate) fn next_within(&self, limit: Duration) -> Option<Event> {
        match self.events.recv_timeout(limit) {
            Ok(event) => {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                Some(event)
            }
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Event::Ended(Err(AnswerError::Stopped))),
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Relaxed);
    }
}

/// Sends events to an [`Answer`].
#[derive(Debug)]
pub(crate) struct AnswerListener {
    events: Sender<Event>,
    gone: Arc<AtomicBool>,
    waiting: Arc<AtomicUsize>,
}

impl AnswerListener {
    fn send(&self, event: Event) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // A reader that has left needs no events.
        let _ = self.events.send(event);
    }
}

impl Listener for AnswerListener {
    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    fn has_room(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) < EVENTS_WAITING_MAX
    }

    fn prefilled(&mut self, prefill: &Prefill) {
        self.send(Event::Prefilled(*prefill));
    }

    /// Nobody asks for scores by a channel.
    fn scored(&mut self, _probabilities: &TokenLogProbabilities) {}

    /// Nor for embeddings.
    fn embedded(&mut self, _mean: Vec<f32>) {}

    fn token(&mut self, sampled: &Sampled) -> Verdict {
        if !sampled.ends_answer {
            self.send(Event::Token(sampled.token));
        }
        Verdict::GoOn
    }

    fn ended(self: Box<Self>, outcome: Result<Ended, AnswerError>) {
        self.send(Event::Ended(outcome));
    }
}
