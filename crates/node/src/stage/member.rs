//! The engine thread of a member that is not the head: takes frames, computes, sends on.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use motley_engine::{EngineMemory, EngineOptions, LoadError, Model};
use motley_ring::limits::MICRO_BATCHES_MAX;
use motley_ring::{
    Accepted, Activity, Assignment, Computed, Member, MemberIndex, MicroBatchId, Work,
};

use super::compute::{HeadRows, Payload, Scratch};
use super::edges::next_arrival;
use super::links::{Arrival, Links};
use super::yielding::{Yielder, YieldingEngine};
use crate::memory::EngineShare;
use crate::profile::load_engine;

/// What a member's engine is to be.
pub(crate) struct MemberPlan {
    pub(crate) model: Arc<Model>,
    pub(crate) options: EngineOptions,
    pub(crate) assignment: Arc<Assignment>,
    pub(crate) index: MemberIndex,
    /// Its share in giving memory to other programs, if it does that.
    pub(crate) share: Option<EngineShare>,
}

/// What a member's engine tells.
pub(crate) struct Reports {
    /// Once: what it holds, or why it could not be loaded.
    pub(crate) loaded: Box<dyn FnOnce(Result<EngineMemory, LoadError>) + Send>,
    /// A micro-batch could not be computed.
    pub(crate) failed: Box<dyn FnMut(MicroBatchId, String) + Send>,
}

/// A member's engine on its thread. Dropping it ends the thread after the step that runs.
#[derive(Debug)]
pub(crate) struct MemberStage {
    inbox: SyncSender<Arrival>,
    links: Arc<Mutex<Links>>,
    meter: Arc<Meter>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What an engine thread has done, for whoever asks.
#[derive(Debug, Default)]
struct Meter {
    busy_ns: AtomicU64,
    idle_ns: AtomicU64,
    frames: AtomicU64,
    token_ns: AtomicU64,
    token_steps: AtomicU64,
}

impl MemberStage {
    /// Starts a thread that loads the engine and then serves its stops.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub(crate) fn start(plan: MemberPlan, reports: Reports) -> std::io::Result<Self> {
        let (inbox, arrivals) = sync_channel(2 * MICRO_BATCHES_MAX);
        let links = Arc::new(Mutex::new(Links::none()));
        let (meter, stop) = (Arc::new(Meter::default()), Arc::new(AtomicBool::new(false)));
        let (own_links, own_meter) = (Arc::clone(&links), Arc::clone(&meter));
        let stopped = Arc::clone(&stop);
        let work = move || {
            let engine = match load_engine(&plan.model, &plan.options) {
                Ok(engine) => engine,
                Err(error) => return (reports.loaded)(Err(error)),
            };
            (reports.loaded)(Ok(engine.memory()));
            let yielder = plan.share.and_then(|share| {
                Yielder::new(share, &engine, Arc::clone(&plan.model), &plan.options)
            });
            let worker = Worker {
                engine: YieldingEngine::new(engine, yielder),
                member: Member::new(plan.index, plan.assignment),
                links: own_links,
                scratch: Scratch::default(),
                failed: reports.failed,
                meter: own_meter,
            };
            worker.serve(&arrivals, &stopped);
        };
        let thread = thread::Builder::new().name("engine".to_owned()).spawn(work)?;
        Ok(Self { inbox, links, meter, stop, thread: Some(thread) })
    }

    /// Where frames go.
    pub(crate) fn inbox(&self) -> SyncSender<Arrival> {
        self.inbox.clone()
    }

    /// Where its ways to other members are to be put.
    pub(crate) fn ways(&self) -> Ways {
        Ways(Arc::clone(&self.links))
    }

    /// What it has done.
    pub(crate) fn activity(&self) -> Activity {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Activity {
            busy_ns: read(&self.meter.busy_ns),
            idle_ns: read(&self.meter.idle_ns),
            frames: read(&self.meter.frames),
            token_ns: read(&self.meter.token_ns),
            token_steps: read(&self.meter.token_steps),
        }
    }
}

/// Gives an engine its ways to other members.
pub(crate) struct Ways(Arc<Mutex<Links>>);

impl Ways {
    /// Puts them in place, before the first frame comes.
    pub(crate) fn connect(&self, links: Links) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = links;
    }
}

impl Drop for MemberStage {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Worker {
    engine: YieldingEngine,
    member: Member<Payload>,
    links: Arc<Mutex<Links>>,
    scratch: Scratch,
    failed: Box<dyn FnMut(MicroBatchId, String) + Send>,
    meter: Arc<Meter>,
}

impl Worker {
    fn serve(mut self, arrivals: &Receiver<Arrival>, stop: &AtomicBool) {
        let mut idle_since = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            match next_arrival(arrivals, || self.engine.rest()) {
                Ok(Some(arrival)) => self.take(arrival),
                Ok(None) => {
                    // Counted although nothing comes, so that others see the device at rest.
                    let now = Instant::now();
                    add(&self.meter.idle_ns, now - idle_since);
                    idle_since = now;
                    self.engine.follow();
                    continue;
                }
                Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => return,
            }
            while let Ok(arrival) = arrivals.try_recv() {
                self.take(arrival);
            }
            let began = Instant::now();
            add(&self.meter.idle_ns, began - idle_since);
            while !stop.load(Ordering::Relaxed)
                && let Some(work) = self.member.next_work()
            {
                self.engine.follow();
                self.compute(work);
                // What came meanwhile may be further on its way.
                while let Ok(arrival) = arrivals.try_recv() {
                    self.take(arrival);
                }
            }
            idle_since = Instant::now();
            add(&self.meter.busy_ns, idle_since - began);
        }
    }

    fn take(&mut self, arrival: Arrival) {
        let Arrival::Frame { from, header, batch, payload } = arrival else { return };
        self.meter.frames.fetch_add(1, Ordering::Relaxed);
        match self.member.handle_frame(from, &header, batch, payload) {
            Ok(Accepted::Queued | Accepted::Dropped) => {}
            Ok(Accepted::Forward(outgoing)) => self.links().send(outgoing),
            Err(refused) => (self.failed)(header.micro_batch, refused.to_string()),
        }
    }

    fn compute(&mut self, work: Work<Payload>) {
        // The product travels on, so that each step needs one of its own.
        let mut product = Vec::new();
        let began = Instant::now();
        let computed =
            self.scratch.compute(&mut self.engine, &work, HeadRows::LOGITS, &mut product);
        if work.batch.rows() == 1 {
            add(&self.meter.token_ns, began.elapsed());
            self.meter.token_steps.fetch_add(1, Ordering::Relaxed);
        }
        match computed {
            Ok(()) => match self.member.computed(work, Payload::Values(product)) {
                Computed::Send(outgoing) => self.links().send(outgoing),
                // Only the head projects.
                Computed::Done { .. } => {}
            },
            Err(error) => {
                let cause = error.to_string();
                let mut lost = Vec::new();
                self.member.failed(work, &mut lost);
                lost.into_iter().for_each(|micro_batch| (self.failed)(micro_batch, cause.clone()));
            }
        }
    }

    fn links(&self) -> std::sync::MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn add(counter: &AtomicU64, time: Duration) {
    counter.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
}
