//! The head's driver: requests, the scheduler and the coordinator.

use std::collections::BTreeMap;
use std::time::Duration;

use motley_cluster::KvType;
use motley_ring::{
    Address, Addresses, Ask, AssignmentSpec, CallerId, ClusterId, Coordinator, CoordinatorOptions,
    Deployment, DeploymentMember, Epoch, FrameRefused, Hello, MicroBatch, ModelDigest,
    ModelManifestRef, Name, Next, ProfileJson, Ready, RequestId, ReuseRule, Route, Scheduler,
    SchedulerOptions, WireElement, limits,
};

use crate::engine::{choose, ends, words};
use crate::member::{Done, SimNode, id_of};
use crate::network::Node;
use crate::random::Random;
use crate::routes::draw_replica;

pub(crate) const CLUSTER: ClusterId = ClusterId(0xC1);

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Answered,
    Cancelled,
    Failed,
    Refused,
}

/// One request of the script.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) caller: CallerId,
    pub(crate) cache_salt: Option<u64>,
    pub(crate) prompt: Vec<u32>,
    pub(crate) tokens_max: u32,
    pub(crate) prompt_rows: bool,
    pub(crate) answer: Vec<u32>,
    /// Rows of the prompt whose logits came.
    pub(crate) prompt_rows_seen: u32,
    pub(crate) outcome: Option<Outcome>,
}

/// What was seen, so that a test knows that it tests something.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) micro_batches_max: u32,
    pub(crate) stages_busy_max: u32,
    pub(crate) cached_tokens: u64,
    pub(crate) deployments: u64,
    pub(crate) dropped: u64,
    pub(crate) lost: Option<Duration>,
}

/// The numbers of a run.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    pub(crate) layers: u32,
    pub(crate) slots: u32,
    pub(crate) context_tokens: u32,
    pub(crate) batch_rows_max: u32,
    pub(crate) rule: ReuseRule,
    /// A route to use instead of drawn ones.
    pub(crate) route: Option<Route>,
}

#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) coordinator: Coordinator,
    pub(crate) scheduler: Option<Scheduler>,
    pub(crate) requests: Vec<Request>,
    pub(crate) submitted: usize,
    pub(crate) sessions: BTreeMap<Node, u64>,
    pub(crate) draining: bool,
    pub(crate) seen: Seen,
    pub(crate) setting: Setting,
    micro_batch: MicroBatch,
    ready: Vec<Ready>,
}

pub(crate) fn hello(node: Node) -> Hello {
    let address = Address::new(format!("10.0.0.{node}:7777")).expect("an address");
    Hello {
        protocol_min: limits::PROTOCOL_VERSION_MIN,
        protocol_max: limits::PROTOCOL_VERSION,
        build: Name::cut("0.1.0"),
        engine_build: Name::cut("b1"),
        node: id_of(node),
        name: Name::cut(&format!("node-{node}")),
        addresses: Addresses::new(vec![address]).expect("one address"),
        memory_budget_bytes: 1 << 30,
        epoch_seen: Epoch(node as u64),
        profile: ProfileJson::default(),
    }
}

impl Head {
    pub(crate) fn new(setting: Setting, requests: Vec<Request>) -> Self {
        let own = hello(0);
        let options = CoordinatorOptions {
            node: own.node,
            name: own.name,
            build: own.build,
            engine_build: own.engine_build,
            epoch_seen: Epoch::default(),
        };
        Self {
            coordinator: Coordinator::new(options, Duration::ZERO),
            scheduler: None,
            requests,
            submitted: 0,
            sessions: BTreeMap::new(),
            draining: false,
            seen: Seen::default(),
            setting,
            micro_batch: MicroBatch::default(),
            ready: Vec::new(),
        }
    }

    /// Draws a route over the nodes that are there, and begins to deploy it.
    pub(crate) fn plan(&mut self, random: &mut Random, now: Duration) {
        let alive: Vec<u16> = self.coordinator.members().keys().map(|id| id.0[0].into()).collect();
        let (route, devices) = match &self.setting.route {
            Some(route) => (route.clone(), (0..route.members()).collect::<Vec<u16>>()),
            None => {
                let replica = draw_replica(random, &alive, self.setting.layers);
                let (route, devices) = Route::of_replica(&replica).expect("a route");
                (route, devices.iter().map(|device| device.index() as u16).collect())
            }
        };
        let spec = AssignmentSpec {
            cluster: CLUSTER,
            epoch: Epoch::default(),
            groups: route.stages() as u32,
            route,
            slots: self.setting.slots,
            context_tokens: self.setting.context_tokens,
            batch_rows_max: self.setting.batch_rows_max,
            width: 2,
            wire_element: WireElement::F32,
            kv_type: KvType::F16,
        };
        let members = devices
            .into_iter()
            .map(|device| DeploymentMember { node: id_of(device.into()), residency: Vec::new() });
        let model = ModelManifestRef {
            name: Name::cut("chain"),
            digest: ModelDigest([7; 32]),
            file_bytes: 300,
            block_bytes: 100,
        };
        let members = members.collect();
        let deployment = Deployment { assignment: spec, members, model, sources: Vec::new() };
        self.coordinator.deploy(deployment, now).expect("a deployment of nodes that are there");
    }

