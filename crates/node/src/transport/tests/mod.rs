//! Whole clusters of one process on loopback. Nothing here waits longer than the transport's own
//! limits, and nobody sleeps.

mod admission;
mod enrolment;
mod speed;
mod traffic;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::*;
use crate::identity::{
    Applicant, Identity, MemberList, NodeId, RELEASED_UNIX_S as NOW, Standing, StateFolder,
    TokenAddress, TokenBook, enrol,
};

/// Long enough for a machine that does other things too.
const PATIENCE: Duration = Duration::from_secs(20);

/// One device with its state folder.
struct Device {
    folder: StateFolder,
    identity: Identity,
    _outer: tempfile::TempDir,
}

impl Device {
    /// The first of a new cluster.
    fn first() -> Self {
        let (outer, folder) = state();
        let (identity, _) = Identity::load_or_create_cluster(&folder, "first", NOW).unwrap();
        Self { folder, identity, _outer: outer }
    }

    /// Another of the cluster of `first`, let in at `now` without a network.
    fn joined(first: &Self, name: &str, now: u64) -> Self {
        let (outer, folder) = state();
        let authority = first.identity.authority().unwrap();
        let mut tokens = TokenBook::default();
        let secret = tokens.create(now, 60, 1).unwrap().0;
        let token = crate::identity::JoinToken {
            cluster: first.identity.cluster(),
            secret,
            addresses: Vec::new(),
        };
        let applicant = Applicant::new(name).unwrap();
        let request = applicant.request(&token).unwrap();
        let mut members = MemberList::load(&first.folder).unwrap();
        let grant = enrol(&request, authority, &mut tokens, &mut members, now).unwrap();
        members.save(&first.folder).unwrap();
        let identity =
            Identity::from_grant(&folder, &applicant, &grant, &first.identity.cluster()).unwrap();
        Self { folder, identity, _outer: outer }
    }

    /// Its side of connections, with a member list and a clock of the test's choice.
    fn endpoint(&self, standing: Standing, now: u64) -> Arc<Endpoint> {
        let check: MemberCheck = Arc::new(move |_| standing);
        Arc::new(Endpoint::with(&self.identity, check, Arc::new(move || now)).unwrap())
    }

    fn node(&self) -> NodeId {
        self.identity.node()
    }
}

fn state() -> (tempfile::TempDir, StateFolder) {
    let outer = tempfile::tempdir().unwrap();
    let folder = StateFolder::open(&outer.path().join("state")).unwrap();
    (outer, folder)
}

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

/// A listener whose arrivals come out of a channel.
fn listen(endpoint: &Arc<Endpoint>) -> (Listener, Receiver<Arrival>) {
    let (arrived, arrivals) = mpsc::sync_channel(16);
    let handler = move |arrival| {
        let _ = arrived.try_send(arrival);
    };
    let listener = Listener::start(loopback(), Arc::clone(endpoint), handler).unwrap();
    (listener, arrivals)
}

fn address(listener: &Listener) -> TokenAddress {
    TokenAddress::Socket(listener.address())
}

/// Two members of one cluster with an open connection.
struct Pair {
    caller: Connection,
    answerer: Connection,
    _listener: Listener,
}

fn pair() -> Pair {
    let first = Device::first();
    let second = Device::joined(&first, "second", NOW);
    let (listener, arrivals) = listen(&first.endpoint(Standing::Member, NOW));
    let endpoint = second.endpoint(Standing::Member, NOW);
    let caller = connect(&address(&listener), Some(first.node()), &endpoint, PATIENCE).unwrap();
    let Arrival::Member(answerer, node) = arrivals.recv_timeout(PATIENCE).unwrap() else {
        panic!("a member was taken for an applicant")
    };
    assert_eq!(node, second.node());
    Pair { caller, answerer, _listener: listener }
}

/// The two ends of a connection, which lives as long as its listener.
pub(crate) fn test_pair() -> (Connection, Connection, Listener) {
    let Pair { caller, answerer, _listener } = pair();
    (caller, answerer, _listener)
}

/// What calling another member takes, and being called.
pub(crate) struct TestMembers {
    pub(crate) caller: Arc<Endpoint>,
    pub(crate) answerer: Arc<Endpoint>,
    pub(crate) answerer_folder: StateFolder,
    _outer: [tempfile::TempDir; 2],
}

/// Two members of one cluster that are not connected.
pub(crate) fn test_members() -> TestMembers {
    let first = Device::first();
    let second = Device::joined(&first, "second", NOW);
    let endpoint = |device: &Device| device.endpoint(Standing::Member, NOW);
    TestMembers {
        caller: endpoint(&second),
        answerer: endpoint(&first),
        answerer_folder: first.folder,
        _outer: [first._outer, second._outer],
    }
}
