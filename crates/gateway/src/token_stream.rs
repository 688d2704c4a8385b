//! The channel a generation's results travel through: bounded, and with exactly one end.

use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use crate::backend::{Failure, TokenId};

/// What a generation has to say before it ends.
#[derive(Clone, Debug, PartialEq)]
pub enum Delta {
    /// The prompt's own tokens with their log-probabilities; first, once, and only if asked for.
    Prompt(Vec<Drawn>),
    /// A piece of the answer.
    Piece {
        /// What it adds.
        content: Content,
        /// The tokens that were drawn for it. Every drawn token appears in exactly one piece, also
        /// those whose text is held back or dropped.
        drawn: Vec<Drawn>,
    },
}

/// What a piece adds to an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Text of the answer, whole characters only; may be empty.
    Text(String),
    /// Text of the reasoning ahead of the answer.
    Reasoning(String),
    /// A tool call begins.
    CallStart {
        /// Counts the calls of this answer from zero.
        call: u32,
        /// Name of the tool.
        name: String,
    },
    /// More of a call's arguments, as JSON text.
    CallArguments {
        /// The call it belongs to.
        call: u32,
        /// The text to append.
        text: String,
    },
}

/// One drawn token.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawn {
    /// Its id.
    pub token: TokenId,
    /// Its bytes, which need not be whole characters.
    pub bytes: Vec<u8>,
    /// Its natural-logarithm probability, if asked for and defined.
    pub logprob: Option<f32>,
    /// The likeliest tokens at this place, best first.
    pub top: Vec<Alternative>,
}

/// A token that could have been drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Alternative {
    /// Its id.
    pub token: TokenId,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its natural-logarithm probability.
    pub logprob: f32,
}

/// How a generation ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Why it ended.
    pub reason: FinishReason,
    /// What it used.
    pub usage: TokenUsage,
    /// Where its time went.
    pub timings: Timings,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// End-of-sequence token or stop rule.
    Stop,
    /// Length limit.
    Length,
    /// The answer is one or more tool calls.
    ToolCalls,
}

impl FinishReason {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
        }
    }
}

/// What a generation used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TokenUsage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Of these, found in the prefix cache.
    pub cached_tokens: u32,
    /// Tokens drawn.
    pub completion_tokens: u32,
    /// Of these, reasoning.
    pub reasoning_tokens: u32,
}

/// Where a generation's time went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Timings {
    /// Waiting for a slot.
    pub queued: Duration,
    /// Loading weights for this request, usually zero.
    pub loaded: Duration,
    /// From the first prompt token computed to the first token drawn.
    pub prefill: Duration,
    /// From the first token drawn to the last.
    pub decode: Duration,
}

/// What a [`TokenStream`] yields.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenEvent {
    /// More to come.
    Delta(Delta),
    /// The end.
    Finished(Finished),
    /// The end, without an answer.
    Failed(Failure),
}

/// The backend's end of a stream.
///
/// It ends by [`finish`](Self::finish) or [`fail`](Self::fail), each of which takes the sink, so that
/// no stream can have two final events; a sink that is dropped instead shows as
/// [`Failure::Abandoned`]. Neither ever waits, even when the reader is slow.
#[derive(Debug)]
pub struct TokenSink {
    deltas: mpsc::Sender<Delta>,
    last: oneshot::Sender<Result<Finished, Failure>>,
}

/// Why a delta could not be handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SinkError {
    /// The reader is behind; pause this generation and try again later.
    #[error("the reader of this stream is behind")]
    Full,
    /// The reader is gone; free everything this generation holds.
    #[error("the reader of this stream is gone")]
    Cancelled,
}

impl TokenSink {
    /// Whether the reader is gone, so that the generation should stop.
    pub fn is_cancelled(&self) -> bool {
        self.deltas.is_closed()
    }

    /// Resolves when the reader is gone.
    pub async fn cancelled(&self) {
        self.deltas.closed().await;
    }

    /// How many more deltas fit now; at zero the generation should pause.
    pub fn room(&self) -> usize {
        self.deltas.capacity()
    }

    /// Hands over a delta without waiting.
    ///
    /// # Errors
    ///
    /// The reader is behind or gone; the delta is lost, so ask for [`room`](Self::room) first.
    pub fn try_send(&self, delta: Delta) -> Result<(), SinkError> {
        self.deltas.try_send(delta).map_err(|error| match error {
            TrySendError::Full(_) => SinkError::Full,
            TrySendError::Closed(_) => SinkError::Cancelled,
        })
    }

    /// Hands over a delta, waiting for room.
    ///
    /// # Errors
    ///
    /// [`SinkError::Cancelled`] when the reader is gone.
    pub async fn send(&self, delta: Delta) -> Result<(), SinkError> {
        self.deltas.send(delta).await.map_err(|_| SinkError::Cancelled)
    }

    /// Ends the stream with its result.
    pub fn finish(self, finished: Finished) {
        // A reader that has left needs no result.
        let _ = self.last.send(Ok(finished));
    }

    /// Ends the stream without an answer.
    pub fn fail(self, failure: Failure) {
        let _ = self.last.send(Err(failure));
    }
}

/// The reader's end of a stream: deltas, then exactly one final event. Dropping it cancels.
#[derive(Debug)]
pub struct TokenStream {
    deltas: mpsc::Receiver<Delta>,
    last: oneshot::Receiver<Result<Finished, Failure>>,
    ended: bool,
}

impl TokenStream {
    /// Makes a stream that holds at most `capacity` unread deltas.
    ///
    /// # Panics
    ///
    /// If `capacity` is zero.
    pub fn channel(capacity: usize) -> (TokenSink, Self) {
        let (deltas, deltas_out) = mpsc::channel(capacity);
        let (last, last_out) = oneshot::channel();
        (TokenSink { deltas, last }, Self { deltas: deltas_out, last: last_out, ended: false })
    }

    /// The next event; `None` after the final one.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<TokenEvent>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Some(delta) = std::task::ready!(self.deltas.poll_recv(context)) {
            return Poll::Ready(Some(TokenEvent::Delta(delta)));
        }
        let last = std::task::ready!(std::pin::Pin::new(&mut self.last).poll(context));
        self.ended = true;
        Poll::Ready(Some(match last {
            Ok(Ok(finished)) => TokenEvent::Finished(finished),
            Ok(Err(failure)) => TokenEvent::Failed(failure),
            Err(_) => TokenEvent::Failed(Failure::Abandoned),
        }))
    }

    /// Waits for the next event; `None` after the final one.
    pub async fn next(&mut self) -> Option<TokenEvent> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }
}
