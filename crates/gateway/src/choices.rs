//! The generations behind one request: started together, read as one sequence of events, and ended
//! together.

use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::backend::{Constraint, Failure, GenerationRequest, KeyId};
use crate::error::{About, ApiError};
use crate::gateway::{Gateway, RequestContext};
use crate::metrics::{ModelMetrics, Outcome};
use crate::request_log::{EndedGeneration, GenerationEnd, SharedLog};
use crate::token_stream::{Content, Delta, Drawn, Finished, TokenEvent, TokenStream, TokenUsage};

/// Running generations, by choice index. Dropping them cancels what has not ended.
pub(crate) struct Choices {
    streams: Vec<TokenStream>,
    /// Choices that have ended; a request's index is its choice.
    ended: Vec<bool>,
    /// Where the next poll begins, so that one busy choice cannot starve the others.
    turn: usize,
    watch: Watch,
    /// When each choice last gave a token.
    last_token: Vec<Option<Instant>>,
    metrics: ModelMetrics,
    owner: Owner,
}

/// Whose generations these are, for the log.
struct Owner {
    id: String,
    key: Option<KeyId>,
    log: SharedLog,
}

/// When waiting for the next event becomes a failure.
struct Watch {
    started: Instant,
    last: Option<Instant>,
    first_token: Duration,
    idle: Duration,
    total: Duration,
}

impl Watch {
    /// The next deadline and the limit it comes from.
    fn deadline(&self) -> (Instant, Duration) {
        let total = (self.started + self.total, self.total);
        let step = match self.last {
            None => (self.started + self.first_token, self.first_token),
            Some(last) => (last + self.idle, self.idle),
        };
        if step.0 < total.0 { step } else { total }
    }
}

impl Choices {
    /// Submits every request, or none: a refusal cancels those admitted before it. `about` says
    /// which members of the client's request a refusal is about.
    pub(crate) async fn start(
        gateway: &Gateway,
        context: &RequestContext,
        requests: Vec<GenerationRequest>,
        about: About,
    ) -> Result<Self, ApiError> {
        let model = requests.first().map_or("", |request| &request.model);
        let metrics = gateway.metrics.of_model(model);
        let mut streams = Vec::with_capacity(requests.len());
        for request in requests {
            // Without a constraint, the only schemas are those of tools.
            let schema = match request.constraint {
                Constraint::Free => "tools",
                Constraint::JsonObject | Constraint::JsonSchema { .. } => about.schema,
            };
            match gateway.backend.submit(request).await {
                Ok(stream) => streams.push(stream),
                Err(refusal) => {
                    metrics.ended(Outcome::Refused);
                    return Err(ApiError::from_refusal(refusal, About { schema, ..about }));
                }
            }
        }
        let limits = &gateway.config.limits;
        let watch = Watch {
            started: context.received,
            last: None,
            first_token: limits.first_token,
            idle: limits.idle,
            total: limits.total,
        };
        let ended = vec![false; streams.len()];
        let last_token = vec![None; streams.len()];
        let (id, log) = (context.id.clone(), gateway.config.log.clone());
        let owner = Owner { id, key: context.key, log };
        Ok(Self { streams, ended, turn: 0, watch, last_token, metrics, owner })
    }

    /// How many there are, ended or not.
    pub(crate) fn len(&self) -> usize {
        self.streams.len()
    }

    /// The next event of any choice; `None` once all have ended. Waiting longer than a limit allows
    /// reads as a failure, after which the choices should be dropped. May be called again after
    /// being dropped while waiting.
    pub(crate) async fn next(&mut self) -> Option<(usize, TokenEvent)> {
        let (deadline, limit) = self.watch.deadline();
        let polled = timeout_at(deadline, std::future::poll_fn(|context| self.poll(context))).await;
        let (choice, event) = match polled {
            Ok(event) => event?,
            Err(_) => (self.turn, TokenEvent::Failed(Failure::TimedOut { limit })),
        };
        self.account(choice, &event);
        Some((choice, event))
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, TokenEvent)>> {
        let count = self.streams.len();
        let mut open = false;
        for offset in 0..count {
            let choice = (self.turn + offset) % count;
            match self.streams[choice].poll_next(context) {
                Poll::Ready(Some(event)) => {
                    self.turn = (choice + 1) % count;
                    return Poll::Ready(Some((choice, event)));
                }
                Poll::Ready(None) => {}
                Poll::Pending => open = true,
            }
        }
        if open { Poll::Pending } else { Poll::Ready(None) }
    }

