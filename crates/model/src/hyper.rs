//! What a model is: its architecture and the numbers that shape its graph.

use std::fmt;

use crate::directory::DirectoryError;
use crate::gguf::{Gguf, MetadataError, Value};
use crate::keys::Keys;
use crate::limits;

/// A family of models whose graph the engine can build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Architecture {
    /// Llama and the models that share its graph (Mistral, SmolLM2), also with experts (Mixtral).
    Llama,
    /// Qwen 2 and 2.5.
    Qwen2,
    /// Qwen 3, dense.
    Qwen3,
    /// Qwen 3 with a mixture of experts in every layer.
    Qwen3Moe,
    /// Gemma 3, text.
    Gemma3,
}

impl Architecture {
    /// Every architecture that is supported.
    pub const ALL: &'static [Self] =
        &[Self::Llama, Self::Qwen2, Self::Qwen3, Self::Qwen3Moe, Self::Gemma3];

    /// The name in `general.architecture`, which also begins the model's own metadata keys.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Qwen3Moe => "qwen3moe",
            Self::Gemma3 => "gemma3",
        }
    }

    /// The architecture with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|known| known.name() == name)
    }

    /// Whether models of the family have experts in every layer, may have, or never do.
    pub(crate) fn experts(self) -> MayHaveExperts {
        match self {
            Self::Qwen3Moe => MayHaveExperts::Always,
            Self::Llama => MayHaveExperts::Sometimes,
            Self::Qwen2 | Self::Qwen3 | Self::Gemma3 => MayHaveExperts::Never,
        }
    }
}

/// Whether a family has mixtures of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MayHaveExperts {
    Never,
    Sometimes,
    Always,
}

impl fmt::Display for Architecture {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// The numbers that shape a model's graph, with llama.cpp's defaults where the file is silent.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct HyperParameters {
    /// The family.
    pub architecture: Architecture,
    /// Number of layers; equals the length of `layers`.
    pub block_count: usize,
    /// Tokens of context the model was trained for.
    pub context_length: u64,
    /// Elements of a hidden state.
    pub embedding_length: usize,
    /// Elements of one head's key, and of its query.
    pub key_length: usize,
    /// Elements of one head's value; equals `key_length` in every supported architecture.
    pub value_length: usize,
    /// Rows of the embedding matrix, which is the number of logits.
    pub vocabulary_size: usize,
    /// What a root-mean-square norm adds to the mean square.
    pub rms_norm_epsilon: f32,
    /// How positions enter queries and keys.
    pub rope: RopeParameters,
    /// Tokens that a layer with a sliding window sees, where the model has such layers: the token
    /// itself and those before it.
    pub sliding_window: Option<usize>,
    /// The mixture of experts in every layer, where the feed-forward network is one.
    pub experts: Option<Experts>,
    /// What may differ from layer to layer.
    pub layers: Vec<LayerShape>,
    /// Factor on the product of query and key. Gemma scales the query before the product, the
    /// others the product.
    pub attention_scale: f32,
    /// Factor on the embedded token, where there is one.
    pub embedding_scale: Option<f32>,
    /// The gate of the feed-forward network.
    pub activation: Activation,
    /// Whether every head's query and key are normed before rotation.
    pub query_key_norm: bool,
    /// Whether the results of attention and feed-forward are normed before they are added.
    pub post_norm: bool,
    /// Whether queries, keys and values have a bias, in any layer.
    pub query_key_value_bias: bool,
    /// Logits `l` become `c * tanh(l / c)` with this `c`, where there is one.
    pub final_logit_softcapping: Option<f32>,
    /// Whether the head multiplies with the embedding matrix because the file has no other.
    pub tied_embeddings: bool,
}

/// What may differ from layer to layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayerShape {
    /// Query heads.
    pub head_count: usize,
    /// Key and value heads; divides `head_count`.
    pub head_count_kv: usize,
    /// Elements between the feed-forward matrices; of one expert, where there are experts.
    pub feed_forward_length: usize,
    /// Tokens this layer sees, itself included, or nothing where it sees all before it.
    pub window_tokens: Option<usize>,
}

/// A mixture of experts: each row goes through those that a router gives most weight, and their
/// results are added up in proportion to these weights, which are scaled to a sum of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Experts {
    /// Experts of a layer.
    pub count: usize,
    /// Experts that one token uses; at most `count`.
    pub used: usize,
}

