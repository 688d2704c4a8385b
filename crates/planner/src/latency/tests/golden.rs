//! Halda-1 and Ring-1 of PLANNER 9.

use super::super::instance::{Clock, Instance, Member, NEVER, RoundShape};
use super::super::options::{Rounds, SplitTable};
use super::super::ring::{Assignment, Ring, measured};
use super::super::search::{Scope, search};
use crate::cost::DiskModel;

const CLOCK: f64 = 1e-3;

fn clock() -> Clock {
    Clock::up_to(1e4 * CLOCK)
}

fn ms(value: f64) -> i64 {
    clock().ticks(value * CLOCK)
}

fn as_ms(ticks: i64) -> f64 {
    (clock().seconds(ticks) / CLOCK * 1e6).round() / 1e6
}

/// Ring-1 in milliseconds and MB.
fn ring_1(disk: DiskModel, shape: RoundShape) -> Instance {
    let member = |cpu: f64, gpu: (f64, u32), resident: i64, mb_per_ms: f64| Member {
        cpu_layer: ms(cpu),
        gpu_layer: ms(gpu.0),
        gpu_layers_max: gpu.1,
        copy: 0,
        step: 0,
        layer_bytes: 100,
        kv_bytes: 0,
        room_bytes: resident * 100,
        cpu_fixed_bytes: 0,
        shared: false,
        reload_all: None,
        read_per_byte: clock().per_byte(CLOCK / mb_per_ms),
        chosen: None,
        quota: None,
        head: 0,
    };
    let plain = vec![
        member(6.0, (2.0, 8), 6, 2.0),
        member(9.0, (9.0, 0), 4, 1.0),
        member(12.0, (12.0, 0), 3, 0.5),
    ];
    Instance {
        clock: clock(),
        layers: 24,
        as_head: vec![Some((plain[0], 0)), None, None],
        plain,
        hops: vec![vec![Some(ms(1.0)); 3]; 3],
        disk,
        allow_streaming: true,
        rounds_min: 1,
        rounds_max: 24,
        shape,
        buffer_min: 1,
        idle_head: false,
    }
}

pub(super) fn all_of(instance: &Instance) -> Scope {
    let heads = (0..instance.devices()).filter(|d| instance.as_head[*d].is_some()).collect();
    Scope {
        devices: (0..instance.devices()).collect(),
        heads,
        required: None,
        divisions_max: u64::MAX,
    }
}

/// The best for one number of rounds with every device taking part.
fn best_with(instance: &Instance, rounds: u32) -> f64 {
    let ring = Ring { head: 0, order: (0..instance.devices()).collect() };
    let table = |d: &usize| {
        SplitTable::new(instance, instance.member(*d, 0), Rounds::Exactly(rounds), NEVER)
    };
    let tables: Vec<_> = ring.order.iter().map(table).collect();
    let tables: Vec<_> = tables.iter().collect();
    let best = ring.divide(instance, &tables, rounds, i64::MAX / 8).expect("feasible");
    as_ms(best.token)
}

fn windows(best: &Assignment) -> (f64, u32, Vec<(u32, u32)>) {
    let per_round = |layers: u32| layers / best.rounds;
    let windows = best.splits.iter().map(|s| (per_round(s.layers()), per_round(s.gpu))).collect();
    (as_ms(best.token), best.rounds, windows)
}

#[test]
fn ring_1_per_number_of_rounds_and_as_a_whole() {
    let instance = ring_1(DiskModel::RingOverlap, RoundShape::Equal);
    let times = [1, 2, 3, 4, 6, 8].map(|rounds| best_with(&instance, rounds));
    assert_eq!(times, [1045.0, 528.0, 457.0, 452.0, 878.0, 1304.0]);
    let found = search(&instance, &all_of(&instance));
    let best = found.best.expect("feasible");
    assert_eq!(windows(&best), (452.0, 4, vec![(4, 2), (1, 0), (1, 0)]));
    assert!(found.exact);
}

#[test]
fn ring_1_under_the_additive_model_prefers_one_round_and_pays_for_it() {
    let additive = ring_1(DiskModel::Excess, RoundShape::Equal);
    let best = search(&additive, &all_of(&additive)).best.expect("feasible");
    assert_eq!(windows(&best), (295.0, 1, vec![(17, 8), (4, 0), (3, 0)]));
    let real = ring_1(DiskModel::RingOverlap, RoundShape::Equal);
    let layers: Vec<(u32, u32)> = best.splits.iter().map(|s| (s.cpu, s.gpu)).collect();
    let paid = measured(&real, &best.ring, best.rounds, &layers).expect("holds");
    assert_eq!(as_ms(paid.token), 1045.0);
}

#[test]
fn ring_1_gains_from_uneven_and_empty_windows() {
    let instance = ring_1(DiskModel::RingOverlap, RoundShape::Uneven);
    let best = search(&instance, &all_of(&instance)).best.expect("feasible");
    let layers: Vec<(u32, u32)> = best.splits.iter().map(|s| (s.cpu, s.gpu)).collect();
    // 16, 5 and 3 layers in eight rounds, five of which do nothing at C: nobody streams more than one
    // layer in a round, so that B reads two layers where three rounds make it read three (348 ms).
    assert_eq!((as_ms(best.token), best.rounds, layers), (253.0, 8, vec![(8, 8), (5, 0), (3, 0)]));
}
