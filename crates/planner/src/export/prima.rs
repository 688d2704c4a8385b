//! prima.cpp: one process per member, the head as rank 0.
//!
//! Facts, read in its sources: `-lw` gives the layers per round and rank, all above 0, at most 32
//! ranks; layer 0 belongs to rank 1 and rank 0 computes the last window of each round, so that layer
//! i lies where i modulo the sum of the windows falls, the last round being cut short; `-ngl` counts
//! the last layers of each window; with `-lw` nothing is profiled. Weights are mapped, `--prefetch`
//! advises the system to load the next window. The output runs on the CPU unless
//! `--keep-out-in-cuda` is given.

use motley_cluster::{GpuKind, MemberSpec, Os, ReplicaSpec, Residency, WeightType};

use super::{Export, ExportCommand, ExportTarget, Source, mapped_loss};

const RANKS_MAX: usize = 32;

pub(super) fn export(source: &Source<'_>) -> Export {
    let mut commands = Vec::new();
    let mut losses = source.role_losses("prima.cpp");
    losses.extend(model_losses(source));
    for (index, replica) in source.replicas().iter().enumerate() {
        let ranks = Ranks::of(replica);
        commands.extend(ranks.commands(source, replica, index));
        losses.extend(ranks.losses(source, replica));
    }
    Export { target: ExportTarget::PrimaCpp, commands, losses }
}

/// Members by rank with the layers of one round.
struct Ranks<'a> {
    members: Vec<&'a MemberSpec>,
    windows: Vec<u32>,
    gpu: Vec<u32>,
    /// Layers that had to be moved to the head, which may not be without.
    moved_to_head: u32,
}

impl<'a> Ranks<'a> {
    /// Ring order from the head on; rank 0 computes last, which is where the ring of the plan closes.
    fn of(replica: &'a ReplicaSpec) -> Self {
        let head = replica.position_of(replica.head).unwrap_or(0);
        let count = replica.members.len();
        let members: Vec<&MemberSpec> =
            (0..count).map(|rank| &replica.members[(head + rank) % count]).collect();
        let rounds = replica.rounds.max(1);
        let widest = |member: &&MemberSpec| {
            let windows = member.windows.iter().map(|window| window.len());
            windows.max().unwrap_or(0)
        };
        let mut windows: Vec<u32> = members.iter().map(widest).collect();
        let mut gpu: Vec<u32> = members
            .iter()
            .zip(&windows)
            .map(|(member, window)| member.count(Residency::Gpu).div_ceil(rounds).min(*window))
            .collect();
        let mut moved_to_head = 0;
        if windows[0] == 0 && count > 1 {
            let largest = (1..count).max_by_key(|rank| windows[*rank]).unwrap_or(1);
            windows[0] = 1;
            windows[largest] -= 1;
            gpu[largest] = gpu[largest].min(windows[largest]);
            moved_to_head = rounds;
        }
        Self { members, windows, gpu, moved_to_head }
    }

    fn commands(
        &self,
        source: &Source<'_>,
        replica: &ReplicaSpec,
        index: usize,
    ) -> Vec<ExportCommand> {
        let world = self.members.len();
        let host = |rank: usize| source.host(self.members[rank % world].device);
        let windows: Vec<String> = self.windows.iter().map(u32::to_string).collect();
        // Replicas share no device, but their ports tell them apart on one network.
        let ports = if index == 0 {
            String::new()
        } else {
            format!(" --data-port {} --signal-port {}", 9000 + index, 10000 + index)
        };
        let mut commands = Vec::new();
        for (rank, member) in self.members.iter().enumerate() {
            let program = if rank == 0 { "llama-server" } else { "llama-cli" };
            let mut line = format!("{program} -m {}", source.model_file);
            if world > 1 {
                line.push_str(&format!(
                    " --world {world} --rank {rank} --master {} --next {}{ports} --prefetch",
                    host(0),
                    host(rank + 1)
                ));
            }
            if rank == 0 && world > 1 {
                line.push_str(&format!(" -lw {}", windows.join(",")));
            }
            if source.has_gpu(member.device) {
                line.push_str(&format!(" -ngl {}", self.gpu[rank]));
            }
            if rank == 0 {
                if keeps_output_on_gpu(source, replica) {
                    line.push_str(" --keep-out-in-cuda");
                }
                let batching = if replica.slots > 1 { " -cb" } else { "" };
                let flags = source.common_flags(replica, "-fa");
                line.push_str(&format!(" {flags}{batching} --host {} --port 8080", host(0)));
            }
            let name = source.name(member.device).to_owned();
            commands.push(ExportCommand { device: member.device, name, line });
        }
        // Workers wait for the head, which is started last.
        commands.rotate_left(1);
        commands
    }

