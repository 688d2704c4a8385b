//! The member list as a running head follows it: who was removed, and who is to get no layers.

use std::collections::BTreeSet;
use std::time::Duration;

use motley_ring::NodeId;

use super::head::Control;
use crate::identity::{self, Roster, Standing, StateFolder};

/// How often the member list is read again, so that a removed node goes at once.
const INTERVAL: Duration = Duration::from_millis(500);

/// What was last read.
pub(super) struct RosterWatch {
    roster: Roster,
    read: Duration,
    drained: BTreeSet<NodeId>,
}

impl RosterWatch {
    pub(super) fn new(folder: &StateFolder) -> Self {
        let mut watch =
            Self { roster: Roster::new(folder), read: Duration::ZERO, drained: BTreeSet::new() };
        watch.read_drained();
        watch
    }

    pub(super) fn is_drained(&self, node: &NodeId) -> bool {
        self.drained.contains(node)
    }

    /// Reads who is drained, and tells whether those are others than before. A list that cannot be
    /// read changes nothing.
    fn read_drained(&mut self) -> bool {
        let Ok(list) = self.roster.list() else { return false };
        let drained = list.members().iter().filter(|member| member.drained && !member.removed);
        let drained = drained.map(|member| NodeId(*member.id.as_bytes())).collect();
        let changed = drained != self.drained;
        self.drained = drained;
        changed
    }
}

impl Control {
    /// Removed nodes lose their connections at once; drained ones lose their layers as soon as what
    /// is being answered is done; those that failed get another chance.
    pub(super) fn look_at_roster(&mut self, now: Duration) {
        if now < self.roster.read + INTERVAL {
            return;
        }
        self.roster.read = now;
        self.refuse_waiting();
        self.look_at_placing(now);
        for (node, session) in &self.sessions {
            let id = identity::NodeId::from_bytes(node.0);
            if self.plan.endpoint.standing(&id) != Standing::Member {
                session.close();
            }
        }
        if self.roster.read_drained() {
            self.replan_at.get_or_insert(now);
        }
        let over: Vec<NodeId> = self
            .shunned
            .iter()
            .filter(|(_, until)| now >= **until)
            .map(|(node, _)| *node)
            .collect();
        for node in over {
            self.shunned.remove(&node);
            self.replan_at.get_or_insert(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::MemberList;

    #[test]
    fn what_is_drained_is_noticed_once() {
        let outer = tempfile::tempdir().unwrap();
        let folder = StateFolder::open(outer.path()).unwrap();
        let id = identity::NodeId::from_bytes([7; 32]);
        let mut list = MemberList::default();
        list.add(id, "nas", 5).unwrap();
        list.save(&folder).unwrap();
        let mut watch = RosterWatch::new(&folder);
        assert!(!watch.is_drained(&NodeId([7; 32])));
        list.drain(&id, true).unwrap();
        list.save(&folder).unwrap();
        assert!(watch.read_drained());
        assert!(watch.is_drained(&NodeId([7; 32])));
        assert!(!watch.read_drained(), "it is the same as before");
        assert!(RosterWatch::new(&folder).is_drained(&NodeId([7; 32])), "a head that starts later");
        list.drain(&id, false).unwrap();
        list.save(&folder).unwrap();
        assert!(watch.read_drained());
        assert!(!watch.is_drained(&NodeId([7; 32])));
    }
}
