//! A node's control connection at the head, with a thread for each direction.

use std::io;
use std::sync::mpsc::{Sender, SyncSender, sync_channel};
use std::thread;

use motley_ring::limits::LOST_AFTER;
use motley_ring::{ControlMessage, NodeId, Welcome};

use super::head::Event;
use super::wire::MessageConnection;
use crate::transport::Closer;

/// Messages that wait to be written to one node at most; one that is further behind is cut off.
const MESSAGES_WAITING_MAX: usize = 256;

/// A node with a control connection.
pub(super) struct Session {
    id: u64,
    outbox: SyncSender<ControlMessage>,
    closer: Closer,
}

impl Session {
    /// Welcomes a node, and hands on what it says until its connection ends.
    ///
    /// # Errors
    /// When the system refuses a thread; the connection is closed then.
    pub(super) fn start(
        node: NodeId,
        id: u64,
        welcome: Welcome,
        connection: MessageConnection,
        events: Sender<Event>,
    ) -> io::Result<Self> {
        let MessageConnection { mut receiver, mut sender, closer } = connection;
        let (outbox, outgoing) = sync_channel::<ControlMessage>(MESSAGES_WAITING_MAX);
        let cut = closer.clone();
        let writing = move || {
            let mut sent = sender.send(&ControlMessage::Welcome(welcome), &[]);
            while sent.is_ok() {
                let Ok(message) = outgoing.recv() else { return };
                sent = sender.send(&message, &[]);
            }
            cut.close();
        };
        let reading = move || {
            loop {
                match receiver.receive(LOST_AFTER, true) {
                    Ok(Some((message, _))) => {
                        if events.send(Event::Message(node, id, message)).is_err() {
                            return;
                        }
                    }
                    Ok(None) => {}
                    Err(_) => break,
                }
            }
            let _ = events.send(Event::Closed(node, id));
        };
        let session = Self { id, outbox, closer };
        let thread = |name: &str| thread::Builder::new().name(name.to_owned());
        let started =
            thread("control out").spawn(writing).and_then(|_| thread("control in").spawn(reading));
        if let Err(error) = started {
            session.close();
            return Err(error);
        }
        Ok(session)
    }

    /// Whether it is the session of this number.
    pub(super) fn is(&self, id: u64) -> bool {
        self.id == id
    }

    /// Sends a message; a node that is too far behind is cut off instead.
    pub(super) fn send(&self, message: ControlMessage) {
        if self.outbox.try_send(message).is_err() {
            self.close();
        }
    }

    /// Closes the connection.
    pub(super) fn close(&self) {
        self.closer.close();
    }
}
