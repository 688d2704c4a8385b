//! Writing GGUF: metadata and the tensor table first, then tensor data as the caller streams it.

use std::collections::BTreeSet;
use std::io::{self, Write};

use super::Gguf;
use super::cursor::length;
use super::limits;
use super::parse::{ALIGNMENT_KEY, padded};
use super::value::{Array, Value, ValueType};
use crate::TensorType;

const VERSION: u32 = 3;
const ALIGNMENT: u64 = 32;

/// Why something cannot be part of a GGUF file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// A key that is empty or longer than the format allows.
    #[error(
        "a metadata key of {length} bytes cannot be written, allowed are 1 to {}",
        limits::KEY_BYTES_MAX
    )]
    KeyLength {
        /// Bytes of the key.
        length: usize,
    },
    /// The alignment is the writer's business.
    #[error("'general.alignment' is set by the writer")]
    AlignmentKey,
    /// One key twice.
    #[error("metadata key '{key}' is already written")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A name that is empty or longer than ggml can hold.
    #[error(
        "a tensor name of {length} bytes cannot be written, allowed are 1 to {}",
        limits::TENSOR_NAME_BYTES_MAX
    )]
    TensorNameLength {
        /// Bytes of the name.
        length: usize,
    },
    /// One tensor name twice.
    #[error("tensor '{name}' is already written")]
    DuplicateTensor {
        /// The name.
        name: String,
    },
    /// No dimension, more than four, a zero, or a size that does not fit.
    #[error("tensor '{name}' cannot have the shape {shape:?} in {tensor_type}")]
    Shape {
        /// The tensor.
        name: String,
        /// The shape as given.
        shape: Vec<u64>,
        /// Its element type.
        tensor_type: TensorType,
    },
}

