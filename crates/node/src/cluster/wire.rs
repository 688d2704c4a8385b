//! Control messages over a connection.

use std::time::Duration;

use motley_ring::limits::{CONTROL_BYTES_MAX, HELLO_BYTES_MAX, READ_TIMEOUT, WRITE_TIMEOUT};
use motley_ring::{
    CONTROL_HEADER_BYTES, ClusterId, ControlError, ControlHeader, ControlMessage, encode_control,
};

use crate::transport::{Closer, Connection, ReceiveError, Receiver, SendError, Sender};

/// Why no message came or went; the connection cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    /// Nothing was received.
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    /// Nothing was sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// What came is no message, or what was to be sent is too long for one.
    #[error(transparent)]
    Message(#[from] ControlError),
    /// Something came that has no place here.
    #[error("a message of type {found} came where {expected} was expected")]
    Unexpected {
        /// What was expected.
        expected: &'static str,
        /// What came.
        found: &'static str,
    },
}

/// A message with the raw bytes that followed it.
pub(crate) type Received = (ControlMessage, Vec<u8>);

/// The receiving half of a connection that carries messages.
#[derive(Debug)]
pub(crate) struct MessageReceiver {
    receiver: Receiver,
    cluster: ClusterId,
}

impl MessageReceiver {
    /// The next message; nothing if none began within `patience`. Before the peer is `welcome`,
    /// messages must be short.
    ///
    /// # Errors
    /// When the connection ends, or something else than a message comes.
    pub(crate) fn receive(
        &mut self,
        patience: Duration,
        welcome: bool,
    ) -> Result<Option<Received>, WireError> {
        let longest = if welcome { CONTROL_BYTES_MAX } else { HELLO_BYTES_MAX };
        match receive(&mut self.receiver, self.cluster, patience, longest) {
            Ok(received) => Ok(Some(received)),
            Err(WireError::Receive(ReceiveError::Idle)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The next message, which must come within `limit`.
    ///
    /// # Errors
    /// As [`receive`](Self::receive), and when nothing comes.
    pub(crate) fn expect(&mut self, limit: Duration, welcome: bool) -> Result<Received, WireError> {
        let received = self.receive(limit, welcome)?;
        received.ok_or(WireError::Receive(ReceiveError::Stalled))
    }
}

/// One message without raw bytes, from a connection that will carry something else.
///
/// # Errors
/// When none comes within `limit`, or something else.
pub(crate) fn receive_from(
    receiver: &mut Receiver,
    cluster: ClusterId,
    limit: Duration,
) -> Result<ControlMessage, WireError> {
    Ok(receive(receiver, cluster, limit, HELLO_BYTES_MAX)?.0)
}

fn receive(
    receiver: &mut Receiver,
    cluster: ClusterId,
    patience: Duration,
    longest: u32,
) -> Result<Received, WireError> {
    let mut bytes = [0; CONTROL_HEADER_BYTES];
    receiver.receive(&mut bytes, patience)?;
    let header = ControlHeader::decode(&bytes, cluster, longest)?;
    let mut json = vec![0; header.json_bytes as usize];
    receiver.receive(&mut json, READ_TIMEOUT).map_err(ReceiveError::in_the_middle)?;
    let message = header.decode_message(&json)?;
    let mut raw = vec![0; header.raw_bytes as usize];
    if !raw.is_empty() {
        receiver.receive(&mut raw, READ_TIMEOUT).map_err(ReceiveError::in_the_middle)?;
        header.check_raw(&raw)?;
    }
    Ok((message, raw))
}

/// The sending half of a connection that carries messages.
#[derive(Debug)]
pub(crate) struct MessageSender {
    sender: Sender,
    cluster: ClusterId,
    buffer: Vec<u8>,
}

impl MessageSender {
    /// Sends a message and the raw bytes that belong to it.
    ///
    /// # Errors
    /// When the other side does not take it, or it is too long.
    pub(crate) fn send(&mut self, message: &ControlMessage, raw: &[u8]) -> Result<(), WireError> {
        self.buffer.clear();
        encode_control(message, self.cluster, raw, &mut self.buffer)?;
        Ok(self.sender.send(&[&self.buffer, raw], WRITE_TIMEOUT)?)
    }
}

/// A connection that carries messages both ways.
#[derive(Debug)]
pub(crate) struct MessageConnection {
    pub(crate) receiver: MessageReceiver,
    pub(crate) sender: MessageSender,
    pub(crate) closer: Closer,
}

impl MessageConnection {
    /// Carries messages of `cluster` over `connection`.
    pub(crate) fn new(connection: Connection, cluster: ClusterId) -> Self {
        let closer = connection.closer();
        let (receiver, sender) = connection.split();
        Self {
            receiver: MessageReceiver { receiver, cluster },
            sender: MessageSender { sender, cluster, buffer: Vec::new() },
            closer,
        }
    }
}
