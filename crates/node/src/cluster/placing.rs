//! What a head collects before it places layers: profiles, ways, and how far predictions were wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use motley_cluster::{ModelProfile, Residency, ResidencyRun};
use motley_ring::limits::{PROBE_TIMEOUT, SURVEY_TIMEOUT};
use motley_ring::{LinkQuality, NodeId, ProfileJson};

use super::place::{Candidate, Copies, Corrections, InForce, KnownLinks, Placement, Surveyed, Way};

/// How long a plan waits for a way between two members.
const WAY_PATIENCE: Duration = Duration::from_secs(2 * PROBE_TIMEOUT.as_secs());

/// Between two attempts at ways that could not be measured: a network may have been away.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// Between two looks whether predictions were so wrong that another plan may be better.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);

/// A device that is so much faster or slower than its plan was made for is planned with anew.
const CHANGE_MIN: f64 = 0.15;

/// How far the survey of a device is.
#[derive(Debug)]
enum Survey {
    /// It was asked, and has until then to answer.
    Asked { until: Duration },
    /// It has answered.
    Known(Arc<Surveyed>),
    /// It cannot be planned with.
    Refused(String),
}

/// What is known for placing layers.
#[derive(Debug, Default)]
pub(super) struct Placing {
    surveys: BTreeMap<NodeId, Survey>,
    /// Whose connections a device takes: those that it was told of when it was asked.
    admitted: BTreeMap<NodeId, BTreeSet<NodeId>>,
    links: KnownLinks,
    /// Ways that are being measured, and until when they are waited for.
    ways_awaited: BTreeMap<(NodeId, NodeId), Duration>,
    corrections: Corrections,
    /// What was learnt since corrections were kept last.
    learnt: bool,
    looked: Duration,
    retried: Duration,
    /// The model as the planner sees it; nothing if it cannot be planned for.
    pub(super) model: Option<Arc<ModelProfile>>,
    /// What its weights take in a second layout.
    pub(super) copies: Arc<Copies>,
    /// Devices of which a plan is being made.
    pub(super) asked: Option<BTreeSet<NodeId>>,
    /// Something was learnt that the last plan did not know.
    pub(super) stale: bool,
    /// A plan was deployed before, so that the next one may be urgent.
    pub(super) placed_once: bool,
    /// The placement in force, or being deployed.
    pub(super) placed: Option<Arc<Placement>>,
    /// Why layers are dealt out by memory instead.
    pub(super) cannot: Option<String>,
}

impl Placing {
    /// A device was asked to measure itself, and told of the others that are there.
    pub(super) fn ask(&mut self, node: NodeId, others: BTreeSet<NodeId>, now: Duration) {
        self.surveys.insert(node, Survey::Asked { until: now + SURVEY_TIMEOUT });
        self.admitted.insert(node, others);
    }

    /// Whether a device that has answered takes connections of another. Of two devices the later
    /// one was told of the earlier one, and so the earlier one measures the way between them.
    pub(super) fn admits(&self, node: NodeId, caller: NodeId) -> bool {
        self.admitted.get(&node).is_some_and(|callers| callers.contains(&caller))
    }

    /// A device has measured itself.
    pub(super) fn know(&mut self, node: NodeId, surveyed: Surveyed) {
        self.surveys.insert(node, Survey::Known(Arc::new(surveyed)));
        self.stale = true;
    }

    /// Judges what a device has told of itself.
    ///
    /// # Errors
    /// Why it is not believed, for whoever reads; the device gets no layers.
    pub(super) fn judge(&mut self, node: NodeId, told: &ProfileJson) -> Result<(), String> {
        match Surveyed::from_json(told) {
            Ok(surveyed) => {
                self.know(node, surveyed);
                Ok(())
            }
            Err(refused) => {
                self.refuse(node, refused.to_string());
                Err(refused.to_string())
            }
        }
    }

    /// A device cannot be planned with.
    pub(super) fn refuse(&mut self, node: NodeId, reason: String) {
        self.surveys.insert(node, Survey::Refused(reason));
        self.stale = true;
    }

