//! The tensors of a made model and what their elements look like, before any is made.

use motley_model::{Architecture, Gguf, GgufWriter, TensorType};

use super::MakeError;
use super::file_type::{MatrixRole, MixtureContext};
use super::recipe::{ModelRecipe, ModelShape};
use super::vocabulary;

/// One tensor to make.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PlannedTensor {
    pub(super) name: String,
    /// Elements of a row, and rows of all experts together; vectors have one row.
    pub(super) row_elements: u64,
    pub(super) rows: u64,
    /// Experts, where there is a matrix for each.
    pub(super) experts: Option<u64>,
    pub(super) tensor_type: TensorType,
    pub(super) values: Values,
}

impl PlannedTensor {
    fn dimensions(&self) -> Vec<u64> {
        match (self.experts, self.tensor_type) {
            (Some(experts), _) => vec![self.row_elements, self.rows / experts, experts],
            (None, TensorType::F32) if self.rows == 1 => vec![self.row_elements],
            (None, _) => vec![self.row_elements, self.rows],
        }
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.tensor_type.row_bytes(self.row_elements).expect("rows fit their type") * self.rows
    }
}

/// What the elements of a tensor are.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Values {
    /// Normally distributed.
    Normal { mean: f32, deviation: f32 },
    /// These.
    Exact(Vec<f32>),
}

/// A recipe that can be made: checked, with all its tensors in the order of the file.
#[derive(Debug, Clone)]
pub(super) struct ModelPlan {
    architecture: Architecture,
    vocabulary_size: usize,
    pub(super) tensors: Vec<PlannedTensor>,
}

impl ModelPlan {
    /// Checks `recipe` and lists the tensors of the model with a vocabulary of so many tokens.
    pub(super) fn new(recipe: &ModelRecipe, vocabulary_size: usize) -> Result<Self, MakeError> {
        let unsupported = || MakeError::UnsupportedArchitecture {
            name: recipe.name.clone(),
            architecture: recipe.architecture.clone(),
        };
        let architecture = Architecture::from_name(&recipe.architecture).ok_or_else(unsupported)?;
        let experts = recipe.shape.experts;
        // Only Llama has models with experts and models without.
        match architecture {
            Architecture::Llama => {}
            Architecture::Qwen3Moe if experts.is_some() => {}
            Architecture::Qwen2 | Architecture::Qwen3 | Architecture::Gemma3
                if experts.is_none() => {}
            _ => return Err(unsupported()),
        }
        check(&recipe.shape, vocabulary_size)?;
        let list = TensorList {
            architecture,
            shape: &recipe.shape,
            mixture: mixture(recipe, architecture),
            tensors: Vec::new(),
        };
        Ok(Self { architecture, vocabulary_size, tensors: list.whole(vocabulary_size as u64) })
    }

    /// The directory of the file: metadata and tensor table.
    pub(super) fn directory(
        &self,
        recipe: &ModelRecipe,
        donor: &Gguf<'_>,
    ) -> Result<GgufWriter, MakeError> {
        let mut writer = GgufWriter::new();
        let title = format!("{} (random weights, seed {})", recipe.name, recipe.seed);
        writer
            .metadata("general.architecture", self.architecture.name())?
            .metadata("general.type", "model")?
            .metadata("general.name", title.as_str())?
            .metadata("general.file_type", recipe.file_type.id())?
            .metadata("general.quantization_version", 2_u32)?;
        self.put_shape(&recipe.shape, &mut writer)?;
        vocabulary::copy(donor, self.vocabulary_size, &mut writer)?;
        for tensor in &self.tensors {
            writer.tensor(&tensor.name, &tensor.dimensions(), tensor.tensor_type)?;
        }
        Ok(writer)
    }

    fn put_shape(&self, shape: &ModelShape, writer: &mut GgufWriter) -> Result<(), MakeError> {
        let counts = [
            ("vocab_size", self.vocabulary_size),
            ("context_length", shape.context_length as usize),
            ("embedding_length", shape.embedding_length),
            ("block_count", shape.blocks),
            ("feed_forward_length", shape.feed_forward_length),
            ("attention.head_count", shape.heads),
            ("attention.head_count_kv", shape.kv_heads),
            ("attention.key_length", shape.head_length),
            ("attention.value_length", shape.head_length),
            ("rope.dimension_count", shape.head_length),
        ];
        let key = |suffix: &str| format!("{}.{suffix}", self.architecture);
        for (suffix, count) in counts {
            // Every count was compared with a limit far below 2^32.
            writer.metadata(&key(suffix), count as u32)?;
        }
        writer
            .metadata(&key("rope.freq_base"), shape.rope_frequency_base)?
            .metadata(&key("attention.layer_norm_rms_epsilon"), shape.rms_norm_epsilon)?;
        if let Some(experts) = shape.experts {
            for (suffix, count) in [
                ("expert_count", experts.count),
                ("expert_used_count", experts.used),
                ("expert_feed_forward_length", shape.feed_forward_length),
            ] {
                writer.metadata(&key(suffix), count as u32)?;
            }
        }
        if let (Architecture::Gemma3, Some(window)) = (self.architecture, shape.sliding_window) {
            writer
                .metadata(&key("attention.sliding_window"), window.tokens)?
                .metadata(&key("attention.sliding_window_pattern"), window.period)?;
        }
        Ok(())
    }
}

