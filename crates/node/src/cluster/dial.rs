//! Opens connections to other members, each at the best of the addresses that it tells.
//!
//! A device with two networks, cable and radio say, can be reached over both. Which is better only
//! measuring shows, so that all addresses that answer are measured when a member is called for the
//! first time, when its way is asked for, and when the address that was best does not answer.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SendError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use motley_ring::limits::HELLO_TIMEOUT;
use motley_ring::{Address, ClusterId, LinkQuality, NodeId, Peer};

use super::probing;
use super::wire::{MessageConnection, WireError};
use crate::identity::{self, TokenAddress};
use crate::terminal;
use crate::transport::{ConnectError, Connection, Endpoint, connect};

/// How long opening one connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long others may still answer after the first address has.
const LATER_ANSWERS: Duration = Duration::from_millis(500);

/// Addresses of one member that are compared at most: those that answered first.
const COMPARED_MAX: usize = 4;

/// Addresses are compared by the time that so many bytes take: more than the activations of a token,
/// for which delay decides, and fewer than those of a prompt, for which the rate does.
const COMPARED_BYTES: f64 = 65_536.0;

/// Why a member cannot be reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// It has said of no address where it listens.
    #[error("member {node} has told no address")]
    NoAddress {
        /// The member.
        node: NodeId,
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

/// Calls other members on behalf of this one.
#[derive(Debug)]
pub(crate) struct Dialler {
    endpoint: Arc<Endpoint>,
    best: Mutex<BTreeMap<NodeId, TokenAddress>>,
    /// One comparison at a time: two would slow each other.
    comparing: Mutex<()>,
}

/// What trying an address came to.
type Answer = (TokenAddress, Result<Connection, ConnectError>);

impl Dialler {
    /// Calls as the member that `endpoint` is.
    pub(crate) fn new(endpoint: Arc<Endpoint>) -> Self {
        Self { endpoint, best: Mutex::default(), comparing: Mutex::default() }
    }

    /// The cluster of this member and of all that it calls.
    pub(crate) fn cluster(&self) -> ClusterId {
        ClusterId(self.endpoint.identity().cluster().prefix())
    }

    /// This member.
    pub(crate) fn node(&self) -> NodeId {
        NodeId(*self.endpoint.identity().node().as_bytes())
    }

    /// Opens a connection to a member at the best of its addresses; a single one is not measured.
    ///
    /// # Errors
    /// When none of them answers; the error is the last one's.
    pub(crate) fn dial(&self, peer: &Peer) -> Result<Connection, DialError> {
        let addresses = distinct_addresses(peer);
        if let [only] = addresses.as_slice() {
            return Ok(open(&self.endpoint, peer.node, only)?);
        }
        if let Some(connection) = self.dial_known(peer, &addresses) {
            return Ok(connection);
        }
        let comparing = self.comparing.lock().unwrap_or_else(PoisonError::into_inner);
        // Somebody else may have compared them while this one waited.
        if let Some(connection) = self.dial_known(peer, &addresses) {
            return Ok(connection);
        }
        let (best, _) = self.compare(peer, addresses)?;
        drop(comparing);
        Ok(open(&self.endpoint, peer.node, &best)?)
    }

    /// Measures the way to a member over each of its addresses; the quality of the best one.
    ///
    /// # Errors
    /// When none of them answers, or no measurement comes to an end.
    pub(crate) fn measure(&self, peer: &Peer) -> Result<LinkQuality, DialError> {
        let _comparing = self.comparing.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(self.compare(peer, distinct_addresses(peer))?.1)
    }

    fn dial_known(&self, peer: &Peer, addresses: &[TokenAddress]) -> Option<Connection> {
        let known = self.best().get(&peer.node).filter(|it| addresses.contains(it)).cloned()?;
        open(&self.endpoint, peer.node, &known).ok()
    }

    fn best(&self) -> std::sync::MutexGuard<'_, BTreeMap<NodeId, TokenAddress>> {
        self.best.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Measures all that answer, one after the other, and keeps the best in mind.
    fn compare(
        &self,
        peer: &Peer,
        addresses: Vec<TokenAddress>,
    ) -> Result<(TokenAddress, LinkQuality), DialError> {
        let (answered, mut failed) =
            first_answers(peer.node, &self.call_all(peer.node, addresses)?);
        let mut measured: Vec<(TokenAddress, LinkQuality)> = Vec::new();
        for (address, connection) in answered {
            match probing::measure(MessageConnection::new(connection, self.cluster())) {
                Ok(quality) => measured.push((address, quality)),
                Err(error) => failed = error.into(),
            }
        }
        measured.sort_by(|(_, left), (_, right)| way_s(left).total_cmp(&way_s(right)));
        let Some(best) = measured.first().cloned() else { return Err(failed) };
        let before = self.best().insert(peer.node, best.0.clone());
        if measured.len() > 1 && before.as_ref() != Some(&best.0) {
            tell(peer.node, &measured);
        }
        Ok(best)
    }

    /// Calls every address on a thread of its own.
    fn call_all(
        &self,
        node: NodeId,
        addresses: Vec<TokenAddress>,
    ) -> Result<Receiver<Answer>, DialError> {
        let (answered, answers) = channel();
        for address in addresses {
            let (endpoint, answered) = (Arc::clone(&self.endpoint), answered.clone());
            let call = move || {
                let connection = open(&endpoint, node, &address);
                if let Err(SendError((_, Ok(late)))) = answered.send((address, connection)) {
                    // It is not wanted any more, and the other side is not to wonder why.
                    let _ = late.split().1.finish(HELLO_TIMEOUT);
                }
            };
            thread::Builder::new().name("call".to_owned()).spawn(call)?;
        }
        Ok(answers)
    }
}

fn open(
    endpoint: &Endpoint,
    node: NodeId,
    address: &TokenAddress,
) -> Result<Connection, ConnectError> {
    connect(address, Some(identity::NodeId::from_bytes(node.0)), endpoint, CONNECT_TIMEOUT)
}

/// The connections that were there first, and why there may be no others.
fn first_answers(
    node: NodeId,
    answers: &Receiver<Answer>,
) -> (Vec<(TokenAddress, Connection)>, DialError) {
    let (mut connections, mut failed) = (Vec::new(), DialError::NoAddress { node });
    let mut until = Instant::now() + CONNECT_TIMEOUT + LATER_ANSWERS;
    while connections.len() < COMPARED_MAX
        && let Ok((address, answer)) =
            answers.recv_timeout(until.saturating_duration_since(Instant::now()))
    {
        match answer {
            Ok(connection) => {
                if connections.is_empty() {
                    until = Instant::now() + LATER_ANSWERS;
                }
                connections.push((address, connection));
            }
            Err(error) => failed = error.into(),
        }
    }
    (connections, failed)
}

/// Every address once: the head's own is known from the session and told by the head, too.
fn distinct_addresses(peer: &Peer) -> Vec<TokenAddress> {
    let mut distinct = Vec::new();
    for address in peer.addresses.iter().filter_map(token_address) {
        if !distinct.contains(&address) {
            distinct.push(address);
        }
    }
    distinct
}

/// Seconds for [`COMPARED_BYTES`] one way.
fn way_s(quality: &LinkQuality) -> f64 {
    let delay_s = quality.round_trip_ns as f64 / 2e9;
    delay_s + COMPARED_BYTES / (quality.out_bytes_per_s.max(1) as f64)
}

/// Says which address was chosen, and over which.
fn tell(node: NodeId, measured: &[(TokenAddress, LinkQuality)]) {
    let words = |(address, quality): &(TokenAddress, LinkQuality)| {
        let round_trip_ms = quality.round_trip_ns as f64 / 1e6;
        let mbit_per_s = quality.out_bytes_per_s as f64 * 8.0 / 1e6;
        format!("{address} (round trip {round_trip_ms:.2} ms, {mbit_per_s:.0} Mbit/s)")
    };
    let all: Vec<String> = measured.iter().map(words).collect();
    let node = identity::NodeId::from_bytes(node.0).short();
    terminal::note(&format!("the way to {node}: {}\n", all.join(" rather than ")));
}

/// An address as members tell it.
pub(crate) fn token_address(address: &Address) -> Option<TokenAddress> {
    address.as_str().parse().ok()
}

#[cfg(test)]
mod tests;
