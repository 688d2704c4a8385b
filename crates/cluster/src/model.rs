//! What a model costs: bytes, FLOPs and KV per layer, embeddings and head (PLANNER 1.2, 1.3).

use std::collections::BTreeMap;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

use crate::device::{AttentionClass, GpuKind};
use crate::document::{Document, FormatVersion};
use crate::field::{FieldError, FieldProblem, check_at_most, check_name, check_range};
use crate::limits::{EXPERTS_MAX, LAYERS_MAX, MEMORY_BYTES_MAX, WIDTH_MAX};
use crate::quant::WeightType;
use crate::units::{Bytes, Flops, LayerIndex};

/// How keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvType {
    /// Two bytes per element.
    #[default]
    F16,
    /// 34 bytes per 32 elements.
    Q8_0,
    /// 18 bytes per 32 elements.
    Q4_0,
}

impl KvType {
    /// Bytes of this many elements.
    #[must_use]
    pub const fn bytes(self, elements: u64) -> Bytes {
        let (block_bytes, block_elements) = match self {
            Self::F16 => (2, 1),
            Self::Q8_0 => (34, 32),
            Self::Q4_0 => (18, 32),
        };
        Bytes::new(elements.saturating_mul(block_bytes).div_ceil(block_elements))
    }
}

/// How far a layer looks back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Attention {
    /// The whole context.
    Full,
    /// A window.
    Sliding {
        /// Tokens in the window.
        window_tokens: u32,
    },
}

impl Attention {
    /// The class measured tables are kept by.
    #[must_use]
    pub const fn class(self) -> AttentionClass {
        match self {
            Self::Full => AttentionClass::Full,
            Self::Sliding { .. } => AttentionClass::Sliding,
        }
    }

    /// Tokens a new token looks at when this many are cached.
    #[must_use]
    pub fn seen_tokens(self, depth_tokens: u32) -> u32 {
        match self {
            Self::Full => depth_tokens,
            Self::Sliding { window_tokens } => depth_tokens.min(window_tokens),
        }
    }

    /// Tokens whose keys and values one slot keeps: the context, or window plus micro-batch.
    #[must_use]
    pub fn kept_tokens(self, context_tokens: u32, micro_batch_tokens: u32) -> u32 {
        match self {
            Self::Full => context_tokens,
            Self::Sliding { window_tokens } => {
                context_tokens.min(window_tokens.saturating_add(micro_batch_tokens))
            }
        }
    }
}

/// Experts of a mixture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experts {
    /// Experts per layer (X).
    pub count: u32,
    /// Experts one token uses (x).
    pub used: u32,
}

/// One layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerSpec {
    /// Bytes every token touches.
    pub dense_bytes: Bytes,
    /// Bytes of one expert; 0 in a dense layer.
    #[serde(default)]
    pub expert_bytes: Bytes,
    /// Attention.
    pub attention: Attention,
    /// K plus V elements one token adds (`e_k h_k + e_v h_v`).
    pub kv_elements_per_token: u64,
    /// Matrix FLOPs of one token by weight type, used experts only.
    pub matmul_flops: BTreeMap<WeightType, Flops>,
    /// Attention FLOPs of one token per context token it sees (4·H·hd).
    pub attention_flops_per_context_token: Flops,
}

/// A model as a file states it; [`ModelProfile`] is the checked form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    /// Version of this form.
    pub version: FormatVersion,
    /// Name, such as `llama-3-8b-q4_k_m`.
    pub name: String,
    /// Width of the hidden state (E).
    pub embedding_width: u32,
    /// Attention heads (H).
    pub heads: u32,
    /// Key and value heads (Hkv).
    pub kv_heads: u32,
    /// Width of one head (hd).
    pub head_width: u32,
    /// Width of the feed-forward part, of one expert in a mixture (F).
    pub feed_forward_width: u32,
    /// Vocabulary (V).
    pub vocabulary: u32,
    /// Experts, in a mixture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<Experts>,
    /// Bytes of one activation element on the wire; 4 for f32.
    pub activation_element_bytes: u32,
    /// Embedding table (`b_in`).
    pub embedding_bytes: Bytes,
    /// Output matrix and final norm (`b_out`). A tied model states the matrix here too.
    pub output_bytes: Bytes,
    /// The output matrix is the embedding table, so the head holds it once.
    #[serde(default)]
    pub tied: bool,
    /// FLOPs of one row of logits by weight type (`f_out`, 2·E·V).
    pub output_flops: BTreeMap<WeightType, Flops>,
    /// Layers in order.
    pub layers: Vec<LayerSpec>,
}

/// A model whose figures are possible and agree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "ModelSpec", into = "ModelSpec")]
pub struct ModelProfile(ModelSpec);

