//! Latency planning through the public interface: published behaviour and properties.

use motley_cluster::*;
use motley_planner::*;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

fn problem(cluster: Cluster, model: &str, options: PlanOptions) -> Problem {
    Problem {
        cluster,
        model: builtin_model(model).expect("built in"),
        workload: Workload::single_user(64.0, 64.0, 512).expect("valid"),
        objective: Objective::Latency,
        options,
    }
}

fn home() -> Cluster {
    builtin_cluster("prima-home").expect("built in")
}

/// The home cluster with this much free RAM on its largest machine.
fn home_with_cache(gib: f64) -> Cluster {
    let mut spec = home().to_spec();
    let mut device = spec.devices[2].to_spec();
    assert_eq!(device.name, "D3");
    device.memory.ram_available_bytes = Bytes::from_gib(gib).expect("a size");
    spec.devices[2] = DeviceProfile::new(device).expect("valid");
    Cluster::new(spec).expect("valid")
}

/// Streaming as prima.cpp does it.
fn prima() -> PlanOptions {
    PlanOptions { disk_model: DiskModel::RingOverlap, ..PlanOptions::full() }
}

fn outcome(problem: &Problem, method: Method) -> PlanOutcome {
    plan(problem, method, Budget::DEFAULT).expect("feasible")
}

fn tpot_ms(outcome: &PlanOutcome) -> f64 {
    outcome.plan.predicted().tpot_s.as_ms()
}

fn layers_by_device(plan: &Plan) -> String {
    let replica = &plan.replicas()[0];
    let member = |member: &MemberSpec| {
        let count = |kind| member.count(kind);
        let (gpu, ram) = (count(Residency::Gpu), count(Residency::Ram));
        let stream = count(Residency::Stream);
        format!("{} {gpu}+{ram}+{stream}", plan.device_name(member.device))
    };
    let members: Vec<String> = replica.members.iter().map(member).collect();
    format!("k={} {}", replica.rounds, members.join(", "))
}

/// The same with D3's GPU as fast as its own benchmarks of K types make it.
fn home_with_k_rate(bytes_per_s: f64) -> Cluster {
    let mut spec = home().to_spec();
    let mut device = spec.devices[2].to_spec();
    let gpu = &mut device.gpus[0].processor;
    gpu.read_bytes_per_s = BytesPerSecond::new(bytes_per_s).expect("a rate");
    gpu.read_efficiency = 1.0;
    spec.devices[2] = DeviceProfile::new(device).expect("valid");
    Cluster::new(spec).expect("valid")
}

/// Published row, our model, free RAM of the largest machine in GiB, and whether the row is missed.
///
/// 9.7 GiB are stated, but the machine's page cache held between 14 and 22 GiB in the studies' own runs
/// (PLANNER 3.9), and models above 34 GiB would not fit the cluster's stated memory at all.
const PUBLISHED: [(&str, &str, f64, bool); 10] = [
    ("Llama-3-8B", "llama-3-8b-q4_k_m", 9.7, true),
    ("Llama-1-30B", "llama-1-30b-q4_k_s", 9.7, false),
    ("Llama-3-45B", "llama-3-45b-q4_k_s", 9.7, false),
    ("Llama-3-60B", "llama-3-60b-q4_k_s", 9.7, false),
    ("Llama-1-65B", "llama-1-65b-q4_k_s", 16.0, false),
    ("Llama-3-70B", "llama-3-70b-q4_k_s", 16.0, false),
    ("Qwen-2.5-7B", "qwen2.5-7b-q4_k_m", 9.7, true),
    ("Qwen-2.5-14B", "qwen2.5-14b-q4_k_m", 9.7, false),
    ("Qwen-2.5-32B and QwQ-32B", "qwen2.5-32b-q4_k_m", 9.7, false),
    ("Qwen-2.5-72B", "qwen2.5-72b-q4_k_m", 22.0, false),
];

