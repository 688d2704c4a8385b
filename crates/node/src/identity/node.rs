//! This device's place in a cluster: its key, its certificate, the authority's certificate.

use rcgen::{KeyPair, PKCS_ED25519};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, RootCertStore};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

use super::authority::{
    Authority, AuthorityError, LEAF_VALID_S, check_name, key_from_der, public_key,
};
use super::enrol::{Applicant, EnrolError, Grant, Refusal};
use super::folder::{StateError, StateFolder};
use super::ids::{ClusterId, NodeId};
use super::members::{MemberList, MembersError};

const AUTHORITY_KEY_FILE: &str = "authority.key";
const AUTHORITY_FILE: &str = "authority.der";
const NODE_KEY_FILE: &str = "node.key";
const NODE_FILE: &str = "node.der";
/// Written last: where it is, the rest is complete.
const NODE_FACTS_FILE: &str = "node.json";

/// Why this device's identity cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IdentityError {
    /// The folder cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// A key or certificate cannot be used or made.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The member list cannot be read or changed.
    #[error(transparent)]
    Members(#[from] MembersError),
    /// What was granted is not for this device.
    #[error(transparent)]
    Enrol(#[from] EnrolError),
    /// A file of the folder is gone or wrong.
    #[error(
        "{file} in the state folder is missing or damaged; restore it, or remove the folder and join anew"
    )]
    Damaged {
        /// Which one.
        file: &'static str,
    },
    /// It is a member already.
    #[error(
        "this device belongs to cluster {} already; to be in another too, give another --state folder",
        cluster.short()
    )]
    AlreadyMember {
        /// The cluster.
        cluster: ClusterId,
    },
}

/// Who this device is. It holds keys and shows none.
#[derive(Clone)]
pub(crate) struct Identity {
    cluster: ClusterId,
    node: NodeId,
    name: String,
    leaf: CertificateDer<'static>,
    authority_certificate: CertificateDer<'static>,
    roots: Arc<RootCertStore>,
    node_key: Arc<KeyPair>,
    authority: Option<Arc<Authority>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeFacts {
    version: u32,
    name: String,
}

impl Identity {
    /// The identity kept in `folder`; nothing if there is none.
    pub(crate) fn load(folder: &StateFolder) -> Result<Option<Self>, IdentityError> {
        let Some(facts) = folder.read(NODE_FACTS_FILE)? else { return Ok(None) };
        let facts: NodeFacts = serde_json::from_slice(&facts)
            .map_err(|_| IdentityError::Damaged { file: NODE_FACTS_FILE })?;
        let needed = |file| match folder.read_private(file)? {
            Some(bytes) => Ok(bytes),
            None => Err(IdentityError::Damaged { file }),
        };
        let node_key = key_from_der(&needed(NODE_KEY_FILE)?)
            .map_err(|_| IdentityError::Damaged { file: NODE_KEY_FILE })?;
        let leaf = needed(NODE_FILE)?.into();
        let certificate: CertificateDer<'static> = needed(AUTHORITY_FILE)?.into();
        let authority = match folder.read_private(AUTHORITY_KEY_FILE)? {
            Some(key) => Some(
                Authority::from_der(&key, certificate.clone())
                    .map_err(|_| IdentityError::Damaged { file: AUTHORITY_KEY_FILE })?,
            ),
            None => None,
        };
        Self::assemble(facts.name, node_key, leaf, (certificate, authority)).map(Some)
    }

    /// The identity kept in `folder`; if there is none, a new cluster with this device, called
    /// `name`, as its first member. Also tells whether it was made now.
    pub(crate) fn load_or_create_cluster(
        folder: &StateFolder,
        name: &str,
        now_unix_s: u64,
    ) -> Result<(Self, bool), IdentityError> {
        let _lock = folder.lock()?;
        if let Some(identity) = Self::load(folder)? {
            return Ok((identity.renewed(folder, now_unix_s)?, false));
        }
        if !check_name(name) {
            return Err(EnrolError::from(Refusal::Name).into());
        }
        let authority = Authority::create()?;
        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(AuthorityError::from)?;
        let leaf = authority.issue(&public_key(&key), now_unix_s)?;
        let mut members = MemberList::default();
        members.add(public_key(&key).node_id(), name, now_unix_s)?;
        folder.write(AUTHORITY_KEY_FILE, authority.key_der())?;
        let certificate = authority.certificate().clone();
        let identity = Self::assemble(name.to_owned(), key, leaf, (certificate, Some(authority)))?;
        identity.keep(folder, &members)?;
        Ok((identity, true))
    }

