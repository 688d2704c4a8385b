//! A model as a whole: joined from its files, checked, and owned.

use crate::TensorType;
use crate::gguf::{Gguf, MetadataError};
use crate::hyper::{Architecture, HyperParameters};
use crate::layers::{LayerTensors, TensorInfo, TensorTable};
use crate::split;
use crate::vocabulary::{VocabularyError, VocabularySummary};

/// Everything an engine and a planner need to know about a model, without its weights.
///
/// One can only be made from files, and then every tensor is there, has the shape that the
/// hyper-parameters demand, and lies inside its file. It borrows nothing.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ModelDirectory {
    /// The numbers that shape the graph.
    pub hyper: HyperParameters,
    /// The tensors of every layer; as many as `hyper.block_count`.
    pub layers: Vec<LayerTensors>,
    /// One row per token, `[embedding, vocabulary]`.
    pub embedding: TensorInfo,
    /// Norm after the last layer, `[embedding]`.
    pub output_norm: TensorInfo,
    /// Matrix of the head, `[embedding, vocabulary]`; none where the embedding is used (tied).
    pub output: Option<TensorInfo>,
    /// Bias of the logits, `[vocabulary]`.
    pub output_bias: Option<TensorInfo>,
    /// Divisors of the rotary frequencies, `[rope.dimension_count / 2]`; Llama 3's scaling.
    pub rope_frequencies: Option<TensorInfo>,
    /// What people read.
    pub description: ModelDescription,
}

/// What a file says about itself beside the numbers of its graph.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModelDescription {
    /// The model's name.
    pub name: Option<String>,
    /// The template that turns a conversation into a prompt.
    pub chat_template: Option<String>,
    /// Templates for other purposes, by their name (`tool_use`, `rag`).
    pub named_chat_templates: Vec<(String, String)>,
    /// The vocabulary, if the file has one.
    pub vocabulary: Option<VocabularySummary>,
    /// The mix of tensor types, such as `Q4_K_M`, if the file says it and it is a known one.
    pub file_type: Option<&'static str>,
    /// The type that most bytes of the model's matrices have.
    pub dominant_type: TensorType,
    /// The length of each of its files in bytes.
    pub file_bytes: Vec<u64>,
}