/// A metadata value to write: one as it was read, or one made from the caller's own data.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MetadataValue<'a> {
    /// A value as a file has it.
    Value(Value<'a>),
    /// An array of strings.
    Strings(&'a [&'a str]),
    /// An array of floating-point numbers.
    F32s(&'a [f32]),
    /// An array of signed numbers.
    I32s(&'a [i32]),
    /// An array of unsigned numbers.
    U32s(&'a [u32]),
    /// An array of truth values.
    Bools(&'a [bool]),
}

macro_rules! metadata_value_from {
    ($($type:ty => $variant:ident),*) => {
        $(impl<'a> From<$type> for MetadataValue<'a> {
            fn from(value: $type) -> Self {
                Self::Value(Value::$variant(value))
            }
        })*
    };
}

metadata_value_from!(
    u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64,
    f32 => F32, f64 => F64, bool => Bool, &'a str => String, Array<'a> => Array
);

impl<'a> From<Value<'a>> for MetadataValue<'a> {
    fn from(value: Value<'a>) -> Self {
        Self::Value(value)
    }
}

/// Collects metadata and tensors, then writes the directory.
///
/// Tensor data follows through the [`TensorDataWriter`] in the order in which the tensors were
/// added. Files are of version 3 with an alignment of 32 bytes, which every reader takes.
#[derive(Debug, Clone, Default)]
pub struct GgufWriter {
    keys: BTreeSet<String>,
    metadata: Vec<u8>,
    names: BTreeSet<String>,
    tensors: Vec<u8>,
    tensor_bytes: Vec<u64>,
    data_bytes: u64,
}

impl GgufWriter {
    /// A file with nothing in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one metadata pair.
    ///
    /// # Errors
    ///
    /// [`WriteError`] for a key that cannot be written.
    pub fn metadata<'v>(
        &mut self,
        key: &str,
        value: impl Into<MetadataValue<'v>>,
    ) -> Result<&mut Self, WriteError> {
        if key.is_empty() || length(key.as_bytes()) > limits::KEY_BYTES_MAX {
            return Err(WriteError::KeyLength { length: key.len() });
        }
        if key == ALIGNMENT_KEY {
            return Err(WriteError::AlignmentKey);
        }
        if !self.keys.insert(key.to_owned()) {
            return Err(WriteError::DuplicateKey { key: key.to_owned() });
        }
        put_string(&mut self.metadata, key);
        put_metadata(&mut self.metadata, value.into());
        Ok(self)
    }

    /// Adds one tensor of the given dimensions, the contiguous one first.
    ///
    /// # Errors
    ///
    /// [`WriteError`] for a name or shape that cannot be written.
    pub fn tensor(
        &mut self,
        name: &str,
        shape: &[u64],
        tensor_type: TensorType,
    ) -> Result<&mut Self, WriteError> {
        if name.is_empty() || length(name.as_bytes()) > limits::TENSOR_NAME_BYTES_MAX {
            return Err(WriteError::TensorNameLength { length: name.len() });
        }
        if self.names.contains(name) {
            return Err(WriteError::DuplicateTensor { name: name.to_owned() });
        }
        let bytes = tensor_bytes(shape, tensor_type);
        let end = bytes.and_then(|bytes| self.data_bytes.checked_add(bytes));
        let end = end.and_then(|end| end.checked_next_multiple_of(ALIGNMENT));
        let (Some(bytes), Some(end)) = (bytes, end) else {
            let (name, shape) = (name.to_owned(), shape.to_vec());
            return Err(WriteError::Shape { name, shape, tensor_type });
        };
        put_string(&mut self.tensors, name);
        let dimensions = u32::try_from(shape.len()).unwrap_or(u32::MAX);
        self.tensors.extend(dimensions.to_le_bytes());
        for dimension in shape {
            self.tensors.extend(dimension.to_le_bytes());
        }
        self.tensors.extend(tensor_type.id().to_le_bytes());
        self.tensors.extend(self.data_bytes.to_le_bytes());
        self.names.insert(name.to_owned());
        self.tensor_bytes.push(bytes);
        self.data_bytes = end;
        Ok(self)
    }

    /// The directory: everything up to the first tensor's data.
    pub fn header(&self) -> Vec<u8> {
        let mut header = Vec::new();
        put_head(&mut header, self.tensor_bytes.len(), self.keys.len());
        header.extend(&self.metadata);
        header.extend(&self.tensors);
        let end = padded(length(&header), ALIGNMENT);
        header.resize(usize::try_from(end).unwrap_or(header.len()), 0);
        header
    }

    /// Bytes of the finished file.
    pub fn file_bytes(&self) -> u64 {
        length(&self.header()).saturating_add(self.data_bytes)
    }

    /// Writes the directory to `out` and waits for the tensors' data.
    ///
    /// # Errors
    ///
    /// What `out` reports.
    pub fn begin<W: Write>(self, mut out: W) -> io::Result<TensorDataWriter<W>> {
        out.write_all(&self.header())?;
        let mut sizes = self.tensor_bytes;
        sizes.reverse();
        let left = sizes.pop().unwrap_or(0);
        Ok(TensorDataWriter { out, later: sizes, left, padding: padding_after(left) })
    }
}

/// Takes the data of all tensors one after the other, as one stream, and puts the padding between.
#[derive(Debug)]
pub struct TensorDataWriter<W> {
    out: W,
    /// Sizes of the tensors after the current one, the next one last.
    later: Vec<u64>,
    /// Bytes of the current tensor still to come.
    left: u64,
    /// Zeros after the current tensor.
    padding: u64,
}

impl<W: Write> TensorDataWriter<W> {
    /// Flushes and gives back the output.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::UnexpectedEof`] if data of a tensor is missing, or what the output reports.
    pub fn finish(mut self) -> io::Result<W> {
        if self.left > 0 || !self.later.is_empty() {
            let message = format!(
                "{} bytes of a tensor and {} whole tensors were not written",
                self.left,
                self.later.len()
            );
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
        self.out.flush()?;
        Ok(self.out)
    }

    fn end_tensor(&mut self) -> io::Result<()> {
        const ZEROS: [u8; 32] = [0; 32];
        let zeros = usize::try_from(self.padding).ok().and_then(|count| ZEROS.get(..count));
        self.out.write_all(zeros.unwrap_or(&ZEROS))?;
        self.padding = 0;
        if let Some(next) = self.later.pop() {
            self.left = next;
            self.padding = padding_after(next);
        }
        Ok(())
    }
}

impl<W: Write> Write for TensorDataWriter<W> {
    /// Writes up to the end of the current tensor; none is left to write when this returns zero.
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let room = usize::try_from(self.left).unwrap_or(usize::MAX);
        let part = data.get(..room).unwrap_or(data);
        if part.is_empty() {
            return Ok(0);
        }
        let written = self.out.write(part)?;
        self.left = self.left.saturating_sub(count(written));
        if self.left == 0 {
            self.end_tensor()?;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A file with all metadata of `source` and no tensors, for tools that need only the vocabulary.
///
/// What is written was checked by [`Gguf::parse`], so that a reader with weaker checks never sees
/// the original bytes.
pub fn write_metadata_only(source: &Gguf<'_>) -> Vec<u8> {
    // The alignment is left out because there is nothing to align.
    let pairs = || source.metadata().iter().filter(|(key, _)| *key != ALIGNMENT_KEY);
    let mut out = Vec::new();
    put_head(&mut out, 0, pairs().count());
    // The directory of the source is as long or longer: it has a tensor table, too.
    out.reserve(usize::try_from(source.data_offset()).unwrap_or(0));
    for (key, value) in pairs() {
        put_string(&mut out, key);
        put_metadata(&mut out, MetadataValue::Value(*value));
    }
    out
}

fn put_head(out: &mut Vec<u8>, tensors: usize, pairs: usize) {
    out.extend(b"GGUF");
    out.extend(VERSION.to_le_bytes());
    out.extend(count(tensors).to_le_bytes());
    out.extend(count(pairs).to_le_bytes());
}

fn tensor_bytes(shape: &[u64], tensor_type: TensorType) -> Option<u64> {
    let (&row, rows) = shape.split_first()?;
    if shape.len() > 4 || shape.contains(&0) {
        return None;
    }
    let rows = rows.iter().try_fold(1_u64, |product, &rows| product.checked_mul(rows))?;
    let elements = rows.checked_mul(row)?;
    let bytes = tensor_type.row_bytes(row)?.checked_mul(rows)?;
    (i64::try_from(elements).is_ok() && i64::try_from(bytes).is_ok()).then_some(bytes)
}

fn padding_after(bytes: u64) -> u64 {
    padded(bytes, ALIGNMENT).saturating_sub(bytes)
}

fn put_metadata(out: &mut Vec<u8>, value: MetadataValue<'_>) {
    match value {
        MetadataValue::Value(value) => {
            out.extend(value.value_type().id().to_le_bytes());
            put_value(out, value);
        }
        MetadataValue::Strings(texts) => {
            put_array_head(out, ValueType::String, texts.len());
            texts.iter().for_each(|text| put_string(out, text));
        }
        MetadataValue::F32s(numbers) => {
            put_array_head(out, ValueType::F32, numbers.len());
            out.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        }
        MetadataValue::I32s(numbers) => {
            put_array_head(out, ValueType::I32, numbers.len());
            out.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        }
        MetadataValue::U32s(numbers) => {
            put_array_head(out, ValueType::U32, numbers.len());
            out.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        }
        MetadataValue::Bools(flags) => {
            put_array_head(out, ValueType::Bool, flags.len());
            out.extend(flags.iter().map(|&flag| u8::from(flag)));
        }
    }
}

fn put_value(out: &mut Vec<u8>, value: Value<'_>) {
    match value {
        Value::U8(number) => out.extend(number.to_le_bytes()),
        Value::I8(number) => out.extend(number.to_le_bytes()),
        Value::U16(number) => out.extend(number.to_le_bytes()),
        Value::I16(number) => out.extend(number.to_le_bytes()),
        Value::U32(number) => out.extend(number.to_le_bytes()),
        Value::I32(number) => out.extend(number.to_le_bytes()),
        Value::U64(number) => out.extend(number.to_le_bytes()),
        Value::I64(number) => out.extend(number.to_le_bytes()),
        Value::F32(number) => out.extend(number.to_le_bytes()),
        Value::F64(number) => out.extend(number.to_le_bytes()),
        Value::Bool(flag) => out.push(u8::from(flag)),
        Value::String(text) => put_string(out, text),
        Value::Array(array) => {
            out.extend(array.element_type().id().to_le_bytes());
            out.extend(count(array.len()).to_le_bytes());
            out.extend(array.encoded());
        }
    }
}

fn put_array_head(out: &mut Vec<u8>, element_type: ValueType, elements: usize) {
    out.extend(ValueType::Array.id().to_le_bytes());
    out.extend(element_type.id().to_le_bytes());
    out.extend(count(elements).to_le_bytes());
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend(length(text.as_bytes()).to_le_bytes());
    out.extend(text.as_bytes());
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
