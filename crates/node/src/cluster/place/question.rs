//! Devices and links as the planner's problem.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use motley_cluster::{
    BufferDemand, Bytes, Cluster, ClusterSpec, DeviceId, DeviceProfile, FieldError, FormatVersion,
    KvType, LinkPair, LinkSpec, ModelProfile, ReplicaSpec, Workload, WorkloadSpec,
    compute_buffer_bytes,
};
use motley_engine::interleaved_bytes_max;
use motley_model::ModelDirectory;
use motley_planner::{Objective, PlanOptions, Problem};
use motley_ring::NodeId;

use super::correction::slow_down;
use super::links::KnownLinks;
use super::profile::Surveyed;
use crate::cluster::room::{self, Sizes};
use crate::plan::profile_name;
use crate::profile::variants;

/// Rounds of a ring at most.
const ROUNDS_MAX: u32 = 32;

/// A device that may get layers.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) node: NodeId,
    pub(crate) name: String,
    /// Memory that it gives.
    pub(crate) budget_bytes: u64,
    pub(crate) surveyed: Arc<Surveyed>,
    /// What its predicted times are multiplied by.
    pub(crate) factor: f64,
}

/// What the ring is to be good at.
#[derive(Clone, Debug)]
pub(crate) struct Goal {
    pub(crate) objective: Objective,
    pub(crate) workload: Workload,
    /// Rounds of a ring, where not the plan is to decide.
    pub(crate) rounds: Option<u32>,
}

/// How many sequences a ring keeps, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Allowance {
    /// Sequences at a time, at most where the goal decides.
    pub(crate) slots: u32,
    pub(crate) kv_type: KvType,
    /// Rows of a micro-batch.
    pub(crate) batch_rows: u32,
    /// What the model's parts take then.
    pub(crate) sizes: Sizes,
    /// What is less than asked for, in words.
    pub(crate) given_up: Vec<String>,
}

/// Bytes of weights in a second layout, which a device keeps where it has memory to spare.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Copies {
    pub(crate) layer_bytes: Vec<u64>,
    pub(crate) head_bytes: u64,
}

impl Copies {
    /// Those of a model, as this device would make them; it speaks for all.
    pub(crate) fn of_model(directory: &ModelDirectory) -> Self {
        let layers = 0..directory.layers.len();
        let of = |layer: usize| interleaved_bytes_max(directory, &(layer..layer + 1).into(), false);
        Self {
            layer_bytes: layers.map(of).collect(),
            head_bytes: interleaved_bytes_max(directory, &(0..0).into(), true),
        }
    }

    /// Bytes for these layers, given as first and last plus one, and for the head if it is there.
    pub(crate) fn bytes(&self, layers: &[(u32, u32)], head: bool) -> u64 {
        let layers = layers.iter().flat_map(|(first, end)| *first..*end);
        let layers = layers.filter_map(|layer| self.layer_bytes.get(layer as usize));
        layers.sum::<u64>() + if head { self.head_bytes } else { 0 }
    }
}

/// What the planner is asked.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    /// The head first.
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) links: KnownLinks,
    pub(crate) model: Arc<ModelProfile>,
    pub(crate) goal: Goal,
    /// What is asked for, and then less and less, for devices with little memory.
    pub(crate) allowances: Vec<Allowance>,
    pub(crate) copies: Arc<Copies>,
}

/// The planner's problem, and what became of the devices.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) problem: Problem,
    /// The node of each device.
    pub(super) nodes: Vec<NodeId>,
    /// Devices that cannot be planned with, and why.
    pub(super) refused: BTreeMap<NodeId, String>,
}

impl Asked {
    /// Whether some other device reaches this one.
    pub(super) fn is_reachable(&self, device: DeviceId) -> bool {
        let cluster = &self.problem.cluster;
        cluster.ids().any(|other| cluster.links().direct(other, device).is_some())
    }
}

