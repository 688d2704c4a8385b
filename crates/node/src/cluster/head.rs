//! The control thread of a head: takes nodes in, deals layers out, deploys, and notices who is gone.
//!
//! It carries out what [`Coordinator`] decides. Everything that takes long happens on other threads
//! and comes back as an event.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use motley_engine::{EngineOptions, LayerSet, LoadError, Model};
use motley_gateway::{ClusterState, Health, Series};
use motley_ring::{
    Addresses, Admission, Assignment, ControlMessage, Coordinator, CoordinatorOptions,
    CoordinatorOutput, Epoch, Hello, LossReason, MemberIndex, Name, NodeId, OfEpoch, PeerLost,
    Prepare, Prepared, Refused, Text, WireElement,
};

use super::clearing::Clearing;
use super::dial::Dialler;
use super::door::Door;
use super::edges::{EdgeUnreachable, open_edges};
use super::epoch;
use super::loading::Loading;
use super::place::{Allowance, Goal, NoPlacement, Placement, Surveyed};
use super::placing::Placing;
use super::remains::Remains;
use super::room;
use super::roster::RosterWatch;
use super::series;
use super::session::Session;
use super::shelf::Shelf;
use super::split::Split;
use super::stages::{Stage, Stages};
use super::survey::ProfileSource;
pub(crate) use super::view::View;
use super::view::{Around, Pace};
use super::wire::MessageConnection;
use crate::blocks::Manifest;
use crate::discovery::{self, Announcement, DiscoveryError, Scope};
use crate::driver::{self, Driver, EngineFacts, Leaving, Standby};
use crate::identity::{self, Identity, StateFolder};
use crate::stage::{self, Arrival, EdgePlace, Links};
use crate::terminal;
use crate::transport::{Endpoint, Listener};

/// How long to wait for more changes before layers are dealt out anew.
pub(super) const SETTLE: Duration = Duration::from_millis(300);

/// How long a node that failed is left out before it is tried again; twice as long after each
/// further failure, so that one that cannot be used does not hold up the others for ever.
const PENANCE: Duration = Duration::from_secs(30);

/// The penance doubles at most so often.
const PENANCE_DOUBLINGS_MAX: u32 = 7;

/// What a head serves, and how.
pub(crate) struct HeadPlan {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) folder: StateFolder,
    pub(crate) model: Arc<Model>,
    pub(crate) model_name: String,
    pub(crate) manifest: Arc<Manifest>,
    /// What rings keep of sequences: what is asked for, and then less and less.
    pub(crate) allowances: Vec<Allowance>,
    pub(crate) engine: EngineOptions,
    pub(crate) budget_bytes: u64,
    pub(crate) split: Split,
    /// What plans are to be good at.
    pub(crate) goal: Goal,
    /// What this device can do.
    pub(crate) profile: ProfileSource,
    pub(crate) rounds: u32,
    pub(crate) wire_element: WireElement,
    /// Nodes to wait for before layers are dealt out the first time.
    pub(crate) nodes_awaited: usize,
}

/// What happens to a head.
pub(super) enum Event {
    Hello(Box<Hello>, MessageConnection),
    /// A message of a node over the connection that this session is of.
    Message(NodeId, u64, ControlMessage),
    Closed(NodeId, u64),
    /// The ways to the other members are open, or cannot be.
    Linked(Epoch, Result<Links, EdgeUnreachable>),
    Loaded(Epoch, Result<EngineFacts, LoadError>),
    Left(Leaving),
    EdgeBroken(Epoch, MemberIndex, String),
    /// This device was measured, or cannot be.
    OwnSurvey(Result<Surveyed, String>),
    /// The planner has answered.
    Planned(Box<Result<Placement, NoPlacement>>),
    Stop,
}

/// A running head.
pub(crate) struct ClusterHead {
    events: Sender<Event>,
    view: Arc<Mutex<View>>,
    /// That others on the network hear of it.
    announcement: Option<Announcement>,
    thread: Option<JoinHandle<()>>,
    // Closed last, so that nobody knocks at a thread that has ended.
    listener: Listener,
}

