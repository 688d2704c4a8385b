//! An encrypted connection in two halves for two threads.
//!
//! TLS keeps one state for both directions, so the halves share it behind a lock. The lock is held
//! while at most [`limits::SEND_CHUNK_BYTES`] are encrypted or one socket read is decrypted, never
//! while a thread waits for the socket: a peer that does not read delays our sending, not our
//! receiving. Only the sender writes to the socket, so encrypted records keep their order.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::limits;
use super::socket::{Limit, is_timeout};

/// Why nothing was received.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    /// Nothing came in time, not one byte: the caller may ask again.
    #[error("nothing was received in time")]
    Idle,
    /// Only a part came in time; the connection cannot be used any more.
    #[error("only a part of a message was received in time")]
    Stalled,
    /// The other side closed the connection in order, between two messages.
    #[error("the other side closed the connection")]
    Closed,
    /// The connection broke, or the other side went away in the middle of a message.
    #[error("the connection broke")]
    Broken(#[source] io::Error),
    /// What came was changed on its way or is no TLS.
    #[error("the connection's encryption failed")]
    Tls(#[from] rustls::Error),
}

impl ReceiveError {
    /// The same error in the middle of a message, where silence breaks the connection.
    pub(crate) fn in_the_middle(self) -> Self {
        match self {
            Self::Idle => Self::Stalled,
            other => other,
        }
    }
}

/// Why something was not sent; the connection cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// The other side does not take it.
    #[error("the other side did not take a message in time")]
    Stalled,
    /// The connection broke.
    #[error("the connection broke")]
    Broken(#[source] io::Error),
}

/// An open connection.
#[derive(Debug)]
pub(crate) struct Connection {
    shared: Arc<Shared>,
    receiver: Receiver,
    sender: Sender,
}

#[derive(Debug)]
struct Shared {
    stream: TcpStream,
    tls: Mutex<rustls::Connection>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, rustls::Connection> {
        self.tls.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Connection {
    /// A connection whose handshake is complete.
    pub(super) fn new(stream: TcpStream, mut tls: rustls::Connection) -> Self {
        tls.set_buffer_limit(Some(limits::SEND_CHUNK_BYTES));
        let shared = Arc::new(Shared { stream, tls: Mutex::new(tls) });
        let receiver = Receiver {
            shared: Arc::clone(&shared),
            raw: vec![0; limits::RECEIVE_CHUNK_BYTES],
            waiting: 0..0,
            limit: Limit::default(),
        };
        let sender =
            Sender { shared: Arc::clone(&shared), encrypted: Vec::new(), limit: Limit::default() };
        Self { shared, receiver, sender }
    }

    /// Where the other side is.
    pub(crate) fn peer_address(&self) -> io::Result<SocketAddr> {
        self.shared.stream.peer_addr()
    }

    /// Our own address on this connection: how the other side reaches this device.
    pub(crate) fn local_address(&self) -> io::Result<SocketAddr> {
        self.shared.stream.local_addr()
    }

    /// The halves for two threads, or for one that only receives or only sends.
    pub(crate) fn split(self) -> (Receiver, Sender) {
        (self.receiver, self.sender)
    }

    /// Both halves for one thread.
    pub(crate) fn halves(&mut self) -> (&mut Receiver, &mut Sender) {
        (&mut self.receiver, &mut self.sender)
    }

    pub(crate) fn closer(&self) -> Closer {
        Closer(Arc::clone(&self.shared))
    }
}

/// Ends a connection from any thread; both halves then fail.
#[derive(Clone, Debug)]
pub(crate) struct Closer(Arc<Shared>);

impl Closer {
    pub(crate) fn close(&self) {
        // It may be closed already, which is what is wanted.
        let _ = self.0.stream.shutdown(Shutdown::Both);
    }
}

/// The receiving half.
#[derive(Debug)]
pub(crate) struct Receiver {
    shared: Arc<Shared>,
    /// What was read from the socket; `waiting` is not decrypted yet.
    raw: Vec<u8>,
    waiting: std::ops::Range<usize>,
    limit: Limit,
}

impl Receiver {
    /// Fills `buffer`, waiting for at most `timeout` altogether.
    ///
    /// # Errors
    /// [`ReceiveError::Idle`] if not one byte came; after any other error the connection is dead.
    pub(crate) fn receive(
        &mut self,
        buffer: &mut [u8],
        timeout: Duration,
    ) -> Result<(), ReceiveError> {
        let mut filled = 0;
        let mut wait = Wait::new(timeout);
        loop {
            filled += self.decrypt(&mut buffer[filled..], filled > 0)?;
            if filled == buffer.len() {
                return Ok(());
            }
            match self.read_socket(wait.left()) {
                Ok(()) => {}
                Err(error) if is_timeout(&error) && filled == 0 => return Err(ReceiveError::Idle),
                Err(error) if is_timeout(&error) => return Err(ReceiveError::Stalled),
                Err(error) => return Err(ReceiveError::Broken(error)),
            }
        }
    }

    /// Decrypts what waits into `buffer` until that is full or nothing waits, and tells how many
    /// bytes it wrote.
    fn decrypt(&mut self, buffer: &mut [u8], begun: bool) -> Result<usize, ReceiveError> {
        let mut tls = self.shared.lock();
        let mut filled = 0;
        while filled < buffer.len() {
            match tls.reader().read(&mut buffer[filled..]) {
                Ok(0) if begun || filled > 0 => {
                    return Err(ReceiveError::Broken(io::ErrorKind::UnexpectedEof.into()));
                }
                Ok(0) => return Err(ReceiveError::Closed),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.waiting.is_empty() {
                        break;
                    }
                    let mut rest = &self.raw[self.waiting.clone()];
                    let taken = tls.read_tls(&mut rest).map_err(ReceiveError::Broken)?;
                    self.waiting.start += taken;
                    tls.process_new_packets()?;
                }
                Err(error) => return Err(ReceiveError::Broken(error)),
            }
        }
        Ok(filled)
    }

    /// Waits for bytes of the socket; everything read before was decrypted.
    fn read_socket(&mut self, limit: Duration) -> io::Result<()> {
        loop {
            self.limit.reading(&self.shared.stream, limit)?;
            match (&self.shared.stream).read(&mut self.raw) {
                // TLS ends with a message of its own; without it the end may be an attacker's.
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    self.waiting = 0..count;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// The sending half.
#[derive(Debug)]
pub(crate) struct Sender {
    shared: Arc<Shared>,
    /// Encrypted and not yet written; kept to be reused.
    encrypted: Vec<u8>,
    limit: Limit,
}

impl Sender {
    /// Sends `parts` one after the other, as if they were one, within `timeout` altogether.
    ///
    /// # Errors
    /// After any error the connection is dead.
    pub(crate) fn send(&mut self, parts: &[&[u8]], timeout: Duration) -> Result<(), SendError> {
        let mut slices: Vec<IoSlice<'_>> =
            parts.iter().filter(|part| !part.is_empty()).map(|part| IoSlice::new(part)).collect();
        let mut slices = slices.as_mut_slice();
        let mut wait = Wait::new(timeout);
        while !slices.is_empty() {
            let written = self.encrypt(slices).map_err(SendError::Broken)?;
            IoSlice::advance_slices(&mut slices, written);
            self.write_socket(&mut wait)?;
        }
        Ok(())
    }

    /// Says that nothing more will be sent, so that the other side can tell an end from a cut.
    pub(crate) fn finish(mut self, timeout: Duration) -> Result<(), SendError> {
        {
            let mut tls = self.shared.lock();
            tls.send_close_notify();
            drain(&mut tls, &mut self.encrypted).map_err(SendError::Broken)?;
        }
        self.write_socket(&mut Wait::new(timeout))?;
        self.shared.stream.shutdown(Shutdown::Write).map_err(SendError::Broken)
    }

    fn encrypt(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut tls = self.shared.lock();
        let written = tls.writer().write_vectored(slices)?;
        drain(&mut tls, &mut self.encrypted)?;
        Ok(written)
    }

    fn write_socket(&mut self, wait: &mut Wait) -> Result<(), SendError> {
        let mut rest = self.encrypted.as_slice();
        while !rest.is_empty() {
            let result = self
                .limit
                .writing(&self.shared.stream, wait.left())
                .and_then(|()| (&self.shared.stream).write(rest));
            match result {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_timeout(&error) => return Err(SendError::Stalled),
                Err(error) => return Err(SendError::Broken(error)),
            }
        }
        self.encrypted.clear();
        Ok(())
    }
}

/// Moves all that TLS wants to send to the end of `encrypted`.
fn drain(tls: &mut rustls::Connection, encrypted: &mut Vec<u8>) -> io::Result<()> {
    while tls.wants_write() {
        tls.write_tls(encrypted)?;
    }
    Ok(())
}

/// The time for one message. The first wait gets all of it, which needs no clock and, from message
/// to message, no change at the socket; later waits get what is left.
struct Wait {
    timeout: Duration,
    began: Option<Instant>,
}

impl Wait {
    fn new(timeout: Duration) -> Self {
        Self { timeout, began: None }
    }

    /// How long the next wait may be. It is shortened only when a quarter of the time is over, so
    /// that the whole takes at most five quarters of it.
    fn left(&mut self) -> Duration {
        let Some(began) = self.began else {
            self.began = Some(Instant::now());
            return self.timeout;
        };
        let elapsed = began.elapsed();
        if elapsed * 4 < self.timeout { self.timeout } else { self.timeout.saturating_sub(elapsed) }
    }
}