    fn losses(&self, source: &Source<'_>, replica: &ReplicaSpec) -> Vec<String> {
        let mut losses = Vec::new();
        if self.members.len() > RANKS_MAX {
            losses.push(format!(
                "{} members are more than its {RANKS_MAX} ranks",
                self.members.len()
            ));
        }
        if self.moved_to_head > 0 {
            losses.push(format!(
                "every rank needs a layer per round, so the head {} takes {} it should not have",
                source.name(replica.head),
                self.moved_to_head
            ));
        }
        losses.extend(self.other_counts(source));
        for member in &self.members {
            losses.extend(mapped_loss(source, member));
            losses.extend(machine_loss(source, member));
            if !member.relays_to_next.is_empty() {
                losses.push(format!(
                    "{} reaches its next device over others, which prima.cpp arranges only without \
                     -lw",
                    source.name(member.device)
                ));
            }
        }
        losses
    }

    /// Devices whose number of layers or GPU layers differs from the plan's, because rounds are all
    /// alike but for a last one that is cut short.
    fn other_counts(&self, source: &Source<'_>) -> Vec<String> {
        let layers = source.problem.model.layers_count();
        let sum: u32 = self.windows.iter().sum();
        let mut counts = vec![0; self.windows.len()];
        let mut on_gpu = counts.clone();
        for layer in 0..layers {
            let mut offset = layer % sum.max(1);
            for rank in (1..self.windows.len()).chain([0]) {
                let window = self.windows[rank];
                if offset < window {
                    counts[rank] += 1;
                    on_gpu[rank] += u32::from(offset >= window - self.gpu[rank]);
                    break;
                }
                offset -= window;
            }
        }
        let mut losses = Vec::new();
        for (rank, member) in self.members.iter().enumerate() {
            let planned = (member.layers_count(), member.count(Residency::Gpu));
            if planned != (counts[rank], on_gpu[rank]) {
                losses.push(format!(
                    "{}: equal windows give it {} layers ({} on the GPU) instead of {} ({})",
                    source.name(member.device),
                    counts[rank],
                    on_gpu[rank],
                    planned.0,
                    planned.1
                ));
            }
        }
        losses
    }
}

/// The plan keeps the head's output on its GPU, if that is CUDA and has layers.
fn keeps_output_on_gpu(source: &Source<'_>, replica: &ReplicaSpec) -> bool {
    let gpu = source.problem.cluster.device(replica.head).gpu();
    gpu.is_some_and(|gpu| gpu.kind == GpuKind::Cuda)
}

fn machine_loss(source: &Source<'_>, member: &MemberSpec) -> Option<String> {
    let device = source.problem.cluster.device(member.device);
    let name = &device.name;
    if device.os == Os::Windows {
        return Some(format!("{name}: prima.cpp does not run on Windows"));
    }
    let other = device.gpu().is_some_and(|gpu| gpu.kind == GpuKind::Other);
    let layers = member.count(Residency::Gpu);
    (other && layers > 0).then(|| {
        format!(
            "{name}: only CUDA and Metal are supported, so its {layers} GPU layers run on the CPU"
        )
    })
}

/// What its state of July 2025 cannot load.
fn model_losses(source: &Source<'_>) -> Vec<String> {
    let model = &source.problem.model;
    let mut losses = Vec::new();
    let uses = |weight| model.layers.iter().any(|layer| layer.matmul_flops.contains_key(&weight));
    if uses(WeightType::Mxfp4) {
        losses.push(format!("{} has MXFP4 matrices, which it cannot read", model.name));
    }
    losses
}
