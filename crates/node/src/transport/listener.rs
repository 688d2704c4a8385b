//! The door: accepts connections, and gives each a thread of its own until it is known who it is.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use super::connection::Connection;
use super::counters::{Counters, RefusedBecause};
use super::endpoint::Endpoint;
use super::handshake::receive_visitor;
use super::limits;
use crate::identity::NodeId;

/// Connections that wait to be accepted at most.
const BACKLOG: i32 = 128;

/// How long stopping waits for the listener to notice.
const WAKE_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a listener could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenError {
    /// The address is taken or not ours.
    #[error("cannot listen on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// No thread could be started.
    #[error("cannot start a thread that listens")]
    Thread(#[source] io::Error),
}

/// Someone at the door whom TLS has let through.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// A member of the cluster.
    Member(Connection, NodeId),
    /// Someone who has nothing but, perhaps, a token.
    Applicant(Connection),
}

/// Listens on one address until it is dropped.
pub(crate) struct Listener {
    address: SocketAddr,
    door: Arc<Door>,
    thread: Option<JoinHandle<()>>,
}

struct Door {
    endpoint: Arc<Endpoint>,
    counters: Counters,
    handler: Box<dyn Fn(Arrival) + Send + Sync>,
    stopped: AtomicBool,
    /// Visitors that have not shown yet who they are, by address.
    visitors: Mutex<BTreeMap<IpAddr, usize>>,
}

impl Listener {
    /// Listens on `address`; port 0 is any free one, `[::]` takes IPv4 too where the system can.
    ///
    /// `handler` is called on the visitor's own thread, which may go on serving the connection.
    pub(crate) fn start(
        address: SocketAddr,
        endpoint: Arc<Endpoint>,
        handler: impl Fn(Arrival) + Send + Sync + 'static,
    ) -> Result<Self, ListenError> {
        let bind = |source| ListenError::Bind { address, source };
        let listener = listen(address).map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        let door = Arc::new(Door {
            endpoint,
            counters: Counters::default(),
            handler: Box::new(handler),
            stopped: AtomicBool::new(false),
            visitors: Mutex::new(BTreeMap::new()),
        });
        let accepting = Arc::clone(&door);
        let thread = thread::Builder::new()
            .name("listen".to_owned())
            .spawn(move || accept(&listener, &accepting))
            .map_err(ListenError::Thread)?;
        Ok(Self { address, door, thread: Some(thread) })
    }

    /// The address with its real port.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Who came since the start.
    pub(crate) fn counters(&self) -> &Counters {
        &self.door.counters
    }
}

impl Drop for Listener {
    /// Closes the door. Connections that are open stay open.
    fn drop(&mut self) {
        self.door.stopped.store(true, Ordering::SeqCst);
        // A visit of our own wakes the thread that waits for visitors.
        let ip = match self.address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        let woken =
            TcpStream::connect_timeout(&SocketAddr::new(ip, self.address.port()), WAKE_TIMEOUT);
        if let (Ok(_), Some(thread)) = (woken, self.thread.take()) {
            // If it panicked, it has stopped too.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("address", &self.address).finish_non_exhaustive()
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A restart must not wait for connections of the last run. On Windows the option would let
    // another program take the port.
    if cfg!(unix) {
        socket.set_reuse_address(true)?;
    }
    if address.ip() == Ipv6Addr::UNSPECIFIED {
        // Where the system has no IPv4 on such sockets, IPv6 remains.
        let _ = socket.set_only_v6(false);
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn accept(listener: &TcpListener, door: &Arc<Door>) {
    loop {
        let arrived = listener.accept();
        if door.stopped.load(Ordering::SeqCst) {
            return;
        }
        match arrived {
            Ok((stream, address)) => admit(stream, address.ip().to_canonical(), door),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Visitors that went away at once are no trouble; for want of files it would spin.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(_) => thread::park_timeout(limits::ACCEPT_PAUSE),
        }
    }
}

/// Starts a thread for a visitor, or turns it away if too many are at the door.
fn admit(stream: TcpStream, address: IpAddr, door: &Arc<Door>) {
    let Some(place) = Place::take(address, door) else {
        door.counters.count_refused(RefusedBecause::Busy);
        return;
    };
    let started = thread::Builder::new().name("visitor".to_owned()).spawn(move || {
        let door = Arc::clone(&place.door);
        let result = receive_visitor(stream, &door.endpoint);
        drop(place);
        match result {
            Ok(arrival) => {
                match &arrival {
                    Arrival::Member(..) => door.counters.count_member(),
                    Arrival::Applicant(_) => door.counters.count_applicant(),
                }
                (door.handler)(arrival);
            }
            Err(because) => door.counters.count_refused(because),
        }
    });
    if started.is_err() {
        door.counters.count_refused(RefusedBecause::Busy);
    }
}

/// A visitor's place at the door, given back when it is known who it is.
struct Place {
    address: IpAddr,
    door: Arc<Door>,
}

impl Place {
    fn take(address: IpAddr, door: &Arc<Door>) -> Option<Self> {
        let mut visitors = door.visitors.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let total: usize = visitors.values().sum();
        let from_address = visitors.get(&address).copied().unwrap_or(0);
        if total >= limits::HANDSHAKES_MAX || from_address >= limits::HANDSHAKES_PER_ADDRESS_MAX {
            return None;
        }
        visitors.insert(address, from_address + 1);
        Some(Self { address, door: Arc::clone(door) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut visitors =
            self.door.visitors.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match visitors.get_mut(&self.address) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                visitors.remove(&self.address);
            }
        }
    }
}
