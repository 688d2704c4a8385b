//! From chosen tokens to the pieces of an answer that a client reads.

use std::sync::Arc;

use motley_engine::{Sampled, StopMatcher, StopVerdict, TextStream};
use motley_gateway::{
    Alternative, Content, Delta, Drawn, Failure, FinishReason, Finished, Timings, TokenId,
    TokenSink, TokenUsage,
};
use motley_ggml::{Token, Vocabulary};

use crate::driver::{self, AnswerError, Ended, Listener, Prefill, Verdict};

/// Pieces of one answer that wait for its reader at most.
pub(super) const PIECES_WAITING_MAX: usize = 256;

/// Makes text of tokens and hands it to the gateway's stream.
pub(super) struct SinkListener {
    sink: TokenSink,
    vocabulary: Arc<Vocabulary>,
    stop: StopMatcher,
    characters: TextStream,
    usage: TokenUsage,
    timings: Timings,
    /// Text that is whole, before stop strings are looked for; reused.
    whole: String,
}

impl SinkListener {
    pub(super) fn new(
        sink: TokenSink,
        vocabulary: Arc<Vocabulary>,
        stop: StopMatcher,
        prompt_tokens: u32,
    ) -> Self {
        Self {
            sink,
            vocabulary,
            stop,
            characters: TextStream::new(),
            usage: TokenUsage { prompt_tokens, ..TokenUsage::default() },
            timings: Timings::default(),
            whole: String::new(),
        }
    }

    /// A chosen token as clients are told of it. One that ends the answer has no text.
    fn drawn(&self, sampled: &Sampled) -> Drawn {
        let bytes = if sampled.ends_answer {
            Vec::new()
        } else {
            bytes_of(&self.vocabulary, sampled.token)
        };
        let probabilities = sampled.log_probabilities.as_ref();
        let top = probabilities.map_or(&[][..], |found| found.top());
        Drawn {
            token: token_id(sampled.token),
            bytes,
            logprob: probabilities.map(|found| found.chosen().log_probability),
            top: top
                .iter()
                .map(|alternative| Alternative {
                    token: token_id(alternative.token),
                    bytes: bytes_of(&self.vocabulary, alternative.token),
                    logprob: alternative.log_probability,
                })
                .collect(),
        }
    }

    fn send(&self, text: String, drawn: Vec<Drawn>) {
        // The driver asks for room first; a reader that has left needs no text.
        let _ = self.sink.try_send(Delta::Piece { content: Content::Text(text), drawn });
    }
}

impl Listener for SinkListener {
    fn is_gone(&self) -> bool {
        self.sink.is_cancelled()
    }

    fn has_room(&self) -> bool {
        // One for the next token, one for the text that is held back until the end.
        self.sink.room() >= 2
    }

    fn prefilled(&mut self, prefill: &Prefill) {
        self.usage.cached_tokens = count(prefill.cached_tokens);
        self.timings.queued = prefill.queued;
        self.timings.prefill = prefill.time;
    }

    fn token(&mut self, sampled: &Sampled) -> Verdict {
        self.usage.completion_tokens += 1;
        let drawn = self.drawn(sampled);
        self.whole.clear();
        self.characters.push(&drawn.bytes, &mut self.whole);
        let mut text = String::new();
        let verdict = self.stop.push(&self.whole, &mut text);
        self.send(text, vec![drawn]);
        match verdict {
            StopVerdict::Continue => Verdict::GoOn,
            StopVerdict::Stopped { .. } => Verdict::Stop,
        }
    }

    fn ended(mut self: Box<Self>, outcome: Result<Ended, AnswerError>) {
        let ended = match outcome {
            Ok(ended) => ended,
            Err(error) => return self.sink.fail(failure(&error)),
        };
        let mut text = String::new();
        self.whole.clear();
        self.characters.finish(&mut self.whole);
        self.stop.push(&self.whole, &mut text);
        self.stop.finish(&mut text);
        if !text.is_empty() {
            self.send(text, Vec::new());
        }
        self.timings.decode = ended.time;
        let reason = match ended.reason {
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

fn failure(error: &AnswerError) -> Failure {
    match error {
        AnswerError::Stopped => Failure::Stopping,
        AnswerError::NodeLost { .. } => Failure::NodeLost,
        AnswerError::Step(_)
        | AnswerError::Sample(_)
        | AnswerError::Ring(_)
        | AnswerError::Refused(_) => Failure::Compute { cause: error.to_string() },
    }
}
