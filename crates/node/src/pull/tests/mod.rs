//! Downloads from a server that misbehaves (T-11).

mod server;
mod tls;

use std::fs;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use data_encoding::HEXLOWER;
use expect_test::{Expect, expect};
use sha2::{Digest as _, Sha256};

use self::server::{Asked, Server, body, drip, head, range, range_head, stall, status};
use super::address::Address;
use super::client::{Client, Patience, Token, Ways};
use super::progress::Meter;
use super::proxy::Proxies;
use super::transfer::{FetchError, Fetcher, Knobs, Wanted};
use super::trust;
use crate::blocks::Disk;

const ETAG: &str = "\"one\"";
const FILE_BYTES: usize = 100_000;
const PIECE_BYTES: usize = 16_000;

/// Bytes that begin as a model and never repeat.
fn file() -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    let mut state = 1_u32;
    while bytes.len() < FILE_BYTES {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bytes.push(state.to_be_bytes()[0]);
    }
    bytes
}

fn sha256(bytes: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::digest(bytes))
}

/// A server, a folder, and what is wanted of the one for the other.
struct Rig {
    server: Server,
    folder: tempfile::TempDir,
    bytes: Option<u64>,
    sha256: Option<String>,
    disk: Disk,
    failures_max: u32,
    ways: Ways,
}