/// Why files are no model that can be run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// No file was given.
    #[error("a model needs at least one file")]
    NoFiles,
    /// Another number of files than the model was cut into.
    #[error("the model is cut into {declared} files, {given} were given")]
    SplitCount {
        /// How many there should be.
        declared: u64,
        /// How many there are.
        given: usize,
    },
    /// A file that belongs to another place.
    #[error("file {} of the model says it is {}", position + 1, part_name(*number))]
    SplitNumber {
        /// Where it stands, from zero.
        position: usize,
        /// Where it says it belongs, from zero.
        number: Option<u64>,
    },
    /// Parts of different models, or a part was changed.
    #[error("the files have {found} tensors together, the first says {declared}")]
    SplitTensorCount {
        /// What the first file says.
        declared: u64,
        /// How many there are.
        found: usize,
    },
    /// One tensor in two files.
    #[error("tensor '{name}' is in file {} and again in file {}", first_file + 1, second_file + 1)]
    DuplicateTensor {
        /// The tensor.
        name: String,
        /// The first file, from zero.
        first_file: usize,
        /// The second file, from zero.
        second_file: usize,
    },
    /// A file that goes with a model, such as an adapter.
    #[error("the file is of type '{}', not 'model'", kind.escape_debug())]
    NotAModel {
        /// What it says it is.
        kind: String,
    },
    /// A family of models that the engine cannot run.
    #[error("architecture '{}' is not supported (supported are {})", name.escape_debug(), supported())]
    UnknownArchitecture {
        /// What the file says.
        name: String,
    },
    /// A key is missing or has another type.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The vocabulary is broken.
    #[error(transparent)]
    Vocabulary(#[from] VocabularyError),
    /// A number that no model has.
    #[error("metadata key '{key}' is {value}, allowed are {min} to {max}")]
    OutOfRange {
        /// The key.
        key: String,
        /// Its value.
        value: u64,
        /// The least that is allowed.
        min: u64,
        /// The most that is allowed.
        max: u64,
    },
    /// A number that is none.
    #[error("metadata key '{key}' is {value}, expected is a finite number")]
    NotFinite {
        /// The key.
        key: String,
        /// Its value.
        value: f64,
    },
    /// An array with another length than the model has layers.
    #[error("metadata key '{key}' has {actual} entries for {expected} layers")]
    ArrayLength {
        /// The key.
        key: String,
        /// The number of layers.
        expected: u64,
        /// Its number of entries.
        actual: usize,
    },
    /// Key and value heads that cannot be shared among query heads.
    #[error("layer {layer} has {heads} heads, no multiple of its {kv_heads} key and value heads")]
    HeadsNotShared {
        /// The layer.
        layer: usize,
        /// Query heads.
        heads: u64,
        /// Key and value heads.
        kv_heads: u64,
    },
    /// A rotation that does not fit the heads.
    #[error("metadata key '{key}' is {dimension_count}, which does not fit heads of {key_length}")]
    RopeDimensions {
        /// The key.
        key: String,
        /// Elements to rotate.
        dimension_count: u64,
        /// Elements of a head.
        key_length: u64,
    },
    /// A feature that would be ignored silently.
    #[error("metadata key '{key}' is {value}, which is not supported for {architecture}")]
    Unsupported {
        /// The family.
        architecture: Architecture,
        /// The key.
        key: String,
        /// Its value.
        value: String,
    },
    /// A tensor that the graph needs.
    #[error("tensor '{name}' is missing, expected with shape {shape:?}")]
    TensorMissing {
        /// The tensor.
        name: String,
        /// The shape it should have.
        shape: Vec<u64>,
    },
    /// A tensor whose shape disagrees with the hyper-parameters.
    #[error("tensor '{name}' has shape {actual:?}, expected is {expected:?}")]
    TensorShape {
        /// The tensor.
        name: String,
        /// The shape it should have.
        expected: Vec<u64>,
        /// The shape it has.
        actual: Vec<u64>,
    },
    /// A tensor of a type that the graph cannot use in its place.
    #[error("tensor '{name}' has type {tensor_type}, which cannot be used for it")]
    TensorType {
        /// The tensor.
        name: String,
        /// Its type.
        tensor_type: TensorType,
    },
    /// Tensors that the graph of the architecture does not have.
    #[error("{count} tensors are not used by architecture '{architecture}', the first is '{name}'")]
    TensorUnexpected {
        /// The first of them by name.
        name: String,
        /// How many there are.
        count: usize,
        /// The family.
        architecture: Architecture,
    },
}

fn supported() -> String {
    let names: Vec<&str> = Architecture::ALL.iter().map(|known| known.name()).collect();
    names.join(", ")
}

fn part_name(number: Option<u64>) -> String {
    match number {
        Some(number) => format!("number {}", number.saturating_add(1)),
        None => "no part of a cut model".to_owned(),
    }
}

impl ModelDirectory {
    /// Joins the files of a model, which stand in the order of [`crate::split_paths`].
    ///
    /// # Errors
    ///
    /// [`DirectoryError`] names the key or tensor that is wrong, and what was expected.
    pub fn from_files(files: &[Gguf<'_>]) -> Result<Self, DirectoryError> {
        let Some(first) = files.first() else { return Err(DirectoryError::NoFiles) };
        let architecture = architecture(first)?;
        let mut table = TensorTable::new(files)?;
        split::check_parts(files, table.len())?;
        let vocabulary = VocabularySummary::from_file(first)?;
        let token_count = vocabulary.as_ref().map(|vocabulary| vocabulary.token_count);
        let mut hyper = HyperParameters::read(first, architecture, token_count)?;

        let (width, tokens) = (hyper.embedding_length as u64, hyper.vocabulary_size as u64);
        let embedding = table.take("token_embd.weight", &[width, tokens])?;
        let output_norm = table.take("output_norm.weight", &[width])?;
        let output = table.take_optional("output.weight", &[width, tokens])?;
        let output_bias = match architecture {
            Architecture::Qwen2 => table.take_optional("output.bias", &[tokens])?,
            _ => None,
        };
        let pairs = hyper.rope.dimension_count as u64 / 2;
        let rope_frequencies = match architecture {
            Architecture::Llama => table.take_optional("rope_freqs.weight", &[pairs])?,
            _ => None,
        };
        let layers = hyper
            .layers
            .iter()
            .enumerate()
            .map(|(layer, shape)| LayerTensors::take(&mut table, &hyper, layer, shape))
            .collect::<Result<Vec<_>, _>>()?;
        table.finish(architecture)?;

        hyper.tied_embeddings = output.is_none();
        hyper.query_key_value_bias = layers.iter().any(|layer| {
            layer.query_bias.is_some() || layer.key_bias.is_some() || layer.value_bias.is_some()
        });
        let description = describe(files, first, vocabulary, &layers)?;
        Ok(Self {
            hyper,
            layers,
            embedding,
            output_norm,
            output,
            output_bias,
            rope_frequencies,
            description,
        })
    }

    /// The matrix that the head multiplies with: `output`, or the embedding where they are tied.
    pub fn head_matrix(&self) -> &TensorInfo {
        self.output.as_ref().unwrap_or(&self.embedding)
    }

    /// Every tensor of the model once.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        [Some(&self.embedding), self.rope_frequencies.as_ref()]
            .into_iter()
            .flatten()
            .chain(self.layers.iter().flat_map(LayerTensors::tensors))
            .chain(
                [Some(&self.output_norm), self.output.as_ref(), self.output_bias.as_ref()]
                    .into_iter()
                    .flatten(),
            )
    }
}

