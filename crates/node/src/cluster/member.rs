//! The control thread of a device that has joined: obeys the head, fetches its layers, serves them.
//!
//! It carries out what [`Follower`] decides. When the head is gone everything is freed, and the
//! device looks for it again.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use motley_engine::{EngineMemory, EngineOptions, LayerSet, LayoutChoice, Model, Residency};
use motley_ggml::ThreadPoolOptions;
use motley_ring::limits::{HELLO_TIMEOUT, LOST_AFTER};
use motley_ring::{
    Addresses, ClusterId, ControlMessage, Epoch, Follower, FollowerOutput, Hello, MeasureLinks,
    MemberIndex, MicroBatchId, ModelManifestRef, NodeId, Peer, Prepare, Progress, Refused, Survey,
};

use super::dial::Dialler;
use super::door::Door;
use super::edges::{EdgeUnreachable, open_edges};
use super::epoch;
use super::fetcher::Fetcher;
use super::loading::Loading;
use super::remains::Remains;
use super::room::{self, Sizes};
use super::shelf::Shelf;
use super::stages::{Stage, Stages};
use super::survey::{self, ProfileSource};
use super::wire::{MessageConnection, MessageSender, WireError};
use crate::blocks::WantedParts;
use crate::discovery;
use crate::failure::{Failure, Kind};
use crate::identity::{self, StateFolder, TokenAddress};
use crate::memory::PressureWatch;
use crate::stage::{EdgeError, EdgePlace, MemberPlan, MemberStage, Reports};
use crate::terminal;
use crate::transport::{ConnectError, Connection, Endpoint, Listener, connect};

/// How long opening the connection to the head may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How a device serves others.
pub(crate) struct MemberOptions {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) folder: StateFolder,
    /// Where the head listens.
    pub(crate) heads: Vec<TokenAddress>,
    /// Where this device listens; without an address, on all its networks, or on loopback if the
    /// head is there.
    pub(crate) host: Option<IpAddr>,
    pub(crate) port: u16,
    pub(crate) models: Option<PathBuf>,
    /// Where fetched layers are kept.
    pub(crate) store: PathBuf,
    pub(crate) memory_budget_bytes: u64,
    pub(crate) threads: ThreadPoolOptions,
    pub(crate) layout: LayoutChoice,
    pub(crate) residency: Residency,
    pub(crate) profile: ProfileSource,
    /// Sees when other programs need memory, if engines are to give it to them.
    pub(crate) watch: Option<PressureWatch>,
    /// Nodes that the head has named; they may connect although they joined later than this one.
    pub(crate) named: Arc<RwLock<std::collections::BTreeSet<identity::NodeId>>>,
}

/// Why a session with a head ended.
#[derive(Debug)]
pub(crate) enum SessionEnd {
    /// It is gone; it may come back.
    HeadGone(String),
    /// It does not want this device.
    Refused(Refused),
    /// This device is to stop.
    Stopped,
}

/// A device that serves layers to a head.
pub(crate) struct Member {
    options: MemberOptions,
    dialler: Arc<Dialler>,
    shelf: Arc<Shelf>,
    stages: Arc<Stages>,
    listener: OnceLock<Listener>,
    /// Held by whoever measures, so that one measurement does not disturb another.
    measuring: Arc<Mutex<()>>,
    stop: Arc<std::sync::atomic::AtomicBool>,
}

/// What happens to a member.
enum Event {
    Message(ControlMessage),
    Closed(String),
    Progress(Progress),
    /// Something for the head that was measured.
    Measured(ControlMessage),
    /// The model's part is here and can be loaded.
    Fetched(Epoch, Result<PathBuf, String>),
    Loaded(Epoch, Result<EngineMemory, String>),
    /// The ways to the other members are open, or cannot be.
    Linked(Epoch, Result<(), EdgeUnreachable>),
    StepFailed(Epoch, MicroBatchId, String),
    EdgeBroken(Epoch, MemberIndex, String),
}

