//! What one request asks of sampling, checked once.

use std::fmt;

use motley_ggml::Token;

use super::limits::{LOGIT_BIAS_ENTRIES_MAX, STOP_TOKENS_MAX, TOP_LOGPROBS_MAX};

/// Below this the softmax is one token's anyway, and its reciprocal would leave the number range.
const TEMPERATURE_MIN: f32 = 1e-5;

/// Unchecked wishes of a request; [`SamplingParameters::new`] turns them into a proof.
///
/// Field names are those of the request bodies that carry them.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingOptions {
    /// Divides the logits before the softmax, 0 to 2. Below 0.00001 the most probable token is
    /// taken.
    pub temperature: f32,
    /// Number of most probable tokens that stay eligible; 0 keeps all.
    pub top_k: u32,
    /// Smallest set of most probable tokens whose probability reaches this value, 0 to 1. At 1
    /// all tokens stay, at 0 only the first.
    pub top_p: f32,
    /// Tokens less probable than this share of the most probable one are dropped, 0 to 1.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens that were seen in the last
    /// `repetition_window` tokens of prompt and answer, 0.01 to 100; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Number of tokens that `repetition_penalty` looks back.
    pub repetition_window: u32,
    /// Subtracted once from the logit of every token generated so far, -2 to 2.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token for each time it was generated, -2 to 2.
    pub frequency_penalty: f32,
    /// Added to the logits of single tokens, each -100 to 100. Entries of one token add up.
    pub logit_bias: Vec<(Token, f32)>,
    /// Key of the random numbers. Who has no seed from the client draws one and keeps it.
    pub seed: u64,
    /// Report the log-probability of each chosen token and of this many best ones, 0 to 20.
    pub top_logprobs: Option<u32>,
    /// Never choose a token by which the model ends its answer.
    pub ignore_eos: bool,
    /// Number of tokens before which no end or stop token is chosen.
    pub min_tokens: u32,
    /// Tokens that end this answer in addition to the model's own.
    pub stop_token_ids: Vec<Token>,
}

impl SamplingOptions {
    /// The most probable token at every position, nothing else asked.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::unchanged(0) }
    }

    /// Draws from the model's own distribution: temperature 1 and no filter or penalty.
    pub fn unchanged(seed: u64) -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            repetition_window: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed,
            top_logprobs: None,
            ignore_eos: false,
            min_tokens: 0,
            stop_token_ids: Vec::new(),
        }
    }
}

/// Wishes of a request of which every number is finite, in range and inside the vocabulary.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParameters {
    options: SamplingOptions,
    vocabulary_size: usize,
}

impl SamplingParameters {
    /// Checks every field against its range and every token against the vocabulary.
    pub fn new(
        options: SamplingOptions,
        vocabulary_size: usize,
    ) -> Result<Self, SamplingParameterError> {
        let ranges = [
            ("temperature", options.temperature, 0.0, 2.0),
            ("top_p", options.top_p, 0.0, 1.0),
            ("min_p", options.min_p, 0.0, 1.0),
            ("repetition_penalty", options.repetition_penalty, 0.01, 100.0),
            ("presence_penalty", options.presence_penalty, -2.0, 2.0),
            ("frequency_penalty", options.frequency_penalty, -2.0, 2.0),
        ];
        for (field, value, low, high) in ranges {
            check_range(field, value, low, high)?;
        }
        check_count("top_logprobs", options.top_logprobs.unwrap_or(0) as usize, TOP_LOGPROBS_MAX)?;
        check_count("logit_bias", options.logit_bias.len(), LOGIT_BIAS_ENTRIES_MAX)?;
        check_count("stop_token_ids", options.stop_token_ids.len(), STOP_TOKENS_MAX)?;
        for &(token, bias) in &options.logit_bias {
            check_token("logit_bias", token, vocabulary_size)?;
            check_range("logit_bias", bias, -100.0, 100.0)?;
        }
        for &token in &options.stop_token_ids {
            check_token("stop_token_ids", token, vocabulary_size)?;
        }
        Ok(Self { options, vocabulary_size })
    }