fn architecture(first: &Gguf<'_>) -> Result<Architecture, DirectoryError> {
    const KEY: &str = "general.architecture";
    if let Some(kind) = first.string("general.type")?
        && kind != "model"
    {
        return Err(DirectoryError::NotAModel { kind: kind.to_owned() });
    }
    let name = first.string(KEY)?;
    let name = name.ok_or_else(|| MetadataError::Missing { key: KEY.to_owned() })?;
    Architecture::from_name(name)
        .ok_or_else(|| DirectoryError::UnknownArchitecture { name: name.to_owned() })
}

fn describe(
    files: &[Gguf<'_>],
    first: &Gguf<'_>,
    vocabulary: Option<VocabularySummary>,
    layers: &[LayerTensors],
) -> Result<ModelDescription, DirectoryError> {
    const TEMPLATE_KEY: &str = "tokenizer.chat_template";
    let named = first.metadata().iter().filter_map(|(key, value)| {
        let name = key.strip_prefix(TEMPLATE_KEY)?.strip_prefix('.')?;
        Some((name.to_owned(), value.as_str()?.to_owned()))
    });
    let bytes_of = |wanted: &TensorType| -> u64 {
        let matrices = layers.iter().flat_map(LayerTensors::matrices);
        matrices.filter(|matrix| matrix.tensor_type == *wanted).map(|matrix| matrix.bytes).sum()
    };
    let dominant_type = TensorType::ALL.iter().copied().max_by_key(bytes_of);
    Ok(ModelDescription {
        name: first.string("general.name")?.map(str::to_owned),
        chat_template: first.string(TEMPLATE_KEY)?.map(str::to_owned),
        named_chat_templates: named.collect(),
        vocabulary,
        file_type: first.unsigned("general.file_type")?.and_then(file_type_name),
        dominant_type: dominant_type.unwrap_or(TensorType::F32),
        file_bytes: files.iter().map(Gguf::file_bytes).collect(),
    })
}

/// The mixes of tensor types by llama.cpp's numbers.
fn file_type_name(id: u64) -> Option<&'static str> {
    Some(match id {
        0 => "F32",
        1 => "F16",
        2 => "Q4_0",
        3 => "Q4_1",
        7 => "Q8_0",
        8 => "Q5_0",
        9 => "Q5_1",
        10 => "Q2_K",
        11 => "Q3_K_S",
        12 => "Q3_K_M",
        13 => "Q3_K_L",
        14 => "Q4_K_S",
        15 => "Q4_K_M",
        16 => "Q5_K_S",
        17 => "Q5_K_M",
        18 => "Q6_K",
        19 => "IQ2_XXS",
        20 => "IQ2_XS",
        21 => "Q2_K_S",
        22 => "IQ3_XS",
        23 => "IQ3_XXS",
        24 => "IQ1_S",
        25 => "IQ4_NL",
        26 => "IQ3_S",
        27 => "IQ3_M",
        28 => "IQ2_S",
        29 => "IQ2_M",
        30 => "IQ4_XS",
        31 => "IQ1_M",
        32 => "BF16",
        36 => "TQ1_0",
        37 => "TQ2_0",
        38 => "MXFP4",
        39 => "NVFP4",
        40 => "Q1_0",
        41 => "Q2_0",
        _ => return None,
    })
}
