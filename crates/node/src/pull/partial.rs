//! A file that is not whole yet, and a note beside it of what it is and which bytes are there.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::ranges::RangeSet;
use super::source::FileName;
use crate::whole_file::{self, Readers};

/// Bytes of a note at most; one range takes some twenty.
const NOTE_BYTES_MAX: u64 = 1 << 20;

/// Why a file cannot be written or gone on with.
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
    /// Another process fetches the same file.
    #[error("another motley pull is fetching {name}")]
    InUse {
        /// Which file.
        name: String,
    },
}

/// What the server says that a file is. As long as that is the same, its bytes belong together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RemoteFile {
    pub(super) bytes: u64,
    /// The server's name for this state of the file.
    pub(super) etag: Option<String>,
    /// SHA-256 in hexadecimal, where it is known.
    pub(super) sha256: Option<String>,
}

/// What is kept beside a partial file.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    #[serde(flatten)]
    remote: RemoteFile,
    /// From the first byte to one beyond the last.
    present: Vec<(u64, u64)>,
}

/// A file under a name of its own until it is whole. Only one process at a time has it.
#[derive(Debug)]
pub(super) struct PartialFile {
    path: PathBuf,
    note_path: PathBuf,
    file: File,
    remote: RemoteFile,
    present: RangeSet,
    /// Bytes written since the note was.
    unnoted_bytes: u64,
}

/// Where the partial file of `name` lies in `folder`.
pub(crate) fn partial_path(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!(".{name}.part"))
}

/// Where its note lies.
pub(crate) fn note_path(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!(".{name}.part.json"))
}

/// How far a partial file is: bytes that are there, and all bytes.
pub(crate) fn progress_of(folder: &Path, name: &str) -> Option<(u64, u64)> {
    let note = read_note(&note_path(folder, name))?;
    let bytes = note.remote.bytes;
    Some((RangeSet::from_sorted(note.present, bytes)?.bytes(), bytes))
}

impl PartialFile {
    /// Goes on with what is there of the same file, or begins anew.
    pub(super) fn open(
        folder: &Path,
        name: &FileName,
        remote: RemoteFile,
    ) -> Result<Self, PartialError> {
        let path = partial_path(folder, name.as_str());
        let note_path = note_path(folder, name.as_str());
        let failed = |action| {
            let path = path.clone();
            move |source| PartialError::Io { action, path, source }
        };
        fs::create_dir_all(folder).map_err(failed("create the folder of"))?;
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(false).read(true).write(true).open(&path);
        let file = file.map_err(failed("create"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(PartialError::InUse { name: name.to_string() });
            }
            Err(TryLockError::Error(source)) => return Err(failed("lock")(source)),
        }
        let present = read_note(&note_path)
            .filter(|note| note.remote == remote && is_pinned(&remote))
            .and_then(|note| RangeSet::from_sorted(note.present, remote.bytes))
            .unwrap_or_default();
        if present.bytes() == 0 {
            file.set_len(0).map_err(failed("empty"))?;
        }
        file.set_len(remote.bytes).map_err(failed("make room for"))?;
        Ok(Self { path, note_path, file, remote, present, unnoted_bytes: 0 })
    }