fn mixture(recipe: &ModelRecipe, architecture: Architecture) -> MixtureContext {
    let shape = &recipe.shape;
    let grouped_queries = shape.heads != shape.kv_heads;
    let large_class = match architecture {
        Architecture::Llama => shape.original_blocks == 80 && grouped_queries,
        Architecture::Qwen2 => shape.original_blocks == 80,
        Architecture::Qwen3 | Architecture::Qwen3Moe | Architecture::Gemma3 => false,
    };
    MixtureContext {
        file_type: recipe.file_type,
        blocks: shape.blocks,
        tied_embeddings: shape.tied_embeddings,
        small_values: large_class,
    }
}

fn check(shape: &ModelShape, vocabulary_size: usize) -> Result<(), MakeError> {
    let counts = [
        ("blocks", shape.blocks, 512),
        ("embedding length", shape.embedding_length, 1 << 20),
        ("feed-forward length", shape.feed_forward_length, 1 << 24),
        ("heads", shape.heads, 1 << 12),
        ("key and value heads", shape.kv_heads, 1 << 12),
        ("head length", shape.head_length, 1 << 14),
        ("vocabulary size", vocabulary_size, 1 << 24),
        ("context length", shape.context_length as usize, 1 << 26),
    ];
    for (field, value, value_max) in counts {
        if !(1..=value_max).contains(&value) {
            return Err(MakeError::OutOfRange { field, value, value_max });
        }
    }
    if let Some(experts) = shape.experts {
        for (field, value, value_max) in
            [("experts", experts.count, 512), ("used experts", experts.used, experts.count)]
        {
            if !(1..=value_max).contains(&value) {
                return Err(MakeError::OutOfRange { field, value, value_max });
            }
        }
    }
    if !shape.heads.is_multiple_of(shape.kv_heads) {
        let (heads, kv_heads) = (shape.heads, shape.kv_heads);
        return Err(MakeError::HeadsNotShared { heads, kv_heads });
    }
    if !shape.head_length.is_multiple_of(2) {
        return Err(MakeError::OddHeadLength { head_length: shape.head_length });
    }
    for (field, value) in [
        ("rope frequency base", shape.rope_frequency_base),
        ("norm epsilon", shape.rms_norm_epsilon),
    ] {
        if !value.is_finite() || value <= 0.0 {
            return Err(MakeError::NotPositive { field, value });
        }
    }
    Ok(())
}

/// Collects the tensors of one model.
///
/// The deviations let attention look at some tokens more than at others, and let the layers
/// outweigh the embedding: otherwise a tied head would answer every token with itself. Tried on
/// four seeds per architecture, 64 greedy tokens had 41 to 64 distinct ones.
struct TensorList<'a> {
    architecture: Architecture,
    shape: &'a ModelShape,
    mixture: MixtureContext,
    tensors: Vec<PlannedTensor>,
}

/// Standard deviation of the logits, as real models have it.
const LOGIT_DEVIATION: f32 = 2.5;

/// Queries and keys are this much larger than one, so that attention is not uniform.
const QUERY_GAIN: f32 = 1.7;

/// Makes up for what the gate takes from the feed-forward network.
const DOWN_GAIN: f32 = 1.7;

/// Standard deviation of the scores of experts: those that a row uses differ clearly from the others.
const ROUTER_GAIN: f32 = 2.0;

/// Weight of Gemma's norms after attention and feed-forward. Its embedding is scaled up by the
/// root of the width; the layers have to outweigh that.
const POST_NORM_MEAN: f32 = 8.0;

