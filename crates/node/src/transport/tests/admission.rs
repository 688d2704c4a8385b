//! T-7, T-22: who is let in, who is not, what each is told, and that nobody else notices.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use super::*;
use crate::identity::{RELEASED_UNIX_S, Roster, trusted_unix_s};

/// Connects with what `visitor` shows to a door of `host`, and compares what both sides say.
fn check_refused(
    host: &Arc<Endpoint>,
    visitor: &Arc<Endpoint>,
    because: RefusedBecause,
    told: &str,
) {
    let (listener, arrivals) = listen(host);
    let error = connect(&address(&listener), None, visitor, PATIENCE).unwrap_err().to_string();
    assert_eq!(error.replace(&listener.address().to_string(), "HOST"), told);
    wait_for(&listener, because);
    assert!(arrivals.try_recv().is_err(), "nobody arrives");
}

/// The counters are written by another thread, which may be a moment behind.
fn wait_for(listener: &Listener, because: RefusedBecause) {
    let began = std::time::Instant::now();
    while listener.counters().refused(because) == 0 {
        assert!(began.elapsed() < PATIENCE, "{because:?} was not counted");
        std::thread::yield_now();
    }
}

#[test]
fn a_device_of_another_cluster_is_refused_on_both_sides() {
    let (host, other) = (Device::first(), Device::first());
    let visitor = other.endpoint(Standing::Member, NOW);
    // The visitor notices first, and says so to the host.
    check_refused(
        &host.endpoint(Standing::Member, NOW),
        &visitor,
        RefusedBecause::Gone,
        "HOST belongs to another cluster; check the address, or make a token there",
    );
}

#[test]
fn a_visitor_that_believes_everyone_is_still_refused() {
    let (host, other) = (Device::first(), Device::first());
    let (listener, arrivals) = listen(&host.endpoint(Standing::Member, NOW));
    let error = foreign::visit(&listener, Some(&other.identity)).unwrap_err();
    assert!(error.contains("UnknownCA"), "{error}");
    wait_for(&listener, RefusedBecause::WrongCertificate);
    let error = foreign::visit(&listener, None).unwrap_err();
    assert!(error.contains("CertificateRequired"), "{error}");
    wait_for(&listener, RefusedBecause::NoCertificate);
    assert!(arrivals.try_recv().is_err(), "nobody arrives");
}

#[test]
fn a_removed_and_an_unknown_member_are_told_so() {
    let host = Device::first();
    let visitor = Device::joined(&host, "second", NOW).endpoint(Standing::Member, NOW);
    check_refused(
        &host.endpoint(Standing::Removed, NOW),
        &visitor,
        RefusedBecause::Removed,
        "this device was removed from the cluster; it needs a new token",
    );
    check_refused(
        &host.endpoint(Standing::Unknown, NOW),
        &visitor,
        RefusedBecause::NotMember,
        "this device is not in the other's member list; join with a new token",
    );
}

#[test]
fn an_expired_certificate_is_refused() {
    let host = Device::first();
    let eleven_years = 11 * 31_557_600;
    let visitor = Device::joined(&host, "second", NOW - eleven_years);
    check_refused(
        &host.endpoint(Standing::Member, NOW),
        &visitor.endpoint(Standing::Member, NOW),
        RefusedBecause::Expired,
        "the certificate of this device has expired; join the cluster anew there",
    );
}

#[test]
fn clocks_of_1970_and_2100_do_not_matter() {
    let clock =
        |unix_s| trusted_unix_s(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(unix_s));
    let (begin, end) = (clock(0), clock(4_102_444_800));
    let host = Device::first();
    let visitor = Device::joined(&host, "second", end);
    for (one, other) in [(begin, end), (end, begin), (RELEASED_UNIX_S + 9 * 31_557_600, begin)] {
        let (listener, arrivals) = listen(&host.endpoint(Standing::Member, one));
        let endpoint = visitor.endpoint(Standing::Member, other);
        connect(&address(&listener), None, &endpoint, PATIENCE).unwrap();
        assert!(matches!(arrivals.recv_timeout(PATIENCE), Ok(Arrival::Member(..))));
    }
}

#[test]
fn removal_holds_for_the_next_connection() {
    let host = Device::first();
    let second = Device::joined(&host, "second", NOW);
    let roster = Arc::new(Roster::new(&host.folder));
    let check = Arc::clone(&roster);
    let endpoint = Endpoint::with(
        &host.identity,
        Arc::new(move |node| check.standing(node)),
        Arc::new(|| NOW),
    );
    let (listener, _arrivals) = listen(&Arc::new(endpoint.unwrap()));
    let visitor = second.endpoint(Standing::Member, NOW);
    connect(&address(&listener), None, &visitor, PATIENCE).unwrap();
    let mut members = MemberList::load(&host.folder).unwrap();
    members.remove(&second.node()).unwrap();
    members.save(&host.folder).unwrap();
    let refused = connect(&address(&listener), None, &visitor, PATIENCE).unwrap_err();
    assert!(matches!(refused, ConnectError::Removed { ours: true, .. }), "{refused}");
}

