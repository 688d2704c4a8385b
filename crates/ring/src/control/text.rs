//! Strings, lists and ids of control messages: each is within its limit, or it is not decoded.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::limits::{ADDRESS_BYTES_MAX, NAME_BYTES_MAX, PROFILE_BYTES_MAX, TEXT_BYTES_MAX};

/// Why a string, list or id is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// Too long.
    #[error("{found} {unit}, at most {most} are allowed")]
    TooLong {
        /// What is counted.
        unit: &'static str,
        /// How many there are.
        found: usize,
        /// How many there may be.
        most: usize,
    },
    /// A line break or another control character.
    #[error("a control character at byte {at}")]
    ControlCharacter {
        /// Where.
        at: usize,
    },
    /// Not 64 hexadecimal digits in lower case.
    #[error("not 64 lower-case hexadecimal digits")]
    NotHexadecimal,
}

macro_rules! bounded_text {
    ($(#[$doc:meta])* $name:ident, $most:expr) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
        )]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Accepts a text within the limit and without control characters.
            ///
            /// # Errors
            /// Says what is wrong with it.
            pub fn new(text: String) -> Result<Self, TextError> {
                check_text(&text, $most)?;
                Ok(Self(text))
            }

            /// Makes any text fit: control characters become spaces, what is too long is cut.
            #[must_use]
            pub fn cut(text: &str) -> Self {
                let space = |found: char| if found.is_control() { ' ' } else { found };
                let mut cut: String = text.chars().map(space).collect();
                let end = (0..=$most.min(cut.len())).rev().find(|end| cut.is_char_boundary(*end));
                cut.truncate(end.unwrap_or(0));
                Self(cut)
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = TextError;
            fn try_from(text: String) -> Result<Self, TextError> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(text: $name) -> Self {
                text.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

bounded_text!(
    /// A name of a node, a model or a build.
    Name, NAME_BYTES_MAX
);
bounded_text!(
    /// An explanation for a person.
    Text, TEXT_BYTES_MAX
);
bounded_text!(
    /// A host or address with its port.
    Address, ADDRESS_BYTES_MAX
);

fn check_text(text: &str, most: usize) -> Result<(), TextError> {
    if text.len() > most {
        return Err(TextError::TooLong { unit: "bytes", found: text.len(), most });
    }
    match text.char_indices().find(|(_, found)| found.is_control()) {
        Some((at, _)) => Err(TextError::ControlCharacter { at }),
        None => Ok(()),
    }
}

/// A list of at most `N` entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    try_from = "Vec<T>",
    into = "Vec<T>",
    bound = "T: Clone + Serialize + for<'a> Deserialize<'a>"
)]
pub struct List<T, const N: usize>(Vec<T>);

impl<T, const N: usize> List<T, N> {
    /// Accepts a list within the limit.
    ///
    /// # Errors
    /// It is too long.
    pub fn new(entries: Vec<T>) -> Result<Self, TextError> {
        let found = entries.len();
        if found > N {
            return Err(TextError::TooLong { unit: "entries", found, most: N });
        }
        Ok(Self(entries))
    }
}

impl<T, const N: usize> Default for List<T, N> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const N: usize> TryFrom<Vec<T>> for List<T, N> {
    type Error = TextError;
    fn try_from(entries: Vec<T>) -> Result<Self, TextError> {
        Self::new(entries)
    }
}

impl<T, const N: usize> From<List<T, N>> for Vec<T> {
    fn from(list: List<T, N>) -> Self {
        list.0
    }
}

impl<T, const N: usize> Deref for List<T, N> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

macro_rules! hexadecimal {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(pub [u8; 32]);

        impl FromStr for $name {
            type Err = TextError;
            fn from_str(text: &str) -> Result<Self, TextError> {
                from_hexadecimal(text).map(Self)
            }
        }

        impl TryFrom<String> for $name {
            type Error = TextError;
            fn try_from(text: String) -> Result<Self, TextError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.to_string()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }
    };
}

hexadecimal!(
    /// A node: the digest of its public key.
    NodeId
);
hexadecimal!(
    /// A model: the digest of the list of its blocks' digests.
    ModelDigest
);

fn from_hexadecimal(text: &str) -> Result<[u8; 32], TextError> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else {
        return Err(TextError::NotHexadecimal);
    };
    let mut bytes = [0; 32];
    if pairs.len() != bytes.len() {
        return Err(TextError::NotHexadecimal);
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        let digit = |found: u8| match found {
            b'0'..=b'9' => Ok(found - b'0'),
            b'a'..=b'f' => Ok(found - b'a' + 10),
            _ => Err(TextError::NotHexadecimal),
        };
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Ok(bytes)
}

/// What a node has measured of itself, as JSON. The ring carries it and does not read it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(try_from = "serde_json::Value", into = "serde_json::Value")]
pub struct ProfileJson(serde_json::Value);

impl ProfileJson {
    /// Accepts JSON within the limit.
    ///
    /// # Errors
    /// It is too long.
    pub fn new(json: serde_json::Value) -> Result<Self, TextError> {
        let (found, most) = (json.to_string().len(), PROFILE_BYTES_MAX);
        if found > most {
            return Err(TextError::TooLong { unit: "bytes", found, most });
        }
        Ok(Self(json))
    }

    /// The JSON.
    #[must_use]
    pub const fn json(&self) -> &serde_json::Value {
        &self.0
    }
}

impl TryFrom<serde_json::Value> for ProfileJson {
    type Error = TextError;
    fn try_from(json: serde_json::Value) -> Result<Self, TextError> {
        Self::new(json)
    }
}

impl From<ProfileJson> for serde_json::Value {
    fn from(profile: ProfileJson) -> Self {
        profile.0
    }
}
