//! What a made model should look like.

use super::file_type::FileType;

/// Everything that decides the bytes of a made model, except its vocabulary.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelRecipe {
    /// What people read; the file's name adds that the weights are random.
    pub name: String,
    /// Value of `general.architecture`. It may be one that cannot be made yet.
    pub architecture: String,
    /// The numbers that shape the model.
    pub shape: ModelShape,
    /// Mixture of tensor types.
    pub file_type: FileType,
    /// Key of the random weights.
    pub seed: u64,
}

/// The numbers that shape a made model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelShape {
    /// Number of layers to make.
    pub blocks: usize,
    /// Number of layers of the model whose layers these are. llama.cpp's mixtures know one class
    /// of models by it; a model cut to fewer blocks keeps the original's number here.
    pub original_blocks: usize,
    /// Elements of a hidden state.
    pub embedding_length: usize,
    /// Elements between the feed-forward matrices; of one expert, where there are experts.
    pub feed_forward_length: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of one head's query, key and value; even.
    pub head_length: usize,
    /// Tokens, where it is not the vocabulary's own number: longer vocabularies are cut, shorter
    /// ones filled with unused tokens.
    pub vocabulary_size: Option<usize>,
    /// Whether the head uses the embedding instead of a matrix of its own.
    pub tied_embeddings: bool,
    /// Experts, where the feed-forward network is split into some.
    pub experts: Option<ExpertShape>,
    /// Sliding windows, where the model has any.
    pub sliding_window: Option<SlidingWindowShape>,
    /// Tokens of context that the file claims.
    pub context_length: u32,
    /// Base of the rotary frequencies.
    pub rope_frequency_base: f32,
    /// Llama 3's way of stretching positions, where it is used.
    pub rope_stretch: Option<Llama3Stretch>,
    /// What a root-mean-square norm adds to the mean square.
    pub rms_norm_epsilon: f32,
}

/// A mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertShape {
    /// Experts of each layer.
    pub count: usize,
    /// Experts that each token uses.
    pub used: usize,
}

/// Layers that see only the last tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlidingWindowShape {
    /// Tokens seen, the token itself included.
    pub tokens: u32,
    /// Every n-th layer sees everything.
    pub period: u32,
}

/// Llama 3.1's stretching of rotary frequencies: low ones by the factor, high ones not at all, a
/// ramp between.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Llama3Stretch {
    /// How far low frequencies are stretched.
    pub factor: f32,
    /// Rotations over the original context below which a frequency is low.
    pub low_frequency_factor: f32,
    /// Rotations over the original context above which a frequency is high.
    pub high_frequency_factor: f32,
    /// Tokens of context before stretching.
    pub original_context_length: u32,
}

impl Llama3Stretch {
    /// Divisor of each frequency of heads with `head_length` elements.
    pub(super) fn divisors(&self, head_length: usize, frequency_base: f32) -> Vec<f32> {
        let original = f64::from(self.original_context_length);
        let (low, high) =
            (f64::from(self.low_frequency_factor), f64::from(self.high_frequency_factor));
        let divisor = |pair: usize| {
            let exponent = 2.0 * pair as f64 / head_length as f64;
            let wave_length = 2.0 * std::f64::consts::PI * f64::from(frequency_base).powf(exponent);
            let rotations = original / wave_length;
            // One where the frequency is high, zero where it is low.
            let kept = ((rotations - low) / (high - low)).clamp(0.0, 1.0);
            (1.0 / ((1.0 - kept) / f64::from(self.factor) + kept)) as f32
        };
        (0..head_length / 2).map(divisor).collect()
    }
}
