//! The caller's side: to an address, and to the one member that is expected there.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, ClientConfig, ClientConnection, Error};

use super::connection::Connection;
use super::endpoint::Endpoint;
use super::handshake::{HandshakeError, WELCOME, complete, read_more};
use super::socket::{Bounded, Deadline, is_timeout, prepare};
use super::verifiers::{WrongCluster, WrongNode};
use crate::identity::{NodeId, TokenAddress};

/// TLS wants a name; members are known by their keys, and this one is neither sent nor compared.
const NAME: &str = "member.motley.invalid";

/// Why no connection came about.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// The name means no address.
    #[error("cannot find the address of {address}; check its spelling, or give the number")]
    Resolve {
        /// What was looked for.
        address: TokenAddress,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Nobody answers there.
    #[error(
        "cannot reach {address}; check that motley runs there and that no firewall stands between"
    )]
    Unreachable {
        /// Where nobody answers.
        address: TokenAddress,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It took too long.
    #[error("{address} did not answer in time")]
    Timeout {
        /// Who was too slow.
        address: TokenAddress,
    },
    /// The connection broke during the first messages.
    #[error("{address} broke off the connection")]
    Broken {
        /// Who broke it off.
        address: TokenAddress,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Something else listens there.
    #[error(
        "{address} does not speak motley's protocol; check the port, and update the older of the two"
    )]
    NotMotley {
        /// Where it listens.
        address: TokenAddress,
        /// What TLS said.
        #[source]
        source: Error,
    },
    /// A member of another cluster answered, or judges us to be one.
    #[error("{address} belongs to another cluster; check the address, or make a token there")]
    WrongCluster {
        /// Who answered.
        address: TokenAddress,
    },
    /// Another member answered.
    #[error("{address} is {} now, not {}", found.short(), expected.short())]
    WrongNode {
        /// Where it was expected.
        address: TokenAddress,
        /// Who was expected.
        expected: NodeId,
        /// Who answered.
        found: NodeId,
    },
    /// A certificate's time is over.
    #[error("the certificate of {} has expired; join the cluster anew there", who(*ours, address))]
    Expired {
        /// The other side.
        address: TokenAddress,
        /// Whether it is this device's certificate.
        ours: bool,
    },
    /// A device was removed from the cluster.
    #[error("{} was removed from the cluster; it needs a new token", who(*ours, address))]
    Removed {
        /// The other side.
        address: TokenAddress,
        /// Whether it is this device that was removed.
        ours: bool,
    },
    /// The member list of one side does not know the other.
    #[error("{} is not in the other's member list; join with a new token", who(*ours, address))]
    NotMember {
        /// The other side.
        address: TokenAddress,
        /// Whether it is this device that is not known.
        ours: bool,
    },
}

impl ConnectError {
    /// Whether nobody of the cluster was met there, so that it may be found elsewhere.
    pub(crate) fn is_absence(&self) -> bool {
        matches!(
            self,
            Self::Resolve { .. }
                | Self::Unreachable { .. }
                | Self::Timeout { .. }
                | Self::Broken { .. }
                | Self::NotMotley { .. }
                | Self::WrongCluster { .. }
        )
    }
}

fn who(ours: bool, address: &TokenAddress) -> String {
    if ours { "this device".to_owned() } else { address.to_string() }
}

/// Connects to the member `expected`, or to any if none is named, within `timeout` altogether. When
/// it returns, the other side has let us in.
pub(crate) fn connect(
    address: &TokenAddress,
    expected: Option<NodeId>,
    endpoint: &Endpoint,
    timeout: Duration,
) -> Result<Connection, ConnectError> {
    let deadline = Deadline::after(timeout);
    let failed = |error| of_handshake(error, address);
    let config = endpoint.client(expected).map_err(|e| failed(HandshakeError::Tls(e)))?;
    let (stream, mut tls) = open(address, config, deadline)?;
    let mut socket = Bounded { stream: &stream, deadline };
    let mut welcome = [0];
    loop {
        match io::Read::read(&mut tls.reader(), &mut welcome) {
            Ok(1) if welcome == [WELCOME] => break,
            Ok(_) => {
                let source = Error::General("the first byte is no welcome".to_owned());
                return Err(ConnectError::NotMotley { address: address.clone(), source });
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                read_more(&mut tls, &mut socket).map_err(failed)?;
            }
            Err(error) => return Err(failed(HandshakeError::Io(error))),
        }
    }
    Ok(Connection::new(stream, tls))
}

