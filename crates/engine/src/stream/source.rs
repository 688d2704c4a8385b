//! Files as the reader threads see them.

use std::fs::File;
use std::io;
use std::sync::Arc;

use motley_ggml::{Arena, MappedFile, Region};

use crate::stream::pieces::Read;

/// Why weights could not be read from disk.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReadError {
    /// The file ends before the weights do.
    #[error(
        "file {file} of the model has become shorter while it was used: {found} of {needed} bytes \
         are left at {offset}"
    )]
    Truncated {
        /// Which of the model's files, from 0.
        file: usize,
        /// First byte of the read.
        offset: u64,
        /// Bytes that are needed from there.
        needed: usize,
        /// Bytes that there are.
        found: usize,
    },
    /// The system refused.
    #[error("cannot read {bytes} bytes at {offset} of file {file} of the model")]
    Refused {
        /// Which of the model's files, from 0.
        file: usize,
        /// First byte of the read.
        offset: u64,
        /// Bytes asked for.
        bytes: usize,
        /// What the system said.
        #[source]
        source: Arc<io::Error>,
    },
    /// Nothing arrived for too long.
    #[error("the disk has given nothing for {waited_s} seconds")]
    Stalled {
        /// Seconds without a single finished read.
        waited_s: u64,
    },
    /// Reader threads could not be started, or have ended.
    #[error("the threads that read weights are not running")]
    NotRunning,
    /// Memory for weights was refused.
    #[error("{bytes} bytes of memory for weights were refused")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
        /// What the system said.
        #[source]
        source: Arc<io::Error>,
    },
}

/// The files of a model, opened for reading past the system's cache where that works for all.
#[derive(Debug)]
pub(crate) struct Source {
    files: Vec<(Arc<MappedFile>, File)>,
    pub(crate) direct: bool,
}

impl Source {
    pub(crate) fn open(files: &[Arc<MappedFile>], direct: bool) -> io::Result<Self> {
        let opened: Option<Vec<_>> = files
            .iter()
            .map(|file| Some((Arc::clone(file), open_direct(file).filter(|_| direct)?)))
            .collect();
        if let Some(files) = opened {
            return Ok(Self { files, direct: true });
        }
        let cached = files.iter().map(|file| Ok((Arc::clone(file), file.reopen_cached()?)));
        Ok(Self { files: cached.collect::<io::Result<_>>()?, direct: false })
    }

    /// Fills `region` by one read, repeated where the system stops early.
    pub(crate) fn read(&self, read: &Read, region: &mut Region) -> Result<(), ReadError> {
        let bytes = region.bytes_mut();
        let (mapped, file) = &self.files[read.file];
        let mut found = 0;
        while found < read.needed {
            let offset = read.offset + found as u64;
            match read_some(file, &mut bytes[found..], offset) {
                Ok(0) => break,
                Ok(more) => found += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Past the cache a read can only go on at a block, so that one which ended inside
                // a block has met the end of the file.
                Err(_) if !found.is_multiple_of(Arena::ALIGNMENT) => break,
                Err(source) => {
                    let Read { file, offset, bytes, .. } = *read;
                    let source = Arc::new(source);
                    return Err(ReadError::Refused { file, offset, bytes, source });
                }
            }
        }
        if found < read.needed {
            let Read { file, offset, needed, .. } = *read;
            return Err(ReadError::Truncated { file, offset, needed, found });
        }
        mapped.count_loaded(found);
        Ok(())
    }
}

/// The file for direct reading, if a read of one block works.
fn open_direct(file: &MappedFile) -> Option<File> {
    let direct = file.reopen_direct().ok()?;
    let (_arena, mut block) = Arena::reserve(Arena::ALIGNMENT).ok()?;
    read_some(&direct, block.bytes_mut(), 0).ok()?;
    Some(direct)
}

#[cfg(unix)]
fn read_some(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, bytes, offset)
}

#[cfg(windows)]
fn read_some(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, bytes, offset)
}
