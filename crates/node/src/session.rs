//! One answer after another from a loaded model: prompt in, text out as it comes.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use motley_engine::{SamplingOptions, SamplingParameters, StopMatcher, StopVerdict, TextStream};
use motley_ggml::{Token, Vocabulary};

use crate::driver::{
    Answer, CallerKey, Driver, Event, FinishReason, Purpose, Request, SubmitError,
};
use crate::failure::{Failure, Kind};
use crate::interrupt::Interrupt;

/// How often a waiting reader looks whether Ctrl-C was pressed.
const INTERRUPT_LATENCY: Duration = Duration::from_millis(20);

/// How answers are made.
#[derive(Clone, Debug)]
pub(crate) struct AnswerOptions {
    pub(crate) sampling: SamplingOptions,
    /// Tokens at most; nothing for as many as the context holds.
    pub(crate) tokens_max: Option<usize>,
    /// Texts that end an answer.
    pub(crate) stop: Vec<String>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Finished(FinishReason),
    StopString,
    Interrupted,
}

/// An answer that was given.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    pub(crate) text: String,
    pub(crate) ending: Ending,
    pub(crate) speed: Speed,
}

/// How fast an answer was given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speed {
    pub(crate) prompt_tokens: usize,
    /// Tokens of the prompt that were computed for an earlier one.
    pub(crate) cached_tokens: usize,
    /// The engine's time for the rest of the prompt.
    pub(crate) prompt_time: Duration,
    /// When the prompt was handed in.
    pub(crate) begun: Instant,
    /// When the first token was there.
    pub(crate) first_token: Option<Instant>,
    /// Tokens chosen.
    pub(crate) tokens: usize,
    /// From the first token to the last.
    pub(crate) answer_time: Duration,
    /// From handing the prompt in to the end.
    pub(crate) total_time: Duration,
}

impl Speed {
    fn new(prompt_tokens: usize, begun: Instant) -> Self {
        Self {
            prompt_tokens,
            cached_tokens: 0,
            prompt_time: Duration::ZERO,
            begun,
            first_token: None,
            tokens: 0,
            answer_time: Duration::ZERO,
            total_time: Duration::ZERO,
        }
    }
}

/// What is needed to answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Session<'a> {
    pub(crate) driver: &'a Driver,
    pub(crate) vocabulary: &'a Vocabulary,
    /// Logits of the model, which may be more than its vocabulary has tokens.
    pub(crate) logits: usize,
    pub(crate) interrupt: &'a Interrupt,
}

impl Session<'_> {
    /// Answers `prompt`, handing over each piece of text as soon as it is certain.
    ///
    /// # Errors
    /// When the prompt or the options are refused, or the engine or the reader of the text fails.
    pub(crate) fn answer(
        &self,
        prompt: Vec<Token>,
        options: &AnswerOptions,
        show: &mut dyn FnMut(&str) -> std::io::Result<()>,
    ) -> Result<Given, Failure> {
        let parameters = SamplingParameters::new(options.sampling.clone(), self.logits)
            .map_err(|error| Failure::new(Kind::Usage, error))?;
        let stop =
            StopMatcher::new(&options.stop).map_err(|error| Failure::new(Kind::Usage, error))?;
        let prompt_tokens = prompt.len();
        let answer_tokens_max = options.tokens_max.unwrap_or(usize::MAX);
        let begun = Instant::now();
        self.interrupt.catch();
        let (listener, answer) = Answer::channel();
        let submitted = self
            .driver
            .submit(Request {
                id: String::new(),
                caller: CallerKey::default(),
                priority: 0,
                prompt,
                purpose: Purpose::Answer,
                parameters,
                constrainer: None,
                answer_tokens_max,
                listener: Box::new(listener),
            })
            .map_err(submit_failure);
        let given = submitted.and_then(|()| {
            let speed = Speed::new(prompt_tokens, begun);
            Listener::new(self, &answer, stop, speed).listen(show)
        });
        self.interrupt.release();
        given
    }
}

