//! Reading and writing GGUF, the model file format of ggml.
//!
//! [`Gguf::parse`] is the only door: it decodes everything once, and compares every count, length
//! and offset with the bytes that are there before it is used. GGUF's short names stay in here.

#![deny(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

mod cursor;
mod error;
mod limits;
mod parse;
mod value;
mod write;

pub use error::{GgufError, MetadataError};
pub use value::{Array, ArrayIter, Value, ValueType};
pub use write::{GgufWriter, MetadataValue, TensorDataWriter, WriteError, write_metadata_only};

use crate::TensorType;

/// A checked GGUF file: its metadata and where its tensors lie. Borrows from the file's bytes.
///
/// ```
/// use std::io::Write;
///
/// use motley_model::{Gguf, GgufWriter, TensorType};
///
/// let mut writer = GgufWriter::new();
/// writer.metadata("general.name", "tiny")?;
/// writer.tensor("a", &[32, 2], TensorType::Q8_0)?;
/// let mut out = writer.begin(Vec::new())?;
/// out.write_all(&[0; 68])?;
/// let bytes = out.finish()?;
///
/// let gguf = Gguf::parse(&bytes, bytes.len() as u64)?;
/// assert_eq!(gguf.string("general.name")?, Some("tiny"));
/// assert_eq!(gguf.tensors()[0].bytes, 2 * 34);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Gguf<'a> {
    version: u32,
    alignment: u64,
    data_offset: u64,
    file_bytes: u64,
    metadata: Vec<(&'a str, Value<'a>)>,
    tensors: Vec<TensorEntry<'a>>,
}

/// Where one tensor lies in its file, and what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorEntry<'a> {
    /// Its name.
    pub name: &'a str,
    /// Elements per dimension, the contiguous one first; unused dimensions are 1.
    pub shape: [u64; 4],
    /// How many dimensions the file names, 1 to 4.
    pub dimensions: usize,
    /// The type of its elements.
    pub tensor_type: TensorType,
    /// Where its data begins, from the start of the file.
    pub offset: u64,
    /// Bytes of its data, wholly inside the file.
    pub bytes: u64,
}

impl<'a> Gguf<'a> {
    /// Reads the directory at the start of `bytes`.
    ///
    /// `bytes` is the file or at least its directory (header, metadata and tensor table);
    /// `file_bytes` is the length of the whole file, against which tensor data is checked.
    ///
    /// # Errors
    ///
    /// [`GgufError`] names the key or tensor and the offset of the first thing that is wrong. What
    /// is accepted has distinct keys and names, and tensors that lie in the file without overlap.
    pub fn parse(bytes: &'a [u8], file_bytes: u64) -> Result<Self, GgufError> {
        parse::parse(bytes, file_bytes)
    }

    /// The format's version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Every tensor begins at a multiple of this from the start of the data section.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Where the data section begins, from the start of the file.
    pub fn data_offset(&self) -> u64 {
        self.data_offset
    }

    /// The length of the whole file in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// All keys with their values, in the order of the file.
    pub fn metadata(&self) -> &[(&'a str, Value<'a>)] {
        &self.metadata
    }

    /// All tensors, in the order of the file's table.
    pub fn tensors(&self) -> &[TensorEntry<'a>] {
        &self.tensors
    }

    /// The value of `key`.
    pub fn value(&self, key: &str) -> Option<Value<'a>> {
        self.metadata.iter().find(|(known, _)| *known == key).map(|(_, value)| *value)
    }

    /// The text of `key`, if it is there.
    ///
    /// # Errors
    ///
    /// [`MetadataError::WrongType`] if it is no string.
    pub fn string(&self, key: &str) -> Result<Option<&'a str>, MetadataError> {
        self.typed(key, "a string", |value| value.as_str())
    }

    /// The number of `key`, if it is there: an integer of any width that is not negative.
    ///
    /// # Errors
    ///
    /// [`MetadataError::WrongType`] if it is no integer, [`MetadataError::Negative`] if below zero.
    pub fn unsigned(&self, key: &str) -> Result<Option<u64>, MetadataError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.as_u64().map(Some).ok_or_else(|| unsigned_error(key, &value))
    }

    /// The number of `key`, if it is there: floating point of either width.
    ///
    /// # Errors
    ///
    /// [`MetadataError::WrongType`] if it is no floating-point number.
    pub fn float(&self, key: &str) -> Result<Option<f64>, MetadataError> {
        self.typed(key, "a floating-point number", Value::as_f64)
    }

    /// The truth value of `key`, if it is there.
    ///
    /// # Errors
    ///
    /// [`MetadataError::WrongType`] if it is no truth value.
    pub fn boolean(&self, key: &str) -> Result<Option<bool>, MetadataError> {
        self.typed(key, "a truth value", Value::as_bool)
    }

    /// The array of `key`, if it is there.
    ///
    /// # Errors
    ///
    /// [`MetadataError::WrongType`] if it is no array.
    pub fn array(&self, key: &str) -> Result<Option<Array<'a>>, MetadataError> {
        self.typed(key, "an array", |value| value.as_array())
    }

    /// The texts of `key`, if it is there.
    ///
    /// # Errors
    ///
    /// [`MetadataError::WrongType`] or [`MetadataError::WrongElementType`] if it is no array of
    /// strings.
    pub fn strings(
        &self,
        key: &str,
    ) -> Result<Option<impl Iterator<Item = &'a str> + Clone + use<'a>>, MetadataError> {
        let Some(array) = self.array(key)? else { return Ok(None) };
        array.strings().map(Some).ok_or_else(|| MetadataError::WrongElementType {
            key: key.to_owned(),
            expected: "strings",
            actual: array.element_type(),
        })
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &'static str,
        convert: impl FnOnce(&Value<'a>) -> Option<T>,
    ) -> Result<Option<T>, MetadataError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        convert(&value).map(Some).ok_or_else(|| MetadataError::WrongType {
            key: key.to_owned(),
            expected,
            actual: value.value_type(),
        })
    }
}

/// Why `value` is no unsigned number.
pub(crate) fn unsigned_error(key: &str, value: &Value<'_>) -> MetadataError {
    match value.as_i64() {
        Some(value) => MetadataError::Negative { key: key.to_owned(), value },
        None => MetadataError::WrongType {
            key: key.to_owned(),
            expected: "an integer",
            actual: value.value_type(),
        },
    }
}
