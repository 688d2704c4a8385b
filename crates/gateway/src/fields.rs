//! Typed access to the members of a request object, with errors that name the member.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::error::ApiError;

/// An object of a request and where it stands in it. A member that is `null` counts as absent,
/// because client libraries send nulls for what the caller left out.
#[derive(Clone, Debug)]
pub(crate) struct Fields<'a> {
    object: &'a Map<String, Value>,
    path: String,
}

impl<'a> Fields<'a> {
    pub(crate) fn of_body(object: &'a Map<String, Value>) -> Self {
        Self { object, path: String::new() }
    }

    /// Reads `value`, found at `path`, as an object.
    pub(crate) fn of(value: &'a Value, path: impl Into<String>) -> Result<Self, ApiError> {
        let path = path.into();
        match value {
            Value::Object(object) => Ok(Self { object, path }),
            _ => Err(ApiError::invalid(path, "must be an object")),
        }
    }

    /// Full path of a member, as `param` shows it.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    pub(crate) fn value(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &'a str> {
        self.object.keys().map(String::as_str)
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        self.read(name, "must be a text", Value::as_str)
    }

    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.read(name, "must be true or false", Value::as_bool)
    }

    pub(crate) fn integer(
        &self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        match value.as_i64() {
            Some(number) if range.contains(&number) => Ok(Some(number)),
            _ => Err(ApiError::invalid(
                self.path(name),
                format!("must be an integer from {} to {}", range.start(), range.end()),
            )),
        }
    }

    /// A non-negative integer that fits what it is used for.
    pub(crate) fn count(
        &self,
        name: &str,
        range: RangeInclusive<u32>,
    ) -> Result<Option<u32>, ApiError> {
        let range = i64::from(*range.start())..=i64::from(*range.end());
        let number = self.integer(name, range)?;
        Ok(number.map(|number| u32::try_from(number).expect("within a range of u32")))
    }

    pub(crate) fn number(
        &self,
        name: &str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        match value.as_f64() {
            Some(number) if range.contains(&number) => Ok(Some(number as f32)),
            _ => Err(ApiError::invalid(
                self.path(name),
                format!("must be a number from {} to {}", range.start(), range.end()),
            )),
        }
    }

    pub(crate) fn list(&self, name: &str, most: usize) -> Result<Option<&'a [Value]>, ApiError> {
        let list = self.read(name, "must be a list", Value::as_array)?;
        if list.is_some_and(|list| list.len() > most) {
            return Err(ApiError::invalid(
                self.path(name),
                format!("must have at most {most} entries"),
            ));
        }
        Ok(list.map(Vec::as_slice))
    }

    pub(crate) fn object(&self, name: &str) -> Result<Option<Self>, ApiError> {
        self.value(name).map(|value| Self::of(value, self.path(name))).transpose()
    }

    /// The member, or an error that says it is required.
    pub(crate) fn required<T>(&self, name: &str, found: Option<T>) -> Result<T, ApiError> {
        found.ok_or_else(|| ApiError::Missing { param: self.path(name) })
    }

    /// Refuses members that would ask for something that is not offered.
    pub(crate) fn refuse(&self, refused: &[(&str, &str)]) -> Result<(), ApiError> {
        for (name, reason) in refused {
            if self.value(name).is_some() {
                return Err(ApiError::unsupported(self.path(name), *reason));
            }
        }
        Ok(())
    }

    /// Members that nobody knows but that look like a misspelling of one that is known.
    pub(crate) fn near_misses(&self, known: &[&'static str]) -> Vec<&'static str> {
        let unknown = self.names().filter(|name| name.len() < 64 && !known.contains(name));
        let mut near: Vec<_> = unknown
            .filter_map(|name| known.iter().copied().find(|known| is_near(name, known)))
            .collect();
        near.sort_unstable();
        near.dedup();
        near
    }

    fn read<T>(
        &self,
        name: &str,
        problem: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        match read(value) {
            Some(found) => Ok(Some(found)),
            None => Err(ApiError::invalid(self.path(name), problem)),
        }
    }
}

/// Whether `name` is `known` but for letter case, separators, or one letter added, dropped, changed
/// or swapped with its neighbour. Short names need to match closer, or `n` would resemble anything.
fn is_near(name: &str, known: &str) -> bool {
    let plain = |text: &str| -> Vec<char> {
        text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
    };
    let (name, known) = (plain(name), plain(known));
    if name == known {
        return true;
    }
    if known.len() < 4 {
        return false;
    }
    let same = name.iter().zip(&known).take_while(|(a, b)| a == b).count();
    let (name, known) = (&name[same..], &known[same..]);
    match (name, known) {
        ([_, rest @ ..], known) if rest == known => true,
        (name, [_, rest @ ..]) if name == rest => true,
        ([_, a @ ..], [_, b @ ..]) if a == b => true,
        ([a, b, rest_a @ ..], [c, d, rest_b @ ..]) => a == d && b == c && rest_a == rest_b,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspellings_are_recognised_and_strangers_are_not() {
        let near =
            ["maxTokens", "max-tokens", "max_token", "max_tokenss", "max_tokesn", "mux_tokens"];
        for name in near {
            assert!(is_near(name, "max_tokens"), "{name}");
        }
        for name in ["tokens_max", "max", "maximum_tokens", "", "metadata"] {
            assert!(!is_near(name, "max_tokens"), "{name}");
        }
        assert!(!is_near("m", "n"));
        assert!(is_near("N", "n"));
    }
}
