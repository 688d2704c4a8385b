//! Free space, of which a part stays free.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Space that fetching never takes: 2 GiB.
pub(crate) const DISK_RESERVE_BYTES_DEFAULT: u64 = 2 << 30;

/// Tells the free bytes of the file system of a folder.
type FreeBytes = dyn Fn(&Path) -> io::Result<u64> + Send + Sync;

/// How much space a folder's file system has, and how much of it must stay free.
#[derive(Clone)]
pub(crate) struct Disk {
    reserve_bytes: u64,
    free_bytes: Arc<FreeBytes>,
}

impl Disk {
    /// The real one.
    pub(crate) fn with_reserve(reserve_bytes: u64) -> Self {
        Self::with(reserve_bytes, free_bytes)
    }

    /// One whose free space is told by a function.
    pub(crate) fn with(
        reserve_bytes: u64,
        free_bytes: impl Fn(&Path) -> io::Result<u64> + Send + Sync + 'static,
    ) -> Self {
        Self { reserve_bytes, free_bytes: Arc::new(free_bytes) }
    }

    pub(crate) fn reserve_bytes(&self) -> u64 {
        self.reserve_bytes
    }

    /// Bytes that may still be written in `folder`.
    pub(crate) fn usable_bytes(&self, folder: &Path) -> io::Result<u64> {
        Ok((self.free_bytes)(folder)?.saturating_sub(self.reserve_bytes))
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").field("reserve_bytes", &self.reserve_bytes).finish_non_exhaustive()
    }
}

#[cfg(unix)]
fn free_bytes(folder: &Path) -> io::Result<u64> {
    let space = nix::sys::statvfs::statvfs(folder)?;
    // The fields' widths differ between systems.
    #[allow(clippy::useless_conversion, reason = "they are 64 bits wide only on some systems")]
    let (blocks, block_bytes) =
        (u64::from(space.blocks_available()), u64::from(space.fragment_size()));
    Ok(blocks.saturating_mul(block_bytes))
}

/// Without a way to ask, only the system's own refusal is left.
#[cfg(not(unix))]
fn free_bytes(_folder: &Path) -> io::Result<u64> {
    Ok(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_stays_free() {
        let disk = Disk::with(100, |_| Ok(130));
        assert_eq!(disk.usable_bytes(Path::new(".")).unwrap(), 30);
        let disk = Disk::with(100, |_| Ok(30));
        assert_eq!(disk.usable_bytes(Path::new(".")).unwrap(), 0);
    }

    #[test]
    fn the_system_tells_its_free_space() {
        let folder = tempfile::tempdir().unwrap();
        let all = Disk::with_reserve(0).usable_bytes(folder.path()).unwrap();
        assert!(all > 0);
        assert_eq!(Disk::with_reserve(u64::MAX).usable_bytes(folder.path()).unwrap(), 0);
    }
}
