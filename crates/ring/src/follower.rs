//! A member's side of deployments: prepare, commit, release, and signs of life of the head.

use std::collections::VecDeque;
use std::time::Duration;

use crate::batch::MicroBatchId;
use crate::control::{
    Activity, ControlMessage, Leave, MeasureLinks, OfEpoch, PeerLost, Ping, Pong, Prepare,
    PrepareFailed, Prepared, Progress, StepFailed, Survey, Text,
};
use crate::frame::Epoch;
use crate::limits::{HEARTBEAT_INTERVAL, LOST_AFTER, SUSPECT_AFTER};
use crate::route::MemberIndex;

/// What a member is to do, or to send to the head, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum FollowerOutput {
    /// Send this to the head.
    Send(ControlMessage),
    /// Begin to fetch and load; report by [`Follower::progress`] and [`Follower::prepared`] or
    /// [`Follower::prepare_failed`].
    Prepare(Box<Prepare>),
    /// Stop preparing this deployment and free what it took.
    Abandon(Epoch),
    /// Take frames of this deployment and of no other.
    Serve(Epoch),
    /// Free what this deployment took.
    Retire(Epoch),
    /// Measure this device with a model; tell by [`Follower::measured`].
    Survey(Box<Survey>),
    /// Measure the ways to these nodes; tell by [`Follower::measured`].
    MeasureLinks(MeasureLinks),
    /// The head was silent for so long, or its connection closed. Everything was released; serve
    /// nothing until another head is found.
    HeadLost {
        /// How long; zero when the connection closed.
        silent_for: Duration,
    },
    /// The head goes away on purpose; otherwise as when it is lost.
    HeadLeft {
        /// Why.
        reason: Text,
    },
}

/// Where a member stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FollowerState {
    /// It holds nothing.
    Idle,
    /// It loads.
    Preparing(Epoch),
    /// It has loaded and waits for the commit.
    Prepared(Epoch),
    /// It takes frames.
    Serving(Epoch),
    /// It takes frames and loads what comes next.
    ServingAndPreparing(Epoch, Epoch),
    /// It takes frames and has loaded what comes next.
    ServingAndPrepared(Epoch, Epoch),
}

/// A message that a head does not send now. Its connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FollowerFault {
    /// Only other members send it.
    #[error("a head does not send {name}")]
    NotFromHead {
        /// Type of the message.
        name: &'static str,
    },
    /// A commit of something that is not prepared.
    #[error("commit of epoch {}, which is not prepared", epoch.0)]
    NotPrepared {
        /// The deployment.
        epoch: Epoch,
    },
}

/// Something that is being prepared.
#[derive(Debug, Clone, Copy)]
struct Upcoming {
    epoch: Epoch,
    prepared: bool,
}

/// A member's side of the cluster's life, while it has a control connection to the head.
///
/// Contract with the driver: give it each message ([`handle`](Self::handle)), each result of its
/// own work, and the time ([`poll`](Self::poll), at the latest at
/// [`next_deadline`](Self::next_deadline)); after each of these carry out
/// [`poll_output`](Self::poll_output) until it gives nothing. `now` is any clock that only rises.
///
/// An epoch is accepted once and only if it is higher than all before it, so that a member that
/// was away cannot be brought back to an old plan.
#[derive(Debug)]
pub struct Follower {
    epoch_seen: Epoch,
    serving: Option<Epoch>,
    upcoming: Option<Upcoming>,
    /// Committed before, not released yet.
    retired: Option<Epoch>,
    activity: Activity,
    heard: Duration,
    polled: Duration,
    lost: bool,
    outputs: VecDeque<FollowerOutput>,
}

impl Follower {
    /// A member that was just made welcome. `epoch_seen` is the highest epoch it ever heard of.
    #[must_use]
    pub const fn new(epoch_seen: Epoch, now: Duration) -> Self {
        Self {
            epoch_seen,
            serving: None,
            upcoming: None,
            retired: None,
            activity: Activity::NONE,
            heard: now,
            polled: now,
            lost: false,
            outputs: VecDeque::new(),
        }
    }

