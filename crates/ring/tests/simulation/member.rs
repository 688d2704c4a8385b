//! A node: its follower, what it serves, and its fake engine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use motley_ring::{
    Accepted, Assignment, Computed, Epoch, Follower, FollowerOutput, FrameHeader, FrameRefused,
    HEADER_BYTES, Member, MemberIndex, MicroBatchId, NodeId, Outgoing, Prepare, Progress,
    ReuseRule, Work,
};

use crate::engine::FakeEngine;
use crate::network::{Event, Lane, Network, Node};
use crate::random::Random;

/// One device.
#[derive(Debug)]
pub(crate) struct SimNode {
    pub(crate) node: Node,
    pub(crate) alive: bool,
    pub(crate) follower: Option<Follower>,
    pub(crate) serving: Option<Serving>,
    prepares: BTreeMap<Epoch, Prepare>,
    pub(crate) rule: ReuseRule,
}

/// A deployment that a node takes part in.
#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) member: Member<Vec<u8>>,
    engine: FakeEngine,
    nodes: Vec<Node>,
    running: Option<Running>,
    pub(crate) dropped: u64,
}

/// What the engine computes, and what will come of it if it does not fail.
type Running = (Work<Vec<u8>>, Option<Vec<u8>>);

/// How often things go wrong, in a thousand cases.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    pub(crate) step: u64,
    pub(crate) prepare: u64,
}

/// A micro-batch that is through.
pub(crate) type Done = (MicroBatchId, Vec<u8>);

pub(crate) fn id_of(node: Node) -> NodeId {
    NodeId([node as u8; 32])
}

pub(crate) fn node_of(id: NodeId) -> Node {
    id.0[0].into()
}

impl SimNode {
    pub(crate) fn new(node: Node, rule: ReuseRule) -> Self {
        let prepares = BTreeMap::new();
        Self { node, alive: true, follower: None, serving: None, prepares, rule }
    }

    /// Carries out one thing that the follower says; what is for the head is given back.
    pub(crate) fn act(&mut self, output: FollowerOutput, network: &mut Network) {
        let node = self.node;
        match output {
            FollowerOutput::Send(_) => unreachable!("the world sends"),
            FollowerOutput::Prepare(prepare) => {
                let epoch = prepare.epoch();
                self.prepares.insert(epoch, *prepare);
                let event = Event::Loaded { node, epoch: epoch.0, done_bytes: 100 };
                network.after(Duration::from_millis(1), event);
            }
            FollowerOutput::Abandon(epoch) => {
                self.prepares.remove(&epoch).expect("it was being prepared");
            }
            FollowerOutput::Serve(epoch) => {
                let prepare = self.prepares.remove(&epoch).expect("it was prepared");
                let nodes = prepare.members.iter().map(|peer| node_of(peer.node)).collect();
                let assignment = Arc::new(prepare.assignment);
                let engine = FakeEngine::new(assignment.route().layers(), self.rule);
                let member = Member::new(prepare.member, assignment);
                let serving = Serving { member, engine, nodes, running: None, dropped: 0 };
                self.serving = Some(serving);
            }
            FollowerOutput::Retire(epoch) => {
                let serves = |serving: &mut Serving| serving.epoch() == epoch;
                self.serving.take_if(serves);
            }
            FollowerOutput::Survey(_) | FollowerOutput::MeasureLinks(_) => {
                panic!("nobody asks for it")
            }
            FollowerOutput::HeadLost { .. } | FollowerOutput::HeadLeft { .. } => {
                panic!("the head is there")
            }
        }
    }

    /// Goes on loading.
    pub(crate) fn load(
        &mut self,
        (epoch, done_bytes): (u64, u64),
        faults: Faults,
        random: &mut Random,
        network: &mut Network,
    ) {
        let (node, total_bytes) = (self.node, 300);
        let Some(follower) = &mut self.follower else { return };
        if !self.prepares.contains_key(&Epoch(epoch)) {
            return;
        }
        if random.chance(faults.prepare) {
            follower.prepare_failed(Epoch(epoch), "the disk is full");
        } else if done_bytes >= total_bytes {
            follower.prepared(Epoch(epoch), total_bytes);
        } else {
            follower.progress(Progress { epoch: Epoch(epoch), done_bytes, total_bytes });
            let event = Event::Loaded { node, epoch, done_bytes: done_bytes + 100 };
            network.after(Duration::from_micros(random.between(10, 3000)), event);
        }
    }

