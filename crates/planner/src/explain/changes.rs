//! What one change of hardware, workload or model would bring: applied to the problem, planned anew.

use std::collections::BTreeMap;

use motley_cluster::{
    Bytes, BytesPerSecond, Cluster, DeviceId, DeviceProfile, Flops, KvType, Link, LinkPair,
    ModelProfile, Seconds, WeightType, Workload,
};
use serde::Serialize;

use super::facts::Replanner;
use crate::problem::{Objective, PlanOutcome, Problem};

/// RAM that an upgrade adds.
const RAM_ADDED: Bytes = Bytes::new(8 << 30);

/// What a gigabit wire carries and takes for a round trip.
const WIRE_BYTES_PER_S: f64 = 117.5e6;
const WIRE_RTT_S: f64 = 0.3e-3;

/// Links slower than this, either way, count as wireless.
const WIRELESS_RTT_S: f64 = 1e-3;

/// One change.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Change {
    /// More RAM in a device (more unified memory where the GPU shares it).
    AddRam {
        /// The device.
        device: DeviceId,
        /// How much more.
        bytes: Bytes,
    },
    /// A wire for one device: half of each of its ways is no longer on the air.
    Wire {
        /// The device.
        device: DeviceId,
    },
    /// Wires for all devices.
    WireAll,
    /// 8-bit keys and values.
    QuantiseKv,
    /// Half the context.
    HalveContext {
        /// The context then.
        context_tokens: u32,
    },
    /// Every matrix one step down: `q8_0`, `q6_k`, `q5_k`, `q4_k`, `q3_k`, `q2_k`.
    SmallerWeights {
        /// The file then.
        file_bytes: Bytes,
    },
}

/// A change, and the plan's figures before and after it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChangeEffect {
    /// The change.
    pub change: Change,
    /// Objective now, in its own unit.
    pub now: f64,
    /// Objective after planning anew.
    pub then: f64,
    /// Improvement as a fraction of the value now, of the objective or, where that is 0 both times,
    /// of the time per output token. Not negative for exact methods.
    pub gain: f64,
    /// Time per output token after planning anew.
    pub tpot_then: Seconds,
}

/// Plans with every change that applies, the most helpful first; the number left out for want of
/// budget comes with them. A change without any plan is left out silently: it is no help.
pub(super) fn effects(
    problem: &Problem,
    outcome: &PlanOutcome,
    replanner: &Replanner<'_>,
) -> (Vec<ChangeEffect>, usize) {
    let mut effects = Vec::new();
    let mut skipped = 0;
    for change in candidates(problem, outcome) {
        if replanner.exhausted() {
            skipped += 1;
            continue;
        }
        let Some(changed) = apply(problem, &change) else { continue };
        let Some(then) = replanner.ask(&changed, outcome.method) else { continue };
        effects.push(effect(problem.objective, change, outcome, &then));
    }
    effects.sort_by(|a, b| b.gain.total_cmp(&a.gain));
    (effects, skipped)
}

fn effect(
    objective: Objective,
    change: Change,
    before: &PlanOutcome,
    after: &PlanOutcome,
) -> ChangeEffect {
    let (now, then) = (before.objective_value, after.objective_value);
    let tpot = |outcome: &PlanOutcome| outcome.plan.predicted().tpot_s;
    let (old, new) = if now == 0.0 && then == 0.0 {
        (tpot(before).value(), tpot(after).value())
    } else {
        (now, then)
    };
    let smaller = if old > 0.0 { (old - new) / old } else { 0.0 };
    let gain = match objective {
        Objective::Goodput | Objective::Throughput if now != 0.0 => -smaller,
        _ => smaller,
    };
    ChangeEffect { change, now, then, gain: gain + 0.0, tpot_then: tpot(after) }
}

