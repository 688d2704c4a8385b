//! The asking side of HTTP: one request, its redirects, and a body that may not stand still.
//!
//! Whom the user named is trusted with the token and may lie anywhere; whoever is named by a
//! redirect gets no token and must be on the internet.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, HOST, HeaderMap, HeaderName,
    IF_RANGE, LOCATION, PROXY_AUTHORIZATION, RANGE, USER_AGENT,
};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::address::{Address, AddressError, Origin, is_public};
use super::proxy::{Proxies, Proxy};

/// Redirects that are followed; hubs use one or two.
const REDIRECTS_MAX: usize = 5;

/// Bytes and fields of an answer's headers at most.
const HEADER_BYTES_MAX: usize = 64 << 10;
const HEADER_FIELDS_MAX: usize = 128;

/// A body that brings less than this in the time of a stall stands still, even if it drips.
const STALL_BYTES: usize = 4096;

/// Addresses of one name that are tried.
const ADDRESSES_TRIED_MAX: usize = 4;

/// Why no answer came.
#[derive(Debug, thiserror::Error)]
pub(super) enum HttpError {
    /// The name means nothing.
    #[error("cannot find {host}")]
    Resolve {
        /// Whose name.
        host: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Nobody answers there.
    #[error("cannot reach {host}")]
    Connect {
        /// Where.
        host: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The certificate is wrong, or it is no TLS.
    #[error("no secure connection to {host}")]
    Tls {
        /// With whom.
        host: String,
        /// What is wrong.
        #[source]
        source: io::Error,
    },
    /// The proxy does not pass on what is said.
    #[error("the proxy {proxy} does not let us reach {host}{}", told(*status))]
    Proxy {
        /// Which proxy.
        proxy: String,
        /// Whom it is to reach.
        host: String,
        /// What it says; nothing if that is no HTTP.
        status: Option<u16>,
    },
    /// A redirect into a network that strangers have no business in.
    #[error("a redirect leads to {host}, which is not on the internet")]
    NotPublic {
        /// Where it leads.
        host: String,
    },
    /// A redirect gives up encryption.
    #[error("a redirect leads from https to http at {host}")]
    Downgrade {
        /// Where it leads.
        host: String,
    },
    /// A redirect is none.
    #[error("{host} answers with a redirect that leads nowhere")]
    Redirect {
        /// Who answers.
        host: String,
        /// What is wrong with it, if it says anything.
        #[source]
        source: Option<AddressError>,
    },
    /// They go in a circle.
    #[error("more than {REDIRECTS_MAX} redirects")]
    TooManyRedirects,
    /// Compressed bodies could grow without limit.
    #[error("{host} sends the file compressed, which was not asked for")]
    Compressed {
        /// Who sends it.
        host: String,
    },
    /// The connection broke, or what came is no HTTP.
    #[error("the connection to {host} broke")]
    Broken {
        /// With whom.
        host: String,
        /// How.
        #[source]
        source: hyper::Error,
    },
    /// Nothing, or next to nothing, came for too long.
    #[error("{host} sent less than {STALL_BYTES} bytes in {}", seconds(*limit))]
    Stalled {
        /// Who.
        host: String,
        /// For how long it may.
        limit: Duration,
    },
    /// The address cannot be written into a request.
    #[error("cannot ask {host} for this address")]
    Request {
        /// Whom.
        host: String,
        /// Why.
        #[source]
        source: hyper::http::Error,
    },
}

impl HttpError {
    /// Whether it may be better a moment later.
    pub(super) fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Resolve { .. }
                | Self::Connect { .. }
                | Self::Broken { .. }
                | Self::Stalled { .. }
        )
    }
}

/// What a proxy says.
fn told(status: Option<u16>) -> String {
    match status {
        Some(407) => ": it wants a name and password, http://NAME:PASSWORD@HOST".to_owned(),
        Some(status) => format!(": it answers {status}"),
        None => ": it does not speak HTTP".to_owned(),
    }
}

/// Seconds as people say them.
pub(super) fn seconds(time: Duration) -> String {
    format!("{} s", (time.as_secs_f64() * 100.0).round() / 100.0)
}

/// A secret for the hub. It is never shown.
#[derive(Clone)]
pub(super) struct Token(String);

impl Token {
    /// A token, if the text can be sent as one.
    pub(super) fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        let sendable = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        sendable.then(|| Self(text.to_owned()))
    }
}

/// How long a server may let us wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// For a connection.
    pub(super) connect: Duration,
    /// For the next bytes.
    pub(super) stall: Duration,
}