impl ModelProfile {
    /// Checks a specification.
    ///
    /// # Errors
    /// Names the field that is out of range or contradicts another.
    pub fn new(spec: ModelSpec) -> Result<Self, FieldError> {
        check_name("name", &spec.name)?;
        let widths = [
            ("embedding_width", spec.embedding_width),
            ("heads", spec.heads),
            ("kv_heads", spec.kv_heads),
            ("head_width", spec.head_width),
            ("feed_forward_width", spec.feed_forward_width),
            ("vocabulary", spec.vocabulary),
        ];
        for (field, width) in widths {
            check_range(field, f64::from(width), (1.0, f64::from(WIDTH_MAX)))?;
        }
        check_at_most("kv_heads", f64::from(spec.kv_heads), "heads", f64::from(spec.heads))?;
        let element = f64::from(spec.activation_element_bytes);
        check_range("activation_element_bytes", element, (1.0, 8.0))?;
        if let Some(experts) = spec.experts {
            let count = f64::from(experts.count);
            check_range("experts.count", count, (1.0, f64::from(EXPERTS_MAX)))?;
            check_range("experts.used", f64::from(experts.used), (1.0, f64::from(EXPERTS_MAX)))?;
            check_at_most("experts.used", f64::from(experts.used), "experts.count", count)?;
        }
        let memory = (1.0, MEMORY_BYTES_MAX as f64);
        check_range("embedding_bytes", spec.embedding_bytes.as_f64(), memory)?;
        check_range("output_bytes", spec.output_bytes.as_f64(), memory)?;
        check_flops("output_flops", &spec.output_flops)?;
        check_range("layers", spec.layers.len() as f64, (1.0, LAYERS_MAX as f64))?;
        for (index, layer) in spec.layers.iter().enumerate() {
            let mixture = spec.experts.is_some();
            check_layer(layer, mixture).map_err(|e| e.within(&format!("layers[{index}]")))?;
        }
        Ok(Self(spec))
    }

    /// A copy to change and check again.
    #[must_use]
    pub fn to_spec(&self) -> ModelSpec {
        self.0.clone()
    }

    /// Number of layers (L).
    #[must_use]
    pub fn layers_count(&self) -> u32 {
        self.0.layers.len() as u32
    }

    /// One layer.
    ///
    /// # Panics
    /// The index is not below [`Self::layers_count`].
    #[must_use]
    pub fn layer(&self, index: LayerIndex) -> &LayerSpec {
        &self.0.layers[index.index()]
    }

    /// All bytes of one layer, with every expert.
    ///
    /// # Panics
    /// As [`Self::layer`].
    #[must_use]
    pub fn layer_bytes(&self, index: LayerIndex) -> Bytes {
        self.bytes_of(self.layer(index))
    }

    /// Bytes of all layers.
    #[must_use]
    pub fn layers_bytes(&self) -> Bytes {
        self.0.layers.iter().map(|layer| self.bytes_of(layer)).sum()
    }

    /// Mean layer bytes (`b`), the figure Halda's equations use.
    #[must_use]
    pub fn mean_layer_bytes(&self) -> Bytes {
        Bytes::new(self.layers_bytes().count() / u64::from(self.layers_count()))
    }

    /// Mean bytes of a layer and its f16 KV for this many tokens (`b'`).
    #[must_use]
    pub fn mean_layer_bytes_with_kv(&self, kv_tokens: u32) -> Bytes {
        let kv: Bytes = self.0.layers.iter().map(|layer| layer_kv(layer, kv_tokens)).sum();
        let mean_kv = Bytes::new(kv.count() / u64::from(self.layers_count()));
        self.mean_layer_bytes() + mean_kv
    }

    /// Bytes one embedding look-up touches (`b_in / V`).
    #[must_use]
    pub fn embedding_row_bytes(&self) -> Bytes {
        Bytes::new(self.0.embedding_bytes.count() / u64::from(self.0.vocabulary))
    }

    /// Bytes Halda charges the head device with (`C_in = b_in/V + b_out`).
    #[must_use]
    pub fn head_touched_bytes(&self) -> Bytes {
        self.embedding_row_bytes() + self.0.output_bytes
    }

    /// Bytes the head device must hold: embedding and output matrix, once if tied.
    #[must_use]
    pub fn head_resident_bytes(&self) -> Bytes {
        if self.0.tied {
            return self.0.output_bytes;
        }
        self.0.embedding_bytes + self.0.output_bytes
    }

    /// Bytes of all weights.
    #[must_use]
    pub fn file_bytes(&self) -> Bytes {
        self.layers_bytes() + self.head_resident_bytes()
    }

    /// Bytes of one token's hidden state between devices.
    #[must_use]
    pub fn activation_bytes_per_token(&self) -> Bytes {
        Bytes::new(u64::from(self.0.embedding_width) * u64::from(self.0.activation_element_bytes))
    }