/// What D3's GPU reads per second when it generates with K types: 73.96 tok/s (catalogue's benchmark)
/// times the 4.62 GB of an 8B model in Q4_K_M without its embeddings. The profile's 403 GB/s are those
/// of Q4_0.
const K_RATE: f64 = 73.96 * 4.62e9;

#[test]
#[expect(clippy::print_stdout, reason = "the table of misses is part of the result")]
fn published_latencies_of_the_home_cluster() {
    let rows = &Catalogue::builtin().prima_latency;
    let mut unexplained = Vec::new();
    for (name, id, cache_gib, missed) in PUBLISHED {
        let published = rows.iter().find(|row| row.model == name).expect("a published row").prima;
        let planned = |cluster: Cluster| outcome(&problem(cluster, id, prima()), Method::Halda);
        let found = planned(home_with_cache(cache_gib));
        let stated = planned(home());
        let miss = tpot_ms(&found) / published - 1.0;
        println!(
            "{name:26} published {published:5.0} ms, planned {:7.1} ms ({:+5.1} %) {}; as stated {:.1} ms {}",
            tpot_ms(&found),
            miss * 100.0,
            layers_by_device(&found.plan),
            tpot_ms(&stated),
            layers_by_device(&stated.plan),
        );
        if !missed {
            if miss.abs() > 0.2 {
                unexplained.push((name, miss));
            }
            continue;
        }
        // Too fast by more than a fifth, because the rate is that of another type.
        assert!((-0.25..-0.2).contains(&miss), "{name}: {miss}");
        let found = planned(home_with_k_rate(K_RATE));
        let miss = tpot_ms(&found) / published - 1.0;
        println!("    with the rate of K types {:.1} ms ({:+.1} %)", tpot_ms(&found), miss * 100.0);
        if miss.abs() > 0.2 {
            unexplained.push((name, miss));
        }
    }
    assert!(unexplained.is_empty(), "{unexplained:?}");
}

#[test]
fn small_models_go_to_one_device_and_large_ones_to_all() {
    let small = outcome(&problem(home(), "llama-3-8b-q4_k_m", PlanOptions::full()), Method::Auto);
    assert_eq!(layers_by_device(&small.plan), "k=1 D3 32+0+0");
    assert_eq!((small.method, small.quality), (Method::Halda, Quality::Optimal));
    // Every other device is explained: what it would save is less than its hop costs.
    for name in ["D1", "D2", "D4"] {
        let device = home().find(name).expect("there");
        let left_out = small.reasons.iter().find_map(|reason| match reason {
            Reason::LeftOut { device: other, gain, hop_cost, .. } if *other == device => {
                Some((*gain, *hop_cost))
            }
            _ => None,
        });
        let (gain, hop_cost) = left_out.expect("a reason per device left out");
        assert!(gain < hop_cost, "{name}: {gain} {hop_cost}");
    }
    for options in [PlanOptions::full(), prima()] {
        let large = outcome(&problem(home(), "llama-3-70b-q4_k_s", options), Method::Auto);
        assert_eq!(large.plan.devices_used().len(), 4);
    }
}

#[test]
fn without_streaming_the_refusal_says_what_would_help() {
    let options = PlanOptions { allow_streaming: false, ..PlanOptions::full() };
    let refused =
        plan(&problem(home(), "qwen2.5-72b-q4_k_m", options), Method::Halda, Budget::DEFAULT);
    let Err(PlanError::Infeasible { shortage, remedies }) = refused else {
        panic!("72B does not fit: {refused:?}");
    };
    let Shortage::ClusterMemory { needed, available } = shortage else {
        panic!("memory is short: {shortage:?}");
    };
    assert!(needed > available);
    assert_eq!(remedies.first(), Some(&Remedy::AllowStreaming));
    // As much RAM as is told makes it fit, in the device it is told for.
    let ram = remedies.iter().find_map(|remedy| match remedy {
        Remedy::AddRam { device, bytes } => Some((*device, *bytes)),
        _ => None,
    });
    let (device, bytes) = ram.expect("RAM helps");
    let mut spec = home().to_spec();
    let mut larger = spec.devices[device.index()].to_spec();
    larger.memory.ram_total_bytes += bytes;
    larger.memory.ram_available_bytes += bytes;
    spec.devices[device.index()] = DeviceProfile::new(larger).expect("valid");
    let options = PlanOptions { allow_streaming: false, ..PlanOptions::full() };
    let cluster = Cluster::new(spec).expect("valid");
    outcome(&problem(cluster, "qwen2.5-72b-q4_k_m", options), Method::Halda);
}