    /// A new deployment is in force.
    pub(crate) fn deployed(&mut self) {
        let (assignment, _) = self.coordinator.serving().expect("it was just deployed");
        let options = SchedulerOptions {
            prefill_rows_while_decoding: 5,
            ..SchedulerOptions::of_assignment(assignment, self.setting.rule)
        };
        let mut ended = Vec::new();
        match &mut self.scheduler {
            Some(scheduler) => {
                scheduler.resize(options, &mut ended);
                scheduler.hold(false);
            }
            None => self.scheduler = Some(Scheduler::new(options)),
        }
        self.draining = false;
        self.seen.deployments += 1;
        self.end(&ended, &Outcome::Failed);
    }

    /// The deployment in force is over.
    pub(crate) fn lost(&mut self) {
        let mut ended = Vec::new();
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.lost_all(&mut ended);
            scheduler.hold(false);
        }
        self.draining = false;
        self.end(&ended, &Outcome::Failed);
    }

    pub(crate) fn submit(&mut self) {
        let index = self.submitted;
        self.submitted += 1;
        let request = self.requests[index].clone();
        let ask = Ask {
            request: RequestId(index as u64),
            caller: request.caller,
            cache_salt: request.cache_salt,
            prompt: request.prompt,
            tokens_max: request.tokens_max,
            priority: (index % 3) as i32,
            prompt_rows: request.prompt_rows,
        };
        let scheduler = self.scheduler.as_mut().expect("a ring was deployed");
        if scheduler.submit(ask).is_err() {
            self.end(&[RequestId(index as u64)], &Outcome::Refused);
        }
    }

    pub(crate) fn cancel(&mut self, request: u64) {
        if let Some(scheduler) = &mut self.scheduler
            && scheduler.finish(RequestId(request))
        {
            self.end(&[RequestId(request)], &Outcome::Cancelled);
        }
    }

    pub(crate) fn rest(&mut self, request: u64, resting: bool) {
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.rest(RequestId(request), resting);
        }
    }

    /// Starts what can be started.
    pub(crate) fn pump(&mut self, node: &mut SimNode, now: Duration) {
        let (Some(scheduler), Some(serving)) = (&mut self.scheduler, &mut node.serving) else {
            return;
        };
        let in_force = self.coordinator.serving().map(|(assignment, _)| assignment.epoch());
        if in_force != Some(serving.assignment().epoch()) {
            return;
        }
        let mut failed = Vec::new();
        while scheduler.next_batch(&mut self.micro_batch) {
            let tokens: Vec<u64> =
                self.micro_batch.tokens.iter().map(|token| u64::from(*token)).collect();
            let batch = std::mem::take(&mut self.micro_batch.batch);
            let id = self.micro_batch.id;
            match serving.member.begin(id, batch, crate::engine::bytes(&tokens)) {
                Ok(()) => {}
                // The head's own engine has failed, which the scheduler has not heard yet.
                Err(FrameRefused::Gap { .. }) => {
                    scheduler.failed(id, &mut failed);
                }
                Err(refused) => panic!("a micro-batch beyond the plan: {refused}"),
            }
        }
        let counts = scheduler.counts();
        self.seen.micro_batches_max = self.seen.micro_batches_max.max(counts.micro_batches);
        if self.draining && counts.running == 0 && counts.micro_batches == 0 {
            assert!(self.coordinator.commit(now), "it was ready");
            self.draining = false;
        }
        self.end(&failed, &Outcome::Failed);
    }

    /// A micro-batch is through: chooses tokens.
    pub(crate) fn done(&mut self, (id, product): Done) {
        let scheduler = self.scheduler.as_mut().expect("a ring was deployed");
        if !scheduler.completed(id, &mut self.ready) {
            return;
        }
        let values = words(&product);
        let mut ended = Vec::new();
        for ready in &self.ready {
            let request = &mut self.requests[ready.request.0 as usize];
            assert!(request.outcome.is_none(), "nothing is computed for what has ended");
            if request.prompt_rows && request.answer.is_empty() {
                assert_eq!(
                    request.prompt_rows_seen, ready.first_position,
                    "rows of a prompt in order"
                );
                request.prompt_rows_seen += ready.rows;
            }
            if !ready.chooses {
                continue;
            }
            if request.answer.is_empty() {
                let cached = scheduler.cached_tokens(ready.request).expect("it runs");
                self.seen.cached_tokens += u64::from(cached);
            }
            let token = choose(values[(ready.first_row + ready.rows - 1) as usize]);
            let over = ends(token) || {
                request.answer.push(token);
                scheduler.push_token(ready.request, token) != Next::GoOn
            };
            if over {
                assert!(scheduler.finish(ready.request), "it was running");
                ended.push(ready.request);
            }
        }
        self.end(&ended, &Outcome::Answered);
    }

    pub(crate) fn step_failed(&mut self, id: motley_ring::MicroBatchId) {
        let mut ended = Vec::new();
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.failed(id, &mut ended);
        }
        self.end(&ended, &Outcome::Failed);
    }

    fn end(&mut self, requests: &[RequestId], outcome: &Outcome) {
        for request in requests {
            let before = self.requests[request.0 as usize].outcome.replace(outcome.clone());
            assert_eq!(before, None, "request {} ends once", request.0);
        }
    }
}
