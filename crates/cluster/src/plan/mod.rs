//! A plan: which device holds which layers, in what memory, in what role, at what promised speed.

mod prediction;
mod proof;
mod range;

use serde::{Deserialize, Serialize};

use crate::document::{Document, FormatVersion};
use crate::model::KvType;
use crate::units::{Bytes, DeviceId, LayerIndex, ReplicaId};

pub use prediction::{PlanPrediction, ReplicaPrediction};
pub use proof::PlanFault;
pub use range::LayerRange;

/// What a replica does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Evaluates prompts and hands their KV over.
    Prefill,
    /// Generates tokens from KV handed over.
    Decode,
    /// Does both, prompt chunks interleaved with decode.
    Mixed,
}

/// Where a layer's weights live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Residency {
    /// In a GPU's memory (the device's first GPU).
    Gpu,
    /// Pinned in RAM.
    Ram,
    /// Read from disk each time it is used.
    Stream,
}

/// Where a layer's keys and values live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvPlace {
    /// In the GPU's memory.
    Gpu,
    /// In RAM.
    Ram,
}

/// Consecutive layers of one member that are kept alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResidencyRun {
    /// Which layers.
    pub layers: LayerRange,
    /// Where their weights live.
    pub weights: Residency,
    /// Where their keys and values live.
    pub kv: KvPlace,
}

/// One device of a replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberSpec {
    /// The device.
    pub device: DeviceId,
    /// Its layers in each round, one entry per round; a round may leave it empty.
    pub windows: Vec<LayerRange>,
    /// How each of those layers is kept: rising, and together exactly the windows.
    pub residency: Vec<ResidencyRun>,
    /// Relays on the way to the next member, the last member's way leading to the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub relays_to_next: Vec<DeviceId>,
}

/// One copy of the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaSpec {
    /// What it does.
    pub role: Role,
    /// Sequences it carries at once.
    pub slots: u32,
    /// Micro-batch groups the slots are split into (g), at most `slots`.
    pub groups: u32,
    /// Passes around the ring per token (k).
    pub rounds: u32,
    /// The member that embeds, projects and samples. It may be anywhere in the order, and may hold
    /// no layers.
    pub head: DeviceId,
    /// Members in ring order: the first holds layer 0.
    pub members: Vec<MemberSpec>,
    /// What the planner expects of it.
    pub predicted: ReplicaPrediction,
}

/// The KV of some layers going from a prefill device to a decode device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandOverRoute {
    /// Which layers.
    pub layers: LayerRange,
    /// The device that computed them.
    pub from: DeviceId,
    /// The device that will use them.
    pub to: DeviceId,
    /// Devices in between.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub relays: Vec<DeviceId>,
}

/// How requests pass from a prefill replica to a decode replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandOver {
    /// The prefill replica.
    pub from: ReplicaId,
    /// The decode or mixed replica.
    pub to: ReplicaId,
    /// One route per run of layers, covering every layer once.
    pub routes: Vec<HandOverRoute>,
}

/// Memory a device gives to the plan, against what it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryClaim {
    /// The device.
    pub device: DeviceId,
    /// GPU memory taken: weights, KV, head.
    pub gpu_bytes: Bytes,
    /// GPU memory there is to take.
    pub gpu_budget_bytes: Bytes,
    /// RAM taken: pinned weights, KV, head, buffers, stream slots.
    pub ram_bytes: Bytes,
    /// RAM there is to take.
    pub ram_budget_bytes: Bytes,
}

/// A plan as a file states it; [`Plan`] is the proven form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanSpec {
    /// Version of this form.
    pub version: FormatVersion,
    /// Name of the model.
    pub model: String,
    /// Its number of layers (L).
    pub layers: u32,
    /// Names of all devices of the cluster; a [`DeviceId`] is a position in this list.
    pub devices: Vec<String>,
    /// Context each slot can hold.
    pub context_tokens: u32,
    /// How keys and values are stored.
    pub kv_type: KvType,
    /// Replicas.
    pub replicas: Vec<ReplicaSpec>,
    /// Ways from prefill to decode replicas; every pair in use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hand_overs: Vec<HandOver>,
    /// One claim per device in use.
    pub memory: Vec<MemoryClaim>,
    /// What the planner expects of the whole.
    pub predicted: PlanPrediction,
}