/// Opens a connection up to where TLS is ready on this side.
pub(super) fn open(
    address: &TokenAddress,
    config: ClientConfig,
    deadline: Deadline,
) -> Result<(TcpStream, rustls::Connection), ConnectError> {
    let stream = reach(address, deadline)?;
    let failed = |error| of_handshake(error, address);
    prepare(&stream).map_err(|error| failed(HandshakeError::Io(error)))?;
    let name = ServerName::try_from(NAME).expect("a name of letters and points");
    let tls = ClientConnection::new(Arc::new(config), name);
    let mut tls = rustls::Connection::from(tls.map_err(|e| failed(HandshakeError::Tls(e)))?);
    let mut socket = Bounded { stream: &stream, deadline };
    complete(&mut tls, &mut socket).map_err(failed)?;
    Ok((stream, tls))
}

/// Tries all addresses that a name has, one after the other.
fn reach(address: &TokenAddress, deadline: Deadline) -> Result<TcpStream, ConnectError> {
    let candidates: Vec<SocketAddr> = match address {
        TokenAddress::Socket(socket) => vec![*socket],
        TokenAddress::Host { name, port } => (name.as_str(), *port)
            .to_socket_addrs()
            .map_err(|source| ConnectError::Resolve { address: address.clone(), source })?
            .collect(),
    };
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for (position, candidate) in candidates.iter().enumerate() {
        // Each gets its share of what is left, so that a dead first address leaves time for others.
        let share = u32::try_from(candidates.len() - position).unwrap_or(u32::MAX);
        let Ok(left) = deadline.left() else { break };
        match TcpStream::connect_timeout(candidate, left / share) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    match is_timeout(&last) {
        true => Err(ConnectError::Timeout { address: address.clone() }),
        false => Err(ConnectError::Unreachable { address: address.clone(), source: last }),
    }
}

/// What a failed handshake means to people.
pub(super) fn of_handshake(error: HandshakeError, address: &TokenAddress) -> ConnectError {
    let address = address.clone();
    match error {
        HandshakeError::Io(error) if is_timeout(&error) => ConnectError::Timeout { address },
        HandshakeError::Io(source) => ConnectError::Broken { address, source },
        HandshakeError::Tls(Error::AlertReceived(alert)) => of_alert(alert, address),
        HandshakeError::Tls(Error::InvalidCertificate(reason)) => of_certificate(reason, address),
        HandshakeError::Tls(source) => ConnectError::NotMotley { address, source },
    }
}

fn of_alert(alert: AlertDescription, address: TokenAddress) -> ConnectError {
    let ours = true;
    match alert {
        AlertDescription::UnknownCA => ConnectError::WrongCluster { address },
        AlertDescription::CertificateExpired => ConnectError::Expired { address, ours },
        AlertDescription::CertificateRevoked => ConnectError::Removed { address, ours },
        AlertDescription::AccessDenied => ConnectError::NotMember { address, ours },
        alert => ConnectError::NotMotley { address, source: Error::AlertReceived(alert) },
    }
}

fn of_certificate(reason: CertificateError, address: TokenAddress) -> ConnectError {
    let ours = false;
    match &reason {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            return ConnectError::Expired { address, ours };
        }
        CertificateError::Revoked => return ConnectError::Removed { address, ours },
        CertificateError::ApplicationVerificationFailure => {
            return ConnectError::NotMember { address, ours };
        }
        CertificateError::UnknownIssuer => return ConnectError::WrongCluster { address },
        CertificateError::Other(other) if other.0.is::<WrongCluster>() => {
            return ConnectError::WrongCluster { address };
        }
        CertificateError::Other(other) => {
            if let Some(WrongNode { expected, found }) = other.0.downcast_ref() {
                let (expected, found) = (*expected, *found);
                return ConnectError::WrongNode { address, expected, found };
            }
        }
        _ => {}
    }
    ConnectError::NotMotley { address, source: Error::InvalidCertificate(reason) }
}
