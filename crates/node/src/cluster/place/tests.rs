//! From profiles and links to rings, and what is refused.

use std::fmt::Write as _;
use std::sync::Arc;

use expect_test::{Expect, expect};
use motley_cluster::{
    Attention, Bytes, BytesPerSecond, Combination, DeviceProfile, DeviceSpec, DiskSpec, Flops,
    FlopsPerSecond, FormatVersion, KvType, LayerSpec, MemorySpec, ModelProfile, ModelSpec, Os,
    ProcessorSpec, Seconds, WeightType, Workload, WorkloadSpec,
};
use motley_planner::Objective;
use motley_ring::{LinkQuality, NodeId, ProfileJson, Route};
use serde_json::json;

use super::*;
use crate::cluster::room::Sizes;

const MB: u64 = 1_000_000;

/// Ten layers of 100 MB, and ends of 20 MB.
fn model() -> ModelProfile {
    let layer = LayerSpec {
        dense_bytes: Bytes::new(100 * MB),
        expert_bytes: Bytes::ZERO,
        attention: Attention::Full,
        kv_elements_per_token: 1024,
        matmul_flops: [(WeightType::Q4_0, Flops::new(2e8).unwrap())].into(),
        attention_flops_per_context_token: Flops::new(8192.0).unwrap(),
    };
    ModelProfile::new(ModelSpec {
        version: FormatVersion::default(),
        name: "made".to_owned(),
        embedding_width: 2048,
        heads: 16,
        kv_heads: 4,
        head_width: 128,
        feed_forward_width: 8192,
        vocabulary: 1000,
        experts: None,
        activation_element_bytes: 4,
        embedding_bytes: Bytes::new(20 * MB),
        output_bytes: Bytes::new(20 * MB),
        tied: true,
        output_flops: [(WeightType::Q4_0, Flops::new(4e6).unwrap())].into(),
        layers: vec![layer; 10],
    })
    .unwrap()
}

/// A device that reads so many GB of weights per second.
fn device(gb_per_s: f64) -> DeviceProfile {
    let rate = |gb: f64| BytesPerSecond::new(gb * 1e9).unwrap();
    DeviceProfile::new(DeviceSpec {
        name: "whatever".to_owned(),
        hardware: None,
        os: Os::Linux,
        unified_memory: false,
        cores: 4,
        threads: 4,
        cpu_quota: None,
        step_overhead_s: Seconds::ZERO,
        memory: MemorySpec {
            ram_total_bytes: Bytes::new(16_000 * MB),
            ram_available_bytes: Bytes::new(8_000 * MB),
            swap_available_bytes: Bytes::ZERO,
            swappable_bytes: Bytes::ZERO,
        },
        disk: DiskSpec { sequential_bytes_per_s: rate(1.0), random_bytes_per_s: rate(0.1) },
        cpu: ProcessorSpec {
            flops_per_s: [(WeightType::Q4_0, FlopsPerSecond::new(1e12).unwrap())].into(),
            read_bytes_per_s: rate(gb_per_s),
            read_efficiency: 1.0,
            expert_read_efficiency: None,
            expert_gamma: 1.0,
            combination: Combination::Roofline,
            kv_copy_s: Seconds::ZERO,
            layer_overhead_s: Seconds::ZERO,
            token_overhead_s: Seconds::ZERO,
            layer_tables: Vec::new(),
            head_tables: Vec::new(),
        },
        gpus: Vec::new(),
        power: None,
    })
    .unwrap()
}

fn node(index: u8) -> NodeId {
    NodeId([index; 32])
}

/// A question about devices given as speed and memory, on links of a millisecond.
fn question(devices: &[(f64, u64)]) -> Question {
    let candidate = |(index, (gb_per_s, budget_mb)): (usize, &(f64, u64))| Candidate {
        node: node(index as u8),
        name: ["desk", "laptop", "phone", "box"][index].to_owned(),
        budget_bytes: budget_mb * MB,
        surveyed: Arc::new(Surveyed { measured: true, device: device(*gb_per_s) }),
        factor: 1.0,
    };
    let mut links = KnownLinks::default();
    for other in 1..devices.len() as u8 {
        links.learn(node(other), node(0), Some(quality(1.0))).unwrap();
    }
    Question {
        candidates: devices.iter().enumerate().map(candidate).collect(),
        links,
        model: Arc::new(model()),
        goal: goal(Objective::Latency, 1),
        allowances: vec![allowance(1, KvType::F16, &[])],
        copies: Arc::default(),
    }
}

