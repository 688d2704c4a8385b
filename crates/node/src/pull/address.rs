//! Addresses on the web, as far as a download needs them.

use std::fmt;
use std::net::IpAddr;

use hyper::Uri;

/// Characters of an address at most; signed ones have some two thousand.
const CHARACTERS_MAX: usize = 8192;

/// Why a text is no address that can be fetched from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AddressError {
    /// It does not parse.
    #[error("it is no address on the web")]
    Malformed,
    /// Files, archives and other protocols are not fetched.
    #[error("only https:// and http:// are fetched")]
    Scheme,
    /// A password would be shown in lists of processes and logs.
    #[error("it holds a name and password; give a token with HF_TOKEN")]
    Password,
    /// Longer than any address in use.
    #[error("it has more than {CHARACTERS_MAX} characters")]
    TooLong,
}

/// Scheme, host and port: those who are trusted with the same secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) secure: bool,
    /// Without the brackets of IPv6.
    pub(super) host: String,
    pub(super) port: u16,
}

/// An address of a file. What is shown of it ends before the query, which may be signed.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Address {
    origin: Origin,
    /// Path and query.
    target: String,
}

impl Address {
    /// Reads an absolute address.
    pub(super) fn parse(text: &str) -> Result<Self, AddressError> {
        if text.len() > CHARACTERS_MAX {
            return Err(AddressError::TooLong);
        }
        let uri: Uri = text.parse().map_err(|_| AddressError::Malformed)?;
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            Some(_) => return Err(AddressError::Scheme),
            None => return Err(AddressError::Malformed),
        };
        let authority = uri.authority().ok_or(AddressError::Malformed)?;
        if authority.as_str().contains('@') {
            return Err(AddressError::Password);
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_lowercase();
        if host.is_empty() {
            return Err(AddressError::Malformed);
        }
        let port = authority.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let target = uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
        Ok(Self { origin: Origin { secure, host, port }, target })
    }

    /// Where a `Location` header leads from here.
    pub(super) fn join(&self, location: &str) -> Result<Self, AddressError> {
        let scheme = if self.origin.secure { "https" } else { "http" };
        let at_origin =
            |target: &str| Self::parse(&format!("{scheme}://{}{target}", self.origin.authority()));
        if location.contains("://") {
            Self::parse(location)
        } else if location.starts_with("//") {
            Self::parse(&format!("{scheme}:{location}"))
        } else if location.starts_with('/') {
            at_origin(location)
        } else {
            let folder = self.path().rsplit_once('/').map_or("", |(folder, _)| folder);
            at_origin(&format!("{folder}/{location}"))
        }
    }

    pub(super) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Path and query, as they are sent.
    pub(super) fn target(&self) -> &str {
        &self.target
    }

    /// The path without its query.
    pub(super) fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// The same place with another path.
    pub(super) fn with_path(&self, path: &str) -> Result<Self, AddressError> {
        let query = self.target.split_once('?').map(|(_, query)| format!("?{query}"));
        self.join(&format!("{path}{}", query.unwrap_or_default()))
    }
}

impl Origin {
    /// Host and port as they are sent; the scheme's own port is left out.
    pub(super) fn authority(&self) -> String {
        let host = match self.host.contains(':') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        };
        match (self.secure, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }

    /// Whether it can only be this machine.
    pub(super) fn is_loopback(&self) -> bool {
        let address = self.host.parse::<IpAddr>();
        self.host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.origin.secure { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.origin.authority(), self.path())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

/// Whether an address belongs to the internet: no machine of one's own, of one's network, of
/// nobody. Where strangers send us, only such addresses are called.
pub(super) fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            let [first, second, third, _] = address.octets();
            let shared = first == 100 && (second & 0xc0) == 64;
            let protocols = (first, second, third) == (192, 0, 0);
            let benchmark = first == 198 && (second & 0xfe) == 18;
            !(address.is_private()
                || address.is_loopback()
                || address.is_link_local()
                || address.is_documentation()
                || first == 0
                || first >= 224
                || shared
                || protocols
                || benchmark)
        }
        IpAddr::V6(address) => {
            // Global unicast is 2000::/3, less documentation and the tunnels that hide an IPv4
            // address: Teredo and 6to4.
            let segments = address.segments();
            (segments[0] & 0xe000) == 0x2000
                && segments[..2] != [0x2001, 0x0db8]
                && segments[..2] != [0x2001, 0]
                && segments[0] != 0x2002
        }
    }
}

/// A text as a segment of a path.
pub(super) fn encode_segment(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~+".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown_without_their_query() {
        let shown = |text: &str| Address::parse(text).map(|address| address.to_string());
        assert_eq!(
            shown("https://Host.example/a/b.gguf?X-Signature=secret").unwrap(),
            "https://host.example/a/b.gguf"
        );
        assert_eq!(shown("http://[::1]:8080").unwrap(), "http://[::1]:8080/");
        assert_eq!(shown("ftp://host/x"), Err(AddressError::Scheme));
        assert_eq!(shown("file:///etc/passwd"), Err(AddressError::Malformed));
        assert_eq!(shown("/dev/random"), Err(AddressError::Malformed));
        assert_eq!(shown("https://user:word@host/x"), Err(AddressError::Password));
        assert_eq!(shown("https://host/a b"), Err(AddressError::Malformed));
        assert_eq!(shown(&format!("https://h/{}", "x".repeat(9000))), Err(AddressError::TooLong));
    }

    #[test]
    fn locations_are_joined_as_browsers_do() {
        let from = Address::parse("https://host.example/a/b?q=1").unwrap();
        for (location, expected) in [
            ("http://other/x", "http://other/x"),
            ("//other/x", "https://other/x"),
            ("/x?y", "https://host.example/x"),
            ("c", "https://host.example/a/c"),
        ] {
            assert_eq!(from.join(location).unwrap().to_string(), expected);
        }
        assert!(from.join("gopher://other/x").is_err());
        assert_eq!(from.join("/x?y").unwrap().target(), "/x?y");
        assert_eq!(from.with_path("/a/c").unwrap().target(), "/a/c?q=1");
    }

    #[test]
    fn only_the_internet_is_public() {
        for address in ["1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111"] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
        for address in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "192.168.1.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "fe80::1",
            "fd00::1",
            "2002:7f00:1::",
        ] {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn segments_cannot_leave_their_place() {
        assert_eq!(encode_segment("Q4_K_M-00001.gguf"), "Q4_K_M-00001.gguf");
        assert_eq!(encode_segment("a/b?c#d %é"), "a%2Fb%3Fc%23d%20%25%C3%A9");
    }
}
