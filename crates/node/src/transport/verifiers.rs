//! Whom TLS believes: a member's certificate must be from our authority, in time, and of a device
//! that the member list knows; an applicant believes whoever belongs to the cluster of its token.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme,
};

use super::endpoint::{Clock, MemberCheck};
use crate::identity::{ClusterId, NodeId, Standing, authority_id, verify_leaf};

/// Another device answered than the one that was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("called {}, {} answered", expected.short(), found.short())]
pub(crate) struct WrongNode {
    pub(crate) expected: NodeId,
    pub(crate) found: NodeId,
}

/// The other side belongs to another cluster than the token names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other side belongs to another cluster")]
pub(crate) struct WrongCluster;

/// What both directions between members check.
#[derive(Clone)]
pub(crate) struct Membership {
    pub(crate) roots: Arc<RootCertStore>,
    pub(crate) check: MemberCheck,
    pub(crate) clock: Clock,
    pub(crate) provider: Arc<CryptoProvider>,
}

impl Membership {
    fn verify(&self, certificate: &CertificateDer<'_>) -> Result<NodeId, Error> {
        let node = verify_leaf(&self.roots, certificate, (self.clock)())?;
        match (self.check)(&node) {
            Standing::Member => Ok(node),
            Standing::Removed => Err(CertificateError::Revoked.into()),
            Standing::Unknown => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership").finish_non_exhaustive()
    }
}

/// The listener's side: members only.
#[derive(Debug)]
pub(crate) struct MembersOnly(pub(crate) Membership);

impl ClientCertVerifier for MembersOnly {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // Visitors have one certificate; nothing helps them to choose.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.0.verify(end_entity).map(|_| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.schemes()
    }
}

/// The caller's side: the one member that was called, or any if no one in particular was.
#[derive(Debug)]
pub(crate) struct ThisMember {
    pub(crate) membership: Membership,
    pub(crate) expected: Option<NodeId>,
}

impl ServerCertVerifier for ThisMember {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let found = self.membership.verify(end_entity)?;
        match self.expected {
            Some(expected) if expected != found => Err(other(WrongNode { expected, found })),
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.membership.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.membership.schemes()
    }
}

/// An applicant's side: a member of the cluster whose authority's key has the hash in the token.
#[derive(Debug)]
pub(crate) struct ThisCluster {
    pub(crate) cluster: ClusterId,
    pub(crate) provider: Arc<CryptoProvider>,
    pub(crate) now_unix_s: u64,
}

impl ServerCertVerifier for ThisCluster {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let ours =
            |certificate: &&CertificateDer<'_>| authority_id(certificate) == Some(self.cluster);
        let authority = intermediates.iter().find(ours).ok_or_else(|| other(WrongCluster))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        verify_leaf(&roots, end_entity, self.now_unix_s)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// No configuration of ours offers TLS 1.2, so this is never asked.
fn no_tls12() -> Error {
    Error::General("TLS 1.2 is not offered".to_owned())
}

fn other(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error))))
}
