//! One member of a ring while it serves: takes frames, says what to compute next, and where what
//! was computed goes.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::assignment::Assignment;
use crate::batch::{Batch, MicroBatchId, Run, SlotIndex};
use crate::frame::{Epoch, FrameHeader};
use crate::limits::MICRO_BATCHES_MAX;
use crate::route::{MemberIndex, Stop};

/// Why a frame is refused. After anything but a [`Gap`](Self::Gap) its connection is closed,
/// because the sender follows another plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameRefused {
    /// A deployment that was never committed here.
    #[error("frame of epoch {}, this member serves epoch {}", found.0, serving.0)]
    FutureEpoch {
        /// The frame's epoch.
        found: Epoch,
        /// The epoch served.
        serving: Epoch,
    },
    /// The stop is not this member's, or is where tokens enter.
    #[error("stop {stop} is not reached by a frame to this member")]
    NotMine {
        /// The stop.
        stop: u32,
    },
    /// The frame came from a member that does not send to this stop.
    #[error("frames to stop {stop} come from member {}, not from member {}", expected.0, found.0)]
    WrongEdge {
        /// The stop.
        stop: u32,
        /// The member that sends to it.
        expected: MemberIndex,
        /// The member that did.
        found: MemberIndex,
    },
    /// A number beyond the plan.
    #[error("{what} is {found}, at most {most} is allowed")]
    TooMuch {
        /// What was counted.
        what: &'static str,
        /// The number found.
        found: u64,
        /// The largest allowed.
        most: u64,
    },
    /// The activations are not those of the rows that travel to this stop.
    #[error("{found} bytes of activations, {expected} expected")]
    PayloadBytes {
        /// Bytes found.
        found: u64,
        /// Bytes of the rows that travel.
        expected: u64,
    },
    /// Rows that come before them are missing: a frame was lost, or failed on its way.
    #[error("slot {} continues at position {position}, only {filled} are computed", slot.0)]
    Gap {
        /// The slot.
        slot: SlotIndex,
        /// Position of the first row.
        position: u32,
        /// Positions that came before.
        filled: u32,
    },
    /// More frames wait than can be on their way.
    #[error("{MICRO_BATCHES_MAX} frames wait already")]
    QueueFull,
}

/// What became of a frame.
#[derive(Debug, PartialEq, Eq)]
pub enum Accepted<P> {
    /// It waits for [`Member::next_work`].
    Queued,
    /// This member is a relay here: send it on at once.
    Forward(Outgoing<P>),
    /// It belongs to a deployment that is over.
    Dropped,
}

/// Something to send to the next member.
#[derive(Debug, PartialEq, Eq)]
pub struct Outgoing<P> {
    /// The member.
    pub to: MemberIndex,
    /// The stop it goes to.
    pub stop: u32,
    /// The micro-batch.
    pub micro_batch: MicroBatchId,
    /// Its rows.
    pub batch: Batch,
    /// Activations of the rows that travel.
    pub payload: P,
}

/// Something to compute.
#[derive(Debug, PartialEq, Eq)]
pub struct Work<P> {
    /// The micro-batch.
    pub micro_batch: MicroBatchId,
    /// The stop.
    pub stop: u32,
    /// Layers to compute; empty where the head only embeds or only projects.
    pub layers: Range<u32>,
    /// The payload is tokens; they are embedded first.
    pub embeds: bool,
    /// Logits are made last.
    pub projects: bool,
    /// Only the rows that the head wants have come, because no layers are left.
    pub enters_wanted: bool,
    /// Only the rows that the head wants leave.
    pub leaves_wanted: bool,
    /// The rows.
    pub batch: Batch,
    /// Tokens or activations.
    pub payload: P,
    first_visit: bool,
}

impl<P> Work<P> {
    /// Slots whose caches are forgotten, in all layers of this member, before this is computed.
    /// Later windows of the same member name none: they would forget what the first has computed.
    pub fn slots_to_clear(&self) -> impl Iterator<Item = SlotIndex> + '_ {
        let fresh = self.batch.runs().iter().filter(|run| run.fresh && self.first_visit);
        fresh.map(|run| run.slot)
    }
}

/// What follows a computation.
#[derive(Debug, PartialEq, Eq)]
pub enum Computed<P> {
    /// The next member goes on.
    Send(Outgoing<P>),
    /// This was the last stop: tokens can be chosen.
    Done {
        /// The micro-batch.
        micro_batch: MicroBatchId,
        /// Its rows.
        batch: Batch,
        /// Logits of the rows that were wanted.
        product: P,
    },
}

