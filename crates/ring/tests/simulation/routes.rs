//! Rings of every shape: uneven windows, several rounds, heads anywhere and without layers, relays.

use motley_cluster::{
    DeviceId, LayerRange, MemberSpec, ReplicaPrediction, ReplicaSpec, Role, Seconds,
    TokensPerSecond,
};

use crate::random::Random;

/// A replica over some of the devices that are there, of which device 0 is the head.
pub(crate) fn draw_replica(random: &mut Random, alive: &[u16], layers: u32) -> ReplicaSpec {
    let rounds = random.between(1, 3.min(u64::from(layers))) as usize;
    let mut order: Vec<u16> = alive.to_vec();
    random.shuffle(&mut order);
    let mut windows = vec![vec![0; order.len()]; rounds];
    let mut at = 0;
    for _ in 0..layers {
        // Layers are dealt along the ring; a member may be passed over.
        while at + 1 < order.len() * rounds && random.chance(450) {
            at += 1;
        }
        windows[at / order.len()][at % order.len()] += 1;
    }
    let mut replica = replica_of(&order, &windows);
    let relay_chance = if random.chance(300) { 300 } else { 0 };
    for member in &mut replica.members {
        if random.chance(relay_chance) {
            let relay = order[random.between(0, order.len() as u64 - 1) as usize];
            member.relays_to_next.push(DeviceId::new(relay));
        }
    }
    replica
}

/// The replica with these numbers of layers, by round and member. Who has none is left out.
pub(crate) fn replica_of(order: &[u16], windows: &[Vec<u32>]) -> ReplicaSpec {
    let used = |index: &usize| order[*index] == 0 || windows.iter().any(|round| round[*index] > 0);
    let used: Vec<usize> = (0..order.len()).filter(used).collect();
    let mut ranges = vec![Vec::new(); order.len()];
    let mut next = 0;
    for round in windows {
        for index in &used {
            let range = LayerRange::with_len(next, round[*index]);
            next = range.end();
            ranges[*index].push(range);
        }
    }
    let members = used.iter().map(|index| MemberSpec {
        device: DeviceId::new(order[*index]),
        windows: ranges[*index].clone(),
        residency: Vec::new(),
        relays_to_next: Vec::new(),
    });
    ReplicaSpec {
        role: Role::Mixed,
        slots: 1,
        groups: 1,
        rounds: windows.len() as u32,
        head: DeviceId::new(0),
        members: members.collect(),
        predicted: nothing_predicted(),
    }
}

fn nothing_predicted() -> ReplicaPrediction {
    let none = TokensPerSecond::new(0.0).expect("zero is a rate");
    ReplicaPrediction {
        prefill_tok_per_s: none,
        decode_tok_per_s: none,
        tpot_s: Seconds::ZERO,
        stage_s: Vec::new(),
        hop_s: Vec::new(),
    }
}