#[test]
fn another_member_than_the_one_called_is_noticed() {
    let host = Device::first();
    let second = Device::joined(&host, "second", NOW);
    let (listener, _arrivals) = listen(&host.endpoint(Standing::Member, NOW));
    let endpoint = second.endpoint(Standing::Member, NOW);
    let error = connect(&address(&listener), Some(second.node()), &endpoint, PATIENCE).unwrap_err();
    assert!(
        matches!(error, ConnectError::WrongNode { expected, found, .. }
            if expected == second.node() && found == host.node()),
        "{error}"
    );
}

#[test]
fn what_is_no_tls_is_closed() {
    let host = Device::first();
    let (listener, arrivals) = listen(&host.endpoint(Standing::Member, NOW));
    for garbage in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), &[0; 64], &[0x16, 3, 1, 0xff, 0xff, 1]] {
        let mut stream = TcpStream::connect(listener.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(garbage).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        // Closed in order or reset: both are an end.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() < 64, "an alert at most");
    }
    wait_for(&listener, RefusedBecause::NotTls);
    assert!(arrivals.try_recv().is_err());
}

#[test]
fn who_says_nothing_is_closed_and_disturbs_nobody() {
    let host = Device::first();
    let second = Device::joined(&host, "second", NOW);
    let (listener, arrivals) = listen(&host.endpoint(Standing::Member, NOW));
    let began = std::time::Instant::now();
    let mut silent: Vec<TcpStream> =
        (0..8).map(|_| TcpStream::connect(listener.address()).unwrap()).collect();
    // One of them begins a handshake and stops.
    silent[0].write_all(&[0x16, 3, 1]).unwrap();
    let endpoint = second.endpoint(Standing::Member, NOW);
    connect(&address(&listener), None, &endpoint, PATIENCE).unwrap();
    assert!(matches!(arrivals.recv_timeout(PATIENCE), Ok(Arrival::Member(..))));
    assert!(began.elapsed() < limits::HANDSHAKE_TIMEOUT, "members do not wait for the silent");
    for stream in &mut silent {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert!(began.elapsed() < limits::HANDSHAKE_TIMEOUT + PATIENCE);
    wait_for(&listener, RefusedBecause::Timeout);
}

#[test]
fn one_address_cannot_take_every_place_at_the_door() {
    let host = Device::first();
    let (listener, _arrivals) = listen(&host.endpoint(Standing::Member, NOW));
    let crowd: Vec<TcpStream> = (0..=limits::HANDSHAKES_PER_ADDRESS_MAX)
        .map(|_| TcpStream::connect(listener.address()).unwrap())
        .collect();
    wait_for(&listener, RefusedBecause::Busy);
    assert_eq!(crowd.len(), limits::HANDSHAKES_PER_ADDRESS_MAX + 1);
}

#[test]
fn both_families_reach_one_door() {
    let host = Device::first();
    let second = Device::joined(&host, "second", NOW);
    let door = "[::]:0".parse().unwrap();
    let endpoint = host.endpoint(Standing::Member, NOW);
    let Ok(listener) = Listener::start(door, endpoint, |_| {}) else {
        return; // This machine has no IPv6.
    };
    let endpoint = second.endpoint(Standing::Member, NOW);
    let port = listener.address().port();
    for text in [format!("[::1]:{port}"), format!("127.0.0.1:{port}"), format!("localhost:{port}")]
    {
        connect(&text.parse().unwrap(), Some(host.node()), &endpoint, PATIENCE).unwrap();
    }
}

#[test]
fn a_closed_door_and_a_dead_address_are_told_apart() {
    let host = Device::first();
    let endpoint = host.endpoint(Standing::Member, NOW);
    let (listener, _arrivals) = listen(&endpoint);
    let closed = address(&listener);
    drop(listener);
    let error = connect(&closed, None, &endpoint, PATIENCE).unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    // A socket that listens and never answers.
    let deaf = std::net::TcpListener::bind(loopback()).unwrap();
    let deaf = TokenAddress::Socket(deaf.local_addr().unwrap());
    let error = connect(&deaf, None, &endpoint, Duration::from_millis(50)).unwrap_err();
    assert!(
        matches!(error, ConnectError::Timeout { .. } | ConnectError::Unreachable { .. }),
        "{error}"
    );
}

/// A visitor that is not made by this project: it checks nothing and shows what it is given.
mod foreign {
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme};

    use super::*;

    #[derive(Debug)]
    struct BelievesAll;

    impl ServerCertVerifier for BelievesAll {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }
    }

    /// Visits, sends a secret at once, and tells how the visit ends.
    pub(super) fn visit(listener: &Listener, shows: Option<&Identity>) -> Result<Vec<u8>, String> {
        let builder =
            ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_protocol_versions(&[&rustls::version::TLS13])
                .unwrap()
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(BelievesAll));
        let mut config = match shows {
            Some(identity) => {
                builder.with_client_auth_cert(identity.chain(), identity.private_key()).unwrap()
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"motley/1".to_vec()];
        let name = ServerName::try_from("localhost").unwrap();
        let mut tls = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut socket = TcpStream::connect(listener.address()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut stream = rustls::Stream::new(&mut tls, &mut socket);
        let mut answer = Vec::new();
        stream
            .write_all(b"let me in")
            .and_then(|()| stream.flush())
            .and_then(|()| stream.read_to_end(&mut answer))
            .map_err(|error| error.to_string() + &format!(" {error:?}"))?;
        Ok(answer)
    }
}
