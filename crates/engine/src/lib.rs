//! Crate `motley-engine`.

mod sampling;

pub use sampling::{
    LOGIT_BIAS_ENTRIES_MAX, PositionedRandom, STOP_STRING_BYTES_MAX, STOP_STRINGS_MAX,
    STOP_TOKENS_MAX, SampleContext, SampleError, Sampled, Sampler, SamplingOptions,
    SamplingParameterError, SamplingParameters, StopMatcher, StopStringError, StopVerdict,
    TOP_LOGPROBS_MAX, TextStream, TokenLogProbabilities, TokenLogProbability, TokenMask,
};
