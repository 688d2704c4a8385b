//! Small files that are replaced as a whole or not at all.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Who may read a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readers {
    /// Nobody but its owner.
    Owner,
    /// Whom the user's settings let.
    Usual,
}

/// Replaces the file at `path`, whose folder is there. After a crash either the old or the new
/// content is there, whole.
///
/// # Errors
/// When the disk does not take it; the old content is there then.
pub(crate) fn replace(path: &Path, bytes: &[u8], readers: Readers) -> io::Result<()> {
    let fresh = fresh_path(path);
    // What a crash left behind may have other permissions; a new file has ours.
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    if readers == Readers::Owner {
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    }
    let mut file = options.open(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    rename(&fresh, path)
}

/// Gives a file that has reached the disk another name, to stay.
///
/// # Errors
/// When the system refuses.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    match to.parent() {
        // Only Unix has, and needs, folders that can be synchronised.
        Some(folder) if cfg!(unix) => File::open(folder)?.sync_all(),
        _ => Ok(()),
    }
}

/// Where the new content lies until it is whole: hidden, in the same folder.
fn fresh_path(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default();
    let hidden = name.as_encoded_bytes().starts_with(b".");
    let mut fresh = OsString::from(if hidden { "" } else { "." });
    fresh.push(name);
    fresh.push(".new");
    path.with_file_name(fresh)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_replaced_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list");
        fs::write(fresh_path(&path), "left by a crash").unwrap();
        replace(&path, b"one", Readers::Usual).unwrap();
        replace(&path, b"two", Readers::Owner).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert!(replace(&folder.path().join("absent").join("x"), b"", Readers::Usual).is_err());
    }
}
