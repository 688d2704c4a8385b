//! The rate of a disk, measured as weights are read.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use motley_ggml::{Arena, MappedFile};

use crate::stream::StreamOptions;
use crate::stream::pieces::{Extent, Piece};
use crate::stream::reader::Reader;
use crate::stream::source::{ReadError, Source};

/// How fast a file could be read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReadRate {
    /// Bytes read.
    pub bytes: u64,
    /// Time that took.
    pub elapsed: Duration,
    /// Whether the system's cache was passed by; else the rate may be that of memory.
    pub direct: bool,
}

impl ReadRate {
    /// Bytes per second.
    pub fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Reads the file at `path` from front to back, and again, for about `duration` by the threads,
/// sizes and memory that weights are streamed with, and tells the rate.
///
/// # Errors
/// When the file cannot be opened or read, or is empty.
pub fn read_rate(path: &Path, options: &StreamOptions, duration: Duration) -> io::Result<ReadRate> {
    let file = Arc::new(MappedFile::open(path)?);
    let pieces = pieces_of(file.current_length()?, options.piece_bytes);
    let largest = pieces.iter().map(|piece| piece.bytes).max();
    let largest = largest.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
    let (_arena, buffer) = Arena::reserve(options.buffer_bytes(largest))?;
    let source = Source::open(&[file], options.direct)?;
    let reader = Reader::start(source, &pieces.iter().collect::<Vec<_>>(), buffer, options)
        .map_err(io::Error::other)?;
    let order: Vec<usize> = (0..pieces.len()).collect();
    reader.set_order(&order);
    drain(&reader, &order, duration).map_err(io::Error::other)
}

/// Takes the pieces of `order` again and again and gives them back at once.
pub(crate) fn drain(
    reader: &Reader,
    order: &[usize],
    duration: Duration,
) -> Result<ReadRate, ReadError> {
    let mut pieces = order.iter().cycle();
    let mut take = || {
        let piece = pieces.next().expect("an order of at least one piece");
        reader.take(*piece, || {}).map(|region| reader.give_back(region))
    };
    // What was read before the clock starts does not count.
    take()?;
    let (start, before) = (Instant::now(), reader.bytes_read());
    while start.elapsed() < duration {
        take()?;
    }
    let bytes = reader.bytes_read() - before;
    Ok(ReadRate { bytes, elapsed: start.elapsed(), direct: reader.is_direct() })
}

/// A file cut into pieces, without an incomplete block at its end.
fn pieces_of(length: u64, piece_bytes: usize) -> Vec<Piece> {
    let piece_bytes = piece_bytes.max(1).next_multiple_of(Arena::ALIGNMENT);
    let whole = length / Arena::ALIGNMENT as u64 * Arena::ALIGNMENT as u64;
    (0..whole)
        .step_by(piece_bytes)
        .map(|offset| {
            let bytes = piece_bytes.min(usize::try_from(whole - offset).unwrap_or(usize::MAX));
            let extent = Extent { file: 0, offset, bytes, needed: bytes, place: 0 };
            Piece { extents: vec![extent], bytes, offsets: Vec::new() }
        })
        .collect()
}
