//! What a request is beside its tokens: how they are chosen, and who is told.

use std::sync::Arc;
use std::time::{Duration, Instant};

use motley_engine::{SampleContext, Sampled, Sampler, SamplingParameters};
use motley_ggml::Token;
use motley_ring::Ask;

use super::admission::Pass;
use super::constrainer::Constrainer;
use super::listener::{AnswerError, Ended, FinishReason, Listener, Prefill, Verdict};
use super::{Job, Purpose};

/// A request that waits or runs.
pub(super) struct Sequence {
    pub(super) id: Arc<str>,
    pub(super) prompt_tokens: usize,
    pub(super) answer_tokens_max: usize,
    pub(super) purpose: Purpose,
    /// Sum of the states that an embedding is the mean of.
    states: Vec<f64>,
    answer_tokens: usize,
    parameters: SamplingParameters,
    constrainer: Option<Box<dyn Constrainer>>,
    listener: Box<dyn Listener>,
    /// Its place in the queue, given back at its end.
    _pass: Pass,
    resting: bool,
    /// What was asked, as long as nothing of it was begun.
    ask: Option<Ask>,
    submitted: Instant,
    admitted: Option<Instant>,
    first_token: Option<Instant>,
}

/// What a chosen token means for the sequence.
#[derive(Debug)]
pub(super) enum Chosen {
    /// This token belongs to the sequence.
    Token(Token),
    /// The sequence has ended, well or not; its listener is to be told.
    End(Result<FinishReason, AnswerError>),
}

impl Sequence {
    pub(super) fn new(job: Job) -> Self {
        let request = job.request;
        Self {
            id: request.id.into(),
            prompt_tokens: request.prompt.len(),
            answer_tokens_max: request.answer_tokens_max,
            purpose: request.purpose,
            states: Vec::new(),
            answer_tokens: 0,
            parameters: request.parameters,
            constrainer: request.constrainer,
            listener: request.listener,
            _pass: job.pass,
            resting: false,
            ask: None,
            submitted: job.submitted,
            admitted: None,
            first_token: None,
        }
    }

    /// Whether nobody reads the answer any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.listener.is_gone()
    }

    /// Whether another token can be told.
    pub(super) fn has_room(&self) -> bool {
        self.listener.has_room()
    }

    /// Tokens chosen so far.
    pub(super) fn answer_tokens(&self) -> usize {
        self.answer_tokens
    }

    /// Keeps what was asked until it is begun.
    pub(super) fn keep(&mut self, ask: &Ask) {
        self.ask = Some(ask.clone());
    }

    /// What was asked, if nothing of it was begun.
    pub(super) fn take_ask(&mut self) -> Option<Ask> {
        self.ask.take()
    }

    /// Whether something of it was begun.
    pub(super) fn is_admitted(&self) -> bool {
        self.admitted.is_some()
    }

    /// Notes that the sequence has a slot; true the first time.
    pub(super) fn admit(&mut self) -> bool {
        let first = self.admitted.is_none();
        self.ask = None;
        self.admitted.get_or_insert_with(Instant::now);
        first
    }

    /// Notes whether the sequence rests; true when that is new.
    pub(super) fn set_resting(&mut self, resting: bool) -> bool {
        std::mem::replace(&mut self.resting, resting) != resting
    }

    /// Chooses the token that follows `tokens`, of which `cached_tokens` were not computed for this
    /// sequence, and tells it.
    pub(super) fn choose(
        &mut self,
        logits: &[f32],
        tokens: &[Token],
        cached_tokens: usize,
        sampler: &mut Sampler,
    ) -> Chosen {
        let sampled = match self.sample(logits, tokens, sampler) {
            Ok(sampled) => sampled,
            Err(error) => return Chosen::End(Err(error)),
        };
        self.tell_prefilled(cached_tokens);
        self.answer_tokens += 1;
        let verdict = self.listener.token(&sampled);
        match (sampled.ends_answer, verdict) {
            (true, _) => Chosen::End(Ok(FinishReason::End)),
            (false, Verdict::Stop) => Chosen::End(Ok(FinishReason::Stop)),
            (false, Verdict::GoOn) => Chosen::Token(sampled.token),
        }
    }

    /// Tells how the prompt was computed, once.
    fn tell_prefilled(&mut self, cached_tokens: usize) {
        if self.first_token.is_some() {
            return;
        }
        let now = Instant::now();
        let admitted = *self.admitted.get_or_insert(now);
        self.first_token = Some(now);
        self.listener.prefilled(&Prefill {
            cached_tokens,
            queued: admitted - self.submitted,
            time: now - admitted,
        });
    }

    /// Tells how probable `token` of the prompt was where `logits` decide.
    pub(super) fn score(
        &mut self,
        logits: &[f32],
        token: Token,
        sampler: &mut Sampler,
    ) -> Result<(), AnswerError> {
        let Purpose::AnswerAndScores { top } = self.purpose else { return Ok(()) };
        self.listener.scored(&sampler.score(logits, token, top)?);
        Ok(())
    }

    /// Adds the final hidden state of a token of the prompt.
    pub(super) fn add_state(&mut self, state: &[f32]) {
        self.states.resize(state.len(), 0.0);
        self.states.iter_mut().zip(state).for_each(|(sum, value)| *sum += f64::from(*value));
    }

    /// Tells the mean of all states, and that nothing more comes.
    pub(super) fn end_embedding(mut self) {
        let count = self.prompt_tokens as f64;
        let mean = self.states.iter().map(|sum| (sum / count) as f32).collect();
        self.listener.embedded(mean);
        self.tell_prefilled(0);
        self.end(Ok(FinishReason::Length));
    }

    /// Ends a request that wanted no token of an answer.
    pub(super) fn end_scores(mut self) {
        self.tell_prefilled(0);
        self.end(Ok(FinishReason::Length));
    }

    /// Draws a token among those that the form of the answer allows.
    fn sample(
        &mut self,
        logits: &[f32],
        tokens: &[Token],
        sampler: &mut Sampler,
    ) -> Result<Sampled, AnswerError> {
        let (prompt, generated) = tokens.split_at(self.prompt_tokens);
        let allowed = match &mut self.constrainer {
            Some(constrainer) => constrainer.allowed()?,
            None => None,
        };
        let context = SampleContext { parameters: &self.parameters, prompt, generated, allowed };
        let sampled = sampler.sample(logits, &context)?;
        if !sampled.ends_answer
            && let Some(constrainer) = &mut self.constrainer
        {
            constrainer.accept(sampled.token)?;
        }
        Ok(sampled)
    }

    /// Tells the listener that nothing more comes.
    pub(super) fn end(self, outcome: Result<FinishReason, AnswerError>) {
        let tokens = self.answer_tokens;
        let time = self.first_token.map_or(Duration::ZERO, |first| first.elapsed());
        self.listener.ended(outcome.map(|reason| Ended { reason, tokens, time }));
    }
}
