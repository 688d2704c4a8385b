//! When a device is worth its hop (PLANNER 9, "Worth adding").

use super::super::instance::{Clock, Instance, Member, RoundShape, Ticks};
use super::super::ring::{Ring, measured};
use super::super::search::search;
use super::golden::all_of;
use crate::cost::DiskModel;

const MS: f64 = 1e-3;

pub(super) fn clock() -> Clock {
    Clock::up_to(100.0)
}

pub(super) fn ms(value: f64) -> Ticks {
    clock().ticks(value * MS)
}

pub(super) fn as_ms(ticks: Ticks) -> f64 {
    (clock().seconds(ticks) / MS * 1e6).round() / 1e6
}

/// A device with room for these CPU and GPU layers and nothing to stream with.
pub(super) fn device(cpu: (f64, i64), gpu: (f64, u32)) -> Member {
    Member {
        cpu_layer: ms(cpu.0),
        gpu_layer: ms(gpu.0),
        gpu_layers_max: gpu.1,
        copy: 0,
        step: 0,
        layer_bytes: 100,
        kv_bytes: 0,
        room_bytes: cpu.1 * 100,
        cpu_fixed_bytes: 0,
        shared: false,
        reload_all: None,
        read_per_byte: 1.0,
        chosen: None,
        quota: None,
        head: 0,
    }
}

/// The first device is the head; hops to and from the last one may differ from the others.
pub(super) fn ring(layers: u32, plain: Vec<Member>, hops: (f64, f64)) -> Instance {
    let last = plain.len() - 1;
    let hop = |a: usize, b: usize| {
        (a != b).then(|| ms(if a == last || b == last { hops.1 } else { hops.0 }))
    };
    let mut as_head = vec![None; plain.len()];
    as_head[0] = Some((plain[0], 0));
    Instance {
        clock: clock(),
        layers,
        as_head,
        hops: (0..=last).map(|a| (0..=last).map(|b| hop(a, b)).collect()).collect(),
        plain,
        disk: DiskModel::RingOverlap,
        allow_streaming: false,
        rounds_min: 1,
        rounds_max: 1,
        shape: RoundShape::Uneven,
        buffer_min: 2,
        idle_head: false,
    }
}

#[test]
fn a_device_joins_if_its_gain_exceeds_one_hop() {
    // A and B share a ring already; C would take two layers at 1 ms from A, where they take 4 ms.
    for (hop, joins) in [(5.9, true), (6.1, false)] {
        let devices = vec![
            device((4.0, 20), (4.0, 0)),
            device((0.5, 10), (0.5, 0)),
            device((1.0, 2), (1.0, 0)),
        ];
        let instance = ring(20, devices, (hop, hop));
        let best = search(&instance, &all_of(&instance)).best.expect("feasible");
        assert!(best.ring.order.contains(&1));
        assert_eq!(best.ring.order.contains(&2), joins, "hop {hop} ms");
    }
}

#[test]
fn four_thin_devices_cost_four_hops() {
    let eight = |count: usize| {
        let thin = device((1.0, 8 / count as i64), (1.0, 0));
        let instance = ring(8, vec![thin; count], (6.0, 6.0));
        as_ms(search(&instance, &all_of(&instance)).best.expect("feasible").token)
    };
    // A single device is its own successor; the hop of the specification's 14 ms is its client's.
    assert_eq!(eight(1) + 6.0, 14.0);
    assert_eq!(eight(4), 32.0);
}

#[test]
fn the_published_drop_of_a_slow_node_gains_ten_milliseconds() {
    // 13, 46, 19 and 2 layers; the last node's GPU is 30 times as fast as the fallback CPU, and its
    // hops cost 10 ms more than its two layers save.
    let (fallback, gpu) = (5.0, 5.0 / 30.0);
    let others = 68.0 / 65.0;
    let joining = 10.0 + 2.0 * (fallback - gpu);
    let hops = (1.0, (joining + 1.0) / 2.0);
    let devices = vec![
        device((fallback, 80), (fallback, 0)),
        device((fallback, 0), (others, 46)),
        device((fallback, 0), (others, 19)),
        device((fallback, 0), (gpu, 2)),
    ];
    let instance = ring(80, devices, hops);
    let all = Ring { head: 0, order: vec![0, 1, 2, 3] };
    let layers = [(13, 0), (0, 46), (0, 19), (0, 2)];
    let with = measured(&instance, &all, 1, &layers).expect("holds");
    assert_eq!(as_ms(with.token), 156.0);
    let best = search(&instance, &all_of(&instance)).best.expect("feasible");
    assert_eq!((as_ms(best.token), best.ring.order), (146.0, vec![0, 1, 2]));
}
