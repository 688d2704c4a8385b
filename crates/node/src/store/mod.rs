//! Where models lie, and which file a name means.
//!
//! The store is a folder of GGUF files, with what is known of their source beside them. Models of
//! Ollama and of Hugging Face's tools are found where those keep them.

mod elsewhere;
mod record;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub(crate) use elsewhere::{hub_folder, ollama_folder};
pub(crate) use record::{Record, path as record_path};

use crate::failure::{Failure, Kind};
use crate::pull::{HubModel, quantisation_in};

/// How alike two names must be, from 0 to 1, for one to be offered for the other.
const LIKENESS_MIN: f64 = 0.6;

/// Names offered at most.
const NAMES_OFFERED_MAX: usize = 5;

/// The folder of models: the one given, else the user's data folder.
pub(crate) fn folder(given: Option<PathBuf>) -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    given.or_else(|| {
        absolute("XDG_DATA_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".local").join("share")))
            .or_else(|| absolute("LOCALAPPDATA"))
            .map(|data| data.join("motley").join("models"))
    })
}

/// Who keeps a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoredPlace {
    /// The folder of models.
    Models,
    /// Ollama.
    Ollama,
    /// The cache of Hugging Face's tools.
    HuggingFace,
}

/// A model on this device, under a name that commands take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredModel {
    pub(crate) name: String,
    /// Its file; of several the first.
    pub(crate) path: PathBuf,
    pub(crate) place: StoredPlace,
}

/// All models on this device: those of `folder`, then others' that it knows of.
pub(crate) fn all(folder: Option<&Path>) -> Vec<StoredModel> {
    let own = folder.map(names_in).unwrap_or_default();
    let own =
        own.into_iter().map(|(name, path)| StoredModel { name, path, place: StoredPlace::Models });
    own.chain(others()).collect()
}

/// Models that other programs keep.
fn others() -> Vec<StoredModel> {
    let ollama = ollama_folder().map(|folder| elsewhere::ollama_models(&folder));
    let hub = hub_folder().map(|folder| elsewhere::hub_models(&folder));
    [ollama, hub].into_iter().flatten().flatten().collect()
}

/// The file that `name` means: a path to a file, the name of a model in `folder`, without regard to
/// case and with or without its extension, `hf:ORG/REPO[:QUANT]` of a model that is here, or
/// Ollama's name for one of its own.
///
/// # Errors
/// When there is no such file, with the names that are near.
pub(crate) fn resolve(name: &str, folder: Option<&Path>) -> Result<PathBuf, Failure> {
    if name.starts_with("hf:") {
        return of_hub(name, folder);
    }
    let path = PathBuf::from(name);
    let Err(missing) = path.metadata() else { return Ok(path) };
    let known = folder.map(names_in).unwrap_or_default();
    let wanted = stem(name);
    if let Some((_, file)) = known.iter().find(|(known, _)| *known == wanted) {
        return Ok(file.clone());
    }
    let tagged = format!("{name}:latest");
    let is_named = |model: &StoredModel| model.name == name || model.name == tagged;
    if let Some(model) = others().into_iter().find(is_named) {
        return Ok(model.path);
    }
    if path.components().count() > 1 || is_gguf(&path) {
        let kind = match missing.kind() {
            io::ErrorKind::NotFound => Kind::NotFound,
            _ => Kind::Failed,
        };
        let error = anyhow::Error::from(missing).context(format!("cannot open {name}"));
        return Err(Failure::new(kind, error).hint(advice(&wanted, &known, folder)));
    }
    let error = anyhow::anyhow!("no model is called '{name}'");
    Err(Failure::new(Kind::NotFound, error).hint(advice(&wanted, &known, folder)))
}

/// A model of a hub that was pulled before, by us or by the hub's own tools.
fn of_hub(name: &str, folder: Option<&Path>) -> Result<PathBuf, Failure> {
    let wanted: HubModel = name.parse().map_err(|error| Failure::new(Kind::Usage, error))?;
    let is_wanted = |source: &str, file: &str| {
        let Ok(found) = source.parse::<HubModel>() else { return false };
        let variant = wanted.variant.as_deref().is_none_or(|variant| {
            found.variant.is_some_and(|found| found.eq_ignore_ascii_case(variant))
                || quantisation_in(file).eq_ignore_ascii_case(variant)
        });
        variant && found.repository.eq_ignore_ascii_case(&wanted.repository)
    };
    let pulled = folder.map(names_in).unwrap_or_default().into_iter().find(|(stem, path)| {
        let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
        let record = folder.and_then(|folder| Record::read(folder, file));
        record.is_some_and(|record| is_wanted(&record.source, stem))
    });
    if let Some((_, path)) = pulled {
        return Ok(path);
    }
    if let Some(model) = others().into_iter().find(|model| is_wanted(&model.name, "")) {
        return Ok(model.path);
    }
    let error = anyhow::anyhow!("{wanted} is not on this device");
    Err(Failure::new(Kind::NotFound, error).hint(format!("motley pull {wanted} fetches it")))
}

