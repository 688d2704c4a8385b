//! From bytes to [`Gguf`], trusting none of them.

use std::collections::BTreeSet;

use super::cursor::{Cursor, Short, Undecodable, length};
use super::error::GgufError;
use super::limits;
use super::value::{Array, Value, ValueType};
use super::{Gguf, TensorEntry};
use crate::TensorType;

pub(super) const ALIGNMENT_KEY: &str = "general.alignment";
const ALIGNMENT_DEFAULT: u32 = 32;

pub(super) fn parse(bytes: &[u8], file_bytes: u64) -> Result<Gguf<'_>, GgufError> {
    if length(bytes) > file_bytes {
        return Err(GgufError::LengthDisagrees { slice: length(bytes), total: file_bytes });
    }
    let mut cursor = Cursor::new(bytes);
    let version = version(&mut cursor)?;
    let tensor_count = cursor.u64().map_err(|short| short.reading("the tensor count"))?;
    let metadata_count = cursor.u64().map_err(|short| short.reading("the metadata count"))?;

    let metadata = metadata(&mut cursor, metadata_count)?;
    let alignment = alignment(&metadata)?;

    check_count(&cursor, "tensors", tensor_count, limits::TENSOR_BYTES_MIN)?;
    check_limit("tensors", tensor_count, limits::TENSOR_COUNT_MAX)?;
    let mut claims = Vec::new();
    let mut names = BTreeSet::new();
    for index in 0..tensor_count {
        let offset = cursor.offset();
        let claim = TensorClaim::read(&mut cursor, index)?;
        if !names.insert(claim.name) {
            return Err(GgufError::DuplicateTensor { name: claim.name.to_owned(), offset });
        }
        claims.push(claim);
    }

    let data = DataSection { offset: padded(cursor.offset(), alignment), alignment, file_bytes };
    let tensors =
        claims.into_iter().map(|claim| claim.place(&data)).collect::<Result<Vec<_>, _>>()?;
    check_overlap(&tensors)?;
    Ok(Gguf { version, alignment, data_offset: data.offset, file_bytes, metadata, tensors })
}

fn version(cursor: &mut Cursor<'_>) -> Result<u32, GgufError> {
    let magic = cursor.magic().map_err(|short| short.reading("the magic"))?;
    if &magic != b"GGUF" {
        return Err(GgufError::Magic { found: magic });
    }
    let version = cursor.u32().map_err(|short| short.reading("the version"))?;
    match version {
        2 | 3 => Ok(version),
        // A small number with its bytes reversed.
        _ if (1..=0xffff).contains(&version.swap_bytes()) => Err(GgufError::BigEndian { version }),
        _ => Err(GgufError::Version { version }),
    }
}

fn metadata<'a>(
    cursor: &mut Cursor<'a>,
    count: u64,
) -> Result<Vec<(&'a str, Value<'a>)>, GgufError> {
    check_count(cursor, "metadata pairs", count, limits::METADATA_BYTES_MIN)?;
    check_limit("metadata pairs", count, limits::METADATA_COUNT_MAX)?;
    let mut metadata = Vec::new();
    let mut keys = BTreeSet::new();
    for index in 0..count {
        let offset = cursor.offset();
        let key = key(cursor, index)?;
        if !keys.insert(key) {
            return Err(GgufError::DuplicateKey { key: key.to_owned(), offset });
        }
        let value_type = value_type(cursor, key)?;
        let value = match value_type {
            ValueType::Array => Value::Array(array(cursor, key)?),
            scalar => cursor.scalar(scalar).map_err(|cause| undecodable(cause, key))?,
        };
        metadata.push((key, value));
    }
    Ok(metadata)
}

fn key<'a>(cursor: &mut Cursor<'a>, index: u64) -> Result<&'a str, GgufError> {
    let offset = cursor.offset();
    let reading = |short: Short| short.reading(&format!("metadata key {index}"));
    let length = cursor.u64().map_err(reading)?;
    if length == 0 {
        return Err(GgufError::KeyEmpty { index, offset });
    }
    let bytes = cursor.take(length).map_err(reading)?;
    if length > limits::KEY_BYTES_MAX {
        return Err(GgufError::KeyTooLong { index, offset, length });
    }
    std::str::from_utf8(bytes)
        .map_err(|_| GgufError::NotUtf8 { what: format!("metadata key {index}"), offset })
}

fn value_type(cursor: &mut Cursor<'_>, key: &str) -> Result<ValueType, GgufError> {
    let offset = cursor.offset();
    let id = cursor.u32().map_err(|short| short.reading(&format!("the type of key '{key}'")))?;
    ValueType::from_id(id).ok_or_else(|| GgufError::UnknownValueType {
        key: key.to_owned(),
        id,
        offset,
    })
}

