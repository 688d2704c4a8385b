//! llama.cpp: one `llama-server` on the head, one `rpc-server` on every other member.
//!
//! Facts, read in its sources: offloaded layers are the last `-ngl` of the repeating ones plus the
//! output; they go in order to the RPC devices as listed, then to local GPUs, in proportion to
//! `--tensor-split`; layers before them stay on the head's CPU, mapped from the file. An
//! `rpc-server` holds its layers in memory and lists the devices it was told to offer. Every hidden
//! state goes from and to the head.

use motley_cluster::{DeviceId, MemberSpec, ReplicaSpec, Residency, Seconds};

use super::{Export, ExportCommand, ExportTarget, Source, mapped_loss};
use crate::explain::{bytes, time};
use crate::problem::Objective;

const RPC_PORT: u16 = 50052;
const HTTP_PORT: u16 = 8080;

pub(super) fn export(source: &Source<'_>) -> Export {
    let mut commands = Vec::new();
    let mut losses = source.role_losses("llama.cpp");
    for replica in source.replicas() {
        let (own, found) = replica_commands(source, replica);
        commands.extend(own);
        losses.extend(found);
    }
    Export { target: ExportTarget::LlamaCpp, commands, losses }
}

/// Layers that one offload device gets.
struct Part {
    /// What the engine calls it, on its machine.
    label: String,
    layers: u32,
}

fn replica_commands(
    source: &Source<'_>,
    replica: &ReplicaSpec,
) -> (Vec<ExportCommand>, Vec<String>) {
    let mut commands = Vec::new();
    let mut losses = Vec::new();
    let mut servers = Vec::new();
    let mut parts: Vec<u32> = Vec::new();
    for member in replica.members.iter().filter(|member| member.device != replica.head) {
        let offered = remote_parts(source, member);
        let host = source.host(member.device);
        let labels: Vec<&str> = offered.iter().map(|part| part.label.as_str()).collect();
        // Traffic is neither encrypted nor authenticated, so the address is named on purpose.
        let line = format!("rpc-server -H {host} -p {RPC_PORT} -d {} -c", labels.join(","));
        commands.push(command(source, member.device, line));
        servers.push(format!("{host}:{RPC_PORT}"));
        parts.extend(offered.iter().map(|part| part.layers));
        losses.extend(remote_losses(source, member));
    }
    let head = replica.members.iter().find(|member| member.device == replica.head);
    let head_gpu = head.map_or(0, |member| member.count(Residency::Gpu));
    let head_cpu = head.map_or(0, |member| member.layers_count()) - head_gpu;
    let head_has_gpu = source.has_gpu(replica.head);
    // A local GPU is always among the devices; the last one also computes the output.
    if head_has_gpu {
        parts.push(head_gpu);
    }
    if let Some(last) = parts.last_mut() {
        *last += 1;
        if !head_has_gpu {
            losses.push(output_loss(source, replica));
        }
    }
    let offloaded: u32 = parts.iter().sum();
    let mut line = format!("llama-server -m {} -ngl {offloaded}", source.model_file);
    if !servers.is_empty() {
        line.push_str(&format!(" --rpc {}", servers.join(",")));
    }
    if parts.len() > 1 {
        let split: Vec<String> = parts.iter().map(u32::to_string).collect();
        line.push_str(&format!(" --split-mode layer --tensor-split {}", split.join(",")));
    }
    let flags = source.common_flags(replica, "-fa on");
    line.push_str(&format!(
        " {flags} --fit off --host {} --port {HTTP_PORT}",
        host(source, replica)
    ));
    commands.push(command(source, replica.head, line));
    losses.extend(head.and_then(|member| mapped_loss(source, member)));
    losses.extend(ring_losses(source, replica, head_cpu));
    (commands, losses)
}

fn host(source: &Source<'_>, replica: &ReplicaSpec) -> String {
    source.host(replica.head)
}

fn command(source: &Source<'_>, device: DeviceId, line: String) -> ExportCommand {
    ExportCommand { device, name: source.name(device).to_owned(), line }
}

