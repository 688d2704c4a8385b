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
    IF_RANGE, LOCATION, RANGE, USER_AGENT,
};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;

use super::address::{Address, AddressError, Origin, is_public};

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

/// Asks servers, and knows which of them the user named.
#[derive(Clone)]
pub(super) struct Client {
    tls: TlsConnector,
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
    pub(super) fn new(home: &Origin, token: Option<Token>, patience: Patience) -> Self {
        let roots = rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("ring has the suites of TLS 1.3")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let token = token.filter(|_| home.secure || home.is_loopback());
        Self { tls: TlsConnector::from(Arc::new(config)), home: home.clone(), token, patience }
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
        let request = self.request(address, ask)?;
        let stream = self.connect(address.origin()).await?;
        let (mut sender, connection) = if address.origin().secure {
            let name = ServerName::try_from(host()).map_err(|error| HttpError::Tls {
                host: host(),
                source: io::Error::new(io::ErrorKind::InvalidInput, error),
            })?;
            let secured = timeout(self.patience.connect, self.tls.connect(name, stream)).await;
            let secured = secured
                .map_err(|_| HttpError::Stalled { host: host(), limit: self.patience.connect })?
                .map_err(|source| HttpError::Tls { host: host(), source })?;
            speak(secured).await
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

    fn request(&self, address: &Address, ask: &Ask) -> Result<Request<Empty<Bytes>>, HttpError> {
        let mut request = Request::get(address.target())
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
        if let Some(token) = &self.token
            && *address.origin() == self.home
        {
            request = request.header(AUTHORIZATION, format!("Bearer {}", token.0));
        }
        request
            .body(Empty::new())
            .map_err(|source| HttpError::Request { host: address.origin().host.clone(), source })
    }

    /// Connects to the first address of a host that answers.
    async fn connect(&self, origin: &Origin) -> Result<TcpStream, HttpError> {
        let host = || origin.host.clone();
        let looked_up = tokio::net::lookup_host((origin.host.as_str(), origin.port));
        let found: Vec<SocketAddr> = timeout(self.patience.connect, looked_up)
            .await
            .map_err(|_| HttpError::Stalled { host: host(), limit: self.patience.connect })?
            .map_err(|source| HttpError::Resolve { host: host(), source })?
            .collect();
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
            match timeout(self.patience.connect, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Ok(Err(error)) => failed = error,
                Err(_) => failed = io::ErrorKind::TimedOut.into(),
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
