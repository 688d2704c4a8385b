//! prima.cpp's published search: sets, one integer program per number of rounds, calibration, and
//! dropping of devices (PLANNER 3.1 to 3.5). Times in seconds, sizes in bytes.
//!
//! The programs are separable but for the sum of the windows, so a dynamic program solves them
//! exactly. Repairs are made only where the published form would crash or run forever, and are noted.

use crate::problem::IterationRepair;

/// How a device behaves under memory pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// macOS without Metal.
    Macos,
    /// macOS with Metal.
    Metal,
    /// Linux or Android.
    Linux,
}

/// A device as the published equations see it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PaperDevice {
    /// Time of one CPU layer (α).
    pub(super) alpha: f64,
    /// GPU time minus CPU time of one layer (β); none without GPU.
    pub(super) beta: Option<f64>,
    /// Cost of one round (ξ).
    pub(super) xi: f64,
    pub(super) kind: Kind,
    /// Memory budget (R).
    pub(super) memory: f64,
    pub(super) gpu_free: f64,
    /// Compute buffers (`c_cpu`, `c_gpu`).
    pub(super) buffers: (f64, f64),
    /// Read rate (s).
    pub(super) disk: f64,
}

/// The published problem; the head is the first device.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PaperProblem {
    pub(super) layers: u32,
    /// Layer bytes (b) and with KV (b').
    pub(super) layer_bytes: (f64, f64),
    /// Embedding row (`b_in / V`) and output matrix (`b_out`).
    pub(super) head_bytes: (f64, f64),
    /// Compute and memory part of κ.
    pub(super) head_time: f64,
    pub(super) devices: Vec<PaperDevice>,
}

/// Overload class of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Set {
    M1,
    M2,
    M3,
    M4,
}

/// Rounds, windows and GPU layers per window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Windows {
    pub(super) rounds: u32,
    pub(super) layers: Vec<u32>,
    pub(super) gpu: Vec<u32>,
}

/// Where the iteration ended and how it got there.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Iterated {
    pub(super) windows: Windows,
    /// Sets and objective of every program solved.
    pub(super) trace: Vec<(Vec<Set>, f64)>,
    pub(super) repairs: Vec<IterationRepair>,
}

/// A disk slower than this is never planned to be read from (0.1 GB/s).
const SLOW_DISK_BYTES_PER_S: f64 = 0.1e9;

/// Iterations after which a run that neither repeats nor stops is ended.
const ITERATIONS_MAX: usize = 100;

/// Runs the iteration for one set of devices.
pub(super) fn iterate(problem: &PaperProblem) -> Iterated {
    let mut state = proportional(problem);
    let mut found: Option<Windows> = None;
    let mut forced = vec![false; problem.devices.len()];
    let mut visited: Vec<(Vec<Set>, Windows)> = Vec::new();
    let mut trace = Vec::new();
    let mut repairs = Vec::new();
    let mut before: Option<Vec<Set>> = None;
    for _ in 0..ITERATIONS_MAX {
        let sets = classify(problem, &state, &forced);
        if before.as_ref() == Some(&sets) {
            return Iterated { windows: found.unwrap_or(state), trace, repairs };
        }
        if visited.contains(&(sets.clone(), state.clone())) {
            repairs.push(IterationRepair::CycleEnded);
            return Iterated { windows: found.unwrap_or(state), trace, repairs };
        }
        visited.push((sets.clone(), state.clone()));
        before = Some(sets.clone());
        let Some((objective, windows)) = best_rounds(problem, &sets, &mut repairs) else {
            match slowest_outside(problem, &sets) {
                Some(device) => {
                    repairs.push(IterationRepair::NoFeasibleRounds);
                    forced[device] = true;
                    continue;
                }
                None => {
                    repairs.push(IterationRepair::ProportionalWindowsKept);
                    return Iterated { windows: found.unwrap_or(state), trace, repairs };
                }
            }
        };
        trace.push((sets.clone(), objective));
        let calibrate = idle_gpu(problem, &windows) && overloaded(problem, &sets, &windows);
        found = Some(windows.clone());
        match slowest_outside(problem, &sets).filter(|_| calibrate) {
            Some(device) => forced[device] = true,
            None => state = windows,
        }
    }
    repairs.push(IterationRepair::CapReached);
    Iterated { windows: found.unwrap_or(state), trace, repairs }
}

