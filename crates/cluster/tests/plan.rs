//! What a plan must obey, and that it survives its JSON form.

use motley_cluster::*;
use proptest::prelude::*;

fn seconds(value: f64) -> Seconds {
    Seconds::new(value).expect("a time")
}

fn rate(value: f64) -> TokensPerSecond {
    TokensPerSecond::new(value).expect("a rate")
}

/// One mixed replica over `devices` devices with windows of at most `window` layers, the last round
/// as uneven as the numbers make it.
fn ring(layers: u32, devices: u16, window: u32, time: f64) -> PlanSpec {
    let rounds = layers.div_ceil(window * u32::from(devices));
    let mut members: Vec<MemberSpec> = (0..devices)
        .map(|index| MemberSpec {
            device: DeviceId::new(index),
            windows: Vec::new(),
            residency: Vec::new(),
            relays_to_next: Vec::new(),
        })
        .collect();
    let mut next = 0;
    for _ in 0..rounds {
        for member in &mut members {
            let layers = LayerRange::with_len(next, window.min(layers - next));
            next = layers.end();
            member.windows.push(layers);
            member.residency.push(ResidencyRun {
                layers,
                weights: if next % 2 == 0 { Residency::Ram } else { Residency::Stream },
                kv: KvPlace::Ram,
            });
        }
    }
    members.retain(|member| member.layers_count() > 0);
    let claim = |member: &MemberSpec| MemoryClaim {
        device: member.device,
        gpu_bytes: Bytes::ZERO,
        gpu_budget_bytes: Bytes::ZERO,
        ram_bytes: Bytes::new(u64::from(member.layers_count())),
        ram_budget_bytes: Bytes::new(u64::from(layers)),
    };
    let memory = members.iter().map(claim).collect();
    let predicted = ReplicaPrediction {
        prefill_tok_per_s: rate(1.0 / time),
        decode_tok_per_s: rate(time),
        tpot_s: seconds(time),
        stage_s: vec![seconds(time / 3.0); members.len()],
        hop_s: vec![seconds(time / 7.0); members.len()],
    };
    PlanSpec {
        version: FormatVersion::default(),
        model: "some-model".to_owned(),
        layers,
        devices: (0..devices).map(|index| format!("d{index}")).collect(),
        context_tokens: 4096,
        kv_type: KvType::Q8_0,
        replicas: vec![ReplicaSpec {
            role: Role::Mixed,
            slots: 4,
            groups: 2,
            rounds,
            head: members[0].device,
            members,
            predicted,
        }],
        hand_overs: Vec::new(),
        memory,
        predicted: PlanPrediction {
            ttft_s: seconds(time),
            tpot_s: seconds(time),
            wait_s: Seconds::ZERO,
            max_wait_s: seconds(time * 1.1),
            prefill_tok_per_s: rate(time),
            decode_tok_per_s: rate(time),
            throughput_tok_per_s: rate(time),
            energy_j_per_token: None,
        },
    }
}

proptest! {
    #[test]
    fn plans_survive_json_and_toml_and_cover_every_layer(
        layers in 1u32..120,
        devices in 1u16..9,
        window in 1u32..20,
        time in 1e-6f64..1e4,
    ) {
        let plan = Plan::new(ring(layers, devices, window, time)).expect("valid");
        let json = to_json(&plan).expect("writable");
        prop_assert_eq!(&from_json::<Plan>(&json).expect("readable"), &plan);
        let toml = to_toml(&plan).expect("writable");
        prop_assert_eq!(&from_toml::<Plan>(&toml).expect("readable"), &plan);
        let covered: Vec<usize> = plan.replicas()[0]
            .windows()
            .flat_map(|window| window.layers.iter().map(|layer| layer.index()))
            .collect();
        prop_assert_eq!(covered, (0..layers as usize).collect::<Vec<_>>());
    }
}

