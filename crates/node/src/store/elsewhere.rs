//! Models that other programs keep on this device. They are used where they lie and never changed.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{StoredModel, StoredPlace, is_gguf};
use crate::pull::{quantisation_in, split_name};

/// Bytes of one of Ollama's manifests at most.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;

/// Folders below a snapshot of a hub's cache that are looked into.
const SNAPSHOT_DEPTH_MAX: usize = 3;

/// Entries of folders that are looked at at most, so that a wrong folder costs seconds.
const ENTRIES_MAX: usize = 100_000;

/// What Ollama calls the layer that is a GGUF file.
const MODEL_LAYER: &str = "application/vnd.ollama.image.model";

/// Whom Ollama's names belong to unless they say otherwise.
const OLLAMA_HOST: &str = "registry.ollama.ai";
const OLLAMA_FAMILY: &str = "library";

/// Ollama's folder of models.
pub(crate) fn ollama_folder() -> Option<PathBuf> {
    absolute("OLLAMA_MODELS").or_else(|| Some(home()?.join(".ollama").join("models")))
}

/// The cache of Hugging Face's tools.
pub(crate) fn hub_folder() -> Option<PathBuf> {
    absolute("HF_HUB_CACHE")
        .or_else(|| absolute("HF_HOME").map(|home| home.join("hub")))
        .or_else(|| Some(home()?.join(".cache").join("huggingface").join("hub")))
}

