//! Upper bounds of what one request may ask of sampling.

/// Most alternatives whose log-probabilities are reported per position.
pub const TOP_LOGPROBS_MAX: usize = 20;

/// Most entries of a logit bias table.
pub const LOGIT_BIAS_ENTRIES_MAX: usize = 1_024;

/// Most stop strings of one request.
pub const STOP_STRINGS_MAX: usize = 16;

/// Longest stop string in bytes of UTF-8. Text that long may be held back from the client.
pub const STOP_STRING_BYTES_MAX: usize = 1_024;

/// Most stop tokens that a request may name in addition to those of the model.
pub const STOP_TOKENS_MAX: usize = 64;

// A state of the stop automaton is a 16-bit number; there is one state per byte, and the root.
const _: () = assert!(STOP_STRINGS_MAX * STOP_STRING_BYTES_MAX < u16::MAX as usize);