    /// The way between two devices is being measured.
    pub(super) fn await_way(&mut self, from: NodeId, to: NodeId, now: Duration) {
        self.ways_awaited.insert((from, to), now + WAY_PATIENCE);
    }

    /// Whether the way was measured already.
    pub(super) fn knows_way(&self, from: NodeId, to: NodeId) -> bool {
        self.links.knows(from, to)
    }

    /// A device has measured the way to another.
    ///
    /// # Errors
    /// Why it is not believed.
    pub(super) fn learn_way(
        &mut self,
        from: NodeId,
        to: NodeId,
        quality: Option<LinkQuality>,
    ) -> Result<(), String> {
        let was_awaited = self.ways_awaited.remove(&(from, to)).is_some();
        let before = self.links.clone();
        let learnt = self.links.learn(from, to, quality);
        self.stale |= was_awaited || self.links != before;
        learnt.map_err(|refused| refused.to_string())
    }

    /// Ways that could not be measured, each from the device that can call the other, when it is
    /// time to try again.
    pub(super) fn ways_to_retry(
        &mut self,
        there: &BTreeSet<NodeId>,
        own: NodeId,
        now: Duration,
    ) -> Vec<(NodeId, NodeId)> {
        if now < self.retried + RETRY_INTERVAL {
            return Vec::new();
        }
        self.retried = now;
        let is_there = |(from, to): &(NodeId, NodeId)| there.contains(from) && there.contains(to);
        // Ways to the head are measured by its members.
        let calls =
            |(from, to): &(NodeId, NodeId)| *from != own && (*to == own || self.admits(*to, *from));
        self.links.missing().filter(is_there).filter(calls).collect()
    }

    /// The way from one device to another.
    pub(super) fn way(&self, from: NodeId, to: NodeId, head: NodeId) -> Way {
        self.links.between(from, to, head)
    }

    /// All that is known of the ways.
    pub(super) fn links(&self) -> KnownLinks {
        self.links.clone()
    }