    /// The identity of an applicant that was let in, kept in `folder`.
    pub(crate) fn from_grant(
        folder: &StateFolder,
        applicant: &Applicant,
        grant: &Grant,
        expected: &ClusterId,
    ) -> Result<Self, IdentityError> {
        let _lock = folder.lock()?;
        if let Some(identity) = Self::load(folder)? {
            return Err(IdentityError::AlreadyMember { cluster: identity.cluster });
        }
        let key = key_from_der(applicant.key_der())?;
        let (leaf, authority) = (grant.leaf.clone(), grant.authority.clone());
        let identity = Self::assemble(applicant.name().to_owned(), key, leaf, (authority, None))?;
        if identity.cluster != *expected {
            return Err(EnrolError::WrongCluster.into());
        }
        identity.keep(folder, &grant.members)?;
        Ok(identity)
    }

    fn assemble(
        name: String,
        node_key: KeyPair,
        leaf: CertificateDer<'static>,
        (certificate, authority): (CertificateDer<'static>, Option<Authority>),
    ) -> Result<Self, IdentityError> {
        let damaged = |file| IdentityError::Damaged { file };
        let cluster = authority_id(&certificate).ok_or(damaged(AUTHORITY_FILE))?;
        if authority.as_ref().is_some_and(|authority| authority.cluster_id() != cluster) {
            return Err(damaged(AUTHORITY_KEY_FILE));
        }
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).map_err(|_| damaged(AUTHORITY_FILE))?;
        let node = public_key(&node_key).node_id();
        if node_of(&leaf) != Some(node) {
            return Err(damaged(NODE_FILE));
        }
        Ok(Self {
            cluster,
            node,
            name,
            leaf,
            authority_certificate: certificate,
            roots: Arc::new(roots),
            node_key: Arc::new(node_key),
            authority: authority.map(Arc::new),
        })
    }

    fn keep(&self, folder: &StateFolder, members: &MemberList) -> Result<(), IdentityError> {
        folder.write(AUTHORITY_FILE, &self.authority_certificate)?;
        folder.write(NODE_KEY_FILE, self.node_key.serialized_der())?;
        folder.write(NODE_FILE, &self.leaf)?;
        members.save(folder)?;
        let facts = NodeFacts { version: 1, name: self.name.clone() };
        let facts = serde_json::to_vec_pretty(&facts).expect("texts and numbers become JSON");
        Ok(folder.write(NODE_FACTS_FILE, &facts)?)
    }

    /// The device with the authority renews its own certificate when half its time is over.
    fn renewed(self, folder: &StateFolder, now_unix_s: u64) -> Result<Self, IdentityError> {
        let Some(authority) = &self.authority else { return Ok(self) };
        if verify_leaf(&self.roots, &self.leaf, now_unix_s + LEAF_VALID_S / 2).is_ok() {
            return Ok(self);
        }
        let leaf = authority.issue(&public_key(&*self.node_key), now_unix_s)?;
        folder.write(NODE_FILE, &leaf)?;
        Ok(Self { leaf, ..self })
    }

    pub(crate) fn cluster(&self) -> ClusterId {
        self.cluster
    }

    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The authority, on the device that began the cluster.
    pub(crate) fn authority(&self) -> Option<&Authority> {
        self.authority.as_deref()
    }

    /// The certificate of the cluster's authority, as the only root.
    pub(crate) fn roots(&self) -> &Arc<RootCertStore> {
        &self.roots
    }

    /// What this device shows: its certificate and that of the authority, by which an applicant
    /// knows the cluster.
    pub(crate) fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![self.leaf.clone(), self.authority_certificate.clone()]
    }

    pub(crate) fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.node_key.serialize_der()).into()
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("cluster", &self.cluster)
            .field("node", &self.node)
            .field("name", &self.name)
            .field("authority", &self.authority.is_some())
            .finish_non_exhaustive()
    }
}

/// The device that a certificate names; nothing if it is no certificate.
pub(crate) fn node_of(certificate: &CertificateDer<'_>) -> Option<NodeId> {
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    Some(NodeId::of_public_key(&parsed.subject_public_key_info()))
}

/// The cluster whose authority has this certificate.
pub(crate) fn authority_id(certificate: &CertificateDer<'_>) -> Option<ClusterId> {
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    Some(ClusterId::of_public_key(&parsed.subject_public_key_info()))
}

/// Whether `leaf` was issued by the one authority in `roots` and its time is not over.
pub(crate) fn verify_leaf(
    roots: &RootCertStore,
    leaf: &CertificateDer<'_>,
    now_unix_s: u64,
) -> Result<NodeId, rustls::Error> {
    let parsed = ParsedCertificate::try_from(leaf)?;
    let known = rustls::crypto::ring::default_provider().signature_verification_algorithms;
    let now = UnixTime::since_unix_epoch(Duration::from_secs(now_unix_s));
    let verified = verify_server_cert_signed_by_trust_anchor(&parsed, roots, &[], now, known.all);
    verified.map_err(|error| match error {
        // All authorities have the same name, so that another's signature looks like a wrong one.
        rustls::Error::InvalidCertificate(CertificateError::BadSignature) => {
            rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)
        }
        error => error,
    })?;
    node_of(leaf).ok_or(rustls::Error::InvalidCertificate(CertificateError::BadEncoding))
}