impl Member {
    /// A device that stops when `stop` is set.
    pub(crate) fn new(options: MemberOptions, stop: Arc<std::sync::atomic::AtomicBool>) -> Self {
        let dialler = Arc::new(Dialler::new(Arc::clone(&options.endpoint)));
        let (shelf, stages) = (Arc::default(), Arc::default());
        let (listener, measuring) = (OnceLock::new(), Arc::default());
        Self { options, dialler, shelf, stages, listener, measuring, stop }
    }

    /// Serves one head until that is over.
    ///
    /// # Errors
    /// When this device cannot listen, or the head cannot be reached.
    pub(crate) fn serve_head(&self) -> Result<SessionEnd, Failure> {
        let connection = self.reach_head()?;
        let local = connection.local_address().context("the connection to the head broke")?;
        let head_address = connection.peer_address().context("the connection to the head broke")?;
        let listening = self.listen(self.options.host.unwrap_or(all_of(local.ip())))?;
        let addresses = super::own_addresses(listening, Some(local.ip()));
        let advertised = in_words(&addresses);
        let endpoint = &self.options.endpoint;
        let cluster = ClusterId(endpoint.identity().cluster().prefix());
        let MessageConnection { mut receiver, mut sender, closer } =
            MessageConnection::new(connection, cluster);
        sender.send(&ControlMessage::Hello(Box::new(self.hello(addresses))), &[])?;
        let welcome = match receiver.expect(HELLO_TIMEOUT, false)? {
            (ControlMessage::Welcome(welcome), _) => welcome,
            (ControlMessage::Refused(refused), _) => return Ok(SessionEnd::Refused(refused)),
            (other, _) => {
                let (expected, found) = ("welcome", other.name());
                return Err(WireError::Unexpected { expected, found }.into());
            }
        };
        terminal::note(&format!(
            "joined {} at {head_address}; this device listens on {advertised} and gives {}\n",
            welcome.name,
            terminal::bytes(self.options.memory_budget_bytes)
        ));
        let (events, inbox) = channel();
        let reading = events.clone();
        let reader = thread::Builder::new().name("control in".to_owned()).spawn(move || {
            loop {
                let event = match receiver.receive(LOST_AFTER, true) {
                    Ok(Some((message, _))) => Event::Message(message),
                    Ok(None) => continue,
                    Err(error) => {
                        let _ = reading.send(Event::Closed(error.to_string()));
                        return;
                    }
                };
                if reading.send(event).is_err() {
                    return;
                }
            }
        })?;
        let session = Session {
            member: self,
            follower: Follower::new(self.epoch_seen().max(welcome.epoch), Duration::ZERO),
            sender,
            events,
            began: Instant::now(),
            head: Peer { node: welcome.node, addresses: super::addresses_of([head_address]) },
            deployments: BTreeMap::new(),
            remains: Remains::default(),
            over: None,
        };
        let end = session.run(&inbox);
        closer.close();
        drop(inbox);
        let _ = reader.join();
        Ok(end)
    }

    fn reach_head(&self) -> Result<Connection, Failure> {
        let mut last = None;
        for address in &self.options.heads {
            match connect(address, None, &self.options.endpoint, CONNECT_TIMEOUT) {
                Ok(connection) => return Ok(connection),
                Err(error) => last = Some(error),
            }
        }
        let absent = last.as_ref().is_none_or(ConnectError::is_absence);
        if absent && let Some(connection) = self.reach_announced_head() {
            return Ok(connection);
        }
        Err(match last {
            // Trying again would change nothing.
            Some(
                error @ (ConnectError::Removed { ours: true, .. }
                | ConnectError::NotMember { ours: true, .. }
                | ConnectError::Expired { ours: true, .. }),
            ) => Failure::new(Kind::Refused, error).hint("motley join TOKEN enters it again"),
            Some(error) => Failure::new(Kind::Failed, error)
                .hint("motley join ADDRESS tries another; motley serve --lan lets itself be found"),
            None => Failure::usage("no address of a head is known, and none announces itself")
                .hint("motley join ADDRESS, with the address of the device that serves"),
        })
    }

