//! Recipes of named models.
//!
//! Shapes are those of the models' public configurations. Models whose architecture cannot be
//! made yet are described all the same; making one says which architectures can.

use super::file_type::FileType;
use super::recipe::{ExpertShape, Llama3Stretch, ModelRecipe, ModelShape, SlidingWindowShape};

/// A name that no preset has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{}' is no preset (known are {})", name.escape_debug(), known_names())]
pub struct UnknownPreset {
    name: String,
}

/// The recipe of a named model with seed 0, cut to its first `blocks` layers where that is given.
///
/// # Errors
///
/// [`UnknownPreset`] lists the names there are.
pub fn preset(name: &str, blocks: Option<usize>) -> Result<ModelRecipe, UnknownPreset> {
    let row = PRESETS
        .iter()
        .find(|row| row.name.eq_ignore_ascii_case(name))
        .ok_or_else(|| UnknownPreset { name: name.to_owned() })?;
    let mut recipe = row.recipe();
    if let Some(blocks) = blocks {
        recipe.shape.blocks = blocks;
    }
    Ok(recipe)
}

/// All names that [`preset`] knows.
pub fn preset_names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|row| row.name)
}

/// The recipe of a small model of an architecture: made in milliseconds, with the features of its
/// family and rows that suit every tensor type. Tests use it, and whoever changes single numbers.
///
/// It takes the vocabulary as it is. A recipe of an architecture that cannot be made is refused
/// when it is made.
pub fn small_model(architecture: &str, file_type: FileType) -> ModelRecipe {
    let family = [&LLAMA_2, &QWEN_2_5, &QWEN_3, &QWEN_3_EXPERTS, &GEMMA_3]
        .into_iter()
        .find(|family| family.architecture == architecture)
        .unwrap_or(&LLAMA_2);
    let mut recipe = Row {
        name: "small",
        family,
        file_type,
        sizes: [4, 256, 512, 4, 2],
        head_length: 64,
        vocabulary_size: 0,
    }
    .recipe();
    recipe.name = format!("small {architecture}");
    architecture.clone_into(&mut recipe.architecture);
    recipe.shape.vocabulary_size = None;
    if let Some(experts) = &mut recipe.shape.experts {
        *experts = ExpertShape { count: 8, used: 3 };
        recipe.shape.feed_forward_length = 256;
    }
    if let Some(window) = &mut recipe.shape.sliding_window {
        // Four blocks and a short text see both kinds of layers, and the end of the window.
        *window = SlidingWindowShape { tokens: 16, period: 3 };
    }
    recipe
}

fn known_names() -> String {
    preset_names().collect::<Vec<_>>().join(", ")
}

/// One named model: what differs within its family, and the family.
struct Row {
    name: &'static str,
    family: &'static Family,
    file_type: FileType,
    /// Blocks, embedding length, feed-forward length, heads, key and value heads.
    sizes: [usize; 5],
    head_length: usize,
    vocabulary_size: usize,
}

/// What the models of one family share.
struct Family {
    architecture: &'static str,
    context_length: u32,
    rope_frequency_base: f32,
    rms_norm_epsilon: f32,
    rope_stretch: Option<Llama3Stretch>,
    sliding_window: Option<SlidingWindowShape>,
    experts: Option<ExpertShape>,
    tied_embeddings: bool,
}

const LLAMA_1: Family = Family {
    architecture: "llama",
    context_length: 2_048,
    rope_frequency_base: 10_000.0,
    rms_norm_epsilon: 1e-6,
    rope_stretch: None,
    sliding_window: None,
    experts: None,
    tied_embeddings: false,
};

const LLAMA_2: Family = Family { context_length: 4_096, rms_norm_epsilon: 1e-5, ..LLAMA_1 };

const LLAMA_3: Family = Family { context_length: 8_192, rope_frequency_base: 500_000.0, ..LLAMA_2 };

const LLAMA_3_2: Family = Family {
    context_length: 131_072,
    rope_stretch: Some(Llama3Stretch {
        factor: 32.0,
        low_frequency_factor: 1.0,
        high_frequency_factor: 4.0,
        original_context_length: 8_192,
    }),
    tied_embeddings: true,
    ..LLAMA_3
};

const QWEN_2_5: Family = Family {
    architecture: "qwen2",
    context_length: 32_768,
    rope_frequency_base: 1_000_000.0,
    ..LLAMA_1
};

const QWEN_3: Family = Family { architecture: "qwen3", context_length: 40_960, ..QWEN_2_5 };

const QWEN_3_TIED: Family = Family { tied_embeddings: true, ..QWEN_3 };

const QWEN_3_EXPERTS: Family = Family {
    architecture: "qwen3moe",
    experts: Some(ExpertShape { count: 128, used: 8 }),
    ..QWEN_3
};

const GEMMA_3: Family = Family {
    architecture: "gemma3",
    context_length: 32_768,
    rope_frequency_base: 1_000_000.0,
    sliding_window: Some(SlidingWindowShape { tokens: 512, period: 6 }),
    tied_embeddings: true,
    ..LLAMA_1
};