/// How servers are reached.
#[derive(Clone)]
pub(super) struct Ways {
    pub(super) tls: Arc<ClientConfig>,
    pub(super) proxies: Proxies,
}

/// Asks servers, and knows which of them the user named.
#[derive(Clone)]
pub(super) struct Client {
    ways: Ways,
    home: Origin,
    token: Option<Token>,
    patience: Patience,
}

/// What is asked of a file.
#[derive(Clone, Debug, Default)]
pub(super) struct Ask {
    /// First and last byte.
    pub(super) range: Option<(u64, u64)>,
    /// The state of the file that the range is of.
    pub(super) if_range: Option<String>,
}

/// The beginning of an answer, and its body to come.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// Headers of the first answer, before redirects: what the one whom the user named says.
    pub(super) home_headers: HeaderMap,
    /// Where it came from at last.
    pub(super) address: Address,
    body: Incoming,
    stall: Duration,
    /// When the present stretch of the body began, and what it has brought.
    stretch: (Instant, usize),
    connection: JoinHandle<()>,
}

impl Client {
    /// A client for a server that the user named. Without a secure connection only this machine
    /// is told the token.
    pub(super) fn new(
        home: &Origin,
        token: Option<Token>,
        patience: Patience,
        ways: &Ways,
    ) -> Self {
        let token = token.filter(|_| home.secure || home.is_loopback());
        Self { ways: ways.clone(), home: home.clone(), token, patience }
    }

    /// Whether it is the one whom the user named.
    pub(super) fn is_home(&self, origin: &Origin) -> bool {
        *origin == self.home
    }

    /// Whether a token goes along to the one whom the user named.
    pub(super) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Asks for a file and follows redirects.
    pub(super) async fn get(&self, address: &Address, ask: &Ask) -> Result<Answer, HttpError> {
        let mut address = address.clone();
        let mut home_headers = None;
        for _ in 0..=REDIRECTS_MAX {
            let mut answer = self.get_once(&address, ask).await?;
            let home_headers = home_headers.get_or_insert_with(|| answer.headers.clone());
            if !answer.status.is_redirection() {
                answer.home_headers.clone_from(home_headers);
                refuse_compressed(&answer)?;
                return Ok(answer);
            }
            let host = || address.origin().host.clone();
            let location = answer.headers.get(LOCATION).and_then(|value| value.to_str().ok());
            let location =
                location.ok_or_else(|| HttpError::Redirect { host: host(), source: None })?;
            let next = address
                .join(location)
                .map_err(|error| HttpError::Redirect { host: host(), source: Some(error) })?;
            if address.origin().secure && !next.origin().secure {
                return Err(HttpError::Downgrade { host: next.origin().host.clone() });
            }
            address = next;
        }
        Err(HttpError::TooManyRedirects)
    }

    async fn get_once(&self, address: &Address, ask: &Ask) -> Result<Answer, HttpError> {
        let host = || address.origin().host.clone();
        let proxy = self.ways.proxies.to(address.origin());
        let request = self.request(address, ask, proxy)?;
        let stream = match proxy {
            Some(proxy) => self.connect_by(proxy, address.origin()).await?,
            None => self.connect(address.origin()).await?,
        };
        let (mut sender, connection) = if address.origin().secure {
            speak(self.secure(&address.origin().host, stream).await?).await
        } else {
            speak(stream).await
        }
        .map_err(|source| HttpError::Broken { host: host(), source })?;
        let sent = timeout(self.patience.stall, sender.send_request(request)).await;
        let stall = self.patience.stall;
        let answered = match sent {
            Err(_) => Err(HttpError::Stalled { host: host(), limit: stall }),
            Ok(Err(source)) => Err(HttpError::Broken { host: host(), source }),
            Ok(Ok(response)) => Ok(response),
        };
        let response = answered.inspect_err(|_| connection.abort())?;
        let (head, body) = response.into_parts();
        Ok(Answer {
            status: head.status,
            headers: head.headers,
            home_headers: HeaderMap::new(),
            address: address.clone(),
            body,
            stall,
            stretch: (Instant::now(), 0),
            connection,
        })
    }

