//! What a slot is doing: a sequence from its prompt to its last token.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::Instant;

use motley_engine::{SampleContext, SampleError, Sampled, Sampler, SamplingParameters};
use motley_ggml::Token;

use super::{AnswerError, Event, FinishReason, Job};

/// A sequence that has a slot.
#[derive(Debug)]
pub(super) struct Sequence {
    /// Prompt and answer; all but perhaps the last token of the answer are to be computed.
    tokens: Vec<Token>,
    prompt_tokens: usize,
    /// Tokens whose keys and values the slot holds.
    computed: usize,
    /// Tokens that the slot held when the sequence came.
    cached: usize,
    parameters: SamplingParameters,
    /// Length of the sequence at which it ends, and why it does.
    tokens_max: usize,
    limit_reason: FinishReason,
    outlet: Outlet,
    admitted: Instant,
    first_token: Option<Instant>,
}

/// The way to the reader, with what did not fit into the channel yet.
#[derive(Debug)]
pub(super) struct Outlet {
    events: SyncSender<Event>,
    cancelled: Arc<AtomicBool>,
    waiting: Vec<Event>,
    gone: bool,
}

impl Outlet {
    fn send(&mut self, event: Event) {
        self.waiting.push(event);
        self.flush();
    }

    /// Sends what waits; whether nothing waits any more.
    pub(super) fn flush(&mut self) -> bool {
        while !self.gone && !self.waiting.is_empty() {
            match self.events.try_send(self.waiting.remove(0)) {
                Ok(()) => {}
                Err(TrySendError::Full(event)) => {
                    self.waiting.insert(0, event);
                    return false;
                }
                Err(TrySendError::Disconnected(_)) => self.gone = true,
            }
        }
        true
    }
}

impl Sequence {
    /// A sequence in a slot that holds `cached` tokens of its prompt.
    pub(super) fn new(job: Job, context_tokens: usize, cached: usize) -> Self {
        let prompt = job.request.prompt;
        let room = context_tokens - prompt.len();
        let asked = job.request.answer_tokens_max.max(1);
        let limit_reason =
            if asked <= room { FinishReason::Length } else { FinishReason::ContextFull };
        let outlet = Outlet {
            events: job.events,
            cancelled: job.cancelled,
            waiting: Vec::new(),
            gone: false,
        };
        Self {
            prompt_tokens: prompt.len(),
            tokens_max: prompt.len() + asked.min(room),
            limit_reason,
            // The last token of the prompt is computed again, because its logits are wanted.
            computed: cached.min(prompt.len() - 1),
            cached: cached.min(prompt.len() - 1),
            tokens: prompt,
            parameters: job.request.parameters,
            outlet,
            admitted: Instant::now(),
            first_token: None,
        }
    }

    /// Tokens that the slot holds.
    pub(super) fn computed_tokens(&self) -> &[Token] {
        &self.tokens[..self.computed]
    }

    /// Position of the first token to compute.
    pub(super) fn position(&self) -> usize {
        self.computed
    }

    /// Tokens to compute before the next one can be chosen, at least one.
    pub(super) fn pending(&self) -> &[Token] {
        &self.tokens[self.computed..]
    }

    /// Whether only one token is missing, as between two tokens of an answer.
    pub(super) fn is_decoding(&self) -> bool {
        self.first_token.is_some()
    }

    /// Whether nobody reads the answer any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.outlet.gone || self.outlet.cancelled.load(Ordering::Relaxed)
    }

    /// Sends what waits; whether all of it went.
    pub(super) fn flush(&mut self) -> bool {
        self.outlet.flush()
    }

    /// Notes that `rows` more tokens are computed.
    pub(super) fn advance(&mut self, rows: usize) {
        self.computed += rows;
        assert!(self.computed <= self.tokens.len(), "more rows than tokens");
    }

    /// Begins again, because the slot cannot go back as far as was hoped.
    pub(super) fn restart(&mut self) {
        self.computed = 0;
        self.cached = 0;
    }

    /// Chooses the next token; true when the sequence has ended.
    pub(super) fn choose(&mut self, logits: &[f32], sampler: &mut Sampler) -> bool {
        let chosen = self.sample(logits, sampler);
        if self.first_token.is_none() {
            let now = Instant::now();
            self.first_token = Some(now);
            let time = now - self.admitted;
            self.outlet.send(Event::Prefilled { cached_tokens: self.cached, time });
        }
        let sampled = match chosen {
            Ok(sampled) => sampled,
            Err(error) => {
                self.fail(error.into());
                return true;
            }
        };
        self.tokens.push(sampled.token);
        let full = self.tokens.len() >= self.tokens_max;
        if sampled.ends_answer {
            self.finish(FinishReason::End);
        } else {
            self.outlet.send(Event::Token(sampled.token));
            if full {
                self.finish(self.limit_reason);
            }
        }
        sampled.ends_answer || full
    }

    /// Ends the sequence without an answer.
    pub(super) fn fail(&mut self, error: AnswerError) {
        self.outlet.send(Event::Failed(error));
    }

    /// What is left when the slot is freed: events that the reader has not taken.
    pub(super) fn into_outlet(self) -> Outlet {
        self.outlet
    }

    fn finish(&mut self, reason: FinishReason) {
        let tokens = self.tokens.len() - self.prompt_tokens;
        let time = self.first_token.map(|first| first.elapsed()).unwrap_or_default();
        self.outlet.send(Event::Finished { reason, tokens, time });
    }

    fn sample(&self, logits: &[f32], sampler: &mut Sampler) -> Result<Sampled, SampleError> {
        let (prompt, generated) = self.tokens.split_at(self.prompt_tokens);
        sampler.sample(
            logits,
            &SampleContext { parameters: &self.parameters, prompt, generated, allowed: None },
        )
    }
}