fn array<'a>(cursor: &mut Cursor<'a>, key: &str) -> Result<Array<'a>, GgufError> {
    let type_offset = cursor.offset();
    let element_type = value_type(cursor, key)?;
    if element_type == ValueType::Array {
        return Err(GgufError::NestedArray { key: key.to_owned(), offset: type_offset });
    }
    let count =
        cursor.u64().map_err(|short| short.reading(&format!("the length of array '{key}'")))?;
    // A string takes at least the eight bytes of its length.
    let bytes_min = element_type.fixed_bytes().unwrap_or(8);
    check_count(cursor, &format!("elements of array '{key}'"), count, bytes_min)?;

    let start = cursor.clone();
    match element_type.fixed_bytes() {
        // Every bit pattern of these is a value, so that there is nothing to look at.
        Some(bytes) if element_type != ValueType::Bool => {
            let total = count.saturating_mul(bytes);
            cursor.take(total).map_err(|short| short.reading(&format!("array '{key}'")))?;
        }
        _ => {
            for _ in 0..count {
                cursor.scalar(element_type).map_err(|cause| undecodable(cause, key))?;
            }
        }
    }
    let consumed = start.left().saturating_sub(cursor.left());
    let bytes =
        start.clone().take(consumed).map_err(|short| short.reading(&format!("array '{key}'")))?;
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    Ok(Array { element_type, count, bytes })
}

fn alignment(metadata: &[(&str, Value<'_>)]) -> Result<u64, GgufError> {
    let value = match metadata.iter().find(|(key, _)| *key == ALIGNMENT_KEY) {
        None => ALIGNMENT_DEFAULT,
        Some((_, Value::U32(value))) => *value,
        Some((_, other)) => return Err(GgufError::AlignmentType { actual: other.value_type() }),
    };
    // The format asks for a multiple of 8; padding and ggml's own macros ask for a power of two.
    if value.is_power_of_two() && (8..=limits::ALIGNMENT_MAX).contains(&value) {
        Ok(u64::from(value))
    } else {
        Err(GgufError::Alignment { value })
    }
}

/// A tensor's entry as the file claims it; what the claim says about data is not checked yet,
/// because the data section begins after the last entry.
struct TensorClaim<'a> {
    name: &'a str,
    shape: [u64; 4],
    dimensions: usize,
    tensor_type: TensorType,
    bytes: u64,
    relative: u64,
}

impl<'a> TensorClaim<'a> {
    fn read(cursor: &mut Cursor<'a>, index: u64) -> Result<Self, GgufError> {
        let name = tensor_name(cursor, index)?;
        let (shape, dimensions) = shape(cursor, name)?;
        let reading = |short: Short| short.reading(&format!("the entry of tensor '{name}'"));
        let type_offset = cursor.offset();
        let id = cursor.u32().map_err(reading)?;
        let tensor_type = TensorType::from_id(id).ok_or_else(|| GgufError::UnknownTensorType {
            name: name.to_owned(),
            id,
            offset: type_offset,
        })?;
        let bytes = data_bytes(name, shape, tensor_type)?;
        let relative = cursor.u64().map_err(reading)?;
        Ok(Self { name, shape, dimensions, tensor_type, bytes, relative })
    }

    fn place(self, data: &DataSection) -> Result<TensorEntry<'a>, GgufError> {
        if !self.relative.is_multiple_of(data.alignment) {
            return Err(GgufError::Unaligned {
                name: self.name.to_owned(),
                relative: self.relative,
                alignment: data.alignment,
            });
        }
        let offset = data.offset.checked_add(self.relative);
        let end = offset.and_then(|offset| offset.checked_add(self.bytes));
        match (offset, end) {
            (Some(offset), Some(end)) if end <= data.file_bytes => Ok(TensorEntry {
                name: self.name,
                shape: self.shape,
                dimensions: self.dimensions,
                tensor_type: self.tensor_type,
                offset,
                bytes: self.bytes,
            }),
            _ => Err(GgufError::OutsideFile {
                name: self.name.to_owned(),
                relative: self.relative,
                bytes: self.bytes,
                data_offset: data.offset,
                total: data.file_bytes,
            }),
        }
    }
}

struct DataSection {
    offset: u64,
    alignment: u64,
    file_bytes: u64,
}

fn tensor_name<'a>(cursor: &mut Cursor<'a>, index: u64) -> Result<&'a str, GgufError> {
    let offset = cursor.offset();
    let reading = |short: Short| short.reading(&format!("the name of tensor {index}"));
    let length = cursor.u64().map_err(reading)?;
    if length == 0 {
        return Err(GgufError::TensorNameEmpty { index, offset });
    }
    let bytes = cursor.take(length).map_err(reading)?;
    if length > limits::TENSOR_NAME_BYTES_MAX {
        return Err(GgufError::TensorNameTooLong { index, offset, length });
    }
    std::str::from_utf8(bytes)
        .map_err(|_| GgufError::NotUtf8 { what: format!("the name of tensor {index}"), offset })
}

