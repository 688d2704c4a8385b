//! The search against exhaustive enumeration, and the properties an optimum must have.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::super::allocate::whole;
use super::super::instance::{Chosen, Clock, Instance, Member, Quota, RoundShape, TIE, Ticks};
use super::super::order::order;
use super::super::ring::{Ring, measured};
use super::super::search::{Scope, best_alone, best_with, search};
use super::golden::all_of;
use crate::cost::DiskModel;

/// Everything drawn of a device: times in ticks, sizes in tenths of a layer.
type Drawn = (i64, i64, u32, (i64, i64, i64), (bool, bool), i64);

fn drawn() -> impl Strategy<Value = Drawn> {
    let sizes = (0_i64..60, 0_i64..4, 0_i64..12);
    let kinds = (proptest::bool::weighted(0.2), proptest::bool::weighted(0.2));
    (1_i64..40, 1_i64..40, 0_u32..5, sizes, kinds, 1_i64..60)
}

fn member(drawn: &Drawn, disk: DiskModel) -> Member {
    let (cpu, gpu, gpu_layers_max, (room, copy, fixed), (shared, metal), read) = *drawn;
    Member {
        cpu_layer: cpu * TIE,
        gpu_layer: gpu * TIE,
        gpu_layers_max,
        copy: copy * TIE,
        step: 0,
        layer_bytes: 10,
        kv_bytes: 1,
        room_bytes: room,
        cpu_fixed_bytes: fixed,
        shared,
        reload_all: (metal && !overlaps(disk)).then_some(3),
        read_per_byte: read as f64 / 10.0,
        chosen: (metal && disk == DiskModel::Streaming)
            .then_some(Chosen { all_bytes: 8, token_bytes: 3 }),
        quota: (read % 3 == 0 && disk == DiskModel::Streaming)
            .then_some(Quota { share: cpu as f64 / 50.0, gap: (gpu % 20 + 1) * TIE }),
        head: 0,
    }
}

fn overlaps(disk: DiskModel) -> bool {
    matches!(disk, DiskModel::RingOverlap | DiskModel::Streaming)
}

fn disks() -> impl Strategy<Value = DiskModel> {
    prop_oneof![
        3 => Just(DiskModel::RingOverlap),
        3 => Just(DiskModel::Streaming),
        1 => Just(DiskModel::Excess),
        1 => Just(DiskModel::CyclicLru),
    ]
}

prop_compose! {
    fn instances(devices_max: usize)(
        layers in 3_u32..8,
        drawn in proptest::collection::vec(drawn(), 1..=devices_max),
        disk in disks(),
        hops in proptest::collection::vec(0_i64..30, devices_max * devices_max),
        alike in any::<bool>(),
        idle_head in any::<bool>(),
        heads in 1_usize..8,
        buffer_min in 1_u32..3,
    ) -> Instance {
        let count = drawn.len();
        let plain: Vec<Member> = drawn.iter().map(|d| member(d, disk)).collect();
        let as_head = |(at, member): (usize, &Member)| {
            let room_bytes = member.room_bytes - 4;
            let can = heads & (1 << at) != 0 || at == 0;
            let member = Member { room_bytes, head: (at as i64 + 3) * TIE, ..*member };
            can.then_some((member, member.head_time()))
        };
        let hop = |from: usize, to: usize| {
            let at = if alike { 0 } else { from * count + to };
            (from != to).then_some(hops[at] * TIE)
        };
        Instance {
            clock: Clock::up_to(1.0),
            layers,
            as_head: plain.iter().enumerate().map(as_head).collect(),
            hops: (0..count).map(|a| (0..count).map(|b| hop(a, b)).collect()).collect(),
            plain,
            disk,
            allow_streaming: true,
            rounds_min: 1,
            rounds_max: 4,
            shape: RoundShape::Uneven,
            buffer_min,
            idle_head,
        }
    }
}

/// The least token over every head, subset, number of rounds and division.
fn exhaustive(instance: &Instance, scope: &Scope) -> Option<Ticks> {
    let mut least: Option<Ticks> = None;
    for head in &scope.heads {
        for set in 1_u32..1 << instance.devices() {
            let members: Vec<usize> =
                (0..instance.devices()).filter(|d| set & 1 << d != 0).collect();
            let idle = !members.contains(head);
            if idle && !instance.idle_head {
                continue;
            }
            let others: Vec<usize> = members.iter().copied().filter(|d| d != head).collect();
            let Some(mut tour) = order(instance, *head, &others) else { continue };
            if idle {
                tour.remove(0);
            }
            let ring = Ring { head: *head, order: tour };
            for rounds in instance.rounds() {
                let mut layers = Vec::new();
                every_division(instance, &ring, rounds, &mut layers, &mut least);
            }
        }
    }
    least
}

