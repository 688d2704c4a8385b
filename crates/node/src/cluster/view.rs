//! What others may see of a head: `motley status`, the gateway's health, metrics.

use std::sync::PoisonError;
use std::time::Duration;

use motley_cluster::Residency;
use motley_gateway::{ClusterState, Health, LinkState, NodeState, PlanState};
use motley_ring::{Activity, NodeId};

use super::clearing::Clearing;
use super::head::Control;
use super::place::Way;
use super::room;
use super::split::Split;
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
    /// Steps for one token that have been counted in, and their time.
    tokens_seen: (u64, u64),
    busy_ratio: Option<f64>,
    step: Option<Duration>,
    /// Mean time of a step for one token.
    token_step: Option<Duration>,
}

/// Steps of single tokens between two looks from which their mean says something.
const TOKEN_STEPS_MIN: u64 = 16;

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
            (None, None) if matches!(self.clearing, Clearing::Loading) => Health::Ready,
            (None, Some(reason)) => Health::NoPlan { reason: reason.clone() },
            (None, None) => Health::Loading { progress: self.loading_progress() },
        };
        let next_one = self.serving.is_some() || matches!(self.clearing, Clearing::Loading);
        let change = match &self.upcoming {
            _ if matches!(self.clearing, Clearing::Ending(_)) => {
                Some("the next plan waits until running answers have ended".to_owned())
            }
            Some(upcoming) if next_one => {
                Some(format!("plan {} is being loaded", upcoming.epoch.0))
            }
            _ => self.problem.clone(),
        };
        let cluster = ClusterState {
            epoch: serving.epoch.0,
            change,
            groups: serving.groups,
            rounds: serving.rounds,
            nodes,
            plan: self.plan_state(),
            links: self.link_states(),
        };
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = View { cluster, health };
    }

    /// What the plan in force promises and keeps.
    fn plan_state(&mut self) -> Option<PlanState> {
        let placed = self.placing.placed.as_ref().filter(|_| self.serving.is_some())?;
        let tokens = self.driver.state().tokens;
        let epoch = self.serving.as_ref().map_or(0, |serving| serving.epoch.0);
        Some(PlanState {
            token_predicted: Duration::from_secs_f64(placed.token_s),
            token_measured: self.around.look(epoch, (tokens.rounds, tokens.around)),
            reasons: placed.reasons.clone(),
        })
    }

    /// Ways between the devices that are there.
    fn link_states(&self) -> Vec<LinkState> {
        let nodes: Vec<NodeId> = self.coordinator.members().keys().copied().collect();
        let mut links = Vec::new();
        for from in &nodes {
            for to in nodes.iter().filter(|to| *to != from) {
                let (link, assumed) = match self.placing.way(*from, *to, self.own) {
                    Way::Measured(link) => (link, false),
                    Way::Assumed(link) => (link, true),
                    Way::None => continue,
                };
                links.push(LinkState {
                    from: self.name_of(*from),
                    to: self.name_of(*to),
                    round_trip: Duration::from_secs_f64(link.rtt_s.value()),
                    bytes_per_s: link.bytes_per_s.value() as u64,
                    assumed,
                });
            }
        }
        links
    }

    /// How often a token stops at a node, to compute there.
    fn stops_of(&self, node: NodeId) -> u32 {
        let Some((assignment, members)) = self.coordinator.serving() else { return 0 };
        let stops = assignment.route().stops().iter();
        let own = stops.filter(|stop| members.get(stop.member.index()) == Some(&node));
        own.filter(|stop| !stop.forwards()).count() as u32
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
        let (stops, now) = (self.stops_of(node), self.began.elapsed());
        let pace = self.activity.entry(node).or_default();
        let fresh = pace.look(seen);
        let (busy_ratio, step) = (pace.busy_ratio, pace.step);
        let token_measured = pace.token_step.map(|step| step * stops).filter(|_| stops > 0);
        if let Some(measured) = token_measured.filter(|_| fresh) {
            self.placing.learn_time(node, measured.as_secs_f64());
        }
        let predicted = self.placing.predicted(node).filter(|_| self.serving.is_some());
        let member = &self.coordinator.members()[&node];
        let works = own || !layers.is_empty();
        let used = if works { self.used_by(node, &layers) } else { 0 };
        let left_out = layers.is_empty() && !own && self.plan.split == Split::Auto;
        NodeState {
            name: member.name.to_string(),
            id,
            address: member.addresses.first().map(|it| it.as_str().to_owned()).unwrap_or_default(),
            head: own,
            state,
            memory_budget_bytes: member.memory_budget_bytes,
            memory_used_bytes: used,
            layers,
            round_trip: member.round_trip.filter(|_| !own),
            busy_ratio,
            step,
            token_predicted: predicted.map(|(compute_s, _, _)| Duration::from_secs_f64(compute_s)),
            token_measured,
            hop_predicted: predicted.map(|(_, hop_s, _)| Duration::from_secs_f64(hop_s)),
            correction: self.placing.correction(node),
            why: left_out.then(|| self.placing.why_left_out(node, self.own, now)).flatten(),
        }
    }
}