    /// Tries where heads of this cluster say that they are now.
    fn reach_announced_head(&self) -> Option<Connection> {
        let cluster = self.options.endpoint.identity().cluster();
        discovery::addresses_of(cluster, &self.options.heads).iter().find_map(|address| {
            connect(address, None, &self.options.endpoint, CONNECT_TIMEOUT).ok()
        })
    }

    /// Listens for other members, from the first session on.
    fn listen(&self, ip: IpAddr) -> Result<SocketAddr, Failure> {
        if let Some(listener) = self.listener.get() {
            return Ok(listener.address());
        }
        let door = Door {
            endpoint: Arc::clone(&self.options.endpoint),
            folder: self.options.folder.clone(),
            stages: Arc::clone(&self.stages),
            shelf: Arc::clone(&self.shelf),
            on_hello: None,
        };
        let address = SocketAddr::new(ip, self.options.port);
        let endpoint = Arc::clone(&self.options.endpoint);
        let listener = Listener::start(address, endpoint, move |arrival| door.receive(arrival))?;
        Ok(self.listener.get_or_init(|| listener).address())
    }

    fn hello(&self, addresses: Addresses) -> Hello {
        let identity = self.options.endpoint.identity();
        super::hello(identity, addresses, self.options.memory_budget_bytes, self.epoch_seen())
    }

    fn epoch_seen(&self) -> Epoch {
        epoch::read(&self.options.folder)
    }
}

/// A deployment that is being prepared or served here.
struct Held {
    prepare: Arc<Prepare>,
    stage: Option<MemberStage>,
    inbox: Arc<OnceLock<std::sync::mpsc::SyncSender<crate::stage::Arrival>>>,
    fetched_bytes: u64,
    /// Until the engine is loaded.
    loading: Option<Loading>,
    memory_bytes: u64,
}

/// A session with one head.
struct Session<'m> {
    member: &'m Member,
    follower: Follower,
    sender: MessageSender,
    events: Sender<Event>,
    began: Instant,
    head: Peer,
    deployments: BTreeMap<Epoch, Held>,
    /// Engines that are not wanted any more.
    remains: Remains,
    over: Option<SessionEnd>,
}

