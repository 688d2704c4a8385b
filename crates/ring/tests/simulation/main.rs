//! Whole clusters in one thread and virtual time: real members, real messages, a fake engine whose
//! tokens depend on everything before them. Every run follows from its seed.

mod engine;
mod head;
mod member;
mod network;
mod random;
mod routes;
mod world;

use std::time::Duration;

use head::Setting;
use member::Faults;
use motley_ring::{ReuseRule, Route};
use routes::replica_of;
use world::{CrashPlan, Script, World};

fn script(seed: u64) -> Script {
    Script {
        seed,
        nodes: 1 + (seed % 8) as usize,
        requests: 14,
        within: Duration::from_millis(60),
        cancels: 150,
        rests: 100,
        faults: Faults::default(),
        crash: None,
        replan_at: None,
        setting: None,
    }
}

#[test]
fn every_request_gets_the_tokens_of_its_solo_run() {
    let mut cached = 0;
    for seed in 0..2000 {
        cached += World::run(script(seed)).seen().cached_tokens;
    }
    assert!(cached > 10_000, "prompts were reused: {cached}");
}

#[test]
fn a_crash_ends_what_ran_and_nothing_else() {
    let mut dropped = 0;
    for seed in 0..1000 {
        let nodes = 2 + (seed % 7) as usize;
        let node = 1 + (seed / 7 % (nodes as u64 - 1)) as usize;
        let at = Duration::from_millis(5 + seed % 90);
        let crash = Some(CrashPlan { node, at, connections_close: seed % 2 == 0 });
        let world = World::run(Script { nodes, crash, ..script(seed) });
        dropped += world.seen().dropped;
    }
    assert!(dropped > 0, "frames of old epochs were dropped: {dropped}");
}

#[test]
fn another_plan_while_serving_fails_no_request() {
    let mut deployments = 0;
    for seed in 0..500 {
        let replan_at = Some(Duration::from_millis(20 + seed % 60));
        let faults = Faults { prepare: 20, ..Faults::default() };
        let world = World::run(Script { replan_at, faults, ..script(seed) });
        deployments += world.seen().deployments;
    }
    assert!(deployments > 800, "plans were replaced: {deployments}");
}

#[test]
fn a_step_that_fails_ends_only_requests_and_nothing_is_left() {
    for seed in 0..1000 {
        let faults = Faults { step: 10, ..Faults::default() };
        World::run(Script { faults, ..script(seed) });
    }
}

#[test]
fn all_stages_have_a_micro_batch_when_there_is_enough_to_do() {
    for (members, rounds) in [(2, 1), (3, 1), (4, 2), (8, 3)] {
        let order: Vec<u16> = (0..members).collect();
        let windows = vec![vec![1; members.into()]; rounds];
        let (route, _) = Route::of_replica(&replica_of(&order, &windows)).expect("a route");
        let setting = Setting {
            layers: route.layers(),
            slots: 16,
            context_tokens: 128,
            batch_rows_max: 64,
            rule: ReuseRule::Anywhere,
            route: Some(route),
        };
        let world = World::run(Script {
            nodes: members.into(),
            requests: 16,
            within: Duration::from_millis(1),
            cancels: 0,
            rests: 0,
            setting: Some(setting),
            ..script(1)
        });
        let seen = world.seen();
        assert_eq!(seen.micro_batches_max, u32::from(members));
        // Steps take between 50 and 2000 us, so that a long pipeline is seldom quite full.
        assert!(seen.stages_busy_max >= u32::from(members - members / 4), "{seen:?}");
    }
}

#[test]
fn silence_is_noticed_as_well_as_a_closed_connection() {
    for connections_close in [true, false] {
        let at = Duration::from_millis(30);
        let crash = Some(CrashPlan { node: 2, at, connections_close });
        let world = World::run(Script { nodes: 3, crash, ..script(5) });
        let lost = world.seen().lost.expect("the crash was noticed") - at;
        assert_eq!(lost < Duration::from_millis(250), connections_close, "{lost:?}");
    }
}
