//! One run: nodes, links, a script, and what must hold at its end.

use std::time::Duration;

use motley_ring::{
    CONTROL_HEADER_BYTES, CallerId, ControlHeader, ControlMessage, CoordinatorOutput, Follower,
    FollowerOutput, ReuseRule, SchedulerCounts, encode_control, limits,
};

use crate::engine::{VOCABULARY, reference};
use crate::head::{CLUSTER, Head, Outcome, Request, Seen, Setting, hello};
use crate::member::{Faults, SimNode, node_of};
use crate::network::{Event, Lane, Network, Node};
use crate::random::Random;

/// A node that goes away.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CrashPlan {
    pub(crate) node: Node,
    pub(crate) at: Duration,
    /// The others see their connections close; otherwise there is only silence.
    pub(crate) connections_close: bool,
}

/// What happens in a run.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) seed: u64,
    pub(crate) nodes: usize,
    pub(crate) requests: usize,
    /// Requests are sent within this time, after the first deployment.
    pub(crate) within: Duration,
    pub(crate) cancels: u64,
    pub(crate) rests: u64,
    pub(crate) faults: Faults,
    pub(crate) crash: Option<CrashPlan>,
    pub(crate) replan_at: Option<Duration>,
    pub(crate) setting: Option<Setting>,
}

#[derive(Debug)]
pub(crate) struct World {
    random: Random,
    network: Network,
    nodes: Vec<SimNode>,
    pub(crate) head: Head,
    script: Script,
    /// When the node of the script's crash went.
    crashed: Option<Duration>,
    /// Requests that ran when it did.
    ran: Vec<bool>,
}

/// No run takes longer, in virtual time.
const TIME_MAX: Duration = Duration::from_secs(100);

impl World {
    /// Runs a script to its end and checks what must hold.
    pub(crate) fn run(script: Script) -> Self {
        let mut random = Random::new(script.seed);
        let setting = script.setting.clone().unwrap_or_else(|| draw_setting(&mut random));
        let requests = draw_requests(&mut random, &script, &setting);
        let nodes = (0..script.nodes).map(|node| SimNode::new(node, setting.rule)).collect();
        let delay_us_max = random.between(1, 5000);
        let head = Head::new(setting, requests);
        let network = Network::new(delay_us_max);
        let (crashed, ran) = (None, Vec::new());
        let mut world = Self { random, network, nodes, head, script, crashed, ran };
        world.begin();
        while !world.is_over() {
            let event = world.network.next().expect("time goes on");
            assert!(world.network.now < TIME_MAX, "seed {}: it does not end", world.script.seed);
            world.happen(event);
            world.settle();
        }
        world.check();
        world
    }

    pub(crate) fn seen(&self) -> Seen {
        let dropped = self.nodes.iter().filter_map(|node| node.serving.as_ref());
        Seen { dropped: dropped.map(|serving| serving.dropped).sum(), ..self.head.seen }
    }

    fn begin(&mut self) {
        for node in 0..self.script.nodes {
            self.send(node, 0, true, &ControlMessage::Hello(Box::new(hello(node))));
            self.network.at(Duration::ZERO, Event::Tick { node });
        }
        if let Some(CrashPlan { node, at, connections_close }) = self.script.crash {
            self.network.at(at, Event::Crash { node, connections_close });
        }
        if let Some(at) = self.script.replan_at {
            self.network.at(at, Event::Replan);
        }
    }

    fn is_over(&self) -> bool {
        let counts = self.head.scheduler.as_ref().map(|scheduler| scheduler.counts());
        let idle = counts.is_some_and(|counts| counts.micro_batches == 0 && counts.ending == 0);
        let crash_seen = self.script.crash.is_none() || self.head.seen.lost.is_some();
        let alive = self.nodes.iter().filter(|node| node.alive);
        let busy = alive.filter_map(|node| node.serving.as_ref());
        let busy = busy.filter(|serving| serving.is_busy()).count() > 0;
        idle && crash_seen
            && !busy
            && self.head.submitted == self.head.requests.len()
            && self.head.requests.iter().all(|request| request.outcome.is_some())
    }

