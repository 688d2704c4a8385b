//! Time of evaluating a prompt on a ring.

use motley_cluster::{DeviceId, Seconds, prefill_chunk_rows};

use super::instance::Instance;
use super::options::Split;
use super::ring::Assignment;
use crate::cost::{CostModel, DiskModel, Pass, Site};
use crate::problem::Problem;

/// Time from a request to its first token on an idle ring.
///
/// Each chunk pays busy times, hops and disk as a token does; streaming overlaps the whole chunk's
/// work. Only the last chunk computes logits. In prima.cpp's ring the chunks go around one after
/// another; in ours they are cut as [`prefill_chunk_rows`] says, follow each other as soon as
/// the device or link that takes longest is free, and only the row whose logits are wanted goes back
/// to the head. A link carries the next chunk while the last one is still on its way.
pub(super) fn time_to_first_token(
    problem: &Problem,
    instance: &Instance,
    best: &Assignment,
) -> Seconds {
    let costs = CostModel::new(&problem.cluster, &problem.model, &problem.workload);
    let prompt = problem.workload.prompt_tokens.mean.ceil() as u32;
    let most = problem.workload.micro_batch_tokens;
    let follow = instance.disk == DiskModel::Streaming;
    let stages = best.splits.iter().filter(|split| split.layers() > 0).count() as u32;
    let rows = if follow { prefill_chunk_rows(prompt, stages, most) } else { most };
    let mut depth = 0;
    let mut total = 0.0;
    while depth < prompt {
        let tokens = (prompt - depth).min(rows);
        let chunk = chunk_time(&costs, instance, best, Pass::prefill(tokens, depth));
        total += if follow && depth > 0 { chunk.longest_s } else { chunk.around_s };
        depth += tokens;
    }
    let head = DeviceId::new(best.ring.head as u16);
    let last = Pass::prefill(1, depth.saturating_sub(1));
    let output = costs
        .head_time(head, Site::Gpu, last)
        .or_else(|| costs.head_time(head, Site::Cpu, last))
        .unwrap_or_default();
    Seconds::new(total + output.value()).expect("a sum of times is a time")
}

/// What a chunk takes.
struct ChunkTime {
    /// Once around the ring.
    around_s: f64,
    /// The device or the link that it holds up longest.
    longest_s: f64,
}

fn chunk_time(
    costs: &CostModel<'_>,
    instance: &Instance,
    best: &Assignment,
    pass: Pass,
) -> ChunkTime {
    let ring = &best.ring;
    let id = |device: usize| DeviceId::new(device as u16);
    let layer =
        |device, site| costs.mean_layer_time(id(device), site, pass).unwrap_or_default().value();
    let sent = |from: usize, to: usize, pass: Pass| {
        if from == to {
            return 0.0;
        }
        costs.hop_time(id(from), id(to), pass).unwrap_or_default().value()
    };
    let hop = |from: usize, to: usize| sent(from, to, pass);
    let wanted = match instance.disk {
        DiskModel::Streaming => Pass::prefill(1, pass.depth_tokens),
        _ => pass,
    };
    let rounds = f64::from(best.rounds);
    let last = ring.order.len() - 1;
    let (mut busy, mut longest, mut added) = (hop(ring.head, ring.order[0]), 0.0_f64, 0.0);
    let mut held_up = carried_s(costs, (id(ring.head), id(ring.order[0])), pass);
    for (at, (device, split)) in ring.order.iter().zip(&best.splits).enumerate() {
        let profile = costs.cluster().device(id(*device));
        let both = if split.cpu > 0 && split.gpu > 0 {
            costs.copy_time(id(*device), 2, pass).value()
        } else {
            0.0
        };
        let mut own = layer(*device, Site::Cpu) * f64::from(split.cpu)
            + layer(*device, Site::Gpu) * f64::from(split.gpu)
            + (both + profile.step_overhead_s.value()) * rounds;
        let next = if at < last { ring.order[at + 1] } else { ring.order[0] };
        let (there, back) = if at < last { (rounds, 0.0) } else { (rounds - 1.0, 1.0) };
        let hops = hop(*device, next) * there + sent(*device, ring.head, wanted) * back;
        let carried = carried_s(costs, (id(*device), id(next)), pass) * there;
        if instance.disk == DiskModel::Streaming {
            let computing = layer(*device, Site::Cpu) * f64::from(split.cpu);
            let layer_bytes = costs.mean_streamed_bytes(pass.tokens).count();
            let device = (*device, ring.head);
            let read = Reading::of(instance, device, (split, best.rounds), layer_bytes as i64);
            own += (read.within_s - computing).max(0.0) + read.chosen_s;
            longest = longest.max(read.all_s);
        } else {
            longest = longest.max(own + hops + instance.clock.seconds(split.overlapped));
            added += instance.clock.seconds(split.added);
        }
        held_up = held_up.max(own).max(carried);
        busy += own + hops;
    }
    busy += costs.embedding_time(id(ring.head), pass).value();
    ChunkTime { around_s: busy.max(longest) + added, longest_s: held_up.max(longest) }
}

/// For how long the links between two devices are taken up by what a pass sends; how long it then is
/// on its way holds nobody up.
fn carried_s(costs: &CostModel<'_>, (from, to): (DeviceId, DeviceId), pass: Pass) -> f64 {
    let Some(route) = costs.route(from, to).filter(|_| from != to) else { return 0.0 };
    let sent = costs.activation_bytes(pass);
    route.links.iter().map(|link| (sent / link.bytes_per_s).value()).fold(0.0, f64::max)
}

/// Time of what a stream reads per pass.
struct Reading {
    all_s: f64,
    /// Of it, what is read within the device's own windows.
    within_s: f64,
    /// Experts, which nothing is computed beside.
    chosen_s: f64,
}

impl Reading {
    fn of(
        instance: &Instance,
        (device, head): (usize, usize),
        (split, rounds): (&Split, u32),
        layer_bytes: i64,
    ) -> Self {
        let member = instance.member(device, head);
        let disk = instance.disk(member, split.cpu, split.gpu, rounds);
        let disk = disk.expect("an assignment is feasible");
        let layer_s = instance.clock.seconds(member.read(layer_bytes));
        let time = |layers: u32| layer_s * f64::from(layers);
        let streamed = split.cpu - disk.pinned;
        if member.chosen.is_some() {
            let absent = streamed.saturating_sub(disk.buffer);
            return Self { all_s: 0.0, within_s: 0.0, chosen_s: time(absent) };
        }
        let within = streamed.saturating_sub(rounds.saturating_mul(disk.buffer));
        Self { all_s: time(streamed), within_s: time(within), chosen_s: 0.0 }
    }
}
