//! What is wrong with a field, as data; every check of a profile ends in one of these.

use std::collections::BTreeSet;

use crate::limits::NAME_BYTES_MAX;

/// A field whose value cannot be accepted. The path is relative to the value being built.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct FieldError {
    /// Path of the field, such as `gpus[0].usable_bytes`.
    pub field: String,
    /// Why it is refused.
    pub problem: FieldProblem,
}

/// Why a field is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FieldProblem {
    /// The value lies outside what is allowed.
    #[error("{value} is outside the allowed range {minimum} to {maximum}")]
    OutOfRange {
        /// The value found.
        value: f64,
        /// Smallest allowed value.
        minimum: f64,
        /// Largest allowed value.
        maximum: f64,
    },
    /// The value contradicts another field.
    #[error("{value} is above {limit}, the value of {other}")]
    Above {
        /// The value found.
        value: f64,
        /// The field it may not exceed.
        other: &'static str,
        /// That field's value.
        limit: f64,
    },
    /// The list or table needs at least one entry.
    #[error("must not be empty")]
    Empty,
    /// The same name or key occurs twice.
    #[error("`{0}` occurs more than once")]
    Duplicate(String),
    /// The name refers to nothing.
    #[error("`{0}` is not a device of this cluster")]
    UnknownDevice(String),
    /// A name is empty, too long or has unusual characters.
    #[error(
        "`{0}` is not a name: 1 to 128 letters, digits, '.', '_', '-', ' ', '+', '(', ')', ':'"
    )]
    BadName(String),
    /// The value is only meaningful together with another one.
    #[error("needs {0}")]
    Needs(&'static str),
}

impl FieldError {
    pub(crate) fn new(field: impl Into<String>, problem: FieldProblem) -> Self {
        Self { field: field.into(), problem }
    }

    /// The same error seen from the owner of the part it was found in.
    pub(crate) fn within(self, outer: &str) -> Self {
        Self { field: format!("{outer}.{}", self.field), problem: self.problem }
    }
}

pub(crate) fn check_range(field: &str, value: f64, range: (f64, f64)) -> Result<(), FieldError> {
    let (minimum, maximum) = range;
    if value >= minimum && value <= maximum {
        return Ok(());
    }
    Err(FieldError::new(field, FieldProblem::OutOfRange { value, minimum, maximum }))
}

pub(crate) fn check_at_most(
    field: &str,
    value: f64,
    other: &'static str,
    limit: f64,
) -> Result<(), FieldError> {
    if value <= limit {
        return Ok(());
    }
    Err(FieldError::new(field, FieldProblem::Above { value, other, limit }))
}

pub(crate) fn check_name(field: &str, name: &str) -> Result<(), FieldError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || " ._-+():".contains(c);
    if !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(plain) {
        return Ok(());
    }
    // A hostile name is not echoed whole.
    let shown: String = name.chars().take(32).collect();
    Err(FieldError::new(field, FieldProblem::BadName(shown)))
}

pub(crate) fn check_distinct<'a>(
    field: &str,
    names: impl Iterator<Item = &'a str>,
) -> Result<(), FieldError> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(FieldError::new(field, FieldProblem::Duplicate(name.to_owned())));
        }
    }
    Ok(())
}