#[test]
fn a_fixed_head_stays_head_even_without_layers() {
    let mut spec = home().to_spec();
    spec.head = Some("D4".to_owned());
    let cluster = Cluster::new(spec).expect("valid");
    let found = outcome(&problem(cluster, "llama-3-8b-q4_k_m", PlanOptions::full()), Method::Halda);
    let head = found.plan.replicas()[0].head;
    assert_eq!(found.plan.device_name(head), "D4");
    assert_eq!(layers_by_device(&found.plan), "k=1 D4 0+0+0, D3 32+0+0");
}

#[test]
fn a_device_behind_another_is_reached_over_it() {
    let mut spec = home().to_spec();
    let cut = |from: &str, to: &str| LinkPair {
        from: from.to_owned(),
        to: to.to_owned(),
        symmetric: true,
        link: None,
    };
    // D3 is only linked with the phone, which cannot help with layers.
    spec.links.pairs = vec![cut("D1", "D3"), cut("D2", "D3")];
    spec.head = Some("D2".to_owned());
    let cluster = Cluster::new(spec).expect("valid");
    let found =
        outcome(&problem(cluster, "qwen2.5-32b-q4_k_m", PlanOptions::full()), Method::Halda);
    let relays = found.reasons.iter().any(|reason| matches!(reason, Reason::RelayOnly { .. }));
    let members = &found.plan.replicas()[0].members;
    let phone = home().find("D4").expect("there");
    let uses_phone = members.iter().any(|member| member.device == phone);
    assert!(relays != uses_phone, "{}", layers_by_device(&found.plan));
    assert!(members.iter().any(|member| Some(member.device) == home().find("D3")));
}

#[test]
fn every_disk_model_gives_a_plan_and_more_overlap_is_faster() {
    use DiskModel::{CyclicLru, Excess, RingOverlap, Streaming};
    let times = [Streaming, RingOverlap, Excess, CyclicLru].map(|disk_model| {
        let options = PlanOptions { disk_model, ..PlanOptions::full() };
        tpot_ms(&outcome(&problem(home(), "llama-3-70b-q4_k_s", options), Method::Halda))
    });
    assert!(times.is_sorted_by(|faster, slower| faster < slower), "{times:?}");
}

#[test]
fn a_ring_has_as_many_rounds_as_asked_for() {
    let asked = |rounds_min, rounds_max| {
        let options = PlanOptions { rounds_min, rounds_max, ..PlanOptions::full() };
        outcome(&problem(home(), "llama-3-70b-q4_k_s", options), Method::Halda)
    };
    let free = asked(1, 32);
    for rounds in [1, 3, 5] {
        let fixed = asked(rounds, rounds);
        assert_eq!(fixed.plan.replicas()[0].rounds, rounds);
        // The search counts in ticks, of which the best may differ in the last.
        assert!(tpot_ms(&fixed) >= tpot_ms(&free) - 1e-6, "{rounds} rounds");
    }
    // There are 80 layers.
    assert!(asked(1000, 1000).plan.replicas()[0].rounds <= 80);
}

