//! A server on loopback that does what a test tells it, however wrong.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Bytes of a request's headers at most.
const HEAD_BYTES_MAX: u64 = 64 << 10;

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) target: String,
    /// Lower-case names.
    pub(crate) headers: Vec<(String, String)>,
    /// How many came before.
    pub(crate) number: usize,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// First and last byte that are asked for.
    pub(crate) fn range(&self) -> Option<(usize, usize)> {
        let (first, last) = self.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()?))
    }
}

/// Serves until it is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    stop: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Server {
    /// Answers each request, one per connection, by `answer`.
    pub(crate) fn start(
        answer: impl Fn(&Asked, &mut TcpStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let (asked, stop) = (Arc::<Mutex<Vec<Asked>>>::default(), Arc::<AtomicBool>::default());
        let (kept, stopped, answer) = (Arc::clone(&asked), Arc::clone(&stop), Arc::new(answer));
        let accept = move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(mut stream) = stream else { continue };
                let (kept, answer) = (Arc::clone(&kept), Arc::clone(&answer));
                thread::spawn(move || {
                    let Some(mut request) = read_request(&stream) else { return };
                    {
                        let mut kept = kept.lock().expect("no test panics while it holds it");
                        request.number = kept.len();
                        kept.push(request.clone());
                    }
                    // The client may leave whenever it likes.
                    let _ = answer(&request, &mut stream);
                });
            }
        };
        let accepting = Some(thread::spawn(accept));
        Self { address, asked, stop, accepting }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// What was asked so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("no test panics while it holds it").clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

fn read_request(stream: &TcpStream) -> Option<Asked> {
    let mut lines = BufReader::new(stream.take(HEAD_BYTES_MAX)).lines();
    let first = lines.next()?.ok()?;
    let target = first.split(' ').nth(1)?.to_owned();
    let mut headers = Vec::new();
    for line in lines {
        let line = line.ok()?;
        if line.is_empty() {
            return Some(Asked { target, headers, number: 0 });
        }
        let (name, value) = line.split_once(": ")?;
        headers.push((name.to_lowercase(), value.to_owned()));
    }
    None
}

/// Writes status and headers; each line ends in `\n` here.
pub(crate) fn head(stream: &mut TcpStream, lines: &str) -> io::Result<()> {
    let mut text = String::from("HTTP/1.1 ");
    for line in lines.lines() {
        text.push_str(line.trim());
        text.push_str("\r\n");
    }
    text.push_str("\r\n");
    stream.write_all(text.as_bytes())
}

/// An answer without a body.
pub(crate) fn status(stream: &mut TcpStream, lines: &str) -> io::Result<()> {
    head(stream, &format!("{lines}\ncontent-length: 0"))
}

/// A body with its length.
pub(crate) fn body(stream: &mut TcpStream, text: &[u8]) -> io::Result<()> {
    head(stream, &format!("200 OK\ncontent-length: {}", text.len()))?;
    stream.write_all(text)
}

/// What a good server answers: the range that is asked for.
pub(crate) fn range(
    asked: &Asked,
    stream: &mut TcpStream,
    file: &[u8],
    etag: &str,
) -> io::Result<()> {
    let Some((first, last)) = asked.range() else { return body(stream, file) };
    if first >= file.len() {
        return status(stream, &format!("416 No\ncontent-range: bytes */{}", file.len()));
    }
    if asked.header("if-range").is_some_and(|state| state != etag) {
        return body(stream, file);
    }
    range_head(stream, (first, last.min(file.len() - 1)), file.len(), etag)?;
    stream.write_all(&file[first..=last.min(file.len() - 1)])
}

/// The headers of a range.
pub(crate) fn range_head(
    stream: &mut TcpStream,
    (first, last): (usize, usize),
    all: usize,
    etag: &str,
) -> io::Result<()> {
    head(
        stream,
        &format!(
            "206 Partial Content\ncontent-length: {}\ncontent-range: bytes {first}-{last}/{all}\n\
             etag: {etag}",
            last + 1 - first
        ),
    )
}

/// Says nothing until the client leaves.
pub(crate) fn stall(stream: &mut TcpStream) -> io::Result<()> {
    stream.read(&mut [0]).map(drop)
}

/// Sends a byte now and then until the client leaves.
pub(crate) fn drip(stream: &mut TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_millis(5)))?;
    loop {
        stream.write_all(b"x")?;
        match stream.read(&mut [0]) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