impl Rig {
    fn new(
        answer: impl Fn(&Asked, &mut TcpStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self {
            server: Server::start(answer),
            folder: tempfile::tempdir().unwrap(),
            bytes: None,
            sha256: None,
            disk: Disk::with(0, |_| Ok(u64::MAX)),
            failures_max: 3,
            ways: direct(),
        }
    }

    /// Fetches the file and gives it its name.
    fn fetch(&self) -> Result<Vec<u8>, FetchError> {
        self.fetch_from(&self.server.url("/m.gguf"))
    }

    fn fetch_from(&self, url: &str) -> Result<Vec<u8>, FetchError> {
        let address = Address::parse(url).unwrap();
        let patience =
            Patience { connect: Duration::from_secs(5), stall: Duration::from_millis(300) };
        let fetcher = Fetcher {
            client: Client::new(address.origin(), Token::new("hf_secret"), patience, &self.ways),
            folder: self.folder.path().to_owned(),
            disk: self.disk.clone(),
            knobs: Knobs {
                connections: 3,
                piece_bytes: PIECE_BYTES as u64,
                failures_max: self.failures_max,
                progress_bytes: 10_000,
                pause_first: Duration::from_millis(1),
                pause_max: Duration::from_millis(1),
                retry_after_max: Duration::from_secs(2),
                note_bytes: 20_000,
            },
            meter: Arc::new(Meter::silent()),
        };
        let name = "m.gguf".parse().unwrap();
        let wanted = Wanted { address, name, bytes: self.bytes, sha256: self.sha256.clone() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let path = self.folder.path().join("m.gguf");
        runtime.block_on(fetcher.fetch(&wanted))?.finish(&path)?;
        Ok(fs::read(path).unwrap())
    }

    /// Fails, tells why, and leaves the folder empty.
    fn check_refused(&self, expected: &Expect) {
        self.check_failed(expected);
        assert_eq!(names(self.folder.path()), [""; 0], "something is left on disk");
    }

    fn check_failed(&self, expected: &Expect) {
        self.check_failed_from(&self.server.url("/m.gguf"), expected);
    }

    fn check_failed_from(&self, url: &str, expected: &Expect) {
        let error = anyhow::Error::new(self.fetch_from(url).expect_err("it is refused"));
        let mut causes: Vec<String> = error.chain().map(ToString::to_string).collect();
        causes.dedup();
        expected.assert_eq(&causes.join(": "));
    }
}

/// Without proxies, believing nobody.
fn direct() -> Ways {
    let tls = Arc::new(trust::config(rustls::RootCertStore::empty()));
    Ways { tls, proxies: Proxies::default() }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// How many bytes all ranges of requests together asked for, the first look left out.
fn asked_bytes(server: &Server) -> usize {
    let ranges = server.asked().into_iter().filter_map(|asked| asked.range());
    ranges.filter(|range| *range != (0, 3)).map(|(first, last)| last + 1 - first).sum()
}

#[test]
fn pieces_are_fetched_side_by_side_and_make_the_file() {
    let mut rig = Rig::new(|asked, stream| range(asked, stream, &file(), ETAG));
    rig.sha256 = Some(sha256(&file()));
    assert_eq!(rig.fetch().unwrap(), file());
    assert_eq!(names(rig.folder.path()), ["m.gguf"]);
    assert_eq!(asked_bytes(&rig.server), FILE_BYTES);
    for asked in &rig.server.asked()[1..] {
        assert_eq!(asked.header("if-range"), Some(ETAG));
    }
}

#[test]
fn a_server_without_ranges_gives_one_stream() {
    let rig = Rig::new(|_, stream| body(stream, &file()));
    assert_eq!(rig.fetch().unwrap(), file());
    assert_eq!(rig.server.asked().len(), 1);
}

#[test]
fn a_body_that_is_cut_off_is_gone_on_with() {
    let rig = Rig::new(|asked, stream| match asked.range() {
        Some((0, 3)) => range(asked, stream, &file(), ETAG),
        Some((first, last)) if asked.number <= 3 => {
            range_head(stream, (first, last), FILE_BYTES, ETAG)?;
            let half = first + (last - first).div_ceil(2);
            stream.write_all(&file()[first..half])
        }
        _ => range(asked, stream, &file(), ETAG),
    });
    assert_eq!(rig.fetch().unwrap(), file());
}

#[test]
fn a_stream_that_is_cut_off_begins_anew() {
    let rig = Rig::new(|asked, stream| match asked.number {
        0 => {
            head(stream, &format!("200 OK\ncontent-length: {FILE_BYTES}"))?;
            stream.write_all(&file()[..FILE_BYTES / 2])
        }
        _ => body(stream, &file()),
    });
    assert_eq!(rig.fetch().unwrap(), file());
    assert_eq!(rig.server.asked().len(), 2);
}

#[test]
fn what_came_before_a_failure_is_not_asked_for_again() {
    let served = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&served);
    let rig = Rig::new(move |asked, stream| {
        // Three good pieces, then no more.
        match asked.range() {
            Some((0, 3)) => range(asked, stream, &file(), ETAG),
            _ if count.fetch_add(1, Ordering::SeqCst) < 3 => range(asked, stream, &file(), ETAG),
            _ => status(stream, "404 Gone Missing"),
        }
    });
    let error = rig.fetch().unwrap_err();
    assert!(matches!(error, FetchError::Status { .. }), "{error}");
    assert_eq!(names(rig.folder.path()), [".m.gguf.part", ".m.gguf.part.json"]);
    let (present, all) = super::progress_of(rig.folder.path(), "m.gguf").unwrap();
    assert_eq!(all, FILE_BYTES as u64);
    assert!(present > 0);
    let good =
        Rig { server: Server::start(|asked, stream| range(asked, stream, &file(), ETAG)), ..rig };
    assert_eq!(good.fetch().unwrap(), file());
    assert_eq!(asked_bytes(&good.server) as u64, all - present);
}

#[test]
fn another_state_of_the_file_begins_anew() {
    let rig = Rig::new(|asked, stream| match asked.range() {
        Some((0, 3 | 15_999)) => range(asked, stream, &file(), ETAG),
        _ => status(stream, "404 Gone Missing"),
    });
    rig.fetch().unwrap_err();
    let changed = Rig {
        server: Server::start(|asked, stream| range(asked, stream, &file(), "\"two\"")),
        ..rig
    };
    assert_eq!(changed.fetch().unwrap(), file());
    assert_eq!(asked_bytes(&changed.server), FILE_BYTES);
}

#[test]
fn a_file_that_changes_in_between_is_refused() {
    // Told by another state, by the whole file in place of a range, and by another length.
    let told = expect!["m.gguf changed on the server while it was fetched"];
    Rig::new(|asked, stream| {
        let etag = if asked.number == 0 { ETAG } else { "\"two\"" };
        range_head(stream, asked.range().unwrap(), FILE_BYTES, etag)?;
        stream.write_all(&file())
    })
    .check_refused(&told);
    Rig::new(|asked, stream| match asked.number {
        0 => range(asked, stream, &file(), ETAG),
        _ => body(stream, &file()),
    })
    .check_refused(&told);
    Rig::new(|asked, stream| match asked.number {
        0 => range(asked, stream, &file(), ETAG),
        _ => range_head(stream, asked.range().unwrap(), FILE_BYTES + 1, ETAG),
    })
    .check_refused(&told);
}

#[test]
fn a_wrong_checksum_is_refused() {
    let mut rig = Rig::new(|asked, stream| range(asked, stream, &file(), ETAG));
    rig.sha256 = Some("0".repeat(64));
    let found = sha256(&file());
    let error = rig.fetch().unwrap_err().to_string();
    let expected = "0".repeat(64);
    assert_eq!(error, format!("m.gguf has the wrong checksum: SHA-256 is {found}, not {expected}"));
    assert_eq!(names(rig.folder.path()), [""; 0]);
}

#[test]
fn the_hubs_own_checksum_and_length_are_believed_over_the_stores() {
    let rig = Rig::new(|asked, stream| {
        let (first, last) = asked.range().unwrap();
        head(
            stream,
            &format!(
                "206 Partial Content\ncontent-length: {}\n\
                 content-range: bytes {first}-{last}/{FILE_BYTES}\netag: {ETAG}\n\
                 x-linked-etag: \"{}\"",
                last + 1 - first,
                "0".repeat(64)
            ),
        )?;
        stream.write_all(&file()[first..=last])
    });
    let error = rig.fetch().unwrap_err();
    assert!(matches!(error, FetchError::WrongChecksum { .. }), "{error}");
    let mut rig = Rig::new(|asked, stream| range(asked, stream, &file(), ETAG));
    rig.bytes = Some(5);
    rig.check_refused(&expect!["m.gguf has 100000 bytes on the server, where 5 were announced"]);
}

#[test]
fn wrong_ranges_are_refused() {
    for (told, says) in [
        ("bytes 5-8/100000", "bytes 5-8/100000"),
        ("bytes -4-3/100000", "bytes -4-3/100000"),
        ("bytes 3-0/100000", "bytes 3-0/100000"),
        ("bytes 0-3/*", "bytes 0-3/*"),
        ("bytes 0-99/100000", "bytes 0-99/100000"),
        ("bytes 0-3/99999999999999999999999", "bytes 0-3/99999999999999999999999"),
    ] {
        let rig = Rig::new(move |_, stream| {
            head(stream, &format!("206 Partial\ncontent-length: 4\ncontent-range: {told}"))?;
            stream.write_all(b"GGUF")
        });
        let error = rig.fetch().unwrap_err().to_string();
        assert_eq!(
            error,
            format!("127.0.0.1 answers with other bytes than those asked for: {says}")
        );
        assert_eq!(names(rig.folder.path()), [""; 0]);
    }
    // A right beginning, and then one wrong piece.
    Rig::new(|asked, stream| match asked.range().unwrap() {
        (0, last) if last > 3 => {
            range_head(stream, (1, last), FILE_BYTES, ETAG)?;
            stream.write_all(&file()[1..=last])
        }
        _ => range(asked, stream, &file(), ETAG),
    })
    .check_refused(&expect![
        "127.0.0.1 answers with other bytes than those asked for: bytes 1-15999/100000"
    ]);
}

#[test]
fn bodies_without_an_end_are_refused() {
    let endless = |stream: &mut TcpStream| loop {
        stream.write_all(b"1000\r\n")?;
        stream.write_all(&[b'G'; 0x1000])?;
        stream.write_all(b"\r\n")?;
    };
    // Without ranges, nothing says when it would end.
    Rig::new(move |_, stream| {
        head(stream, "200 OK\ntransfer-encoding: chunked")?;
        endless(stream)
    })
    .check_refused(&expect!["127.0.0.1 does not say how long the file is"]);
    Rig::new(move |_, stream| {
        head(stream, "200 OK")?;
        loop {
            stream.write_all(&[b'G'; 0x1000])?;
        }
    })
    .check_refused(&expect!["127.0.0.1 does not say how long the file is"]);
    // With ranges, the piece says it.
    Rig::new(move |asked, stream| match asked.range().unwrap() {
        (0, 3) => range(asked, stream, &file(), ETAG),
        (first, last) => {
            head(
                stream,
                &format!(
                    "206 Partial Content\ntransfer-encoding: chunked\netag: {ETAG}\n\
                     content-range: bytes {first}-{last}/{FILE_BYTES}"
                ),
            )?;
            endless(stream)
        }
    })
    .check_refused(&expect!["127.0.0.1 sends more than it said"]);
}

#[test]
fn compressed_bodies_are_refused() {
    Rig::new(|_, stream| status(stream, "200 OK\ncontent-encoding: gzip"))
        .check_refused(&expect!["127.0.0.1 sends the file compressed, which was not asked for"]);
}

#[test]
fn other_files_than_models_are_refused_by_their_first_bytes() {
    let mut page = file();
    page[..4].copy_from_slice(b"<htm");
    let pages = page.clone();
    Rig::new(move |asked, stream| range(asked, stream, &page, ETAG))
        .check_refused(&expect!["m.gguf is no GGUF file: it begins with <htm"]);
    Rig::new(move |_, stream| body(stream, &pages))
        .check_refused(&expect!["m.gguf is no GGUF file: it begins with <htm"]);
}

#[test]
fn stalled_and_dripping_servers_are_given_up() {
    let told =
        expect!["gave up after 3 failures in a row: 127.0.0.1 sent less than 4096 bytes in 0.3 s"];
    let rig = Rig::new(|asked, stream| match asked.range().unwrap() {
        (0, 3) => range(asked, stream, &file(), ETAG),
        (first, last) => {
            range_head(stream, (first, last), FILE_BYTES, ETAG)?;
            stall(stream)
        }
    });
    rig.check_refused(&told);
    let rig = Rig::new(|asked, stream| match asked.range().unwrap() {
        (0, 3) => range(asked, stream, &file(), ETAG),
        (first, last) => {
            range_head(stream, (first, last), FILE_BYTES, ETAG)?;
            drip(stream)
        }
    });
    rig.check_failed(&told);
}

#[test]
fn a_server_that_is_busy_is_asked_again_and_told_waits_are_obeyed() {
    let rig = Rig::new(|asked, stream| match asked.number {
        0 => status(stream, "503 Busy"),
        1 => status(stream, "429 Slower\nretry-after: 0"),
        _ => range(asked, stream, &file(), ETAG),
    });
    assert_eq!(rig.fetch().unwrap(), file());
    let rig = Rig::new(|_, stream| status(stream, "429 Slower\nretry-after: 3600"));
    rig.check_refused(&expect!["127.0.0.1 asks to wait 3600 s before the next try"]);
    assert_eq!(rig.server.asked().len(), 1);
    let rig = Rig::new(|_, stream| status(stream, "500 Oops"));
    rig.check_refused(&expect![
        "gave up after 3 failures in a row: 127.0.0.1 answers 500 Internal Server Error"
    ]);
    assert_eq!(rig.server.asked().len(), 3);
}

#[test]
fn refusals_are_told_and_not_repeated() {
    for line in ["401 No", "403 No", "404 No", "416 No"] {
        let rig = Rig::new(move |_, stream| {
            status(
                stream,
                &format!("{line}\nwww-authenticate: Bearer realm=\"http://evil.example\""),
            )
        });
        let error = rig.fetch().unwrap_err().to_string();
        assert!(error.starts_with(&format!("127.0.0.1 answers {}", &line[..3])), "{error}");
        assert_eq!(rig.server.asked().len(), 1, "a foreign realm is not asked either");
        assert_eq!(names(rig.folder.path()), [""; 0]);
    }
}

#[test]
fn redirects_are_followed_within_limits() {
    let rig = Rig::new(|asked, stream| match asked.target.as_str() {
        "/m.gguf" => status(stream, "302 Found\nlocation: /real?signature=1"),
        _ => range(asked, stream, &file(), ETAG),
    });
    assert_eq!(rig.fetch().unwrap(), file());
    let rig = Rig::new(|_, stream| status(stream, "302 Found\nlocation: /m.gguf"));
    rig.check_refused(&expect!["more than 5 redirects"]);
    Rig::new(|_, stream| status(stream, "302 Found"))
        .check_refused(&expect!["127.0.0.1 answers with a redirect that leads nowhere"]);
    Rig::new(|_, stream| status(stream, "302 Found\nlocation: file:///etc/passwd")).check_refused(
        &expect![
            "127.0.0.1 answers with a redirect that leads nowhere: it is no address on the web"
        ],
    );
}

#[test]
fn redirects_into_private_networks_reach_nobody() {
    // Somebody else's service on this machine.
    let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    other.set_nonblocking(true).unwrap();
    let port = other.local_addr().unwrap().port();
    for host in ["127.0.0.1", "localhost", "127.0.0.2", "[::ffff:127.0.0.1]"] {
        let rig = Rig::new(move |_, stream| {
            status(stream, &format!("307 There\nlocation: http://{host}:{port}/latest/meta-data"))
        });
        let error = rig.fetch().unwrap_err().to_string();
        assert!(error.ends_with("which is not on the internet"), "{error}");
    }
    assert_eq!(other.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    Rig::new(|_, stream| status(stream, "302 Found\nlocation: http://169.254.169.254/latest"))
        .check_refused(&expect![
            "a redirect leads to 169.254.169.254, which is not on the internet"
        ]);
}

#[test]
fn only_the_one_whom_the_user_named_gets_the_token() {
    let rig = Rig::new(|asked, stream| range(asked, stream, &file(), ETAG));
    rig.fetch().unwrap();
    for asked in rig.server.asked() {
        assert_eq!(asked.header("authorization"), Some("Bearer hf_secret"));
    }
    // A client that calls another port the home sends nothing secret here.
    let other = Server::start(|asked, stream| range(asked, stream, &file(), ETAG));
    let home = Address::parse("http://127.0.0.1:9/").unwrap();
    let patience = Patience { connect: Duration::from_secs(5), stall: Duration::from_secs(5) };
    let client = Client::new(home.origin(), Token::new("hf_secret"), patience, &direct());
    let address = Address::parse(&other.url("/m.gguf")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert!(runtime.block_on(client.get(&address, &super::client::Ask::default())).is_err());
    assert_eq!(other.asked().len(), 0);
    // Neither does one whose home is not secured and not this machine.
    let home = Address::parse("http://hub.example/").unwrap();
    assert!(!Client::new(home.origin(), Token::new("hf_secret"), patience, &direct()).has_token());
}

#[test]
fn the_reserve_of_the_disk_stays_free() {
    let mut rig = Rig::new(|asked, stream| range(asked, stream, &file(), ETAG));
    rig.disk = Disk::with(0, |_| Ok(99_999));
    let error = rig.fetch().unwrap_err();
    assert!(
        matches!(error, FetchError::NoRoom { usable: 99_999, missing: 100_000, .. }),
        "{error}"
    );
    assert_eq!(names(rig.folder.path()), [""; 0]);
    // Somebody else fills the disk meanwhile: what has come is kept for the next time.
    let left = AtomicUsize::new(2);
    rig.disk = Disk::with(0, move |_| {
        let more = left.load(Ordering::SeqCst) > 0;
        left.fetch_sub(usize::from(more), Ordering::SeqCst);
        Ok(if more { 1_000_000 } else { 10 })
    });
    let error = rig.fetch().unwrap_err();
    assert!(matches!(error, FetchError::NoRoom { usable: 10, .. }), "{error}");
    assert!(super::progress_of(rig.folder.path(), "m.gguf").unwrap().0 >= 20_000);
}
