//! Where the bytes of tensors lie that are read together.

use std::ops::Range;

use motley_ggml::Arena;
use motley_model::{LayerTensors, TensorInfo};

/// Tensors that are read together, and where each then lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) extents: Vec<Extent>,
    /// Bytes of memory that the piece takes.
    pub(crate) bytes: usize,
    /// First byte of each tensor in that memory.
    pub(crate) offsets: Vec<usize>,
}

/// A range of a file that goes to a place of the piece's memory. Both begin at a block of the
/// disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) file: usize,
    pub(crate) offset: u64,
    /// Whole blocks; the last may reach beyond the end of the file.
    pub(crate) bytes: usize,
    /// Bytes that must arrive.
    pub(crate) needed: usize,
    pub(crate) place: usize,
}

/// One read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) file: usize,
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
    pub(crate) needed: usize,
    pub(crate) place: usize,
}

/// Gaps between tensors up to this length are read rather than left out.
const GAP_BYTES_MAX: u64 = 64 << 10;

const BLOCK: u64 = Arena::ALIGNMENT as u64;

impl Piece {
    /// The piece of these tensors; neighbours in a file become one extent.
    pub(crate) fn new(tensors: &[&TensorInfo]) -> Self {
        let mut order: Vec<usize> = (0..tensors.len()).collect();
        order.sort_unstable_by_key(|index| (tensors[*index].file_index, tensors[*index].offset));
        let mut piece = Self { extents: Vec::new(), bytes: 0, offsets: vec![0; tensors.len()] };
        let mut ranges: Vec<(usize, Range<u64>)> = Vec::new();
        for index in &order {
            let tensor = tensors[*index];
            let range = tensor.offset..tensor.offset + tensor.bytes;
            match ranges.last_mut() {
                Some((file, last))
                    if *file == tensor.file_index && range.start <= last.end + GAP_BYTES_MAX =>
                {
                    last.end = last.end.max(range.end);
                }
                _ => ranges.push((tensor.file_index, range)),
            }
        }
        for (file, range) in ranges {
            let offset = range.start / BLOCK * BLOCK;
            let needed = length(range.end - offset);
            let bytes = needed.next_multiple_of(Arena::ALIGNMENT);
            let extent = Extent { file, offset, bytes, needed, place: piece.bytes };
            piece.bytes += bytes;
            for (tensor, place) in tensors.iter().zip(&mut piece.offsets) {
                if tensor.file_index == file && range.contains(&tensor.offset) {
                    *place = extent.place + length(tensor.offset - offset);
                }
            }
            piece.extents.push(extent);
        }
        piece
    }

    /// The reads that bring the piece, of about equal length up to `read_bytes`, in order.
    pub(crate) fn reads(&self, read_bytes: usize) -> Vec<Read> {
        let mut reads = Vec::new();
        for extent in &self.extents {
            let count = extent.bytes.div_ceil(read_bytes.max(Arena::ALIGNMENT));
            let step = extent.bytes.div_ceil(count).next_multiple_of(Arena::ALIGNMENT);
            for start in (0..extent.bytes).step_by(step) {
                let bytes = step.min(extent.bytes - start);
                reads.push(Read {
                    file: extent.file,
                    offset: extent.offset + start as u64,
                    bytes,
                    needed: bytes.min(extent.needed - start),
                    place: extent.place + start,
                });
            }
        }
        reads
    }
}

fn length(bytes: u64) -> usize {
    usize::try_from(bytes).expect("tensors fit the memory that files are mapped to")
}

/// Cuts the matrices of a layer into groups of at most `piece_bytes` or one matrix, in the order
/// in which graphs use them. Those of experts are none of them: only chosen ones are read.
pub(crate) fn cut_layer(layer: &LayerTensors, piece_bytes: usize) -> Vec<Vec<&TensorInfo>> {
    let [query, key, value, output, gate, up, down] = layer.matrices();
    let in_order = [query, value, key, output, gate, up, down];
    let mut pieces: Vec<Vec<&TensorInfo>> = Vec::new();
    let mut bytes = 0;
    let experts = layer.experts().into_iter().flatten().collect::<Vec<_>>();
    for tensor in in_order.into_iter().filter(|tensor| !experts.contains(tensor)) {
        bytes += tensor.bytes;
        match pieces.last_mut() {
            Some(last) if bytes <= piece_bytes as u64 => last.push(tensor),
            _ => {
                bytes = tensor.bytes;
                pieces.push(vec![tensor]);
            }
        }
    }
    pieces
}
