//! Sockets with a limit on every wait.

use std::io::{self};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use socket2::{SockRef, TcpKeepalive};

use super::limits;

/// Sets what every connection needs: no waiting for more to send, and an end for forgotten ones.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(limits::KEEPALIVE_IDLE)
        .with_interval(limits::KEEPALIVE_INTERVAL);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// Whether a wait on a socket ended by its limit; systems differ in how they say it.
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// A point in time by which a chain of waits must end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    pub(crate) fn after(timeout: Duration) -> Self {
        Self(Instant::now() + timeout)
    }

    /// What is left.
    ///
    /// # Errors
    /// When nothing is.
    pub(crate) fn left(&self) -> io::Result<Duration> {
        let left = self.0.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

/// A socket during a handshake: all its reads and writes together end by one deadline.
#[derive(Debug)]
pub(crate) struct Bounded<'s> {
    pub(crate) stream: &'s TcpStream,
    pub(crate) deadline: Deadline,
}

impl io::Read for Bounded<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.deadline.left()?))?;
        self.stream.read(buffer)
    }
}

impl io::Write for Bounded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.deadline.left()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One direction's limit, set at the socket only when it changes: asking the system for every frame
/// would cost as much as a small frame.
#[derive(Debug, Default)]
pub(crate) struct Limit {
    set: Option<Duration>,
}

impl Limit {
    pub(crate) fn reading(&mut self, stream: &TcpStream, limit: Duration) -> io::Result<()> {
        self.change(limit, |limit| stream.set_read_timeout(limit))
    }

    pub(crate) fn writing(&mut self, stream: &TcpStream, limit: Duration) -> io::Result<()> {
        self.change(limit, |limit| stream.set_write_timeout(limit))
    }

    fn change(
        &mut self,
        limit: Duration,
        set: impl FnOnce(Option<Duration>) -> io::Result<()>,
    ) -> io::Result<()> {
        if limit.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if self.set != Some(limit) {
            set(Some(limit))?;
            self.set = Some(limit);
        }
        Ok(())
    }
}