/// Makes text of an answer's tokens.
struct Listener<'l> {
    session: &'l Session<'l>,
    answer: &'l Answer,
    stop: StopMatcher,
    characters: TextStream,
    bytes: Vec<u8>,
    /// Text that is whole, before stop strings are looked for.
    piece: String,
    /// Text that may be shown.
    certain: String,
    text: String,
    speed: Speed,
}

impl<'l> Listener<'l> {
    fn new(session: &'l Session<'l>, answer: &'l Answer, stop: StopMatcher, speed: Speed) -> Self {
        Self {
            session,
            answer,
            stop,
            characters: TextStream::new(),
            bytes: Vec::new(),
            piece: String::new(),
            certain: String::new(),
            text: String::new(),
            speed,
        }
    }

    fn listen(
        mut self,
        show: &mut dyn FnMut(&str) -> std::io::Result<()>,
    ) -> Result<Given, Failure> {
        let ending = loop {
            if self.session.interrupt.is_raised() {
                break Ending::Interrupted;
            }
            let Some(event) = self.answer.next_within(INTERRUPT_LATENCY) else { continue };
            let ending = self.take(event)?;
            self.hand_over(show)?;
            if let Some(ending) = ending {
                break ending;
            }
        };
        if ending != Ending::StopString {
            self.piece.clear();
            self.characters.finish(&mut self.piece);
            self.stop.push(&self.piece, &mut self.certain);
            self.stop.finish(&mut self.certain);
            self.hand_over(show)?;
        }
        self.speed.total_time = self.speed.begun.elapsed();
        Ok(Given { text: self.text, ending, speed: self.speed })
    }

    /// Takes one event; gives the ending when it is the last.
    fn take(&mut self, event: Event) -> Result<Option<Ending>, Failure> {
        match event {
            Event::Prefilled(prefill) => {
                self.speed.cached_tokens = prefill.cached_tokens;
                self.speed.prompt_time = prefill.time;
                self.speed.first_token = Some(Instant::now());
                Ok(None)
            }
            Event::Token(token) => {
                self.speed.tokens += 1;
                self.speed.answer_time =
                    self.speed.first_token.map(|first| first.elapsed()).unwrap_or_default();
                self.bytes.clear();
                self.piece.clear();
                self.session.vocabulary.append_bytes(token, false, &mut self.bytes)?;
                self.characters.push(&self.bytes, &mut self.piece);
                Ok(match self.stop.push(&self.piece, &mut self.certain) {
                    StopVerdict::Stopped { .. } => Some(Ending::StopString),
                    _ => None,
                })
            }
            Event::Ended(outcome) => {
                let ended = outcome?;
                self.speed.tokens = ended.tokens;
                self.speed.answer_time = ended.time;
                Ok(Some(Ending::Finished(ended.reason)))
            }
        }
    }

    fn hand_over(
        &mut self,
        show: &mut dyn FnMut(&str) -> std::io::Result<()>,
    ) -> Result<(), Failure> {
        if !self.certain.is_empty() {
            show(&self.certain).context("cannot print")?;
            self.text.push_str(&self.certain);
            self.certain.clear();
        }
        Ok(())
    }
}

fn submit_failure(error: SubmitError) -> Failure {
    match error {
        SubmitError::PromptTooLong { tokens, .. } => {
            let hint = format!("shorten it, or give more context: -c {}", context_for(tokens));
            Failure::new(Kind::Refused, error).hint(hint)
        }
        SubmitError::EmptyPrompt => Failure::new(Kind::Usage, error),
        SubmitError::Busy { .. } | SubmitError::CallerBusy { .. } | SubmitError::Stopped => {
            Failure::from(error)
        }
    }
}

/// A context with room for a prompt and a short answer.
fn context_for(prompt_tokens: usize) -> usize {
    (prompt_tokens + 256).next_multiple_of(256)
}