#[test]
fn a_device_left_out_is_judged_by_the_best_plan_with_it() {
    let workload = Workload::single_user(512.0, 256.0, 4096).expect("valid");
    let mut left_out = 0;
    for options in [PlanOptions::full(), prima()] {
        for model in ["llama-3-70b-q4_k_m", "qwen2.5-72b-q4_k_m", "qwen2.5-32b-q4_k_m"] {
            let workload = workload.clone();
            let problem = Problem { workload, ..problem(home(), model, options.clone()) };
            let found = outcome(&problem, Method::Halda);
            let best = found.plan.predicted().tpot_s.value();
            for reason in &found.reasons {
                let Reason::LeftOut { device, tpot_with: Some(with), hop_cost, .. } = reason else {
                    continue;
                };
                left_out += 1;
                // One layer there, read for every token, is the worst that a device can be given.
                let profile = problem.cluster.device(*device);
                let layer = problem.model.mean_layer_bytes();
                let read = (layer / profile.reload_rate()).value();
                let computed = (layer / profile.cpu.read_bytes_per_s).value() * 2.0;
                let most = best + hop_cost.value() + 3.0 * read + computed;
                assert!(with.value() <= most, "{model} {}: {with} of {most} s", profile.name);
            }
        }
    }
    assert!(left_out > 0);
}

/// Two devices of the same kind, the left one being head, with 2.8 GiB of memory each.
fn two_alike() -> ClusterSpec {
    let mut spec = home().to_spec();
    let mut device = spec.devices[2].to_spec();
    device.gpus.clear();
    device.hardware = None;
    device.memory.ram_available_bytes = Bytes::from_gib(2.8).expect("a size");
    let mut named = |name: &str| {
        name.clone_into(&mut device.name);
        DeviceProfile::new(device.clone()).expect("valid")
    };
    spec.devices = vec![named("left"), named("right")];
    spec.head = Some("left".to_owned());
    spec
}

#[test]
fn a_prompt_keeps_all_devices_of_a_ring_at_work() {
    let first_token_s = |disk: DiskModel| {
        let spec = two_alike();
        let cluster = Cluster::new(spec).expect("valid");
        let options =
            PlanOptions { allow_streaming: false, disk_model: disk, ..PlanOptions::full() };
        let workload = Workload::single_user(512.0, 64.0, 1024).expect("valid");
        let problem = Problem { workload, ..problem(cluster, "llama-3-8b-q4_k_m", options) };
        let plan = outcome(&problem, Method::Halda).plan;
        assert_eq!(layers_by_device(&plan), "k=1 left 0+11+0, right 0+21+0");
        plan.predicted().ttft_s.value()
    };
    let (ours, one_after_another) =
        (first_token_s(DiskModel::Streaming), first_token_s(DiskModel::RingOverlap));
    // After the first of eight chunks each takes 21 layers instead of 32.
    let part = ours / one_after_another;
    assert!((0.65..0.75).contains(&part), "{ours} of {one_after_another} s");
}

#[test]
fn only_the_last_row_of_a_prompt_goes_back_to_the_head() {
    let first_token_s = |back_bytes_per_s: f64| {
        let mut spec = two_alike();
        let way = |from: &str, to: &str, bytes_per_s| LinkPair {
            from: from.to_owned(),
            to: to.to_owned(),
            symmetric: false,
            link: Some(Link {
                bytes_per_s: BytesPerSecond::new(bytes_per_s).expect("a rate"),
                rtt_s: Seconds::new(0.001).expect("a time"),
            }),
        };
        let pairs = vec![way("left", "right", 1e8), way("right", "left", back_bytes_per_s)];
        spec.links = LinkSpec { pairs, ..LinkSpec::default() };
        let cluster = Cluster::new(spec).expect("valid");
        let options = PlanOptions { allow_streaming: false, ..PlanOptions::full() };
        let workload = Workload::single_user(512.0, 64.0, 1024).expect("valid");
        let problem = Problem { workload, ..problem(cluster, "llama-3-8b-q4_k_m", options) };
        let plan = outcome(&problem, Method::Halda).plan;
        assert_eq!(layers_by_device(&plan), "k=1 left 0+11+0, right 0+21+0");
        plan.predicted().ttft_s.value()
    };
    // All 512 rows of 16 kB would take eight seconds, one takes 16 ms.
    let (fast, slow) = (first_token_s(1e8), first_token_s(1e6));
    assert!((0.01..0.1).contains(&(slow - fast)), "{slow} and {fast} s");
}

