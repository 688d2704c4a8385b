//! `motley list`: the models on this device, ours and those that other programs keep.

use std::fs;
use std::path::{Path, PathBuf};

use motley_engine::Model;
use motley_ggml::MappedFile;
use motley_model::{Gguf, split_paths};
use serde_json::{Value as Json, json};

use crate::failure::{Failure, one_line};
use crate::pull::{progress_of, quantisation_in};
use crate::store::{self, Record, StoredModel, StoredPlace};
use crate::terminal::{self, Table, bytes};

/// Arguments of `motley list`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Folder of models
    #[arg(long, value_name = "DIR")]
    models: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What a model's files say.
#[derive(Debug)]
struct Facts {
    bytes: u64,
    architecture: Option<String>,
    quantisation: Option<String>,
    /// Why it cannot be run, if it cannot.
    fault: Option<String>,
}

pub(crate) fn execute(arguments: &Arguments) -> Result<(), Failure> {
    let folder = store::folder(arguments.models.clone());
    let models: Vec<(StoredModel, Facts)> = store::all(folder.as_deref())
        .into_iter()
        .map(|model| {
            let facts = facts(&model.path);
            (model, facts)
        })
        .collect();
    let partial = folder.as_deref().map(partial_downloads).unwrap_or_default();
    if arguments.json {
        let list: Vec<Json> = models
            .iter()
            .map(|(model, facts)| document(model, facts))
            .chain(partial.iter().map(|(name, present, all)| {
                json!({ "name": name, "place": "models", "bytes": all, "present_bytes": present })
            }))
            .collect();
        return Ok(terminal::print_json(&Json::Array(list))?);
    }
    if models.is_empty() && partial.is_empty() {
        terminal::note("no model is here; motley pull hf:ORG/REPO fetches one\n");
    }
    let mut table = Table::new(["name", "size", "architecture", "quantisation", "from"]);
    for (model, facts) in &models {
        let unknown = || "?".to_owned();
        let place = place_words(model.place);
        table.row([
            one_line(&model.name),
            bytes(facts.bytes),
            facts.architecture.as_deref().map_or_else(unknown, one_line),
            facts.quantisation.as_deref().map_or_else(unknown, one_line),
            match &facts.fault {
                Some(fault) => format!("{place}; cannot be run: {}", one_line(fault)),
                None => place.to_owned(),
            },
        ]);
    }
    for (name, present, all) in &partial {
        let percent = present * 100 / (*all).max(1);
        table.row([
            name.clone(),
            bytes(*all),
            "-".to_owned(),
            quantisation_in(name.trim_end_matches(".gguf")),
            format!("the folder of models; {percent} % fetched"),
        ]);
    }
    Ok(terminal::print(&table.render())?)
}

fn place_words(place: StoredPlace) -> &'static str {
    match place {
        StoredPlace::Models => "the folder of models",
        StoredPlace::Ollama => "Ollama",
        StoredPlace::HuggingFace => "Hugging Face's cache",
    }
}

fn document(model: &StoredModel, facts: &Facts) -> Json {
    let folder = model.path.parent().unwrap_or(Path::new("."));
    let file = model.path.file_name().unwrap_or_default().to_string_lossy();
    let record = match model.place {
        StoredPlace::Models => Record::read(folder, &file),
        StoredPlace::Ollama | StoredPlace::HuggingFace => None,
    };
    json!({
        "name": model.name,
        "path": model.path,
        "place": match model.place {
            StoredPlace::Models => "models",
            StoredPlace::Ollama => "ollama",
            StoredPlace::HuggingFace => "huggingface",
        },
        "bytes": facts.bytes,
        "architecture": facts.architecture,
        "quantisation": facts.quantisation,
        "fault": facts.fault,
        "source": record.map(|record| record.source),
    })
}

/// What a model is, also where it cannot be run.
fn facts(path: &Path) -> Facts {
    let parts = split_paths(path);
    let bytes = parts.iter().filter_map(|part| fs::metadata(part).ok()).map(|facts| facts.len());
    let bytes = bytes.sum();
    match Model::open(path) {
        Ok(model) => {
            let directory = model.directory();
            let types = &directory.description;
            Facts {
                bytes,
                architecture: Some(directory.hyper.architecture.to_string()),
                quantisation: Some(
                    types.file_type.unwrap_or(types.dominant_type.name()).to_owned(),
                ),
                fault: None,
            }
        }
        Err(error) => Facts {
            bytes,
            architecture: architecture(&parts[0]),
            quantisation: None,
            fault: Some(anyhow::Error::new(error).root_cause().to_string()),
        },
    }
}

fn architecture(path: &Path) -> Option<String> {
    let file = MappedFile::open(path).ok()?;
    let gguf = Gguf::parse(file.bytes(), file.bytes().len() as u64).ok()?;
    gguf.string("general.architecture").ok()?.map(str::to_owned)
}

/// Downloads that were not finished: the file's name, bytes that are there, and all bytes.
fn partial_downloads(folder: &Path) -> Vec<(String, u64, u64)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<(String, u64, u64)> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter_map(|name| {
            let name = name.strip_prefix('.')?.strip_suffix(".part")?.to_owned();
            let (present, all) = progress_of(folder, &name)?;
            Some((name, present, all))
        })
        .collect();
    found.sort();
    found
}
