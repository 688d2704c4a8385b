//! Requests that wait for a slot, and who is next.

use std::cmp::Reverse;

use super::{Ask, CallerId, RequestId, SchedulerOptions};

/// Why a request is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitRefused {
    /// Nothing to continue.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// The prompt does not fit a slot.
    #[error("the prompt has {tokens} tokens, the context only {context_tokens}")]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens of a slot.
        context_tokens: u32,
    },
    /// Too many requests wait.
    #[error("{waiting} requests are waiting, the queue is full")]
    QueueFull {
        /// Requests that wait.
        waiting: u32,
    },
    /// Too many requests of this caller wait.
    #[error("{waiting} requests of this caller are waiting, which is its share of the queue")]
    CallerQueueFull {
        /// Requests of the caller that wait.
        waiting: u32,
    },
    /// The number is in use.
    #[error("a request of this number has not ended")]
    RequestExists,
}

/// Waiting requests, oldest first.
#[derive(Debug)]
pub(super) struct Queue {
    asks: Vec<Ask>,
    waiting_max: u32,
    waiting_per_caller_max: u32,
}

impl Queue {
    pub(super) const fn new(waiting_max: u32, waiting_per_caller_max: u32) -> Self {
        Self { asks: Vec::new(), waiting_max, waiting_per_caller_max }
    }

    pub(super) const fn len(&self) -> u32 {
        self.asks.len() as u32
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.asks.is_empty()
    }

    pub(super) fn contains(&self, request: RequestId) -> bool {
        self.asks.iter().any(|ask| ask.request == request)
    }

    /// Adds a request; the limits count only when it would have to wait.
    pub(super) fn push(&mut self, ask: Ask, slot_is_free: bool) -> Result<(), SubmitRefused> {
        if !slot_is_free {
            let waiting = self.len();
            if waiting >= self.waiting_max {
                return Err(SubmitRefused::QueueFull { waiting });
            }
            let own = self.asks.iter().filter(|other| other.caller == ask.caller);
            let waiting = own.count() as u32;
            if waiting >= self.waiting_per_caller_max {
                return Err(SubmitRefused::CallerQueueFull { waiting });
            }
        }
        self.asks.push(ask);
        Ok(())
    }

    pub(super) fn remove(&mut self, request: RequestId) -> bool {
        let at = self.asks.iter().position(|ask| ask.request == request);
        at.map(|at| self.asks.remove(at)).is_some()
    }

    /// The next request: of the caller with the fewest running, then the most urgent, then the
    /// oldest.
    pub(super) fn pop(&mut self, running: impl Fn(CallerId) -> usize) -> Option<Ask> {
        let ranks = self.asks.iter().enumerate();
        let ranks = ranks.map(|(age, ask)| (running(ask.caller), Reverse(ask.priority), age));
        let (.., at) = ranks.min()?;
        Some(self.asks.remove(at))
    }

    /// Takes on other limits, and lets go of what does not fit the new context.
    pub(super) fn resize(&mut self, options: &SchedulerOptions, ended: &mut Vec<RequestId>) {
        self.waiting_max = options.waiting_max;
        self.waiting_per_caller_max = options.waiting_per_caller_max;
        self.asks.retain(|ask| {
            let fits = ask.prompt.len() < options.context_tokens as usize;
            if !fits {
                ended.push(ask.request);
            }
            fits
        });
    }
}
