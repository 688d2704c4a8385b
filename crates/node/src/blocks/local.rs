//! Copies of a model that are on this device already: they are used where they lie.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use motley_model::{ModelDirectory, split_paths};

use super::layout::metadata_blocks;
use super::manifest::Manifest;
use super::partial::{PartialError, read_at, read_directory};
use crate::store;

/// Folders below a root that are searched. Hugging Face's snapshots lie four deep.
const DEPTH_MAX: usize = 6;

/// Files and folders that are looked at at most, so that a wrong root costs seconds.
const ENTRIES_MAX: usize = 200_000;

/// Where models of this and other programs lie.
pub(crate) fn model_roots(models: Option<&Path>) -> Vec<PathBuf> {
    let blobs = store::ollama_folder().map(|ollama| ollama.join("blobs"));
    let hugging_face = store::hub_folder();
    [models.map(Path::to_owned), blobs, hugging_face].into_iter().flatten().collect()
}

/// A whole copy of a model, not ours. Its metadata was compared; a block is when it is first used.
#[derive(Debug)]
pub(crate) struct LocalModel {
    paths: Vec<PathBuf>,
    files: Vec<File>,
    manifest: Arc<Manifest>,
    there: BTreeSet<usize>,
}

/// Looks for a copy with the right lengths and metadata below `roots`, in their order.
pub(crate) fn find_local(manifest: &Arc<Manifest>, roots: &[PathBuf]) -> Option<LocalModel> {
    let mut left = ENTRIES_MAX;
    roots.iter().find_map(|root| search(root, DEPTH_MAX, &mut left, manifest))
}

fn search(
    folder: &Path,
    depth: usize,
    left: &mut usize,
    manifest: &Arc<Manifest>,
) -> Option<LocalModel> {
    let mut entries: Vec<_> = fs::read_dir(folder).ok()?.filter_map(Result::ok).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    let mut folders = Vec::new();
    for entry in entries {
        *left = left.checked_sub(1)?;
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => folders.push(path),
            // Files behind links too: that is how Hugging Face keeps them.
            Ok(_) => {
                if let Some(found) = LocalModel::open(&path, manifest) {
                    return Some(found);
                }
            }
            Err(_) => {}
        }
    }
    let depth = depth.checked_sub(1)?;
    folders.iter().find_map(|folder| search(folder, depth, left, manifest))
}

impl LocalModel {
    /// The copy at `path`, of several parts the first; nothing if it is another model.
    pub(crate) fn open(path: &Path, manifest: &Arc<Manifest>) -> Option<Self> {
        let first = manifest.files().first()?.bytes;
        let has_length = |path: &Path, bytes| {
            fs::metadata(path).is_ok_and(|facts| facts.is_file() && facts.len() == bytes)
        };
        if !has_length(path, first) {
            return None;
        }
        let paths = match manifest.files().len() {
            1 => vec![path.to_owned()],
            _ => split_paths(path),
        };
        let same = paths.len() == manifest.files().len()
            && paths[0] == path
            && paths
                .iter()
                .zip(manifest.files())
                .all(|(path, facts)| has_length(path, facts.bytes));
        if !same {
            return None;
        }
        let files = paths.iter().map(|path| File::open(path).ok()).collect::<Option<_>>()?;
        let there = BTreeSet::new();
        let mut found = Self { paths, files, manifest: Arc::clone(manifest), there };
        let wrong = found.verify(&metadata_blocks(manifest), |_| {}).ok()?;
        wrong.is_empty().then_some(found)
    }

    /// The file to open the model with; of several the first.
    pub(crate) fn path(&self) -> &Path {
        &self.paths[0]
    }

    pub(crate) fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    /// Compares blocks with their hashes and gives those that are wrong. Each is compared once.
    /// `progress` hears of bytes as they are compared.
    pub(crate) fn verify(
        &mut self,
        blocks: &BTreeSet<usize>,
        mut progress: impl FnMut(u64),
    ) -> Result<BTreeSet<usize>, PartialError> {
        let mut wrong = BTreeSet::new();
        for &index in blocks {
            match self.read_block(index)? {
                Some(bytes) => progress(bytes.len() as u64),
                None => {
                    wrong.insert(index);
                }
            }
        }
        Ok(wrong)
    }

    /// A block, for others; nothing if the copy does not have its right content.
    pub(crate) fn read_block(&mut self, index: usize) -> Result<Option<Vec<u8>>, PartialError> {
        let Some(place) = self.manifest.place(index) else { return Ok(None) };
        let bytes = match read_at(&self.files[place.file], place) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(source) => {
                let path = self.paths[place.file].clone();
                return Err(PartialError::Io { action: "read", path, source });
            }
        };
        if !self.there.contains(&index) {
            if !self.manifest.is_block(index, &bytes) {
                return Ok(None);
            }
            self.there.insert(index);
        }
        Ok(Some(bytes))
    }

    /// What the model is.
    pub(crate) fn directory(&self) -> Result<ModelDirectory, PartialError> {
        read_directory(&self.paths, &self.manifest)
    }
}