/// As [`exhaustive`] over what a ring becomes with one more device: its head, any of its devices.
fn exhaustive_with(instance: &Instance, ring: &Ring, device: usize) -> Option<Ticks> {
    let mut least: Option<Ticks> = None;
    for set in 0_u32..1 << ring.order.len() {
        let kept = ring.order.iter().enumerate().filter(|(at, _)| set & 1 << at != 0);
        let mut members: Vec<usize> = kept.map(|(_, device)| *device).collect();
        members.push(device);
        let idle = !members.contains(&ring.head);
        if idle && !instance.idle_head {
            continue;
        }
        let others: Vec<usize> = members.into_iter().filter(|d| *d != ring.head).collect();
        let mut tour = order(instance, ring.head, &others).expect("all are linked");
        if idle {
            tour.remove(0);
        }
        let ring = Ring { head: ring.head, order: tour };
        for rounds in instance.rounds() {
            every_division(instance, &ring, rounds, &mut Vec::new(), &mut least);
        }
    }
    least
}

fn every_division(
    instance: &Instance,
    ring: &Ring,
    rounds: u32,
    layers: &mut Vec<(u32, u32)>,
    least: &mut Option<Ticks>,
) {
    let held: u32 = layers.iter().map(|(cpu, gpu)| cpu + gpu).sum();
    if layers.len() == ring.order.len() {
        if held == instance.layers
            && let Some(found) = measured(instance, ring, rounds, layers)
        {
            let time = whole(found.token);
            *least = Some(least.map_or(time, |least| least.min(time)));
        }
        return;
    }
    for count in 1..=instance.layers - held {
        for gpu in 0..=count {
            layers.push((count - gpu, gpu));
            every_division(instance, ring, rounds, layers, least);
            layers.pop();
        }
    }
}

fn least(instance: &Instance) -> Option<Ticks> {
    search(instance, &all_of(instance)).best.map(|best| whole(best.token))
}

/// The same draws in every run.
fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(7),
        ..ProptestConfig::with_cases(cases)
    }
}

