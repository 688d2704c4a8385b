//! Who gets which layers: by a plan, or dealt out as the user says, and the deployment of that.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use motley_cluster::KvType;
use motley_ring::{
    AssignmentSpec, ClusterId, ControlMessage, Deployment, DeploymentMember, Epoch, LinkQuality,
    List, MeasureLinks, ModelDigest, ModelManifestRef, Name, NodeId, Peer, ProfileJson, Route,
    Survey,
};

use super::alone::promised;
use super::clearing::{Clearing, Next};
use super::head::{Control, Event, SETTLE};
use super::place::{
    Allowance, Copies, Corrections, Load, Move, NoPlacement, PlacedMember, Placement, Question,
    Surveyed, place,
};
use super::split::{self, Split};
use crate::driver::AnswerError;
use crate::plan;
use crate::stage;
use crate::terminal;

/// Between two times that corrections are kept.
const KEEP_INTERVAL: Duration = Duration::from_secs(30);

/// What a ring is to be, whoever decided it.
pub(super) struct Ring {
    pub(super) route: Route,
    pub(super) members: Vec<DeploymentMember>,
    slots: u32,
    kv_type: KvType,
    batch_rows: u32,
    groups: u32,
}

impl Control {
    /// Nodes that may have layers.
    fn there(&self) -> BTreeSet<NodeId> {
        let members = self.coordinator.members().keys().copied();
        members
            .filter(|node| !self.shunned.contains_key(node) && !self.roster.is_drained(node))
            .collect()
    }

    /// Gives layers to the nodes that are there, if those are others than before.
    pub(super) fn deal(&mut self, now: Duration) {
        if matches!(self.clearing, Clearing::Ending(_)) {
            // When memory is free this is called again.
            self.placing.stale = true;
            return;
        }
        let there = self.there();
        self.complete_once |= there.len() > self.plan.nodes_awaited;
        if !self.complete_once {
            let missing = self.plan.nodes_awaited + 1 - there.len();
            self.problem = Some(format!("waiting for {missing} more nodes"));
            return;
        }
        if self.plan.split == Split::Auto && self.placing.cannot.is_none() {
            return self.deal_by_plan(&there, now);
        }
        if self.dealt_to.as_ref() == Some(&there) {
            return;
        }
        match self.dealt_out(&there) {
            Ok(ring) => self.change_to(Next { ring, placement: None, dealt_to: there }, now),
            Err(error) => self.give_up(format!("{error:#}")),
        }
    }

    /// Nothing can be deployed with these nodes. What is in force serves on.
    pub(super) fn give_up(&mut self, reason: String) {
        terminal::note(&format!("no plan: {reason}\n"));
        self.problem = Some(reason);
        self.dealt_to = None;
        self.refuse_waiting();
    }

    /// Without a plan nobody will answer what waits. A request may have come in while the last
    /// plan broke, so that this is done again and again.
    pub(super) fn refuse_waiting(&self) {
        if let Some(reason) =
            self.problem.as_deref().filter(|_| !self.seated && self.serving.is_none())
        {
            self.driver.refuse_waiting(&AnswerError::NoPlan { reason: reason.into() });
        }
    }

    /// Layers by memory, evenly, or as the user says.
    fn dealt_out(&self, there: &BTreeSet<NodeId>) -> anyhow::Result<Ring> {
        let members = self.coordinator.members();
        let mut nodes: Vec<NodeId> =
            there.iter().copied().filter(|node| *node != self.own).collect();
        nodes.sort_by_key(|node| (members[node].name.clone(), *node));
        nodes.insert(0, self.own);
        let rooms: Vec<split::Room> = nodes
            .iter()
            .map(|node| split::Room {
                budget_bytes: members[node].memory_budget_bytes,
                fixed_bytes: self.plan.allowances[0].sizes.fixed_bytes(*node == self.own),
            })
            .collect();
        let asked = &self.plan.allowances[0];
        let counts = split::counts(&self.plan.split, &asked.sizes.layer_bytes, &rooms)?;
        let (route, order) = split::route(&counts, self.plan.rounds)?;
        let member = |index: usize| DeploymentMember { node: nodes[index], residency: Vec::new() };
        Ok(Ring {
            members: order.into_iter().map(member).collect(),
            slots: asked.slots,
            kv_type: asked.kv_type,
            batch_rows: asked.batch_rows,
            groups: count(route.stages()).max(1),
            route,
        })
    }

