//! What a model's files hold, block by block.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use motley_model::{Gguf, GgufError};
use motley_ring::limits;

use super::digest::{BlockHash, Digest};
use crate::whole_file::{self, Readers};

const MAGIC: [u8; 4] = *b"MTMF";
const VERSION: u32 = 1;

/// A model is cut into about this many blocks, so that the two blocks at the ends of a run of layers,
/// which are fetched for their halves, are a small part of it.
const BLOCKS_WANTED: u64 = 1024;

/// Blocks are at least 64 KiB, for which asking costs little, and at most 4 MiB, which keeps the
/// manifest of 70 GB at half a megabyte.
const BLOCK_BYTES_MADE: std::ops::RangeInclusive<u64> = 64 << 10..=BLOCK_BYTES_MAX as u64;

/// What a manifest from elsewhere may say at most: a block travels in one frame.
const BLOCK_BYTES_MIN: u32 = 1 << 10;
const BLOCK_BYTES_MAX: u32 = limits::BLOCK_BYTES_MAX;
const FILES_MAX: usize = 1024;
/// 16 TiB: far above any model, far below what overflows.
const FILE_BYTES_MAX: u64 = 1 << 44;

/// Metadata of one file at most. Vocabularies of a quarter of a million tokens take 16 MB.
const METADATA_BYTES_MAX: u64 = 512 << 20;

/// Bytes of a manifest's encoding at most, for it travels in one frame too: 128 MiB in blocks of
/// 1 KiB, or 512 GiB in those of 4 MiB.
const MANIFEST_BYTES_MAX: usize = limits::BLOCK_BYTES_MAX as usize;

/// Magic, version, block length and number of files.
const HEADER_BYTES: u64 = 16;
/// Length of a file and of its metadata.
const FILE_HEADER_BYTES: u64 = 16;

/// The first guess at how long a file's metadata is; it is doubled until it suffices.
const METADATA_GUESS_BYTES: usize = 1 << 20;

/// Why no manifest could be made of files.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManifestError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Only regular files have an end.
    #[error("{} is no regular file", path.display())]
    NotRegular {
        /// What it is not.
        path: PathBuf,
    },
    /// It is no model file.
    #[error("cannot read {}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: GgufError,
    },
    /// It was written to while it was read.
    #[error("{} changed while it was read; try again", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// It is too large to be described.
    #[error(
        "the model is too large: more than {FILES_MAX} files, or than {FILE_BYTES_MAX} bytes in one, \
         or a list of blocks of more than {MANIFEST_BYTES_MAX} bytes"
    )]
    TooLarge,
}

/// Why bytes are no manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ManifestFormatError {
    /// Something else.
    #[error("the bytes are no manifest")]
    Magic,
    /// From a newer program.
    #[error("the manifest has version {version}; this program knows {VERSION}")]
    Version {
        /// What it has.
        version: u32,
    },
    /// It ends too early, goes on too long, or says what cannot be.
    #[error("the manifest is damaged at byte {offset}")]
    Damaged {
        /// Where.
        offset: usize,
    },
}

/// One file of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileManifest {
    /// Its length.
    pub(crate) bytes: u64,
    /// Header, metadata and tensor table at its beginning.
    pub(crate) metadata_bytes: u64,
    /// One hash per block; the last block may be shorter.
    pub(crate) blocks: Vec<BlockHash>,
}

/// A model's files, in order. Names are no part of it: the same bytes are the same model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    block_bytes: u32,
    files: Vec<FileManifest>,
}

/// Where one block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockPlace {
    /// Which of the model's files.
    pub(crate) file: usize,
    /// Where in it.
    pub(crate) offset: u64,
    /// How long it is.
    pub(crate) bytes: usize,
}

impl Manifest {
    /// Reads and hashes files, the parts of one model in order. `progress` hears of bytes read, and
    /// of all bytes.
    pub(crate) fn of_files(
        paths: &[PathBuf],
        progress: impl FnMut(u64, u64),
    ) -> Result<Self, ManifestError> {
        Self::of_files_in(None, paths, progress)
    }

