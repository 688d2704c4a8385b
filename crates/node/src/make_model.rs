//! `motley make-model`: a model of random weights in the shape of a named or described one.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use motley_engine::{FileType, MakeError, ModelRecipe, make_model_file, preset, small_model};
use serde_json::json;

use crate::failure::{Failure, Kind};
use crate::loading;
use crate::store;
use crate::terminal::{self, Progress, bytes};

const USAGE: &str = "\
motley make-model --preset <NAME> [--blocks <N>] --out <FILE>
       motley make-model --arch <NAME> --blocks <N> --embedding <N> --ffn <N>
                         --heads <N> --kv-heads <N> --type <TYPE> --out <FILE>";

/// Arguments of `motley make-model`.
#[derive(Debug, clap::Args)]
#[command(override_usage = USAGE)]
pub(crate) struct Arguments {
    /// A model whose shape and types to take; a wrong name lists all
    #[arg(long, value_name = "NAME", required_unless_present = "arch")]
    preset: Option<String>,
    /// Architecture, such as llama
    #[arg(long, value_name = "NAME", conflicts_with = "preset")]
    #[arg(requires_all = ["blocks", "embedding", "ffn", "heads", "kv_heads", "file_type"])]
    arch: Option<String>,
    /// Layers; of a preset only the first so many
    #[arg(long, value_name = "N")]
    blocks: Option<usize>,
    /// Elements of a hidden state
    #[arg(long, value_name = "N", conflicts_with = "preset")]
    embedding: Option<usize>,
    /// Elements between the feed-forward matrices
    #[arg(long, value_name = "N", conflicts_with = "preset")]
    ffn: Option<usize>,
    /// Query heads
    #[arg(long, value_name = "N", conflicts_with = "preset")]
    heads: Option<usize>,
    /// Key and value heads
    #[arg(long, value_name = "N", conflicts_with = "preset")]
    kv_heads: Option<usize>,
    /// Elements of a head [default: embedding / heads]
    #[arg(long, value_name = "N", conflicts_with = "preset")]
    head_length: Option<usize>,
    /// Tokens of context that the file claims
    #[arg(long, value_name = "N")]
    context: Option<u32>,
    /// Mixture of tensor types, such as Q4_K_M [default: the preset's]
    #[arg(long = "type", value_name = "TYPE")]
    file_type: Option<FileType>,
    /// Seed of the random weights
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Model to take the vocabulary from [default: the smallest in the folder of models]
    #[arg(long, value_name = "MODEL")]
    vocabulary_from: Option<String>,
    /// Folder of models
    #[arg(long, value_name = "DIR")]
    models: Option<PathBuf>,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(arguments: &Arguments) -> Result<(), Failure> {
    let recipe = recipe(arguments)?;
    let folder = store::folder(arguments.models.clone());
    let donor = match &arguments.vocabulary_from {
        Some(name) => store::resolve(name, folder.as_deref())?,
        None => smallest_model(folder.as_deref())?,
    };
    let made = {
        let _progress = Progress::start(&format!("making {} ...", recipe.name));
        make_model_file(&recipe, &donor, loading::threads_default(), &arguments.out)
            .map_err(make_failure)?
    };
    if arguments.json {
        return Ok(terminal::print_json(&json!({
            "path": arguments.out,
            "name": recipe.name,
            "architecture": recipe.architecture,
            "blocks": recipe.shape.blocks,
            "file_type": recipe.file_type.name(),
            "seed": recipe.seed,
            "vocabulary_from": donor,
            "vocabulary_size": made.vocabulary_size,
            "tensors": made.tensors,
            "file_bytes": made.file_bytes,
        }))?);
    }
    Ok(terminal::print(&format!(
        "{}: {}, {} layers, {}, {} tokens, {}\n",
        arguments.out.display(),
        recipe.name,
        recipe.shape.blocks,
        recipe.file_type.name(),
        made.vocabulary_size,
        bytes(made.file_bytes),
    ))?)
}

fn recipe(arguments: &Arguments) -> Result<ModelRecipe, Failure> {
    let mut recipe = match (&arguments.preset, &arguments.arch) {
        (Some(name), _) => {
            preset(name, arguments.blocks).map_err(|error| Failure::new(Kind::NotFound, error))?
        }
        (None, Some(architecture)) => described(arguments, architecture)?,
        (None, None) => return Err(Failure::usage("neither --preset nor --arch is given")),
    };
    if let Some(file_type) = arguments.file_type {
        recipe.file_type = file_type;
    }
    if let Some(context) = arguments.context {
        recipe.shape.context_length = context;
    }
    recipe.seed = arguments.seed;
    Ok(recipe)
}

/// A recipe from single numbers, which the parser made sure are all there.
fn described(arguments: &Arguments, architecture: &str) -> Result<ModelRecipe, Failure> {
    let missing = || {
        Failure::usage(
            "--arch needs all of --blocks, --embedding, --ffn, --heads, --kv-heads and --type",
        )
    };
    let file_type = arguments.file_type.ok_or_else(missing)?;
    let mut recipe = small_model(architecture, file_type);
    let shape = &mut recipe.shape;
    shape.blocks = arguments.blocks.ok_or_else(missing)?;
    shape.original_blocks = shape.blocks;
    shape.embedding_length = arguments.embedding.ok_or_else(missing)?;
    shape.feed_forward_length = arguments.ffn.ok_or_else(missing)?;
    shape.heads = arguments.heads.ok_or_else(missing)?;
    shape.kv_heads = arguments.kv_heads.ok_or_else(missing)?;
    shape.head_length = match arguments.head_length {
        Some(length) => length,
        None => shape.embedding_length.checked_div(shape.heads).unwrap_or(0),
    };
    recipe.name = format!("made {architecture}");
    Ok(recipe)
}

/// The smallest model file of a folder, as the giver of a vocabulary.
fn smallest_model(folder: Option<&Path>) -> Result<PathBuf, Failure> {
    let files = folder.map(store::files_in).unwrap_or_default();
    let sized = files.into_iter().filter_map(|path| Some((path.metadata().ok()?.len(), path)));
    sized
        .min()
        .map(|(_, path)| path)
        .context("there is no model to take a vocabulary from")
        .map_err(|error| {
            Failure::new(Kind::NotFound, error)
                .hint("name one with --vocabulary-from, or a folder of models with --models")
        })
}

fn make_failure(error: MakeError) -> Failure {
    match error {
        MakeError::OutOfRange { .. }
        | MakeError::HeadsNotShared { .. }
        | MakeError::OddHeadLength { .. }
        | MakeError::NotPositive { .. } => Failure::new(Kind::Usage, error),
        _ => Failure::from(error),
    }
}