    fn request(
        &self,
        address: &Address,
        ask: &Ask,
        proxy: Option<&Proxy>,
    ) -> Result<Request<Empty<Bytes>>, HttpError> {
        let plain_proxy = proxy.filter(|_| !address.origin().secure);
        // A proxy is told where to; through a secure connection it sees nothing.
        let target = match plain_proxy {
            Some(_) => format!("http://{}{}", address.origin().authority(), address.target()),
            None => address.target().to_owned(),
        };
        let mut request = Request::get(target)
            .header(HOST, address.origin().authority())
            .header(USER_AGENT, concat!("motley/", env!("CARGO_PKG_VERSION")))
            .header(ACCEPT, "*/*")
            .header(ACCEPT_ENCODING, "identity");
        if let Some((first, last)) = ask.range {
            request = request.header(RANGE, format!("bytes={first}-{last}"));
        }
        if let Some(state) = &ask.if_range {
            request = request.header(IF_RANGE, state);
        }
        if let Some(authorization) = plain_proxy.and_then(|proxy| proxy.authorization.as_ref()) {
            request = request.header(PROXY_AUTHORIZATION, authorization);
        }
        if let Some(token) = &self.token
            && *address.origin() == self.home
        {
            request = request.header(AUTHORIZATION, format!("Bearer {}", token.0));
        }
        request
            .body(Empty::new())
            .map_err(|source| HttpError::Request { host: address.origin().host.clone(), source })
    }

    /// Secures a connection to a host, whose certificate must be its own.
    async fn secure(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, HttpError> {
        let host = || host.to_owned();
        let name = ServerName::try_from(host()).map_err(|error| HttpError::Tls {
            host: host(),
            source: io::Error::new(io::ErrorKind::InvalidInput, error),
        })?;
        let connector = TlsConnector::from(Arc::clone(&self.ways.tls));
        timeout(self.patience.connect, connector.connect(name, stream))
            .await
            .map_err(|_| HttpError::Stalled { host: host(), limit: self.patience.connect })?
            .map_err(|source| HttpError::Tls { host: host(), source })
    }

    /// Connects to a proxy, and through it to a host that is to be spoken to securely.
    async fn connect_by(&self, proxy: &Proxy, origin: &Origin) -> Result<TcpStream, HttpError> {
        // Who a proxy reaches is its own business, unless it could be asked into its own network.
        if *origin != self.home && !self.may_be_public(origin).await {
            return Err(HttpError::NotPublic { host: origin.host.clone() });
        }
        let mut failed = io::Error::from(io::ErrorKind::NotFound);
        for address in self.resolve(&proxy.origin).await?.iter().take(ADDRESSES_TRIED_MAX) {
            match self.connect_to(address).await {
                Ok(stream) if origin.secure => return self.tunnel(proxy, origin, stream).await,
                Ok(stream) => return Ok(stream),
                Err(error) => failed = error,
            }
        }
        Err(HttpError::Connect { host: proxy.origin.host.clone(), source: failed })
    }

    /// Whether nothing speaks against a host's being on the internet; some networks can look up names
    /// by their proxy only.
    async fn may_be_public(&self, origin: &Origin) -> bool {
        if let Ok(address) = origin.host.parse() {
            return is_public(address);
        }
        let inner = [".local", ".localhost", ".internal", ".lan", ".home.arpa"];
        let named =
            origin.host.contains('.') && !inner.iter().any(|end| origin.host.ends_with(end));
        let found = self.resolve(origin).await.unwrap_or_default();
        named && found.iter().all(|address| is_public(address.ip()))
    }

    /// Asks a proxy to pass on whatever is said, and waits until it does.
    async fn tunnel(
        &self,
        proxy: &Proxy,
        origin: &Origin,
        mut stream: TcpStream,
    ) -> Result<TcpStream, HttpError> {
        let host = || proxy.origin.host.clone();
        let name = match origin.host.contains(':') {
            true => format!("[{}]:{}", origin.host, origin.port),
            false => format!("{}:{}", origin.host, origin.port),
        };
        let mut asked = format!("CONNECT {name} HTTP/1.1\r\nhost: {name}\r\n");
        if let Some(authorization) = &proxy.authorization {
            asked.push_str(&format!("proxy-authorization: {authorization}\r\n"));
        }
        asked.push_str("\r\n");
        let talk = async {
            stream.write_all(asked.as_bytes()).await?;
            let mut answer = Vec::new();
            // Byte by byte: what follows belongs to the host.
            while !answer.ends_with(b"\r\n\r\n") && answer.len() < HEADER_BYTES_MAX {
                answer.push(stream.read_u8().await?);
            }
            Ok::<_, io::Error>(answer)
        };
        let answer = timeout(self.patience.connect, talk)
            .await
            .map_err(|_| HttpError::Stalled { host: host(), limit: self.patience.connect })?
            .map_err(|source| HttpError::Connect { host: host(), source })?;
        let line = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line).into_owned();
        let status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5));
        match status.and_then(|digits| digits.parse().ok()) {
            Some(200..300) => Ok(stream),
            status => Err(HttpError::Proxy { proxy: host(), host: origin.host.clone(), status }),
        }
    }

    /// The addresses of a host.
    async fn resolve(&self, origin: &Origin) -> Result<Vec<SocketAddr>, HttpError> {
        let host = || origin.host.clone();
        let looked_up = tokio::net::lookup_host((origin.host.as_str(), origin.port));
        let found = timeout(self.patience.connect, looked_up)
            .await
            .map_err(|_| HttpError::Stalled { host: host(), limit: self.patience.connect })?
            .map_err(|source| HttpError::Resolve { host: host(), source })?;
        Ok(found.collect())
    }

    async fn connect_to(&self, address: &SocketAddr) -> io::Result<TcpStream> {
        let connected = timeout(self.patience.connect, TcpStream::connect(address)).await;
        let stream = connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }

    /// Connects to the first address of a host that answers.
    async fn connect(&self, origin: &Origin) -> Result<TcpStream, HttpError> {
        let host = || origin.host.clone();
        let found = self.resolve(origin).await?;
        // The addresses that are called are those that were judged, so that a name which changes
        // its meaning in between gains nothing.
        let allowed = |address: &SocketAddr| *origin == self.home || is_public(address.ip());
        let callable: Vec<_> =
            found.iter().filter(|address| allowed(address)).take(ADDRESSES_TRIED_MAX).collect();
        if callable.is_empty() && !found.is_empty() {
            return Err(HttpError::NotPublic { host: host() });
        }
        let mut failed = io::Error::from(io::ErrorKind::NotFound);
        for address in callable {
            match self.connect_to(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = error,
            }
        }
        Err(HttpError::Connect { host: host(), source: failed })
    }
}