/// Changes worth asking about: general ones first, then devices that carry most; of identical
/// devices one.
fn candidates(problem: &Problem, outcome: &PlanOutcome) -> Vec<Change> {
    let mut changes = Vec::new();
    if problem.workload.kv_type == KvType::F16 {
        changes.push(Change::QuantiseKv);
    }
    changes.push(Change::HalveContext { context_tokens: problem.workload.context_tokens / 2 });
    // Measured tables speak for one file; a smaller one would be compared with a formula.
    if let Some(model) = smaller_weights(&problem.model).filter(|_| !is_measured(problem)) {
        changes.push(Change::SmallerWeights { file_bytes: model.file_bytes() });
    }
    let used = outcome.plan.devices_used();
    let mut devices: Vec<DeviceId> = problem.cluster.ids().collect();
    devices.sort_by_key(|id| !used.contains(id));
    let mut distinct: Vec<DeviceId> = Vec::new();
    for id in devices {
        let profile = problem.cluster.device(id);
        // A twin in use and one out of use may differ in what they need.
        let seen = distinct.iter().any(|other| {
            used.contains(other) == used.contains(&id)
                && profile.is_twin_of(problem.cluster.device(*other))
        });
        if !seen {
            distinct.push(id);
        }
    }
    let wireless = |id: &DeviceId| has_wireless(&problem.cluster, *id);
    if distinct.iter().any(wireless) {
        changes.push(Change::WireAll);
    }
    for device in &distinct {
        changes.push(Change::AddRam { device: *device, bytes: RAM_ADDED });
    }
    for device in distinct.into_iter().filter(wireless) {
        changes.push(Change::Wire { device });
    }
    changes
}

fn is_measured(problem: &Problem) -> bool {
    let measured = |device: &DeviceProfile| {
        let processors = device.gpus.iter().map(|gpu| &gpu.processor).chain([&device.cpu]);
        let mut tables = processors.flat_map(|processor| &processor.layer_tables);
        tables.any(|table| table.model == problem.model.name)
    };
    problem.cluster.devices().iter().any(measured)
}

fn is_wireless(link: &Link) -> bool {
    link.rtt_s.value() > WIRELESS_RTT_S || link.bytes_per_s.value() < 0.5 * WIRE_BYTES_PER_S
}

fn has_wireless(cluster: &Cluster, device: DeviceId) -> bool {
    let others = cluster.ids().filter(|other| *other != device);
    let mut links = others.filter_map(|other| cluster.links().direct(device, other));
    links.any(|link| is_wireless(&link))
}

/// The problem after a change; `None` if it does not apply.
pub(super) fn apply(problem: &Problem, change: &Change) -> Option<Problem> {
    let mut changed = problem.clone();
    match change {
        Change::AddRam { device, bytes } => {
            changed.cluster = with_ram(&problem.cluster, *device, *bytes)?;
        }
        Change::Wire { device } => {
            changed.cluster = wired(&problem.cluster, |from, to, link| {
                (from == *device || to == *device).then(|| half_wired(link))
            })?;
        }
        Change::WireAll => {
            changed.cluster = wired(&problem.cluster, |_, _, _| Some(wire()))?;
        }
        Change::QuantiseKv => {
            let mut spec = problem.workload.to_spec();
            spec.kv_type = KvType::Q8_0;
            changed.workload = Workload::new(spec).ok()?;
        }
        Change::HalveContext { context_tokens } => {
            let mut spec = problem.workload.to_spec();
            spec.context_tokens = *context_tokens;
            changed.workload = Workload::new(spec).ok()?;
        }
        Change::SmallerWeights { .. } => changed.model = smaller_weights(&problem.model)?,
    }
    Some(changed)
}

fn with_ram(cluster: &Cluster, device: DeviceId, bytes: Bytes) -> Option<Cluster> {
    let mut spec = cluster.to_spec();
    let mut profile = cluster.device(device).to_spec();
    profile.memory.ram_total_bytes += bytes;
    profile.memory.ram_available_bytes += bytes;
    // A hardware name is shared by identical machines; this one no longer is.
    profile.hardware = Some(format!("{} with more RAM", cluster.device(device).hardware_name()));
    if profile.unified_memory {
        for gpu in &mut profile.gpus {
            gpu.total_bytes += bytes;
            gpu.usable_bytes += bytes;
        }
    }
    spec.devices[device.index()] = DeviceProfile::new(profile).ok()?;
    Cluster::new(spec).ok()
}

fn wire() -> Link {
    Link {
        bytes_per_s: BytesPerSecond::new(WIRE_BYTES_PER_S).expect("a constant rate"),
        rtt_s: Seconds::new(WIRE_RTT_S).expect("a constant time"),
    }
}

/// One of two stations on a wire: a message crosses the air once instead of twice.
fn half_wired(link: &Link) -> Link {
    let wire = wire();
    let twice = BytesPerSecond::new(link.bytes_per_s.value() * 2.0).unwrap_or(link.bytes_per_s);
    Link {
        bytes_per_s: twice.min(wire.bytes_per_s),
        rtt_s: link.rtt_s.times(0.5) + wire.rtt_s.times(0.5),
    }
}