    fn happen(&mut self, event: Event) {
        let now = self.network.now;
        match event {
            Event::Control { from, to, bytes } => self.control(from, to, &bytes),
            Event::Frame { from, to, bytes } if self.nodes[to].alive => {
                let faults = self.script.faults;
                let node = &mut self.nodes[to];
                node.take((from, &bytes), faults, &mut self.random, &mut self.network);
            }
            Event::Frame { .. } => {}
            Event::Closed { from, to } => {
                self.nodes[to].peer_closed(from);
                if to == 0
                    && let Some(session) = self.head.sessions.get(&from)
                {
                    self.head.coordinator.closed(crate::member::id_of(from), *session);
                }
            }
            Event::Computed { node, epoch } if self.nodes[node].alive => {
                let done = self.nodes[node].computed(epoch, &mut self.random, &mut self.network);
                if let Some(done) = done {
                    self.head.done(done);
                }
            }
            Event::Computed { .. } => {}
            Event::Loaded { node, epoch, done_bytes } if self.nodes[node].alive => {
                let (at, faults) = ((epoch, done_bytes), self.script.faults);
                self.nodes[node].load(at, faults, &mut self.random, &mut self.network);
            }
            Event::Loaded { .. } => {}
            Event::Tick { node } => self.tick(node),
            Event::Submit => self.head.submit(),
            Event::Cancel { request } => self.head.cancel(request),
            Event::Rest { request, resting } => self.head.rest(request, resting),
            Event::Crash { node, connections_close } => self.crash(node, connections_close),
            Event::Replan => {
                if self.head.coordinator.serving().is_some() && !self.head.draining {
                    self.head.plan(&mut self.random, now);
                }
            }
        }
    }

    /// Carries out everything that the state machines say, until they say nothing.
    fn settle(&mut self) {
        loop {
            let mut said = false;
            for node in 0..self.nodes.len() {
                while let Some(output) = self.next_follower_output(node) {
                    said = true;
                    match output {
                        FollowerOutput::Send(message) => self.send(node, 0, true, &message),
                        other => self.nodes[node].act(other, &mut self.network),
                    }
                }
            }
            while let Some(output) = self.head.coordinator.poll_output() {
                said = true;
                self.obey(output);
            }
            if !said {
                break;
            }
        }
        let now = self.network.now;
        self.head.pump(&mut self.nodes[0], now);
        let faults = self.script.faults;
        for node in self.nodes.iter_mut().filter(|node| node.alive) {
            node.start(faults, &mut self.random, &mut self.network);
        }
        let busy = self.nodes.iter().filter(|node| node.computes()).count() as u32;
        self.head.seen.stages_busy_max = self.head.seen.stages_busy_max.max(busy);
        // Pumping may have said that a deployment can be committed.
        while let Some(output) = self.head.coordinator.poll_output() {
            self.obey(output);
        }
    }

    fn next_follower_output(&mut self, node: Node) -> Option<FollowerOutput> {
        let node = &mut self.nodes[node];
        let output = node.follower.as_mut()?.poll_output()?;
        node.alive.then_some(output)
    }

    fn obey(&mut self, output: CoordinatorOutput) {
        let now = self.network.now;
        match output {
            CoordinatorOutput::Send { to, message } => self.send(0, node_of(to), false, &message),
            CoordinatorOutput::Ready { .. } => {
                self.head.draining = true;
                if let Some(scheduler) = &mut self.head.scheduler {
                    scheduler.hold(true);
                }
            }
            CoordinatorOutput::Deployed { .. } => {
                let first = self.head.scheduler.is_none();
                self.head.deployed();
                if first {
                    self.schedule_requests();
                }
            }
            CoordinatorOutput::DeployFailed { .. } => {
                let serves = self.head.coordinator.serving().is_some();
                if !serves {
                    self.head.plan(&mut self.random, now);
                }
            }
            CoordinatorOutput::Lost { node, ended, .. } => {
                let crashed = self.script.crash.expect("no node is lost without a crash");
                assert_eq!(node_of(node), crashed.node);
                self.head.seen.lost = Some(now);
                if ended.is_some() {
                    self.head.lost();
                    self.head.plan(&mut self.random, now);
                }
            }
            CoordinatorOutput::EdgeLost { .. } => {
                self.head.lost();
                self.head.plan(&mut self.random, now);
            }
            CoordinatorOutput::StepFailed { micro_batch, .. } => {
                assert!(self.script.faults.step > 0, "no step fails by itself");
                self.head.step_failed(micro_batch);
            }
            CoordinatorOutput::Progress { .. }
            | CoordinatorOutput::Suspect { .. }
            | CoordinatorOutput::Surveyed { .. }
            | CoordinatorOutput::SurveyFailed { .. }
            | CoordinatorOutput::LinkMeasured { .. } => {}
        }
    }