type Sender = http1::SendRequest<Empty<Bytes>>;

/// Begins HTTP on a connection, which a task of its own then carries.
async fn speak<S>(stream: S) -> Result<(Sender, JoinHandle<()>), hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::Builder::new()
        .max_headers(HEADER_FIELDS_MAX)
        .max_buf_size(HEADER_BYTES_MAX)
        .handshake(TokioIo::new(stream))
        .await?;
    let carried = async move {
        // What broke is told to the one who waits for the answer.
        let _ = connection.await;
    };
    Ok((sender, tokio::spawn(carried)))
}

fn refuse_compressed(answer: &Answer) -> Result<(), HttpError> {
    let encoding = answer.headers.get(CONTENT_ENCODING);
    if encoding.is_some_and(|encoding| encoding != "identity") {
        return Err(HttpError::Compressed { host: answer.address.origin().host.clone() });
    }
    Ok(())
}

impl Answer {
    /// The next piece of the body; nothing at its end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, HttpError> {
        let host = || self.address.origin().host.clone();
        loop {
            let deadline = self.stretch.0 + self.stall;
            let frame = match timeout_at(deadline, self.body.frame()).await {
                Err(_) => return Err(HttpError::Stalled { host: host(), limit: self.stall }),
                Ok(None) => return Ok(None),
                Ok(Some(Err(source))) => return Err(HttpError::Broken { host: host(), source }),
                Ok(Some(Ok(frame))) => frame,
            };
            // Trailers say nothing that is needed.
            if let Ok(data) = frame.into_data()
                && !data.is_empty()
            {
                self.stretch.1 += data.len();
                if self.stretch.1 >= STALL_BYTES {
                    self.stretch = (Instant::now(), 0);
                }
                return Ok(Some(data));
            }
        }
    }

    /// The whole body, if it has at most `bytes_max`; nothing if it is longer.
    pub(super) async fn text(&mut self, bytes_max: usize) -> Result<Option<Vec<u8>>, HttpError> {
        let mut text = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            if text.len() + chunk.len() > bytes_max {
                return Ok(None);
            }
            text.extend_from_slice(&chunk);
        }
        Ok(Some(text))
    }

    /// How long the body says that it is.
    pub(super) fn length(&self) -> Option<u64> {
        self.body.size_hint().exact()
    }

    /// A header as text.
    pub(super) fn header(&self, name: HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// A header of the first answer, before redirects.
    pub(super) fn home_header(&self, name: &str) -> Option<&str> {
        self.home_headers.get(name).and_then(|value| value.to_str().ok())
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.connection.abort();
    }
}