/// The cluster with other qualities on its wireless links.
fn wired(
    cluster: &Cluster,
    better: impl Fn(DeviceId, DeviceId, &Link) -> Option<Link>,
) -> Option<Cluster> {
    let mut spec = cluster.to_spec();
    let mut pairs = Vec::new();
    for from in cluster.ids() {
        for to in cluster.ids().filter(|to| *to != from) {
            let before = cluster.links().direct(from, to);
            let after = before.filter(is_wireless).and_then(|link| better(from, to, &link));
            let listed = spec.links.pairs.iter().any(|pair| {
                let named = |name: &str, id: DeviceId| cluster.device(id).name == name;
                let straight = named(&pair.from, from) && named(&pair.to, to);
                straight || (pair.symmetric && named(&pair.from, to) && named(&pair.to, from))
            });
            if listed || after.is_some() {
                pairs.push(LinkPair {
                    from: cluster.device(from).name.clone(),
                    to: cluster.device(to).name.clone(),
                    symmetric: false,
                    link: after.or(before),
                });
            }
        }
    }
    let everywhere = pairs.len() == spec.devices.len() * spec.devices.len().saturating_sub(1);
    let alike = pairs.windows(2).all(|two| two[0].link == two[1].link);
    if everywhere && alike && !pairs.is_empty() {
        // Uniform links let searches merge identical devices.
        spec.links.default = pairs[0].link;
        spec.links.groups.clear();
        pairs.clear();
    }
    spec.links.pairs = pairs;
    Cluster::new(spec).ok()
}

/// The next smaller type in common use; `None` where there is none. Matrices that a quantised file
/// keeps in f32 stay so.
fn step_down(weight: WeightType) -> Option<WeightType> {
    match weight {
        WeightType::F16 | WeightType::Bf16 => Some(WeightType::Q8_0),
        WeightType::Q8_0 => Some(WeightType::Q6K),
        WeightType::Q6K => Some(WeightType::Q5K),
        WeightType::Q5K | WeightType::Q5_0 | WeightType::Q5_1 => Some(WeightType::Q4K),
        WeightType::Q4K | WeightType::Q4_0 | WeightType::Q4_1 | WeightType::Mxfp4 => {
            Some(WeightType::Q3K)
        }
        WeightType::Q3K => Some(WeightType::Q2K),
        _ => None,
    }
}

/// The model with every matrix one step down; `None` if no matrix has a smaller type. Sizes follow
/// from the matrices' FLOPs, which are two per parameter.
fn smaller_weights(model: &ModelProfile) -> Option<ModelProfile> {
    let mut spec = model.to_spec();
    let mut changed = false;
    for layer in &mut spec.layers {
        let (flops, ratio) = smaller_matrices(&layer.matmul_flops);
        changed |= ratio < 1.0;
        layer.matmul_flops = flops;
        layer.dense_bytes = Bytes::from_real(layer.dense_bytes.as_f64() * ratio).ok()?;
        layer.expert_bytes = Bytes::from_real(layer.expert_bytes.as_f64() * ratio).ok()?;
    }
    let (flops, ratio) = smaller_matrices(&spec.output_flops);
    spec.output_flops = flops;
    spec.output_bytes = Bytes::from_real(spec.output_bytes.as_f64() * ratio).ok()?;
    spec.embedding_bytes = Bytes::from_real(spec.embedding_bytes.as_f64() * ratio).ok()?;
    changed.then(|| ModelProfile::new(spec).ok()).flatten()
}

fn smaller_matrices(flops: &BTreeMap<WeightType, Flops>) -> (BTreeMap<WeightType, Flops>, f64) {
    let size = |weight: WeightType| {
        let (bytes, elements) = weight.block();
        bytes as f64 / elements as f64
    };
    let mut smaller: BTreeMap<WeightType, Flops> = BTreeMap::new();
    let (mut before, mut after) = (0.0, 0.0);
    for (weight, work) in flops {
        let down = step_down(*weight).unwrap_or(*weight);
        before += work.value() * size(*weight);
        after += work.value() * size(down);
        *smaller.entry(down).or_default() += *work;
    }
    (smaller, if before > 0.0 { after / before } else { 1.0 })
}
