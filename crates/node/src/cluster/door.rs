//! Who knocks, and what for: the first message of a connection says it.

use std::sync::Arc;

use motley_ring::limits::HELLO_TIMEOUT;
use motley_ring::{ClusterId, ControlMessage, Edge, Hello, NodeId};

use super::edges::EDGE_PATIENCE;
use super::probing;
use super::shelf::Shelf;
use super::stages::Stages;
use super::wire::{MessageConnection, WireError, receive_from};
use crate::identity::{self, StateFolder};
use crate::stage::read_edge;
use crate::terminal;
use crate::transport::{Arrival, Connection, Endpoint, ReceiveError, serve_applicant};

/// Takes a hello with its connection; only a head has one.
pub(crate) type OnHello = Box<dyn Fn(Hello, MessageConnection) + Send + Sync>;

/// What stands behind a listener.
pub(crate) struct Door {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) folder: StateFolder,
    pub(crate) stages: Arc<Stages>,
    pub(crate) shelf: Arc<Shelf>,
    pub(crate) on_hello: Option<OnHello>,
}

impl Door {
    /// Serves a visitor on its own thread. What goes wrong concerns the visitor alone; it is told
    /// on stderr.
    pub(crate) fn receive(&self, arrival: Arrival) {
        match arrival {
            Arrival::Applicant(connection) => {
                if let Err(error) = serve_applicant(connection, &self.endpoint, &self.folder) {
                    let error = anyhow::Error::from(error);
                    terminal::note(&format!("a device could not join: {error:#}\n"));
                }
            }
            Arrival::Member(connection, node) => {
                if let Err(error) = self.receive_member(connection, node) {
                    let node = node.short();
                    terminal::note(&format!("a connection of {node} ended: {error}\n"));
                }
            }
        }
    }

    fn receive_member(
        &self,
        mut connection: Connection,
        node: identity::NodeId,
    ) -> Result<(), WireError> {
        let cluster = ClusterId(self.endpoint.identity().cluster().prefix());
        let node = NodeId(*node.as_bytes());
        let first = match receive_from(connection.halves().0, cluster, HELLO_TIMEOUT) {
            // It has tried whether this address answers, and prefers another.
            Err(WireError::Receive(ReceiveError::Closed)) => return Ok(()),
            first => first?,
        };
        match (first, &self.on_hello) {
            (ControlMessage::Edge(edge), _) => {
                self.receive_edge(connection, cluster, edge, node);
                Ok(())
            }
            (first @ (ControlMessage::FetchManifest(_) | ControlMessage::FetchBlock(_)), _) => {
                self.shelf.serve(MessageConnection::new(connection, cluster), first)
            }
            (ControlMessage::Probe(probe), _) => {
                probing::serve(MessageConnection::new(connection, cluster), probe)
            }
            (ControlMessage::Hello(hello), Some(on_hello)) if hello.node == node => {
                on_hello(*hello, MessageConnection::new(connection, cluster));
                Ok(())
            }
            (other, _) => {
                Err(WireError::Unexpected { expected: "a first message", found: other.name() })
            }
        }
    }

    /// Reads activations until the connection or the deployment ends.
    fn receive_edge(
        &self,
        mut connection: Connection,
        cluster: ClusterId,
        edge: Edge,
        node: NodeId,
    ) {
        let (stage, place) = match self.stages.find(edge, node, EDGE_PATIENCE) {
            Ok(found) => found,
            Err(refused) => {
                return terminal::note(&format!("a connection is refused: {refused}\n"));
            }
        };
        let mut answer = Vec::new();
        let answered =
            motley_ring::encode_control(&ControlMessage::Edge(edge), cluster, &[], &mut answer)
                .map_err(WireError::from)
                .and_then(|()| Ok(connection.halves().1.send(&[&answer], HELLO_TIMEOUT)?));
        if answered.is_err() {
            // Whoever opened it finds out by itself, and opens another.
            return;
        }
        self.stages.keep(edge.epoch, connection.closer());
        let (mut receiver, _sender) = connection.split();
        if let Err(error) = read_edge(&mut receiver, &place, &stage.deliver) {
            (stage.broken)(edge.from, error);
        }
    }
}
