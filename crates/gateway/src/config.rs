//! What the node decides before a router is built: keys, names, clocks, and where to listen.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use crate::backend::{KeyId, Sampling};
use crate::limits::Limits;
use crate::request_log::SharedLog;

/// Everything about a gateway that is not its backend.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// What requests may cost.
    pub limits: Limits,
    /// What holds where a request is silent.
    pub usual: UsualOptions,
    /// Who may ask; empty means that everyone who can connect may.
    pub keys: KeyRing,
    /// Names and addresses, without port, that a `Host` header may carry besides the loopback ones.
    pub host_names: Vec<String>,
    /// Origins of other sites, such as `https://chat.example`, whose pages may read answers.
    pub allowed_origins: Vec<String>,
    /// What the listener is bound to; metrics are open on loopback only.
    pub exposure: Exposure,
    /// Which metric names to export.
    pub metric_names: MetricNames,
    /// Version of the build, shown in `/props` and `/api/version`.
    pub version: String,
    /// Random number that keeps ids of different runs apart.
    pub id_seed: u64,
    /// Reads the wall clock.
    pub clock: UnixClock,
    /// Told about every request.
    pub log: SharedLog,
}

/// The operator's defaults for members that a request leaves out; `None` keeps those of the API that
/// is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UsualOptions {
    /// Tokens of an answer.
    pub tokens_max: Option<u32>,
    /// See [`Sampling::seed`].
    pub seed: Option<u64>,
    /// See [`Sampling::temperature`].
    pub temperature: Option<f32>,
    /// See [`Sampling::top_p`].
    pub top_p: Option<f32>,
    /// See [`Sampling::top_k`]; zero keeps all.
    pub top_k: Option<u32>,
    /// See [`Sampling::min_p`].
    pub min_p: Option<f32>,
    /// See [`Sampling::frequency_penalty`].
    pub frequency_penalty: Option<f32>,
    /// See [`Sampling::presence_penalty`].
    pub presence_penalty: Option<f32>,
    /// See [`Sampling::repetition_penalty`].
    pub repetition_penalty: Option<f32>,
}

impl UsualOptions {
    /// How tokens are drawn where a request is silent and the API's own defaults are `api`.
    pub(crate) fn sampling(&self, api: Sampling) -> Sampling {
        let top_k = self.top_k.map(|top_k| Some(top_k).filter(|top_k| *top_k > 0));
        Sampling {
            seed: self.seed.or(api.seed),
            temperature: self.temperature.unwrap_or(api.temperature),
            top_p: self.top_p.unwrap_or(api.top_p),
            top_k: top_k.unwrap_or(api.top_k),
            min_p: self.min_p.unwrap_or(api.min_p),
            frequency_penalty: self.frequency_penalty.unwrap_or(api.frequency_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(api.presence_penalty),
            repetition_penalty: self.repetition_penalty.unwrap_or(api.repetition_penalty),
            logit_bias: api.logit_bias,
        }
    }
}

/// Which names metrics are exported under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricNames {
    /// Ours only.
    Motley,
    /// Ours, and those of vLLM that mean the same.
    MotleyAndVllm,
}

/// Seconds since 1970, from whoever may read a clock.
#[derive(Clone)]
pub struct UnixClock(Arc<dyn Fn() -> u64 + Send + Sync>);

impl UnixClock {
    /// Wraps a function that reads the clock.
    pub fn new(read: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// Seconds since 1970.
    pub fn now_s(&self) -> u64 {
        (self.0)()
    }
}

impl fmt::Debug for UnixClock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("UnixClock")
    }
}

/// The API keys of a gateway, as digests.
#[derive(Clone, Debug, Default)]
pub struct KeyRing {
    keys: Vec<(KeyDigest, Scope)>,
}

/// SHA-256 of an API key. A key is 256 random bits, so no salt or slow hash is needed.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyDigest([u8; 32]);

/// What a key allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Asking models.
    Infer,
    /// Also seeing what others do, and changing things.
    Admin,
}

impl KeyDigest {
    /// Digest of a key as its owner types it.
    pub fn of(key: &str) -> Self {
        Self(Sha256::digest(key.as_bytes()).into())
    }

    /// A digest read back from the file that keeps it.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes to keep.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for KeyDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "KeyDigest({:02x}{:02x}..)", self.0[0], self.0[1])
    }
}

impl KeyRing {
    /// A ring without keys.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a key; its [`KeyId`] is the number of keys before it.
    pub fn add(&mut self, digest: KeyDigest, scope: Scope) {
        self.keys.push((digest, scope));
    }

    /// Whether everyone who can connect may ask.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Finds an offered key. Takes the same time whichever key matches, or none.
    pub(crate) fn find(&self, offered: &str) -> Option<(KeyId, Scope)> {
        let offered = KeyDigest::of(offered);
        let none = u32::MAX;
        let mut found = none;
        for (index, (digest, _)) in (0_u32..).zip(&self.keys) {
            found = u32::conditional_select(&found, &index, digest.0.ct_eq(&offered.0));
        }
        let (_, scope) = self.keys.get(found as usize)?;
        Some((KeyId(found), *scope))
    }
}

