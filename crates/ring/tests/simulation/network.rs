//! Virtual time, and links that delay: order is kept on each link and on no two.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::random::Random;

/// A node.
pub(crate) type Node = usize;

/// Something that happens.
#[derive(Debug)]
pub(crate) enum Event {
    /// A control message arrives.
    Control { from: Node, to: Node, bytes: Vec<u8> },
    /// A data frame arrives.
    Frame { from: Node, to: Node, bytes: Vec<u8> },
    /// A connection from a node that is gone closes.
    Closed { from: Node, to: Node },
    /// An engine has computed.
    Computed { node: Node, epoch: u64 },
    /// A preparation goes on.
    Loaded { node: Node, epoch: u64, done_bytes: u64 },
    /// Time to look at the time.
    Tick { node: Node },
    /// The next request of the script.
    Submit,
    /// A reader goes away.
    Cancel { request: u64 },
    /// A reader is behind, or no longer.
    Rest { request: u64, resting: bool },
    /// A node is gone.
    Crash { node: Node, connections_close: bool },
    /// The head makes another plan while it serves.
    Replan,
}

/// What a link carries; each has its own order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    Control,
    Data,
}

/// Everything that will happen.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) now: Duration,
    events: BTreeMap<(Duration, u64), Event>,
    last: BTreeMap<(Node, Node, Lane), Duration>,
    count: u64,
    delay_us_max: u64,
}

impl Network {
    pub(crate) fn new(delay_us_max: u64) -> Self {
        Self {
            now: Duration::ZERO,
            events: BTreeMap::new(),
            last: BTreeMap::new(),
            count: 0,
            delay_us_max,
        }
    }

    pub(crate) fn after(&mut self, delay: Duration, event: Event) {
        self.at(self.now + delay, event);
    }

    pub(crate) fn at(&mut self, time: Duration, event: Event) {
        self.count += 1;
        self.events.insert((time.max(self.now), self.count), event);
    }

    /// Puts something on a link.
    pub(crate) fn send(&mut self, random: &mut Random, lane: Lane, event: Event) {
        let (from, to) = match &event {
            Event::Control { from, to, .. }
            | Event::Frame { from, to, .. }
            | Event::Closed { from, to } => (*from, *to),
            other => panic!("{other:?} does not travel"),
        };
        let slowly = if random.chance(5) { 20 } else { 1 };
        let delay = if from == to { 0 } else { random.between(1, self.delay_us_max * slowly) };
        let last = self.last.entry((from, to, lane)).or_default();
        *last = (*last).max(self.now + Duration::from_micros(delay));
        let arrives = *last;
        self.at(arrives, event);
    }

    pub(crate) fn next(&mut self) -> Option<Event> {
        let ((time, _), event) = self.events.pop_first()?;
        self.now = time;
        Some(event)
    }
}
