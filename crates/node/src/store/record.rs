//! Where a model of the store comes from, kept beside it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::whole_file::{self, Readers};

/// Bytes of a record at most.
const RECORD_BYTES_MAX: u64 = 256 << 10;

/// A model's source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// `hf:ORG/REPO[:VARIANT]`, or an address without its query.
    pub(crate) source: String,
    /// The repository's commit.
    pub(crate) revision: Option<String>,
    /// SHA-256 of each file in hexadecimal, where the source told it and it was compared.
    pub(crate) sha256: Vec<Option<String>>,
}

impl Record {
    /// The record of the model whose first file is called `name`.
    pub(crate) fn read(folder: &Path, name: &str) -> Option<Self> {
        let path = path(folder, name);
        let facts = fs::metadata(&path).ok()?;
        if facts.len() > RECORD_BYTES_MAX {
            return None;
        }
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    /// Keeps the record.
    ///
    /// # Errors
    /// When the disk does not take it.
    pub(crate) fn write(&self, folder: &Path, name: &str) -> io::Result<()> {
        whole_file::replace(&path(folder, name), &serde_json::to_vec(self)?, Readers::Usual)
    }
}

/// Where the record of a model lies.
pub(crate) fn path(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!(".{name}.source.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_again() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Record::read(folder.path(), "m.gguf"), None);
        let record = Record {
            source: "hf:a/b:Q4_0".to_owned(),
            revision: Some("0".repeat(40)),
            sha256: vec![None, Some("1".repeat(64))],
        };
        record.write(folder.path(), "m.gguf").unwrap();
        assert_eq!(Record::read(folder.path(), "m.gguf"), Some(record));
        fs::write(path(folder.path(), "m.gguf"), "{").unwrap();
        assert_eq!(Record::read(folder.path(), "m.gguf"), None);
    }
}
