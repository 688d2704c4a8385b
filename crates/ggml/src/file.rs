//! Read-only memory maps of model files.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::Mmap;

use crate::truncation::Guard;

/// A whole file mapped read-only.
pub struct MappedFile {
    // Dropped before the map that it guards.
    guard: Guard,
    map: Mmap,
    file: File,
    loaded_bytes: AtomicU64,
}

/// Bytes that are populated by one call, so that it can be seen how far that is.
const POPULATED_AT_ONCE: usize = 64 << 20;

impl MappedFile {
    /// Maps the regular file at `path`.
    ///
    /// # Errors
    /// When the path cannot be opened, is no regular file, or cannot be mapped.
    #[expect(clippy::disallowed_methods, reason = "opening files is what this function is for")]
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        // SAFETY: the map is private to this process and only read. Another program that
        // rewrites the file while it is mapped can change the bytes, one that truncates it leaves
        // zeros (see `truncation`); model files are installed once and replaced by renaming, and
        // no length is ever taken from the mapped bytes without a check against the map's length.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self { guard: Guard::new(&map), map, file, loaded_bytes: AtomicU64::new(0) })
    }

    /// Whether bytes were missing when they were read: the file has become shorter, and zeros
    /// stand for what it lost. Stays true.
    pub fn was_truncated(&self) -> bool {
        self.guard.was_hit()
    }

    /// Fills `bytes` with the file's bytes from `offset` on, read instead of mapped.
    ///
    /// # Errors
    /// When the file cannot be read or ends too early.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        #[cfg(unix)]
        std::os::unix::fs::FileExt::read_exact_at(&self.file, bytes, offset)?;
        #[cfg(not(unix))]
        {
            use std::io::{Read as _, Seek as _};
            let mut file = self.file.try_clone()?;
            file.seek(io::SeekFrom::Start(offset))?;
            file.read_exact(bytes)?;
        }
        self.count_loaded(bytes.len());
        Ok(())
    }

    /// Bytes that were read or [populated](Self::populate) since the file was opened, each as often
    /// as it was: shows that loading goes on.
    pub fn loaded_bytes(&self) -> u64 {
        self.loaded_bytes.load(Ordering::Relaxed)
    }

    /// Counts bytes that were read through another handle of the file.
    pub fn count_loaded(&self, bytes: usize) {
        self.loaded_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Opens the same file again for reading past the system's cache, even if it was renamed or
    /// removed meanwhile.
    ///
    /// # Errors
    /// When the system or the file system offers no such reading.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn reopen_direct(&self) -> io::Result<File> {
        use std::os::fd::AsRawFd as _;
        use std::os::unix::fs::OpenOptionsExt as _;
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        File::options().read(true).custom_flags(libc::O_DIRECT).open(path)
    }

    /// Opens the same file again for reading past the system's cache.
    ///
    /// # Errors
    /// Always: it is not written for this system.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub fn reopen_direct(&self) -> io::Result<File> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Another handle of the open file, for reading through the system's cache from front to back.
    ///
    /// # Errors
    /// When the process has too many open files.
    pub fn reopen_cached(&self) -> io::Result<File> {
        let file = self.file.try_clone()?;
        #[cfg(any(target_os = "linux", target_os = "android"))]
        // SAFETY: the descriptor is open; the advice changes how far the system reads ahead.
        unsafe {
            use std::os::fd::AsRawFd as _;
            libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_SEQUENTIAL);
        }
        Ok(file)
    }

    /// Length of the file now.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn current_length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Reads `length` bytes from `offset` on and maps them at once, which costs a fraction of one
    /// page fault per page later. Without effect where the system cannot do it.
    ///
    /// # Panics
    /// When the range reaches beyond the file.
    pub fn populate(&self, offset: usize, length: usize) {
        assert!(offset + length <= self.map.len(), "a range beyond the end of the file");
        for start in (offset..offset + length).step_by(POPULATED_AT_ONCE) {
            let part = POPULATED_AT_ONCE.min(offset + length - start);
            #[cfg(target_os = "linux")]
            let _ = self.map.advise_range(memmap2::Advice::PopulateRead, start, part);
            self.count_loaded(part);
        }
    }

    /// Lets go of the pages between `offset` and `length` bytes further on, which are read again if
    /// somebody looks at them. Without effect where the system cannot do it.
    ///
    /// # Panics
    /// When the range reaches beyond the file.
    pub fn let_go(&self, offset: usize, length: usize) {
        assert!(offset + length <= self.map.len(), "a range beyond the end of the file");
        #[cfg(target_os = "linux")]
        // SAFETY: the pages are those of a file that is only read, so that whoever reads them
        // later finds the same bytes; zeros that stand for a truncated part were noted before.
        unsafe {
            let _ =
                self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, length);
        }
    }
}

impl fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MappedFile").field("bytes", &self.map.len()).finish()
    }
}