/// Who can reach a bound address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposure {
    /// This machine only.
    Loopback,
    /// The local network, or every interface.
    Network,
    /// Anyone on the internet.
    Public,
}

impl Exposure {
    /// Who can reach `address`.
    pub fn of(address: IpAddr) -> Self {
        let address = address.to_canonical();
        let local = match address {
            IpAddr::V4(v4) => v4.is_private() || v4.is_link_local() || v4.is_unspecified(),
            IpAddr::V6(v6) => {
                v6.is_unique_local() || v6.is_unicast_link_local() || v6.is_unspecified()
            }
        };
        match (address.is_loopback(), local) {
            (true, _) => Self::Loopback,
            (false, true) => Self::Network,
            (false, false) => Self::Public,
        }
    }
}

/// What the operator has said about being reachable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BindPolicy {
    /// Listen beyond loopback without any key (`--insecure-no-auth`).
    pub insecure_no_auth: bool,
    /// Yes, the address is on the internet.
    pub public_confirmed: bool,
}

/// Why an address must not be bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindRefused {
    /// Others could use the models without a key.
    #[error(
        "{address} can be reached from other machines but no API key is set; \
         make one, bind 127.0.0.1, or pass --insecure-no-auth"
    )]
    NoKey {
        /// The address asked for.
        address: SocketAddr,
    },
    /// The address is on the internet and nobody has confirmed that it should be.
    #[error("{address} is a public address; confirm that the internet may reach it")]
    PublicUnconfirmed {
        /// The address asked for.
        address: SocketAddr,
    },
}

impl BindPolicy {
    /// Decides whether to listen on `address`, before a socket is opened.
    ///
    /// # Errors
    ///
    /// Beyond loopback there must be a key, and a public address must be confirmed.
    pub fn check(self, address: SocketAddr, keys: &KeyRing) -> Result<Exposure, BindRefused> {
        let exposure = Exposure::of(address.ip());
        if exposure != Exposure::Loopback && keys.is_empty() && !self.insecure_no_auth {
            return Err(BindRefused::NoKey { address });
        }
        if exposure == Exposure::Public && !self.public_confirmed {
            return Err(BindRefused::PublicUnconfirmed { address });
        }
        Ok(exposure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_beyond_loopback_need_a_key() {
        let mut ring = KeyRing::new();
        ring.add(KeyDigest::of("sk-a"), Scope::Infer);
        let keyless = KeyRing::new();
        let plain = BindPolicy::default();
        let insecure = BindPolicy { insecure_no_auth: true, ..plain };
        let confirmed = BindPolicy { public_confirmed: true, ..plain };
        let check = |policy: BindPolicy, address: &str, keys: &KeyRing| {
            policy.check(address.parse().unwrap(), keys).map_err(|refused| match refused {
                BindRefused::NoKey { .. } => "no key",
                BindRefused::PublicUnconfirmed { .. } => "unconfirmed",
            })
        };
        for address in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(check(plain, address, &keyless), Ok(Exposure::Loopback), "{address}");
        }
        for address in ["0.0.0.0:1", "[::]:1", "192.168.1.4:1", "[fe80::1]:1", "[fd00::1]:1"] {
            assert_eq!(check(plain, address, &keyless), Err("no key"), "{address}");
            assert_eq!(check(insecure, address, &keyless), Ok(Exposure::Network), "{address}");
            assert_eq!(check(plain, address, &ring), Ok(Exposure::Network), "{address}");
        }
        for address in ["8.8.8.8:1", "[2606:4700::1]:1", "[::ffff:8.8.8.8]:1"] {
            assert_eq!(check(plain, address, &keyless), Err("no key"), "{address}");
            assert_eq!(check(plain, address, &ring), Err("unconfirmed"), "{address}");
            assert_eq!(check(insecure, address, &keyless), Err("unconfirmed"), "{address}");
            assert_eq!(check(confirmed, address, &ring), Ok(Exposure::Public), "{address}");
        }
    }

    #[test]
    fn keys_are_found_by_digest() {
        let mut ring = KeyRing::new();
        ring.add(KeyDigest::of("sk-a"), Scope::Infer);
        ring.add(KeyDigest::of("sk-b"), Scope::Admin);
        assert_eq!(ring.find("sk-a"), Some((KeyId(0), Scope::Infer)));
        assert_eq!(ring.find("sk-b"), Some((KeyId(1), Scope::Admin)));
        for wrong in ["", "sk-", "sk-a ", "SK-A"] {
            assert_eq!(ring.find(wrong), None, "{wrong:?}");
        }
        assert!(!format!("{ring:?}").contains("sk-a"), "a ring must not show keys");
    }
}