impl ClusterHead {
    /// Listens on `address` and starts the control thread.
    ///
    /// # Errors
    /// When the address is taken or the system refuses a thread.
    pub(crate) fn start(
        plan: HeadPlan,
        address: std::net::SocketAddr,
        driver: Arc<Driver>,
        shelf: Arc<Shelf>,
    ) -> anyhow::Result<Self> {
        let (events, inbox) = channel();
        let stages = Arc::new(Stages::default());
        let hello = events.clone();
        let door = Door {
            endpoint: Arc::clone(&plan.endpoint),
            folder: plan.folder.clone(),
            stages: Arc::clone(&stages),
            shelf,
            on_hello: Some(Box::new(move |said, connection| {
                // A head that has ended takes nobody in; the connection closes.
                let _ = hello.send(Event::Hello(Box::new(said), connection));
            })),
        };
        let listener =
            Listener::start(address, Arc::clone(&plan.endpoint), move |it| door.receive(it))?;
        let view = Arc::new(Mutex::new(View {
            cluster: ClusterState::default(),
            health: Health::Loading { progress: 0.0 },
        }));
        let outlets = Outlets { driver, stages, events: events.clone(), view: Arc::clone(&view) };
        let addresses = super::own_addresses(listener.address(), None);
        let control = move || Control::new(plan, outlets, addresses).run(&inbox);
        let thread = thread::Builder::new().name("cluster".to_owned()).spawn(control)?;
        Ok(Self { events, view, announcement: None, thread: Some(thread), listener })
    }

    /// Where other devices knock.
    pub(crate) fn address(&self) -> std::net::SocketAddr {
        self.listener.address()
    }

    /// Tells the local network that it is there, as long as it lives.
    ///
    /// # Errors
    /// When this system has no sockets for it.
    pub(crate) fn announce(&mut self, identity: &Identity) -> Result<(), DiscoveryError> {
        let port = self.listener.address().port();
        self.announcement = Some(discovery::announce(Scope::Lan, identity, port)?);
        Ok(())
    }