    fn account(&mut self, choice: usize, event: &TokenEvent) {
        let now = Instant::now();
        match event {
            TokenEvent::Delta(Delta::Prompt(_)) => {}
            TokenEvent::Delta(Delta::Piece { .. }) => match self.last_token[choice].replace(now) {
                None => self.metrics.first_token(now - self.watch.started),
                Some(last) => self.metrics.next_token(now - last),
            },
            TokenEvent::Finished(finished) => {
                self.ended[choice] = true;
                self.metrics.finished(finished, now - self.watch.started);
                self.log(GenerationEnd::Finished(finished));
            }
            TokenEvent::Failed(failure) => {
                self.ended[choice] = true;
                self.metrics.ended(Outcome::Failed);
                self.log(GenerationEnd::Failed(failure));
            }
        }
        self.watch.last = Some(now);
    }

    fn log(&self, end: GenerationEnd<'_>) {
        self.owner.log.generation_ended(&EndedGeneration {
            id: &self.owner.id,
            model: self.metrics.model(),
            key: self.owner.key,
            end,
            took: self.watch.started.elapsed(),
        });
    }
}

impl Drop for Choices {
    fn drop(&mut self) {
        for _ in self.ended.iter().filter(|ended| !**ended) {
            self.metrics.ended(Outcome::Cancelled);
            self.log(GenerationEnd::Cancelled);
        }
    }
}

/// A whole answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) reasoning: String,
    /// Name and arguments of each call.
    pub(crate) calls: Vec<(String, String)>,
    pub(crate) prompt: Vec<Drawn>,
    pub(crate) drawn: Vec<Drawn>,
    pub(crate) finished: Finished,
}

/// Reads all choices to their ends.
pub(crate) async fn collect(mut choices: Choices) -> Result<Vec<Answer>, ApiError> {
    let mut parts: Vec<Parts> = (0..choices.len()).map(|_| Parts::default()).collect();
    while let Some((choice, event)) = choices.next().await {
        match event {
            TokenEvent::Delta(delta) => parts[choice].add(delta),
            TokenEvent::Finished(finished) => parts[choice].finished = Some(finished),
            TokenEvent::Failed(failure) => return Err(failure.into()),
        }
    }
    Ok(parts.into_iter().map(Parts::into_answer).collect())
}

#[derive(Default)]
struct Parts {
    text: String,
    reasoning: String,
    calls: Vec<(String, String)>,
    prompt: Vec<Drawn>,
    drawn: Vec<Drawn>,
    finished: Option<Finished>,
}

impl Parts {
    fn add(&mut self, delta: Delta) {
        let (content, drawn) = match delta {
            Delta::Prompt(prompt) => return self.prompt = prompt,
            Delta::Piece { content, drawn } => (content, drawn),
        };
        match content {
            Content::Text(text) => self.text.push_str(&text),
            Content::Reasoning(text) => self.reasoning.push_str(&text),
            Content::CallStart { call, name } => {
                assert_eq!(call as usize, self.calls.len(), "calls are numbered in order");
                self.calls.push((name, String::new()));
            }
            Content::CallArguments { call, text } => self.calls[call as usize].1.push_str(&text),
        }
        self.drawn.extend(drawn);
    }

    fn into_answer(self) -> Answer {
        let finished = self.finished.expect("a stream ends with exactly one final event");
        let Self { text, reasoning, calls, prompt, drawn, .. } = self;
        Answer { text, reasoning, calls, prompt, drawn, finished }
    }
}

/// Adds up what the choices of one request used: each prompt counts once, each answer counts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UsageSum {
    pub(crate) total: TokenUsage,
}

impl UsageSum {
    /// Adds a choice; `first` says whether it is the first of its prompt.
    pub(crate) fn add(&mut self, usage: TokenUsage, first: bool) {
        if first {
            self.total.prompt_tokens += usage.prompt_tokens;
            self.total.cached_tokens += usage.cached_tokens;
        }
        self.total.completion_tokens += usage.completion_tokens;
        self.total.reasoning_tokens += usage.reasoning_tokens;
    }
}