impl Control {
    /// Memory that a node has in use with these layers and all sequences' keys and values: buffers of
    /// streams, second layouts and the program are in it, what is kept for forms is not.
    fn used_by(&self, node: NodeId, layers: &[(u32, u32)]) -> u64 {
        let (allowance, head) = (self.allowance(), node == self.own);
        let residency = self.placing.residency(node);
        let taken = match residency.iter().any(|run| run.weights == Residency::Gpu) {
            // What its GPU takes is no memory of the device.
            true => {
                let sizes = &allowance.sizes;
                sizes.fixed_bytes(head) + room::layer_bytes(sizes, layers, residency)
            }
            false => self.taken_by(node, layers, residency, allowance),
        };
        taken.saturating_sub(allowance.sizes.spare_bytes(head))
    }
}

/// Mean time of a token around the ring, from one look to the next.
#[derive(Clone, Copy, Default)]
pub(super) struct Around {
    epoch: u64,
    seen: (u64, Duration),
    mean: Option<Duration>,
}

impl Around {
    /// Compares with the last look, if enough tokens have gone around since.
    fn look(&mut self, epoch: u64, (rounds, around): (u64, Duration)) -> Option<Duration> {
        if epoch != self.epoch || rounds < self.seen.0 {
            *self = Self { epoch, seen: (rounds, around), mean: None };
        }
        let count = rounds - self.seen.0;
        if count >= TOKEN_STEPS_MIN {
            let mean = (around.saturating_sub(self.seen.1)).as_secs_f64() / count as f64;
            (self.mean, self.seen) = (Some(Duration::from_secs_f64(mean)), (rounds, around));
        }
        self.mean
    }
}

impl Pace {
    /// Compares with the last look, if something was done since. Tells whether there is something
    /// new to say of single tokens.
    fn look(&mut self, now: Activity) -> bool {
        /// Shorter spans say little.
        const SPAN_NS: u64 = 500_000_000;
        let busy = now.busy_ns.saturating_sub(self.seen.busy_ns);
        let idle = now.idle_ns.saturating_sub(self.seen.idle_ns);
        if now.busy_ns < self.seen.busy_ns {
            // Another engine: it counts from zero.
            let tokens_seen = (now.token_steps, now.token_ns);
            *self = Self { seen: now, tokens_seen, ..Self::default() };
            return false;
        }
        if busy + idle >= SPAN_NS {
            let frames = now.frames.saturating_sub(self.seen.frames);
            self.busy_ratio = Some(busy as f64 / (busy + idle) as f64);
            self.step = busy.checked_div(frames).map(Duration::from_nanos);
            self.seen = now;
            return self.look_at_tokens((now.token_steps, now.token_ns));
        }
        false
    }

    /// Waits, over as many looks as it takes, until enough single tokens have been computed.
    fn look_at_tokens(&mut self, (steps, ns): (u64, u64)) -> bool {
        let fresh = steps.saturating_sub(self.tokens_seen.0);
        if fresh < TOKEN_STEPS_MIN {
            return false;
        }
        let spent_ns = ns.saturating_sub(self.tokens_seen.1);
        self.token_step = Some(Duration::from_nanos(spent_ns / fresh));
        self.tokens_seen = (steps, ns);
        true
    }
}

/// What the head's own engine has done.
fn own_activity(driver: &Driver, uptime: Duration) -> Activity {
    let state = driver.state();
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let busy_ns = nanoseconds(state.busy);
    Activity {
        busy_ns,
        idle_ns: nanoseconds(uptime).saturating_sub(busy_ns),
        frames: state.steps,
        token_ns: nanoseconds(state.tokens.computed),
        token_steps: state.tokens.steps,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_tokens_are_waited_for_over_several_looks() {
        let mut pace = Pace::default();
        // Ten tokens of 100 ms in each second.
        let at = |second: u64| Activity {
            busy_ns: second * 1_000_000_000,
            idle_ns: 0,
            frames: second * 10,
            token_ns: second * 1_000_000_000,
            token_steps: second * 10,
        };
        let fresh: Vec<bool> = (1..=4).map(|second| pace.look(at(second))).collect();
        assert_eq!(fresh, [false, true, false, true]);
        assert_eq!(pace.token_step, Some(Duration::from_millis(100)));
        assert!(!pace.look(at(1)), "another engine counts from zero");
        assert!(!pace.look(at(2)));
        assert!(pace.look(at(3)), "twenty since it began to be looked at");
    }
}