impl LayerShape {
    /// Tokens of a context of `context_tokens` that this layer attends to at most.
    pub fn visible_tokens(&self, context_tokens: u64) -> u64 {
        match self.window_tokens {
            Some(window) => context_tokens.min(window as u64),
            None => context_tokens,
        }
    }
}

/// The gate of a gated feed-forward network: `down(activation(gate(x)) * up(x))`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// The Gaussian error linear unit.
    Gelu,
}

/// Which elements of a head are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeKind {
    /// Neighbours: elements 2i and 2i + 1. Converters of Llama permute the weights for this.
    Normal,
    /// Elements i and i + n/2.
    Neox,
}

/// How a model stretches positions beyond those of its first training.
///
/// Llama 3's scaling is not here: it comes as a tensor of factors
/// ([`crate::ModelDirectory::rope_frequencies`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All frequencies by the same factor.
    Linear,
    /// Low frequencies fully, high ones not, a ramp between (arXiv 2309.00071).
    Yarn,
}

/// Rotary position embedding, in the terms of ggml's `rope` operation.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RopeParameters {
    /// Which elements are rotated together.
    pub kind: RopeKind,
    /// Leading elements of a head that are rotated.
    pub dimension_count: usize,
    /// Base of the frequencies in layers that see everything.
    pub frequency_base: f32,
    /// Factor on positions in layers that see everything, one over the stretch.
    pub frequency_scale: f32,
    /// Base of the frequencies in layers with a sliding window.
    pub frequency_base_sliding: f32,
    /// Factor on positions in layers with a sliding window.
    pub frequency_scale_sliding: f32,
    /// How positions are stretched.
    pub scaling: RopeScaling,
    /// Tokens of context before stretching.
    pub original_context_length: u64,
    /// Share of YaRN's ramp: 1 with YaRN, else 0.
    pub extension_factor: f32,
    /// Factor on sine and cosine. ggml itself multiplies YaRN's `1 + 0.1 ln(stretch)` onto it,
    /// so that it is 1 for the usual YaRN.
    pub attention_factor: f32,
    /// Rotations over the original context above which YaRN leaves a frequency alone.
    pub beta_fast: f32,
    /// Rotations over the original context below which YaRN stretches fully.
    pub beta_slow: f32,
}

impl RopeParameters {
    /// Frequency base and scale of a layer.
    pub fn of_layer(&self, layer: &LayerShape) -> (f32, f32) {
        match layer.window_tokens {
            Some(_) => (self.frequency_base_sliding, self.frequency_scale_sliding),
            None => (self.frequency_base, self.frequency_scale),
        }
    }
}

impl HyperParameters {
    /// Reads the metadata of a model. Whether tensors agree is not known yet, so that
    /// `query_key_value_bias` and `tied_embeddings` are still false.
    pub(crate) fn read(
        gguf: &Gguf<'_>,
        architecture: Architecture,
        token_count: Option<u64>,
    ) -> Result<Self, DirectoryError> {
        let keys = Keys { gguf, architecture };
        keys.refuse_unsupported()?;
        // All values are read, and checked where they stand, before any is missed: a file with a
        // wild value hears of that first.
        let sizes = Sizes::read(&keys)?;
        let rope = RawRope::read(&keys)?;
        let rms_norm_epsilon = keys.float("attention.layer_norm_rms_epsilon")?;
        let window = sliding_window(&keys)?;
        let experts = experts(&keys)?;
        let block_count = keys.required("block_count", sizes.block_count)?;
        let counts = LayerCounts::read(&keys, block_count, experts)?;
        let softcapping = keys.float("final_logit_softcapping")?.filter(|&cap| cap != 0.0);
        let vocabulary_size = match token_count {
            Some(count) => Some(count),
            None => keys.count("vocab_size", limits::VOCABULARY_SIZE_MAX)?,
        };

        let context_length = keys.required("context_length", sizes.context_length)?;
        let embedding_length = keys.required("embedding_length", sizes.embedding_length)?;
        let rms_norm_epsilon =
            keys.required("attention.layer_norm_rms_epsilon", rms_norm_epsilon)?;
        let vocabulary_size = vocabulary_size
            .ok_or_else(|| MetadataError::Missing { key: "tokenizer.ggml.tokens".to_owned() })?;
        let layers = counts.layer_shapes(&keys, window.as_ref())?;
        let head_count = layers.first().map_or(1, |layer| layer.head_count as u64);
        let key_length = sizes.key_length.unwrap_or(embedding_length / head_count);
        let value_length = sizes.value_length.unwrap_or(embedding_length / head_count);
        keys.check_head_lengths(key_length, value_length)?;

        let gemma = architecture == Architecture::Gemma3;
        let scale_divisor = match architecture {
            // The 27B model, known by its 62 layers, divides by the width per head instead.
            Architecture::Gemma3 if block_count == 62 => embedding_length / head_count,
            _ => key_length,
        };
        Ok(Self {
            architecture,
            block_count: block_count as usize,
            context_length,
            embedding_length: embedding_length as usize,
            key_length: key_length as usize,
            value_length: value_length as usize,
            vocabulary_size: vocabulary_size as usize,
            rms_norm_epsilon,
            rope: rope.resolve(&keys, key_length, context_length)?,
            sliding_window: window.map(|window| window.tokens),
            experts,
            layers,
            attention_scale: 1.0 / (scale_divisor as f32).sqrt(),
            embedding_scale: gemma.then(|| (embedding_length as f32).sqrt()),
            activation: if gemma { Activation::Gelu } else { Activation::Silu },
            query_key_norm: matches!(
                architecture,
                Architecture::Qwen3 | Architecture::Qwen3Moe | Architecture::Gemma3
            ),
            post_norm: gemma,
            query_key_value_bias: false,
            final_logit_softcapping: softcapping.filter(|_| gemma),
            tied_embeddings: false,
        })
    }

