//! The text that invites a device: where to knock, which cluster to expect, and the proof of the
//! invitation.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use data_encoding::BASE32_NOPAD_NOCASE;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::ids::ClusterId;

/// What every token begins with; the digit is the version of its layout.
const PREFIX: &str = "motley1_";

/// Addresses in a token at most.
pub(crate) const TOKEN_ADDRESSES_MAX: usize = 8;

/// Bytes of a host name at most, as in DNS.
const HOST_BYTES_MAX: usize = 253;

/// Characters of a token at most: eight addresses of the longest kind in base 32.
const TOKEN_CHARACTERS_MAX: usize = 8192;

const CHECKSUM_BYTES: usize = 4;
const KIND_IPV4: u8 = 4;
const KIND_IPV6: u8 = 6;
const KIND_NAME: u8 = 1;

/// Why a text is no join token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TokenError {
    /// It is something else.
    #[error("this is no join token: one begins with '{PREFIX}'; `motley token new` makes one")]
    Prefix,
    /// From a newer program.
    #[error("the join token is of a newer kind than this program knows; update motley here")]
    Version,
    /// It was cut or mistyped.
    #[error("the join token was not copied whole or has a typing error; copy it again")]
    Damaged,
}

/// 256 random bits that prove an invitation. They are wiped from memory after use and never shown
/// except in the token itself.
#[derive(Clone)]
pub(crate) struct Secret(Zeroizing<[u8; 32]>);

impl Secret {
    pub(crate) fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    pub(crate) fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// What is kept of it.
    pub(crate) fn hash(&self) -> [u8; 32] {
        Sha256::digest(self.0.as_slice()).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Where the inviting device listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TokenAddress {
    Socket(SocketAddr),
    Host { name: String, port: u16 },
}

impl fmt::Display for TokenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(address) => write!(f, "{address}"),
            Self::Host { name, port } => write!(f, "{name}:{port}"),
        }
    }
}

impl FromStr for TokenAddress {
    type Err = TokenError;

    /// Reads `192.168.1.5:7070`, `[fe80::1]:7070` or `nas.local:7070`.
    fn from_str(text: &str) -> Result<Self, TokenError> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Socket(address));
        }
        let (name, port) = text.rsplit_once(':').ok_or(TokenError::Damaged)?;
        let port = port.parse().map_err(|_| TokenError::Damaged)?;
        if !is_host(name) {
            return Err(TokenError::Damaged);
        }
        Ok(Self::Host { name: name.to_owned(), port })
    }
}

/// An invitation as text: `motley1_` and, in base 32 of the bytes, a checksum, the secret, the hash
/// of the authority's key, and addresses.
#[derive(Clone, Debug)]
pub(crate) struct JoinToken {
    pub(crate) cluster: ClusterId,
    pub(crate) secret: Secret,
    pub(crate) addresses: Vec<TokenAddress>,
}

impl JoinToken {
    /// The text to be copied. Addresses beyond the eighth are left out.
    pub(crate) fn to_text(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(vec![0; CHECKSUM_BYTES]);
        bytes.extend(self.secret.as_bytes());
        bytes.extend(self.cluster.as_bytes());
        for address in self.addresses.iter().take(TOKEN_ADDRESSES_MAX) {
            write_address(&mut bytes, address);
        }
        let checksum = checksum(&bytes[CHECKSUM_BYTES..]);
        bytes[..CHECKSUM_BYTES].copy_from_slice(&checksum);
        let digits = Zeroizing::new(BASE32_NOPAD_NOCASE.encode(&bytes));
        Zeroizing::new(format!("{PREFIX}{}", digits.to_ascii_lowercase()))
    }
}

impl FromStr for JoinToken {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        let Some(digits) = text.strip_prefix(PREFIX) else {
            let newer = text.strip_prefix("motley").and_then(|rest| rest.split_once('_'));
            let newer = newer.is_some_and(|(version, _)| version.parse::<u32>().is_ok());
            return Err(if newer { TokenError::Version } else { TokenError::Prefix });
        };
        if digits.len() > TOKEN_CHARACTERS_MAX {
            return Err(TokenError::Damaged);
        }
        let bytes = BASE32_NOPAD_NOCASE.decode(digits.as_bytes());
        let bytes = Zeroizing::new(bytes.map_err(|_| TokenError::Damaged)?);
        let (sum, rest) = bytes.split_at_checked(CHECKSUM_BYTES).ok_or(TokenError::Damaged)?;
        if sum != checksum(rest) {
            return Err(TokenError::Damaged);
        }
        let (secret, rest) = rest.split_first_chunk::<32>().ok_or(TokenError::Damaged)?;
        let (cluster, mut rest) = rest.split_first_chunk::<32>().ok_or(TokenError::Damaged)?;
        let mut addresses = Vec::new();
        while !rest.is_empty() && addresses.len() < TOKEN_ADDRESSES_MAX {
            addresses.push(read_address(&mut rest).ok_or(TokenError::Damaged)?);
        }
        Ok(Self {
            cluster: ClusterId::from_bytes(*cluster),
            secret: Secret::from_bytes(*secret),
            addresses,
        })
    }
}