    /// As [`Self::of_files`], in blocks of a given length.
    pub(super) fn of_files_in(
        block_bytes: Option<u32>,
        paths: &[PathBuf],
        mut progress: impl FnMut(u64, u64),
    ) -> Result<Self, ManifestError> {
        if paths.is_empty() || paths.len() > FILES_MAX {
            return Err(ManifestError::TooLarge);
        }
        let lengths =
            paths.iter().map(|path| regular_length(path)).collect::<Result<Vec<_>, _>>()?;
        let total: u64 = lengths.iter().sum();
        let block_bytes = block_bytes.unwrap_or_else(|| block_bytes_for(total));
        if encoded_bytes(&lengths, block_bytes) > MANIFEST_BYTES_MAX as u64 {
            return Err(ManifestError::TooLarge);
        }
        let mut done = 0;
        let mut files = Vec::new();
        for (path, &bytes) in paths.iter().zip(&lengths) {
            let metadata_bytes = metadata_bytes(path, bytes)?;
            let blocks = hash_blocks(path, bytes, block_bytes, |read| {
                done += read;
                progress(done, total);
            })?;
            files.push(FileManifest { bytes, metadata_bytes, blocks });
        }
        Ok(Self { block_bytes, files })
    }

    pub(crate) fn digest(&self) -> Digest {
        Digest::of(&self.encode())
    }

    pub(crate) fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    pub(crate) fn files(&self) -> &[FileManifest] {
        &self.files
    }

    /// Bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Blocks of all files; a block's index counts through them in order.
    pub(crate) fn block_count(&self) -> usize {
        self.files.iter().map(|file| file.blocks.len()).sum()
    }

    /// Index of the first block of a file.
    pub(crate) fn first_block(&self, file: usize) -> usize {
        self.files[..file].iter().map(|file| file.blocks.len()).sum()
    }

    /// Where a block lies; nothing if there is no such block.
    pub(crate) fn place(&self, index: usize) -> Option<BlockPlace> {
        let mut first = 0;
        for (number, file) in self.files.iter().enumerate() {
            if index < first + file.blocks.len() {
                let offset = (index - first) as u64 * u64::from(self.block_bytes);
                let bytes = u64::from(self.block_bytes).min(file.bytes - offset);
                return Some(BlockPlace {
                    file: number,
                    offset,
                    bytes: usize::try_from(bytes).ok()?,
                });
            }
            first += file.blocks.len();
        }
        None
    }

    /// The hash that a block must have; nothing if there is no such block.
    pub(crate) fn hash(&self, index: usize) -> Option<&BlockHash> {
        self.files.iter().flat_map(|file| &file.blocks).nth(index)
    }

    /// Whether these bytes are the block.
    pub(crate) fn is_block(&self, index: usize, bytes: &[u8]) -> bool {
        let length = self.place(index).map(|place| place.bytes);
        length == Some(bytes.len())
            && self.hash(index).is_some_and(|hash| blake3::hash(bytes).as_bytes() == hash)
    }

    /// The canonical form: magic, version, block length, number of files; of each its length, that
    /// of its metadata, and the hashes. Numbers are little-endian.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.block_bytes.to_le_bytes());
        let count = u32::try_from(self.files.len()).expect("constructors limit the files");
        bytes.extend(count.to_le_bytes());
        for file in &self.files {
            bytes.extend(file.bytes.to_le_bytes());
            bytes.extend(file.metadata_bytes.to_le_bytes());
            file.blocks.iter().for_each(|hash| bytes.extend(hash));
        }
        bytes
    }

    /// The manifest that bytes from elsewhere hold. Nothing is allocated before it is known to be
    /// there.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, ManifestFormatError> {
        let mut reader = Reader { bytes, offset: 0 };
        if reader.take::<4>()? != MAGIC {
            return Err(ManifestFormatError::Magic);
        }
        let version = u32::from_le_bytes(reader.take()?);
        if version != VERSION {
            return Err(ManifestFormatError::Version { version });
        }
        let block_bytes = u32::from_le_bytes(reader.take()?);
        let plausible = (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&block_bytes);
        if !plausible || !block_bytes.is_power_of_two() || bytes.len() > MANIFEST_BYTES_MAX {
            return Err(reader.damaged());
        }
        let count = u32::from_le_bytes(reader.take()?) as usize;
        if count == 0 || count > FILES_MAX {
            return Err(reader.damaged());
        }
        let mut files = Vec::new();
        for _ in 0..count {
            files.push(reader.file(block_bytes)?);
        }
        match reader.offset == bytes.len() {
            true => Ok(Self { block_bytes, files }),
            false => Err(reader.damaged()),
        }
    }
}