#[track_caller]
fn check_fault(change: impl FnOnce(&mut PlanSpec), expected: &str) {
    let mut spec = ring(8, 2, 2, 1.0);
    change(&mut spec);
    assert_eq!(Plan::new(spec).expect_err("refused").to_string(), expected);
}

#[test]
fn broken_plans_are_refused_by_rule() {
    check_fault(
        |plan| plan.replicas[0].members[1].windows[1] = LayerRange::with_len(6, 1),
        "replica 0: layer 7 should come next, found layer 8",
    );
    check_fault(
        |plan| plan.replicas[0].members.swap(0, 1),
        "replica 0: layer 0 should come next, found layer 2",
    );
    check_fault(
        |plan| plan.replicas[0].members[1].device = DeviceId::new(0),
        "device 0 is used more than once",
    );
    check_fault(
        |plan| plan.replicas[0].members[1].device = DeviceId::new(9),
        "device 9 does not exist",
    );
    check_fault(
        |plan| {
            plan.replicas[0].members[0].residency.pop();
        },
        "replica 0: residency of device 0 does not match its windows at layer 4",
    );
    check_fault(
        |plan| plan.memory[1].ram_bytes = Bytes::new(9),
        "device 1: RAM claim of 9 B exceeds the budget of 8 B",
    );
    check_fault(
        |plan| plan.replicas[0].members[0].residency[0].weights = Residency::Gpu,
        "device 0 keeps layers on a GPU but has no GPU memory",
    );
    check_fault(|plan| plan.replicas[0].role = Role::Decode, "no replica can prefill");
    check_fault(
        |plan| plan.replicas[0].groups = 5,
        "replicas[0].groups: 5 is outside the allowed range 1 to 4",
    );
}

#[track_caller]
fn check_cluster(from: &str, to: &str, expected: &str) {
    let json = to_json(&builtin_cluster("e2llm-4").expect("built in")).expect("writable");
    let changed = json.replacen(from, to, 1);
    assert_ne!(json, changed, "the test must change something");
    assert_eq!(from_json::<Cluster>(&changed).expect_err("refused").to_string(), expected);
}

#[test]
fn absurd_profiles_are_refused_by_field() {
    check_cluster(
        "\"version\": 1",
        "\"version\": 2",
        "cannot read cluster from JSON: field `version`: version 2 is unknown, this build reads version 1 at line 2 column 14",
    );
    check_cluster(
        "\"usable_bytes\": 10800000000",
        "\"usable_bytes\": 90000000000",
        "cannot read cluster from JSON: field `devices[0]`: gpus[0].usable_bytes: 90000000000 is above 12884901888, the value of total_bytes at line 62 column 4",
    );
}

/// Figures that cannot be, one per kind of check; each refusal names the field.
#[test]
fn figures_that_cannot_be_are_refused_by_field() {
    let json = to_json(&builtin_cluster("e2llm-4").expect("built in")).expect("writable");
    let cases: [(&str, serde_json::Value, &str); 9] = [
        ("/devices/1/memory/ram_available_bytes", 1_u64.wrapping_shl(60).into(), "ram_available"),
        ("/devices/1/disk/sequential_bytes_per_s", (-1.0).into(), "sequential_bytes_per_s"),
        ("/devices/1/disk/random_bytes_per_s", 1e11.into(), "random_bytes_per_s"),
        ("/devices/1/cpu/read_bytes_per_s", 1e20.into(), "read_bytes_per_s"),
        ("/devices/1/cpu/flops_per_s", serde_json::json!({}), "flops_per_s"),
        ("/devices/1/cores", 0.into(), "cores"),
        ("/devices/1/threads", "many".into(), "threads"),
        ("/devices/1/name", "Dev.1".into(), "devices: `Dev.1` occurs"),
        ("/devices", serde_json::json!([]), "devices"),
    ];
    for (place, value, field) in cases {
        let mut document: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        *document.pointer_mut(place).expect(place) = value;
        let error = from_json::<Cluster>(&document.to_string()).expect_err(place).to_string();
        assert!(error.contains(field), "{place}: {error}");
    }
}