    /// Forgets a device that has gone, but not how far its predictions were wrong.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.surveys.remove(&node);
        self.admitted.remove(&node);
        self.links.forget(node);
        self.ways_awaited.retain(|(from, to), _| *from != node && *to != node);
    }

    /// Whether something is still being measured that is worth waiting for.
    pub(super) fn is_measuring(
        &self,
        there: &BTreeSet<NodeId>,
        own: NodeId,
        now: Duration,
    ) -> bool {
        let device = |node: &NodeId| match self.surveys.get(node) {
            Some(Survey::Asked { until }) => now < *until,
            Some(Survey::Known(_)) => {
                let way = self.ways_awaited.get(&(*node, own));
                way.is_some_and(|until| now < *until)
            }
            Some(Survey::Refused(_)) | None => false,
        };
        let way = |((from, to), until): (&(NodeId, NodeId), &Duration)| {
            there.contains(from) && there.contains(to) && now < *until
        };
        there.iter().any(device) || self.ways_awaited.iter().any(way)
    }

    /// What is known of a device for planning, or why nothing is.
    fn known(&self, node: NodeId, own: NodeId, now: Duration) -> Result<&Arc<Surveyed>, String> {
        match self.surveys.get(&node) {
            Some(Survey::Known(surveyed)) if node == own || self.links.knows(node, own) => {
                Ok(surveyed)
            }
            Some(Survey::Refused(reason)) => Err(reason.clone()),
            Some(Survey::Asked { until }) if now >= *until => {
                Err(format!("it was not measured within {} s", SURVEY_TIMEOUT.as_secs()))
            }
            Some(Survey::Known(_)) if !self.ways_awaited.contains_key(&(node, own)) => {
                Err("the way to it cannot be measured".to_owned())
            }
            _ => Err("it is being measured".to_owned()),
        }
    }

    /// Devices of `there` that can be planned with.
    pub(super) fn candidates(
        &self,
        there: &BTreeSet<NodeId>,
        own: NodeId,
        now: Duration,
    ) -> BTreeSet<NodeId> {
        there.iter().copied().filter(|node| self.known(*node, own, now).is_ok()).collect()
    }

    /// A device for the planner; `about` is its name and the memory it gives.
    pub(super) fn candidate(
        &self,
        node: NodeId,
        own: NodeId,
        now: Duration,
        about: (String, u64),
    ) -> Option<Candidate> {
        let surveyed = Arc::clone(self.known(node, own, now).ok()?);
        let factor = if surveyed.measured { self.corrections.factor(node) } else { 1.0 };
        let (name, budget_bytes) = about;
        Some(Candidate { node, name, budget_bytes, surveyed, factor })
    }

    /// Why a device has no layers, if that is known.
    pub(super) fn why_left_out(&self, node: NodeId, own: NodeId, now: Duration) -> Option<String> {
        if let Err(reason) = self.known(node, own, now) {
            return Some(reason);
        }
        self.placed.as_ref()?.left_out.get(&node).cloned()
    }

    /// The ring in force, for the planner to compare with.
    pub(super) fn in_force(&self) -> Option<InForce> {
        let placed = self.placed.as_ref()?;
        let nodes = placed.members.iter().map(|member| member.node).collect();
        let waiting_s = placed.waiting_s;
        Some(InForce { route: placed.route.clone(), nodes, waiting_s })
    }

    /// Predicted time of a member for computing a token, the one for sending it, and the factor
    /// that they were corrected by.
    pub(super) fn predicted(&self, node: NodeId) -> Option<(f64, f64, f64)> {
        let members = &self.placed.as_ref()?.members;
        let member = members.iter().find(|member| member.node == node)?;
        Some((member.compute_s, member.hop_s, member.factor))
    }

    /// How the plan in force keeps the layers of a member.
    pub(super) fn residency(&self, node: NodeId) -> &[ResidencyRun] {
        let members = self.placed.as_ref().map_or(&[][..], |placed| &placed.members);
        let member = members.iter().find(|member| member.node == node);
        member.map_or(&[], |member| &member.residency)
    }

    /// Takes what a member has needed for a token. One that streams weights has waited for its disk
    /// in that time, which says nothing of its processor.
    pub(super) fn learn_time(&mut self, node: NodeId, measured_s: f64) {
        if self.residency(node).iter().any(|run| run.weights == Residency::Stream) {
            return;
        }
        let believed = |survey: &Survey| matches!(survey, Survey::Known(it) if it.measured);
        if let Some((predicted_s, _, used)) = self.predicted(node)
            && self.surveys.get(&node).is_some_and(believed)
        {
            self.corrections.learn(node, used, predicted_s, measured_s);
            self.learnt = true;
        }
    }

    /// Goes on with what was learnt before.
    pub(super) fn remember(&mut self, corrections: Corrections) {
        self.corrections = corrections;
    }

    /// What is to be kept for the next start, if there is something new.
    pub(super) fn take_learnt(&mut self) -> Option<&Corrections> {
        std::mem::take(&mut self.learnt).then_some(&self.corrections)
    }

    /// How far predictions of a device were wrong.
    pub(super) fn correction(&self, node: NodeId) -> Option<f64> {
        let factor = self.corrections.factor(node);
        (factor != 1.0).then_some(factor)
    }

    /// Whether it is time to plan anew because a device is not as fast as its plan was made for, or
    /// because somebody was waited for in vain.
    pub(super) fn look(&mut self, now: Duration) -> bool {
        let overdue = |until: &Duration| now >= *until;
        let silent = self.surveys.values().any(|survey| match survey {
            Survey::Asked { until } => overdue(until),
            _ => false,
        });
        if silent {
            for survey in self.surveys.values_mut() {
                if matches!(survey, Survey::Asked { until } if now >= *until) {
                    let seconds = SURVEY_TIMEOUT.as_secs();
                    *survey = Survey::Refused(format!("it was not measured within {seconds} s"));
                }
            }
        }
        let ways = self.ways_awaited.len();
        self.ways_awaited.retain(|_, until| now < *until);
        let mut news = silent || self.ways_awaited.len() < ways;
        if now >= self.looked + LOOK_INTERVAL {
            self.looked = now;
            let members = self.placed.iter().flat_map(|placed| &placed.members);
            news |= members.into_iter().any(|member| {
                (self.corrections.factor(member.node) / member.factor - 1.0).abs() > CHANGE_MIN
            });
        }
        self.stale |= news;
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_waited_for_until_its_time_is_over() {
        let (own, other) = (NodeId([0; 32]), NodeId([1; 32]));
        let there = BTreeSet::from([own, other]);
        let mut placing = Placing::default();
        let at = Duration::from_secs;
        placing.ask(other, BTreeSet::from([own]), at(1));
        assert!(placing.is_measuring(&there, own, at(2)));
        let why = |placing: &Placing, now| placing.why_left_out(other, own, now).unwrap();
        assert_eq!(why(&placing, at(2)), "it is being measured");
        assert!(!placing.look(at(100)));
        assert!(placing.look(at(121)), "the plan goes on without it");
        assert!(!placing.is_measuring(&there, own, at(121)));
        assert_eq!(why(&placing, at(121)), "it was not measured within 120 s");
        // A device that comes back is asked again.
        placing.forget(other);
        placing.ask(other, BTreeSet::from([own]), at(122));
        assert!(placing.is_measuring(&there, own, at(123)));
    }

    #[test]
    fn of_two_devices_the_later_one_is_called() {
        let (first, second) = (NodeId([1; 32]), NodeId([2; 32]));
        let mut placing = Placing::default();
        placing.ask(first, BTreeSet::new(), Duration::ZERO);
        placing.ask(second, BTreeSet::from([first]), Duration::ZERO);
        assert!(placing.admits(second, first));
        assert!(!placing.admits(first, second), "it does not know of the second one");
        // Whoever comes back is the later one.
        placing.forget(first);
        assert!(!placing.admits(first, second));
        placing.ask(first, BTreeSet::from([second]), Duration::ZERO);
        assert!(placing.admits(first, second));
    }

    #[test]
    fn a_way_that_could_not_be_measured_is_tried_again() {
        let [own, first, second] = [0, 1, 2].map(|byte| NodeId([byte; 32]));
        let there = BTreeSet::from([own, first, second]);
        let mut placing = Placing::default();
        let at = Duration::from_secs;
        placing.ask(first, BTreeSet::from([own]), at(0));
        placing.ask(second, BTreeSet::from([own, first]), at(0));
        placing.await_way(first, second, at(0));
        for (from, to) in [(first, second), (second, own)] {
            placing.learn_way(from, to, None).unwrap();
        }
        assert!(std::mem::take(&mut placing.stale), "nobody need be waited for any more");
        assert_eq!(placing.ways_to_retry(&there, own, at(59)), []);
        assert_eq!(placing.ways_to_retry(&there, own, at(60)), [(first, second), (second, own)]);
        assert_eq!(placing.ways_to_retry(&there, own, at(61)), []);
        placing.learn_way(first, second, None).unwrap();
        assert!(!placing.stale, "it is as it was");
        let quality = LinkQuality {
            round_trip_ns: 1_000_000,
            out_bytes_per_s: 1_000_000,
            in_bytes_per_s: 1_000_000,
        };
        placing.learn_way(first, second, Some(quality)).unwrap();
        assert!(placing.stale && placing.knows_way(second, first));
        assert_eq!(placing.ways_to_retry(&there, own, at(120)), [(second, own)]);
        // A device that has gone is not asked.
        let alone = BTreeSet::from([own, first]);
        assert_eq!(placing.ways_to_retry(&alone, own, at(180)), []);
    }

    #[test]
    fn a_profile_that_is_not_believed_leaves_its_device_out() {
        let (own, other) = (NodeId([0; 32]), NodeId([1; 32]));
        let mut placing = Placing::default();
        let told = serde_json::json!({ "measured": true, "device": { "name": 7 } });
        let told = ProfileJson::new(told).unwrap();
        let refused = placing.judge(other, &told).unwrap_err();
        assert!(refused.starts_with("its profile is wrong: name: invalid type"), "{refused}");
        assert_eq!(placing.why_left_out(other, own, Duration::ZERO), Some(refused));
        assert!(placing.candidates(&BTreeSet::from([own, other]), own, Duration::ZERO).is_empty());
    }
}