/// Tells a typing error from a wrong token; it protects nothing.
fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let hash = Sha256::new_with_prefix(PREFIX).chain_update(bytes).finalize();
    std::array::from_fn(|index| hash[index])
}

fn write_address(bytes: &mut Vec<u8>, address: &TokenAddress) {
    let port = match address {
        TokenAddress::Socket(SocketAddr::V4(socket)) => {
            bytes.push(KIND_IPV4);
            bytes.extend(socket.ip().octets());
            socket.port()
        }
        TokenAddress::Socket(SocketAddr::V6(socket)) => {
            bytes.push(KIND_IPV6);
            bytes.extend(socket.ip().octets());
            socket.port()
        }
        TokenAddress::Host { name, port } => {
            let name = &name.as_bytes()[..name.len().min(HOST_BYTES_MAX)];
            bytes.push(KIND_NAME);
            bytes.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
            bytes.extend(name);
            *port
        }
    };
    bytes.extend(port.to_le_bytes());
}

fn read_address(rest: &mut &[u8]) -> Option<TokenAddress> {
    fn take<'b>(rest: &mut &'b [u8], count: usize) -> Option<&'b [u8]> {
        let (taken, left) = rest.split_at_checked(count)?;
        *rest = left;
        Some(taken)
    }
    let kind = take(rest, 1)?[0];
    match kind {
        KIND_IPV4 | KIND_IPV6 => {
            let ip = match kind {
                KIND_IPV4 => Ipv4Addr::from(<[u8; 4]>::try_from(take(rest, 4)?).ok()?).into(),
                _ => Ipv6Addr::from(<[u8; 16]>::try_from(take(rest, 16)?).ok()?).into(),
            };
            let port = u16::from_le_bytes(take(rest, 2)?.try_into().ok()?);
            Some(TokenAddress::Socket(SocketAddr::new(ip, port)))
        }
        KIND_NAME => {
            let length = usize::from(take(rest, 1)?[0]);
            let name = std::str::from_utf8(take(rest, length)?).ok()?;
            let port = u16::from_le_bytes(take(rest, 2)?.try_into().ok()?);
            is_host(name).then(|| TokenAddress::Host { name: name.to_owned(), port })
        }
        _ => None,
    }
}

fn is_host(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    (1..=HOST_BYTES_MAX).contains(&name.len()) && name.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> JoinToken {
        JoinToken {
            cluster: ClusterId::from_bytes([7; 32]),
            secret: Secret::from_bytes([9; 32]),
            addresses: ["192.168.1.5:7070", "[fe80::1]:7070", "nas.local:7071"]
                .map(|address| address.parse().unwrap())
                .to_vec(),
        }
    }

    #[test]
    fn a_token_survives_its_text_in_either_case() {
        let text = token().to_text();
        assert!(text.len() <= 200, "{} characters", text.len());
        for text in [text.to_string(), format!(" {}\n", text.as_str())] {
            let read: JoinToken = text.parse().unwrap();
            assert_eq!(read.cluster, token().cluster);
            assert_eq!(read.secret.as_bytes(), token().secret.as_bytes());
            assert_eq!(read.addresses, token().addresses);
        }
        let shouted = format!("{PREFIX}{}", text[PREFIX.len()..].to_uppercase());
        assert!(shouted.parse::<JoinToken>().is_ok());
    }

    #[test]
    fn every_changed_or_lost_character_is_noticed() {
        let text = token().to_text().to_string();
        for position in PREFIX.len()..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[position] = if changed[position] == b'a' { b'b' } else { b'a' };
            let changed = String::from_utf8(changed).unwrap();
            let error = changed.parse::<JoinToken>().unwrap_err();
            assert_eq!(error, TokenError::Damaged, "character {position}");
            let error = text[..position].parse::<JoinToken>().unwrap_err();
            assert_eq!(error, TokenError::Damaged, "cut at {position}");
        }
    }

    #[test]
    fn other_texts_are_told_apart() {
        let error = |text: &str| text.parse::<JoinToken>().unwrap_err();
        assert_eq!(error("sk-1234"), TokenError::Prefix);
        assert_eq!(error(""), TokenError::Prefix);
        assert_eq!(error("motley2_abcd"), TokenError::Version);
        assert_eq!(error("motley_abcd"), TokenError::Prefix);
    }

    #[test]
    fn a_secret_is_not_shown() {
        let shown = format!("{:?}", token());
        assert!(shown.contains("Secret(..)") && !shown.contains("9, 9"), "{shown}");
    }
}
