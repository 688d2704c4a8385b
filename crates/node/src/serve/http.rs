//! The listening socket: connections with limits, and an orderly end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::limits::ServeLimits;

/// What the socket allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListenerLimits {
    /// Time within which all headers of a request must arrive.
    pub(super) headers: Duration,
    /// Connections at once; more wait in the system's queue.
    pub(super) connections: usize,
    /// How long running answers may go on after the first signal to stop.
    pub(super) farewell: Duration,
}

/// How long to wait when the system has no more sockets to give.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Binds `address`; a port in use is told as such.
///
/// # Errors
/// When the system refuses the address.
pub(super) async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))
}

/// Serves until a signal to stop; a second signal ends running answers at once.
///
/// # Errors
/// When signals cannot be waited for.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: &ServeLimits,
) -> anyhow::Result<()> {
    let mut stop = Stop::new()?;
    let places = Arc::new(Semaphore::new(limits.listener.connections));
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &places) => accepted,
            () = stop.asked() => break,
        };
        let Ok((stream, place)) = accepted else {
            // Too many open files, or a connection that ended before it began.
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(limits.listener.headers)
            .max_headers(limits.gateway.header_fields)
            .max_buf_size(limits.gateway.header_bytes.max(HYPER_BUFFER_BYTES_MIN));
        let service = TowerToHyperService::new(router.clone());
        let connection = graceful.watch(builder.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            // A connection that breaks concerns nobody but its client.
            let _ = connection.await;
            drop(place);
        });
    }
    drop(listener);
    tokio::select! {
        () = graceful.shutdown() => {}
        () = tokio::time::sleep(limits.listener.farewell) => {}
        () = stop.asked() => {}
    }
    Ok(())
}

/// The least that hyper accepts for its buffer.
const HYPER_BUFFER_BYTES_MIN: usize = 8192;

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, place))
}

/// Ctrl-C, or the signal that service managers send.
struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    fn new() -> anyhow::Result<Self> {
        let watch = |kind| signal(kind).context("cannot wait for signals");
        Ok(Self {
            interrupt: watch(SignalKind::interrupt())?,
            terminate: watch(SignalKind::terminate())?,
        })
    }

    async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