fn shape(cursor: &mut Cursor<'_>, name: &str) -> Result<([u64; 4], usize), GgufError> {
    let reading = |short: Short| short.reading(&format!("the shape of tensor '{name}'"));
    let offset = cursor.offset();
    let claimed = cursor.u32().map_err(reading)?;
    let mut shape = [1_u64; 4];
    let dimensions = usize::try_from(claimed).ok();
    let used = dimensions.filter(|&count| count > 0).and_then(|count| shape.get_mut(..count));
    let (Some(dimensions), Some(used)) = (dimensions, used) else {
        let name = name.to_owned();
        return Err(GgufError::Dimensions { name, dimensions: claimed, offset });
    };
    for (axis, dimension) in used.iter_mut().enumerate() {
        *dimension = cursor.u64().map_err(reading)?;
        if *dimension == 0 {
            return Err(GgufError::ZeroDimension { name: name.to_owned(), axis });
        }
    }
    Ok((shape, dimensions))
}

/// Bytes of the whole tensor. Both its elements and its bytes must fit a signed 64-bit number,
/// because that is what ggml counts with.
fn data_bytes(name: &str, shape: [u64; 4], tensor_type: TensorType) -> Result<u64, GgufError> {
    let [row, rows @ ..] = shape;
    let block = tensor_type.block_elements();
    if !row.is_multiple_of(block) {
        return Err(GgufError::PartialBlock { name: name.to_owned(), row, block });
    }
    let row_count = rows.into_iter().try_fold(1_u64, u64::checked_mul);
    let fits = |number: &u64| i64::try_from(*number).is_ok();
    let elements = row_count.and_then(|rows| rows.checked_mul(row)).filter(fits);
    let row_bytes = tensor_type.row_bytes(row);
    row_count
        .zip(elements)
        .zip(row_bytes)
        .and_then(|((rows, _), row_bytes)| rows.checked_mul(row_bytes))
        .filter(fits)
        .ok_or_else(|| GgufError::SizeOverflow { name: name.to_owned(), shape })
}

fn check_overlap(tensors: &[TensorEntry<'_>]) -> Result<(), GgufError> {
    let mut by_offset: Vec<&TensorEntry<'_>> = tensors.iter().collect();
    by_offset.sort_by_key(|tensor| tensor.offset);
    for (earlier, later) in by_offset.iter().zip(by_offset.iter().skip(1)) {
        // `place` has added the two without overflow.
        if earlier.offset.saturating_add(earlier.bytes) > later.offset {
            return Err(GgufError::Overlap {
                first: earlier.name.to_owned(),
                second: later.name.to_owned(),
                offset: later.offset,
            });
        }
    }
    Ok(())
}

fn check_count(
    cursor: &Cursor<'_>,
    what: &str,
    count: u64,
    bytes_min: u64,
) -> Result<(), GgufError> {
    let fits = count.checked_mul(bytes_min).is_some_and(|bytes| bytes <= cursor.left());
    if fits {
        return Ok(());
    }
    let (offset, left) = (cursor.offset(), cursor.left());
    Err(GgufError::CountBeyondFile { what: what.to_owned(), count, offset, left })
}

fn check_limit(what: &'static str, count: u64, limit: u64) -> Result<(), GgufError> {
    if count <= limit { Ok(()) } else { Err(GgufError::CountBeyondLimit { what, count, limit }) }
}

/// The next multiple of `alignment`, a power of two. Offsets in a slice are far from overflow;
/// were they not, the result would lie outside every file and be refused there.
pub(super) fn padded(offset: u64, alignment: u64) -> u64 {
    offset.checked_next_multiple_of(alignment).unwrap_or(u64::MAX)
}

impl Short {
    fn reading(self, reading: &str) -> GgufError {
        GgufError::Truncated {
            reading: reading.to_owned(),
            offset: self.offset,
            needed: self.needed,
            left: self.left,
        }
    }
}

fn undecodable(cause: Undecodable, key: &str) -> GgufError {
    match cause {
        Undecodable::Short(short) => short.reading(&format!("the value of key '{key}'")),
        Undecodable::NotUtf8 { offset } => {
            GgufError::NotUtf8 { what: format!("text of key '{key}'"), offset }
        }
        Undecodable::NotBool { value, offset } => {
            GgufError::BoolValue { key: key.to_owned(), value, offset }
        }
        Undecodable::Array { offset } => GgufError::NestedArray { key: key.to_owned(), offset },
    }
}