/// Windows by memory, the largest remainders rounded up, at least one layer each.
fn proportional(problem: &PaperProblem) -> Windows {
    let total: f64 = problem.devices.iter().map(|device| device.memory.max(0.0)).sum();
    let share = |device: &PaperDevice| {
        f64::from(problem.layers) * device.memory.max(0.0) / total.max(f64::MIN_POSITIVE)
    };
    let shares: Vec<f64> = problem.devices.iter().map(share).collect();
    let mut layers: Vec<u32> = shares.iter().map(|share| (*share as u32).max(1)).collect();
    loop {
        let sum: u32 = layers.iter().sum();
        let missing = |at: &usize| shares[*at] - f64::from(layers[*at]);
        let all = 0..layers.len();
        let by_missing = |a: &usize, b: &usize| missing(a).total_cmp(&missing(b)).then(b.cmp(a));
        let at = match sum.cmp(&problem.layers) {
            std::cmp::Ordering::Equal => break,
            std::cmp::Ordering::Less => all.max_by(by_missing),
            std::cmp::Ordering::Greater => all.filter(|at| layers[*at] > 1).min_by(by_missing),
        };
        let at = at.expect("there are no more devices than layers");
        if sum < problem.layers {
            layers[at] += 1;
        } else {
            layers[at] -= 1;
        }
    }
    let gpu = vec![0; layers.len()];
    Windows { rounds: 1, layers, gpu }
}

fn classify(problem: &PaperProblem, state: &Windows, forced: &[bool]) -> Vec<Set> {
    let (_, with_kv) = problem.layer_bytes;
    let class = |(at, device): (usize, &PaperDevice)| {
        let all = f64::from(state.layers[at] * state.rounds);
        let gpu = f64::from(state.gpu[at] * state.rounds);
        let head = if at == 0 { problem.head_bytes.0 + problem.head_bytes.1 } else { 0.0 };
        let (cpu_buffer, gpu_buffer) = device.buffers;
        let (set, need) = match device.kind {
            Kind::Macos => (Set::M1, all * with_kv + head + cpu_buffer),
            Kind::Metal => (Set::M2, all * with_kv + head + cpu_buffer + gpu_buffer),
            Kind::Linux => (Set::M3, (all - gpu) * with_kv + head + cpu_buffer),
        };
        let fits = need <= device.memory || device.disk < SLOW_DISK_BYTES_PER_S || forced[at];
        if fits { Set::M4 } else { set }
    };
    problem.devices.iter().enumerate().map(class).collect()
}

/// The best program over the divisors of L below L; rounds without a feasible point are skipped.
fn best_rounds(
    problem: &PaperProblem,
    sets: &[Set],
    repairs: &mut Vec<IterationRepair>,
) -> Option<(f64, Windows)> {
    let mut best: Option<(f64, Windows)> = None;
    let divisors =
        (1..problem.layers.max(2)).filter(|rounds| problem.layers.is_multiple_of(*rounds));
    for rounds in divisors {
        match program(problem, sets, rounds) {
            Some(found) if best.as_ref().is_none_or(|best| found.0 < best.0) => best = Some(found),
            Some(_) => {}
            None => {
                let skipped = IterationRepair::InfeasibleRoundsSkipped { rounds };
                if !repairs.contains(&skipped) {
                    repairs.push(skipped);
                }
            }
        }
    }
    best
}

/// The integer program for fixed rounds and sets.
fn program(problem: &PaperProblem, sets: &[Set], rounds: u32) -> Option<(f64, Windows)> {
    let window = problem.layers / rounds;
    let size = window as usize + 1;
    let mut least = vec![f64::INFINITY; size];
    least[0] = 0.0;
    let mut choices: Vec<Vec<(u32, u32)>> = Vec::new();
    for at in 0..problem.devices.len() {
        let mut next = vec![f64::INFINITY; size];
        let mut chosen = vec![(0, 0); size];
        for layers in 1..=window {
            let Some((cost, gpu)) = cheapest(problem, sets, (at, rounds, window), layers) else {
                continue;
            };
            for (before, sum) in least.iter().enumerate().take(size - layers as usize) {
                let after = before + layers as usize;
                if sum + cost < next[after] {
                    next[after] = sum + cost;
                    chosen[after] = (layers, gpu);
                }
            }
        }
        choices.push(chosen);
        least = next;
    }
    let sum = least[window as usize];
    if !sum.is_finite() {
        return None;
    }
    let mut left = window as usize;
    let mut layers = vec![0; problem.devices.len()];
    let mut gpu = layers.clone();
    for at in (0..layers.len()).rev() {
        (layers[at], gpu[at]) = choices[at][left];
        left -= layers[at] as usize;
    }
    Some((sum + kappa(problem, sets), Windows { rounds, layers, gpu }))
}

