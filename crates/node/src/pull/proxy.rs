//! Proxies that the environment names, and who is reached without them.

use std::net::IpAddr;

use data_encoding::BASE64;

use super::address::{Address, AddressError, Origin};

/// Why a variable names no proxy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProxyError {
    /// Proxies of other kinds are not spoken to.
    #[error("{variable} names a proxy that is not reached by http://")]
    Scheme {
        /// Which variable.
        variable: &'static str,
    },
    /// It does not parse. What it says may hold a password.
    #[error("{variable} names no proxy: {source}")]
    Malformed {
        /// Which variable.
        variable: &'static str,
        /// What is wrong with it.
        source: AddressError,
    },
}

/// A proxy.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Proxy {
    pub(super) origin: Origin,
    /// The value of `Proxy-Authorization`, where the variable holds a name and password.
    pub(super) authorization: Option<String>,
}

/// Which proxies there are.
#[derive(Clone, Default)]
pub(super) struct Proxies {
    secure: Option<Proxy>,
    plain: Option<Proxy>,
    /// Hosts that are reached without one, as `NO_PROXY` lists them.
    exempt: Vec<Exempt>,
}

/// An entry of `NO_PROXY`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Exempt {
    All,
    /// Addresses with so many leading bits in common.
    Network(IpAddr, u8),
    /// A host and all below it, perhaps at one port only.
    Domain(String, Option<u16>),
}

impl Proxies {
    /// Those that variables name, each written in lower or upper case.
    ///
    /// # Errors
    /// When one names what is no proxy.
    pub(super) fn of_variables(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ProxyError> {
        let value = |name: &str| {
            let found = variable(&name.to_lowercase()).or_else(|| variable(name));
            found.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        let proxy = |name: &'static str| {
            let all = "ALL_PROXY";
            let found = value(name).map(|text| (name, text));
            let found = found.or_else(|| value(all).map(|text| (all, text)));
            found.map(|(variable, text)| Proxy::parse(variable, &text)).transpose()
        };
        let exempt = value("NO_PROXY").unwrap_or_default();
        Ok(Self {
            secure: proxy("HTTPS_PROXY")?,
            plain: proxy("HTTP_PROXY")?,
            exempt: exempt.split([',', ' ']).filter_map(Exempt::parse).collect(),
        })
    }

    /// The proxy through which a server is reached. This machine is always reached directly.
    pub(super) fn to(&self, origin: &Origin) -> Option<&Proxy> {
        let proxy = if origin.secure { &self.secure } else { &self.plain };
        let direct = origin.is_loopback() || self.exempt.iter().any(|entry| entry.covers(origin));
        proxy.as_ref().filter(|_| !direct)
    }
}

impl Proxy {
    fn parse(variable: &'static str, text: &str) -> Result<Self, ProxyError> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        if !scheme.eq_ignore_ascii_case("http") {
            return Err(ProxyError::Scheme { variable });
        }
        let (user, place) = match rest.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, rest),
        };
        let address = Address::parse(&format!("http://{place}"))
            .map_err(|source| ProxyError::Malformed { variable, source })?;
        let authorization =
            user.map(|user| format!("Basic {}", BASE64.encode(&decode_percent(user))));
        Ok(Self { origin: address.origin().clone(), authorization })
    }
}

impl Exempt {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim().to_lowercase();
        if text == "*" {
            return Some(Self::All);
        }
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text.as_str(), None),
        };
        if let Ok(address) = address.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>()
        {
            let all = if address.is_ipv4() { 32 } else { 128 };
            let bits = bits.map_or(Some(all), |bits| bits.parse().ok())?;
            return (bits <= all).then_some(Self::Network(address, bits));
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().ok()?)),
            None => (text.as_str(), None),
        };
        let host = host.trim_start_matches("*.").trim_start_matches('.').to_owned();
        (!host.is_empty()).then_some(Self::Domain(host, port))
    }

    fn covers(&self, origin: &Origin) -> bool {
        match self {
            Self::All => true,
            Self::Network(network, bits) => {
                let address = origin.host.parse::<IpAddr>();
                address.is_ok_and(|address| shares_bits(address, *network, *bits))
            }
            Self::Domain(domain, port) => {
                let rest = origin.host.strip_suffix(domain.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
                    && port.is_none_or(|port| port == origin.port)
            }
        }
    }
}