    /// Begins to deploy a ring. What is in force serves on until all can take over.
    pub(super) fn deploy(&mut self, next: Next, now: Duration) {
        let Next { ring, placement, dealt_to } = next;
        if let Some(placement) = placement {
            self.placing.placed = Some(Arc::new(placement));
            self.placing.placed_once = true;
        }
        self.upcoming_bytes = self.taken_bytes(&ring, self.allowance());
        let engine = &self.plan.engine;
        let assignment = AssignmentSpec {
            cluster: ClusterId(self.plan.endpoint.identity().cluster().prefix()),
            epoch: Epoch(0),
            slots: ring.slots,
            context_tokens: count(engine.context_tokens),
            batch_rows_max: ring.batch_rows,
            groups: ring.groups,
            width: count(self.plan.model.directory().hyper.embedding_length),
            wire_element: self.plan.wire_element,
            kv_type: ring.kv_type,
            route: ring.route,
        };
        let deployment = Deployment {
            members: ring.members,
            assignment,
            model: self.model_reference(),
            sources: self.sources(),
        };
        match self.coordinator.deploy(deployment, now) {
            Ok(epoch) => {
                super::epoch::keep(&self.plan.folder, epoch);
                self.problem = None;
                self.progress.clear();
                self.dealt_to = Some(dealt_to);
            }
            Err(refused) => self.give_up(refused.to_string()),
        }
    }

    /// What the ring is planned for.
    pub(super) fn allowance(&self) -> &Allowance {
        let asked = &self.plan.allowances[0];
        self.placing.placed.as_ref().map_or(asked, |placed| &placed.allowance)
    }

    /// Nodes that have blocks of the model: this one all, those that are here and have had layers
    /// some.
    fn sources(&self) -> Vec<NodeId> {
        let members = self.coordinator.members();
        let others = self.holders.iter().copied().filter(|node| *node != self.own);
        let others = others.filter(|node| members.contains_key(node));
        [self.own].into_iter().chain(others).collect()
    }

    fn model_reference(&self) -> ModelManifestRef {
        let manifest = &self.plan.manifest;
        ModelManifestRef {
            name: Name::cut(&self.plan.model_name),
            digest: ModelDigest(*manifest.digest().as_bytes()),
            file_bytes: manifest.bytes(),
            block_bytes: manifest.block_bytes(),
        }
    }

    /// Begins to measure what plans are made of, if plans are wanted.
    pub(super) fn begin_placing(&mut self, now: Duration) {
        self.placing.copies = Arc::new(Copies::of_model(self.plan.model.directory()));
        if self.plan.split != Split::Auto {
            return;
        }
        let name = plan::profile_name(&self.plan.model_name);
        match plan::model_profile(self.plan.model.directory(), &name) {
            Ok(model) => self.placing.model = Some(Arc::new(model)),
            Err(failure) => return self.place_by_memory(&failure.report()),
        }
        let kept = self.plan.profile.kept_corrections(&self.plan.model_name);
        self.placing.remember(Corrections::from_kept(&kept));
        self.placing.ask(self.own, BTreeSet::new(), now);
        let (source, path) = (self.plan.profile.clone(), self.plan.model.path().to_owned());
        let events = self.events.clone();
        let measuring = move || {
            let surveyed = source.survey(&name, || Ok(path));
            let surveyed = surveyed.map_err(|error| format!("{error:#}"));
            let _ = events.send(Event::OwnSurvey(surveyed));
        };
        if let Err(error) = thread::Builder::new().name("measure".to_owned()).spawn(measuring) {
            self.place_by_memory(&error.to_string());
        }
    }

    /// Without a profile of the head there is no plan.
    fn place_by_memory(&mut self, reason: &str) {
        let reason = reason.trim_end();
        terminal::note(&format!(
            "this device cannot be planned with: {reason}; layers are dealt out by memory\n"
        ));
        self.placing.cannot = Some(reason.to_owned());
    }

    /// The head itself was measured, or cannot be.
    pub(super) fn own_surveyed(&mut self, surveyed: Result<Surveyed, String>, now: Duration) {
        match surveyed {
            Ok(surveyed) => self.placing.know(self.own, surveyed),
            Err(reason) => self.place_by_memory(&reason),
        }
        self.replan_at.get_or_insert(now);
    }

    /// Asks a node that has come to measure itself and the way to here.
    pub(super) fn survey(&mut self, node: NodeId, now: Duration) {
        if self.plan.split != Split::Auto || self.placing.cannot.is_some() {
            return;
        }
        let Some(own) = self.peer(self.own) else { return };
        let peers = List::new(vec![own]).unwrap_or_default();
        let others = self.coordinator.members().keys().copied();
        let others: BTreeSet<NodeId> = others.filter(|other| *other != node).collect();
        let engine = &self.plan.engine;
        let survey = Survey {
            model: self.model_reference(),
            sources: peers.clone(),
            context_tokens: count(engine.context_tokens),
            batch_rows_max: count(engine.batch_rows_max),
            kv_type: stage::kv_type(engine.cache),
            others: List::new(others.iter().copied().collect()).unwrap_or_default(),
        };
        self.placing.ask(node, others, now);
        self.send(node, ControlMessage::MeasureLinks(MeasureLinks { peers }));
        self.send(node, ControlMessage::Survey(Box::new(survey)));
    }

