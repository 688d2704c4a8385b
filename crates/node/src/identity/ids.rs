//! Names of devices and clusters: hashes of their public keys.

use std::fmt;
use std::str::FromStr;

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

/// Why a text is no id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an id has 64 digits of 0-9 and a-f")]
pub(crate) struct IdError;

/// A device: SHA-256 of its public key as certificates carry it (SubjectPublicKeyInfo).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeId([u8; 32]);

/// A cluster: SHA-256 of its authority's public key (SubjectPublicKeyInfo).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClusterId([u8; 32]);

impl NodeId {
    /// The id of the holder of a key.
    pub(crate) fn of_public_key(subject_public_key_info: &[u8]) -> Self {
        Self(Sha256::digest(subject_public_key_info).into())
    }
}

impl ClusterId {
    /// The id of the cluster of an authority.
    pub(crate) fn of_public_key(subject_public_key_info: &[u8]) -> Self {
        Self(Sha256::digest(subject_public_key_info).into())
    }

    /// The first eight bytes, for frame headers.
    pub(crate) fn prefix(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

macro_rules! hash_id {
    ($name:ident) => {
        impl $name {
            pub(crate) fn from_bytes(bytes: [u8; 32]) -> Self {
                Self(bytes)
            }

            pub(crate) fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }

            /// The first eight digits, which people compare.
            pub(crate) fn short(&self) -> String {
                HEXLOWER.encode(&self.0[..4])
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&HEXLOWER.encode(&self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.short())
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                let bytes = HEXLOWER.decode(text.as_bytes()).map_err(|_| IdError)?;
                bytes.try_into().map(Self).map_err(|_| IdError)
            }
        }
    };
}

hash_id!(NodeId);
hash_id!(ClusterId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_strictly() {
        let id = NodeId::of_public_key(b"a key");
        assert_eq!(id.to_string().parse(), Ok(id));
        let text = id.to_string();
        for wrong in [text.to_uppercase(), format!("{text}0"), text[1..].to_owned(), "..".into()] {
            assert_eq!(wrong.parse::<NodeId>(), Err(IdError), "{wrong}");
        }
    }

    #[test]
    fn frames_carry_the_first_bytes() {
        let mut bytes = [0; 32];
        bytes[0] = 1;
        bytes[8] = 9;
        assert_eq!(ClusterId::from_bytes(bytes).prefix(), 1);
    }
}
