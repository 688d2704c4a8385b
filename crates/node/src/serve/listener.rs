//! From chosen tokens to the pieces of an answer that a client reads.

use std::sync::Arc;

use motley_engine::{Sampled, StopMatcher, StopVerdict, TextStream, TokenLogProbabilities};
use motley_gateway::{
    Alternative, Content, Delta, Drawn, Failure, FinishReason, Finished, Timings, TokenId,
    TokenSink, TokenUsage,
};
use motley_ggml::{Token, Vocabulary, VocabularyError};

use super::calls::{AnswerReader, Progress};
use super::forms;
use super::thinking::Thinking;
use crate::driver::{self, AnswerError, Ended, Listener, Prefill, Verdict};

/// Pieces of one answer that wait for its reader at most.
pub(super) const PIECES_WAITING_MAX: usize = 256;

/// Control tokens that are text where calls are looked for.
#[derive(Debug, Default)]
pub(super) struct MarkerTokens(pub(super) Vec<(Token, &'static str)>);

impl MarkerTokens {
    /// Those of `texts` that are control tokens of the vocabulary.
    ///
    /// # Errors
    /// When the vocabulary cannot read them.
    pub(super) fn new(
        texts: &[&'static str],
        vocabulary: &Vocabulary,
    ) -> Result<Self, VocabularyError> {
        let mut found = Vec::new();
        for text in texts {
            if let [token] = vocabulary.tokenize(text, false, true)?[..]
                && vocabulary.is_control(token)
            {
                found.push((token, *text));
            }
        }
        Ok(Self(found))
    }

    /// A text as a literal of a grammar, in which control tokens stand for themselves.
    pub(super) fn literal(&self, text: &str) -> String {
        let next = self.0.iter().filter_map(|(token, marker)| {
            let at = text.find(marker)?;
            Some((at, at + marker.len(), *token))
        });
        match next.min() {
            None if text.is_empty() => String::new(),
            None => forms::quote(text),
            Some((at, end, token)) => {
                format!("{} <[{token}]> {}", self.literal(&text[..at]), self.literal(&text[end..]))
            }
        }
    }

    /// What stands in a text before its first control token.
    pub(super) fn plain_beginning<'t>(&self, text: &'t str) -> &'t str {
        let first = self.0.iter().filter_map(|(_, marker)| text.find(marker)).min();
        &text[..first.unwrap_or(text.len())]
    }

    fn text(&self, token: Token) -> Option<&'static str> {
        self.0.iter().find(|(marker, _)| *marker == token).map(|(_, text)| *text)
    }
}

/// What turns tokens into text.
pub(super) struct TextOfTokens {
    pub(super) vocabulary: Arc<Vocabulary>,
    pub(super) markers: Arc<MarkerTokens>,
    pub(super) stop: StopMatcher,
    /// Tells reasoning from the answer, where there may be some.
    pub(super) thinking: Option<Thinking>,
}

/// Makes content of tokens and hands it to the gateway's stream.
pub(super) struct SinkListener {
    sink: TokenSink,
    text: TextOfTokens,
    characters: TextStream,
    reader: AnswerReader,
    usage: TokenUsage,
    timings: Timings,
    /// The prompt's tokens, as far as they are scored, where scores are asked for.
    prompt: Vec<Drawn>,
    /// Text that is whole, before stop strings are looked for; reused.
    whole: String,
    /// Text that no stop string can claim; reused.
    free: String,
    /// What the reader made of it; reused.
    contents: Vec<Content>,
}

impl SinkListener {
    pub(super) fn new(
        sink: TokenSink,
        text: TextOfTokens,
        reader: AnswerReader,
        prompt_tokens: u32,
    ) -> Self {
        Self {
            sink,
            text,
            characters: TextStream::new(),
            reader,
            usage: TokenUsage { prompt_tokens, ..TokenUsage::default() },
            timings: Timings::default(),
            prompt: Vec::new(),
            whole: String::new(),
            free: String::new(),
            contents: Vec::new(),
        }
    }

    /// Announces the first token of a prompt whose tokens are scored; nothing comes before it that
    /// could make it probable or not.
    pub(super) fn score_prompt(&mut self, first: Token) {
        self.prompt.push(self.drawn(first, None, true));
    }

    /// A token as clients are told of it. One that ends the answer has no text.
    fn drawn(
        &self,
        token: Token,
        probabilities: Option<&TokenLogProbabilities>,
        has_text: bool,
    ) -> Drawn {
        let vocabulary = &self.text.vocabulary;
        let bytes = if has_text { bytes_of(vocabulary, token) } else { Vec::new() };
        let top = probabilities.map_or(&[][..], |found| found.top());
        Drawn {
            token: token_id(token),
            bytes,
            logprob: probabilities.map(|found| found.chosen().log_probability),
            top: top
                .iter()
                .map(|alternative| Alternative {
                    token: token_id(alternative.token),
                    bytes: bytes_of(vocabulary, alternative.token),
                    logprob: alternative.log_probability,
                })
                .collect(),
        }
    }

    /// Bytes of a token that belong to the text. Markers of calls are text where calls are looked
    /// for.
    fn push_text(&mut self, drawn: &Drawn, sampled: &Sampled) {
        self.whole.clear();
        let reads = !matches!(self.reader, AnswerReader::Text) || self.text.thinking.is_some();
        let looks = reads && !sampled.ends_answer;
        match self.text.markers.text(sampled.token).filter(|_| looks) {
            Some(marker) => self.characters.push(marker.as_bytes(), &mut self.whole),
            None => self.characters.push(&drawn.bytes, &mut self.whole),
        }
    }

