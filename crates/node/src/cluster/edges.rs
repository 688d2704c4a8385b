//! The ways to the members that this device sends to.

use std::time::Duration;

use motley_ring::limits::HELLO_TIMEOUT;
use motley_ring::{ClusterId, ControlMessage, Edge, MemberIndex, Peer};

use super::dial::{DialError, Dialler};
use super::wire::WireError;
use crate::stage::{EdgeError, EdgePlace, Links, Way};
use crate::transport::{Closer, Connection};

/// How long a member may take to be ready for a connection: it may hear of the deployment later.
pub(crate) const EDGE_PATIENCE: Duration = Duration::from_secs(20);

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
    dialler: &Dialler,
    place: &EdgePlace,
    peers: &[Peer],
    mut keep: impl FnMut(Closer),
    broken: &std::sync::Arc<dyn Fn(MemberIndex, EdgeError) + Send + Sync>,
) -> Result<Links, EdgeUnreachable> {
    let cluster = dialler.cluster();
    let own = place.from;
    let mut links = Links::none();
    let edges = place.assignment.route().edges();
    for (_, to) in edges.into_iter().filter(|(from, _)| *from == own) {
        let mut open = || {
            let connection = dialler.dial(&peers[to.index()])?;
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
