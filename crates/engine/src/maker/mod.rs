//! Making models: random weights in the exact shape and number formats of a named model.
//!
//! A made model runs as fast, takes as much memory and is cut into layers like the real one; only
//! what it says is noise. Tests use small ones, measurements use few layers of large ones.
//! Start with a [`preset`] or a [`small_model`]; [`make_model_file`] writes the file.

mod file_type;
mod plan;
mod presets;
mod recipe;
mod vocabulary;
mod weights;

#[cfg(test)]
pub(crate) mod tests;

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use motley_ggml::MappedFile;
use motley_model::{Architecture, Gguf, GgufError, MetadataError, WriteError};

pub use file_type::{FileType, UnknownFileType};
pub use presets::{UnknownPreset, preset, preset_names, small_model};
pub use recipe::{ExpertShape, Llama3Stretch, ModelRecipe, ModelShape, SlidingWindowShape};

use plan::ModelPlan;
use weights::WeightMaker;

/// What was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MadeModel {
    /// Tensors of the file.
    pub tensors: usize,
    /// Tokens of its vocabulary.
    pub vocabulary_size: usize,
    /// Bytes of the file.
    pub file_bytes: u64,
}

/// Why a model could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// The recipe is of a family that the engine cannot run, so that it is not made either.
    #[error(
        "{name} has the architecture '{architecture}', which cannot be made yet (supported are {})",
        supported()
    )]
    UnsupportedArchitecture {
        /// The recipe.
        name: String,
        /// Its architecture.
        architecture: String,
    },
    /// A number of the shape that no model has.
    #[error("{field} is {value}, allowed are 1 to {value_max}")]
    OutOfRange {
        /// Which number.
        field: &'static str,
        /// What was given.
        value: usize,
        /// The most that is allowed.
        value_max: usize,
    },
    /// Key and value heads that cannot be shared among query heads.
    #[error("{heads} heads are no multiple of {kv_heads} key and value heads")]
    HeadsNotShared {
        /// Query heads.
        heads: usize,
        /// Key and value heads.
        kv_heads: usize,
    },
    /// Rotation takes elements in pairs.
    #[error("head length {head_length} is odd")]
    OddHeadLength {
        /// What was given.
        head_length: usize,
    },
    /// A number that must be above zero.
    #[error("{field} is {value}, it must be finite and above 0")]
    NotPositive {
        /// Which number.
        field: &'static str,
        /// What was given.
        value: f32,
    },
    /// The file that should give its vocabulary has none.
    #[error("the vocabulary's file has no tokens")]
    NoVocabulary,
    /// A cut vocabulary would lose a token that the tokeniser needs.
    #[error("a vocabulary of {size} tokens would lose the token of '{key}'")]
    SpecialTokenCut {
        /// The metadata key that names the token.
        key: String,
        /// Tokens asked for.
        size: usize,
    },
    /// The vocabulary's file could not be opened.
    #[error("cannot open the vocabulary's file {}", path.display())]
    OpenVocabulary {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The vocabulary's file is no GGUF file.
    #[error("the vocabulary's file cannot be read")]
    ReadVocabulary(#[from] GgufError),
    /// The vocabulary is not stored as vocabularies are.
    #[error("the vocabulary cannot be used")]
    Vocabulary(#[from] MetadataError),
    /// The directory cannot be written.
    #[error("the model cannot be written as GGUF")]
    Directory(#[from] WriteError),
    /// A tensor cannot be packed.
    #[error("tensor '{name}' cannot be packed")]
    Quantise {
        /// The tensor.
        name: String,
        /// The cause.
        source: motley_ggml::QuantizeError,
    },
    /// The output cannot be written.
    #[error("the model cannot be written")]
    Output(#[from] io::Error),
}

fn supported() -> String {
    let names: Vec<&str> = Architecture::ALL.iter().map(|known| known.name()).collect();
    names.join(", ")
}

/// Makes a model with the vocabulary of `donor` and writes it to `out`.
///
/// One tensor is made at a time, by `threads` threads with a few megabytes each. The same recipe
/// and vocabulary give the same bytes, whatever the number of threads.
///
/// # Errors
///
/// [`MakeError`]; nothing is written when the recipe or the vocabulary is refused.
pub fn make_model(
    recipe: &ModelRecipe,
    donor: &Gguf<'_>,
    threads: usize,
    out: impl Write,
) -> Result<MadeModel, MakeError> {
    let vocabulary_size = match recipe.shape.vocabulary_size {
        Some(size) => size,
        None => vocabulary::token_count(donor)?,
    };
    let plan = ModelPlan::new(recipe, vocabulary_size)?;
    let directory = plan.directory(recipe, donor)?;
    let file_bytes = directory.file_bytes();
    let mut data = directory.begin(out)?;
    let mut maker = WeightMaker::new(recipe.seed, threads);
    for tensor in &plan.tensors {
        maker.write(tensor, &mut data)?;
    }
    data.finish()?;
    Ok(MadeModel { tensors: plan.tensors.len(), vocabulary_size, file_bytes })
}

/// Makes a model as [`make_model`] does, from and to a file.
///
/// The file appears under its name only when it is whole; until then `out.part` grows beside it.
///
/// # Errors
///
/// [`MakeError`]; then there is no new file.
pub fn make_model_file(
    recipe: &ModelRecipe,
    vocabulary: &Path,
    threads: usize,
    out: &Path,
) -> Result<MadeModel, MakeError> {
    let file = MappedFile::open(vocabulary)
        .map_err(|source| MakeError::OpenVocabulary { path: vocabulary.to_owned(), source })?;
    let donor = Gguf::parse(file.bytes(), file.bytes().len() as u64)?;
    let mut part = out.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let made = fs::File::create(&part)
        .map_err(MakeError::from)
        .and_then(|file| {
            make_model(recipe, &donor, threads, BufWriter::with_capacity(1 << 20, file))
        })
        .and_then(|made| Ok(fs::rename(&part, out).map(|()| made)?));
    if made.is_err() {
        // The error that led here is the one to report; a file that was never there is none.
        let _ = fs::remove_file(&part);
    }
    made
}