    /// Takes a frame as it comes from the wire.
    pub(crate) fn take(
        &mut self,
        (from, bytes): (Node, &[u8]),
        faults: Faults,
        random: &mut Random,
        network: &mut Network,
    ) {
        let Some(serving) = &mut self.serving else { return };
        let shape = serving.assignment().frame_shape();
        let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>().expect("a whole frame");
        let header = FrameHeader::decode(header, &shape).expect("a frame that can be read");
        let (table, payload) = rest.split_at(header.table_bytes());
        let batch = header.decode_runs(table).expect("a table that can be read");
        header.check_payload(payload).expect("activations that can be read");
        let from = serving.nodes.iter().position(|node| *node == from);
        let from = MemberIndex(from.map_or(u16::MAX, |index| index as u16));
        match serving.member.handle_frame(from, &header, batch, payload.to_vec()) {
            Ok(Accepted::Queued) => {}
            Ok(Accepted::Dropped) => serving.dropped += 1,
            Ok(Accepted::Forward(outgoing)) => serving.send(self.node, outgoing, random, network),
            Err(refused @ FrameRefused::Gap { .. }) if faults.step > 0 => {
                let follower = self.follower.as_mut().expect("a member has a follower");
                follower.step_failed(header.epoch, header.micro_batch, &refused.to_string());
            }
            Err(refused) => panic!("node {} refuses a frame: {refused}", self.node),
        }
    }

    /// Starts the engine if it is free and there is work.
    pub(crate) fn start(&mut self, faults: Faults, random: &mut Random, network: &mut Network) {
        let Some(serving) = self.serving.as_mut().filter(|serving| serving.running.is_none())
        else {
            return;
        };
        let Some(work) = serving.member.next_work() else { return };
        let fails = random.chance(faults.step);
        let product = (!fails).then(|| serving.engine.run(&work));
        serving.running = Some((work, product));
        let event = Event::Computed { node: self.node, epoch: serving.epoch().0 };
        network.after(Duration::from_micros(random.between(50, 2000)), event);
    }

    /// Whether the engine is at work.
    pub(crate) fn computes(&self) -> bool {
        self.serving.as_ref().is_some_and(|serving| serving.running.is_some())
    }

    /// The engine is free again.
    pub(crate) fn computed(
        &mut self,
        epoch: u64,
        random: &mut Random,
        network: &mut Network,
    ) -> Option<Done> {
        let serving = self.serving.as_mut().filter(|serving| serving.epoch() == Epoch(epoch))?;
        let (work, product) = serving.running.take()?;
        let Some(product) = product else {
            let mut failed = Vec::new();
            serving.member.failed(work, &mut failed);
            let follower = self.follower.as_mut().expect("a member has a follower");
            for micro_batch in failed {
                follower.step_failed(Epoch(epoch), micro_batch, "the engine failed");
            }
            return None;
        };
        match serving.member.computed(work, product) {
            Computed::Done { micro_batch, product, .. } => return Some((micro_batch, product)),
            Computed::Send(outgoing) => serving.send(self.node, outgoing, random, network),
        }
        None
    }

    /// A connection from another node closed.
    pub(crate) fn peer_closed(&mut self, peer: Node) {
        let (Some(serving), Some(follower)) = (&self.serving, &mut self.follower) else { return };
        let own = serving.member.index();
        let peer = serving.nodes.iter().position(|node| *node == peer);
        let Some(peer) = peer.map(|index| MemberIndex(index as u16)) else { return };
        let edges = serving.assignment().route().edges();
        if edges.contains(&(own, peer)) || edges.contains(&(peer, own)) {
            follower.peer_lost(serving.epoch(), peer, "connection reset");
        }
    }
}

impl Serving {
    pub(crate) fn assignment(&self) -> &Assignment {
        self.member.assignment()
    }

    fn epoch(&self) -> Epoch {
        self.assignment().epoch()
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.running.is_some() || self.member.waiting() > 0
    }

    fn send(
        &self,
        from: Node,
        outgoing: Outgoing<Vec<u8>>,
        random: &mut Random,
        network: &mut Network,
    ) {
        let Outgoing { to, stop, micro_batch, batch, payload } = outgoing;
        let shape = self.assignment().frame_shape();
        let header = FrameHeader::new(&shape, micro_batch, stop, &batch, &payload);
        let mut bytes = Vec::new();
        header.encode_prefix(&batch, &mut bytes);
        bytes.extend_from_slice(&payload);
        let to = self.nodes[to.index()];
        network.send(random, Lane::Data, Event::Frame { from, to, bytes });
    }
}