fn absolute(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

fn home() -> Option<PathBuf> {
    absolute("HOME").or_else(|| absolute("USERPROFILE"))
}

#[derive(Deserialize)]
struct OllamaManifest {
    layers: Vec<OllamaLayer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OllamaLayer {
    media_type: String,
    digest: String,
}

/// The models of Ollama's folder, under the names that Ollama shows.
pub(super) fn ollama_models(folder: &Path) -> Vec<StoredModel> {
    let manifests = folder.join("manifests");
    let mut models = Vec::new();
    // Host, family, model, tag.
    for host in entries(&manifests) {
        for family in entries(&host) {
            for model in entries(&family) {
                for tag in entries(&model) {
                    let Some(path) = ollama_blob(&tag, folder) else { continue };
                    let parts = [&host, &family, &model, &tag].map(|path| file_name(path));
                    models.push(StoredModel {
                        name: ollama_name(parts),
                        path,
                        place: StoredPlace::Ollama,
                    });
                }
            }
        }
    }
    models
}

fn ollama_name([host, family, model, tag]: [String; 4]) -> String {
    match (host.as_str(), family.as_str()) {
        (OLLAMA_HOST, OLLAMA_FAMILY) => format!("{model}:{tag}"),
        (OLLAMA_HOST, _) => format!("{family}/{model}:{tag}"),
        _ => format!("{host}/{family}/{model}:{tag}"),
    }
}

/// The file that a manifest names as its model. Its path is made of the digest's digits alone.
fn ollama_blob(manifest: &Path, folder: &Path) -> Option<PathBuf> {
    let facts = fs::metadata(manifest).ok()?;
    if !facts.is_file() || facts.len() > MANIFEST_BYTES_MAX {
        return None;
    }
    let manifest: OllamaManifest = serde_json::from_slice(&fs::read(manifest).ok()?).ok()?;
    let layer = manifest.layers.iter().find(|layer| layer.media_type == MODEL_LAYER)?;
    let digits = layer.digest.strip_prefix("sha256:")?;
    if digits.len() != 64 || !digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let blob = folder.join("blobs").join(format!("sha256-{digits}"));
    blob.is_file().then_some(blob)
}

/// The GGUF files of the cache of Hugging Face's tools, as `hf:ORG/REPO:QUANT`. Of a repository
/// the snapshot that `main` means counts, else the last.
pub(super) fn hub_models(folder: &Path) -> Vec<StoredModel> {
    let mut models = Vec::new();
    let mut left = ENTRIES_MAX;
    for repository in entries(folder) {
        let name = file_name(&repository);
        let Some(name) = name.strip_prefix("models--") else { continue };
        let name = name.replacen("--", "/", 1);
        let snapshots = entries(&repository.join("snapshots"));
        let main = fs::read_to_string(repository.join("refs").join("main")).unwrap_or_default();
        let current = snapshots.iter().find(|path| file_name(path) == main.trim());
        let Some(snapshot) = current.or(snapshots.last()) else { continue };
        let mut files = Vec::new();
        collect(snapshot, SNAPSHOT_DEPTH_MAX, &mut left, &mut files);
        for path in files {
            let file = file_name(&path);
            let stem = file.get(..file.len() - 5).unwrap_or_default();
            let (stem, part) = split_name(stem).map_or((stem, 1), |(stem, part, _)| (stem, part));
            if part == 1 && !stem.to_lowercase().starts_with("mmproj") {
                let name = format!("hf:{name}:{}", quantisation_in(stem));
                models.push(StoredModel { name, path, place: StoredPlace::HuggingFace });
            }
        }
    }
    models
}

fn collect(folder: &Path, depth: usize, left: &mut usize, files: &mut Vec<PathBuf>) {
    for path in entries(folder) {
        let Some(fewer) = left.checked_sub(1) else { return };
        *left = fewer;
        if path.is_dir() && depth > 0 {
            collect(&path, depth - 1, left, files);
        } else if is_gguf(&path) && path.is_file() {
            files.push(path);
        }
    }
}

/// What a folder holds, sorted; nothing if it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).take(ENTRIES_MAX).collect();
    paths.sort();
    paths
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn ollamas_models_are_found_by_their_manifests() {
        let folder = tempfile::tempdir().unwrap();
        let digits = "a".repeat(64);
        let manifest = |digest: &str| {
            format!(
                r#"{{"layers":[{{"mediaType":"{MODEL_LAYER}","digest":"{digest}","size":4}},
                {{"mediaType":"text/plain","digest":"sha256:0"}}]}}"#
            )
        };
        let at = |place: &str| folder.path().join("manifests").join(place);
        write(&folder.path().join("blobs").join(format!("sha256-{digits}")), "GGUF");
        write(
            &at("registry.ollama.ai/library/llama3.2/3b"),
            &manifest(&format!("sha256:{digits}")),
        );
        write(&at("hf.co/org/repo/latest"), &manifest(&format!("sha256:{digits}")));
        // T-10: a digest is a digest, and its file must be there.
        write(&at("registry.ollama.ai/library/evil/1"), &manifest("sha256:../../../etc/passwd"));
        write(
            &at("registry.ollama.ai/library/evil/2"),
            &manifest(&format!("sha256:{}", "b".repeat(64))),
        );
        write(&at("registry.ollama.ai/library/evil/3"), "{");
        let names: Vec<_> =
            ollama_models(folder.path()).into_iter().map(|model| model.name).collect();
        assert_eq!(names, ["hf.co/org/repo:latest", "llama3.2:3b"]);
    }

    #[test]
    fn models_of_the_hubs_cache_are_found_in_its_current_snapshot() {
        let folder = tempfile::tempdir().unwrap();
        let repository = folder.path().join("models--org--some--repo-GGUF");
        let snapshot = |commit: &str| repository.join("snapshots").join(commit);
        write(&repository.join("refs").join("main"), "2222\n");
        write(&snapshot("1111").join("old-Q8_0.gguf"), "GGUF");
        write(&snapshot("2222").join("m-Q4_K_M.gguf"), "GGUF");
        write(&snapshot("2222").join("BF16").join("m-BF16-00001-of-00002.gguf"), "GGUF");
        write(&snapshot("2222").join("BF16").join("m-BF16-00002-of-00002.gguf"), "GGUF");
        write(&snapshot("2222").join("mmproj-f16.gguf"), "GGUF");
        write(&snapshot("2222").join("README.md"), "");
        let names: Vec<_> = hub_models(folder.path()).into_iter().map(|model| model.name).collect();
        assert_eq!(names, ["hf:org/some--repo-GGUF:BF16", "hf:org/some--repo-GGUF:Q4_K_M"]);
    }
}