fn shares_bits(one: IpAddr, other: IpAddr, bits: u8) -> bool {
    let wide = |address| match address {
        IpAddr::V4(address) => (32, u128::from(u32::from(address))),
        IpAddr::V6(address) => (128, u128::from(address)),
    };
    let ((width, one), (other_width, other)) = (wide(one), wide(other));
    let rest = width - u32::from(bits).min(width);
    width == other_width && (rest == 128 || one >> rest == other >> rest)
}

/// The bytes of a text in which some are written as `%41`.
fn decode_percent(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        let digits = (*first == b'%').then(|| behind.get(..2)).flatten();
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(variables: &[(&str, &str)]) -> Result<Proxies, ProxyError> {
        Proxies::of_variables(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    fn way(proxies: &Proxies, address: &str) -> String {
        let address = Address::parse(address).unwrap();
        let proxy = proxies.to(address.origin());
        proxy.map_or("direct".to_owned(), |proxy| proxy.origin.authority())
    }

    #[test]
    fn each_scheme_has_its_proxy() {
        let both = proxies(&[("https_proxy", "one:3128"), ("HTTP_PROXY", "http://two/")]).unwrap();
        assert_eq!(way(&both, "https://host/x"), "one:3128");
        assert_eq!(way(&both, "http://host/x"), "two");
        assert_eq!(way(&both, "http://127.0.0.1/x"), "direct");
        assert_eq!(way(&both, "https://localhost/x"), "direct");
        let all =
            proxies(&[("ALL_PROXY", "http://us%65r:p%40ss@all:1"), ("https_proxy", "")]).unwrap();
        assert_eq!(way(&all, "https://host/x"), "all:1");
        let authorization = all.secure.unwrap().authorization;
        assert_eq!(authorization.as_deref(), Some("Basic dXNlcjpwQHNz"));
        assert_eq!(way(&proxies(&[]).unwrap(), "https://host/x"), "direct");
    }

    #[test]
    fn what_is_no_proxy_is_refused() {
        let refused = |text| proxies(&[("HTTPS_PROXY", text)]).map(|_| ()).unwrap_err().to_string();
        assert_eq!(
            refused("socks5://host:1"),
            "HTTPS_PROXY names a proxy that is not reached by http://"
        );
        assert_eq!(
            refused("http://user:word@"),
            "HTTPS_PROXY names no proxy: it is no address on the web"
        );
    }

    #[test]
    fn listed_hosts_are_reached_directly() {
        let list = "example.com, .inner ,*.wild,port.net:8443,10.0.0.0/8,fd00::/8,1.2.3.4,bad/x";
        let proxies = proxies(&[("https_proxy", "p:1"), ("no_proxy", list)]).unwrap();
        for host in [
            "example.com",
            "a.example.com",
            "x.inner",
            "y.wild",
            "port.net:8443",
            "10.1.2.3",
            "[fd00::1]",
            "1.2.3.4",
        ] {
            assert_eq!(way(&proxies, &format!("https://{host}/")), "direct", "{host}");
        }
        for host in ["notexample.com", "port.net", "11.0.0.1", "[fe80::1]", "1.2.3.5", "bad"] {
            assert_eq!(way(&proxies, &format!("https://{host}/")), "p:1", "{host}");
        }
    }

    #[test]
    fn a_star_exempts_all() {
        let proxies = proxies(&[("https_proxy", "p:1"), ("no_proxy", "*")]).unwrap();
        assert_eq!(way(&proxies, "https://host/"), "direct");
    }
}