    /// KV bytes one token adds over all layers, which is what a hand-over sends per prompt token.
    #[must_use]
    pub fn kv_bytes_per_token(&self, kv: KvType) -> Bytes {
        self.0.layers.iter().map(|layer| kv.bytes(layer.kv_elements_per_token)).sum()
    }

    fn bytes_of(&self, layer: &LayerSpec) -> Bytes {
        let experts = self.0.experts.map_or(0, |experts| u64::from(experts.count));
        layer.dense_bytes + layer.expert_bytes.times(experts)
    }
}

impl Document for ModelProfile {
    const KIND: &'static str = "model profile";
}

impl Deref for ModelProfile {
    type Target = ModelSpec;
    fn deref(&self) -> &ModelSpec {
        &self.0
    }
}

impl TryFrom<ModelSpec> for ModelProfile {
    type Error = FieldError;
    fn try_from(spec: ModelSpec) -> Result<Self, FieldError> {
        Self::new(spec)
    }
}

impl From<ModelProfile> for ModelSpec {
    fn from(profile: ModelProfile) -> Self {
        profile.0
    }
}

/// What a compute buffer must be able to hold; see [`compute_buffer_bytes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferDemand {
    /// Tokens in one pass (u).
    pub micro_batch_tokens: u32,
    /// Context (C).
    pub context_tokens: u32,
    /// Without it the score matrix is in the buffer.
    pub flash_attention: bool,
    /// This side computes the logits.
    pub runs_head: bool,
    /// The GPU the buffer is on; none for the CPU.
    pub gpu: Option<GpuKind>,
}

/// Upper bound of a device's compute buffer (`c_cpu`, `c_gpu`, PLANNER 1.3): the larger of the
/// attention and feed-forward terms, activations, mask, logits, and the process reserve of a GPU.
#[must_use]
pub fn compute_buffer_bytes(model: &ModelProfile, demand: &BufferDemand) -> Bytes {
    const FLOAT: u64 = 4;
    const MIB: u64 = 1 << 20;
    let tokens = u64::from(demand.micro_batch_tokens);
    let context = u64::from(demand.context_tokens);
    let per_token = |elements: u64| Bytes::new(FLOAT * tokens).times(elements);
    let scores = if demand.flash_attention { 0 } else { context * u64::from(model.heads) };
    // In a mixture every used expert has its own intermediate rows.
    let used = model.experts.map_or(1, |experts| u64::from(experts.used));
    let feed_forward = 2 * u64::from(model.feed_forward_width) * used;
    let largest = per_token(scores).max(per_token(feed_forward));
    let width = u64::from(model.embedding_width);
    let shared = per_token(4 * width) + per_token(context);
    let logits = if demand.runs_head {
        per_token(u64::from(model.vocabulary)) + per_token(width)
    } else {
        Bytes::ZERO
    };
    let reserve = match demand.gpu {
        None | Some(GpuKind::Other) => Bytes::ZERO,
        Some(GpuKind::Cuda) => Bytes::new(700 * MIB),
        Some(GpuKind::Metal) => Bytes::new(300 * MIB),
    };
    largest + shared + logits + reserve
}

fn layer_kv(layer: &LayerSpec, kv_tokens: u32) -> Bytes {
    KvType::F16.bytes(layer.kv_elements_per_token).times(u64::from(kv_tokens))
}

fn check_flops(field: &str, flops: &BTreeMap<WeightType, Flops>) -> Result<(), FieldError> {
    if flops.is_empty() {
        return Err(FieldError::new(field, FieldProblem::Empty));
    }
    for (weight, amount) in flops {
        check_range(&format!("{field}.{weight}"), amount.value(), (0.0, 1e16))?;
    }
    Ok(())
}

fn check_layer(layer: &LayerSpec, mixture: bool) -> Result<(), FieldError> {
    let memory = (1.0, MEMORY_BYTES_MAX as f64);
    check_range("dense_bytes", layer.dense_bytes.as_f64(), memory)?;
    check_range("expert_bytes", layer.expert_bytes.as_f64(), (0.0, memory.1))?;
    if layer.expert_bytes > Bytes::ZERO && !mixture {
        return Err(FieldError::new("expert_bytes", FieldProblem::Needs("experts in the model")));
    }
    if let Attention::Sliding { window_tokens } = layer.attention {
        check_range("attention.window_tokens", f64::from(window_tokens), (1.0, 1e9))?;
    }
    check_range("kv_elements_per_token", layer.kv_elements_per_token as f64, (0.0, 1e9))?;
    check_flops("matmul_flops", &layer.matmul_flops)?;
    let attention = layer.attention_flops_per_context_token.value();
    check_range("attention_flops_per_context_token", attention, (0.0, 1e12))
}
