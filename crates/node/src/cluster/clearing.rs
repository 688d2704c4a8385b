//! Changing plans where a device has no memory for the next part beside the one in force.
//!
//! Where all have it, the next deployment is loaded while the one in force answers. Where one has not,
//! running answers come to their end, the deployment in force leaves memory, and then the next one is
//! loaded; requests wait meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use motley_cluster::ResidencyRun;
use motley_ring::{DeploymentMember, MemberIndex, NodeId};

use super::deal::Ring;
use super::head::Control;
use super::place::{Allowance, Placement};
use super::room;
use crate::terminal;

/// A ring that is to be deployed, and whom it is for.
pub(super) struct Next {
    pub(super) ring: Ring,
    /// Where a plan has decided it.
    pub(super) placement: Option<Placement>,
    pub(super) dealt_to: BTreeSet<NodeId>,
}

/// Whether memory is being cleared.
#[derive(Default)]
pub(super) enum Clearing {
    /// It is not.
    #[default]
    No,
    /// What is in force is coming to its end, and then this is deployed; without it, whatever is
    /// planned then.
    Ending(Option<Box<Next>>),
    /// It has ended, and requests wait until the next one is loaded.
    Loading,
}

impl Control {
    /// Deploys a ring: at once if every device can hold it beside what it holds, else when the
    /// deployment in force has ended.
    pub(super) fn change_to(&mut self, next: Next, now: Duration) {
        if !self.seated || self.fits_beside(&next) {
            return self.deploy(next, now);
        }
        if let Some(serving) = &self.serving {
            terminal::note(
                "the next plan does not fit into memory beside this one: it is loaded when running \
                 answers have ended\n",
            );
            self.driver.drain(serving.epoch);
        }
        self.dealt_to = Some(next.dealt_to.clone());
        self.clearing = Clearing::Ending(Some(Box::new(next)));
    }

    /// The deployment in force has ended: its memory is freed, and the next one deployed. False if
    /// nobody waits for that.
    pub(super) fn cleared(&mut self, now: Duration) -> bool {
        let Clearing::Ending(next) = &mut self.clearing else { return false };
        let next = next.take();
        // Where a device was lost instead, clients are told to come again.
        let planned = self.serving.is_some();
        self.clearing = if planned { Clearing::Loading } else { Clearing::No };
        self.coordinator.release();
        self.serving = None;
        self.placing.placed = None;
        match next {
            Some(next) => self.deploy(*next, now),
            None => self.replan_at = Some(now),
        }
        // What was learnt meanwhile was not looked at.
        if self.placing.stale {
            self.replan_at.get_or_insert(now);
        }
        true
    }

    /// A device has gone: nothing is deployed for it any more.
    pub(super) fn forget_next_with(&mut self, node: NodeId) {
        if let Clearing::Ending(next) = &mut self.clearing {
            next.take_if(|next| next.dealt_to.contains(&node));
        }
    }

    /// Whether every device of both rings has memory for both.
    fn fits_beside(&self, next: &Next) -> bool {
        let Some(serving) = &self.serving else { return false };
        let allowance = next.placement.as_ref().map(|it| &it.allowance);
        let taken = self.taken_bytes(&next.ring, allowance.unwrap_or(&self.plan.allowances[0]));
        let members = self.coordinator.members();
        taken.iter().all(|(node, bytes)| {
            let budget_bytes = members.get(node).map_or(0, |member| member.memory_budget_bytes);
            let held_bytes = serving.memory_bytes.get(node).copied().unwrap_or(0);
            held_bytes == 0 || held_bytes.saturating_add(*bytes) <= budget_bytes
        })
    }

    /// What each member of a ring takes of its memory.
    pub(super) fn taken_bytes(&self, ring: &Ring, allowance: &Allowance) -> BTreeMap<NodeId, u64> {
        let taken = |(index, member): (usize, &DeploymentMember)| {
            let index = MemberIndex(u16::try_from(index).unwrap_or(u16::MAX));
            let windows = ring.route.windows_of(index);
            let windows: Vec<_> = windows.map(|it| (it.start, it.end)).collect();
            let bytes = self.taken_by(member.node, &windows, &member.residency, allowance);
            (member.node, bytes)
        };
        ring.members.iter().enumerate().map(taken).collect()
    }

    /// As [`Self::taken_bytes`], of one node.
    pub(super) fn taken_by(
        &self,
        node: NodeId,
        windows: &[(u32, u32)],
        residency: &[ResidencyRun],
        allowance: &Allowance,
    ) -> u64 {
        let members = self.coordinator.members();
        let budget_bytes = members.get(&node).map_or(0, |member| member.memory_budget_bytes);
        let (head, sizes) = (node == self.own, &allowance.sizes);
        let fixed_bytes = sizes.fixed_bytes(head);
        let left_bytes = budget_bytes.saturating_sub(fixed_bytes);
        let Some(layers_bytes) = room::whole_bytes(sizes, windows, residency, left_bytes) else {
            // Its GPU's memory is not looked at, so that it counts as full.
            return budget_bytes;
        };
        let copies_bytes = self.placing.copies.bytes(windows, head);
        let bytes = fixed_bytes + layers_bytes;
        // Weights are laid out twice where there is room for it.
        if bytes + copies_bytes <= budget_bytes { bytes + copies_bytes } else { bytes }
    }
}