    pub(super) fn remote(&self) -> &RemoteFile {
        &self.remote
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn present(&self) -> &RangeSet {
        &self.present
    }

    /// Bytes that are still to come.
    pub(super) fn missing_bytes(&self) -> u64 {
        self.remote.bytes - self.present.bytes()
    }

    /// Bytes written since the last note.
    pub(super) fn unnoted_bytes(&self) -> u64 {
        self.unnoted_bytes
    }

    /// Writes bytes at their place.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), PartialError> {
        self.file.write_all_at(bytes, offset).map_err(|source| self.failed("write", source))?;
        self.present.insert(offset, offset + bytes.len() as u64);
        self.unnoted_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Notes what is there, after it has reached the disk.
    pub(super) fn note(&mut self) -> Result<(), PartialError> {
        self.file.sync_data().map_err(|source| self.failed("write", source))?;
        let note = Note { remote: self.remote.clone(), present: self.present.ranges().to_vec() };
        let written = serde_json::to_vec(&note)
            .map_err(io::Error::from)
            .and_then(|bytes| whole_file::replace(&self.note_path, &bytes, Readers::Usual));
        written.map_err(|source| self.failed("keep a note beside", source))?;
        self.unnoted_bytes = 0;
        Ok(())
    }

    /// Forgets all bytes.
    pub(super) fn restart(&mut self) -> Result<(), PartialError> {
        self.present = RangeSet::default();
        let emptied = self.file.set_len(0).and_then(|()| self.file.set_len(self.remote.bytes));
        emptied.map_err(|source| self.failed("empty", source))
    }

    /// Gives the whole file its name.
    pub(super) fn finish(mut self, to: &Path) -> Result<(), PartialError> {
        self.file.sync_all().map_err(|source| self.failed("write", source))?;
        self.unnoted_bytes = 0;
        leave_memory(&self.file);
        whole_file::rename(&self.path, to).map_err(|source| self.failed("rename", source))?;
        let _ = fs::remove_file(&self.note_path);
        Ok(())
    }

    /// Removes the file and its note.
    pub(super) fn discard(mut self) {
        self.unnoted_bytes = 0;
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(&self.note_path);
    }

    fn failed(&self, action: &'static str, source: io::Error) -> PartialError {
        PartialError::Io { action, path: self.path.clone(), source }
    }
}

/// Lets the system forget the pages of a file that has reached the disk. Pages that were written one
/// by one lie scattered in memory, and weights in them are read up to a quarter more slowly than in
/// the large pages that reading the file brings.
fn leave_memory(file: &File) {
    #[cfg(target_os = "linux")]
    // Where the system does not take the advice, the file is only slower.
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
    #[cfg(not(target_os = "linux"))]
    let _ = file;
}

impl Drop for PartialFile {
    /// Whatever ends the download, what came until then is not lost.
    fn drop(&mut self) {
        if self.unnoted_bytes > 0 {
            let _ = self.note();
        }
    }
}

/// Whether anything tells one state of the file from another; the length alone does not.
fn is_pinned(remote: &RemoteFile) -> bool {
    remote.etag.is_some() || remote.sha256.is_some()
}

fn read_note(path: &Path) -> Option<Note> {
    let facts = fs::metadata(path).ok()?;
    if facts.len() > NOTE_BYTES_MAX {
        return None;
    }
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(etag: &str) -> RemoteFile {
        RemoteFile { bytes: 10, etag: Some(etag.to_owned()), sha256: None }
    }

    #[test]
    fn the_same_file_is_gone_on_with_and_another_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let name: FileName = "m.gguf".parse().unwrap();
        let open = |etag| PartialFile::open(folder.path(), &name, remote(etag)).unwrap();
        let mut first = open("one");
        first.write(2, b"abc").unwrap();
        assert!(matches!(
            PartialFile::open(folder.path(), &name, remote("one")),
            Err(PartialError::InUse { .. })
        ));
        first.note().unwrap();
        first.write(5, b"de").unwrap();
        drop(first);
        let again = open("one");
        assert_eq!(again.present().ranges(), [(2, 7)]);
        assert_eq!(progress_of(folder.path(), "m.gguf"), Some((5, 10)));
        drop(again);
        assert_eq!(open("two").missing_bytes(), 10);
        fs::write(note_path(folder.path(), "m.gguf"), "{\"bytes\":10").unwrap();
        assert_eq!(open("one").missing_bytes(), 10);
    }

    #[test]
    fn a_finished_file_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let name: FileName = "m.gguf".parse().unwrap();
        let mut partial = PartialFile::open(folder.path(), &name, remote("one")).unwrap();
        partial.write(0, b"0123456789").unwrap();
        partial.note().unwrap();
        partial.finish(&folder.path().join("m.gguf")).unwrap();
        let names: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["m.gguf"]);
    }
}
