//! How fast the volume of the models is read, past the page cache.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use motley_engine::{StreamOptions, read_rate};

use crate::store;

/// What the disk gave.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DiskRates {
    pub(super) sequential_bytes_per_s: f64,
    pub(super) random_bytes_per_s: f64,
    pub(super) notes: Vec<String>,
}

/// Rates assumed where nothing can be read at all: those of a memory card, so that no plan hopes
/// for more than it gets.
const UNKNOWN: (f64, f64) = (50e6, 5e6);

/// Readers of pages anywhere at a time, each with one read in flight.
const READERS: usize = 4;

/// Bytes of one read anywhere: a page.
const RANDOM_READ_BYTES: usize = 4 << 10;

/// Files shorter than this would be read over and over.
const FILE_BYTES_MIN: u64 = 64 << 20;

/// Length of the file that is written where no model is long enough.
const WRITTEN_BYTES: u64 = 256 << 20;

/// What direct reads are aligned to; every common volume has blocks of at most this.
const ALIGNMENT: usize = 4096;

/// Reads for about `time`: from the longest model in `folder`, else from a file written for it.
pub(super) fn measure(folder: &Path, time: Duration) -> DiskRates {
    let mut notes = Vec::new();
    let rates = longest_model(folder)
        .map_or_else(|| Written::new(existing(folder)), |path| Ok(Written { path, ours: false }))
        .and_then(|file| rates(&file.path, time, &mut notes));
    let (sequential_bytes_per_s, random_bytes_per_s) = rates.unwrap_or_else(|error| {
        let (sequential, _) = UNKNOWN;
        notes.push(format!(
            "the disk could not be read ({error}); {} per second are assumed",
            crate::terminal::bytes(sequential as u64)
        ));
        UNKNOWN
    });
    DiskRates { sequential_bytes_per_s, random_bytes_per_s, notes }
}

/// The folder, or the nearest above it that is there already.
pub(super) fn existing(folder: &Path) -> &Path {
    folder.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("."))
}

fn longest_model(folder: &Path) -> Option<PathBuf> {
    let sized = store::files_in(folder).into_iter().filter_map(|path| {
        let bytes = path.metadata().ok()?.len();
        (bytes >= FILE_BYTES_MIN).then_some((bytes, path))
    });
    sized.max().map(|(_, path)| path)
}

/// A file to read; one of ours is removed afterwards.
struct Written {
    path: PathBuf,
    ours: bool,
}

impl Written {
    fn new(folder: &Path) -> io::Result<Self> {
        let path = folder.join(format!(".motley-disk-{}.tmp", std::process::id()));
        let written = Self { path, ours: true };
        let mut file = File::create(&written.path)?;
        // No two blocks alike, so that no volume stores them once.
        let mut block: Vec<u8> =
            (0..1 << 20_u32).map(|at: u32| (at.wrapping_mul(0x9e37_79b1) >> 13) as u8).collect();
        for number in 0..WRITTEN_BYTES / block.len() as u64 {
            block[..8].copy_from_slice(&number.to_le_bytes());
            file.write_all(&block)?;
        }
        file.sync_all()?;
        Ok(written)
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        if self.ours {
            // A refusal leaves a file that says by its name what it was.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Sequential and random rates of a file: the first by the reader that streams weights, so that
/// plans count on what the engine reaches.
fn rates(path: &Path, time: Duration, notes: &mut Vec<String>) -> io::Result<(f64, f64)> {
    let sequential = read_rate(path, &StreamOptions::default(), time.mul_f64(0.6))?;
    if !sequential.direct {
        notes.push(
            "the disk refuses direct reads; its rates may be those of the page cache".to_owned(),
        );
    }
    let file = if sequential.direct { open_direct(path)? } else { File::open(path)? };
    let random = random_rate(&file, time.mul_f64(0.4))?;
    Ok((sequential.bytes_per_s(), random))
}

/// Bytes per second of several readers of single pages all over the file.
fn random_rate(file: &File, time: Duration) -> io::Result<f64> {
    let reads = (file.metadata()?.len() / RANDOM_READ_BYTES as u64).max(1);
    let next = AtomicU64::new(0);
    let begun = Instant::now();
    let read = || -> io::Result<u64> {
        let mut memory = vec![0; RANDOM_READ_BYTES + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        let buffer = &mut memory[start..start + RANDOM_READ_BYTES];
        let mut done = 0;
        while begun.elapsed() < time {
            let number = next.fetch_add(1, Ordering::Relaxed);
            // A walk that meets every page once before it repeats, far from the last one.
            let place = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % reads;
            done += read_at(file, place * RANDOM_READ_BYTES as u64, buffer)? as u64;
        }
        Ok(done)
    };
    let done: io::Result<u64> = thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(read)).collect();
        readers.into_iter().map(|reader| reader.join().expect("readers do not panic")).sum()
    });
    let seconds = begun.elapsed().as_secs_f64();
    match done? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        bytes => Ok(bytes as f64 / seconds),
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn open_direct(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let flag = nix::fcntl::OFlag::O_DIRECT.bits();
    OpenOptions::new().read(true).custom_flags(flag).open(path)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn open_direct(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).open(path)
}

#[cfg(unix)]
fn read_at(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, offset)
}

#[cfg(windows)]
fn read_at(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buffer, offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_without_models_is_read_from_a_file_that_goes_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = Written::new(folder.path()).unwrap();
        assert_eq!(file.path.metadata().unwrap().len(), WRITTEN_BYTES);
        let path = file.path.clone();
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn what_cannot_be_read_is_said_and_stands_low() {
        let rates = measure(Path::new("/proc/1/nothing"), Duration::from_millis(1));
        assert_eq!((rates.sequential_bytes_per_s, rates.random_bytes_per_s), UNKNOWN);
        assert!(rates.notes[0].contains("50.0 MB per second are assumed"), "{:?}", rates.notes);
    }
}
