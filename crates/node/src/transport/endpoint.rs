//! What a device shows to others, and whom it believes.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::crypto::{CryptoProvider, ring};
use rustls::server::NoServerSessionStorage;
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig};

use super::verifiers::{MembersOnly, Membership, ThisCluster, ThisMember};
use crate::identity::{ClusterId, Identity, NodeId, Roster, Standing, trusted_unix_s};

/// The protocol between members.
pub(crate) const MEMBER_PROTOCOL: &[u8] = b"motley/1";

/// The protocol of an applicant with a token.
pub(crate) const ENROL_PROTOCOL: &[u8] = b"motley-enrol/1";

/// What the member list says about a device, now.
pub(crate) type MemberCheck = Arc<dyn Fn(&NodeId) -> Standing + Send + Sync>;

/// Seconds since 1970, as [`trusted_unix_s`] reads them.
pub(crate) type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Why a device cannot show its identity.
#[derive(Debug, thiserror::Error)]
#[error("the device's key and certificate cannot be used")]
pub(crate) struct EndpointError(#[from] rustls::Error);

/// A member's side of all its connections.
pub(crate) struct Endpoint {
    identity: Identity,
    membership: Membership,
    member_server: Arc<ServerConfig>,
    enrol_server: Arc<ServerConfig>,
}

impl Endpoint {
    /// A member that believes the list in `roster` and the clock of its system.
    pub(crate) fn new(identity: &Identity, roster: Arc<Roster>) -> Result<Self, EndpointError> {
        let check: MemberCheck = Arc::new(move |node| roster.standing(node));
        let clock: Clock = Arc::new(|| trusted_unix_s(SystemTime::now()));
        Self::with(identity, check, clock)
    }

    /// As [`Self::new`], with a list and a clock of the caller's choice.
    pub(crate) fn with(
        identity: &Identity,
        check: MemberCheck,
        clock: Clock,
    ) -> Result<Self, EndpointError> {
        let provider = provider();
        let roots = Arc::clone(identity.roots());
        let membership = Membership { roots, check, clock, provider };
        let members_only = Arc::new(MembersOnly(membership.clone()));
        let server = || {
            ServerConfig::builder_with_provider(Arc::clone(&membership.provider))
                .with_protocol_versions(&[&TLS13])
        };
        let show = (identity.chain(), identity.private_key());
        let mut member = server()?
            .with_client_cert_verifier(members_only)
            .with_single_cert(show.0.clone(), show.1.clone_key())?;
        let mut enrol = server()?.with_no_client_auth().with_single_cert(show.0, show.1)?;
        for (config, protocol) in [(&mut member, MEMBER_PROTOCOL), (&mut enrol, ENROL_PROTOCOL)] {
            config.alpn_protocols = vec![protocol.to_vec()];
            // A resumed session would not be asked for its certificate again.
            config.send_tls13_tickets = 0;
            config.session_storage = Arc::new(NoServerSessionStorage {});
        }
        let (member_server, enrol_server) = (Arc::new(member), Arc::new(enrol));
        Ok(Self { identity: identity.clone(), membership, member_server, enrol_server })
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// What the member list says about a device, now.
    pub(crate) fn standing(&self, node: &NodeId) -> Standing {
        (self.membership.check)(node)
    }

    pub(crate) fn now_unix_s(&self) -> u64 {
        (self.membership.clock)()
    }

    pub(super) fn member_server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.member_server)
    }

    pub(super) fn enrol_server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.enrol_server)
    }

    pub(super) fn client(&self, expected: Option<NodeId>) -> Result<ClientConfig, rustls::Error> {
        let verifier = ThisMember { membership: self.membership.clone(), expected };
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&self.membership.provider))
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(self.identity.chain(), self.identity.private_key())?;
        harden(&mut config, MEMBER_PROTOCOL);
        Ok(config)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// An applicant's side: it shows nothing and believes the cluster of its token.
pub(super) fn applicant_client(
    cluster: ClusterId,
    now_unix_s: u64,
) -> Result<ClientConfig, rustls::Error> {
    let provider = provider();
    let verifier = ThisCluster { cluster, provider: Arc::clone(&provider), now_unix_s };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    harden(&mut config, ENROL_PROTOCOL);
    Ok(config)
}

fn harden(config: &mut ClientConfig, protocol: &[u8]) {
    config.alpn_protocols = vec![protocol.to_vec()];
    // Members are known by key, not by name, and a name would be sent in the clear.
    config.enable_sni = false;
    config.resumption = rustls::client::Resumption::disabled();
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