/// A member serving one deployment. `P` is whatever the driver calls activations; it is moved,
/// never looked into.
///
/// The driver gives it every frame ([`handle_frame`](Self::handle_frame)) and, at the head, every
/// new micro-batch ([`begin`](Self::begin)); sends on at once what is to be forwarded; and, whenever
/// its engine is free, takes [`next_work`](Self::next_work), computes it and gives the product to
/// [`computed`](Self::computed) or says [`failed`](Self::failed). Another deployment is another
/// member.
#[derive(Debug)]
pub struct Member<P> {
    index: MemberIndex,
    assignment: Arc<Assignment>,
    visits: Vec<Visit<P>>,
    waiting: usize,
}

/// One of the member's stops.
#[derive(Debug)]
struct Visit<P> {
    stop: u32,
    queue: VecDeque<Work<P>>,
    /// Positions of each slot that have passed, also where nothing is cached: a chunk that failed
    /// here must not be followed by the next.
    filled: Vec<u32>,
}

impl<P> Visit<P> {
    /// Rows of a batch were not computed.
    fn forget(&mut self, batch: &Batch) {
        for run in batch.runs() {
            if let Some(filled) = self.filled.get_mut(run.slot.0 as usize) {
                *filled = (*filled).min(run.first_position);
            }
        }
    }

    /// Whether rows that a batch builds on are missing, or will be.
    fn misses_rows(&self, batch: &Batch) -> bool {
        batch.runs().iter().any(|run| self.gap(run).is_some())
    }

    /// How many positions there are, if a run begins after them.
    fn gap(&self, run: &Run) -> Option<u32> {
        let filled = *self.filled.get(run.slot.0 as usize)?;
        (!run.fresh && run.first_position > filled).then_some(filled)
    }
}

impl<P> Member<P> {
    /// The member at `index` of the assignment's route.
    ///
    /// # Panics
    /// A member that is not on the route is a bug of the caller.
    #[must_use]
    pub fn new(index: MemberIndex, assignment: Arc<Assignment>) -> Self {
        assert!(index.0 < assignment.route().members(), "a member of the route");
        let stops = assignment.route().stops().iter().enumerate();
        let own = stops.filter(|(_, stop)| stop.member == index && !stop.forwards());
        let slots = assignment.spec().slots as usize;
        let visits = own.map(|(number, _)| Visit {
            stop: number as u32,
            queue: VecDeque::new(),
            filled: vec![0; slots],
        });
        let visits = visits.collect();
        Self { index, assignment, visits, waiting: 0 }
    }

    /// Its place in the route.
    #[must_use]
    pub const fn index(&self) -> MemberIndex {
        self.index
    }

    /// The deployment it serves.
    #[must_use]
    pub const fn assignment(&self) -> &Arc<Assignment> {
        &self.assignment
    }

    /// Pieces of work that wait.
    #[must_use]
    pub const fn waiting(&self) -> usize {
        self.waiting
    }

    /// Begins a micro-batch; only the head does. `payload` is its tokens.
    ///
    /// # Errors
    /// Rows beyond the plan; or a gap, after a work [`failed`](Self::failed) here of which the
    /// scheduler has not been told yet: then this micro-batch has failed too.
    ///
    /// # Panics
    /// This member is not the head.
    pub fn begin(
        &mut self,
        micro_batch: MicroBatchId,
        batch: Batch,
        payload: P,
    ) -> Result<(), FrameRefused> {
        assert_eq!(self.index, self.assignment.route().head(), "only the head begins");
        self.assignment.check_rows(&batch)?;
        self.enter(0, micro_batch, batch, payload)
    }

    /// Takes a frame that came from `from`.
    ///
    /// # Errors
    /// It does not belong here, is beyond the plan, or leaves a gap.
    pub fn handle_frame(
        &mut self,
        from: MemberIndex,
        header: &FrameHeader,
        batch: Batch,
        payload: P,
    ) -> Result<Accepted<P>, FrameRefused> {
        if !self.assignment.expects_frame((from, self.index), header, &batch)? {
            return Ok(Accepted::Dropped);
        }
        let micro_batch = header.micro_batch;
        if self.assignment.route().stops()[header.stop as usize].forwards() {
            let stop = header.stop + 1;
            return Ok(Accepted::Forward(self.outgoing(stop, micro_batch, batch, payload)));
        }
        let visit = self.visits.iter().position(|visit| visit.stop == header.stop);
        let visit = visit.ok_or(FrameRefused::NotMine { stop: header.stop })?;
        self.enter(visit, micro_batch, batch, payload)?;
        Ok(Accepted::Queued)
    }

    /// What to compute next: of what waits, the furthest on its way, so that what is nearly
    /// finished does not wait for what has just begun. Rows of a slot keep their order, because
    /// each stop is first in, first out.
    pub fn next_work(&mut self) -> Option<Work<P>> {
        let work = self.visits.iter_mut().rev().find_map(|visit| visit.queue.pop_front())?;
        self.waiting -= 1;
        Some(work)
    }