    fn control(&mut self, from: Node, to: Node, bytes: &[u8]) {
        let now = self.network.now;
        let (to_head, bytes) = bytes.split_first().expect("the world marks the receiver");
        let (header, json) =
            bytes.split_first_chunk::<CONTROL_HEADER_BYTES>().expect("a whole message");
        let header = ControlHeader::decode(header, CLUSTER, limits::CONTROL_BYTES_MAX);
        let message = header.expect("a header").decode_message(json).expect("a message");
        match message {
            ControlMessage::Hello(hello) => {
                let admission = self.head.coordinator.joined(*hello, now).expect("welcome");
                self.head.sessions.insert(from, admission.session);
                self.send(0, from, false, &ControlMessage::Welcome(admission.welcome));
                if self.head.sessions.len() == self.script.nodes {
                    self.head.plan(&mut self.random, now);
                }
            }
            ControlMessage::Welcome(welcome) => {
                self.nodes[to].follower = Some(Follower::new(welcome.epoch, now));
            }
            message if *to_head == 1 => {
                // The head has closed the connection of whom it thinks lost.
                let _ = self.head.coordinator.handle(crate::member::id_of(from), message, now);
            }
            message => {
                if let Some(follower) = &mut self.nodes[to].follower {
                    follower.handle(message, now).expect("what a head sends");
                }
            }
        }
    }

    fn tick(&mut self, node: Node) {
        let now = self.network.now;
        if !self.nodes[node].alive {
            return;
        }
        if node == 0 {
            self.head.coordinator.poll(now);
        }
        if let Some(follower) = self.nodes[node].follower.as_mut().filter(|_| node != 0) {
            follower.poll(now);
        }
        let next = if node == 0 { self.head.coordinator.next_deadline() } else { now };
        self.network.at(next.max(now + Duration::from_millis(50)), Event::Tick { node });
    }

    fn crash(&mut self, node: Node, connections_close: bool) {
        if !self.head.sessions.contains_key(&node) {
            // Nobody misses it before it has come.
            let again = Event::Crash { node, connections_close };
            return self.network.after(Duration::from_millis(5), again);
        }
        self.nodes[node].alive = false;
        self.crashed = Some(self.network.now);
        self.ran = self.head.requests.iter().map(|request| request.outcome.is_none()).collect();
        if !connections_close {
            return;
        }
        for to in (0..self.nodes.len()).filter(|to| *to != node) {
            for lane in [Lane::Control, Lane::Data] {
                let event = Event::Closed { from: node, to };
                self.network.send(&mut self.random, lane, event);
            }
        }
    }

    fn send(&mut self, from: Node, to: Node, to_head: bool, message: &ControlMessage) {
        if !self.nodes[from].alive {
            return;
        }
        let mut bytes = vec![u8::from(to_head)];
        encode_control(message, CLUSTER, &[], &mut bytes).expect("a message within the limits");
        let event = Event::Control { from, to, bytes };
        self.network.send(&mut self.random, Lane::Control, event);
    }