impl Session<'_> {
    fn run(mut self, inbox: &Receiver<Event>) -> SessionEnd {
        loop {
            let now = self.began.elapsed();
            self.tell_of_loading();
            self.follower.poll(now);
            self.carry_out();
            if let Some(end) = self.over.take() {
                return end;
            }
            if self.member.stop.load(std::sync::atomic::Ordering::Relaxed) {
                self.leave();
                return SessionEnd::Stopped;
            }
            let deadline = self.follower.next_deadline().unwrap_or(now + LOST_AFTER);
            let wait = deadline.saturating_sub(self.began.elapsed()).max(Duration::from_millis(1));
            match inbox.recv_timeout(wait) {
                Ok(event) => self.take(event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return SessionEnd::HeadGone("the session ended".to_owned());
                }
            }
        }
    }

    fn tell_of_loading(&mut self) {
        for (epoch, held) in &mut self.deployments {
            if let Some(progress) = held.loading.as_mut().and_then(|it| it.progress(*epoch)) {
                self.follower.progress(progress);
            }
        }
    }

    fn leave(&mut self) {
        let reason = motley_ring::Text::cut("it was told to stop");
        // If the head is gone too, nobody needs to know.
        let _ = self.sender.send(&ControlMessage::Leave(motley_ring::Leave { reason }), &[]);
        for epoch in self.deployments.keys() {
            self.member.stages.remove(*epoch);
        }
    }

    fn take(&mut self, event: Event) {
        let now = self.began.elapsed();
        match event {
            Event::Message(message) => {
                if let Some(held) = self.serving() {
                    let activity = held.activity();
                    self.follower.set_activity(activity);
                }
                if let Err(fault) = self.follower.handle(message, now) {
                    terminal::note(&format!("the head is not understood: {fault}\n"));
                    self.follower.closed();
                }
            }
            Event::Closed(cause) => {
                terminal::note(&format!("the connection to the head ended: {cause}\n"));
                self.follower.closed();
            }
            Event::Progress(progress) => {
                if let Some(held) = self.deployments.get_mut(&progress.epoch) {
                    held.fetched_bytes = progress.done_bytes;
                }
                self.follower.progress(progress);
            }
            Event::Measured(message) => self.follower.measured(message),
            Event::Fetched(epoch, fetched) => match fetched {
                Ok(path) => self.load(epoch, path),
                Err(cause) => self.fail(epoch, &cause),
            },
            Event::Loaded(epoch, loaded) => match loaded {
                Ok(memory) => self.loaded(epoch, memory),
                Err(cause) => self.fail(epoch, &cause),
            },
            Event::Linked(epoch, linked) => match (linked, self.deployments.get(&epoch)) {
                (Ok(()), Some(held)) => self.follower.prepared(epoch, held.memory_bytes),
                // Whoever cannot be reached is at fault, not this device.
                (Err(EdgeUnreachable { member, error }), _) => {
                    let cause = format!("{:#}", anyhow::Error::from(error));
                    self.follower.peer_lost(epoch, member, &cause);
                }
                (Ok(()), None) => {}
            },
            Event::StepFailed(epoch, micro_batch, cause) => {
                self.follower.step_failed(epoch, micro_batch, &cause);
            }
            Event::EdgeBroken(epoch, member, cause) => {
                self.follower.peer_lost(epoch, member, &cause);
            }
        }
    }

    fn serving(&self) -> Option<&MemberStage> {
        self.deployments.values().filter_map(|held| held.stage.as_ref()).next_back()
    }

    fn fail(&mut self, epoch: Epoch, cause: &str) {
        terminal::note(&format!("plan {} cannot be prepared: {cause}\n", epoch.0));
        self.follower.prepare_failed(epoch, cause);
    }

    fn carry_out(&mut self) {
        while let Some(output) = self.follower.poll_output() {
            match output {
                FollowerOutput::Send(message) => {
                    if self.sender.send(&message, &[]).is_err() {
                        self.follower.closed();
                    }
                }
                FollowerOutput::Prepare(prepare) => self.prepare(*prepare),
                FollowerOutput::Survey(survey) => self.survey(*survey),
                FollowerOutput::MeasureLinks(links) => self.measure_links(&links),
                FollowerOutput::Serve(epoch) => {
                    if let Some(held) = self.deployments.get(&epoch) {
                        let layers = super::layer_words(&windows(&held.prepare));
                        terminal::note(&format!("plan {}: serving {layers}\n", epoch.0));
                    }
                }
                FollowerOutput::Abandon(epoch) | FollowerOutput::Retire(epoch) => {
                    self.member.stages.remove(epoch);
                    self.remains.bury(self.deployments.remove(&epoch));
                }
                FollowerOutput::HeadLost { silent_for } => {
                    let silent = terminal::duration(silent_for);
                    let cause = if silent_for.is_zero() {
                        "its connection closed".to_owned()
                    } else {
                        format!("silent for {silent}")
                    };
                    self.over = Some(SessionEnd::HeadGone(cause));
                }
                FollowerOutput::HeadLeft { reason } => {
                    self.over = Some(SessionEnd::HeadGone(format!("it left: {reason}")));
                }
            }
        }
    }

    fn prepare(&mut self, prepare: Prepare) {
        let epoch = prepare.epoch();
        // An epoch is accepted once; after a restart an old head cannot bring an old one back.
        epoch::keep(&self.member.options.folder, epoch);
        self.name_nodes(prepare.members.iter().map(|peer| peer.node));
        let prepare = Arc::new(self.with_head_address(prepare));
        let inbox = Arc::new(OnceLock::new());
        self.take_frames(&prepare, &inbox);
        let events = self.events.clone();
        let fetcher = self.fetcher(prepare.model.clone(), prepare.sources.to_vec());
        let budget_bytes = self.member.options.memory_budget_bytes;
        let (before, part) = (self.remains.take(), Arc::clone(&prepare));
        let started = thread::Builder::new().name("fetch".to_owned()).spawn(move || {
            before.wait();
            let report = |progress: crate::blocks::Progress| {
                let (done_bytes, total_bytes) = (progress.done_bytes, progress.total_bytes);
                let progress = Progress { epoch, done_bytes, total_bytes };
                let _ = events.send(Event::Progress(progress));
            };
            let admit = |directory: &_| admit(directory, &part, budget_bytes);
            let fetched = fetcher.parts(&wanted_parts(&part), admit, &report);
            let fetched = fetched.map_err(|error| format!("{error:#}"));
            let _ = events.send(Event::Fetched(epoch, fetched));
        });
        let held =
            Held { prepare, stage: None, inbox, fetched_bytes: 0, loading: None, memory_bytes: 0 };
        self.deployments.insert(epoch, held);
        if let Err(error) = started {
            self.fail(epoch, &error.to_string());
        }
    }

    /// Nodes that the head names are members, whether they joined before or after this one.
    fn name_nodes(&self, nodes: impl Iterator<Item = NodeId>) {
        let named = &self.member.options.named;
        let mut named = named.write().unwrap_or_else(PoisonError::into_inner);
        named.extend(nodes.map(|node| identity::NodeId::from_bytes(node.0)));
    }

    fn with_head_address(&self, mut prepare: Prepare) -> Prepare {
        let known = |peers: &[Peer]| motley_ring::List::new(self.reachable(peers));
        prepare.members = known(&prepare.members).unwrap_or_default();
        prepare.sources = known(&prepare.sources).unwrap_or_default();
        prepare
    }

    /// The head may have told an address that only others reach; the one that this session uses
    /// comes first.
    fn reachable(&self, peers: &[Peer]) -> Vec<Peer> {
        let with_own = |peer: &Peer| {
            let mut peer = peer.clone();
            if peer.node == self.head.node {
                let own = self.head.addresses.iter().cloned();
                let list = own.chain(peer.addresses.iter().cloned());
                let list = list.take(motley_ring::limits::ADDRESSES_MAX).collect();
                peer.addresses = Addresses::new(list).unwrap_or_default();
            }
            peer
        };
        peers.iter().map(with_own).collect()
    }

    fn fetcher(&self, model: ModelManifestRef, sources: Vec<Peer>) -> Fetcher {
        let options = &self.member.options;
        Fetcher {
            dialler: Arc::clone(&self.member.dialler),
            shelf: Arc::clone(&self.member.shelf),
            models: options.models.clone(),
            store: options.store.clone(),
            model,
            sources,
        }
    }

    /// Measures this device with a model, and tells the head.
    fn survey(&self, survey: Survey) {
        self.name_nodes(survey.others.iter().copied());
        let fetcher = self.fetcher(survey.model.clone(), self.reachable(&survey.sources));
        let source = self.member.options.profile.clone();
        self.measure(move |events| {
            let message = survey::answer(&source, &survey, &fetcher);
            let _ = events.send(Event::Measured(message));
        });
    }

    /// Measures the ways to other nodes, and tells the head of each.
    fn measure_links(&self, links: &MeasureLinks) {
        let peers = self.reachable(&links.peers);
        self.name_nodes(peers.iter().map(|peer| peer.node));
        let dialler = Arc::clone(&self.member.dialler);
        self.measure(move |events| {
            for peer in peers {
                let message = survey::link_to(&dialler, &peer);
                let _ = events.send(Event::Measured(message));
            }
        });
    }

    /// Measures on a thread of its own, when nothing else is being measured.
    fn measure(&self, work: impl FnOnce(&Sender<Event>) + Send + 'static) {
        let (events, measuring) = (self.events.clone(), Arc::clone(&self.member.measuring));
        let started = thread::Builder::new().name("measure".to_owned()).spawn(move || {
            let _alone = measuring.lock().unwrap_or_else(PoisonError::into_inner);
            work(&events);
        });
        if let Err(error) = started {
            // The head waits for a while, and then leaves this device out.
            terminal::note(&format!("cannot measure: {error}\n"));
        }
    }

    /// Lets the connections of others find the deployment.
    fn take_frames(
        &self,
        prepare: &Prepare,
        inbox: &Arc<OnceLock<std::sync::mpsc::SyncSender<crate::stage::Arrival>>>,
    ) {
        let inbox = Arc::clone(inbox);
        self.member.stages.add(Stage {
            assignment: Arc::new(prepare.assignment.clone()),
            own: prepare.member,
            nodes: prepare.members.iter().map(|peer| peer.node).collect(),
            deliver: Box::new(move |arrival| {
                inbox.get().is_some_and(|inbox| inbox.send(arrival).is_ok())
            }),
            broken: self.broken(prepare.epoch()),
        });
    }

    fn broken(&self, epoch: Epoch) -> Arc<dyn Fn(MemberIndex, EdgeError) + Send + Sync> {
        let events = Mutex::new(self.events.clone());
        Arc::new(move |member, error| {
            let events = events.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = events.send(Event::EdgeBroken(epoch, member, error.to_string()));
        })
    }

    fn load(&mut self, epoch: Epoch, path: PathBuf) {
        let Some(held) = self.deployments.get_mut(&epoch) else { return };
        let (loaded, failed) = (self.events.clone(), self.events.clone());
        let started = Model::open(&path).map_err(anyhow::Error::from).and_then(|model| {
            let model = Arc::new(model);
            let options = engine_options(&held.prepare, &self.member.options, model.directory())?;
            let plan = MemberPlan {
                model: Arc::clone(&model),
                options,
                assignment: Arc::new(held.prepare.assignment.clone()),
                index: held.prepare.member,
                // The thread looks by itself soon enough.
                share: self.member.options.watch.as_ref().map(|watch| watch.engine(|| ())),
            };
            let reports = Reports {
                loaded: Box::new(move |result| {
                    let result = result.map_err(|e| format!("{:#}", anyhow::Error::from(e)));
                    let _ = loaded.send(Event::Loaded(epoch, result));
                }),
                failed: Box::new(move |micro_batch, cause| {
                    let _ = failed.send(Event::StepFailed(epoch, micro_batch, cause));
                }),
            };
            let loading = Loading::begin(model, &plan.options.layers, held.fetched_bytes);
            Ok((MemberStage::start(plan, reports)?, loading))
        });
        match started {
            Ok((stage, loading)) => {
                let _ = held.inbox.set(stage.inbox());
                held.stage = Some(stage);
                held.loading = Some(loading);
            }
            Err(error) => self.fail(epoch, &format!("{error:#}")),
        }
    }

    /// The engine is loaded: opens the ways to the other members.
    fn loaded(&mut self, epoch: Epoch, memory: EngineMemory) {
        let broken = self.broken(epoch);
        let Some(held) = self.deployments.get_mut(&epoch) else { return };
        held.memory_bytes = memory.total_bytes();
        held.loading = None;
        let Some(stage) = &held.stage else { return };
        let ways = stage.ways();
        let prepare = Arc::clone(&held.prepare);
        let dialler = Arc::clone(&self.member.dialler);
        let stages = Arc::clone(&self.member.stages);
        let events = self.events.clone();
        let opening = move || {
            let assignment = Arc::new(prepare.assignment.clone());
            let place = EdgePlace { assignment, from: prepare.member, to: prepare.member };
            let keep = |closer| stages.keep(epoch, closer);
            let linked = open_edges(&dialler, &place, &prepare.members, keep, &broken)
                .map(|links| ways.connect(links));
            let _ = events.send(Event::Linked(epoch, linked));
        };
        if let Err(error) = thread::Builder::new().name("dial".to_owned()).spawn(opening) {
            self.fail(epoch, &error.to_string());
        }
    }
}