/// The same device, with times of a layer in the layout of its choice and in that of the file.
fn measured(gb_per_s: f64, layer_ms: f64, plain_ms: f64) -> Arc<Surveyed> {
    let mut spec = device(gb_per_s).to_spec();
    let table = |model: String, time_ms| motley_cluster::LayerTable {
        model,
        attention: motley_cluster::AttentionClass::Full,
        phase: motley_cluster::Phase::Decode,
        points: vec![motley_cluster::MeasuredPoint { batch_tokens: 1, depth_tokens: 0, time_ms }],
    };
    let plain = crate::profile::plain_model("made");
    spec.cpu.layer_tables = vec![table("made".to_owned(), layer_ms), table(plain, plain_ms)];
    Arc::new(Surveyed { measured: true, device: DeviceProfile::new(spec).unwrap() })
}

/// The same device, with times of a layer for keys and values of 16 bits and of 8.
fn measured_narrow(layer_ms: f64, narrow_ms: f64) -> Arc<Surveyed> {
    let mut spec = measured(10.0, layer_ms, layer_ms).device.to_spec();
    let tables = &mut spec.cpu.layer_tables;
    tables[1].model = crate::profile::narrow_model("made");
    tables[1].points[0].time_ms = narrow_ms;
    Arc::new(Surveyed { measured: true, device: DeviceProfile::new(spec).unwrap() })
}

fn allowance(slots: u32, kv_type: KvType, given_up: &[&str]) -> Allowance {
    Allowance {
        slots,
        kv_type,
        batch_rows: 64,
        sizes: Sizes::made(&[100 * MB; 10], 20 * MB, 50 * MB),
        given_up: given_up.iter().map(|&it| it.to_owned()).collect(),
    }
}

fn goal(objective: Objective, requests: u32) -> Goal {
    let one = Workload::single_user(64.0, 64.0, 512).unwrap().to_spec();
    let arrivals = motley_cluster::Arrivals::Fixed { interval_s: Seconds::new(0.5).unwrap() };
    let arrivals = if requests == 1 { one.arrivals.clone() } else { arrivals };
    let workload =
        Workload::new(WorkloadSpec { requests, arrivals, micro_batch_tokens: 64, ..one }).unwrap();
    Goal { objective, workload, rounds: None }
}

fn quality(round_trip_ms: f64) -> LinkQuality {
    LinkQuality {
        round_trip_ns: (round_trip_ms * 1e6) as u64,
        out_bytes_per_s: 100_000_000,
        in_bytes_per_s: 50_000_000,
    }
}

/// The ring in lines, or why there is none.
fn told(question: &Question) -> String {
    let placement = match place(question, None) {
        Ok(placement) => placement,
        Err(error) => return format!("{error}\n"),
    };
    let name = |node: NodeId| {
        let found = question.candidates.iter().find(|candidate| candidate.node == node);
        found.map_or("?", |candidate| candidate.name.as_str()).to_owned()
    };
    let mut text = format!("{:.2} ms per token\n", placement.token_s * 1e3);
    for (index, member) in placement.members.iter().enumerate() {
        let own = placement.route.windows_of(motley_ring::MemberIndex(index as u16));
        let layers: Vec<String> = own.map(|it| format!("{}..{}", it.start, it.end)).collect();
        let (compute, hop) = (member.compute_s * 1e3, member.hop_s * 1e3);
        let _ = writeln!(
            text,
            "{}: {} in {compute:.2} + {hop:.2} ms",
            name(member.node),
            if layers.is_empty() { "none".to_owned() } else { layers.join(" ") },
        );
    }
    for (node, reason) in &placement.left_out {
        let _ = writeln!(text, "without {}: {reason}", name(*node));
    }
    text
}

fn check(question: &Question, expected: Expect) {
    expected.assert_eq(&told(question));
}