    /// Says where the product of a work goes.
    pub fn computed(&self, work: Work<P>, product: P) -> Computed<P> {
        let Work { micro_batch, batch, .. } = work;
        if work.projects {
            return Computed::Done { micro_batch, batch, product };
        }
        Computed::Send(self.outgoing(work.stop + 1, micro_batch, batch, product))
    }

    /// A work could not be computed. It and all work that waits here and builds on its rows is
    /// appended to `failed`, which the head must be told; later frames that build on them are
    /// refused as gaps, until their slots begin afresh.
    pub fn failed(&mut self, work: Work<P>, failed: &mut Vec<MicroBatchId>) {
        failed.push(work.micro_batch);
        let Some(visit) = self.visits.iter_mut().find(|visit| visit.stop == work.stop) else {
            return;
        };
        visit.forget(&work.batch);
        let mut at = 0;
        while let Some(waiting) = visit.queue.get(at) {
            if visit.misses_rows(&waiting.batch) {
                self.waiting -= 1;
                if let Some(work) = visit.queue.remove(at) {
                    failed.push(work.micro_batch);
                    visit.forget(&work.batch);
                }
            } else {
                at += 1;
            }
        }
    }

    fn enter(
        &mut self,
        visit: usize,
        micro_batch: MicroBatchId,
        batch: Batch,
        payload: P,
    ) -> Result<(), FrameRefused> {
        if self.waiting >= MICRO_BATCHES_MAX {
            return Err(FrameRefused::QueueFull);
        }
        let entered = &mut self.visits[visit];
        let gap = batch.runs().iter().find_map(|run| Some((run, entered.gap(run)?)));
        if let Some((run, filled)) = gap {
            let (slot, position) = (run.slot, run.first_position);
            entered.forget(&batch);
            return Err(FrameRefused::Gap { slot, position, filled });
        }
        for run in batch.runs() {
            if let Some(filled) = entered.filled.get_mut(run.slot.0 as usize) {
                *filled = run.end_position();
            }
        }
        let route = self.assignment.route();
        let number = entered.stop as usize;
        let stop: &Stop = &route.stops()[number];
        let work = Work {
            micro_batch,
            stop: entered.stop,
            layers: stop.layers.clone(),
            embeds: stop.embeds,
            projects: stop.projects,
            enters_wanted: !stop.embeds && route.after_all_layers(number),
            leaves_wanted: stop.layers.end == route.layers(),
            batch,
            payload,
            first_visit: visit == 0,
        };
        entered.queue.push_back(work);
        self.waiting += 1;
        Ok(())
    }

    fn outgoing(
        &self,
        stop: u32,
        micro_batch: MicroBatchId,
        batch: Batch,
        payload: P,
    ) -> Outgoing<P> {
        // The last stop is the head's and projects, so that nothing is sent beyond it.
        let to = self.assignment.route().stops()[stop as usize].member;
        Outgoing { to, stop, micro_batch, batch, payload }
    }
}

impl Assignment {
    /// Whether a frame that member `edge.0` sent to member `edge.1` belongs to this deployment, judged by
    /// header and table alone, so that activations need not be read first; false if it belongs to
    /// one that is over.
    ///
    /// # Errors
    /// The sender follows another plan.
    pub fn expects_frame(
        &self,
        edge: (MemberIndex, MemberIndex),
        header: &FrameHeader,
        batch: &Batch,
    ) -> Result<bool, FrameRefused> {
        if header.epoch < self.epoch() {
            return Ok(false);
        }
        if header.epoch > self.epoch() {
            let (found, serving) = (header.epoch, self.epoch());
            return Err(FrameRefused::FutureEpoch { found, serving });
        }
        let number = header.stop as usize;
        let stops = self.route().stops();
        if number == 0 || stops.get(number).is_none_or(|stop| stop.member != edge.1) {
            return Err(FrameRefused::NotMine { stop: header.stop });
        }
        let expected = stops[number - 1].member;
        if edge.0 != expected {
            return Err(FrameRefused::WrongEdge { stop: header.stop, expected, found: edge.0 });
        }
        self.check_rows(batch)?;
        let travelling =
            if self.route().after_all_layers(number) { batch.wanted_rows() } else { batch.rows() };
        let (found, expected) = (u64::from(header.payload_bytes), self.payload_bytes(travelling));
        if found != expected {
            return Err(FrameRefused::PayloadBytes { found, expected });
        }
        Ok(true)
    }

    fn check_rows(&self, batch: &Batch) -> Result<(), FrameRefused> {
        let at_most = |what, found: u32, most: u32| {
            let (found, most) = (u64::from(found), u64::from(most));
            if found <= most { Ok(()) } else { Err(FrameRefused::TooMuch { what, found, most }) }
        };
        at_most("number of rows", batch.rows(), self.spec().batch_rows_max)?;
        for run in batch.runs() {
            at_most("slot", run.slot.0, self.spec().slots - 1)?;
            at_most("end of a run", run.end_position(), self.spec().context_tokens)?;
        }
        Ok(())
    }
}
