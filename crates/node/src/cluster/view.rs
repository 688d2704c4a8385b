//! What others may see of a head: `motley status`, the gateway's health, metrics.

use std::sync::PoisonError;
use std::time::Duration;

use motley_gateway::{ClusterState, Health, NodeState};
use motley_ring::{Activity, NodeId};

use super::head::Control;
use super::room;
use crate::driver::Driver;
use crate::identity;

/// What others may see of a head.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) cluster: ClusterState,
    pub(crate) health: Health,
}

/// What a node's engine did between two looks.
#[derive(Clone, Copy, Default)]
pub(super) struct Pace {
    seen: Activity,
    busy_ratio: Option<f64>,
    step: Option<Duration>,
}

impl Control {
    /// Publishes what there is to see.
    pub(super) fn show(&mut self) {
        let serving = self.serving.clone().unwrap_or_default();
        let mut nodes: Vec<NodeState> = Vec::new();
        for (node, layers) in &serving.members {
            nodes.push(self.node_state(*node, layers.clone()));
        }
        for node in self.coordinator.members().keys().copied().collect::<Vec<_>>() {
            if !serving.members.iter().any(|(known, _)| *known == node) {
                nodes.push(self.node_state(node, Vec::new()));
            }
        }
        let health = match (&self.serving, &self.problem) {
            (Some(_), _) => Health::Ready,
            (None, Some(reason)) => Health::NoPlan { reason: reason.clone() },
            (None, None) => Health::Loading { progress: self.loading_progress() },
        };
        let change = match (&self.upcoming, &self.problem) {
            (Some(upcoming), _) if self.serving.is_some() => {
                Some(format!("plan {} is being loaded", upcoming.epoch.0))
            }
            (_, problem) => problem.clone(),
        };
        let cluster = ClusterState {
            epoch: serving.epoch.0,
            change,
            groups: serving.groups,
            rounds: serving.rounds,
            nodes,
        };
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = View { cluster, health };
    }

    fn loading_progress(&self) -> f32 {
        let (done, total) = self
            .progress
            .values()
            .fold((0, 0), |sum: (u64, u64), (done, total)| (sum.0 + done, sum.1 + total));
        if total == 0 { 0.0 } else { (done as f64 / total as f64) as f32 }
    }

    fn node_state(&mut self, node: NodeId, layers: Vec<(u32, u32)>) -> NodeState {
        let (id, own) = (identity::NodeId::from_bytes(node.0).to_string(), node == self.own);
        let Some(member) = self.coordinator.members().get(&node) else {
            let name = self.name_of(node);
            return NodeState {
                name,
                id,
                state: "gone".to_owned(),
                layers,
                ..NodeState::default()
            };
        };
        let state = match self.progress.get(&node) {
            Some((done, total)) if *total > 0 && done < total => {
                format!("loading {} %", done * 100 / total)
            }
            _ if self.shunned.contains_key(&node) => {
                "left out: it could not take its part".to_owned()
            }
            _ if self.roster.is_drained(&node) && layers.is_empty() => "drained".to_owned(),
            _ if !layers.is_empty() || (own && self.serving.is_some()) => "serving".to_owned(),
            _ => "idle".to_owned(),
        };
        let seen =
            if own { own_activity(&self.driver, self.began.elapsed()) } else { member.activity };
        let pace = self.activity.entry(node).or_default();
        pace.look(seen);
        let used = room::layer_bytes(&self.plan.sizes, &layers);
        NodeState {
            name: member.name.to_string(),
            id,
            address: member.addresses.first().map(|it| it.as_str().to_owned()).unwrap_or_default(),
            head: own,
            state,
            memory_budget_bytes: member.memory_budget_bytes,
            memory_used_bytes: used
                + if layers.is_empty() && !own { 0 } else { self.plan.sizes.fixed_bytes(own) },
            layers,
            round_trip: member.round_trip.filter(|_| !own),
            busy_ratio: pace.busy_ratio,
            step: pace.step,
        }
    }
}

impl Pace {
    /// Compares with the last look, if something was done since.
    fn look(&mut self, now: Activity) {
        /// Shorter spans say little.
        const SPAN_NS: u64 = 500_000_000;
        let busy = now.busy_ns.saturating_sub(self.seen.busy_ns);
        let idle = now.idle_ns.saturating_sub(self.seen.idle_ns);
        if now.busy_ns < self.seen.busy_ns {
            // Another engine: it counts from zero.
            *self = Self { seen: now, ..Self::default() };
        } else if busy + idle >= SPAN_NS {
            let frames = now.frames.saturating_sub(self.seen.frames);
            self.busy_ratio = Some(busy as f64 / (busy + idle) as f64);
            self.step = busy.checked_div(frames).map(Duration::from_nanos);
            self.seen = now;
        }
    }
}

/// What the head's own engine has done.
fn own_activity(driver: &Driver, uptime: Duration) -> Activity {
    let state = driver.state();
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let busy_ns = nanoseconds(state.busy);
    Activity { busy_ns, idle_ns: nanoseconds(uptime).saturating_sub(busy_ns), frames: state.steps }
}
