//! Encrypted connections between devices: TCP, mutual TLS 1.3, and who is let in. It moves bytes and
//! knows no frame.
//!
//! An [`Endpoint`] is what a device shows and whom it believes. [`Listener`] lets others in,
//! [`connect()`] goes to them; both give a [`Connection`], which splits into a [`Receiver`] and a
//! [`Sender`] for two threads. Every wait has a limit.

mod addresses;
mod connect;
mod connection;
mod counters;
mod endpoint;
mod enrolment;
mod handshake;
mod limits;
mod listener;
mod socket;
mod verifiers;

pub(crate) use addresses::own_addresses;
pub(crate) use connect::{ConnectError, connect};
pub(crate) use connection::{Closer, Connection, ReceiveError, Receiver, SendError, Sender};
pub(crate) use counters::{Counters, RefusedBecause};
pub(crate) use endpoint::{Clock, Endpoint, MemberCheck};
pub(crate) use enrolment::{JoinError, join, serve_applicant};
pub(crate) use limits::CLUSTER_PORT;
pub(crate) use listener::{Arrival, Listener};

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::{TestMembers, test_members, test_pair};
