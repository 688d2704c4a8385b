//! The name of a model: BLAKE3 of what its manifest says.

use std::fmt;
use std::str::FromStr;

use data_encoding::HEXLOWER;

/// Why a text is no digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a digest has 64 digits of 0-9 and a-f")]
pub(crate) struct DigestError;

/// BLAKE3 of one block.
pub(crate) type BlockHash = [u8; 32];

/// BLAKE3 of a manifest's encoding. Paths of the store are made from digests alone, and a digest is
/// made from exactly 64 lower-case digits or by hashing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Digest([u8; 32]);

impl Digest {
    /// The digest of bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

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

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({})", self.short())
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let bytes = HEXLOWER.decode(text.as_bytes()).map_err(|_| DigestError)?;
        bytes.try_into().map(Self).map_err(|_| DigestError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T-10: whatever is not exactly a digest names nothing.
    #[test]
    fn digests_are_read_strictly() {
        let good = Digest::of(b"x").to_string();
        assert_eq!(good.parse(), Ok(Digest::of(b"x")));
        for wrong in [
            "".to_owned(),
            "..".to_owned(),
            "../".repeat(21) + "x",
            format!("/{}", &good[1..]),
            good.to_uppercase(),
            format!("{good}0"),
            good[..63].to_owned(),
            format!(" {}", &good[1..]),
            format!("{}\0", &good[1..]),
            format!("{}\\", &good[1..]),
            format!("sha256:{}", &good[7..]),
            good.replacen(|c: char| c.is_ascii_digit(), "\u{ff10}", 1),
            "CON".to_owned(),
        ] {
            assert_eq!(wrong.parse::<Digest>(), Err(DigestError), "{wrong:?}");
        }
    }
}
