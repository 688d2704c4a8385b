//! Halda-1 of PLANNER 9: the published iteration and the one-shot search.

use super::super::instance::{Clock, Instance, Member, NEVER, RoundShape};
use super::super::options::{Rounds, SplitTable};
use super::super::paper::{Iterated, Kind, PaperDevice, PaperProblem, Set, iterate};
use super::super::ring::{Ring, measured};
use super::super::search::search;
use super::golden::all_of;
use crate::cost::DiskModel;

/// Halda-1 with milliseconds as seconds and MB as bytes.
fn published() -> PaperProblem {
    let device = |kind, alpha, beta, sizes: [f64; 4], disk| PaperDevice {
        alpha,
        beta,
        xi: 1.0,
        kind,
        memory: sizes[0],
        gpu_free: sizes[1],
        buffers: (sizes[2], sizes[3]),
        disk,
    };
    PaperProblem {
        layers: 8,
        layer_bytes: (100.0, 110.0),
        head_bytes: (0.1, 100.0),
        head_time: 5.0,
        devices: vec![
            device(Kind::Metal, 6.0, Some(-4.0), [420.0, 400.0, 40.0, 40.0], 1e9),
            device(Kind::Linux, 8.0, Some(-6.0), [300.0, 400.0, 40.0, 60.0], 2e9),
            device(Kind::Linux, 20.0, None, [250.0, 0.0, 30.0, 0.0], 1e9),
        ],
    }
}

/// The threshold for slow disks is in B/s, so bytes are scaled up and times left alone.
fn scaled() -> PaperProblem {
    let mut problem = published();
    let up = |value: &mut f64| *value *= 1e9;
    up(&mut problem.layer_bytes.0);
    up(&mut problem.layer_bytes.1);
    up(&mut problem.head_bytes.0);
    up(&mut problem.head_bytes.1);
    for device in &mut problem.devices {
        up(&mut device.memory);
        up(&mut device.gpu_free);
        up(&mut device.buffers.0);
        up(&mut device.buffers.1);
    }
    problem
}

#[test]
fn the_published_iteration_takes_its_three_steps() {
    let Iterated { windows, trace, repairs } = iterate(&scaled());
    let rounded: Vec<(Vec<Set>, f64)> = trace
        .into_iter()
        .map(|(sets, objective)| (sets, (objective * 1e6).round() / 1e6))
        .collect();
    assert_eq!(
        rounded,
        vec![
            (vec![Set::M2, Set::M3, Set::M4], 495.1),
            (vec![Set::M4, Set::M3, Set::M4], 95.1),
            (vec![Set::M4, Set::M4, Set::M4], 54.1),
        ]
    );
    assert_eq!((windows.rounds, windows.layers, windows.gpu), (1, vec![2, 5, 1], vec![2, 3, 0]));
    // Four rounds of two layers cannot serve three devices.
    assert!(repairs.contains(&crate::IterationRepair::InfeasibleRoundsSkipped { rounds: 4 }));
}

fn one_shot() -> Instance {
    let clock = Clock::up_to(1e4);
    let ms = |value: f64| clock.ticks(value);
    let member = |times: (f64, f64), gpu_layers_max, room_kb: i64, disk: f64| Member {
        cpu_layer: ms(times.0),
        gpu_layer: ms(times.0 + times.1),
        gpu_layers_max,
        copy: 0,
        step: 0,
        layer_bytes: 100_000,
        kv_bytes: 10_000,
        room_bytes: room_kb,
        cpu_fixed_bytes: 0,
        shared: false,
        reload_all: None,
        read_per_byte: clock.per_byte(1e-3 / disk),
        chosen: None,
        quota: None,
        head: 0,
    };
    // Sizes in kB: RAM less buffers, and on the head less the output and one embedding row.
    let mut head = member((6.0, -4.0), 3, 420_000 - 80_000 - 100_100, 1.0);
    head.shared = true;
    head.reload_all = Some(100_000);
    let plain = vec![
        head,
        member((8.0, -6.0), 3, 300_000 - 40_000, 2.0),
        member((20.0, 0.0), 0, 250_000 - 30_000, 1.0),
    ];
    Instance {
        clock,
        layers: 8,
        as_head: vec![Some((head, ms(5.1))), None, None],
        plain,
        hops: vec![vec![Some(ms(1.0)); 3]; 3],
        disk: DiskModel::Excess,
        allow_streaming: true,
        rounds_min: 1,
        rounds_max: 8,
        shape: RoundShape::Equal,
        buffer_min: 0,
        idle_head: false,
    }
}

#[test]
fn one_shot_finds_the_optimum_at_once() {
    let instance = one_shot();
    let scope = all_of(&instance);
    let all = Ring { head: 0, order: vec![0, 1, 2] };
    let found = search(&instance, &scope).best.expect("feasible");
    let splits: Vec<(u32, u32)> = found.splits.iter().map(|s| (s.layers(), s.gpu)).collect();
    // Free to leave devices out, the search does; with all three it is the published optimum.
    assert!(instance.clock.seconds(found.token) <= 54.1 + 1e-9, "{splits:?}");
    let mut times = Vec::new();
    for rounds in [1_u32, 2, 4, 8] {
        let window = 8 / rounds;
        for first in 1..=window {
            for second in 1..=window.saturating_sub(first + 1) {
                let third = window - first - second;
                for (g1, g2) in (0..=first).flat_map(|a| (0..=second).map(move |b| (a, b))) {
                    let split = |w: u32, g: u32| ((w - g) * rounds, g * rounds);
                    let layers = [split(first, g1), split(second, g2), split(third, 0)];
                    if let Some(found) = measured(&instance, &all, rounds, &layers) {
                        let time = instance.clock.seconds(found.token);
                        times.push((time, rounds, [first, second, third], [g1, g2]));
                    }
                }
            }
        }
    }
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    let rounded = |time: f64| (time * 1e6).round() / 1e6;
    assert_eq!((times[0].1, times[0].2, times[0].3), (1, [2, 5, 1], [2, 3]));
    assert_eq!((rounded(times[0].0), rounded(times[1].0)), (54.1, 58.1));
}

#[test]
fn the_same_division_is_found_with_all_devices_required() {
    let instance = one_shot();
    let all = Ring { head: 0, order: vec![0, 1, 2] };
    let divided = [1, 2, 4, 8].into_iter().filter_map(|rounds| {
        let table = |device: &usize| {
            SplitTable::new(&instance, instance.member(*device, 0), Rounds::Exactly(rounds), NEVER)
        };
        let tables: Vec<SplitTable> = all.order.iter().map(table).collect();
        all.divide(&instance, &tables.iter().collect::<Vec<_>>(), rounds, i64::MAX / 8)
    });
    let best = divided.min_by_key(|found| found.token).expect("feasible");
    let splits: Vec<(u32, u32)> = best.splits.iter().map(|s| (s.layers(), s.gpu)).collect();
    assert_eq!((best.rounds, splits), (1, vec![(2, 2), (5, 3), (1, 0)]));
    assert!((instance.clock.seconds(best.token) - 54.1).abs() < 1e-9);
}
