//! Weight types and the sizes that llama.cpp's file types give a model (PLANNER 8.3).

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::document::FormatVersion;
use crate::field::FieldError;
use crate::model::{Attention, Experts, LayerSpec, ModelProfile, ModelSpec};
use crate::units::{Bytes, Flops};

macro_rules! weight_types {
    ($($name:ident = $label:literal, $bytes:literal / $elements:literal;)*) => {
        /// How a matrix is stored, by ggml's names.
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[non_exhaustive]
        pub enum WeightType {
            $(
                #[doc = concat!("`", $label, "`: ", $bytes, " bytes per ", $elements, " elements.")]
                #[serde(rename = $label)]
                $name,
            )*
        }

        impl WeightType {
            /// Every type.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Bytes and elements of one block.
            #[must_use]
            pub const fn block(self) -> (u64, u64) {
                match self {
                    $(Self::$name => ($bytes, $elements),)*
                }
            }

            /// Name in files.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self {
                    $(Self::$name => $label,)*
                }
            }
        }
    };
}

weight_types! {
    F32 = "f32", 4 / 1;
    F16 = "f16", 2 / 1;
    Bf16 = "bf16", 2 / 1;
    Q4_0 = "q4_0", 18 / 32;
    Q4_1 = "q4_1", 20 / 32;
    Q5_0 = "q5_0", 22 / 32;
    Q5_1 = "q5_1", 24 / 32;
    Q8_0 = "q8_0", 34 / 32;
    Q2K = "q2_k", 84 / 256;
    Q3K = "q3_k", 110 / 256;
    Q4K = "q4_k", 144 / 256;
    Q5K = "q5_k", 176 / 256;
    Q6K = "q6_k", 210 / 256;
    Iq1S = "iq1_s", 50 / 256;
    Iq1M = "iq1_m", 56 / 256;
    Iq2Xxs = "iq2_xxs", 66 / 256;
    Iq2Xs = "iq2_xs", 74 / 256;
    Iq2S = "iq2_s", 82 / 256;
    Iq3Xxs = "iq3_xxs", 98 / 256;
    Iq3S = "iq3_s", 110 / 256;
    Iq4Nl = "iq4_nl", 18 / 32;
    Iq4Xs = "iq4_xs", 136 / 256;
    Mxfp4 = "mxfp4", 17 / 32;
}

impl WeightType {
    /// Bytes of a matrix with this many elements, a whole number of blocks.
    #[must_use]
    pub const fn bytes(self, elements: u64) -> Bytes {
        let (block_bytes, block_elements) = self.block();
        Bytes::new(elements / block_elements * block_bytes)
    }

    /// The type a k-quant falls back to when a row is no whole number of its blocks.
    const fn for_row(self, row_elements: u64) -> Self {
        if row_elements.is_multiple_of(self.block().1) {
            return self;
        }
        match self {
            Self::Q4K => Self::Q5_0,
            Self::Q5K => Self::Q5_1,
            Self::Q6K => Self::Q8_0,
            other => other,
        }
    }
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// A llama.cpp file type whose type rule is known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileType {
    /// All matrices Q4_0, output Q6_K.
    Q4_0,
    /// All matrices Q8_0.
    Q8_0,
    /// Mixed Q4_K and Q6_K.
    Q4KMedium,
    /// Mostly Q4_K, Q5_K in the first layers.
    Q4KSmall,
    /// Experts MXFP4, everything else Q8_0 (gpt-oss).
    Mxfp4Experts,
}

/// Hyper-parameters from which layer sizes follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelShape {
    /// Name of the profile to make.
    pub name: String,
    /// Layers (L).
    pub layers: u32,
    /// Hidden width (E).
    pub embedding_width: u32,
    /// Heads (H).
    pub heads: u32,
    /// KV heads.
    pub kv_heads: u32,
    /// Head width.
    pub head_width: u32,
    /// Feed-forward width, of one expert in a mixture.
    pub feed_forward_width: u32,
    /// Vocabulary.
    pub vocabulary: u32,
    /// Experts.
    pub experts: Option<Experts>,
    /// Extra f32 elements of a layer beyond its two norms: biases, head norms, sinks.
    pub extra_f32_per_layer: u64,
    /// Extra f32 elements of one expert: biases.
    pub extra_f32_per_expert: u64,
    /// Window of the even layers, where the model alternates.
    pub alternating_window_tokens: Option<u32>,
}

/// A shape for which no valid profile exists.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum QuantError {
    /// A figure of the resulting profile is refused.
    #[error("the shape gives no valid profile")]
    Profile(#[from] FieldError),
}

/// Derives a model profile from its shape by the type rules of llama.cpp's quantiser.
///
/// # Errors
/// The shape has an impossible figure.
pub fn quantised_model(
    shape: &ModelShape,
    file_type: FileType,
) -> Result<ModelProfile, QuantError> {
    let width = u64::from(shape.embedding_width);
    let table = width * u64::from(shape.vocabulary);
    let (embedding, output) = table_types(file_type);
    let norm = WeightType::F32.bytes(width);
    Ok(ModelProfile::new(ModelSpec {
        version: FormatVersion::default(),
        name: shape.name.clone(),
        embedding_width: shape.embedding_width,
        heads: shape.heads,
        kv_heads: shape.kv_heads,
        head_width: shape.head_width,
        feed_forward_width: shape.feed_forward_width,
        vocabulary: shape.vocabulary,
        experts: shape.experts,
        activation_element_bytes: 4,
        embedding_bytes: embedding.for_row(width).bytes(table),
        output_bytes: output.for_row(width).bytes(table) + norm,
        tied: false,
        output_flops: BTreeMap::from([(output.for_row(width), flops(2 * table))]),
        layers: (0..shape.layers).map(|index| layer(shape, file_type, index)).collect(),
    })?)
}