    /// The wishes as they were accepted.
    pub fn options(&self) -> &SamplingOptions {
        &self.options
    }

    /// Number of tokens of the vocabulary that the parameters were checked against.
    pub fn vocabulary_size(&self) -> usize {
        self.vocabulary_size
    }

    /// Whether one token is certain, so that no random number is drawn.
    pub fn is_greedy(&self) -> bool {
        self.options.temperature < TEMPERATURE_MIN
            || self.options.top_k == 1
            || self.options.top_p == 0.0
    }

    pub(super) fn has_repetition_penalty(&self) -> bool {
        self.options.repetition_penalty != 1.0 && self.options.repetition_window > 0
    }

    pub(super) fn has_generation_penalty(&self) -> bool {
        self.options.presence_penalty != 0.0 || self.options.frequency_penalty != 0.0
    }
}

/// Why a request's sampling options are refused. Each variant names the field.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SamplingParameterError {
    /// The value is not a number or infinite.
    #[error("{field} must be a finite number, not {value}")]
    NotFinite {
        /// Name in the request.
        field: &'static str,
        /// What was given.
        value: f32,
    },
    /// The value lies outside its range.
    #[error("{field} must be between {low} and {high}, not {value}")]
    OutOfRange {
        /// Name in the request.
        field: &'static str,
        /// What was given.
        value: f32,
        /// Smallest value accepted.
        low: f32,
        /// Largest value accepted.
        high: f32,
    },
    /// A list or count exceeds its limit.
    #[error("{field} must be at most {count_max}, not {count}")]
    TooMany {
        /// Name in the request.
        field: &'static str,
        /// What was given.
        count: usize,
        /// Largest count accepted.
        count_max: usize,
    },
    /// A token that the vocabulary does not have.
    #[error("{field} names token {token}, but the vocabulary has {vocabulary_size} tokens")]
    TokenOutsideVocabulary {
        /// Name in the request.
        field: &'static str,
        /// What was given.
        token: Token,
        /// Number of tokens of the model.
        vocabulary_size: usize,
    },
}

impl SamplingParameterError {
    /// Name of the request field that caused the refusal.
    pub fn field(&self) -> &'static str {
        match self {
            Self::NotFinite { field, .. }
            | Self::OutOfRange { field, .. }
            | Self::TooMany { field, .. }
            | Self::TokenOutsideVocabulary { field, .. } => field,
        }
    }
}

impl fmt::Display for SamplingParameters {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = &self.options;
        if self.is_greedy() {
            return write!(formatter, "greedy");
        }
        write!(
            formatter,
            "temperature {}, top-k {}, top-p {}, min-p {}, seed {}",
            options.temperature, options.top_k, options.top_p, options.min_p, options.seed
        )
    }
}

fn check_range(
    field: &'static str,
    value: f32,
    low: f32,
    high: f32,
) -> Result<(), SamplingParameterError> {
    if !value.is_finite() {
        return Err(SamplingParameterError::NotFinite { field, value });
    }
    if !(low..=high).contains(&value) {
        return Err(SamplingParameterError::OutOfRange { field, value, low, high });
    }
    Ok(())
}

fn check_count(
    field: &'static str,
    count: usize,
    count_max: usize,
) -> Result<(), SamplingParameterError> {
    if count > count_max {
        return Err(SamplingParameterError::TooMany { field, count, count_max });
    }
    Ok(())
}

fn check_token(
    field: &'static str,
    token: Token,
    vocabulary_size: usize,
) -> Result<(), SamplingParameterError> {
    // A negative token becomes a huge index.
    if token as usize >= vocabulary_size {
        return Err(SamplingParameterError::TokenOutsideVocabulary {
            field,
            token,
            vocabulary_size,
        });
    }
    Ok(())
}