    fn peer(&self, node: NodeId) -> Option<Peer> {
        let member = self.coordinator.members().get(&node)?;
        Some(Peer { node, addresses: member.addresses.clone() })
    }

    /// A node has told of itself. Those that were there when it was asked measure the ways to it.
    pub(super) fn surveyed(&mut self, node: NodeId, profile: &ProfileJson, now: Duration) {
        if let Err(refused) = self.placing.judge(node, profile) {
            terminal::note(&format!("{} gets no layers: {refused}\n", self.name_of(node)));
        }
        let Some(peer) = self.peer(node) else { return };
        let peers = List::new(vec![peer]).unwrap_or_default();
        let others: Vec<NodeId> = self.sessions.keys().copied().collect();
        for other in others {
            if self.placing.admits(node, other) && !self.placing.knows_way(other, node) {
                self.placing.await_way(other, node, now);
                let links = MeasureLinks { peers: peers.clone() };
                self.send(other, ControlMessage::MeasureLinks(links));
            }
        }
        self.replan_at.get_or_insert(now + SETTLE);
    }

    /// A node cannot be measured.
    pub(super) fn survey_failed(&mut self, node: NodeId, cause: &str, now: Duration) {
        terminal::note(&format!("{} gets no layers: {cause}\n", self.name_of(node)));
        self.placing.refuse(node, format!("it cannot be measured: {cause}"));
        self.replan_at.get_or_insert(now + SETTLE);
    }

    /// The way between two nodes was measured.
    pub(super) fn link_measured(
        &mut self,
        node: NodeId,
        to: NodeId,
        quality: Option<LinkQuality>,
        now: Duration,
    ) {
        if !self.coordinator.members().contains_key(&to) {
            return;
        }
        if let Err(refused) = self.placing.learn_way(node, to, quality) {
            let (from, to) = (self.name_of(node), self.name_of(to));
            terminal::note(&format!("the way from {from} to {to} is not believed: {refused}\n"));
        }
        self.replan_at.get_or_insert(now + SETTLE);
    }

    /// Looks whether what was learnt since the last plan is reason for another.
    pub(super) fn look_at_placing(&mut self, now: Duration) {
        if self.plan.split != Split::Auto {
            return;
        }
        if self.placing.look(now) {
            self.replan_at.get_or_insert(now);
        }
        let there = self.there();
        for (from, to) in self.placing.ways_to_retry(&there, self.own, now) {
            let peers = List::new(self.peer(to).into_iter().collect()).unwrap_or_default();
            self.send(from, ControlMessage::MeasureLinks(MeasureLinks { peers }));
        }
        if now >= self.kept_at + KEEP_INTERVAL {
            self.kept_at = now;
            self.keep_corrections();
        }
    }

    /// Keeps what was learnt of devices for the next start.
    pub(super) fn keep_corrections(&mut self) {
        if let Some(corrections) = self.placing.take_learnt() {
            self.plan.profile.keep_corrections(&self.plan.model_name, &corrections.to_kept());
        }
    }

    /// Asks the planner, on a thread of its own.
    fn deal_by_plan(&mut self, there: &BTreeSet<NodeId>, now: Duration) {
        let urgent = self.placing.placed_once && self.dealt_to.is_none();
        if !urgent && self.placing.is_measuring(there, self.own, now) {
            self.problem = None;
            return;
        }
        let candidates = self.placing.candidates(there, self.own, now);
        let settled = self.dealt_to.as_ref() == Some(&candidates) && !self.placing.stale;
        if settled || !candidates.contains(&self.own) {
            return;
        }
        if self.placing.asked.is_some() {
            // Its answer leads here again.
            self.placing.stale = true;
            return;
        }
        let Some(question) = self.question(&candidates, now) else { return };
        self.placing.stale = false;
        self.placing.asked = Some(candidates);
        let (events, in_force) = (self.events.clone(), self.placing.in_force());
        let planning = move || {
            let placement = place(&question, in_force.as_ref());
            let _ = events.send(Event::Planned(Box::new(placement)));
        };
        if let Err(error) = thread::Builder::new().name("plan".to_owned()).spawn(planning) {
            self.placing.asked = None;
            self.give_up(error.to_string());
        }
    }

    fn question(&self, candidates: &BTreeSet<NodeId>, now: Duration) -> Option<Question> {
        let members = self.coordinator.members();
        let mut nodes: Vec<NodeId> =
            candidates.iter().copied().filter(|node| *node != self.own).collect();
        nodes.sort_by_key(|node| (members[node].name.clone(), *node));
        nodes.insert(0, self.own);
        let candidate = |node: &NodeId| {
            let member = &members[node];
            let about = (member.name.to_string(), member.memory_budget_bytes);
            self.placing.candidate(*node, self.own, now, about)
        };
        Some(Question {
            candidates: nodes.iter().filter_map(candidate).collect(),
            links: self.placing.links(),
            model: Arc::clone(self.placing.model.as_ref()?),
            goal: self.plan.goal.clone(),
            allowances: self.plan.allowances.clone(),
            copies: Arc::clone(&self.placing.copies),
        })
    }

