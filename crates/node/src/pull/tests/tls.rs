//! Downloads over TLS and through proxies.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use expect_test::expect;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::{
    RootCertStore, ServerConfig, ServerConnection, StreamOwned, SupportedProtocolVersion,
};

use super::server::{body, status};
use super::{Rig, file};
use crate::pull::client::Ways;
use crate::pull::proxy::Proxies;
use crate::pull::trust;

/// A host that has a certificate, and what believes that.
struct Secure {
    port: u16,
    authorities: RootCertStore,
}

/// Serves the file over TLS, to as many as come, as long as the tests run.
fn secure_server(name: &str, versions: &[&'static SupportedProtocolVersion]) -> Secure {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let certificate = CertificateDer::from(made.cert.der().to_vec());
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let mut authorities = RootCertStore::empty();
    authorities.add(certificate.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key.into())
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let config = Arc::clone(&config);
            // A client that believes nobody leaves.
            thread::spawn(move || drop(answer(config, stream)));
        }
    });
    Secure { port, authorities }
}

fn answer(config: Arc<ServerConfig>, stream: TcpStream) -> io::Result<()> {
    let connection = ServerConnection::new(config).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, stream);
    let mut lines = BufReader::new(&mut stream).lines();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    drop(lines);
    let file = file();
    write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", file.len())?;
    stream.write_all(&file)?;
    stream.conn.send_close_notify();
    stream.flush()
}

fn ways(authorities: RootCertStore, proxy: Option<&str>) -> Ways {
    let variable = |name: &str| proxy.filter(|_| name == "all_proxy").map(str::to_owned);
    let proxies = Proxies::of_variables(variable).unwrap();
    Ways { tls: Arc::new(trust::config(authorities)), proxies }
}

/// Tunnels to a port of this machine, whatever is asked for, for those with the right password.
fn proxy_to(port: u16) -> Rig {
    Rig::new(move |asked, stream| {
        if asked.header("proxy-authorization") != Some("Basic bmFtZTp3b3Jk") {
            return status(stream, "407 Proxy Authentication Required");
        }
        stream.write_all(b"HTTP/1.1 200 Connection established\r\nvia: test\r\n\r\n")?;
        let mut inner = TcpStream::connect(("127.0.0.1", port))?;
        let (mut from, mut to) = (stream.try_clone()?, inner.try_clone()?);
        let forward = thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            to.shutdown(Shutdown::Write)
        });
        io::copy(&mut inner, stream)?;
        stream.shutdown(Shutdown::Both)?;
        forward.join().expect("it copies").or(Ok(()))
    })
}

#[test]
fn both_versions_of_tls_are_spoken() {
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        let server = secure_server("localhost", &[version]);
        let mut rig = Rig::new(|_, _| Ok(()));
        rig.ways = ways(server.authorities, None);
        let url = format!("https://localhost:{}/m.gguf", server.port);
        assert_eq!(rig.fetch_from(&url).unwrap(), file(), "{version:?}");
    }
}

#[test]
fn strangers_and_impostors_are_not_believed() {
    let server = secure_server("elsewhere.test", &[&rustls::version::TLS13]);
    let mut rig = Rig::new(|_, _| Ok(()));
    rig.failures_max = 0;
    let url = format!("https://localhost:{}/m.gguf", server.port);
    rig.check_failed_from(
        &url,
        &expect!["no secure connection to localhost: invalid peer certificate: UnknownIssuer"],
    );
    rig.ways = ways(server.authorities, None);
    let told = format!("{:#}", anyhow::Error::new(rig.fetch_from(&url).unwrap_err()));
    assert!(told.contains("certificate not valid for name \"localhost\""), "{told}");
}

#[test]
fn a_proxy_carries_what_it_cannot_read() {
    let server = secure_server("models.test", &[&rustls::version::TLS13]);
    let mut rig = proxy_to(server.port);
    let proxy = |user: &str| format!("http://{user}{}", rig.server.address);
    let (right, wrong) = (proxy("name:word@"), proxy(""));
    rig.ways = ways(server.authorities.clone(), Some(&right));
    assert_eq!(rig.fetch_from("https://models.test/m.gguf").unwrap(), file());
    assert_eq!(rig.server.asked()[0].target, "models.test:443");
    assert_eq!(rig.server.asked()[0].header("authorization"), None);
    rig.ways = ways(server.authorities, Some(&wrong));
    rig.failures_max = 0;
    rig.check_failed_from(
        "https://models.test/m.gguf",
        &expect!["the proxy 127.0.0.1 does not let us reach models.test: it wants a name and password, http://NAME:PASSWORD@HOST"],
    );
}

#[test]
fn a_proxy_is_told_whole_addresses_of_plain_files() {
    let mut rig = Rig::new(|_, stream| body(stream, &file()));
    rig.ways = ways(RootCertStore::empty(), Some(&format!("name:word@{}", rig.server.address)));
    assert_eq!(rig.fetch_from("http://models.test:81/a/m.gguf?x=1").unwrap(), file());
    let asked = &rig.server.asked()[0];
    assert_eq!(asked.target, "http://models.test:81/a/m.gguf?x=1");
    assert_eq!(asked.header("host"), Some("models.test:81"));
    assert_eq!(asked.header("proxy-authorization"), Some("Basic bmFtZTp3b3Jk"));
}

/// T-11: a proxy stands in a network of its own, into which no redirect may lead.
#[test]
fn no_redirect_leads_into_a_proxys_network() {
    for place in ["http://10.0.0.1/m.gguf", "http://printer/m.gguf", "http://nas.local/m.gguf"] {
        let mut rig =
            Rig::new(move |_, stream| status(stream, &format!("302 Found\nlocation: {place}")));
        rig.ways = ways(RootCertStore::empty(), Some(&rig.server.address.to_string()));
        let told = rig.fetch_from("http://models.test/m.gguf").unwrap_err().to_string();
        assert!(told.contains("which is not on the internet"), "{told}");
        assert_eq!(rig.server.asked().len(), 1);
    }
}
