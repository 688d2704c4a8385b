//! A model file, mapped and checked.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use motley_ggml::{MappedFile, Vocabulary};
use motley_model::{
    DirectoryError, Gguf, GgufError, ModelDirectory, split_paths, write_metadata_only,
};

use crate::layout::{KnownLayouts, MeasuredLayout};

/// Why a model could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file cannot be read.
    #[error("cannot open {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file is no GGUF file that can be believed.
    #[error("cannot read {}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: GgufError,
    },
    /// The file holds no model that can be run.
    #[error("cannot run the model in {}", path.display())]
    Directory {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: DirectoryError,
    },
    /// The vocabulary cannot be used.
    #[error("cannot load the vocabulary of {}", path.display())]
    Vocabulary {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: VocabularyLoadError,
    },
}

/// Why a vocabulary could not be used.
#[derive(Debug, thiserror::Error)]
pub enum VocabularyLoadError {
    /// llama.cpp refused it.
    #[error(transparent)]
    Refused(#[from] motley_ggml::VocabularyError),
    /// Text and logits would not agree.
    #[error("the vocabulary has {tokens} tokens, but the model gives {logits} logits")]
    Size {
        /// Tokens of the vocabulary.
        tokens: usize,
        /// Rows of the embedding.
        logits: usize,
    },
}

/// A model file, or all parts of a split one, mapped and checked.
#[derive(Debug)]
pub struct Model {
    path: PathBuf,
    files: Vec<Arc<MappedFile>>,
    directory: ModelDirectory,
    layouts: KnownLayouts,
}

impl Model {
    /// Maps the file at `path` and, of a split model, all its parts.
    ///
    /// # Errors
    /// When a file cannot be read, is malformed, or holds a model that cannot be run.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let paths = split_paths(path);
        let files = paths
            .iter()
            .map(|path| {
                MappedFile::open(path)
                    .map(Arc::new)
                    .map_err(|source| OpenError::File { path: path.clone(), source })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let parsed = paths
            .iter()
            .zip(&files)
            .map(|(path, file)| parse(path, file))
            .collect::<Result<Vec<_>, _>>()?;
        let directory = ModelDirectory::from_files(&parsed)
            .map_err(|source| OpenError::Directory { path: path.to_owned(), source })?;
        if let Some((path, _)) = paths.iter().zip(&files).find(|(_, file)| file.was_truncated()) {
            let source = io::Error::other("the file has become shorter while it was read");
            return Err(OpenError::File { path: path.clone(), source });
        }
        Ok(Self::of_parts(path.to_owned(), files, directory))
    }

    /// A model put together from parts that agree with each other.
    pub(crate) fn of_parts(
        path: PathBuf,
        files: Vec<Arc<MappedFile>>,
        directory: ModelDirectory,
    ) -> Self {
        Self { path, files, directory, layouts: KnownLayouts::default() }
    }

    /// Where the model was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the model is.
    pub fn directory(&self) -> &ModelDirectory {
        &self.directory
    }

    /// Bytes of the files that engines have read since the model was opened, each as often as it was
    /// read: grows as long as a load goes on.
    pub fn loaded_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.loaded_bytes()).sum()
    }

    /// Which layouts of weights are faster on this machine, as far as engines of this model have
    /// measured it or [were told](Self::know_layouts).
    pub fn layouts(&self) -> Vec<MeasuredLayout> {
        self.layouts.all()
    }

    /// Takes what was measured earlier on this machine, which then need not be measured again.
    pub fn know_layouts(&self, measured: impl IntoIterator<Item = MeasuredLayout>) {
        measured.into_iter().for_each(|layout| self.layouts.learn(layout));
    }

    /// Loads the vocabulary. llama.cpp gets the checked metadata only, never the file.
    ///
    /// # Errors
    /// When llama.cpp refuses the vocabulary or its size is not the model's.
    pub fn vocabulary(&self) -> Result<Vocabulary, OpenError> {
        let refused = |source| OpenError::Vocabulary { path: self.path.clone(), source };
        let metadata = {
            let first = parse(&self.path, &self.files[0])?;
            write_metadata_only(&first)
        };
        let vocabulary =
            Vocabulary::from_metadata(&metadata).map_err(|source| refused(source.into()))?;
        let (tokens, logits) = (vocabulary.size(), self.directory.hyper.vocabulary_size);
        if tokens > logits {
            return Err(refused(VocabularyLoadError::Size { tokens, logits }));
        }
        Ok(vocabulary)
    }

    /// Bytes of all files.
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes().len() as u64).sum()
    }

    pub(crate) fn known_layouts(&self) -> &KnownLayouts {
        &self.layouts
    }

    pub(crate) fn files(&self) -> &[Arc<MappedFile>] {
        &self.files
    }
}

fn parse<'f>(path: &Path, file: &'f MappedFile) -> Result<Gguf<'f>, OpenError> {
    Gguf::parse(file.bytes(), file.bytes().len() as u64)
        .map_err(|source| OpenError::Format { path: path.to_owned(), source })
}