impl Question {
    /// The problem of all devices that can be planned with, for one allowance. Those of `tight` have
    /// no memory for a second layout of weights.
    ///
    /// # Errors
    /// When the head, which takes part in any plan, is not among them.
    pub(super) fn asked(
        &self,
        allowance: &Allowance,
        tight: &BTreeSet<NodeId>,
    ) -> Result<Asked, FieldError> {
        let mut names = BTreeSet::new();
        let (mut devices, mut nodes) = (Vec::new(), Vec::new());
        let mut refused = BTreeMap::new();
        for (index, candidate) in self.candidates.iter().enumerate() {
            let name = unused_name(&candidate.name, &names);
            let device = self.device(candidate, &name, index == 0, allowance);
            let kept = (allowance.kv_type, tight.contains(&candidate.node));
            match device.and_then(|it| self.times(it, kept)) {
                Ok(device) => {
                    names.insert(name);
                    devices.push(device);
                    nodes.push(candidate.node);
                }
                Err(error) if index == 0 => return Err(error),
                Err(error) => {
                    let reason = format!("its profile is wrong: {error}");
                    refused.insert(candidate.node, reason);
                }
            }
        }
        let spec = ClusterSpec {
            version: FormatVersion::default(),
            name: "this cluster".to_owned(),
            head: devices.first().map(|device| device.name.clone()),
            links: self.link_spec(&devices, &nodes),
            devices,
        };
        let workload = WorkloadSpec {
            kv_type: allowance.kv_type,
            micro_batch_tokens: allowance.batch_rows,
            ..self.goal.workload.to_spec()
        };
        let problem = Problem {
            cluster: Cluster::new(spec)?,
            model: ModelProfile::clone(&self.model),
            workload: Workload::new(workload)?,
            objective: self.goal.objective,
            options: PlanOptions {
                slots_max: allowance.slots,
                kept_sequences: allowance.slots,
                rounds_min: self.goal.rounds.unwrap_or(1),
                rounds_max: self.goal.rounds.unwrap_or(ROUNDS_MAX),
                ..PlanOptions::full()
            },
        };
        Ok(Asked { problem, nodes, refused })
    }

    /// A device as it can be used: its processor, its first GPU, and the memory that it gives.
    fn device(
        &self,
        candidate: &Candidate,
        name: &str,
        head: bool,
        allowance: &Allowance,
    ) -> Result<DeviceProfile, FieldError> {
        let mut spec = candidate.surveyed.device.to_spec();
        name.clone_into(&mut spec.name);
        // Whoever measured its GPUs computes on them; what somebody wrote down tells of no build.
        let gpus = if candidate.surveyed.measured { 1 } else { 0 };
        spec.gpus.truncate(gpus);
        spec.unified_memory &= !spec.gpus.is_empty();
        for gpu in &mut spec.gpus {
            // The planner leaves this to the profile, which knows no model.
            let work = Bytes::new(allowance.sizes.work_bytes(head));
            gpu.usable_bytes = gpu.usable_bytes.saturating_sub(work);
        }
        let memory = &mut spec.memory;
        let stated = memory.ram_available_bytes;
        let given = match candidate.budget_bytes {
            // It does not know what there is.
            u64::MAX => stated,
            given if candidate.surveyed.measured => Bytes::new(given),
            given => stated.min(Bytes::new(given)),
        };
        // The planner counts a work buffer of its own; ours is larger, for the program is in it.
        let theirs = self.planned_buffer_bytes(head, allowance.batch_rows);
        let ours = Bytes::new(allowance.sizes.work_bytes(head));
        memory.ram_available_bytes = given.saturating_sub(ours) + theirs;
        if head && spec.gpus.is_empty() {
            // It also counts an embedding that stays in its file.
            let counted = self.model.head_resident_bytes();
            let mapped = counted.saturating_sub(Bytes::new(allowance.sizes.ends_bytes()));
            memory.ram_available_bytes += mapped;
        }
        memory.ram_total_bytes = memory.ram_total_bytes.max(memory.ram_available_bytes);
        slow_down(&mut spec, candidate.factor);
        DeviceProfile::new(spec)
    }

