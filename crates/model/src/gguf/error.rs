//! Everything that can be wrong with the bytes of a GGUF file.

use super::limits;
use super::value::ValueType;

/// Why bytes are no GGUF file that can be trusted. Offsets count from the start of the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The caller named a file length shorter than the bytes it passed.
    #[error("{slice} bytes were given of a file that is said to have only {total}")]
    LengthDisagrees {
        /// Bytes in the slice.
        slice: u64,
        /// Bytes the file is said to have.
        total: u64,
    },
    /// The file ends inside something.
    #[error("file ends in {reading}: {needed} bytes needed at offset {offset}, {left} left")]
    Truncated {
        /// What was being read.
        reading: String,
        /// Where it begins.
        offset: u64,
        /// Bytes it takes.
        needed: u64,
        /// Bytes there are.
        left: u64,
    },
    /// Another kind of file.
    #[error("not a GGUF file: it begins with {}, not 'GGUF'", found.escape_ascii())]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// The file was written on or for a big-endian machine.
    #[error(
        "GGUF file in big-endian byte order (version field {version:#010x}); only little-endian files are read"
    )]
    BigEndian {
        /// The version field, read as little-endian.
        version: u32,
    },
    /// A version with another layout.
    #[error("GGUF version {version} is not supported: {}", version_reason(*version))]
    Version {
        /// The version of the file.
        version: u32,
    },
    /// More entries than the bytes that are left can hold.
    #[error(
        "{count} {what} are claimed, but the {left} bytes left at offset {offset} cannot hold them"
    )]
    CountBeyondFile {
        /// What is counted.
        what: String,
        /// How many are claimed.
        count: u64,
        /// Where the entries begin.
        offset: u64,
        /// Bytes left from there.
        left: u64,
    },
    /// More entries than any model has.
    #[error("{count} {what} are more than the limit of {limit}")]
    CountBeyondLimit {
        /// What is counted.
        what: &'static str,
        /// How many are claimed.
        count: u64,
        /// How many are allowed.
        limit: u64,
    },
    /// A metadata key without a name.
    #[error("metadata key {index} at offset {offset} is empty")]
    KeyEmpty {
        /// Which pair, from zero.
        index: u64,
        /// Where the pair begins.
        offset: u64,
    },
    /// A metadata key longer than the format allows.
    #[error(
        "metadata key {index} at offset {offset} has {length} bytes, the most is {}",
        limits::KEY_BYTES_MAX
    )]
    KeyTooLong {
        /// Which pair, from zero.
        index: u64,
        /// Where the pair begins.
        offset: u64,
        /// Bytes of the key.
        length: u64,
    },
    /// Text that is not UTF-8.
    #[error("{what} at offset {offset} is not UTF-8")]
    NotUtf8 {
        /// Which text.
        what: String,
        /// Where its bytes begin.
        offset: u64,
    },
    /// One key twice.
    #[error("metadata key '{key}' appears twice, again at offset {offset}")]
    DuplicateKey {
        /// The key.
        key: String,
        /// Where the second pair begins.
        offset: u64,
    },
    /// A value type the format does not have.
    #[error("metadata key '{key}' has the unknown value type {id} at offset {offset}")]
    UnknownValueType {
        /// The key.
        key: String,
        /// The type's number.
        id: u32,
        /// Where the number stands.
        offset: u64,
    },
    /// A truth value that is neither true nor false.
    #[error(
        "metadata key '{key}' has a truth value of {value} at offset {offset}, allowed are 0 and 1"
    )]
    BoolValue {
        /// The key.
        key: String,
        /// The byte.
        value: u8,
        /// Where it stands.
        offset: u64,
    },
    /// An array of arrays, which no reader supports and which would ask for recursion.
    #[error("metadata key '{key}' is an array of arrays (offset {offset}), which is not supported")]
    NestedArray {
        /// The key.
        key: String,
        /// Where the inner type stands.
        offset: u64,
    },
    /// The alignment is not stored as the format says.
    #[error("'general.alignment' must be a u32, it is a {actual}")]
    AlignmentType {
        /// Its type in the file.
        actual: ValueType,
    },
    /// An alignment that cannot be used.
    #[error("alignment {value} is not a power of two from 8 to {}", limits::ALIGNMENT_MAX)]
    Alignment {
        /// The alignment.
        value: u32,
    },
    /// A tensor without a name.
    #[error("tensor {index} at offset {offset} has no name")]
    TensorNameEmpty {
        /// Which tensor, from zero.
        index: u64,
        /// Where its entry begins.
        offset: u64,
    },
    /// A tensor name that ggml cannot hold.
    #[error(
        "the name of tensor {index} at offset {offset} has {length} bytes, the most is {}",
        limits::TENSOR_NAME_BYTES_MAX
    )]
    TensorNameTooLong {
        /// Which tensor, from zero.
        index: u64,
        /// Where its entry begins.
        offset: u64,
        /// Bytes of the name.
        length: u64,
    },
    /// One tensor name twice.
    #[error("tensor '{name}' appears twice, again at offset {offset}")]
    DuplicateTensor {
        /// The name.
        name: String,
        /// Where the second entry begins.
        offset: u64,
    },
    /// No dimension, or more than ggml has.
    #[error("tensor '{name}' has {dimensions} dimensions (offset {offset}), allowed are 1 to 4")]
    Dimensions {
        /// The tensor.
        name: String,
        /// Its number of dimensions.
        dimensions: u32,
        /// Where that number stands.
        offset: u64,
    },
    /// A dimension of zero.
    #[error("dimension {axis} of tensor '{name}' is zero")]
    ZeroDimension {
        /// The tensor.
        name: String,
        /// Which dimension, from zero.
        axis: usize,
    },
    /// A shape whose element or byte count does not fit a signed 64-bit number.
    #[error("tensor '{name}' of shape {shape:?} is too large to count")]
    SizeOverflow {
        /// The tensor.
        name: String,
        /// Its dimensions, unused ones being 1.
        shape: [u64; 4],
    },
    /// An element type that ggml does not have, or has no more.
    #[error("tensor '{name}' has the unknown or removed element type {id} (offset {offset})")]
    UnknownTensorType {
        /// The tensor.
        name: String,
        /// The type's number.
        id: u32,
        /// Where the number stands.
        offset: u64,
    },
    /// A row that is not a whole number of blocks.
    #[error("tensor '{name}' has rows of {row} elements, its type needs a multiple of {block}")]
    PartialBlock {
        /// The tensor.
        name: String,
        /// Elements per row.
        row: u64,
        /// Elements per block.
        block: u64,
    },
    /// Data that does not begin at a multiple of the alignment.
    #[error(
        "tensor '{name}' lies at {relative} in the data, no multiple of the alignment {alignment}"
    )]
    Unaligned {
        /// The tensor.
        name: String,
        /// Its offset in the data section.
        relative: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// Data that is not wholly in the file.
    #[error(
        "tensor '{name}' needs {bytes} bytes at {relative} in the data (which begins at offset {data_offset}), but the file has {total} bytes"
    )]
    OutsideFile {
        /// The tensor.
        name: String,
        /// Its offset in the data section.
        relative: u64,
        /// Bytes of its data.
        bytes: u64,
        /// Where the data section begins.
        data_offset: u64,
        /// Bytes of the file.
        total: u64,
    },
    /// Two tensors that share bytes.
    #[error("tensors '{first}' and '{second}' share bytes from offset {offset}")]
    Overlap {
        /// The tensor that begins earlier.
        first: String,
        /// The tensor that begins inside it.
        second: String,
        /// Where the second begins.
        offset: u64,
    },
}

fn version_reason(version: u32) -> &'static str {
    match version {
        1 => "its lengths have 32 bits and no current tool writes it; convert the model again",
        _ => "versions 2 and 3 are read",
    }
}

/// Why a metadata value cannot be used as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// The key is not there.
    #[error("metadata key '{key}' is missing")]
    Missing {
        /// The key.
        key: String,
    },
    /// The key has a value of another type.
    #[error("metadata key '{key}' is a {actual}, expected is {expected}")]
    WrongType {
        /// The key.
        key: String,
        /// What was asked for.
        expected: &'static str,
        /// What the file has.
        actual: ValueType,
    },
    /// An array with elements of another type.
    #[error("metadata key '{key}' is an array of {actual}, expected is an array of {expected}")]
    WrongElementType {
        /// The key.
        key: String,
        /// What was asked for.
        expected: &'static str,
        /// What the file has.
        actual: ValueType,
    },
    /// A negative number where a count is meant.
    #[error("metadata key '{key}' is {value}, expected is no negative number")]
    Negative {
        /// The key.
        key: String,
        /// The value.
        value: i64,
    },
}
