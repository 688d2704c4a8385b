//! What each member of a route should take for one token of one sequence.

use motley_cluster::{DeviceId, LayerIndex, Seconds};
use motley_planner::{CostModel, Pass, Problem, Site, rested_time};
use motley_ring::Route;

/// One member's part of a token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct StageTime {
    /// Computing its layers, and at the head embedding and projecting.
    pub(super) compute: Seconds,
    /// Sending what it has computed to the next one.
    pub(super) hop: Seconds,
}

/// Times of a route's members, in the order of its list; nothing if there is no way for one of its
/// hops. Times of reading layers from disk are not in them.
pub(super) fn stage_times(
    problem: &Problem,
    route: &Route,
    devices: &[DeviceId],
) -> Option<Vec<StageTime>> {
    let costs = CostModel::new(&problem.cluster, &problem.model, &problem.workload);
    let pass = Pass::decode(1, problem.workload.mean_depth_tokens());
    let mut times = vec![StageTime::default(); devices.len()];
    // What the head projects and what it embeds for the next token is one piece of work.
    let mut head = Seconds::ZERO;
    for stop in route.stops().iter().filter(|stop| stop.projects) {
        let device = *devices.get(stop.member.index())?;
        head += costs.head_time(device, Site::Cpu, pass)?;
    }
    for stop in route.stops() {
        let device = *devices.get(stop.member.index())?;
        let mut time = Seconds::ZERO;
        for layer in stop.layers.clone() {
            time += costs.layer_time(device, Site::Cpu, LayerIndex::new(layer), pass)?;
        }
        if !stop.layers.is_empty() {
            time += problem.cluster.device(device).step_overhead_s;
        }
        if stop.embeds {
            time += costs.embedding_time(device, pass) + std::mem::take(&mut head);
        }
        // Who computes alone does not rest.
        let rests = devices.len() > 1;
        let quota = problem.cluster.device(device).cpu_quota.filter(|_| rests);
        let rested = quota.map_or(time, |quota| rested_time(&quota, time));
        times[stop.member.index()].compute += rested;
    }
    for pair in route.stops().windows(2) {
        let (from, to) = (pair[0].member.index(), pair[1].member.index());
        times[from].hop += costs.hop_time(devices[from], *devices.get(to)?, pass)?;
    }
    Some(times)
}

/// Time of a token: one sequence is in one place at a time.
pub(super) fn token_time(times: &[StageTime]) -> Seconds {
    times.iter().map(|time| time.compute + time.hop).sum()
}