    /// The device with the model's times in the layout that it has memory for, and with keys and
    /// values as they are to be kept, as far as either was measured.
    fn times(
        &self,
        device: DeviceProfile,
        (kv_type, tight): (KvType, bool),
    ) -> Result<DeviceProfile, FieldError> {
        let all = variants(&self.model.name).map(|(name, _, _)| name);
        let mut spec = device.to_spec();
        let (layers, heads) = (&mut spec.cpu.layer_tables, &mut spec.cpu.head_tables);
        let is_measured = |name: &String| layers.iter().any(|table| table.model == *name);
        let by_cache = if kv_type == KvType::F16 { [0, 0] } else { [2, 0] };
        let by_layout = if tight { [1, 0] } else { [0, 0] };
        // Keys and values count for more where both were not measured together.
        let wishes = by_cache.into_iter().flat_map(|cache| by_layout.map(|layout| cache + layout));
        let wished = wishes.map(|index| &all[index]).find(|name| is_measured(name));
        let Some(wished) = wished.cloned() else { return Ok(device) };
        layers.retain(|table| table.model == wished || !all.contains(&table.model));
        heads.retain(|table| table.model == wished || !all.contains(&table.model));
        let names = layers.iter_mut().map(|table| &mut table.model);
        for name in names.chain(heads.iter_mut().map(|table| &mut table.model)) {
            if *name == wished {
                name.clone_from(&self.model.name);
            }
        }
        DeviceProfile::new(spec)
    }

    /// Devices that have no memory for a second layout of what a replica gives them, by the rule
    /// that they lay out weights by when they load.
    pub(super) fn tight(
        &self,
        allowance: &Allowance,
        asked: &Asked,
        replica: &ReplicaSpec,
    ) -> BTreeSet<NodeId> {
        let is_tight = |(index, candidate): &(usize, &Candidate)| {
            let device = asked.nodes.iter().position(|node| *node == candidate.node);
            let mut members = replica.members.iter();
            let planned = members.find(|member| Some(member.device.index()) == device);
            let residency = planned.map_or(&[][..], |member| &member.residency);
            let layers: Vec<(u32, u32)> =
                residency.iter().map(|run| (run.layers.start(), run.layers.end())).collect();
            let head = *index == 0;
            let copies = self.copies.bytes(&layers, head);
            let sizes = &allowance.sizes;
            let needed = sizes.fixed_bytes(head) + room::layer_bytes(sizes, &layers, residency);
            (head || !layers.is_empty()) && needed.saturating_add(copies) > candidate.budget_bytes
        };
        let candidates = self.candidates.iter().enumerate().filter(is_tight);
        candidates.map(|(_, candidate)| candidate.node).collect()
    }

    fn planned_buffer_bytes(&self, head: bool, batch_rows: u32) -> Bytes {
        let workload = &self.goal.workload;
        compute_buffer_bytes(
            &self.model,
            &BufferDemand {
                micro_batch_tokens: batch_rows,
                context_tokens: workload.context_tokens,
                flash_attention: workload.flash_attention,
                runs_head: head,
                gpu: None,
            },
        )
    }

    fn link_spec(&self, devices: &[DeviceProfile], nodes: &[NodeId]) -> LinkSpec {
        let mut pairs = Vec::new();
        for (from, sender) in nodes.iter().zip(devices) {
            for (to, receiver) in nodes.iter().zip(devices).filter(|(to, _)| *to != from) {
                pairs.push(LinkPair {
                    from: sender.name.clone(),
                    to: receiver.name.clone(),
                    symmetric: false,
                    link: self.links.between(*from, *to, nodes[0]).link(),
                });
            }
        }
        LinkSpec { pairs, ..LinkSpec::default() }
    }
}

/// A name as a device may be called, and no other is.
fn unused_name(name: &str, used: &BTreeSet<String>) -> String {
    let name = profile_name(name);
    let mut unused = name.clone();
    let mut number = 2;
    while used.contains(&unused) {
        let short: String = name.chars().take(100).collect();
        unused = format!("{short} ({number})");
        number += 1;
    }
    unused
}