/// The name of a model by its file.
pub(crate) fn name_of(path: &Path) -> String {
    stem(&path.file_name().unwrap_or_default().to_string_lossy())
}

/// Model files of a folder, by name.
pub(crate) fn files_in(folder: &Path) -> Vec<PathBuf> {
    names_in(folder).into_iter().map(|(_, file)| file).collect()
}

/// Names and files of the models in a folder, by name. Of a split model the first part counts.
fn names_in(folder: &Path) -> Vec<(String, PathBuf)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<(String, PathBuf)> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| is_gguf(path))
        .filter_map(|path| Some((stem(path.file_name()?.to_str()?), path)))
        .collect();
    names.sort();
    names.dedup_by(|later, earlier| later.0 == earlier.0);
    names
}

pub(crate) fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// The name of a file as it is compared: no folder, no extension, no part number, lower case.
fn stem(name: &str) -> String {
    let name = name.rsplit(['/', '\\']).next().unwrap_or(name).to_lowercase();
    let name = name.strip_suffix(".gguf").unwrap_or(&name);
    match name.rsplit_once("-of-").and_then(|(rest, _)| rest.rsplit_once('-')) {
        Some((base, number)) if number.len() == 5 && number.bytes().all(|b| b.is_ascii_digit()) => {
            base.to_owned()
        }
        _ => name.to_owned(),
    }
}

fn advice(wanted: &str, known: &[(String, PathBuf)], folder: Option<&Path>) -> String {
    let Some(folder) = folder else {
        return "give the path of a GGUF file, or a folder of them with --models".to_owned();
    };
    if known.is_empty() {
        return format!(
            "give the path of a GGUF file, or put one into {} (--models names another folder)",
            folder.display()
        );
    }
    let near = near_names(wanted, known.iter().map(|(name, _)| name.as_str()));
    match near.as_slice() {
        [] => {
            let some: Vec<&str> =
                known.iter().take(NAMES_OFFERED_MAX).map(|(name, _)| name.as_str()).collect();
            format!("{} holds {}", folder.display(), some.join(", "))
        }
        near => format!("did you mean {}?", near.join(" or ")),
    }
}

/// Names that begin with or contain the wanted one, or are spelled like it; the nearest first.
pub(crate) fn near_names<'n>(wanted: &str, known: impl Iterator<Item = &'n str>) -> Vec<&'n str> {
    let mut scored: Vec<(f64, &str)> = known
        .map(|name| {
            let part = if name.contains(wanted) { 1.0 } else { 0.0 };
            // A short name is compared with as much of the long one.
            let start: String = name.chars().take(wanted.chars().count()).collect();
            let spelled = strsim::normalized_damerau_levenshtein(wanted, &start);
            (f64::max(part, spelled), name)
        })
        .filter(|(likeness, _)| *likeness >= LIKENESS_MIN)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    scored.into_iter().take(NAMES_OFFERED_MAX).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stems_are_compared_without_case_extension_and_part() {
        for (name, expected) in [
            ("SmolLM2-135M.Q4_1.gguf", "smollm2-135m.q4_1"),
            ("SMOLLM2-135m.q4_1", "smollm2-135m.q4_1"),
            ("Llama-70B-00001-of-00003.gguf", "llama-70b"),
            ("state-of-the-art.GGUF", "state-of-the-art"),
            ("a/b/Model.gguf", "model"),
        ] {
            assert_eq!(stem(name), expected);
        }
    }

    #[test]
    fn near_names_are_found_by_part_and_by_spelling() {
        let known = ["gemma-3-270m-it.q4_k_m", "qwen2.5-coder-0.5b", "smollm2-135m-instruct.q4_1"];
        let near = |wanted| near_names(wanted, known.into_iter());
        assert_eq!(near("smollm2"), ["smollm2-135m-instruct.q4_1"]);
        assert_eq!(near("smolm2"), ["smollm2-135m-instruct.q4_1"]);
        assert_eq!(near("270m"), ["gemma-3-270m-it.q4_k_m"]);
        assert_eq!(near("mixtral"), <[&str; 0]>::default());
    }
}