/// A remote member's layers as the devices its server offers: CPU layers first, as in its window.
fn remote_parts(source: &Source<'_>, member: &MemberSpec) -> Vec<Part> {
    let gpu = member.count(Residency::Gpu);
    let cpu = member.layers_count() - gpu;
    let profile = source.problem.cluster.device(member.device);
    let gpu_name = match profile.gpu().map(|gpu| gpu.kind) {
        Some(motley_cluster::GpuKind::Metal) => "MTL0",
        Some(motley_cluster::GpuKind::Other) => "Vulkan0",
        Some(motley_cluster::GpuKind::Cuda) | None => "CUDA0",
    };
    let parts = [("CPU", cpu), (gpu_name, gpu)].into_iter().filter(|(_, layers)| *layers > 0);
    parts.map(|(label, layers)| Part { label: label.to_owned(), layers }).collect()
}

fn remote_losses(source: &Source<'_>, member: &MemberSpec) -> Vec<String> {
    let streamed = member.count(Residency::Stream);
    if streamed == 0 {
        return Vec::new();
    }
    let runs = member.residency.iter().filter(|run| run.weights == Residency::Stream);
    let layers = runs.flat_map(|run| run.layers.iter());
    let weights = layers.map(|layer| source.problem.model.layer_bytes(layer)).sum();
    vec![format!(
        "{}: an rpc-server reads no layer from disk, so its {streamed} streamed layers need {} of \
         memory that it does not have; it will swap or refuse them",
        source.name(member.device),
        bytes(weights)
    )]
}

fn output_loss(source: &Source<'_>, replica: &ReplicaSpec) -> String {
    let mut others = replica.members.iter().filter(|member| member.device != replica.head);
    let last = others.next_back().map_or(replica.head, |member| member.device);
    format!(
        "the output matrix ({}) goes with the last offloaded layer to {}, not to the head {}",
        bytes(source.problem.model.output_bytes),
        source.name(last),
        source.name(replica.head)
    )
}

/// What the star and the single pass lose against the ring.
fn ring_losses(source: &Source<'_>, replica: &ReplicaSpec, head_cpu: u32) -> Vec<String> {
    let mut losses = Vec::new();
    let head = source.name(replica.head);
    let remote: Vec<&MemberSpec> =
        replica.members.iter().filter(|member| member.device != replica.head).collect();
    let pass = source.decode_pass(replica);
    let hop = |from, to| source.costs.hop_time(from, to, pass).unwrap_or_default();
    let star: Seconds = remote
        .iter()
        .map(|member| hop(replica.head, member.device) + hop(member.device, replica.head))
        .sum();
    let count = replica.members.len();
    let ring: Seconds = (0..count)
        .map(|at| hop(replica.members[at].device, replica.members[(at + 1) % count].device))
        .sum();
    if star > ring {
        losses.push(format!(
            "workers do not reach each other: {} transfers pass the network card of {head} per \
             token instead of {count} around the ring, {} instead of {}",
            2 * remote.len(),
            time(star),
            time(ring)
        ));
    }
    if replica.rounds > 1 {
        losses.push(format!(
            "{} rounds become one: no device reads its next layers while others compute",
            replica.rounds
        ));
    }
    let head_member = replica.members.iter().position(|member| member.device == replica.head);
    let first = head_member == Some(0);
    if head_cpu > 0 && !first {
        losses
            .push(format!("the CPU layers of {head} come first in the model, not in their place"));
    }
    if head_member.is_some_and(|at| at + 1 < count)
        && replica.members.iter().any(|m| m.device == replica.head && m.count(Residency::Gpu) > 0)
        && !remote.is_empty()
    {
        losses.push(format!(
            "the GPU layers of {head} come last in the model: remote devices take the layers before \
             them"
        ));
    }
    if source.problem.objective == Objective::Latency && replica.slots == 1 {
        return losses;
    }
    if replica.members.len() > 1 && replica.groups == 1 && replica.slots > 1 {
        losses.push(format!(
            "all {} slots advance in one batch; while one device computes it, the others wait",
            replica.slots
        ));
    }
    losses
}
