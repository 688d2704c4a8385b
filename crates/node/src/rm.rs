//! `motley rm`: takes models out of the folder of models.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use motley_model::split_paths;

use crate::failure::{Failure, Kind};
use crate::identity::StateFolder;
use crate::pull::{FileName, note_path, partial_path};
use crate::running;
use crate::store::{self, StoredPlace};
use crate::terminal;

/// Arguments of `motley rm`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Names of models, as motley list shows them
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    /// Folder of models
    #[arg(long, value_name = "DIR")]
    models: Option<PathBuf>,
    /// Folder of keys and lists [default: motley in the user's state folder]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
}

pub(crate) fn execute(arguments: &Arguments) -> Result<(), Failure> {
    let folder = store::folder(arguments.models.clone())
        .ok_or_else(|| Failure::usage("there is no folder of models; name one with --models"))?;
    let state = StateFolder::locate(arguments.state.clone()).ok();
    for name in &arguments.names {
        let removed_bytes = remove(name, &folder, state.as_deref())?;
        terminal::print(&format!("removed {name} ({})\n", terminal::bytes(removed_bytes)))?;
    }
    Ok(())
}

/// Removes a model, or what a download of it has left, and tells how many bytes that were.
fn remove(name: &str, folder: &Path, state: Option<&Path>) -> Result<u64, Failure> {
    if let Some(bytes) = remove_partial(name, folder)? {
        return Ok(bytes);
    }
    if !name.starts_with("hf:") && name.contains(['/', '\\']) && !is_elsewhere(name) {
        return Err(Failure::usage(format!("'{name}' is no name of a model"))
            .hint("models outside the folder of models are files like others: rm removes them"));
    }
    let path = store::resolve(name, Some(folder))?;
    if path.parent() != Some(folder) {
        let owner = store::all(None).into_iter().find(|model| model.path == path);
        let hint = match owner.map(|model| model.place) {
            Some(StoredPlace::Ollama) => format!("ollama rm {name} removes it"),
            Some(StoredPlace::HuggingFace) => {
                "it is in Hugging Face's cache; hf cache delete removes it".to_owned()
            }
            Some(StoredPlace::Models) | None => "it is a file like others".to_owned(),
        };
        let error = anyhow::anyhow!("{name} is not in {}", folder.display());
        return Err(Failure::new(Kind::Refused, error).hint(hint));
    }
    let parts = split_paths(&path);
    refuse_served(name, &parts, state)?;
    let mut bytes = 0;
    // The first part makes a model of them, so that it goes first.
    for part in &parts {
        bytes += fs::metadata(part).map_or(0, |facts| facts.len());
        fs::remove_file(part).with_context(|| format!("cannot remove {}", part.display()))?;
    }
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let _ = fs::remove_file(store::record_path(folder, &file));
    Ok(bytes)
}

fn is_elsewhere(name: &str) -> bool {
    store::all(None).iter().any(|model| model.name == name)
}

/// Removes what an unfinished download left, if `name` names one.
fn remove_partial(name: &str, folder: &Path) -> Result<Option<u64>, Failure> {
    let Ok(file) = name.parse::<FileName>() else { return Ok(None) };
    let path = partial_path(folder, file.as_str());
    if folder.join(file.as_str()).exists() || !path.exists() {
        return Ok(None);
    }
    let held = fs::File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    if held.try_lock().is_err() {
        let error = anyhow::anyhow!("{file} is being fetched");
        return Err(Failure::new(Kind::Refused, error).hint("Ctrl-C ends that motley pull"));
    }
    let bytes = crate::pull::progress_of(folder, file.as_str()).map_or(0, |(present, _)| present);
    fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    match fs::remove_file(note_path(folder, file.as_str())) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(Some(bytes)),
    }
}

fn refuse_served(name: &str, parts: &[PathBuf], state: Option<&Path>) -> Result<(), Failure> {
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let served = state
        .map(running::servers)
        .unwrap_or_default()
        .into_iter()
        .find(|server| parts.iter().any(|part| real(part) == real(&server.facts.path)));
    let Some(server) = served else { return Ok(()) };
    let address = server.facts.address;
    let error = anyhow::anyhow!("{name} is served at {address}");
    Err(Failure::new(Kind::Refused, error).hint(format!("motley stop {address} ends that")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::running::RunFile;
    use crate::running::tests::facts;

    #[test]
    fn a_model_goes_with_all_its_parts_unless_it_is_served() {
        let (models, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = |name: &str| models.path().join(name);
        for part in ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "other.gguf"] {
            fs::write(file(part), "1234").unwrap();
        }
        fs::write(file(".m-00001-of-00002.gguf.source.json"), "{}").unwrap();
        let mut served = facts("m", 1);
        served.path = file("m-00001-of-00002.gguf");
        let running = RunFile::create(state.path(), &served).unwrap();
        let remove = |name: &str| remove(name, models.path(), Some(state.path()));
        let refused = remove("m").unwrap_err();
        assert_eq!(
            refused.report(),
            "motley: m is served at 127.0.0.1:1\nhint: motley stop 127.0.0.1:1 ends that\n"
        );
        drop(running);
        assert_eq!(remove("M.gguf").unwrap(), 8);
        let left: Vec<_> =
            fs::read_dir(models.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["other.gguf"]);
        assert_eq!(remove("m").unwrap_err().kind, Kind::NotFound);
        // A path may end as a model's name does and still be another file.
        let outside = tempfile::tempdir().unwrap().path().join("other.gguf");
        assert_eq!(remove(outside.to_str().unwrap()).unwrap_err().kind, Kind::Usage);
        assert!(file("other.gguf").exists());
    }

    #[test]
    fn what_a_download_left_goes_too() {
        let models = tempfile::tempdir().unwrap();
        fs::write(partial_path(models.path(), "m.gguf"), "12").unwrap();
        fs::write(
            note_path(models.path(), "m.gguf"),
            r#"{"bytes":9,"etag":"x","sha256":null,"present":[[0,2]]}"#,
        )
        .unwrap();
        assert_eq!(remove("m.gguf", models.path(), None).unwrap(), 2);
        assert_eq!(fs::read_dir(models.path()).unwrap().count(), 0);
    }
}
