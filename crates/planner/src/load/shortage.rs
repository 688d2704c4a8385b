//! Why there is no load plan, and what would help.

use motley_cluster::{Bytes, DeviceProfile, KvType, TokensPerSecond, Workload, WorkloadSpec};

use super::baselines::fastest_group;
use super::pareto;
use super::setting::Setting;
use super::wanted;
use crate::problem::{
    Budget, Method, Objective, PlanError, PlanOptions, Problem, Remedy, Shortage,
};

/// Separate roles need one device each at least.
pub(super) fn too_few_devices(devices: usize) -> PlanError {
    let available = devices as u32;
    PlanError::Infeasible {
        shortage: Shortage::Devices { needed: 2, available },
        remedies: Vec::new(),
    }
}

/// No grouping serves.
pub(super) fn explain(setting: &Setting<'_>) -> PlanError {
    let problem = setting.problem;
    let copies = if problem.options.allow_mixed { 1.0 } else { 2.0 };
    let head = head_shortage(setting);
    let shortage = match (head, relaxed(problem)) {
        (Some(head), _) => head,
        // Without the floor there is a plan, so the floor is what is missed.
        (None, Some(reachable)) => Shortage::Speed {
            floor: problem.workload.speed_floor_tok_per_s.unwrap_or(rate(0.0)),
            reachable: rate(reachable),
        },
        (None, None) => memory_shortage(setting, copies),
    };
    let remedies = remedies(setting, &shortage);
    PlanError::Infeasible { shortage, remedies }
}

/// A prescribed single replica does not fit or misses the floor.
pub(super) fn explain_single(setting: &Setting<'_>, method: Method) -> PlanError {
    if method == Method::BestSingleDevice {
        let single = |kind: usize| setting.types[kind].room();
        let largest = (0..setting.types.len()).max_by(|a, b| single(*a).total_cmp(&single(*b)));
        let needed = bytes(setting.file_bytes() + setting.slot_bytes(true));
        if let Some(kind) = largest.filter(|kind| single(*kind) < needed.as_f64()) {
            let device = setting.types[kind].members[0];
            let available = bytes(single(kind));
            return PlanError::Infeasible {
                shortage: Shortage::HeadMemory { device, needed, available },
                remedies: vec![Remedy::AddDevice { bytes: needed }],
            };
        }
    }
    if serves(setting.problem) {
        let reason = "its fixed shares do not fit the devices' memory or miss the speed floor";
        return PlanError::NotApplicable { method, reason };
    }
    explain(setting)
}

fn bytes(value: f64) -> Bytes {
    Bytes::from_real(value).unwrap_or(Bytes::ZERO)
}

fn rate(value: f64) -> TokensPerSecond {
    TokensPerSecond::new(value).expect("rates are finite and not negative")
}

/// No device can hold embedding and output matrix.
fn head_shortage(setting: &Setting<'_>) -> Option<Shortage> {
    let memory = |kind: &usize| {
        let memory = setting.types[*kind].memory;
        if setting.types[*kind].has_gpu { memory.gpu } else { memory.ram }
    };
    let all: Vec<usize> = (0..setting.types.len()).collect();
    let masters = all.iter().copied().filter(|kind| setting.may_be_master(*kind, &all));
    let largest = masters.max_by_key(memory)?;
    let (needed, available) = (bytes(setting.head_bytes), memory(&largest));
    let device = setting.types[largest].members[0];
    (needed > available).then_some(Shortage::HeadMemory { device, needed, available })
}

fn memory_shortage(setting: &Setting<'_>, copies: f64) -> Shortage {
    let rooms = setting.types.iter().map(|kind| kind.room() * kind.members.len() as f64);
    let available = rooms.sum::<f64>();
    let kv = setting.slot_bytes(true) + if copies > 1.0 { setting.slot_bytes(false) } else { 0.0 };
    let needed = copies * setting.file_bytes() + kv;
    // Enough in sum and yet not enough: layers and heads are whole, so some of it stays empty.
    let more = added(setting).or_else(|| added_without_floor(setting)).unwrap_or(0);
    let needed = needed.max(available + more as f64);
    Shortage::ClusterMemory { needed: bytes(needed), available: bytes(available) }
}

/// Whether any plan exists.
fn serves(problem: &Problem) -> bool {
    let devices = super::usable(problem);
    if devices.is_empty() {
        return false;
    }
    // Whoever serves several requests at once serves one.
    let mut problem = problem.clone();
    problem.options.slots_max = 1;
    let setting = Setting::new(&problem, Budget::DEFAULT, &devices);
    let counts = setting.counts();
    if problem.objective == Objective::Latency {
        return fastest_group(&setting).is_some();
    }
    if pareto::pairs(&counts) <= pareto::PAIRS_MAX / 10.0 {
        return pareto::search(&setting, &counts, wanted(&setting)).best.is_some();
    }
    super::evolve(&setting, wanted(&setting), super::RoleRule::Exact).is_some()
}

