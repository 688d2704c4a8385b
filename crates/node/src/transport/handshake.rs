//! The first messages of a connection: which protocol, who it is, and goodbye to the rest.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};

use rustls::pki_types::CertificateDer;
use rustls::server::{Accepted, Acceptor};

use super::connection::Connection;
use super::counters::RefusedBecause;
use super::endpoint::{ENROL_PROTOCOL, Endpoint, MEMBER_PROTOCOL};
use super::limits;
use super::listener::Arrival;
use super::socket::{Bounded, Deadline, is_timeout, prepare};
use crate::identity::{NodeId, node_of};

/// Sent by the listener's side once it has let a member in. In TLS 1.3 the caller is ready before
/// its certificate was looked at; this byte tells it the outcome.
pub(super) const WELCOME: u8 = b'+';

/// Why a handshake ended early.
#[derive(Debug)]
pub(super) enum HandshakeError {
    Io(io::Error),
    Tls(rustls::Error),
}

impl HandshakeError {
    fn because(&self) -> RefusedBecause {
        match self {
            Self::Tls(error) => RefusedBecause::of_tls(error),
            Self::Io(error) if is_timeout(error) => RefusedBecause::Timeout,
            Self::Io(_) => RefusedBecause::Gone,
        }
    }
}

/// Lets a visitor in or tells it why not. Nothing but TLS's own messages is believed before it is
/// known who it is.
pub(super) fn receive_visitor(
    stream: TcpStream,
    endpoint: &Endpoint,
) -> Result<Arrival, RefusedBecause> {
    prepare(&stream).map_err(|_| RefusedBecause::Gone)?;
    let deadline = Deadline::after(limits::HANDSHAKE_TIMEOUT);
    match greet(&mut Bounded { stream: &stream, deadline }, endpoint) {
        Ok((tls, None)) => Ok(Arrival::Applicant(Connection::new(stream, tls))),
        Ok((tls, Some(node))) => Ok(Arrival::Member(Connection::new(stream, tls), node)),
        Err(because) => {
            say_goodbye(&stream);
            Err(because)
        }
    }
}

/// The established state, and the member on the other side; nothing for an applicant.
type Known = (rustls::Connection, Option<NodeId>);

fn greet(socket: &mut Bounded<'_>, endpoint: &Endpoint) -> Result<Known, RefusedBecause> {
    let accepted = read_hello(socket)?;
    let offered = accepted.client_hello().alpn();
    let applicant = offered.is_some_and(|mut offered| offered.any(|p| p == ENROL_PROTOCOL));
    // Whoever offers none of our protocols is refused by the members' configuration.
    let (config, protocol) = match applicant {
        true => (endpoint.enrol_server(), ENROL_PROTOCOL),
        false => (endpoint.member_server(), MEMBER_PROTOCOL),
    };
    let server = accepted.into_connection(config).map_err(|(error, mut alert)| {
        // The visitor is refused whether or not it hears why.
        let _ = alert.write_all(socket);
        RefusedBecause::of_tls(&error)
    })?;
    let mut tls = rustls::Connection::from(server);
    complete(&mut tls, socket).map_err(|error| error.because())?;
    // TLS lets visitors through that name no protocol at all.
    if tls.alpn_protocol() != Some(protocol) {
        return Err(RefusedBecause::Protocol);
    }
    if applicant {
        return Ok((tls, None));
    }
    let certificate = tls.peer_certificates().and_then(<[CertificateDer<'_>]>::first);
    let node = certificate.and_then(node_of).ok_or(RefusedBecause::NoCertificate)?;
    let welcomed = tls.writer().write_all(&[WELCOME]).and_then(|()| flush(&mut tls, socket));
    welcomed.map_err(|error| HandshakeError::Io(error).because())?;
    Ok((tls, Some(node)))
}

fn read_hello(socket: &mut Bounded<'_>) -> Result<Accepted, RefusedBecause> {
    let mut acceptor = Acceptor::default();
    loop {
        match acceptor.read_tls(socket) {
            Ok(0) => return Err(RefusedBecause::Gone),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(HandshakeError::Io(error).because()),
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => return Ok(accepted),
            Ok(None) => {}
            Err((error, mut alert)) => {
                // The visitor is refused whether or not it hears why.
                let _ = alert.write_all(socket);
                return Err(RefusedBecause::of_tls(&error));
            }
        }
    }
}

/// Exchanges messages until both sides are ready, or one of them refused.
pub(super) fn complete(
    tls: &mut rustls::Connection,
    socket: &mut Bounded<'_>,
) -> Result<(), HandshakeError> {
    while tls.is_handshaking() {
        flush(tls, socket).map_err(HandshakeError::Io)?;
        if !tls.is_handshaking() {
            break;
        }
        read_more(tls, socket)?;
    }
    flush(tls, socket).map_err(HandshakeError::Io)
}

/// Takes what the socket has. A refusal of ours is told to the other side at once.
pub(super) fn read_more(
    tls: &mut rustls::Connection,
    socket: &mut Bounded<'_>,
) -> Result<(), HandshakeError> {
    match tls.read_tls(socket) {
        Ok(0) => return Err(HandshakeError::Io(io::ErrorKind::UnexpectedEof.into())),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
        Err(error) => return Err(HandshakeError::Io(error)),
    }
    tls.process_new_packets().map(|_| ()).map_err(|error| {
        let _ = flush(tls, socket);
        HandshakeError::Tls(error)
    })
}

fn flush(tls: &mut rustls::Connection, socket: &mut Bounded<'_>) -> io::Result<()> {
    while tls.wants_write() {
        match tls.write_tls(socket) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Reads on for a moment, so that what was sent last arrives before the connection ends.
fn say_goodbye(stream: &TcpStream) {
    let deadline = Deadline::after(limits::FAREWELL_TIMEOUT);
    let mut socket = Bounded { stream, deadline };
    if stream.shutdown(Shutdown::Write).is_err() {
        return;
    }
    let (mut buffer, mut left) = ([0; 4096], limits::FAREWELL_BYTES_MAX);
    while let Ok(count) = socket.read(&mut buffer) {
        left = left.saturating_sub(count);
        if count == 0 || left == 0 {
            return;
        }
    }
}
