//! Routes: every layer once, from the head back to the head, over existing members only.

use expect_test::{Expect, expect};
use motley_cluster::{
    DeviceId, LayerIndex, LayerRange, MemberSpec, ReplicaPrediction, ReplicaSpec, Role, Seconds,
    TokensPerSecond, Window,
};
use motley_ring::{MemberIndex, Route};
use proptest::prelude::*;

/// A replica: per member its device, its layers in each round and the relays behind it.
fn replica(head: u16, members: &[(u16, &[u32], &[u16])]) -> ReplicaSpec {
    let rounds = members[0].1.len();
    let mut windows = vec![Vec::new(); members.len()];
    let mut next = 0;
    for round in 0..rounds {
        for (member, windows) in members.iter().zip(&mut windows) {
            let range = LayerRange::with_len(next, member.1[round]);
            next = range.end();
            windows.push(range);
        }
    }
    let members = members.iter().zip(windows).map(|((device, _, relays), windows)| MemberSpec {
        device: DeviceId::new(*device),
        windows,
        residency: Vec::new(),
        relays_to_next: relays.iter().map(|relay| DeviceId::new(*relay)).collect(),
    });
    let none = TokensPerSecond::new(0.0).expect("zero is a rate");
    ReplicaSpec {
        role: Role::Mixed,
        slots: 1,
        groups: 1,
        rounds: rounds as u32,
        head: DeviceId::new(head),
        members: members.collect(),
        predicted: ReplicaPrediction {
            prefill_tok_per_s: none,
            decode_tok_per_s: none,
            tpot_s: Seconds::ZERO,
            stage_s: Vec::new(),
            hop_s: Vec::new(),
        },
    }
}

/// Stops as `device[layers)`; `e` embeds, `p` projects, `~` forwards.
fn show(route: &Route, devices: &[DeviceId]) -> String {
    let stop = |stop: &motley_ring::Stop| {
        let device = devices[stop.member.index()];
        let marks = [(stop.embeds, "e"), (stop.projects, "p"), (stop.forwards(), "~")];
        let marks = marks.iter().filter(|(is, _)| *is).map(|(_, mark)| *mark);
        let layers =
            if stop.layers.is_empty() { String::new() } else { format!("{:?}", stop.layers) };
        format!("{device}{}[{layers}]", marks.collect::<String>())
    };
    route.stops().iter().map(stop).collect::<Vec<_>>().join(" ")
}

fn check(head: u16, members: &[(u16, &[u32], &[u16])], expect: Expect) {
    let (route, devices) = Route::of_replica(&replica(head, members)).expect("a route");
    expect.assert_eq(&show(&route, &devices));
}

#[test]
fn one_device_is_one_stop() {
    check(3, &[(3, &[8], &[])], expect!["3ep[0..8]"]);
    assert_eq!(show(&Route::solo(8), &[DeviceId::new(3)]), "3ep[0..8]");
}

#[test]
fn the_head_merges_with_its_neighbouring_windows() {
    check(0, &[(0, &[3], &[]), (1, &[5], &[])], expect!["0e[0..3] 1[3..8] 0p[]"]);
    check(1, &[(0, &[3], &[]), (1, &[5], &[])], expect!["1e[] 0[0..3] 1p[3..8]"]);
    check(
        2,
        &[(0, &[3], &[]), (2, &[0], &[]), (1, &[5], &[])],
        expect!["2e[] 0[0..3] 1[3..8] 2p[]"],
    );
}

#[test]
fn rounds_may_be_uneven_and_windows_empty() {
    check(
        0,
        &[(0, &[2, 1], &[]), (1, &[2, 0], &[]), (2, &[2, 1], &[])],
        expect!["0e[0..2] 1[2..4] 2[4..6] 0[6..7] 2[7..8] 0p[]"],
    );
    // A single device in the last round: its windows of two rounds follow each other.
    check(0, &[(0, &[2, 0], &[]), (1, &[2, 3], &[])], expect!["0e[0..2] 1[2..7] 0p[]"]);
}

#[test]
fn relays_forward_and_are_members() {
    check(
        0,
        &[(0, &[2], &[7]), (1, &[2], &[7, 8])],
        expect!["0e[0..2] 7~[] 1[2..4] 7~[] 8~[] 0p[]"],
    );
    // Past a member without layers in this round, device by device.
    check(
        0,
        &[(0, &[2, 1], &[9]), (1, &[1, 0], &[]), (2, &[1, 1], &[])],
        expect!["0e[0..2] 9~[] 1[2..3] 2[3..4] 0[4..5] 9~[] 1~[] 2[5..6] 0p[]"],
    );
}