    fn schedule_requests(&mut self) {
        let within_us = self.script.within.as_micros() as u64;
        for request in 0..self.head.requests.len() as u64 {
            let at = Duration::from_micros(self.random.between(0, within_us));
            self.network.after(at, Event::Submit);
            let later = |random: &mut Random| at + Duration::from_micros(random.between(0, 30_000));
            if self.random.chance(self.script.cancels) {
                let at = later(&mut self.random);
                self.network.after(at, Event::Cancel { request });
            }
            if self.random.chance(self.script.rests) {
                let (from, until) = (later(&mut self.random), Duration::from_millis(200));
                self.network.after(from, Event::Rest { request, resting: true });
                self.network.after(until, Event::Rest { request, resting: false });
            }
        }
    }

    fn check(&self) {
        let seed = self.script.seed;
        let setting = &self.head.setting;
        for (index, request) in self.head.requests.iter().enumerate() {
            let expected = reference(
                setting.layers,
                &request.prompt,
                request.tokens_max,
                setting.context_tokens,
            );
            let outcome = request.outcome.as_ref();
            let so_far = &expected[..request.answer.len().min(expected.len())];
            assert_eq!(request.answer, so_far, "seed {seed}: tokens of request {index}");
            match outcome {
                Some(Outcome::Answered) => {
                    assert_eq!(request.answer, expected, "seed {seed}: request {index}");
                    let rows = if request.prompt_rows { request.prompt.len() as u32 } else { 0 };
                    assert_eq!(request.prompt_rows_seen, rows, "seed {seed}: request {index}");
                }
                Some(Outcome::Failed) => {
                    let fault = self.script.faults.step > 0 || self.crashed.is_some();
                    assert!(fault, "seed {seed}: request {index} failed for no reason");
                    let ran = self.ran.get(index).is_none_or(|ran| *ran);
                    assert!(ran, "seed {seed}: request {index} had ended before the crash");
                }
                Some(Outcome::Cancelled | Outcome::Refused) => {}
                None => panic!("seed {seed}: request {index} did not end"),
            }
        }
        let counts = self.head.scheduler.as_ref().expect("a ring was deployed").counts();
        let free = SchedulerCounts { slots_free: setting.slots, ..SchedulerCounts::default() };
        assert_eq!(counts, free, "seed {seed}: nothing is left");
        if let (Some(crashed), Some(lost)) = (self.crashed, self.head.seen.lost) {
            let tick = Duration::from_millis(110);
            assert!(lost - crashed <= limits::LOST_AFTER + tick, "seed {seed}: noticed late");
        }
    }
}

fn draw_setting(random: &mut Random) -> Setting {
    let rules = [
        ReuseRule::Anywhere,
        ReuseRule::OnlyForward,
        ReuseRule::SlidingWindow { window_tokens: 8, kept_tokens: 24 },
    ];
    Setting {
        layers: random.between(1, 12) as u32,
        slots: random.between(1, 6) as u32,
        context_tokens: random.between(48, 160) as u32,
        batch_rows_max: random.between(1, 40) as u32,
        rule: rules[random.between(0, 2) as usize],
        route: None,
    }
}

/// Prompts that share beginnings, some of them of different callers.
fn draw_requests(random: &mut Random, script: &Script, setting: &Setting) -> Vec<Request> {
    let prefixes: Vec<Vec<u32>> =
        (0..3).map(|_| (0..40).map(|_| (random.next() % VOCABULARY) as u32).collect()).collect();
    let draw = |_| {
        let prefix = &prefixes[random.between(0, 2) as usize];
        let mut prompt = prefix[..random.between(0, 40) as usize].to_vec();
        let own = random.between(1, 6) as usize;
        prompt.extend((0..own).map(|_| (random.next() % VOCABULARY) as u32));
        prompt.truncate(setting.context_tokens as usize - 1);
        Request {
            caller: CallerId(random.between(0, 2)),
            cache_salt: random.chance(200).then_some(1),
            prompt,
            tokens_max: random.between(1, 24) as u32,
            prompt_rows: random.chance(100),
            answer: Vec::new(),
            prompt_rows_seen: 0,
            outcome: None,
        }
    };
    (0..script.requests).map(draw).collect()
}
