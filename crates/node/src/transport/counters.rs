//! How many were let in, and why others were not.

use std::sync::atomic::{AtomicU64, Ordering};

use rustls::{AlertDescription, CertificateError, Error};

/// Why a visitor was refused. The names are those of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusedBecause {
    /// It does not speak TLS 1.3 as we do.
    NotTls,
    /// It speaks TLS, but none of our protocols.
    Protocol,
    /// It was too slow.
    Timeout,
    /// It went away before it had shown who it is.
    Gone,
    /// It showed no certificate.
    NoCertificate,
    /// It showed a certificate of another authority, or one without its key.
    WrongCertificate,
    /// Its certificate's time is over.
    Expired,
    /// It was removed from the cluster.
    Removed,
    /// Its certificate is right, but the member list does not know it.
    NotMember,
    /// Too many others were at the door.
    Busy,
}

impl RefusedBecause {
    pub(crate) const ALL: [Self; 10] = [
        Self::NotTls,
        Self::Protocol,
        Self::Timeout,
        Self::Gone,
        Self::NoCertificate,
        Self::WrongCertificate,
        Self::Expired,
        Self::Removed,
        Self::NotMember,
        Self::Busy,
    ];

    /// The label in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::NotTls => "not_tls",
            Self::Protocol => "protocol",
            Self::Timeout => "timeout",
            Self::Gone => "gone",
            Self::NoCertificate => "no_certificate",
            Self::WrongCertificate => "wrong_certificate",
            Self::Expired => "expired",
            Self::Removed => "removed",
            Self::NotMember => "not_member",
            Self::Busy => "busy",
        }
    }

    /// What a TLS error of a handshake means.
    pub(crate) fn of_tls(error: &Error) -> Self {
        match error {
            Error::NoCertificatesPresented => Self::NoCertificate,
            Error::NoApplicationProtocol
            | Error::AlertReceived(AlertDescription::NoApplicationProtocol) => Self::Protocol,
            Error::InvalidCertificate(reason) => match reason {
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    Self::Expired
                }
                CertificateError::Revoked => Self::Removed,
                CertificateError::ApplicationVerificationFailure => Self::NotMember,
                _ => Self::WrongCertificate,
            },
            Error::AlertReceived(_) => Self::Gone,
            _ => Self::NotTls,
        }
    }
}

/// Counts of one listener since its start.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    members: AtomicU64,
    applicants: AtomicU64,
    refused: [AtomicU64; RefusedBecause::ALL.len()],
}

impl Counters {
    pub(crate) fn members(&self) -> u64 {
        self.members.load(Ordering::Relaxed)
    }

    pub(crate) fn applicants(&self) -> u64 {
        self.applicants.load(Ordering::Relaxed)
    }

    pub(crate) fn refused(&self, because: RefusedBecause) -> u64 {
        self.refused[because as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn count_member(&self) {
        self.members.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_applicant(&self) {
        self.applicants.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_refused(&self, because: RefusedBecause) {
        self.refused[because as usize].fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_count_and_name() {
        let counters = Counters::default();
        for (position, because) in RefusedBecause::ALL.into_iter().enumerate() {
            assert_eq!(because as usize, position);
            counters.count_refused(because);
            assert_eq!(counters.refused(because), 1);
        }
        let names: std::collections::BTreeSet<_> =
            RefusedBecause::ALL.iter().map(|because| because.name()).collect();
        assert_eq!(names.len(), RefusedBecause::ALL.len());
    }
}