#[test]
fn edges_and_stages_are_counted_once() {
    let members: &[(u16, &[u32], &[u16])] = &[(0, &[1, 1], &[]), (1, &[1, 1], &[5])];
    let (route, _) = Route::of_replica(&replica(0, members)).expect("a route");
    let pair = |from, to| (MemberIndex(from), MemberIndex(to));
    assert_eq!(route.edges(), [pair(0, 1), pair(1, 2), pair(2, 0)]);
    assert_eq!(route.stages(), 2);
    assert_eq!(route.windows_of(MemberIndex(1)).collect::<Vec<_>>(), [1..2, 3..4]);
    assert_eq!(route.head(), MemberIndex(0));
}

#[test]
fn what_is_no_route_is_not_read() {
    let refused = |json: &str| serde_json::from_str::<Route>(json).expect_err(json).to_string();
    let cases = [
        r#"{"members":0,"stops":[]}"#,
        r#"{"members":1,"stops":[]}"#,
        r#"{"members":1,"stops":[{"member":0,"first_layer":0,"end_layer":0}]}"#,
        r#"{"members":1,"stops":[{"member":0,"first_layer":1,"end_layer":2}]}"#,
        r#"{"members":1,"stops":[{"member":1,"first_layer":0,"end_layer":2}]}"#,
        r#"{"members":1,"stops":[{"member":0,"first_layer":0,"end_layer":1},{"member":0,"first_layer":1,"end_layer":2}]}"#,
        r#"{"members":2,"stops":[{"member":0,"first_layer":0,"end_layer":1},{"member":1,"first_layer":1,"end_layer":2}]}"#,
        r#"{"members":2,"stops":[{"member":0,"first_layer":0,"end_layer":1}]}"#,
        r#"{"members":1,"stops":[{"member":0,"first_layer":0,"end_layer":4000000000}]}"#,
    ];
    let told: Vec<String> = cases.iter().map(|case| refused(case)).collect();
    expect![[r#"
        0 members, from 1 to 64 are possible
        0 stops, from 1 to 2048 are possible
        0 layers, from 1 to 1024 are possible
        stop 0 begins at layer 1, expected 0
        stop 0 is at member 1, which does not exist or is the one before
        stop 1 is at member 0, which does not exist or is the one before
        a route ends where it begins, at the head
        member 1 has no stop
        4000000000 layers, from 1 to 1024 are possible"#]]
    .assert_eq(&told.join("\n"));
}

prop_compose! {
    fn any_replica()(
        members in 1usize..9, rounds in 1usize..5
    )(
        windows in prop::collection::vec(prop::collection::vec(0u32..4, rounds), members),
        relays in prop_oneof![
            Just(vec![Vec::new(); members]),
            prop::collection::vec(prop::collection::vec(0u16..14, 0..3), members),
        ],
        head in 0..members,
    ) -> ReplicaSpec {
        let all: Vec<(u16, &[u32], &[u16])> = windows.iter().zip(&relays).enumerate()
            .map(|(device, (windows, relays))| (device as u16, &windows[..], &relays[..])).collect();
        replica(head as u16, &all)
    }
}

proptest! {
    #[test]
    fn every_layer_is_computed_once_where_it_was_planned(replica in any_replica()) {
        let idle = |member: &&MemberSpec| member.layers_count() == 0 && member.device != replica.head;
        let layers: u32 = replica.members.iter().map(MemberSpec::layers_count).sum();
        prop_assume!(layers > 0 && replica.members.iter().filter(idle).count() == 0);
        let (route, devices) = Route::of_replica(&replica).expect("a route");
        let stops = route.stops();
        let mut next = 0;
        for stop in stops {
            prop_assert_eq!(stop.layers.start, next);
            next = stop.layers.end;
            for layer in stop.layers.clone() {
                let planned = replica.device_of(LayerIndex::new(layer));
                prop_assert_eq!(planned, Some(devices[stop.member.index()]));
            }
        }
        prop_assert_eq!(next, layers);
        prop_assert_eq!(devices[route.head().index()], replica.head);
        prop_assert!(stops[0].embeds && stops[stops.len() - 1].projects);
        prop_assert_eq!(stops.iter().filter(|stop| stop.embeds || stop.projects).count(),
            if stops.len() == 1 { 1 } else { 2 });
        for pair in stops.windows(2) {
            prop_assert_ne!(pair[0].member, pair[1].member);
            prop_assert!(route.edges().contains(&(pair[0].member, pair[1].member)));
        }
        if replica.members.iter().all(|member| member.relays_to_next.is_empty()) {
            let window = |window: Window| {
                (MemberIndex(window.member as u16), window.layers.start()..window.layers.end())
            };
            let windows: Vec<_> = replica.windows().map(window).collect();
            let same = Route::of_windows(route.members(), route.head(), &windows);
            prop_assert_eq!(same.as_ref(), Ok(&route));
        }
        let json = serde_json::to_string(&route).expect("json");
        prop_assert_eq!(serde_json::from_str::<Route>(&json).expect("a route"), route);
    }
}
