//! What outlives a head: the inbox, and requests that wait.

use std::sync::mpsc::Receiver;

use motley_ring::{Ask, CallerId, RequestId};

use super::listener::AnswerError;
use super::sequence::Sequence;
use super::{Job, Message, Purpose};

/// The place of a head. Only one thread has it at a time.
pub(super) struct Seat {
    pub(super) inbox: Receiver<Message>,
    /// Requests that the last head did not begin.
    pub(super) waiting: Vec<(Ask, Sequence)>,
    next_request: u64,
}

impl Seat {
    pub(super) fn new(inbox: Receiver<Message>) -> Self {
        Self { inbox, waiting: Vec::new(), next_request: 0 }
    }

    /// What the scheduler is asked for a job, and what is kept beside it.
    pub(super) fn register(&mut self, job: Job) -> (Ask, Sequence) {
        let request = RequestId(self.next_request);
        self.next_request += 1;
        let ask = Ask {
            request,
            caller: CallerId(job.request.caller.caller.unwrap_or(0)),
            cache_salt: Some(job.request.caller.prefix),
            prompt: job.request.prompt.iter().map(|token| token.cast_unsigned()).collect(),
            tokens_max: u32::try_from(job.request.answer_tokens_max.max(1)).unwrap_or(u32::MAX),
            priority: job.request.priority,
            prompt_rows: job.request.purpose != Purpose::Answer,
        };
        (ask, Sequence::new(job))
    }

    /// Ends everything that waits.
    pub(super) fn refuse(&mut self, error: &AnswerError) {
        while let Ok(message) = self.inbox.try_recv() {
            if let Message::Job(job) = message {
                let waiting = self.register(*job);
                self.waiting.push(waiting);
            }
        }
        for (_, sequence) in self.waiting.drain(..) {
            sequence.end(Err(error.clone()));
        }
    }
}