#[test]
fn a_streamed_mixture_is_planned_by_the_experts_that_a_token_chooses() {
    let with_ram = |bytes: f64| {
        let mut spec = home().to_spec();
        let mut device = spec.devices[2].to_spec();
        device.gpus.clear();
        device.hardware = None;
        device.memory.ram_total_bytes = Bytes::from_gib(64.0).expect("a size");
        device.memory.ram_available_bytes = Bytes::from_real(bytes).expect("a size");
        spec.devices = vec![DeviceProfile::new(device).expect("valid")];
        let cluster = Cluster::new(spec).expect("valid");
        problem(cluster, "qwen3-30b-a3b-q4_k_m", PlanOptions::full())
    };
    let (short, ample) = (with_ram(8e9), with_ram(4e10));
    let (found, resident) = (outcome(&short, Method::Halda), outcome(&ample, Method::Halda));
    let member = &found.plan.replicas()[0].members[0];
    let (ram, streamed) = (member.count(Residency::Ram), member.count(Residency::Stream));
    assert!(ram > 0 && streamed > 2, "{}", layers_by_device(&found.plan));
    // Two layers' worth of the streamed layers' experts are in slots.
    let costs = CostModel::new(&short.cluster, &short.model, &short.workload);
    let chosen = costs.mean_streamed_bytes(1).times(u64::from(streamed)).as_f64();
    let expected = chosen * (1.0 - 2.0 / f64::from(streamed));
    let waited = (tpot_ms(&found) - tpot_ms(&resident)) / 1e3;
    let read = waited * short.cluster.devices()[0].reload_rate().value();
    assert!((read / expected - 1.0).abs() < 0.01, "{read} of {expected} bytes");
    let whole = short.model.mean_layer_bytes().times(u64::from(streamed)).as_f64();
    assert!(read < whole / 10.0);
}

/// A cluster of catalogue devices on one network, their memory and speed drawn.
fn clusters(devices_max: usize) -> impl Strategy<Value = Cluster> {
    let device = (0_usize..12, 0.3_f64..1.5, 0.3_f64..2.0);
    let devices = proptest::collection::vec(device, 2..=devices_max);
    (devices, 0.0_f64..0.02).prop_map(|(devices, rtt)| {
        let mut spec = home().to_spec();
        let kinds = &Catalogue::builtin().devices;
        spec.devices = Vec::new();
        for (at, (kind, memory, speed)) in devices.iter().enumerate() {
            let mut device = kinds[kind % kinds.len()].profile(&format!("d{at}")).to_spec();
            device.hardware = None;
            let scaled = |bytes: Bytes| Bytes::from_real(bytes.as_f64() * memory).expect("a size");
            let total = device.memory.ram_total_bytes;
            device.memory.ram_available_bytes =
                scaled(device.memory.ram_available_bytes).min(total);
            for gpu in &mut device.gpus {
                gpu.usable_bytes = scaled(gpu.usable_bytes).min(gpu.total_bytes);
            }
            let rate = device.cpu.read_bytes_per_s.value() * speed;
            device.cpu.read_bytes_per_s = BytesPerSecond::new(rate).expect("a rate");
            spec.devices.push(DeviceProfile::new(device).expect("valid"));
        }
        let mut link = spec.links.default.expect("home has one");
        link.rtt_s = Seconds::new(rtt).expect("a time");
        spec.links.default = Some(link);
        Cluster::new(spec).expect("valid")
    })
}