    /// Elements of the key of one token in a layer, over all its heads.
    pub fn key_row_elements(&self, layer: &LayerShape) -> u64 {
        layer.head_count_kv as u64 * self.key_length as u64
    }

    /// Elements of the value of one token in a layer, over all its heads.
    pub fn value_row_elements(&self, layer: &LayerShape) -> u64 {
        layer.head_count_kv as u64 * self.value_length as u64
    }
}

/// The scalar sizes, each checked against its limit, none missed yet.
struct Sizes {
    block_count: Option<u64>,
    context_length: Option<u64>,
    embedding_length: Option<u64>,
    key_length: Option<u64>,
    value_length: Option<u64>,
}

impl Sizes {
    fn read(keys: &Keys<'_>) -> Result<Self, DirectoryError> {
        Ok(Self {
            block_count: keys.count("block_count", limits::BLOCK_COUNT_MAX)?,
            context_length: keys.count("context_length", limits::CONTEXT_LENGTH_MAX)?,
            embedding_length: keys.count("embedding_length", limits::EMBEDDING_LENGTH_MAX)?,
            key_length: keys.count("attention.key_length", limits::HEAD_LENGTH_MAX)?,
            value_length: keys.count("attention.value_length", limits::HEAD_LENGTH_MAX)?,
        })
    }
}

/// What the file says about rotary position embedding.
struct RawRope {
    dimension_count: Option<u64>,
    frequency_base: f32,
    frequency_base_sliding: f32,
    scaling: RopeScaling,
    factor: f32,
    original_context_length: Option<u64>,
    attention_factor: f32,
}

impl RawRope {
    fn read(keys: &Keys<'_>) -> Result<Self, DirectoryError> {
        let frequency_base = keys.positive("rope.freq_base")?.unwrap_or(10_000.0);
        let frequency_base_sliding = match keys.architecture {
            Architecture::Gemma3 => keys.positive("rope.freq_base_swa")?,
            _ => None,
        };
        let factor = match keys.float("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            // The key's name in old files.
            None => keys.float("rope.scale_linear")?,
        };
        let factor = factor.filter(|&factor| factor != 0.0).unwrap_or(1.0);
        if factor < 0.0 {
            return Err(keys.unsupported("rope.scaling.factor", factor));
        }
        let scaling = match keys.string("rope.scaling.type")? {
            Some("none") => RopeScaling::None,
            Some("yarn") => RopeScaling::Yarn,
            Some("linear") | None if factor == 1.0 => RopeScaling::None,
            Some("linear") | None => RopeScaling::Linear,
            Some(other) => return Err(keys.unsupported("rope.scaling.type", other)),
        };
        Ok(Self {
            dimension_count: keys.count("rope.dimension_count", limits::HEAD_LENGTH_MAX)?,
            frequency_base,
            frequency_base_sliding: frequency_base_sliding.unwrap_or(10_000.0),
            scaling,
            factor,
            original_context_length: keys.count_or_zero(
                "rope.scaling.original_context_length",
                limits::CONTEXT_LENGTH_MAX,
            )?,
            attention_factor: keys.float("rope.scaling.attn_factor")?.unwrap_or(1.0),
        })
    }

