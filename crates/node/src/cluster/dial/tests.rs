//! Members with several addresses, on loopback.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::cluster::addresses_of;
use crate::cluster::door::Door;
use crate::transport::{Listener, TestMembers, test_members};

/// Bytes that a slow way carries at a time, each as a packet of its own: some MB in a second, where
/// loopback carries hundreds.
const NARROW_BYTES: usize = 16;

/// Connections that a slow way takes at most.
const CONNECTIONS_MAX: usize = 4;

const ANYWHERE: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);

fn answering(members: &TestMembers) -> Listener {
    let door = Door {
        endpoint: Arc::clone(&members.answerer),
        folder: members.answerer_folder.clone(),
        stages: Arc::default(),
        shelf: Arc::default(),
        on_hello: None,
    };
    let endpoint = Arc::clone(&members.answerer);
    Listener::start(ANYWHERE.into(), endpoint, move |it| door.receive(it)).unwrap()
}

/// A slow way to `target`: its address, and the connections that it has carried.
fn slow_way(target: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(ANYWHERE).unwrap();
    let address = listener.local_addr().unwrap();
    let carried = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&carried);
    thread::spawn(move || {
        for near in listener.incoming().take(CONNECTIONS_MAX) {
            count.fetch_add(1, Ordering::SeqCst);
            let (near, far) = (near.unwrap(), TcpStream::connect(target).unwrap());
            let other = (far.try_clone().unwrap(), near.try_clone().unwrap());
            thread::spawn(move || carry(near, far));
            thread::spawn(move || carry(other.0, other.1));
        }
    });
    (address, carried)
}

fn carry(mut from: TcpStream, mut to: TcpStream) {
    to.set_nodelay(true).unwrap();
    let mut bytes = [0; NARROW_BYTES];
    let mut once = || -> io::Result<usize> {
        let count = from.read(&mut bytes)?;
        to.write_all(&bytes[..count])?;
        Ok(count)
    };
    while once().is_ok_and(|count| count > 0) {}
    let _ = to.shutdown(Shutdown::Write);
}

fn peer(members: &TestMembers, addresses: impl IntoIterator<Item = SocketAddr>) -> Peer {
    let node = NodeId(*members.answerer.identity().node().as_bytes());
    Peer { node, addresses: addresses_of(addresses) }
}

#[test]
fn the_faster_of_two_addresses_is_taken_and_remembered() {
    let members = test_members();
    let listener = answering(&members);
    let (slow, carried) = slow_way(listener.address());
    let peer = peer(&members, [slow, listener.address()]);
    let dialler = Dialler::new(Arc::clone(&members.caller));
    for _ in 0..2 {
        let connection = dialler.dial(&peer).unwrap();
        assert_eq!(connection.peer_address().unwrap(), listener.address());
        assert_eq!(carried.load(Ordering::SeqCst), 1, "each address is measured once");
    }
    let best = dialler.measure(&peer).unwrap();
    assert_eq!(carried.load(Ordering::SeqCst), 2, "whoever asks for the way gets it as it is now");
    let only_slow = Peer { addresses: addresses_of([slow]), ..peer };
    let worse = dialler.measure(&only_slow).unwrap();
    assert!(best.out_bytes_per_s > 2 * worse.out_bytes_per_s, "{best:?} and {worse:?}");
}

#[test]
fn another_address_is_taken_when_the_best_one_is_silent() {
    let members = test_members();
    let (fast, other) = (answering(&members), answering(&members));
    let (slow, _) = slow_way(other.address());
    let peer = peer(&members, [fast.address(), slow]);
    let dialler = Dialler::new(Arc::clone(&members.caller));
    assert_eq!(dialler.dial(&peer).unwrap().peer_address().unwrap(), fast.address());
    drop(fast);
    assert_eq!(dialler.dial(&peer).unwrap().peer_address().unwrap(), slow);
}

#[test]
fn whoever_answers_nowhere_is_an_error_that_names_an_address() {
    let members = test_members();
    let closed = [(); 2].map(|()| TcpListener::bind(ANYWHERE).unwrap().local_addr().unwrap());
    let dialler = Dialler::new(Arc::clone(&members.caller));
    let error = dialler.dial(&peer(&members, closed)).unwrap_err().to_string();
    assert!(closed.iter().any(|address| error.contains(&address.to_string())), "{error}");
    assert!(matches!(dialler.dial(&peer(&members, [])), Err(DialError::NoAddress { .. })));
}

#[test]
fn somebody_else_at_an_address_is_not_taken_for_the_member() {
    let (members, others) = (test_members(), test_members());
    let (right, wrong) = (answering(&members), answering(&others));
    let peer = peer(&members, [wrong.address(), right.address()]);
    let dialler = Dialler::new(Arc::clone(&members.caller));
    assert_eq!(dialler.dial(&peer).unwrap().peer_address().unwrap(), right.address());
}
