//! Connections that this device opens to other members.

use std::time::Duration;

use motley_ring::limits::HELLO_TIMEOUT;
use motley_ring::{Address, ClusterId, ControlMessage, Edge, MemberIndex, Peer};

use super::wire::WireError;
use crate::identity::{NodeId, TokenAddress};
use crate::stage::{EdgeError, EdgePlace, Links, Way};
use crate::transport::{Closer, ConnectError, Connection, Endpoint, connect};

/// How long opening one connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a member may take to be ready for a connection: it may hear of the deployment later.
pub(crate) const EDGE_PATIENCE: Duration = Duration::from_secs(20);

/// Why a member cannot be reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// It has said of no address where it listens.
    #[error("member {node} has told no address")]
    NoAddress {
        /// The member.
        node: motley_ring::NodeId,
    },
    /// None of its addresses answers.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// It does not take the connection.
    #[error("the member does not take the connection")]
    Wire(#[from] WireError),
    /// The system refuses a thread.
    #[error("cannot start a thread")]
    Thread(#[from] std::io::Error),
}

/// Opens a connection to a member at the first of its addresses that answers.
///
/// # Errors
/// When none does; the error is the last address's.
pub(crate) fn dial(endpoint: &Endpoint, peer: &Peer) -> Result<Connection, DialError> {
    let mut last = DialError::NoAddress { node: peer.node };
    for address in peer.addresses.iter().filter_map(token_address) {
        let node = NodeId::from_bytes(peer.node.0);
        match connect(&address, Some(node), endpoint, CONNECT_TIMEOUT) {
            Ok(connection) => return Ok(connection),
            Err(error) => last = error.into(),
        }
    }
    Err(last)
}

/// A member that this one sends to cannot be reached.
#[derive(Debug)]
pub(crate) struct EdgeUnreachable {
    /// The member.
    pub(crate) member: MemberIndex,
    /// Why.
    pub(crate) error: DialError,
}

/// Opens the ways from this member to all that it sends to.
///
/// # Errors
/// When one of them cannot be reached.
pub(crate) fn open_edges(
    endpoint: &Endpoint,
    place: &EdgePlace,
    peers: &[Peer],
    mut keep: impl FnMut(Closer),
    broken: &std::sync::Arc<dyn Fn(MemberIndex, EdgeError) + Send + Sync>,
) -> Result<Links, EdgeUnreachable> {
    let cluster = ClusterId(endpoint.identity().cluster().prefix());
    let own = place.from;
    let mut links = Links::none();
    let edges = place.assignment.route().edges();
    for (_, to) in edges.into_iter().filter(|(from, _)| *from == own) {
        let mut open = || {
            let connection = dial(endpoint, &peers[to.index()])?;
            keep(connection.closer());
            let edge = Edge { epoch: place.assignment.epoch(), from: own, to };
            let connection = greet(connection, cluster, edge)?;
            let place = EdgePlace { to, ..place.clone() };
            let broken = std::sync::Arc::clone(broken);
            Ok(Way::open(connection, place, move |error| broken(to, error))?)
        };
        let way = open().map_err(|error| EdgeUnreachable { member: to, error })?;
        links.add(to, way);
    }
    Ok(links)
}

/// Says what the connection is for, and waits until the other side is ready.
fn greet(
    mut connection: Connection,
    cluster: ClusterId,
    edge: Edge,
) -> Result<Connection, WireError> {
    let mut buffer = Vec::new();
    motley_ring::encode_control(&ControlMessage::Edge(edge), cluster, &[], &mut buffer)?;
    let (receiver, sender) = connection.halves();
    sender.send(&[&buffer], HELLO_TIMEOUT)?;
    match super::wire::receive_from(receiver, cluster, EDGE_PATIENCE)? {
        ControlMessage::Edge(answer) if answer == edge => Ok(connection),
        other => Err(WireError::Unexpected { expected: "edge", found: other.name() }),
    }
}

/// An address as members tell it.
pub(crate) fn token_address(address: &Address) -> Option<TokenAddress> {
    address.as_str().parse().ok()
}