/// Random bytes of the system.
pub(crate) fn random_bytes<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    rustls::crypto::ring::default_provider().secure_random.fill(&mut bytes).ok()?;
    Some(bytes)
}

/// The name of this device in the network, as far as it can name a member; else `node`.
pub(crate) fn host_name() -> String {
    #[cfg(unix)]
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    #[cfg(not(unix))]
    let name = std::env::var("COMPUTERNAME").ok();
    name.filter(|name| check_name(name)).unwrap_or_else(|| "node".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::RELEASED_UNIX_S as NOW;
    use super::super::Standing;
    use super::*;

    fn folder() -> (tempfile::TempDir, StateFolder) {
        let outer = tempfile::tempdir().unwrap();
        let folder = StateFolder::open(&outer.path().join("state")).unwrap();
        (outer, folder)
    }

    #[test]
    fn a_cluster_is_made_once() {
        let (_outer, folder) = folder();
        assert!(Identity::load(&folder).unwrap().is_none());
        let (made, new) = Identity::load_or_create_cluster(&folder, "nas", NOW).unwrap();
        assert!(new);
        let (kept, new) = Identity::load_or_create_cluster(&folder, "other", NOW).unwrap();
        assert!(!new);
        assert_eq!(
            (kept.cluster(), kept.node(), kept.name()),
            (made.cluster(), made.node(), "nas")
        );
        let members = MemberList::load(&folder).unwrap();
        assert_eq!(members.standing(&made.node()), Standing::Member);
        for file in [AUTHORITY_KEY_FILE, NODE_KEY_FILE] {
            assert!(folder.read_private(file).unwrap().is_some(), "{file} is private");
        }
    }

    #[test]
    fn what_is_shown_holds_no_key() {
        let (_outer, folder) = folder();
        let (made, _) = Identity::load_or_create_cluster(&folder, "nas", NOW).unwrap();
        let shown = format!("{made:?} {:?}", made.authority());
        assert!(shown.contains("nas") && !shown.to_lowercase().contains("key"), "{shown}");
    }

    #[test]
    fn certificates_of_others_and_old_ones_are_refused() {
        let (_outer, folder) = folder();
        let (made, _) = Identity::load_or_create_cluster(&folder, "nas", NOW).unwrap();
        assert_eq!(verify_leaf(made.roots(), &made.leaf, NOW), Ok(made.node()));
        let end = NOW + LEAF_VALID_S;
        assert!(verify_leaf(made.roots(), &made.leaf, end - 1).is_ok());
        let expired = verify_leaf(made.roots(), &made.leaf, end + 1);
        assert!(expired.is_err_and(|error| format!("{error:?}").contains("Expired")));
        let foreign = Authority::create().unwrap();
        let leaf = foreign.issue(&public_key(&*made.node_key), NOW).unwrap();
        assert!(verify_leaf(made.roots(), &leaf, NOW).is_err());
    }

    #[test]
    fn no_wrong_clock_ends_a_certificate_of_this_release() {
        use std::time::SystemTime;
        let clock = |unix_s| {
            super::super::trusted_unix_s(SystemTime::UNIX_EPOCH + Duration::from_secs(unix_s))
        };
        // 1970, just before and after the release, nine years on, 2100.
        let clocks = [0, NOW - 1, NOW + 1, NOW + LEAF_VALID_S - 1, 4_102_444_800];
        for issuer in clocks {
            let (_outer, folder) = folder();
            let (made, _) =
                Identity::load_or_create_cluster(&folder, "nas", clock(issuer)).unwrap();
            for verifier in clocks {
                let verdict = verify_leaf(made.roots(), &made.leaf, clock(verifier));
                assert_eq!(verdict, Ok(made.node()), "issued at {issuer}, verified at {verifier}");
            }
        }
    }

    #[test]
    fn the_authority_renews_its_own_certificate() {
        let (_outer, folder) = folder();
        let (made, _) = Identity::load_or_create_cluster(&folder, "nas", NOW).unwrap();
        let later = NOW + LEAF_VALID_S * 3 / 5;
        let (renewed, _) = Identity::load_or_create_cluster(&folder, "nas", later).unwrap();
        assert_ne!(renewed.leaf, made.leaf);
        assert!(verify_leaf(renewed.roots(), &renewed.leaf, NOW + LEAF_VALID_S * 3 / 2).is_ok());
    }

    #[test]
    fn a_lost_or_damaged_file_is_named() {
        for (file, content) in [(NODE_KEY_FILE, None), (NODE_FILE, Some(b"junk"))] {
            let (_outer, folder) = folder();
            Identity::load_or_create_cluster(&folder, "nas", NOW).unwrap();
            match content {
                Some(content) => folder.write(file, content).unwrap(),
                None => std::fs::remove_file(folder.file(file)).unwrap(),
            }
            let error = Identity::load(&folder).unwrap_err();
            assert!(matches!(error, IdentityError::Damaged { file: named } if named == file));
        }
    }
}
