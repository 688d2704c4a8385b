//! The folder that keeps keys, certificates and lists: only its owner reads it, and a file is
//! replaced as a whole or not at all.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::whole_file::{self, Readers};

/// A file of this folder is at most this long; a list of a thousand members has a tenth of it.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Why the state folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    /// There is no place for it.
    #[error("there is no home folder to keep keys in; name one with --state")]
    NoHome,
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
    /// Others can read a key.
    #[error("{} can be read by others; make it private with chmod 600, or join anew", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
    },
    /// Far too long for what it should hold.
    #[error("{} has more than {FILE_BYTES_MAX} bytes", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
}

/// The state folder.
#[derive(Clone, Debug)]
pub(crate) struct StateFolder {
    path: PathBuf,
}

/// Held while several files are read and replaced together. Other processes wait.
#[derive(Debug)]
#[must_use]
pub(crate) struct FolderLock {
    _file: File,
}

impl StateFolder {
    /// Where state is kept: the folder given, else that of the user.
    pub(crate) fn locate(given: Option<PathBuf>) -> Result<PathBuf, StateError> {
        let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        let of_user = || {
            absolute("XDG_STATE_HOME")
                .or_else(|| absolute("HOME").map(|home| home.join(".local").join("state")))
                .or_else(|| absolute("LOCALAPPDATA"))
                .map(|state| state.join("motley"))
        };
        given.or_else(of_user).ok_or(StateError::NoHome)
    }

    /// Opens the folder at `path` and creates it if needed, for its owner alone.
    pub(crate) fn open(path: &Path) -> Result<Self, StateError> {
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(path).map_err(|source| error("create", path, source))?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let metadata = fs::metadata(path).map_err(|source| error("read", path, source))?;
            if metadata.permissions().mode() & 0o077 != 0 {
                fs::set_permissions(path, fs::Permissions::from_mode(0o700))
                    .map_err(|source| error("make private", path, source))?;
            }
        }
        Ok(Self { path: path.to_owned() })
    }

    /// The path of a file in it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The folder itself.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What a file holds, or nothing if there is none.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, StateError> {
        let path = self.file(name);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(error("open", &path, source)),
        };
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(|source| error("read", &path, source))?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(StateError::TooLong { path });
        }
        Ok(Some(bytes))
    }

    /// As [`Self::read`], for a file that nobody else may read.
    pub(crate) fn read_private(&self, name: &str) -> Result<Option<Vec<u8>>, StateError> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let path = self.file(name);
            let mode = fs::metadata(&path).map(|metadata| metadata.permissions().mode());
            if mode.is_ok_and(|mode| mode & 0o077 != 0) {
                return Err(StateError::Exposed { path });
            }
        }
        self.read(name)
    }

    /// Replaces a file. After a crash either the old or the new content is there, whole.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), StateError> {
        let path = self.file(name);
        whole_file::replace(&path, bytes, Readers::Owner)
            .map_err(|source| error("write", &path, source))
    }

    /// Waits until no other process changes the folder, and keeps others waiting.
    pub(crate) fn lock(&self) -> Result<FolderLock, StateError> {
        let path = self.file("lock");
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&path).map_err(|source| error("open", &path, source))?;
        file.lock().map_err(|source| error("lock", &path, source))?;
        Ok(FolderLock { _file: file })
    }
}

fn error(action: &'static str, path: &Path, source: io::Error) -> StateError {
    StateError::Io { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_private_and_replaced_whole() {
        let outer = tempfile::tempdir().unwrap();
        let folder = StateFolder::open(&outer.path().join("a").join("state")).unwrap();
        assert_eq!(folder.read("node.key").unwrap(), None);
        fs::write(folder.file(".node.key.new"), "left by a crash").unwrap();
        folder.write("node.key", b"one").unwrap();
        folder.write("node.key", b"two").unwrap();
        assert_eq!(folder.read_private("node.key").unwrap().unwrap(), b"two");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode(&folder.file("node.key")), 0o600);
            assert_eq!(mode(folder.path()), 0o700);
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_key_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let outer = tempfile::tempdir().unwrap();
        let folder = StateFolder::open(outer.path()).unwrap();
        folder.write("node.key", b"one").unwrap();
        fs::set_permissions(folder.file("node.key"), fs::Permissions::from_mode(0o640)).unwrap();
        let refused = folder.read_private("node.key").unwrap_err();
        assert!(matches!(refused, StateError::Exposed { .. }), "{refused}");
    }
}