fn table_types(file_type: FileType) -> (WeightType, WeightType) {
    match file_type {
        FileType::Q4_0 => (WeightType::Q4_0, WeightType::Q6K),
        FileType::Q8_0 | FileType::Mxfp4Experts => (WeightType::Q8_0, WeightType::Q8_0),
        FileType::Q4KMedium | FileType::Q4KSmall => (WeightType::Q4K, WeightType::Q6K),
    }
}

/// Types of one layer's matrices.
struct LayerTypes {
    base: WeightType,
    attention_v: WeightType,
    ffn_gate_up: WeightType,
    ffn_down: WeightType,
}

fn layer_types(shape: &ModelShape, file_type: FileType, index: u32) -> LayerTypes {
    use WeightType::{Mxfp4, Q4_0, Q4K, Q5K, Q6K, Q8_0};
    let eighth = shape.layers / 8;
    let uniform =
        |base, ffn| LayerTypes { base, attention_v: base, ffn_gate_up: ffn, ffn_down: ffn };
    // 80-layer models with eight query heads per KV head have small v matrices, which get one step
    // more wherever they would be Q4_K.
    let small_v = shape.layers == 80 && shape.heads == 8 * shape.kv_heads;
    let raise_v = |weight| if small_v && weight == Q4K { Q5K } else { weight };
    match file_type {
        FileType::Q4_0 => uniform(Q4_0, Q4_0),
        FileType::Q8_0 => uniform(Q8_0, Q8_0),
        FileType::Mxfp4Experts => uniform(Q8_0, Mxfp4),
        FileType::Q4KMedium => {
            let more_bits =
                index < eighth || index >= 7 * shape.layers / 8 || (index - eighth) % 3 == 2;
            let raised = if more_bits { Q6K } else { Q4K };
            LayerTypes { attention_v: raise_v(raised), ffn_down: raised, ..uniform(Q4K, Q4K) }
        }
        FileType::Q4KSmall => LayerTypes {
            attention_v: raise_v(if index < 4 { Q5K } else { Q4K }),
            ffn_down: if index < eighth { Q5K } else { Q4K },
            ..uniform(Q4K, Q4K)
        },
    }
}

fn layer(shape: &ModelShape, file_type: FileType, index: u32) -> LayerSpec {
    let types = layer_types(shape, file_type, index);
    let width = u64::from(shape.embedding_width);
    let query = u64::from(shape.heads) * u64::from(shape.head_width);
    let kv = u64::from(shape.kv_heads) * u64::from(shape.head_width);
    let inner = u64::from(shape.feed_forward_width);
    // (type, row length, rows); FLOPs are two per element.
    let attention = [
        (types.base, width, query),
        (types.base, width, kv),
        (types.attention_v, width, kv),
        (types.base, query, width),
    ];
    let feed_forward = [(types.ffn_gate_up, width, 2 * inner), (types.ffn_down, inner, width)];
    let mut dense = WeightType::F32.bytes(2 * width + shape.extra_f32_per_layer);
    let mut work = BTreeMap::new();
    for matrix in attention {
        dense += add_matrix(&mut work, matrix, 1);
    }
    let mut expert = Bytes::ZERO;
    match shape.experts {
        None => {
            for matrix in feed_forward {
                dense += add_matrix(&mut work, matrix, 1);
            }
        }
        Some(experts) => {
            let router = (WeightType::F32, width, u64::from(experts.count));
            dense += add_matrix(&mut work, router, 1);
            expert += WeightType::F32.bytes(shape.extra_f32_per_expert);
            for matrix in feed_forward {
                expert += add_matrix(&mut work, matrix, u64::from(experts.used));
            }
        }
    }
    let attention = match shape.alternating_window_tokens {
        Some(window_tokens) if index.is_multiple_of(2) => Attention::Sliding { window_tokens },
        _ => Attention::Full,
    };
    LayerSpec {
        dense_bytes: dense,
        expert_bytes: expert,
        attention,
        kv_elements_per_token: 2 * kv,
        matmul_flops: work.into_iter().map(|(weight, count)| (weight, flops(count))).collect(),
        attention_flops_per_context_token: flops(4 * query),
    }
}

/// Adds the FLOPs of a matrix used `times` per token and returns the bytes it occupies once.
fn add_matrix(
    work: &mut BTreeMap<WeightType, u64>,
    matrix: (WeightType, u64, u64),
    times: u64,
) -> Bytes {
    let (weight, row_elements, rows) = matrix;
    let weight = weight.for_row(row_elements);
    let elements = row_elements * rows;
    *work.entry(weight).or_default() += 2 * elements * times;
    weight.bytes(elements)
}

fn flops(count: u64) -> Flops {
    Flops::new(count as f64).expect("a count is finite and not negative")
}