impl TensorList<'_> {
    fn whole(mut self, tokens: u64) -> Vec<PlannedTensor> {
        let width = self.shape.embedding_length as u64;
        // A norm of one makes logits as large as the rows of the head. Gemma's embedding has to
        // be smaller by the root of the factor that it is scaled by; the norm restores the logits.
        let shrink = match self.architecture {
            Architecture::Gemma3 => (width as f32).powf(0.25),
            _ => 1.0,
        };
        let head_gain = LOGIT_DEVIATION / shrink;
        self.matrix("token_embd.weight", MatrixRole::Embedding, [width, tokens], head_gain);
        if let Some(stretch) = &self.shape.rope_stretch
            && self.architecture == Architecture::Llama
        {
            let divisors = stretch.divisors(self.shape.head_length, self.shape.rope_frequency_base);
            self.vector("rope_freqs.weight", divisors.len() as u64, Values::Exact(divisors));
        }
        for block in 0..self.shape.blocks {
            self.block(block);
        }
        self.norm("output_norm.weight", width, shrink);
        if !self.shape.tied_embeddings {
            self.matrix("output.weight", MatrixRole::Output, [width, tokens], head_gain);
        }
        self.tensors
    }

    fn block(&mut self, block: usize) {
        let width = self.shape.embedding_length as u64;
        let head = self.shape.head_length as u64;
        let query_rows = self.shape.heads as u64 * head;
        let kv_rows = self.shape.kv_heads as u64 * head;
        let name = |part: &str| format!("blk.{block}.{part}");
        let normed_heads = matches!(
            self.architecture,
            Architecture::Qwen3 | Architecture::Qwen3Moe | Architecture::Gemma3
        );
        let query_gain = if normed_heads { 1.0 } else { QUERY_GAIN };
        let post_norm = self.architecture == Architecture::Gemma3;
        let value = MatrixRole::Value { block };
        let other = MatrixRole::Other;

        self.norm(&name("attn_norm.weight"), width, 1.0);
        self.matrix(&name("attn_q.weight"), other, [width, query_rows], query_gain);
        self.matrix(&name("attn_k.weight"), other, [width, kv_rows], query_gain);
        self.matrix(&name("attn_v.weight"), value, [width, kv_rows], 1.0);
        if self.architecture == Architecture::Qwen2 {
            // A large bias of the values would make all tokens alike.
            for (part, rows, deviation) in [
                ("attn_q.bias", query_rows, 0.3),
                ("attn_k.bias", kv_rows, 0.3),
                ("attn_v.bias", kv_rows, 0.05),
            ] {
                self.vector(&name(part), rows, Values::Normal { mean: 0.0, deviation });
            }
        }
        if normed_heads {
            self.norm(&name("attn_q_norm.weight"), head, QUERY_GAIN);
            self.norm(&name("attn_k_norm.weight"), head, QUERY_GAIN);
        }
        self.matrix(&name("attn_output.weight"), other, [query_rows, width], 1.0);
        if post_norm {
            self.norm(&name("post_attention_norm.weight"), width, POST_NORM_MEAN);
        }
        self.norm(&name("ffn_norm.weight"), width, 1.0);
        self.feed_forward(block);
        if post_norm {
            self.norm(&name("post_ffw_norm.weight"), width, POST_NORM_MEAN);
        }
    }

    /// The feed-forward network of a block, or the router and its experts.
    fn feed_forward(&mut self, block: usize) {
        let width = self.shape.embedding_length as u64;
        let hidden = self.shape.feed_forward_length as u64;
        let name = |part: &str| format!("blk.{block}.{part}");
        let other = MatrixRole::Other;
        let down = MatrixRole::Down { block };
        let Some(experts) = self.shape.experts else {
            self.matrix(&name("ffn_gate.weight"), other, [width, hidden], 1.0);
            self.matrix(&name("ffn_up.weight"), other, [width, hidden], 1.0);
            self.matrix(&name("ffn_down.weight"), down, [hidden, width], DOWN_GAIN);
            return;
        };
        let router = MatrixRole::Router;
        self.matrix(
            &name("ffn_gate_inp.weight"),
            router,
            [width, experts.count as u64],
            ROUTER_GAIN,
        );
        for (part, role, [row_elements, rows], gain) in [
            ("ffn_gate_exps.weight", MatrixRole::Expert, [width, hidden], 1.0),
            ("ffn_up_exps.weight", MatrixRole::Expert, [width, hidden], 1.0),
            ("ffn_down_exps.weight", MatrixRole::ExpertDown { block }, [hidden, width], DOWN_GAIN),
        ] {
            let rows = rows * experts.count as u64;
            self.matrix(&name(part), role, [row_elements, rows], gain);
            let made = self.tensors.last_mut().expect("made just before");
            made.experts = Some(experts.count as u64);
        }
    }

    /// A matrix that makes vectors of deviation `gain` out of vectors of deviation one.
    fn matrix(&mut self, name: &str, role: MatrixRole, [row_elements, rows]: [u64; 2], gain: f32) {
        self.tensors.push(PlannedTensor {
            name: name.to_owned(),
            row_elements,
            rows,
            experts: None,
            tensor_type: self.mixture.tensor_type(role, row_elements),
            values: Values::Normal { mean: 0.0, deviation: gain / (row_elements as f32).sqrt() },
        });
    }

    fn norm(&mut self, name: &str, elements: u64, mean: f32) {
        self.vector(name, elements, Values::Normal { mean, deviation: 0.1 * mean });
    }

    fn vector(&mut self, name: &str, elements: u64, values: Values) {
        self.tensors.push(PlannedTensor {
            name: name.to_owned(),
            row_elements: elements,
            rows: 1,
            experts: None,
            tensor_type: TensorType::F32,
            values,
        });
    }
}