    fn resolve(
        self,
        keys: &Keys<'_>,
        key_length: u64,
        context_length: u64,
    ) -> Result<RopeParameters, DirectoryError> {
        let dimension_count = self.dimension_count.unwrap_or(key_length);
        // Gemma may rotate only a part of each head; the other graphs need the whole.
        let whole_heads = keys.architecture != Architecture::Gemma3;
        if dimension_count > key_length
            || !dimension_count.is_multiple_of(2)
            || (whole_heads && dimension_count != key_length)
        {
            return Err(DirectoryError::RopeDimensions {
                key: keys.name("rope.dimension_count"),
                dimension_count,
                key_length,
            });
        }
        let frequency_scale = match self.scaling {
            RopeScaling::None => 1.0,
            RopeScaling::Linear | RopeScaling::Yarn => 1.0 / self.factor,
        };
        let yarn = self.scaling == RopeScaling::Yarn;
        Ok(RopeParameters {
            kind: match keys.architecture {
                Architecture::Llama => RopeKind::Normal,
                Architecture::Qwen2
                | Architecture::Qwen3
                | Architecture::Qwen3Moe
                | Architecture::Gemma3 => RopeKind::Neox,
            },
            dimension_count: dimension_count as usize,
            frequency_base: self.frequency_base,
            frequency_scale,
            frequency_base_sliding: self.frequency_base_sliding,
            frequency_scale_sliding: 1.0,
            scaling: self.scaling,
            original_context_length: self
                .original_context_length
                .filter(|&tokens| tokens != 0)
                .unwrap_or(context_length),
            extension_factor: if yarn { 1.0 } else { 0.0 },
            attention_factor: self.attention_factor
                * if yarn { yarn_compensation(frequency_scale) } else { 1.0 },
            beta_fast: 32.0,
            beta_slow: 1.0,
        })
    }
}

/// YaRN's magnitude, which ggml applies for every stretch, is meant only for a stretch above one;
/// this factor takes it out below and leaves it in above, as llama.cpp does.
fn yarn_compensation(frequency_scale: f32) -> f32 {
    let stretch = 1.0 / frequency_scale;
    let magnitude = if stretch <= 1.0 { 1.0 } else { 0.1 * stretch.ln() + 1.0 };
    magnitude * (1.0 / (1.0 + 0.1 * stretch.ln()))
}

/// A sliding window and which layers have it.
struct SlidingWindow {
    tokens: usize,
    pattern: WindowPattern,
}

enum WindowPattern {
    /// Every n-th layer sees everything; zero means that none does.
    Period(usize),
    /// Named layer by layer.
    Layers(Vec<bool>),
}

impl SlidingWindow {
    fn of_layer(&self, layer: usize) -> Option<usize> {
        let slides = match &self.pattern {
            WindowPattern::Period(0) => true,
            WindowPattern::Period(period) => layer % period < period - 1,
            WindowPattern::Layers(layers) => layers.get(layer).copied().unwrap_or(false),
        };
        slides.then_some(self.tokens)
    }
}

const WINDOW_PATTERN_KEY: &str = "attention.sliding_window_pattern";

/// Only Gemma's graph has windows; llama.cpp ignores the keys in files of the others, too.
fn sliding_window(keys: &Keys<'_>) -> Result<Option<SlidingWindow>, DirectoryError> {
    const GEMMA_PERIOD: usize = 6;
    if keys.architecture != Architecture::Gemma3 {
        return Ok(None);
    }
    let tokens =
        keys.count_or_zero("attention.sliding_window", limits::CONTEXT_LENGTH_MAX)?.unwrap_or(0);
    if tokens == 0 {
        return Ok(None);
    }
    let pattern = match keys.gguf.value(&keys.name(WINDOW_PATTERN_KEY)) {
        Some(Value::Array(array)) => {
            let flags = array.iter().map(|value| match value {
                Value::Bool(flag) => Some(flag),
                other => other.as_i64().map(|number| number != 0),
            });
            let wrong = || MetadataError::WrongElementType {
                key: keys.name(WINDOW_PATTERN_KEY),
                expected: "truth values or integers",
                actual: array.element_type(),
            };
            WindowPattern::Layers(flags.collect::<Option<Vec<_>>>().ok_or_else(wrong)?)
        }
        _ => {
            let period = keys.count_or_zero(WINDOW_PATTERN_KEY, limits::BLOCK_COUNT_MAX)?;
            WindowPattern::Period(period.map_or(GEMMA_PERIOD, |period| period as usize))
        }
    };
    Ok(Some(SlidingWindow { tokens: tokens as usize, pattern }))
}

