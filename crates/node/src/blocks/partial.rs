//! Files of a model with only the blocks that this device needs.
//!
//! In a folder named by the model's digest lie the model's files at their full length with holes,
//! the manifest, and a list of the blocks that are there. The list is written after the blocks have
//! reached the disk, so that what it names is there after any crash. Where the list is missing or
//! damaged, blocks are hashed again before they are believed.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use motley_model::{DirectoryError, Gguf, GgufError, ModelDirectory};

use super::digest::Digest;
use super::disk::Disk;
use super::layout::bytes_of;
use super::manifest::{BlockPlace, Manifest};
use crate::whole_file::{self, Readers};

const LIST_MAGIC: [u8; 8] = *b"MTBLOCK1";
const LIST_FILE: &str = "blocks";
const MANIFEST_FILE: &str = "manifest";
const LOCK_FILE: &str = "lock";

/// Why blocks cannot be kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PartialError {
    /// The system refused.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// There is not enough space.
    #[error(
        "{} has {usable_bytes} bytes to spare beside its reserve of {reserve_bytes}, {needed_bytes} \
         are needed; free some, or name another folder with --models",
        folder.display()
    )]
    DiskFull {
        /// Where.
        folder: PathBuf,
        /// What must be written.
        needed_bytes: u64,
        /// What may be written.
        usable_bytes: u64,
        /// What stays free.
        reserve_bytes: u64,
    },
    /// Another process writes the same files.
    #[error("another motley is fetching this model into {}", folder.display())]
    InUse {
        /// Where.
        folder: PathBuf,
    },
    /// The bytes are not those of the block.
    #[error("block {index} does not have the content that its hash demands")]
    WrongBlock {
        /// Which block.
        index: usize,
    },
    /// The metadata, though it has the right hash, is no model's.
    #[error("the model's metadata cannot be read")]
    Metadata(#[from] GgufError),
    /// The metadata is of no model that can be run.
    #[error("the model cannot be run")]
    Directory(#[from] DirectoryError),
}

/// A block whose hash was compared.
#[derive(Debug)]
pub(crate) struct VerifiedBlock {
    index: usize,
    bytes: Vec<u8>,
}

impl VerifiedBlock {
    /// Compares the bytes with the block's hash.
    pub(crate) fn new(
        manifest: &Manifest,
        index: usize,
        bytes: Vec<u8>,
    ) -> Result<Self, PartialError> {
        match manifest.is_block(index, &bytes) {
            true => Ok(Self { index, bytes }),
            false => Err(PartialError::WrongBlock { index }),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// A model of which some blocks are here. While it exists, no other process fetches the same.
#[derive(Debug)]
pub(crate) struct PartialModel {
    folder: PathBuf,
    manifest: Arc<Manifest>,
    digest: Digest,
    disk: Disk,
    paths: Vec<PathBuf>,
    files: Vec<File>,
    there: BTreeSet<usize>,
    /// Written since the list of blocks was.
    unlisted: bool,
    /// There may be blocks that the list does not name.
    unsure: bool,
    _lock: File,
}

impl PartialModel {
    /// Opens or begins the model in `store`.
    pub(crate) fn open(
        store: &Path,
        manifest: Arc<Manifest>,
        disk: Disk,
    ) -> Result<Self, PartialError> {
        let digest = manifest.digest();
        let folder = store.join(digest.to_string());
        fs::create_dir_all(&folder).map_err(|source| error("create", &folder, source))?;
        let lock = lock(&folder)?;
        let kept = folder.join(MANIFEST_FILE);
        if !kept.exists() {
            replace(&kept, &manifest.encode())?;
        }
        let paths: Vec<PathBuf> =
            file_names(manifest.files().len()).iter().map(|name| folder.join(name)).collect();
        let mut list_holds = true;
        let mut files = Vec::new();
        for (path, facts) in paths.iter().zip(manifest.files()) {
            let (file, was_whole) = open_sparse(path, facts.bytes)?;
            list_holds &= was_whole;
            files.push(file);
        }
        let listed = if list_holds { read_list(&folder, &digest, &manifest) } else { None };
        let unsure = listed.is_none();
        let there = listed.unwrap_or_default();
        let unlisted = false;
        Ok(Self {
            folder,
            manifest,
            digest,
            disk,
            paths,
            files,
            there,
            unlisted,
            unsure,
            _lock: lock,
        })
    }

    /// The file to open the model with; of several the first.
    pub(crate) fn path(&self) -> &Path {
        &self.paths[0]
    }

    pub(crate) fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    pub(crate) fn has(&self, index: usize) -> bool {
        self.there.contains(&index)
    }

    /// Which of the wanted blocks are not here. If the list of blocks was lost, this reads and hashes
    /// what is.
    pub(crate) fn missing(
        &mut self,
        wanted: &BTreeSet<usize>,
    ) -> Result<BTreeSet<usize>, PartialError> {
        let mut missing = BTreeSet::new();
        for &index in wanted.difference(&self.there.clone()) {
            if self.unsure
                && let Some(bytes) = self.read(index)?
                && self.manifest.is_block(index, &bytes)
            {
                self.there.insert(index);
                self.unlisted = true;
            } else {
                missing.insert(index);
            }
        }
        Ok(missing)
    }

    /// Whether these blocks can be written and the reserve stays free.
    pub(crate) fn check_space(&self, blocks: &BTreeSet<usize>) -> Result<(), PartialError> {
        self.check_space_for(bytes_of(&self.manifest, blocks))
    }

    fn check_space_for(&self, needed_bytes: u64) -> Result<(), PartialError> {
        let usable = self.disk.usable_bytes(&self.folder);
        let usable_bytes =
            usable.map_err(|source| error("ask for space in", &self.folder, source))?;
        if needed_bytes <= usable_bytes {
            return Ok(());
        }
        Err(self.full(needed_bytes, usable_bytes))
    }

    fn full(&self, needed_bytes: u64, usable_bytes: u64) -> PartialError {
        let (folder, reserve_bytes) = (self.folder.clone(), self.disk.reserve_bytes());
        PartialError::DiskFull { folder, needed_bytes, usable_bytes, reserve_bytes }
    }

    /// Puts a block in its place. It lasts after [`Self::checkpoint`].
    pub(crate) fn write(&mut self, block: &VerifiedBlock) -> Result<(), PartialError> {
        let place = self.place(block.index)?;
        let needed_bytes = block.bytes.len() as u64;
        self.check_space_for(needed_bytes)?;
        let mut file = &self.files[place.file];
        let written =
            file.seek(SeekFrom::Start(place.offset)).and_then(|_| file.write_all(&block.bytes));
        match written {
            Ok(()) => {
                self.there.insert(block.index);
                self.unlisted = true;
                Ok(())
            }
            Err(source) if source.kind() == io::ErrorKind::StorageFull => {
                Err(self.full(needed_bytes, 0))
            }
            Err(source) => Err(error("write", &self.paths[place.file], source)),
        }
    }

    /// A block that is here, for others; nothing if it is not. Bytes that a disk has changed since
    /// are not given away: their block counts as lost.
    pub(crate) fn read_block(&mut self, index: usize) -> Result<Option<Vec<u8>>, PartialError> {
        if !self.there.contains(&index) {
            return Ok(None);
        }
        let bytes = self.read(index)?;
        let bytes = bytes.filter(|bytes| self.manifest.is_block(index, bytes));
        if bytes.is_none() {
            self.there.remove(&index);
            self.unlisted = true;
        }
        Ok(bytes)
    }

    /// Makes everything written so far last.
    pub(crate) fn checkpoint(&mut self) -> Result<(), PartialError> {
        if !self.unlisted {
            return Ok(());
        }
        for (file, path) in self.files.iter().zip(&self.paths) {
            file.sync_data().map_err(|source| error("write", path, source))?;
        }
        let mut list = LIST_MAGIC.to_vec();
        list.extend(self.digest.as_bytes());
        let mut bits = vec![0_u8; self.manifest.block_count().div_ceil(8)];
        self.there.iter().for_each(|index| bits[index / 8] |= 1 << (index % 8));
        list.extend(bits);
        list.extend(*Digest::of(&list).as_bytes());
        replace(&self.folder.join(LIST_FILE), &list)?;
        self.unlisted = false;
        Ok(())
    }

    /// What the model is; its metadata blocks must be here.
    pub(crate) fn directory(&self) -> Result<ModelDirectory, PartialError> {
        read_directory(&self.paths, &self.manifest)
    }

    /// The bytes at a block's place, whatever they are; nothing if the file ends before.
    fn read(&self, index: usize) -> Result<Option<Vec<u8>>, PartialError> {
        let place = self.place(index)?;
        let read = read_at(&self.files[place.file], place);
        match read {
            Ok(bytes) => Ok(Some(bytes)),
            Err(source) if source.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(source) => Err(error("read", &self.paths[place.file], source)),
        }
    }

    fn place(&self, index: usize) -> Result<BlockPlace, PartialError> {
        self.manifest.place(index).ok_or(PartialError::WrongBlock { index })
    }
}

/// What the model in these files is; their metadata must be there.
pub(super) fn read_directory(
    paths: &[PathBuf],
    manifest: &Manifest,
) -> Result<ModelDirectory, PartialError> {
    let mut heads = Vec::new();
    for (path, facts) in paths.iter().zip(manifest.files()) {
        let failed = |source| error("read", path, source);
        let file = File::open(path).map_err(failed)?;
        let mut head = Vec::new();
        file.take(facts.metadata_bytes).read_to_end(&mut head).map_err(failed)?;
        heads.push((head, facts.bytes));
    }
    let parsed = heads
        .iter()
        .map(|(head, file_bytes)| Gguf::parse(head, *file_bytes))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(ModelDirectory::from_files(&parsed)?)
}

pub(super) fn read_at(mut file: &File, place: BlockPlace) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(place.offset))?;
    let mut bytes = vec![0; place.bytes];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Names by which the parts of a model find each other; nothing of a peer's is in them.
fn file_names(count: usize) -> Vec<String> {
    match count {
        1 => vec!["model.gguf".to_owned()],
        _ => (1..=count).map(|part| format!("model-{part:05}-of-{count:05}.gguf")).collect(),
    }
}

fn lock(folder: &Path) -> Result<File, PartialError> {
    let path = folder.join(LOCK_FILE);
    let mut options = OpenOptions::new();
    let file = options.create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(|source| error("open", &path, source))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(PartialError::InUse { folder: folder.to_owned() }),
        Err(TryLockError::Error(source)) => Err(error("lock", &path, source)),
    }
}

/// Opens a file of `bytes` with holes, and tells whether it had that length already.
fn open_sparse(path: &Path, bytes: u64) -> Result<(File, bool), PartialError> {
    let mut options = OpenOptions::new();
    let file = options.create(true).truncate(false).read(true).write(true).open(path);
    let file = file.map_err(|source| error("open", path, source))?;
    let length = file.metadata().map_err(|source| error("read", path, source))?.len();
    if length != bytes {
        file.set_len(bytes).map_err(|source| error("make room in", path, source))?;
    }
    Ok((file, length == bytes))
}

fn read_list(folder: &Path, digest: &Digest, manifest: &Manifest) -> Option<BTreeSet<usize>> {
    let count = manifest.block_count();
    let length = LIST_MAGIC.len() + 32 + count.div_ceil(8) + 32;
    let file = File::open(folder.join(LIST_FILE)).ok()?;
    let mut list = Vec::new();
    file.take(length as u64 + 1).read_to_end(&mut list).ok()?;
    let (said, sum) = list.split_last_chunk::<32>()?;
    if list.len() != length || Digest::of(said).as_bytes() != sum {
        return None;
    }
    let bits = said.strip_prefix(&LIST_MAGIC)?.strip_prefix(digest.as_bytes())?;
    Some((0..count).filter(|index| bits[index / 8] & (1 << (index % 8)) != 0).collect())
}

/// Replaces a file as a whole, to stay.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), PartialError> {
    whole_file::replace(path, bytes, Readers::Usual).map_err(|source| error("write", path, source))
}

fn error(action: &'static str, path: &Path, source: io::Error) -> PartialError {
    PartialError::Io { action, path: path.to_owned(), source }
}
