//! The cluster's authority: the key that makes a public key a member's certificate.

use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ED25519, PublicKeyData, SignatureAlgorithm, SigningKey,
    date_time_ymd,
};
use rustls::pki_types::CertificateDer;

use super::ids::{ClusterId, NodeId};

/// How long a member's certificate is valid: ten years of 365.25 days.
pub(crate) const LEAF_VALID_S: u64 = super::clock::BELIEVED_S;

/// Characters of a device's name at most, as in a host name.
pub(crate) const NODE_NAME_CHARACTERS_MAX: usize = 63;

/// The name in the authority's certificate. It is the same in every cluster: clusters differ by key.
const AUTHORITY_NAME: &str = "motley cluster authority";

/// Why a certificate could not be made or a key not be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AuthorityError {
    /// The library refused.
    #[error("cannot make a certificate")]
    Certificate(#[from] rcgen::Error),
}

/// Key and certificate of the authority. Only the device that began the cluster has it.
pub(crate) struct Authority {
    key: KeyPair,
    certificate: CertificateDer<'static>,
}

impl Authority {
    /// Makes a new authority, and with it a new cluster.
    pub(crate) fn create() -> Result<Self, AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        let certificate = authority_parameters().self_signed(&key)?.der().clone();
        Ok(Self { key, certificate })
    }

    /// The authority that was kept as a PKCS#8 key and its certificate.
    pub(crate) fn from_der(
        key: &[u8],
        certificate: CertificateDer<'static>,
    ) -> Result<Self, AuthorityError> {
        Ok(Self { key: key_from_der(key)?, certificate })
    }

    pub(crate) fn key_der(&self) -> &[u8] {
        self.key.serialized_der()
    }

    pub(crate) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    pub(crate) fn cluster_id(&self) -> ClusterId {
        ClusterId::of_public_key(&self.key.subject_public_key_info())
    }

    /// A certificate for the holder of `public_key`, valid for ten years from `now_unix_s`.
    pub(crate) fn issue(
        &self,
        public_key: &NodePublicKey,
        now_unix_s: u64,
    ) -> Result<CertificateDer<'static>, AuthorityError> {
        let parameters = authority_parameters();
        let issuer = Issuer::from_params(&parameters, &self.key);
        let mut leaf = CertificateParams::default();
        leaf.distinguished_name = DistinguishedName::new();
        leaf.distinguished_name.push(DnType::CommonName, public_key.node_id().short());
        leaf.is_ca = IsCa::ExplicitNoCa;
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        // A beginning would only add a way in which two clocks can disagree.
        leaf.not_before = date_time_ymd(2000, 1, 1);
        leaf.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(now_unix_s + LEAF_VALID_S);
        Ok(leaf.signed_by(public_key, &issuer)?.der().clone())
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("cluster", &self.cluster_id()).finish_non_exhaustive()
    }
}

/// A device's Ed25519 public key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodePublicKey(pub(crate) [u8; 32]);

impl NodePublicKey {
    pub(crate) fn node_id(&self) -> NodeId {
        NodeId::of_public_key(&self.subject_public_key_info())
    }
}

impl PublicKeyData for NodePublicKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ED25519
    }
}

/// The key kept as PKCS#8.
pub(crate) fn key_from_der(der: &[u8]) -> Result<KeyPair, AuthorityError> {
    Ok(KeyPair::from_pkcs8_der_and_sign_algo(&der.into(), &PKCS_ED25519)?)
}

/// The public half of a key that signs with Ed25519.
pub(crate) fn public_key(key: &impl SigningKey) -> NodePublicKey {
    let bytes = key.der_bytes();
    NodePublicKey(bytes.try_into().expect("Ed25519 public keys have 32 bytes"))
}

/// Whether `name` can name a device: letters, digits, `.`, `_` and `-`.
pub(crate) fn check_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=NODE_NAME_CHARACTERS_MAX).contains(&name.len())
        && name.chars().all(allowed)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
}

fn authority_parameters() -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, AUTHORITY_NAME);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    // It lives as long as its cluster.
    parameters.not_before = date_time_ymd(2000, 1, 1);
    parameters.not_after = date_time_ymd(9999, 12, 31);
    parameters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_hosts() {
        for name in ["nas", "living-room.pc", "Pi_4"] {
            assert!(check_name(name), "{name}");
        }
        let long = "x".repeat(NODE_NAME_CHARACTERS_MAX + 1);
        for name in ["", "-rf", "..", "a b", "a/b", "b\u{1b}[2J", "ä", long.as_str()] {
            assert!(!check_name(name), "{name}");
        }
    }

    #[test]
    fn a_kept_authority_is_the_same_cluster() {
        let made = Authority::create().unwrap();
        let kept = Authority::from_der(made.key_der(), made.certificate().clone()).unwrap();
        assert_eq!(kept.cluster_id(), made.cluster_id());
        assert_ne!(Authority::create().unwrap().cluster_id(), made.cluster_id());
    }
}