    /// The planner has answered.
    pub(super) fn planned(&mut self, placement: Result<Placement, NoPlacement>, now: Duration) {
        let Some(asked) = self.placing.asked.take() else { return };
        if asked.iter().any(|node| !self.coordinator.members().contains_key(node)) {
            // Not of these devices any more.
            self.placing.stale = true;
            self.replan_at.get_or_insert(now);
            return;
        }
        if self.placing.stale {
            self.replan_at.get_or_insert(now + SETTLE);
        }
        match placement {
            Ok(placement) => self.adopt(placement, asked, now),
            Err(error) => self.give_up(error.to_string()),
        }
    }

    /// Deploys a placement, unless it is what is in force or not worth the move.
    fn adopt(&mut self, placement: Placement, asked: BTreeSet<NodeId>, now: Duration) {
        let in_force = self
            .placing
            .placed
            .clone()
            .filter(|placed| placed.members.iter().all(|it| asked.contains(&it.node)));
        if let Some(placed) = in_force {
            let nodes = |it: &Placement| it.members.iter().map(|it| it.node).collect::<Vec<_>>();
            let alike = placed.route == placement.route && placed.allowance == placement.allowance;
            if alike && nodes(&placed) == nodes(&placement) {
                self.placing.placed = Some(Arc::new(placement));
                self.dealt_to = Some(asked);
                return;
            }
            if let Some(token_now_s) = placement.token_in_force_s.filter(|_| self.serving.is_some())
            {
                let moved = self.moved(&placed, &placement, token_now_s, now);
                if !moved.is_worth_it() {
                    terminal::note(&format!("the plan stays: {}\n", moved.why_not()));
                    let left_out = placement.left_out;
                    let kept = Placement { left_out, ..Placement::clone(&placed) };
                    self.placing.placed = Some(Arc::new(kept));
                    self.dealt_to = Some(asked);
                    return;
                }
            }
        }
        let member =
            |it: &PlacedMember| DeploymentMember { node: it.node, residency: it.residency.clone() };
        let ring = Ring {
            members: placement.members.iter().map(member).collect(),
            slots: placement.slots,
            kv_type: placement.allowance.kv_type,
            batch_rows: placement.allowance.batch_rows,
            groups: placement.groups.unwrap_or_else(|| count(placement.route.stages())).max(1),
            route: placement.route.clone(),
        };
        self.change_to(Next { ring, placement: Some(placement), dealt_to: asked }, now);
    }

    /// What a move to another placement takes and brings.
    fn moved(&self, from: &Placement, to: &Placement, token_now_s: f64, now: Duration) -> Move {
        let layers_of = |placement: &Placement, node: NodeId| -> BTreeSet<u32> {
            let stops = placement.route.stops().iter();
            let own = stops.filter(|stop| placement.members[stop.member.index()].node == node);
            own.flat_map(|stop| stop.layers.clone()).collect()
        };
        let load = |member: &PlacedMember| {
            let (before, then) = (layers_of(from, member.node), layers_of(to, member.node));
            let bytes = then
                .difference(&before)
                .filter_map(|layer| to.allowance.sizes.layer_bytes.get(*layer as usize))
                .sum();
            let way = self.placing.way(self.own, member.node, self.own).link();
            let about = (String::new(), 0);
            let candidate = self.placing.candidate(member.node, self.own, now, about)?;
            let disk = candidate.surveyed.device.disk.sequential_bytes_per_s;
            Some(Load {
                bytes,
                link_bytes_per_s: way.map(|link| link.bytes_per_s.value()),
                disk_bytes_per_s: disk.value(),
            })
        };
        Move {
            token_now_s,
            token_then_s: to.token_s,
            loads: to.members.iter().filter_map(load).collect(),
        }
    }

    /// What is told when a plan is deployed.
    pub(super) fn placed_words(&self, now: Duration) -> String {
        let Some(placed) = &self.placing.placed else { return String::new() };
        let mut text = promised(placed.token_s, placed.first_token_s);
        for reason in &placed.reasons {
            text += &format!("  {reason}\n");
        }
        let nodes = self.coordinator.members().keys();
        for node in nodes.filter(|node| placed.members.iter().all(|it| it.node != **node)) {
            if !placed.left_out.contains_key(node)
                && let Some(reason) = self.placing.why_left_out(*node, self.own, now)
            {
                text += &format!("  {}: not used; {reason}.\n", self.name_of(*node));
            }
        }
        text
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