/// A plan that can be carried out: every replica computes every layer exactly once, no device works
/// for two replicas, every device's memory suffices, every prompt finds a decoder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "PlanSpec", into = "PlanSpec")]
pub struct Plan(PlanSpec);

/// One step of a token's way around a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Round, from 0.
    pub round: u32,
    /// Position of the member in ring order.
    pub member: usize,
    /// The member's device.
    pub device: DeviceId,
    /// The layers it computes now; never empty.
    pub layers: LayerRange,
}

impl Plan {
    /// Proves a specification.
    ///
    /// # Errors
    /// Says which replica, device or layer breaks which rule.
    pub fn new(spec: PlanSpec) -> Result<Self, PlanFault> {
        proof::prove(&spec)?;
        Ok(Self(spec))
    }

    /// What was proven.
    #[must_use]
    pub const fn spec(&self) -> &PlanSpec {
        &self.0
    }

    /// The replicas.
    #[must_use]
    pub fn replicas(&self) -> &[ReplicaSpec] {
        &self.0.replicas
    }

    /// What the planner expects.
    #[must_use]
    pub const fn predicted(&self) -> &PlanPrediction {
        &self.0.predicted
    }

    /// Name of a device.
    ///
    /// # Panics
    /// The id belongs to another cluster.
    #[must_use]
    pub fn device_name(&self, id: DeviceId) -> &str {
        &self.0.devices[id.index()]
    }

    /// Devices that compute, rising; relays that only forward are not among them.
    #[must_use]
    pub fn devices_used(&self) -> Vec<DeviceId> {
        let members = self.0.replicas.iter().flat_map(|replica| &replica.members);
        let mut used: Vec<DeviceId> = members.map(|member| member.device).collect();
        used.sort_unstable();
        used
    }

    /// The replica and ring position of a device, if it computes.
    #[must_use]
    pub fn place_of(&self, device: DeviceId) -> Option<(ReplicaId, usize)> {
        for (index, replica) in self.0.replicas.iter().enumerate() {
            if let Some(position) = replica.position_of(device) {
                return Some((ReplicaId::new(index as u16), position));
            }
        }
        None
    }
}

impl ReplicaSpec {
    /// The way of a token: windows in the order they are computed, empty ones left out. In a plan
    /// their layers are 0..L without gap.
    pub fn windows(&self) -> impl Iterator<Item = Window> + '_ {
        (0..self.rounds).flat_map(move |round| {
            self.members.iter().enumerate().filter_map(move |(position, member)| {
                let layers = *member.windows.get(round as usize)?;
                let device = member.device;
                (!layers.is_empty()).then_some(Window { round, member: position, device, layers })
            })
        })
    }

    /// Ring position of a device.
    #[must_use]
    pub fn position_of(&self, device: DeviceId) -> Option<usize> {
        self.members.iter().position(|member| member.device == device)
    }

    /// The device that computes a layer.
    #[must_use]
    pub fn device_of(&self, layer: LayerIndex) -> Option<DeviceId> {
        self.windows().find(|window| window.layers.contains(layer)).map(|window| window.device)
    }
}

impl MemberSpec {
    /// All its layers, rising.
    pub fn layers(&self) -> impl Iterator<Item = LayerIndex> + '_ {
        self.windows.iter().flat_map(|window| window.iter())
    }

    /// Number of its layers.
    #[must_use]
    pub fn layers_count(&self) -> u32 {
        self.windows.iter().map(|window| window.len()).sum()
    }

    /// Number of its layers with this residency.
    #[must_use]
    pub fn count(&self, weights: Residency) -> u32 {
        let runs = self.residency.iter().filter(|run| run.weights == weights);
        runs.map(|run| run.layers.len()).sum()
    }

    /// How a layer is kept; `None` if the member does not have it.
    #[must_use]
    pub fn kept(&self, layer: LayerIndex) -> Option<&ResidencyRun> {
        self.residency.iter().find(|run| run.layers.contains(layer))
    }
}

impl Document for Plan {
    const KIND: &'static str = "plan";
}

impl TryFrom<PlanSpec> for Plan {
    type Error = PlanFault;
    fn try_from(spec: PlanSpec) -> Result<Self, PlanFault> {
        Self::new(spec)
    }
}

impl From<Plan> for PlanSpec {
    fn from(plan: Plan) -> Self {
        plan.0
    }
}