/// What is infeasible is slower than anything.
fn or_never(time: Option<Ticks>) -> Ticks {
    time.unwrap_or(Ticks::MAX)
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn equals_exhaustive_search(instance in instances(3)) {
        let scope = all_of(&instance);
        prop_assert_eq!(least(&instance), exhaustive(&instance, &scope));
        // And is repeated exactly.
        prop_assert_eq!(search(&instance, &scope).best, search(&instance, &scope).best);
    }

    #[test]
    fn required_devices_are_used_at_the_least_cost(instance in instances(3), wanted in 0_usize..3) {
        let wanted = wanted % instance.devices();
        let scope = Scope { required: Some(wanted), ..all_of(&instance) };
        let best = search(&instance, &scope).best;
        if let Some(best) = &best {
            prop_assert!(best.ring.order.contains(&wanted));
            prop_assert!(Some(whole(best.token)) >= least(&instance));
        }
    }

    #[test]
    fn what_a_device_left_out_would_cost_is_the_least_it_could(instance in instances(3)) {
        let Some(best) = search(&instance, &all_of(&instance)).best else { return Ok(()) };
        // Where hops differ the order of the tour is a heuristic's.
        let alike = instance.hops.iter().flatten().flatten().all(|hop| {
            Some(hop) == instance.hops.iter().flatten().flatten().next()
        });
        for device in (0..instance.devices()).filter(|d| alike && !best.ring.order.contains(d)) {
            if device == best.ring.head {
                continue;
            }
            let with = best_with(&instance, &best, device).map(|with| whole(with.token));
            prop_assert_eq!(with, exhaustive_with(&instance, &best.ring, device));
        }
    }

    #[test]
    fn the_order_of_devices_does_not_matter(instance in instances(5), turn in 1_usize..5) {
        let count = instance.devices();
        let from = |at: usize| (at + turn) % count;
        let turned = Instance {
            plain: (0..count).map(|at| instance.plain[from(at)]).collect(),
            as_head: (0..count).map(|at| instance.as_head[from(at)]).collect(),
            hops: (0..count)
                .map(|a| (0..count).map(|b| instance.hops[from(a)][from(b)]).collect())
                .collect(),
            ..instance.clone()
        };
        // Tours of equal length may differ in who waits for the longer hop, so hops are alike here.
        if instance.hops.iter().flatten().flatten().collect::<std::collections::BTreeSet<_>>().len() < 2 {
            prop_assert_eq!(least(&instance), least(&turned));
        }
    }

    #[test]
    fn more_of_anything_is_never_worse(instance in instances(5), at in 0_usize..5, what in 0..4) {
        let mut better = instance.clone();
        let at = at % instance.devices();
        let improve = |member: &mut Member| match what {
            0 => member.room_bytes += 13,
            1 => member.gpu_layers_max += 1,
            2 => member.cpu_layer -= member.cpu_layer / TIE / 2 * TIE,
            _ => member.read_per_byte /= 2.0,
        };
        improve(&mut better.plain[at]);
        if let Some((member, _)) = &mut better.as_head[at] {
            improve(member);
        }
        prop_assert!(or_never(least(&better)) <= or_never(least(&instance)));
    }

    #[test]
    fn one_more_optional_device_is_never_worse(instance in instances(5)) {
        let scope = all_of(&instance);
        let last = instance.devices() - 1;
        let fewer = Scope {
            devices: scope.devices.iter().copied().filter(|d| *d != last).collect(),
            heads: scope.heads.iter().copied().filter(|d| *d != last).collect(),
            ..scope.clone()
        };
        let without = search(&instance, &fewer).best.map(|best| whole(best.token));
        prop_assert!(or_never(least(&instance)) <= or_never(without));
        let alone = best_alone(&instance, &scope).map(|best| whole(best.token));
        prop_assert!(or_never(least(&instance)) <= or_never(alone));
    }

    #[test]
    fn scaled_times_scale_the_answer(instance in instances(4)) {
        let mut slower = instance.clone();
        let slow = |member: &mut Member| {
            member.cpu_layer *= 4;
            member.gpu_layer *= 4;
            member.copy *= 4;
            member.read_per_byte *= 4.0;
            member.head *= 4;
            member.quota.iter_mut().for_each(|quota| quota.gap *= 4);
        };
        slower.plain.iter_mut().for_each(slow);
        for (member, constant) in slower.as_head.iter_mut().flatten() {
            slow(member);
            *constant *= 4;
        }
        slower.hops.iter_mut().flatten().flatten().for_each(|hop| *hop *= 4);
        // Read times are rounded to ticks.
        let (once, four) = (least(&instance), least(&slower));
        prop_assert_eq!(once.is_some(), four.is_some());
        if let (Some(once), Some(four)) = (once, four) {
            prop_assert!((four - 4 * once).abs() <= 16, "{} {}", once, four);
        }
    }
}

#[cfg(feature = "highs")]
proptest! {
    #![proptest_config(config(150))]

    #[test]
    fn highs_agrees(instance in instances(4), rounds in 1_u32..4) {
        // How much a stream buffers is no linear program.
        if instance.disk == DiskModel::Streaming {
            return Ok(());
        }
        use super::super::instance::NEVER;
        use super::super::milp;
        use super::super::options::{Rounds, SplitTable};
        let rounds = if instance.disk == DiskModel::RingOverlap { rounds } else { 1 };
        let others: Vec<usize> = (1..instance.devices()).collect();
        let ring = Ring { head: 0, order: order(&instance, 0, &others).expect("all are linked") };
        let tables: Vec<SplitTable> = ring
            .order
            .iter()
            .map(|device| SplitTable::new(&instance, instance.member(*device, 0), Rounds::Exactly(rounds), NEVER))
            .collect();
        let tables: Vec<&SplitTable> = tables.iter().collect();
        let own = ring.divide(&instance, &tables, rounds, Ticks::MAX / 8);
        let other = milp::divide(&instance, &ring, rounds, 100_000);
        // The program adds parts of ticks where the direct cost rounds every read.
        let (own, other) = (own.map(|a| whole(a.token)), other.map(|a| whole(a.token)));
        prop_assert_eq!(own.is_some(), other.is_some());
        let apart = or_never(other) - or_never(own);
        prop_assert!((0..=4).contains(&apart), "{:?} {:?}", own, other);
    }
}