    /// Where it stands.
    #[must_use]
    pub const fn state(&self) -> FollowerState {
        match (self.serving, self.upcoming) {
            (None, None) => FollowerState::Idle,
            (None, Some(Upcoming { epoch, prepared: false })) => FollowerState::Preparing(epoch),
            (None, Some(Upcoming { epoch, prepared: true })) => FollowerState::Prepared(epoch),
            (Some(serving), None) => FollowerState::Serving(serving),
            (Some(serving), Some(Upcoming { epoch, prepared: false })) => {
                FollowerState::ServingAndPreparing(serving, epoch)
            }
            (Some(serving), Some(Upcoming { epoch, prepared: true })) => {
                FollowerState::ServingAndPrepared(serving, epoch)
            }
        }
    }

    /// The highest epoch it ever heard of; the driver keeps it for the next hello.
    #[must_use]
    pub const fn epoch_seen(&self) -> Epoch {
        self.epoch_seen
    }

    /// Takes a message of the head.
    ///
    /// # Errors
    /// A head that keeps to the protocol does not send it.
    pub fn handle(&mut self, message: ControlMessage, now: Duration) -> Result<(), FollowerFault> {
        self.heard = self.heard.max(now);
        match message {
            ControlMessage::Ping(Ping { nonce }) => {
                self.send(ControlMessage::Pong(Pong { nonce, activity: self.activity }));
            }
            ControlMessage::Prepare(prepare) => self.prepare(prepare),
            ControlMessage::Commit(OfEpoch { epoch }) => self.commit(epoch)?,
            ControlMessage::Release(OfEpoch { epoch }) => self.release(epoch),
            ControlMessage::Survey(survey) => {
                self.outputs.push_back(FollowerOutput::Survey(survey));
            }
            ControlMessage::MeasureLinks(links) => {
                self.outputs.push_back(FollowerOutput::MeasureLinks(links));
            }
            ControlMessage::Leave(Leave { reason }) => {
                self.let_go();
                self.outputs.push_back(FollowerOutput::HeadLeft { reason });
            }
            other => return Err(FollowerFault::NotFromHead { name: other.name() }),
        }
        Ok(())
    }

    /// What the engine has done, for the next sign of life.
    pub const fn set_activity(&mut self, activity: Activity) {
        self.activity = activity;
    }

    /// Something that a survey asked for has been measured, or cannot be. `message` is one of
    /// `surveyed`, `survey_failed` and `link_measured`.
    pub fn measured(&mut self, message: ControlMessage) {
        if !self.lost {
            self.send(message);
        }
    }

    /// Preparing goes on.
    pub fn progress(&mut self, progress: Progress) {
        if self.prepares(progress.epoch) {
            self.send(ControlMessage::Progress(progress));
        }
    }

    /// A deployment is ready to be served.
    pub fn prepared(&mut self, epoch: Epoch, memory_bytes: u64) {
        if self.prepares(epoch) {
            self.upcoming = Some(Upcoming { epoch, prepared: true });
            self.send(ControlMessage::Prepared(Prepared { epoch, memory_bytes }));
        }
    }

    /// A deployment cannot be made ready.
    pub fn prepare_failed(&mut self, epoch: Epoch, cause: &str) {
        if self.prepares(epoch) {
            self.upcoming = None;
            self.outputs.push_back(FollowerOutput::Abandon(epoch));
            let cause = Text::cut(cause);
            self.send(ControlMessage::PrepareFailed(PrepareFailed { epoch, cause }));
        }
    }

    /// A micro-batch could not be computed.
    pub fn step_failed(&mut self, epoch: Epoch, micro_batch: MicroBatchId, cause: &str) {
        if self.serving == Some(epoch) {
            let cause = Text::cut(cause);
            self.send(ControlMessage::StepFailed(StepFailed { epoch, micro_batch, cause }));
        }
    }

    /// The data connection to another member cannot be opened, or is broken.
    pub fn peer_lost(&mut self, epoch: Epoch, member: MemberIndex, cause: &str) {
        let upcoming = self.upcoming.is_some_and(|upcoming| upcoming.epoch == epoch);
        if upcoming || self.serving == Some(epoch) {
            let cause = Text::cut(cause);
            self.send(ControlMessage::PeerLost(PeerLost { epoch, member, cause }));
        }
    }