/// What stands for all addresses of a device, if it is reached at `ip` from elsewhere.
fn all_of(ip: IpAddr) -> IpAddr {
    match ip {
        ip if ip.is_loopback() => ip,
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

fn in_words(addresses: &Addresses) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The layers of a member, as first and last plus one.
fn windows(prepare: &Prepare) -> Vec<(u32, u32)> {
    let windows = prepare.assignment.windows_of(prepare.member);
    windows.map(|window| (window.start, window.end)).collect()
}

fn engine_options(
    prepare: &Prepare,
    options: &MemberOptions,
    directory: &motley_model::ModelDirectory,
) -> anyhow::Result<EngineOptions> {
    let sizes = sizes(directory, prepare)?;
    let spec = prepare.assignment.spec();
    let windows = windows(prepare);
    let budget_bytes = options.memory_budget_bytes;
    let fixed_bytes = sizes.fixed_bytes(false);
    let left_bytes = budget_bytes.saturating_sub(fixed_bytes);
    let buffer_bytes = room::stream_buffer_bytes(&sizes, &windows, &prepare.residency, left_bytes);
    let wish = options.residency.into();
    let needed_bytes = fixed_bytes + room::layer_bytes(&sizes, &windows, &prepare.residency);
    let layers = windows.iter().map(|(first, end)| *first as usize..*end as usize);
    let layers = LayerSet::new(layers);
    let memory = (needed_bytes, budget_bytes);
    Ok(EngineOptions {
        layout: room::layout(directory, (&layers, false), memory, options.layout),
        layers,
        embedding: false,
        head: false,
        slots: spec.slots as usize,
        context_tokens: spec.context_tokens as usize,
        batch_rows_max: spec.batch_rows_max as usize,
        cache: room::cache_element(spec.kv_type).context("an unknown type of cache")?,
        threads: options.threads,
        batch_threads: None,
        placement: room::placement(&windows, &prepare.residency, wish, buffer_bytes),
    })
}

fn wanted_parts(prepare: &Prepare) -> WantedParts {
    let layers = windows(prepare).into_iter();
    let layers = layers.map(|(first, end)| first as usize..end as usize).collect();
    WantedParts { layers, embedding: false, head: false }
}

/// Refuses what does not fit before anything is fetched or loaded.
fn admit(
    directory: &motley_model::ModelDirectory,
    prepare: &Prepare,
    budget_bytes: u64,
) -> anyhow::Result<()> {
    let sizes = sizes(directory, prepare)?;
    room::admit(&sizes, &windows(prepare), &prepare.residency, budget_bytes)
}

/// What the model's parts take in this deployment.
fn sizes(directory: &motley_model::ModelDirectory, prepare: &Prepare) -> anyhow::Result<Sizes> {
    let spec = prepare.assignment.spec();
    let options = EngineOptions {
        layers: LayerSet::none(),
        embedding: false,
        head: false,
        slots: spec.slots as usize,
        context_tokens: spec.context_tokens as usize,
        batch_rows_max: spec.batch_rows_max as usize,
        cache: room::cache_element(spec.kv_type).context("an unknown type of cache")?,
        threads: ThreadPoolOptions { threads: 1, poll_percent: 0, pinned: false },
        batch_threads: None,
        layout: LayoutChoice::Plain,
        placement: Residency::default().into(),
    };
    Sizes::new(directory, &options)
}
