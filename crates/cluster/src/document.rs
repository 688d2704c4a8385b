//! Reading and writing the crate's values as TOML and JSON, with errors that name the field.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A value that stands alone in a file or message: cluster, model profile, workload or plan.
pub trait Document: Serialize + DeserializeOwned {
    /// What the document holds, for messages.
    const KIND: &'static str;
}

/// The version of a document's form. Only version 1 exists; others are refused when read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct FormatVersion(());

impl TryFrom<u32> for FormatVersion {
    type Error = String;
    fn try_from(version: u32) -> Result<Self, String> {
        if version == 1 {
            return Ok(Self(()));
        }
        Err(format!("version {version} is unknown, this build reads version 1"))
    }
}

impl From<FormatVersion> for u32 {
    fn from(_: FormatVersion) -> Self {
        1
    }
}

/// A document that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot read {kind} from {syntax}: field `{field}`: {problem}")]
pub struct ReadError {
    /// What was expected, such as `cluster`.
    pub kind: &'static str,
    /// `TOML` or `JSON`.
    pub syntax: &'static str,
    /// Path of the field, such as `devices[2].memory.ram_total_bytes`; `.` for the whole document.
    pub field: String,
    /// What is wrong there.
    pub problem: String,
}

/// A document that could not be written, which only happens for numbers the syntax lacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot write {kind}: {problem}")]
pub struct WriteError {
    /// What was to be written.
    pub kind: &'static str,
    /// What the serialiser said.
    pub problem: String,
}

/// Reads a document from JSON.
///
/// # Errors
/// The text is no JSON, has unknown fields, or describes an invalid value.
pub fn from_json<T: Document>(text: &str) -> Result<T, ReadError> {
    let error = |field, problem| ReadError { kind: T::KIND, syntax: "JSON", field, problem };
    let mut source = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut source)
        .map_err(|e| error(e.path().to_string(), e.inner().to_string()))?;
    source.end().map_err(|e| error(".".to_owned(), e.to_string()))?;
    Ok(value)
}

/// Reads a document from TOML.
///
/// # Errors
/// The text is no TOML, has unknown fields, or describes an invalid value.
pub fn from_toml<T: Document>(text: &str) -> Result<T, ReadError> {
    let error = |field, problem| ReadError { kind: T::KIND, syntax: "TOML", field, problem };
    let source = toml::Deserializer::parse(text)
        .map_err(|e| error(".".to_owned(), e.to_string().trim().to_owned()))?;
    serde_path_to_error::deserialize(source)
        .map_err(|e| error(e.path().to_string(), e.inner().message().to_owned()))
}

/// Writes a document as indented JSON.
///
/// # Errors
/// A number has no JSON form.
pub fn to_json<T: Document>(document: &T) -> Result<String, WriteError> {
    serde_json::to_string_pretty(document)
        .map_err(|e| WriteError { kind: T::KIND, problem: e.to_string() })
}

/// Writes a document as TOML.
///
/// # Errors
/// A number has no TOML form, such as a count above 2^63.
pub fn to_toml<T: Document>(document: &T) -> Result<String, WriteError> {
    toml::to_string(document).map_err(|e| WriteError { kind: T::KIND, problem: e.to_string() })
}