/// Least cost k·(a·w + b·n + c) of a window under its set's rows, and its GPU layers.
fn cheapest(
    problem: &PaperProblem,
    sets: &[Set],
    (at, rounds, window): (usize, u32, u32),
    layers: u32,
) -> Option<(f64, u32)> {
    let device = &problem.devices[at];
    let (plain, with_kv) = problem.layer_bytes;
    let read = with_kv / device.disk;
    let beta = device.beta.unwrap_or(0.0);
    let (a, b) = match sets[at] {
        Set::M1 => (device.alpha + read, 0.0),
        Set::M2 => (device.alpha + plain / device.disk, beta),
        Set::M3 => (device.alpha + read, device.beta.map_or(0.0, |beta| beta - read)),
        Set::M4 => (device.alpha, beta),
    };
    let scale = f64::from(window) / (f64::from(problem.layers) * with_kv);
    let room = room(problem, at) * scale;
    let gpu_room = ((device.gpu_free - device.buffers.1) * scale).max(0.0);
    let counted = |gpu: u32| match (device.kind, device.beta, sets[at]) {
        (Kind::Linux, Some(_), Set::M3 | Set::M4) => f64::from(layers - gpu),
        _ => f64::from(layers),
    };
    let allowed = |gpu: u32| {
        let within = counted(gpu) <= room + 1e-9;
        f64::from(gpu) <= gpu_room + 1e-9 && within == (sets[at] == Set::M4)
    };
    let most = if device.beta.is_some() { layers } else { 0 };
    let cost =
        |gpu: u32| f64::from(rounds) * (a * f64::from(layers) + b * f64::from(gpu) + device.xi);
    let least = (0..=most).filter(|gpu| allowed(*gpu));
    least.map(|gpu| (cost(gpu), gpu)).min_by(|x, y| x.0.total_cmp(&y.0).then(x.1.cmp(&y.1)))
}

/// R minus what does not depend on the window.
fn room(problem: &PaperProblem, at: usize) -> f64 {
    let device = &problem.devices[at];
    let head = if at == 0 { problem.head_bytes.0 + problem.head_bytes.1 } else { 0.0 };
    let gpu_buffer = if device.kind == Kind::Metal { device.buffers.1 } else { 0.0 };
    device.memory - head - device.buffers.0 - gpu_buffer
}

fn kappa(problem: &PaperProblem, sets: &[Set]) -> f64 {
    let head = &problem.devices[0];
    let mut sum = problem.head_time + problem.head_bytes.0 / head.disk;
    if sets[0] != Set::M4 {
        sum += problem.head_bytes.1 / head.disk;
    }
    for (device, set) in problem.devices.iter().zip(sets) {
        if matches!(set, Set::M1 | Set::M3) {
            sum += (device.buffers.0 - device.memory) / device.disk;
        }
    }
    sum
}

fn idle_gpu(problem: &PaperProblem, windows: &Windows) -> bool {
    let (_, with_kv) = problem.layer_bytes;
    let window: u32 = windows.layers.iter().sum();
    let scale = f64::from(window) / (f64::from(problem.layers) * with_kv);
    problem.devices.iter().zip(&windows.gpu).any(|(device, gpu)| {
        let room = ((device.gpu_free - device.buffers.1) * scale).max(0.0);
        device.beta.is_some() && f64::from(*gpu) < room.floor()
    })
}

fn overloaded(problem: &PaperProblem, sets: &[Set], windows: &Windows) -> bool {
    (0..sets.len()).any(|at| match problem.devices[at].beta {
        Some(_) => windows.layers[at] > windows.gpu[at],
        None => sets[at] != Set::M4,
    })
}

/// The device with the slowest disk outside M4.
fn slowest_outside(problem: &PaperProblem, sets: &[Set]) -> Option<usize> {
    let outside = (0..sets.len()).filter(|at| sets[*at] != Set::M4);
    outside.min_by(|a, b| problem.devices[*a].disk.total_cmp(&problem.devices[*b].disk))
}

/// Devices the published rule drops: not the head, and one layer per window.
fn dropped(windows: &Windows) -> Vec<usize> {
    (1..windows.layers.len()).filter(|at| windows.layers[*at] <= 1).collect()
}

/// Runs [`iterate`], drops devices by the published rule and repeats until none is dropped. Returns
/// positions of the devices kept, where the last run ended, and the repairs of all runs.
pub(super) fn iterate_and_drop(problem: &PaperProblem) -> (Vec<usize>, Iterated) {
    let mut kept: Vec<usize> = (0..problem.devices.len()).collect();
    let mut repairs = Vec::new();
    loop {
        let devices = kept.iter().map(|at| problem.devices[*at].clone()).collect();
        let mut run = iterate(&PaperProblem { devices, ..problem.clone() });
        for repair in run.repairs.drain(..) {
            if !repairs.contains(&repair) {
                repairs.push(repair);
            }
        }
        let weak = dropped(&run.windows);
        if weak.is_empty() {
            run.repairs = repairs;
            return (kept, run);
        }
        let strong = kept.iter().enumerate().filter(|(at, _)| !weak.contains(at));
        kept = strong.map(|(_, device)| *device).collect();
    }
}