struct Reader<'b> {
    bytes: &'b [u8],
    offset: usize,
}

impl Reader<'_> {
    fn file(&mut self, block_bytes: u32) -> Result<FileManifest, ManifestFormatError> {
        let bytes = u64::from_le_bytes(self.take()?);
        let metadata_bytes = u64::from_le_bytes(self.take()?);
        let metadata_fits = metadata_bytes <= bytes.min(METADATA_BYTES_MAX);
        if bytes == 0 || bytes > FILE_BYTES_MAX || !metadata_fits {
            return Err(self.damaged());
        }
        let count = usize::try_from(bytes.div_ceil(u64::from(block_bytes)));
        let count = count.map_err(|_| self.damaged())?;
        if count > (self.bytes.len() - self.offset) / 32 {
            return Err(self.damaged());
        }
        let blocks = (0..count).map(|_| self.take()).collect::<Result<_, _>>()?;
        Ok(FileManifest { bytes, metadata_bytes, blocks })
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], ManifestFormatError> {
        let rest = &self.bytes[self.offset..];
        let taken = *rest.first_chunk::<N>().ok_or(self.damaged())?;
        self.offset += N;
        Ok(taken)
    }

    fn damaged(&self) -> ManifestFormatError {
        ManifestFormatError::Damaged { offset: self.offset }
    }
}

/// Length of the encoding of a manifest of files of these lengths.
pub(super) fn encoded_bytes(lengths: &[u64], block_bytes: u32) -> u64 {
    let blocks: u64 = lengths.iter().map(|length| length.div_ceil(u64::from(block_bytes))).sum();
    let hashes = blocks * size_of::<BlockHash>() as u64;
    hashes + lengths.len() as u64 * FILE_HEADER_BYTES + HEADER_BYTES
}

fn block_bytes_for(model_bytes: u64) -> u32 {
    let (least, most) = (*BLOCK_BYTES_MADE.start(), *BLOCK_BYTES_MADE.end());
    let even = (model_bytes / BLOCKS_WANTED).clamp(least, most);
    let power = 1 << even.ilog2();
    u32::try_from(power).expect("at most 4 MiB")
}

fn regular_length(path: &Path) -> Result<u64, ManifestError> {
    let metadata = fs::metadata(path)
        .map_err(|source| ManifestError::File { path: path.to_owned(), source })?;
    if !metadata.is_file() {
        return Err(ManifestError::NotRegular { path: path.to_owned() });
    }
    match metadata.len() {
        length if length <= FILE_BYTES_MAX => Ok(length),
        _ => Err(ManifestError::TooLarge),
    }
}