    /// Makes content of the text that is free; if no `more` comes, of what was held back, too.
    fn read(&mut self, more: bool) -> Progress {
        let Some(thinking) = &mut self.text.thinking else {
            return self.reader.push(&self.free, &mut self.contents);
        };
        let was_inside = thinking.is_inside();
        let (mut thought, mut answer) = (String::new(), String::new());
        thinking.push(&self.free, &mut thought, &mut answer);
        if !more {
            thinking.finish(&mut thought, &mut answer);
        }
        if more && (was_inside || thinking.is_inside()) {
            self.usage.reasoning_tokens += 1;
        }
        if !thought.is_empty() {
            self.contents.push(Content::Reasoning(thought));
        }
        self.reader.push(&answer, &mut self.contents)
    }

    /// Sends what the reader found, the drawn tokens with its first piece.
    fn send(&mut self, mut drawn: Vec<Drawn>) {
        if self.contents.is_empty() && !drawn.is_empty() {
            self.contents.push(Content::Text(String::new()));
        }
        for content in self.contents.drain(..) {
            // The driver asks for room first; a reader that has left needs no text.
            let drawn = std::mem::take(&mut drawn);
            let _ = self.sink.try_send(Delta::Piece { content, drawn });
        }
    }
}

impl Listener for SinkListener {
    fn is_gone(&self) -> bool {
        self.sink.is_cancelled()
    }

    fn has_room(&self) -> bool {
        // Once for the next token, once for the text that is held back until the end.
        self.sink.room() >= 2 * (self.reader.contents_max() + 1)
    }

    fn scored(&mut self, probabilities: &TokenLogProbabilities) {
        let drawn = self.drawn(probabilities.chosen().token, Some(probabilities), true);
        self.prompt.push(drawn);
    }

    /// Answers are no embeddings.
    fn embedded(&mut self, _mean: Vec<f32>) {}

    fn prefilled(&mut self, prefill: &Prefill) {
        if !self.prompt.is_empty() {
            let _ = self.sink.try_send(Delta::Prompt(std::mem::take(&mut self.prompt)));
        }
        self.usage.cached_tokens = count(prefill.cached_tokens);
        self.timings.queued = prefill.queued;
        self.timings.prefill = prefill.time;
    }

    fn token(&mut self, sampled: &Sampled) -> Verdict {
        self.usage.completion_tokens += 1;
        let probabilities = sampled.log_probabilities.as_ref();
        let drawn = self.drawn(sampled.token, probabilities, !sampled.ends_answer);
        self.push_text(&drawn, sampled);
        self.free.clear();
        let verdict = self.text.stop.push(&self.whole, &mut self.free);
        let progress = self.read(true);
        self.send(vec![drawn]);
        match (verdict, progress) {
            (StopVerdict::Continue, Progress::GoOn) => Verdict::GoOn,
            (StopVerdict::Stopped { .. }, _) | (_, Progress::Complete) => Verdict::Stop,
        }
    }

    fn ended(mut self: Box<Self>, outcome: Result<Ended, AnswerError>) {
        let ended = match outcome {
            Ok(ended) => ended,
            Err(error) => return self.sink.fail(failure(&error)),
        };
        self.whole.clear();
        self.characters.finish(&mut self.whole);
        self.free.clear();
        self.text.stop.push(&self.whole, &mut self.free);
        self.text.stop.finish(&mut self.free);
        self.read(false);
        self.reader.finish(&mut self.contents);
        self.send(Vec::new());
        self.timings.decode = ended.time;
        let reason = match ended.reason {
            driver::FinishReason::End | driver::FinishReason::Stop if self.reader.calls() > 0 => {
                FinishReason::ToolCalls
            }
            driver::FinishReason::End | driver::FinishReason::Stop => FinishReason::Stop,
            driver::FinishReason::Length | driver::FinishReason::ContextFull => {
                FinishReason::Length
            }
        };
        let Self { sink, usage, timings, .. } = *self;
        sink.finish(Finished { reason, usage, timings });
    }
}

/// Bytes of a token's text. Every token that is chosen is one of the vocabulary's; those that pad
/// the model's logits beyond it have none.
fn bytes_of(vocabulary: &Vocabulary, token: Token) -> Vec<u8> {
    let mut bytes = Vec::new();
    if vocabulary.append_bytes(token, false, &mut bytes).is_err() {
        bytes.clear();
    }
    bytes
}

/// The gateway's name of a token. Tokens of a model are not negative.
pub(super) fn token_id(token: Token) -> TokenId {
    TokenId(token.unsigned_abs())
}

/// How a count of tokens is reported; contexts are far shorter.
pub(super) fn count(tokens: usize) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}

pub(super) fn failure(error: &AnswerError) -> Failure {
    match error {
        AnswerError::Stopped => Failure::Stopping,
        AnswerError::NodeLost { .. } => Failure::NodeLost,
        AnswerError::NoPlan { reason } => Failure::NoPlan { reason: reason.to_string() },
        AnswerError::Step(_)
        | AnswerError::Sample(_)
        | AnswerError::Constraint(_)
        | AnswerError::Ring(_)
        | AnswerError::Refused(_) => Failure::Compute { cause: error.to_string() },
    }
}