    /// The control connection closed.
    pub fn closed(&mut self) {
        self.lose(Duration::ZERO);
    }

    /// Looks at the time.
    pub fn poll(&mut self, now: Duration) {
        self.heard = (self.heard + slept(self.polled, now)).min(now.max(self.heard));
        self.polled = self.polled.max(now);
        let silent_for = now.saturating_sub(self.heard);
        if silent_for >= LOST_AFTER {
            self.lose(silent_for);
        }
    }

    /// When to look at the time again.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        // More often than silence needs, because a gap between two looks is no silence.
        (!self.lost).then(|| (self.heard + LOST_AFTER).min(self.polled + HEARTBEAT_INTERVAL))
    }

    /// What is to be done next.
    pub fn poll_output(&mut self) -> Option<FollowerOutput> {
        self.outputs.pop_front()
    }

    fn prepares(&self, epoch: Epoch) -> bool {
        self.upcoming.is_some_and(|upcoming| upcoming.epoch == epoch && !upcoming.prepared)
    }

    fn prepare(&mut self, prepare: Box<Prepare>) {
        let epoch = prepare.epoch();
        if epoch <= self.epoch_seen {
            let cause = Text::cut(&format!("epoch {} is over", self.epoch_seen.0));
            self.send(ControlMessage::PrepareFailed(PrepareFailed { epoch, cause }));
            return;
        }
        self.epoch_seen = epoch;
        if let Some(old) = self.upcoming.replace(Upcoming { epoch, prepared: false }) {
            self.outputs.push_back(FollowerOutput::Abandon(old.epoch));
        }
        self.outputs.push_back(FollowerOutput::Prepare(prepare));
    }

    fn commit(&mut self, epoch: Epoch) -> Result<(), FollowerFault> {
        if self.serving != Some(epoch) {
            let prepared = |upcoming: &mut Upcoming| upcoming.epoch == epoch && upcoming.prepared;
            if self.upcoming.take_if(prepared).is_none() {
                return Err(FollowerFault::NotPrepared { epoch });
            }
            let before = self.serving.replace(epoch);
            if let Some(older) = std::mem::replace(&mut self.retired, before) {
                self.outputs.push_back(FollowerOutput::Retire(older));
            }
            self.outputs.push_back(FollowerOutput::Serve(epoch));
        }
        self.send(ControlMessage::Committed(OfEpoch { epoch }));
        Ok(())
    }

    fn release(&mut self, epoch: Epoch) {
        if self.serving.take_if(|serving| *serving == epoch).is_some()
            || self.retired.take_if(|retired| *retired == epoch).is_some()
        {
            self.outputs.push_back(FollowerOutput::Retire(epoch));
        }
        if self.upcoming.take_if(|upcoming| upcoming.epoch == epoch).is_some() {
            self.outputs.push_back(FollowerOutput::Abandon(epoch));
        }
        self.send(ControlMessage::Released(OfEpoch { epoch }));
    }

    fn lose(&mut self, silent_for: Duration) {
        if !self.lost {
            self.let_go();
            self.outputs.push_back(FollowerOutput::HeadLost { silent_for });
        }
    }

    fn let_go(&mut self) {
        self.lost = true;
        if let Some(upcoming) = self.upcoming.take() {
            self.outputs.push_back(FollowerOutput::Abandon(upcoming.epoch));
        }
        for epoch in [self.serving.take(), self.retired.take()].into_iter().flatten() {
            self.outputs.push_back(FollowerOutput::Retire(epoch));
        }
    }

    fn send(&mut self, message: ControlMessage) {
        self.outputs.push_back(FollowerOutput::Send(message));
    }
}

/// How long this process itself did not run: a gap that long between two looks at the time is no
/// silence of others.
pub(crate) fn slept(polled: Duration, now: Duration) -> Duration {
    let gap = now.saturating_sub(polled);
    if gap > SUSPECT_AFTER { gap } else { Duration::ZERO }
}