/// The mixture of experts, where the file has one.
fn experts(keys: &Keys<'_>) -> Result<Option<Experts>, DirectoryError> {
    let count = keys.count_or_zero("expert_count", limits::EXPERT_COUNT_MAX)?.unwrap_or(0);
    let used = keys.count_or_zero("expert_used_count", limits::EXPERT_COUNT_MAX)?.unwrap_or(0);
    let possible = keys.architecture.experts();
    if count == 0 && used == 0 && possible != MayHaveExperts::Always {
        return Ok(None);
    }
    if count == 0 || possible == MayHaveExperts::Never {
        return Err(keys.unsupported("expert_count", count));
    }
    if !(1..=count).contains(&used) {
        return Err(keys.unsupported("expert_used_count", used));
    }
    Ok(Some(Experts { count: count as usize, used: used as usize }))
}

/// What may differ from layer to layer, as far as the file says it.
struct LayerCounts {
    heads: Option<Vec<u64>>,
    kv_heads: Option<Vec<u64>>,
    feed_forward_lengths: Option<Vec<u64>>,
}

impl LayerCounts {
    fn read(
        keys: &Keys<'_>,
        block_count: u64,
        experts: Option<Experts>,
    ) -> Result<Self, DirectoryError> {
        let counts = |suffix, max| keys.counts(suffix, block_count, max);
        let heads = counts("attention.head_count", limits::HEAD_COUNT_MAX)?;
        let kv_heads = counts("attention.head_count_kv", limits::HEAD_COUNT_MAX)?;
        if let (Some(heads), Some(kv_heads)) = (&heads, &kv_heads) {
            check_heads(heads, kv_heads)?;
        }
        let mut feed_forward_lengths =
            counts("feed_forward_length", limits::FEED_FORWARD_LENGTH_MAX)?;
        if let (Architecture::Qwen3Moe, Some(experts)) = (keys.architecture, experts) {
            let of_one = counts("expert_feed_forward_length", limits::FEED_FORWARD_LENGTH_MAX)?;
            // Without the key the experts of one token share the length of a whole network.
            let shared = |lengths: Vec<u64>| {
                lengths.into_iter().map(|length| (length / experts.used as u64).max(1)).collect()
            };
            feed_forward_lengths = of_one.or(feed_forward_lengths.map(shared));
        }
        Ok(Self { heads, kv_heads, feed_forward_lengths })
    }

    fn layer_shapes(
        self,
        keys: &Keys<'_>,
        window: Option<&SlidingWindow>,
    ) -> Result<Vec<LayerShape>, DirectoryError> {
        let heads = keys.required("attention.head_count", self.heads)?;
        let kv_heads = self.kv_heads.unwrap_or_else(|| heads.clone());
        let lengths = keys.required("feed_forward_length", self.feed_forward_lengths)?;
        if let Some(WindowPattern::Layers(layers)) = window.map(|window| &window.pattern) {
            keys.check_length(WINDOW_PATTERN_KEY, layers.len(), heads.len() as u64)?;
        }
        let shapes = heads.into_iter().zip(kv_heads).zip(lengths).enumerate();
        Ok(shapes
            .map(|(layer, ((head_count, head_count_kv), feed_forward_length))| LayerShape {
                head_count: head_count as usize,
                head_count_kv: head_count_kv as usize,
                feed_forward_length: feed_forward_length as usize,
                window_tokens: window.and_then(|window| window.of_layer(layer)),
            })
            .collect())
    }
}

/// Key and value heads are shared evenly among query heads.
fn check_heads(heads: &[u64], kv_heads: &[u64]) -> Result<(), DirectoryError> {
    for (layer, (&heads, &kv_heads)) in heads.iter().zip(kv_heads).enumerate() {
        if !heads.is_multiple_of(kv_heads) {
            return Err(DirectoryError::HeadsNotShared { layer, heads, kv_heads });
        }
    }
    Ok(())
}