    /// What others may see.
    pub(crate) fn view(&self) -> View {
        self.view.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is measured here.
    pub(crate) fn series(&self) -> Vec<Series> {
        series::of(&self.view().cluster, self.listener.counters())
    }
}

impl Drop for ClusterHead {
    fn drop(&mut self) {
        let _ = self.events.send(Event::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What the control thread acts on.
struct Outlets {
    driver: Arc<Driver>,
    stages: Arc<Stages>,
    events: Sender<Event>,
    view: Arc<Mutex<View>>,
}

/// The head's own part of a deployment that is not in force yet.
pub(super) struct Upcoming {
    pub(super) epoch: Epoch,
    pub(super) prepare: Box<Prepare>,
    pub(super) standby: Option<Standby>,
    /// From when the engine begins to load.
    pub(super) loading: Option<Loading>,
}

/// Who does what, in force or about to be.
#[derive(Clone, Default)]
pub(super) struct Duties {
    pub(super) epoch: Epoch,
    pub(super) rounds: u32,
    pub(super) groups: u32,
    /// Members in ring order with their layers.
    pub(super) members: Vec<(NodeId, Vec<(u32, u32)>)>,
    /// What it takes of their memory.
    pub(super) memory_bytes: BTreeMap<NodeId, u64>,
}

pub(super) struct Control {
    pub(super) plan: HeadPlan,
    pub(super) driver: Arc<Driver>,
    pub(super) stages: Arc<Stages>,
    pub(super) dialler: Arc<Dialler>,
    pub(super) events: Sender<Event>,
    pub(super) view: Arc<Mutex<View>>,
    pub(super) coordinator: Coordinator,
    pub(super) own: NodeId,
    pub(super) began: Instant,
    pub(super) sessions: BTreeMap<NodeId, Session>,
    pub(super) upcoming: Option<Upcoming>,
    /// What the deployment that is under way takes of its members' memory.
    pub(super) upcoming_bytes: BTreeMap<NodeId, u64>,
    /// Whether a head has the driver's seat, and what is to be done when it has left.
    pub(super) seated: bool,
    pub(super) start_when_free: bool,
    pub(super) commit_when_free: bool,
    pub(super) clearing: Clearing,
    pub(super) replan_at: Option<Duration>,
    /// When corrections were kept last.
    pub(super) kept_at: Duration,
    /// Whom the deployment in force, or the one under way, is for.
    pub(super) dealt_to: Option<BTreeSet<NodeId>>,
    pub(super) shunned: BTreeMap<NodeId, Duration>,
    pub(super) roster: RosterWatch,
    /// How often each node has failed since it came.
    pub(super) failures: BTreeMap<NodeId, u32>,
    /// Whether there were as many nodes as were to be waited for.
    pub(super) complete_once: bool,
    /// Engines that are not wanted any more, and end on their own threads.
    pub(super) remains: Remains,
    pub(super) serving: Option<Duties>,
    /// Who has had layers, and so has their blocks.
    pub(super) holders: BTreeSet<NodeId>,
    pub(super) progress: BTreeMap<NodeId, (u64, u64)>,
    pub(super) activity: BTreeMap<NodeId, Pace>,
    pub(super) problem: Option<String>,
    /// What plans are made of.
    pub(super) placing: Placing,
    /// What a token takes around the ring.
    pub(super) around: Around,
}

impl Control {
    fn new(plan: HeadPlan, outlets: Outlets, addresses: Addresses) -> Self {
        let Outlets { driver, stages, events, view } = outlets;
        let identity = plan.endpoint.identity();
        let own = NodeId(*identity.node().as_bytes());
        let options = CoordinatorOptions {
            node: own,
            name: Name::cut(identity.name()),
            build: super::build(),
            engine_build: super::engine_build(),
            epoch_seen: epoch::read(&plan.folder),
        };
        let hello = super::hello(identity, addresses, plan.budget_bytes, options.epoch_seen);
        let mut coordinator = Coordinator::new(options, Duration::ZERO);
        coordinator.joined(hello, Duration::ZERO).expect("a head accepts itself");
        let roster = RosterWatch::new(&plan.folder);
        Self {
            replan_at: Some(Duration::ZERO),
            kept_at: Duration::ZERO,
            dialler: Arc::new(Dialler::new(Arc::clone(&plan.endpoint))),
            plan,
            driver,
            stages,
            events,
            view,
            coordinator,
            own,
            began: Instant::now(),
            sessions: BTreeMap::new(),
            upcoming: None,
            upcoming_bytes: BTreeMap::new(),
            seated: false,
            start_when_free: false,
            commit_when_free: false,
            clearing: Clearing::No,
            dealt_to: None,
            shunned: BTreeMap::new(),
            roster,
            failures: BTreeMap::new(),
            complete_once: false,
            remains: Remains::default(),
            serving: None,
            holders: BTreeSet::new(),
            progress: BTreeMap::new(),
            activity: BTreeMap::new(),
            problem: None,
            placing: Placing::default(),
            around: Around::default(),
        }
    }

    fn run(mut self, inbox: &Receiver<Event>) {
        self.begin_placing(Duration::ZERO);
        loop {
            let now = self.began.elapsed();
            self.tell_of_loading(now);
            self.coordinator.poll(now);
            self.look_at_roster(now);
            if self.replan_at.is_some_and(|at| now >= at) {
                self.replan_at = None;
                self.deal(now);
            }
            self.carry_out();
            self.show();
            let deadline = self.coordinator.next_deadline();
            let wait = deadline.saturating_sub(self.began.elapsed()).max(Duration::from_millis(1));
            match inbox.recv_timeout(wait) {
                Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(event) => self.take(event),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        self.keep_corrections();
        let reason = Text::cut("the head stops");
        let leave = ControlMessage::Leave(motley_ring::Leave { reason });
        for session in self.sessions.values() {
            // A node that does not hear it notices the closed connection.
            session.send(leave.clone());
        }
    }

    fn take(&mut self, event: Event) {
        let now = self.began.elapsed();
        match event {
            Event::Hello(hello, connection) => self.admit(*hello, connection, now),
            Event::Message(node, session, message) => {
                // What an older connection of the node brought is of no meaning any more.
                if self.sessions.get(&node).is_none_or(|it| !it.is(session)) {
                    return;
                }
                if let Err(fault) = self.coordinator.handle(node, message, now) {
                    terminal::note(&format!("{}: {fault}\n", self.name_of(node)));
                }
            }
            Event::Closed(node, session) => self.coordinator.closed(node, session),
            Event::Linked(epoch, linked) => self.linked(epoch, linked, now),
            Event::Loaded(epoch, loaded) => {
                if let Some(upcoming) = self.upcoming.as_mut().filter(|it| it.epoch == epoch) {
                    upcoming.loading = None;
                }
                let message = match loaded {
                    Ok(facts) => {
                        let memory_bytes = facts.memory.total_bytes();
                        ControlMessage::Prepared(Prepared { epoch, memory_bytes })
                    }
                    Err(failure) => self.failed(epoch, &anyhow::Error::from(failure)),
                };
                self.tell_coordinator(message, now);
            }
            Event::Left(leaving) => self.left(&leaving, now),
            Event::EdgeBroken(epoch, member, cause) => {
                let lost = PeerLost { epoch, member, cause: Text::cut(&cause) };
                self.tell_coordinator(ControlMessage::PeerLost(lost), now);
            }
            Event::OwnSurvey(surveyed) => self.own_surveyed(surveyed, now),
            Event::Planned(placement) => self.planned(*placement, now),
            Event::Stop => {}
        }
    }

    /// Takes a node in, or tells it why not.
    fn admit(&mut self, hello: Hello, mut connection: MessageConnection, now: Duration) {
        let (node, name) = (hello.node, hello.name.clone());
        let admission = match self.coordinator.joined(hello, now) {
            Ok(admission) => admission,
            Err(refused) => {
                let Refused { message, .. } = &*refused;
                terminal::note(&format!("{name} is not let in: {message}\n"));
                // It is told if it listens.
                let _ = connection.sender.send(&ControlMessage::Refused(*refused), &[]);
                return connection.closer.close();
            }
        };
        // An older connection of the node is closed before the new one takes its place.
        self.carry_out();
        let Admission { welcome, session } = admission;
        let events = self.events.clone();
        let Ok(session) = Session::start(node, session, welcome, connection, events) else {
            return self.coordinator.closed(node, session);
        };
        terminal::note(&format!("{name} has joined\n"));
        self.sessions.insert(node, session);
        self.shunned.remove(&node);
        self.failures.remove(&node);
        self.survey(node, now);
        self.replan_at = Some(now + SETTLE);
    }

    fn carry_out(&mut self) {
        while let Some(output) = self.coordinator.poll_output() {
            let now = self.began.elapsed();
            match output {
                CoordinatorOutput::Send { to, message } if to == self.own => {
                    self.obey(message, now);
                }
                CoordinatorOutput::Send { to, message } => self.send(to, message),
                CoordinatorOutput::Progress { node, done_bytes, total_bytes, .. } => {
                    self.progress.insert(node, (done_bytes, total_bytes));
                }
                CoordinatorOutput::Ready { .. } => {
                    self.commit_when_free = true;
                    if let Some(serving) = self.serving.as_ref().filter(|_| self.seated) {
                        self.driver.drain(serving.epoch);
                    } else if !self.seated {
                        self.commit(now);
                    }
                }
                CoordinatorOutput::Deployed { assignment, members } => {
                    self.deployed(&assignment, members, now);
                }
                CoordinatorOutput::DeployFailed { node, cause, .. } => {
                    self.deploy_failed(node, &cause.to_string(), now);
                }
                CoordinatorOutput::Suspect { node, silent_for } => {
                    let name = self.name_of(node);
                    terminal::note(&format!(
                        "{name} is silent for {}\n",
                        terminal::duration(silent_for)
                    ));
                }
                CoordinatorOutput::Lost { node, why, ended } => {
                    self.lost(node, &why, ended, now);
                }
                CoordinatorOutput::Surveyed { node, profile, .. } => {
                    self.surveyed(node, &profile, now);
                }
                CoordinatorOutput::SurveyFailed { node, cause } => {
                    self.survey_failed(node, cause.as_str(), now);
                }
                CoordinatorOutput::LinkMeasured { node, to, quality } => {
                    self.link_measured(node, to, quality, now);
                }
                CoordinatorOutput::StepFailed { node, micro_batch, cause } => {
                    let Some(serving) = &self.serving else { continue };
                    let epoch = serving.epoch;
                    let cause = format!("{}: {cause}", self.name_of(node));
                    self.driver.inbox().deliver(Arrival::StepFailed { epoch, micro_batch, cause });
                }
                CoordinatorOutput::EdgeLost { node, peer, cause, ended } => {
                    let peer = self.serving.as_ref().and_then(|it| it.members.get(peer.index()));
                    let peer = peer.map_or_else(|| "a member".to_owned(), |it| self.name_of(it.0));
                    let name = self.name_of(node);
                    terminal::note(&format!(
                        "the connection of {name} and {peer} broke: {cause}\n"
                    ));
                    self.end_serving(ended, &peer);
                    self.dealt_to = None;
                    self.replan_at = Some(now + SETTLE);
                }
            }
        }
    }

    pub(super) fn send(&mut self, to: NodeId, message: ControlMessage) {
        if let Some(session) = self.sessions.get(&to) {
            session.send(message);
        }
    }

    /// Does the head's own part.
    fn obey(&mut self, message: ControlMessage, now: Duration) {
        match message {
            ControlMessage::Prepare(prepare) => self.prepare(prepare),
            ControlMessage::Commit(OfEpoch { epoch }) => {
                self.tell_coordinator(ControlMessage::Committed(OfEpoch { epoch }), now);
            }
            ControlMessage::Release(OfEpoch { epoch }) => {
                self.stages.remove(epoch);
                let upcoming = self.upcoming.take_if(|upcoming| upcoming.epoch == epoch);
                self.remains.bury(upcoming.and_then(|upcoming| upcoming.standby));
                self.tell_coordinator(ControlMessage::Released(OfEpoch { epoch }), now);
            }
            _ => {}
        }
    }

    fn prepare(&mut self, prepare: Box<Prepare>) {
        let epoch = prepare.epoch();
        let assignment = Arc::new(prepare.assignment.clone());
        let inbox = self.driver.inbox();
        let events = self.events.clone();
        let broken: Arc<dyn Fn(MemberIndex, stage::EdgeError) + Send + Sync> =
            Arc::new(move |member, error| {
                let _ = events.send(Event::EdgeBroken(epoch, member, error.to_string()));
            });
        self.stages.add(Stage {
            assignment: Arc::clone(&assignment),
            own: prepare.member,
            nodes: prepare.members.iter().map(|peer| peer.node).collect(),
            deliver: Box::new(move |arrival| inbox.deliver(arrival)),
            broken: Arc::clone(&broken),
        });
        let (dialler, stages) = (Arc::clone(&self.dialler), Arc::clone(&self.stages));
        let own = prepare.member;
        let place = EdgePlace { assignment, from: own, to: own };
        let peers = prepare.members.to_vec();
        let events = self.events.clone();
        let before = self.remains.take();
        let opening = move || {
            before.wait();
            let keep = |closer| stages.keep(epoch, closer);
            let linked = open_edges(&dialler, &place, &peers, keep, &broken);
            let _ = events.send(Event::Linked(epoch, linked));
        };
        self.upcoming = Some(Upcoming { epoch, prepare, standby: None, loading: None });
        if let Err(error) = thread::Builder::new().name("dial".to_owned()).spawn(opening) {
            let failed = EdgeUnreachable { member: own, error: error.into() };
            let _ = self.events.send(Event::Linked(epoch, Err(failed)));
        }
    }

    /// The ways to the others are open: the engine can be loaded.
    fn linked(&mut self, epoch: Epoch, linked: Result<Links, EdgeUnreachable>, now: Duration) {
        let links = match linked {
            Ok(links) => links,
            // Whoever cannot be reached is at fault, not this device.
            Err(EdgeUnreachable { member, error }) => {
                let cause = Text::cut(&format!("{:#}", anyhow::Error::from(error)));
                let lost = PeerLost { epoch, member, cause };
                return self.tell_coordinator(ControlMessage::PeerLost(lost), now);
            }
        };
        let allowance = self.allowance().clone();
        let Some(upcoming) = self.upcoming.as_mut().filter(|it| it.epoch == epoch) else { return };
        let assignment = Arc::new(upcoming.prepare.assignment.clone());
        let own = upcoming.prepare.member;
        let loading = (|| -> anyhow::Result<Standby> {
            let windows: Vec<_> = assignment.windows_of(own).map(|it| (it.start, it.end)).collect();
            let layers = assignment.windows_of(own);
            let layers = layers.map(|window| window.start as usize..window.end as usize);
            let layers = LayerSet::new(layers);
            let (residency, sizes) = (&upcoming.prepare.residency, &allowance.sizes);
            let (fixed_bytes, budget_bytes) = (sizes.fixed_bytes(true), self.plan.budget_bytes);
            let left_bytes = budget_bytes.saturating_sub(fixed_bytes);
            let needed_bytes = fixed_bytes + room::layer_bytes(sizes, &windows, residency);
            let buffer_bytes = room::stream_buffer_bytes(sizes, &windows, residency, left_bytes);
            let engine = self.plan.engine.clone();
            let cache = room::cache_element(assignment.spec().kv_type);
            let directory = self.plan.model.directory();
            let memory = (needed_bytes, budget_bytes);
            let options = EngineOptions {
                layout: room::layout(directory, (&layers, true), memory, engine.layout),
                layers,
                embedding: true,
                head: true,
                slots: assignment.spec().slots as usize,
                batch_rows_max: assignment.spec().batch_rows_max as usize,
                cache: cache.context("this build cannot cache keys and values so")?,
                placement: room::placement(&windows, residency, engine.placement, buffer_bytes),
                ..engine
            };
            let model = &self.plan.model;
            upcoming.loading = Some(Loading::begin(Arc::clone(model), &options.layers, 0));
            let deployment =
                driver::Deployment { model: Arc::clone(model), options, assignment, links };
            let (loaded, left) = (self.events.clone(), self.events.clone());
            let report = move |facts| drop(loaded.send(Event::Loaded(epoch, facts)));
            let on_leave = Box::new(move |leaving| drop(left.send(Event::Left(leaving))));
            Ok(self.driver.load(deployment, report, on_leave)?)
        })();
        match loading {
            Ok(standby) => upcoming.standby = Some(standby),
            Err(error) => {
                let message = self.failed(epoch, &error);
                self.tell_coordinator(message, now);
            }
        }
    }

    fn tell_of_loading(&mut self, now: Duration) {
        let Some(upcoming) = &mut self.upcoming else { return };
        let loading = upcoming.loading.as_mut();
        if let Some(progress) = loading.and_then(|it| it.progress(upcoming.epoch)) {
            self.tell_coordinator(ControlMessage::Progress(progress), now);
        }
    }

    fn failed(&self, epoch: Epoch, error: &anyhow::Error) -> ControlMessage {
        let cause = Text::cut(&format!("{error:#}"));
        ControlMessage::PrepareFailed(motley_ring::PrepareFailed { epoch, cause })
    }

    fn tell_coordinator(&mut self, message: ControlMessage, now: Duration) {
        // The head's own follower sends nothing that is not expected.
        let _ = self.coordinator.handle(self.own, message, now);
    }

    fn commit(&mut self, now: Duration) {
        self.commit_when_free = false;
        self.coordinator.commit(now);
    }

    fn deployed(&mut self, assignment: &Arc<Assignment>, members: Vec<NodeId>, now: Duration) {
        let route = assignment.route();
        let layers_of = |index: usize| -> Vec<(u32, u32)> {
            let member = MemberIndex(u16::try_from(index).unwrap_or(u16::MAX));
            route.windows_of(member).map(|window| (window.start, window.end)).collect()
        };
        let duties: Vec<_> =
            members.into_iter().enumerate().map(|(index, node)| (node, layers_of(index))).collect();
        let words: Vec<String> = duties
            .iter()
            .map(|(node, layers)| format!("{} {}", self.name_of(*node), super::layer_words(layers)))
            .collect();
        terminal::note(&format!("plan {}: {}\n", assignment.epoch().0, words.join(", ")));
        terminal::note(&self.placed_words(now));
        self.holders.extend(duties.iter().map(|(node, _)| *node));
        let spec = assignment.spec();
        self.serving = Some(Duties {
            epoch: assignment.epoch(),
            rounds: self.placing.placed.as_ref().map_or(self.plan.rounds, |it| it.rounds),
            groups: spec.groups,
            members: duties,
            memory_bytes: self.upcoming_bytes.clone(),
        });
        self.progress.clear();
        self.clearing = Clearing::No;
        if self.seated {
            self.start_when_free = true;
        } else {
            self.start();
        }
    }

    fn start(&mut self) {
        self.start_when_free = false;
        if let Some(standby) = self.upcoming.take().and_then(|upcoming| upcoming.standby) {
            self.driver.start(standby);
            self.seated = true;
        }
    }

    fn left(&mut self, leaving: &Leaving, now: Duration) {
        self.seated = false;
        if *leaving == Leaving::Stopped || self.cleared(now) {
            return;
        }
        if self.start_when_free {
            self.start();
        } else if self.commit_when_free {
            self.commit(now);
        }
    }

    fn deploy_failed(&mut self, node: Option<NodeId>, cause: &str, now: Duration) {
        let Some(node) = node else { return };
        self.placing.placed = None;
        terminal::note(&format!("{} cannot take its part: {cause}\n", self.name_of(node)));
        self.dealt_to = None;
        self.commit_when_free = false;
        if node == self.own {
            self.give_up(cause.to_owned());
            return;
        }
        let failures = self.failures.entry(node).or_default();
        self.shunned.insert(node, now + PENANCE * 2_u32.pow(*failures));
        *failures = (*failures + 1).min(PENANCE_DOUBLINGS_MAX);
        self.replan_at = Some(now + SETTLE);
    }

    fn lost(&mut self, node: NodeId, why: &LossReason, ended: Option<Epoch>, now: Duration) {
        let name = self.name_of(node);
        let why = match why {
            LossReason::Closed => "its connection closed".to_owned(),
            LossReason::Silent(time) => format!("silent for {}", terminal::duration(*time)),
            LossReason::Reconnected => "it came again".to_owned(),
            LossReason::Left(reason) => format!("it left: {reason}"),
            LossReason::Protocol(message) => format!("it sent {message}"),
        };
        terminal::note(&format!("{name} is gone: {why}\n"));
        if let Some(session) = self.sessions.remove(&node) {
            session.close();
        }
        if let Some(epoch) = ended {
            self.end_serving(epoch, &name);
        }
        self.placing.forget(node);
        self.forget_next_with(node);
        self.dealt_to.take_if(|dealt| dealt.contains(&node));
        self.replan_at = Some(now + SETTLE);
    }

    /// The deployment in force is over: its requests end.
    fn end_serving(&mut self, epoch: Epoch, name: &str) {
        if self.serving.take_if(|serving| serving.epoch == epoch).is_some() {
            self.placing.placed = None;
        }
        self.driver.inbox().deliver(Arrival::Lost { epoch, node: name.into() });
    }

    pub(super) fn name_of(&self, node: NodeId) -> String {
        match self.coordinator.members().get(&node) {
            Some(member) => member.name.to_string(),
            None => {
                let list = identity::MemberList::load(&self.plan.folder).unwrap_or_default();
                let id = identity::NodeId::from_bytes(node.0);
                let known = list.members().iter().find(|member| member.id == id);
                known.map_or_else(|| id.short(), |member| member.name.clone())
            }
        }
    }
}