fn models() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        Just("llama-3-8b-q4_k_m"),
        Just("qwen2.5-14b-q4_k_m"),
        Just("qwen2.5-32b-q4_k_m"),
        Just("llama-3-70b-q4_k_s"),
        Just("gpt-oss-20b-mxfp4"),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(7),
        ..ProptestConfig::with_cases(48)
    })]

    #[test]
    fn a_plan_of_one_round_in_memory_equals_the_plain_pipeline(
        cluster in clusters(6),
        model in models(),
    ) {
        let options =
            PlanOptions { allow_streaming: false, rounds_max: 1, ..PlanOptions::full() };
        let problem = problem(cluster, model, options);
        let Ok(found) = plan(&problem, Method::Halda, Budget::DEFAULT) else { return Ok(()) };
        let replica = &found.plan.replicas()[0];
        prop_assert_eq!(replica.rounds, 1);
        let costs = CostModel::new(&problem.cluster, &problem.model, &problem.workload);
        let pass = Pass::decode(1, problem.workload.mean_depth_tokens());
        let mut pipeline = 0.0;
        for (at, member) in replica.members.iter().enumerate() {
            let (device, next) = (member.device, &replica.members[(at + 1) % replica.members.len()]);
            let (gpu, ram) = (member.count(Residency::Gpu), member.count(Residency::Ram));
            prop_assert_eq!(member.count(Residency::Stream), 0);
            for (count, site) in [(gpu, Site::Gpu), (ram, Site::Cpu)] {
                if count > 0 {
                    let layer = costs.mean_layer_time(device, site, pass).expect("it computes");
                    pipeline += layer.value() * f64::from(count);
                }
            }
            if gpu > 0 && ram > 0 {
                pipeline += costs.copy_time(device, 2, pass).value();
            }
            if gpu + ram > 0 {
                pipeline += problem.cluster.device(device).step_overhead_s.value();
            }
            pipeline += costs.hop_time(device, next.device, pass).expect("linked").value();
        }
        let head = replica.head;
        let on_gpu = costs.head_time(head, Site::Gpu, pass);
        let output = on_gpu.or_else(|| costs.head_time(head, Site::Cpu, pass)).expect("a CPU");
        pipeline += output.value() + costs.embedding_time(head, pass).value();
        let planned = found.plan.predicted().tpot_s.value();
        prop_assert!((planned / pipeline - 1.0).abs() < 1e-6, "{planned} {pipeline}");
    }

    #[test]
    fn one_shot_is_never_worse_than_the_iteration_or_one_device(
        cluster in clusters(6),
        model in models(),
    ) {
        let problem = problem(cluster, model, PlanOptions::full());
        let Ok(found) = plan(&problem, Method::Halda, Budget::DEFAULT) else { return Ok(()) };
        let exact = plan(&problem, Method::HaldaExact, Budget::DEFAULT).expect("feasible");
        prop_assert_eq!(&exact.plan, &found.plan);
        let time = found.plan.predicted().tpot_s;
        if let Ok(paper) = plan(&problem, Method::HaldaPaper, Budget::DEFAULT) {
            prop_assert!(time <= paper.plan.predicted().tpot_s);
        }
        for reason in &found.reasons {
            if let Reason::AgainstSingleDevice { single_tpot: Some(single), plan_tpot, .. } = reason {
                prop_assert!(plan_tpot <= single);
                prop_assert_eq!(*plan_tpot, time);
            }
        }
        let json = to_json(&found.plan).expect("plans can be written");
        let read: Plan = from_json(&json).expect("and read");
        prop_assert_eq!(&read, &found.plan);
    }
}

#[test]
fn room_is_kept_for_the_sequences_that_are_served_at_once() {
    let taken = |kept_sequences| {
        let options = PlanOptions { kept_sequences, ..PlanOptions::full() };
        let problem = problem(home(), "llama-3-8b-q4_k_m", options);
        let found = outcome(&problem, Method::Halda);
        let claims = found.plan.spec().memory.iter();
        let bytes: u64 = claims.map(|it| it.gpu_bytes.count() + it.ram_bytes.count()).sum();
        let costs = CostModel::new(&problem.cluster, &problem.model, &problem.workload);
        let all = LayerRange::with_len(0, problem.model.layers_count());
        (bytes, costs.kv_bytes(all, problem.workload.context_tokens).count())
    };
    let ((one, kv), (three, _)) = (taken(1), taken(3));
    assert_eq!(three - one, 2 * kv, "it still fits the one device that was best");
}