const GPT_OSS: Family = Family {
    architecture: "gpt-oss",
    context_length: 131_072,
    rope_frequency_base: 150_000.0,
    rms_norm_epsilon: 1e-5,
    sliding_window: Some(SlidingWindowShape { tokens: 128, period: 2 }),
    experts: Some(ExpertShape { count: 32, used: 4 }),
    ..LLAMA_1
};

const fn row(
    name: &'static str,
    family: &'static Family,
    file_type: FileType,
    sizes: [usize; 5],
    [head_length, vocabulary_size]: [usize; 2],
) -> Row {
    Row { name, family, file_type, sizes, head_length, vocabulary_size }
}

use FileType::{MXFP4_MOE, Q4_0, Q4_K_M, Q4_K_S, Q8_0};

#[rustfmt::skip]
const PRESETS: &[Row] = &[
    row("llama-2-7b-q4_0", &LLAMA_2, Q4_0, [32, 4_096, 11_008, 32, 32], [128, 32_000]),
    row("llama-3-8b-q4_k_m", &LLAMA_3, Q4_K_M, [32, 4_096, 14_336, 32, 8], [128, 128_256]),
    row("llama-3-70b-q4_k_m", &LLAMA_3, Q4_K_M, [80, 8_192, 28_672, 64, 8], [128, 128_256]),
    row("llama-3-70b-q4_k_s", &LLAMA_3, Q4_K_S, [80, 8_192, 28_672, 64, 8], [128, 128_256]),
    row("qwen2.5-7b-q4_k_m", &QWEN_2_5, Q4_K_M, [28, 3_584, 18_944, 28, 4], [128, 152_064]),
    row("qwen2.5-14b-q4_k_m", &QWEN_2_5, Q4_K_M, [48, 5_120, 13_824, 40, 8], [128, 152_064]),
    row("qwen2.5-32b-q4_k_m", &QWEN_2_5, Q4_K_M, [64, 5_120, 27_648, 40, 8], [128, 152_064]),
    row("qwen2.5-72b-q4_k_m", &QWEN_2_5, Q4_K_M, [80, 8_192, 29_568, 64, 8], [128, 152_064]),
    row("llama-1-30b-q4_k_m", &LLAMA_1, Q4_K_M, [60, 6_656, 17_920, 52, 52], [128, 32_000]),
    row("llama-1-30b-q4_k_s", &LLAMA_1, Q4_K_S, [60, 6_656, 17_920, 52, 52], [128, 32_000]),
    row("llama-3-45b-q4_k_s", &LLAMA_3, Q4_K_S, [50, 8_192, 28_672, 64, 8], [128, 128_256]),
    row("llama-3-60b-q4_k_s", &LLAMA_3, Q4_K_S, [68, 8_192, 28_672, 64, 8], [128, 128_256]),
    row("llama-1-65b-q4_k_m", &LLAMA_1, Q4_K_M, [80, 8_192, 22_016, 64, 64], [128, 32_000]),
    row("llama-1-65b-q4_k_s", &LLAMA_1, Q4_K_S, [80, 8_192, 22_016, 64, 64], [128, 32_000]),
    row("qwen3-30b-a3b-q4_k_m", &QWEN_3_EXPERTS, Q4_K_M, [48, 2_048, 768, 32, 4], [128, 151_936]),
    row("gpt-oss-20b-mxfp4", &GPT_OSS, MXFP4_MOE, [24, 2_880, 2_880, 64, 8], [64, 201_088]),
    row("llama-3.2-1b-q4_0", &LLAMA_3_2, Q4_0, [16, 2_048, 8_192, 32, 8], [64, 128_256]),
    row("qwen3-0.6b-q8_0", &QWEN_3_TIED, Q8_0, [28, 1_024, 3_072, 16, 8], [128, 151_936]),
    row("qwen3-8b-q4_k_m", &QWEN_3, Q4_K_M, [36, 4_096, 12_288, 32, 8], [128, 151_936]),
    row("gemma-3-1b-q4_k_m", &GEMMA_3, Q4_K_M, [26, 1_152, 6_912, 4, 1], [256, 262_144]),
];

impl Row {
    fn recipe(&self) -> ModelRecipe {
        let [blocks, embedding_length, feed_forward_length, heads, kv_heads] = self.sizes;
        let family = self.family;
        ModelRecipe {
            name: self.name.to_owned(),
            architecture: family.architecture.to_owned(),
            shape: ModelShape {
                blocks,
                original_blocks: blocks,
                embedding_length,
                feed_forward_length,
                heads,
                kv_heads,
                head_length: self.head_length,
                vocabulary_size: Some(self.vocabulary_size),
                tied_embeddings: family.tied_embeddings,
                experts: family.experts,
                sliding_window: family.sliding_window,
                context_length: family.context_length,
                rope_frequency_base: family.rope_frequency_base,
                rope_stretch: family.rope_stretch,
                rms_norm_epsilon: family.rms_norm_epsilon,
            },
            file_type: self.file_type,
            seed: 0,
        }
    }
}