/// Speed per request that the best plan without a floor reaches; `None` if there is none either.
fn relaxed(problem: &Problem) -> Option<f64> {
    problem.workload.speed_floor_tok_per_s.filter(|floor| floor.value() > 0.0)?;
    let without = changed(problem, |spec| spec.speed_floor_tok_per_s = None)?;
    if !serves(&without) {
        return None;
    }
    let floor = problem.workload.speed_floor_tok_per_s?.value();
    // The highest floor that still has a plan, to a hundredth.
    let (mut low, mut high) = (0.0, floor);
    for _ in 0..12 {
        let middle = f64::midpoint(low, high);
        let with = changed(problem, |spec| spec.speed_floor_tok_per_s = Some(rate(middle)))?;
        if serves(&with) {
            low = middle
        } else {
            high = middle
        }
        if high - low <= 0.005 * high {
            break;
        }
    }
    Some(low)
}

/// Changes that were each tried and found to help, most modest first.
fn remedies(setting: &Setting<'_>, shortage: &Shortage) -> Vec<Remedy> {
    let problem = setting.problem;
    let mut found = Vec::new();
    if let Shortage::Speed { reachable, .. } = shortage {
        found.push(Remedy::LowerFloor { tok_per_s: *reachable });
    }
    if problem.workload.kv_type == KvType::F16 {
        let smaller = changed(problem, |spec| spec.kv_type = KvType::Q8_0);
        if smaller.is_some_and(|smaller| serves(&smaller)) {
            found.push(Remedy::QuantiseKv);
        }
    }
    if let Some(context_tokens) = shorter_context(problem) {
        found.push(Remedy::ShrinkContext { context_tokens });
    }
    if !problem.options.allow_streaming {
        let options =
            PlanOptions { allow_streaming: true, allow_mixed: true, ..problem.options.clone() };
        let streaming = Problem { options, ..problem.clone() };
        let devices = super::usable(problem);
        let other = Setting::new(&streaming, setting.budget, &devices);
        if super::ring::best_ring(&other).is_some() {
            found.push(Remedy::AllowStreaming);
        }
    }
    let memory = matches!(shortage, Shortage::ClusterMemory { .. } | Shortage::HeadMemory { .. });
    if let Some(more) = added(setting).filter(|_| memory) {
        let device = largest(setting);
        let profile = problem.cluster.device(device);
        let bytes = Bytes::new(more);
        found.push(if profile.gpu().is_some() && profile.unified_memory {
            Remedy::FreeGpuMemory { device, bytes }
        } else {
            Remedy::AddRam { device, bytes }
        });
    }
    found
}

fn changed(problem: &Problem, change: impl Fn(&mut WorkloadSpec)) -> Option<Problem> {
    let mut spec = problem.workload.to_spec();
    change(&mut spec);
    let workload = Workload::new(spec).ok()?;
    Some(Problem { workload, ..problem.clone() })
}

/// The largest context that has a plan, to a 64th of what is asked.
fn shorter_context(problem: &Problem) -> Option<u32> {
    let asked = problem.workload.context_tokens;
    let least = problem.workload.prompt_tokens.mean + problem.workload.generated_tokens.mean;
    let with = |tokens: u32| changed(problem, |spec| spec.context_tokens = tokens);
    let mut low = least.ceil() as u32;
    if low >= asked || !serves(&with(low)?) {
        return None;
    }
    let mut high = asked;
    while high - low > (asked / 64).max(1) {
        let middle = u32::midpoint(low, high);
        if serves(&with(middle)?) { low = middle } else { high = middle }
    }
    Some(low)
}

/// The device with the most room.
fn largest(setting: &Setting<'_>) -> motley_cluster::DeviceId {
    let rooms = setting.types.iter();
    let most = rooms.max_by(|a, b| a.room().total_cmp(&b.room()));
    most.map_or(motley_cluster::DeviceId::new(0), |kind| kind.members[0])
}

/// As [`added`] for a plan at any speed, because where both are short no memory helps alone.
fn added_without_floor(setting: &Setting<'_>) -> Option<u64> {
    let without = changed(setting.problem, |spec| spec.speed_floor_tok_per_s = None)?;
    let devices = super::usable(&without);
    added(&Setting::new(&without, setting.budget, &devices))
}

/// Memory that the device with the most room would need more for a plan to exist, in bytes to the
/// next 64th of the file.
fn added(setting: &Setting<'_>) -> Option<u64> {
    let problem = setting.problem;
    let device = largest(setting);
    let file = setting.file_bytes() as u64;
    let step = (file / 64).max(1);
    let with = |more: u64| -> Option<bool> {
        let mut cluster = problem.cluster.to_spec();
        let mut spec = cluster.devices[device.index()].to_spec();
        let extra = Bytes::new(more);
        spec.memory.ram_total_bytes += extra;
        spec.memory.ram_available_bytes += extra;
        if let (true, Some(gpu)) = (spec.unified_memory, spec.gpus.first_mut()) {
            gpu.total_bytes += extra;
            gpu.usable_bytes += extra;
        }
        cluster.devices[device.index()] = DeviceProfile::new(spec).ok()?;
        let cluster = motley_cluster::Cluster::new(cluster).ok()?;
        Some(serves(&Problem { cluster, ..problem.clone() }))
    };
    // Three copies' worth is beyond what one device could be asked for.
    let (mut low, mut high) = (0, 192);
    if !with(high * step)? {
        return None;
    }
    while high - low > 1 {
        let middle = u64::midpoint(low, high);
        if with(middle * step)? { high = middle } else { low = middle }
    }
    Some(high * step)
}