#[test]
fn layers_go_where_they_are_fast_as_far_as_memory_goes() {
    check(
        &question(&[(10.0, 3000)]),
        expect![[r#"
        102.20 ms per token
        desk: 0..10 in 102.20 + 0.00 ms
    "#]],
    );
    // The laptop is twice as fast and holds six layers.
    check(
        &question(&[(10.0, 3000), (20.0, 700)]),
        expect![[r#"
        73.39 ms per token
        desk: 0..4 in 42.08 + 0.66 ms
        laptop: 4..10 in 30.06 + 0.58 ms
    "#]],
    );
    // The fast one has no room for a layer.
    check(
        &question(&[(10.0, 3000), (20.0, 100)]),
        expect![[r#"
        102.20 ms per token
        desk: 0..10 in 102.20 + 0.00 ms
        without laptop: not used; it has no room for a layer
    "#]],
    );
}

#[test]
fn a_weak_device_behind_a_slow_link_is_left_out_with_its_reason() {
    let mut question = question(&[(10.0, 3000), (20.0, 3000), (5.0, 3000)]);
    question.links.learn(node(2), node(0), Some(quality(30.0))).unwrap();
    question.links.learn(node(2), node(1), Some(quality(30.0))).unwrap();
    check(
        &question,
        expect![[r#"
        53.35 ms per token
        desk: none in 2.00 + 0.66 ms
        laptop: 0..10 in 50.10 + 0.58 ms
        without phone: not used; its work would save 0 ms per token, its hop cost 29.6 ms; the best plan with it takes 98.0 ms per token
    "#]],
    );
}

#[test]
fn times_are_those_of_the_layout_that_memory_suffices_for() {
    let mut two = question(&[(10.0, 500), (10.0, 1200)]);
    two.candidates[1].surveyed = measured(10.0, 4.0, 30.0);
    two.copies = Arc::new(Copies { layer_bytes: vec![100 * MB; 10], head_bytes: 0 });
    // All ten layers fit the laptop, but not twice.
    check(
        &two,
        expect![[r#"
        223.44 ms per token
        desk: 0..4 in 42.08 + 0.66 ms
        laptop: 4..10 in 180.12 + 0.58 ms
    "#]],
    );
    two.candidates[1].budget_bytes = 2200 * MB;
    check(
        &two,
        expect![[r#"
        43.44 ms per token
        desk: none in 2.00 + 0.66 ms
        laptop: 0..10 in 40.20 + 0.58 ms
    "#]],
    );
}

#[test]
fn times_are_those_of_the_keys_and_values_that_are_kept() {
    let mut one = question(&[(10.0, 2200)]);
    one.candidates[0].surveyed = measured_narrow(4.0, 7.0);
    let layers_ms = |question: &Question| {
        let placement = place(question, None).unwrap();
        (placement.members[0].compute_s * 1e3 / 10.0).round()
    };
    assert_eq!(layers_ms(&one), 4.0);
    one.allowances = vec![allowance(1, KvType::Q8_0, &["8 bits"])];
    assert_eq!(layers_ms(&one), 7.0, "attention to 8 bits takes longer");
    // An older device has not measured them.
    one.candidates[0].surveyed = measured(10.0, 4.0, 4.0);
    assert_eq!(layers_ms(&one), 4.0);
}

#[test]
fn memory_that_does_not_suffice_even_for_streaming_is_told() {
    let told = told(&question(&[(10.0, 100), (10.0, 90)]));
    assert!(told.contains("short by"), "{told}");
}

#[test]
fn what_does_not_fit_is_streamed() {
    let question = question(&[(10.0, 600), (10.0, 400)]);
    let placement = place(&question, None).unwrap();
    let runs = placement.members.iter().flat_map(|member| &member.residency);
    let streamed: u32 = runs
        .filter(|run| run.weights == motley_cluster::Residency::Stream)
        .map(|run| run.layers.len())
        .sum();
    assert!((1..10).contains(&streamed), "{streamed}");
    assert!(placement.waiting_s >= 0.0);
    check(
        &question,
        expect![[r#"
            300.00 ms per token
            desk: 0..6 in 102.00 + 0.66 ms
            laptop: 6..10 in 100.00 + 0.58 ms
        "#]],
    );
}

#[test]
fn a_gpu_that_was_measured_gets_layers_and_one_that_was_written_down_does_not() {
    let mut question = question(&[(10.0, 1_500)]);
    for measured in [true, false] {
        let candidate = &mut question.candidates[0];
        let mut spec = candidate.surveyed.device.to_spec();
        spec.gpus = vec![motley_cluster::GpuSpec {
            kind: motley_cluster::GpuKind::Other,
            total_bytes: Bytes::new(2_000 * MB),
            usable_bytes: Bytes::new(2_000 * MB),
            copy_bytes_per_s: spec.cpu.read_bytes_per_s,
            processor: ProcessorSpec {
                read_bytes_per_s: BytesPerSecond::new(1e11).unwrap(),
                ..spec.cpu.clone()
            },
        }];
        let device = DeviceProfile::new(spec).unwrap();
        candidate.surveyed = Arc::new(Surveyed { measured, device });
        let placement = place(&question, None).unwrap();
        let runs = placement.members[0].residency.iter();
        let in_gpu: u32 = runs
            .filter(|run| run.weights == motley_cluster::Residency::Gpu)
            .map(|run| run.layers.len())
            .sum();
        assert_eq!(in_gpu, if measured { 10 } else { 0 });
    }
}

#[test]
fn a_device_that_nobody_reaches_gets_no_layers() {
    let mut apart = question(&[(10.0, 700), (20.0, 700), (20.0, 700)]);
    apart.links.learn(node(2), node(0), None).unwrap();
    apart.links.learn(node(2), node(1), None).unwrap();
    check(
        &apart,
        expect![[r#"
        73.39 ms per token
        desk: 0..4 in 42.08 + 0.66 ms
        laptop: 4..10 in 30.06 + 0.58 ms
        without phone: not used; there is no way to it
    "#]],
    );
}

#[test]
fn corrections_move_layers() {
    let mut wrong = question(&[(10.0, 3000), (20.0, 700)]);
    wrong.candidates[1].factor = 3.0;
    check(
        &wrong,
        expect![[r#"
        102.20 ms per token
        desk: 0..10 in 102.20 + 0.00 ms
        without laptop: not used; its work would save 0 ms per token, its hop cost 1.25 ms; the best plan with it takes 108 ms per token
    "#]],
    );
}

#[test]
fn the_ring_in_force_is_measured_by_what_is_known_now() {
    let mut known = question(&[(10.0, 3000), (20.0, 700)]);
    let before = place(&known, None).unwrap();
    let nodes: Vec<NodeId> = before.members.iter().map(|member| member.node).collect();
    let ring = InForce { route: before.route.clone(), nodes, waiting_s: 0.0 };
    let same = place(&known, Some(&ring)).unwrap();
    assert!((same.token_in_force_s.unwrap() - same.token_s).abs() < 1e-9);
    known.candidates[1].factor = 4.0;
    let later = place(&known, Some(&ring)).unwrap();
    assert!(later.token_in_force_s.unwrap() > 1.3 * later.token_s);
    known.candidates.pop();
    assert_eq!(place(&known, Some(&ring)).unwrap().token_in_force_s, None, "a member is gone");
    let solo = InForce { route: Route::solo(10), nodes: vec![node(0)], waiting_s: 0.0 };
    assert!(place(&known, Some(&solo)).unwrap().token_in_force_s.is_some());
}

#[test]
fn slots_need_memory_for_their_keys() {
    let mut many = question(&[(10.0, 1200), (10.0, 1200)]);
    many.allowances[0].slots = 64;
    check(
        &many,
        expect![[r#"
        103.44 ms per token
        desk: 0..4 in 42.08 + 0.66 ms
        laptop: 4..10 in 60.12 + 0.58 ms
    "#]],
    );
}

#[test]
fn many_requests_get_one_ring_too() {
    let mut load = question(&[(10.0, 3000), (20.0, 3000), (10.0, 3000)]);
    load.goal = goal(Objective::Throughput, 50);
    load.allowances[0].slots = 4;
    let placement = place(&load, None).unwrap();
    assert_eq!(placement.route.layers(), 10);
    assert!((1..=4).contains(&placement.slots), "{}", placement.slots);
    assert!(placement.groups.is_some());
    let rather = placement.reasons.iter().find(|it| it.starts_with("Served is one ring"));
    expect!["Served is one ring; the planner would rather have 3 replicas, 128.00 tok/s together, a request waiting 0.00 s."].assert_eq(rather.map_or("", String::as_str));
}

#[test]
fn devices_of_the_same_name_are_told_apart() {
    let mut twins = question(&[(10.0, 700), (20.0, 700)]);
    twins.candidates[1].name = "desk".to_owned();
    let reasons = place(&twins, None).unwrap().reasons.join("\n");
    assert!(reasons.contains("\ndesk (2): "), "{reasons}");
    twins.candidates[1].name = "d\u{202e}esk/..".to_owned();
    assert!(place(&twins, None).is_ok());
}

#[test]
fn what_was_not_measured_leads_over_the_head() {
    let links = question(&[(1.0, 1); 3]).links;
    let Way::Assumed(link) = links.between(node(1), node(2), node(0)) else {
        panic!("two links are known");
    };
    assert_eq!((link.rtt_s.value(), link.bytes_per_s.value()), (0.002, 50e6));
    assert!(matches!(links.between(node(1), node(0), node(0)), Way::Measured(_)));
    assert_eq!(links.between(node(1), node(3), node(0)), Way::None);
    let mut forgotten = links;
    forgotten.forget(node(2));
    assert_eq!(forgotten.between(node(1), node(2), node(0)), Way::None);
}

#[test]
fn absurd_links_are_refused_and_leave_nothing_known() {
    let refused = |quality| {
        let mut links = KnownLinks::default();
        let told = links.learn(node(1), node(0), Some(quality)).unwrap_err().to_string();
        assert!(!links.knows(node(1), node(0)));
        told
    };
    let told = [
        refused(LinkQuality { out_bytes_per_s: 0, ..quality(1.0) }),
        refused(LinkQuality { in_bytes_per_s: u64::MAX, ..quality(1.0) }),
        refused(LinkQuality { round_trip_ns: u64::MAX, ..quality(1.0) }),
    ];
    expect![[r#"
        0 B/s is not allowed: it must be finite and above 0
        pairs[0].link.bytes_per_s: 18446744073709552000 is outside the allowed range 1000 to 100000000000000
        pairs[0].link.rtt_s: 18446744073.709553 is outside the allowed range 0 to 60"#]].assert_eq(&told.join("\n"));
}

#[test]
fn profiles_are_refused_by_their_field() {
    let good = Surveyed { measured: true, device: device(10.0) }.to_json().unwrap();
    assert_eq!(Surveyed::from_json(&good).unwrap().device, device(10.0));
    let changed = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut json = good.json().clone();
        change(&mut json);
        Surveyed::from_json(&ProfileJson::new(json).unwrap()).unwrap_err().to_string()
    };
    let told = [
        changed(&|json| *json = json!(7)),
        changed(&|json| json["shell"] = json!("rm")),
        changed(&|json| json["measured"] = json!("yes")),
        changed(&|json| drop(json.as_object_mut().unwrap().remove("device"))),
        changed(&|json| json["device"]["cores"] = json!(-1)),
        changed(&|json| json["device"]["cores"] = json!(0)),
        changed(&|json| json["device"]["memory"]["ram_available_bytes"] = json!(1_u64 << 62)),
        changed(&|json| json["device"]["cpu"]["flops_per_s"] = json!({})),
        changed(&|json| json["device"]["cpu"]["read_bytes_per_s"] = json!(0)),
        changed(&|json| json["device"]["cpu"]["read_efficiency"] = json!(1e9)),
        changed(&|json| json["device"]["disk"]["random_bytes_per_s"] = json!(1e12)),
        changed(&|json| json["device"]["gpus"] = json!([{ "kind": "abacus" }])),
    ];
    expect![[r#"
        its profile is wrong: it is no object
        its profile is wrong: `shell` is no field of it
        its profile is wrong: measured: must be true or false
        its profile is wrong: device: is missing
        its profile is wrong: cores: invalid value: integer `-1`, expected u32
        its profile is wrong: cores: 0 is outside the allowed range 1 to 4096
        its profile is wrong: memory.ram_available_bytes: 4611686018427388000 is above 16000000000, the value of ram_total_bytes
        its profile is wrong: cpu.flops_per_s: must not be empty
        its profile is wrong: cpu.read_bytes_per_s: 0 B/s is not allowed: it must be finite and above 0
        its profile is wrong: cpu.read_efficiency: 1000000000 is outside the allowed range 0.001 to 1
        its profile is wrong: disk.random_bytes_per_s: 1000000000000 is above 1000000000, the value of sequential_bytes_per_s
        its profile is wrong: gpus[0].kind: unknown variant `abacus`, expected one of `cuda`, `metal`, `other`"#]].assert_eq(&told.join("\n"));
}

#[test]
fn corrections_are_smoothed_and_limited() {
    let mut corrections = Corrections::default();
    let factor = |corrections: &Corrections| (corrections.factor(node(1)) * 1e3).round() / 1e3;
    assert_eq!(factor(&corrections), 1.0);
    corrections.learn(node(1), 1.0, 0.010, 0.020);
    assert_eq!(factor(&corrections), 1.3);
    // The next plan predicts with it, and is still too fast.
    let used = corrections.factor(node(1));
    corrections.learn(node(1), used, 0.013, 0.020);
    assert_eq!(factor(&corrections), 1.51);
    for _ in 0..100 {
        corrections.learn(node(1), 1.0, 0.001, 1000.0);
    }
    assert_eq!(factor(&corrections), 4.0);
    for nothing in [0.0, f64::NAN, f64::INFINITY, -1.0] {
        corrections.learn(node(1), 1.0, nothing, 0.1);
        corrections.learn(node(1), 1.0, 0.1, nothing);
    }
    assert_eq!(factor(&corrections), 4.0);
    let mut kept = corrections.to_kept();
    assert_eq!(Corrections::from_kept(&kept), corrections, "they outlive the program");
    kept.insert("no device".to_owned(), 2.0);
    kept.values_mut().for_each(|factor| *factor *= 100.0);
    assert_eq!(Corrections::from_kept(&kept), Corrections::default(), "nothing absurd is believed");
}

#[test]
fn sequences_give_way_before_weights_are_streamed() {
    let mut many = question(&[(10.0, 700), (10.0, 700)]);
    many.allowances = vec![
        allowance(64, KvType::F16, &[]),
        allowance(64, KvType::Q8_0, &["8 bits"]),
        allowance(32, KvType::Q8_0, &["8 bits", "32 of 64 slots"]),
        allowance(1, KvType::Q8_0, &["8 bits", "1 of 64 slots"]),
    ];
    let placement = place(&many, None).unwrap();
    assert_eq!((placement.slots, placement.allowance.kv_type), (32, KvType::Q8_0));
    let expected = "To make room for a context of 512 tokens: 8 bits, 32 of 64 slots.";
    assert_eq!(placement.reasons[0], expected);
    // With less memory weights are streamed anyway, and nothing is given up for nothing.
    many.candidates[1].budget_bytes = 400 * MB;
    many.allowances = vec![allowance(1, KvType::F16, &[]), allowance(1, KvType::Q8_0, &["8 bits"])];
    let placement = place(&many, None).unwrap();
    assert!(placement.streams());
    assert_eq!(placement.allowance.kv_type, KvType::F16);
}

#[test]
fn streaming_rings_take_the_micro_batches_that_answer_sooner() {
    let large = Allowance {
        batch_rows: 512,
        sizes: Sizes::made(&[100 * MB; 10], 20 * MB, 250 * MB),
        ..allowance(1, KvType::F16, &[])
    };
    let mut asked = question(&[(10.0, 700), (10.0, 400)]);
    let small = Allowance { batch_rows: 2, ..allowance(1, KvType::F16, &[]) };
    asked.allowances = vec![large, small];
    let rows = |prompt_tokens, generated_tokens| {
        let mut asked = asked.clone();
        asked.goal.workload = Workload::single_user(prompt_tokens, generated_tokens, 512).unwrap();
        let placement = place(&asked, None).unwrap();
        assert!(placement.streams());
        placement.allowance.batch_rows
    };
    // More layers stay in memory beside small micro-batches, but a prompt reads the rest more often.
    assert_eq!(rows(448.0, 4.0), 512);
    assert_eq!(rows(8.0, 448.0), 2);
    // Where small ones let everything stay, there is nothing to weigh up.
    asked.candidates[1].budget_bytes = 500 * MB;
    let placement = place(&asked, None).unwrap();
    assert!(!placement.streams());
    assert_eq!(placement.allowance.batch_rows, 2);
}
