//! From logits to text: choosing tokens, and turning their bytes into what a client may see.
//!
//! The parts are pure and know neither a graph nor a vocabulary; they follow each other in this
//! order: [`SamplingParameters`] is the checked wish of one request, [`Sampler`] chooses a token,
//! [`TextStream`] makes valid UTF-8 of the token's bytes, [`StopMatcher`] ends the text before a
//! stop string. Nothing here depends on time or on what was sampled before for another request:
//! a sequence that is resumed on another machine draws the same random numbers.

mod exponential;
mod limits;
mod mask;
mod parameters;
mod random;
mod sampler;
mod scan;
mod stop;
mod text;

#[cfg(test)]
mod tests;

pub use limits::{
    LOGIT_BIAS_ENTRIES_MAX, STOP_STRING_BYTES_MAX, STOP_STRINGS_MAX, STOP_TOKENS_MAX,
    TOP_LOGPROBS_MAX,
};
pub use mask::TokenMask;
pub use parameters::{SamplingOptions, SamplingParameterError, SamplingParameters};
pub use random::PositionedRandom;
pub use sampler::{
    SampleContext, SampleError, Sampled, Sampler, TokenLogProbabilities, TokenLogProbability,
};
pub use stop::{StopMatcher, StopStringError, StopVerdict};
pub use text::TextStream;