/// Where the tensors begin.
fn metadata_bytes(path: &Path, file_bytes: u64) -> Result<u64, ManifestError> {
    let failed = |source| ManifestError::File { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(failed)?;
    let mut head = Vec::new();
    let mut wanted = METADATA_GUESS_BYTES;
    loop {
        let more = (wanted - head.len()) as u64;
        file.by_ref().take(more).read_to_end(&mut head).map_err(failed)?;
        match Gguf::parse(&head, file_bytes.max(head.len() as u64)) {
            Ok(gguf) => return Ok(gguf.data_offset().min(file_bytes)),
            // These do not change with more of the file.
            Err(
                source @ (GgufError::Magic { .. }
                | GgufError::BigEndian { .. }
                | GgufError::Version { .. }),
            ) => return Err(ManifestError::Format { path: path.to_owned(), source }),
            // A head that ends too early looks damaged in many ways.
            Err(_) if head.len() == wanted && (wanted as u64) < METADATA_BYTES_MAX => wanted *= 2,
            Err(source) => return Err(ManifestError::Format { path: path.to_owned(), source }),
        }
    }
}

fn hash_blocks(
    path: &Path,
    file_bytes: u64,
    block_bytes: u32,
    mut read: impl FnMut(u64),
) -> Result<Vec<BlockHash>, ManifestError> {
    let failed = |source| ManifestError::File { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(failed)?;
    let mut blocks = Vec::new();
    let mut left = file_bytes;
    let mut buffer = Vec::new();
    while left > 0 {
        buffer.clear();
        let wanted = u64::from(block_bytes).min(left);
        file.by_ref().take(wanted).read_to_end(&mut buffer).map_err(failed)?;
        if buffer.len() as u64 != wanted {
            return Err(ManifestError::Changed { path: path.to_owned() });
        }
        blocks.push(*blake3::hash(&buffer).as_bytes());
        left -= wanted;
        read(wanted);
    }
    Ok(blocks)
}

/// Remembers manifests of files that have not changed since, so that a start hashes nothing twice.
#[derive(Debug)]
pub(crate) struct ManifestCache {
    folder: PathBuf,
}

impl ManifestCache {
    /// A cache in `folder`, which is created when something is first kept.
    pub(crate) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// The manifest of these files: the one kept, if place, length and time of change of every file
    /// are the same; else a new one.
    pub(crate) fn of_files(
        &self,
        paths: &[PathBuf],
        progress: impl FnMut(u64, u64),
    ) -> Result<Manifest, ManifestError> {
        let before = self.key(paths)?;
        if let Some(manifest) = before.as_deref().and_then(read_kept) {
            return Ok(manifest);
        }
        let manifest = Manifest::of_files(paths, progress)?;
        let after = self.key(paths)?;
        if before != after {
            return Err(ManifestError::Changed { path: paths[0].clone() });
        }
        if let Some(path) = after {
            // Without it the next start hashes again, which is slow and right.
            let _ = self.keep(&path, &manifest);
        }
        Ok(manifest)
    }

    /// The file that keeps the manifest of these files as they are now; nothing where the system
    /// does not tell when a file was changed.
    fn key(&self, paths: &[PathBuf]) -> Result<Option<PathBuf>, ManifestError> {
        let mut hasher = blake3::Hasher::new();
        for path in paths {
            let failed = |source| ManifestError::File { path: path.clone(), source };
            let real = fs::canonicalize(path).map_err(failed)?;
            let metadata = fs::metadata(&real).map_err(failed)?;
            let Ok(changed) = metadata.modified() else { return Ok(None) };
            let Ok(changed) = changed.duration_since(std::time::SystemTime::UNIX_EPOCH) else {
                return Ok(None);
            };
            let place = real.as_os_str().as_encoded_bytes();
            hasher.update(&(place.len() as u64).to_le_bytes());
            hasher.update(place);
            hasher.update(&metadata.len().to_le_bytes());
            hasher.update(&changed.as_nanos().to_le_bytes());
        }
        let name = Digest::from_bytes(*hasher.finalize().as_bytes());
        Ok(Some(self.folder.join(format!("{name}.manifest"))))
    }

    fn keep(&self, path: &Path, manifest: &Manifest) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let encoded = manifest.encode();
        let mut kept = Digest::of(&encoded).as_bytes().to_vec();
        kept.extend(encoded);
        whole_file::replace(path, &kept, Readers::Usual)
    }
}

/// A kept manifest begins with its digest, so that a torn or changed file is no manifest.
fn read_kept(path: &Path) -> Option<Manifest> {
    let file = File::open(path).ok()?;
    let mut kept = Vec::new();
    file.take(MANIFEST_BYTES_MAX as u64 + 32).read_to_end(&mut kept).ok()?;
    let (digest, encoded) = kept.split_first_chunk::<32>()?;
    if Digest::of(encoded).as_bytes() != digest {
        return None;
    }
    Manifest::decode(encoded).ok()
}
