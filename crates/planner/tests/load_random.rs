//! Load planning on drawn clusters: exactness and monotony (PLANNER 5, 9).

use motley_cluster::*;
use motley_planner::*;

/// SplitMix64, so that cases are the same everywhere.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn s(value: f64) -> Seconds {
    Seconds::new(value).expect("a time")
}

fn rate(value: f64) -> BytesPerSecond {
    BytesPerSecond::new(value).expect("a rate")
}

/// A cluster of `count` devices of the catalogue, some with other memory, on one switch.
fn cluster(draw: &mut Draw, count: usize) -> ClusterSpec {
    let catalogue = &Catalogue::builtin().devices;
    let devices = (0..count).map(|index| {
        let kind = draw.below(catalogue.len() as u64) as usize;
        let mut spec = catalogue[kind].profile(&format!("d{index}")).to_spec();
        if draw.below(2) == 0 {
            let part = draw.between(0.6, 1.0);
            for gpu in &mut spec.gpus {
                gpu.usable_bytes =
                    Bytes::from_real(gpu.usable_bytes.as_f64() * part).expect("less");
            }
            spec.hardware = None;
        }
        DeviceProfile::new(spec).expect("valid")
    });
    let devices = devices.collect();
    let bandwidth = draw.between(5e6, 300e6);
    let link = Link { bytes_per_s: rate(bandwidth), rtt_s: s(draw.between(0.0, 0.004)) };
    ClusterSpec {
        version: FormatVersion::default(),
        name: "drawn".to_owned(),
        head: None,
        links: LinkSpec { default: Some(link), ..LinkSpec::default() },
        devices,
    }
}

fn problem(draw: &mut Draw, count: usize, model: &str) -> Problem {
    let cluster = Cluster::new(cluster(draw, count)).expect("valid");
    let interval_s = s(10_f64.powf(draw.between(-1.0, 1.3)));
    let fixed = draw.below(2) == 0;
    let spec = WorkloadSpec {
        version: FormatVersion::default(),
        context_tokens: 4096,
        requests: 100,
        micro_batch_tokens: 512,
        kv_type: KvType::F16,
        flash_attention: true,
        speed_floor_tok_per_s: TokensPerSecond::new(draw.between(1.0, 8.0)).ok(),
        ttft_limit_s: None,
        tpot_limit_s: None,
        prompt_tokens: TokenLength { mean: draw.between(100.0, 2000.0), variation: 0.5 },
        generated_tokens: TokenLength { mean: draw.between(50.0, 1500.0), variation: 0.5 },
        arrivals: if fixed {
            Arrivals::Fixed { interval_s }
        } else {
            Arrivals::Poisson { interval_s }
        },
    };
    Problem {
        cluster,
        model: builtin_model(model).expect("built in"),
        workload: Workload::new(spec).expect("valid"),
        objective: Objective::Waiting,
        options: PlanOptions { allow_streaming: false, slots_max: 24, ..PlanOptions::full() },
    }
}

const MODELS: [&str; 3] = ["llama-3-8b-q4_k_m", "qwen2.5-14b-q4_k_m", "gpt-oss-20b-mxfp4"];

#[test]
fn on_200_clusters_the_genetic_search_finds_the_exact_optimum() {
    let (mut solved, mut reached, mut refused) = (0, 0, 0);
    for seed in 0..200 {
        let draw = &mut Draw(seed);
        let count = 2 + draw.below(7) as usize;
        let model = MODELS[draw.below(3) as usize];
        let case = problem(draw, count, model);
        let exact = plan(&case, Method::Auto, Budget::DEFAULT);
        let genetic = plan(&case, Method::Genetic, Budget::DEFAULT);
        match (exact, genetic) {
            (Ok(exact), Ok(genetic)) => {
                assert_eq!(exact.quality, Quality::Optimal, "seed {seed}");
                let (best, found) = (exact.objective_value, genetic.objective_value);
                assert!(best <= found * (1.0 + 1e-9), "seed {seed}: {best} {found}");
                solved += 1;
                reached += usize::from(found <= best * (1.0 + 1e-9));
            }
            (Err(PlanError::Infeasible { .. }), Err(PlanError::Infeasible { .. })) => refused += 1,
            (Ok(exact), Err(_)) => {
                // What a population never met is a miss like any other.
                assert_eq!(exact.quality, Quality::Optimal, "seed {seed}");
                solved += 1;
            }
            other => panic!("seed {seed}: {other:?}"),
        }
    }
    assert_eq!(solved + refused, 200);
    assert!(solved >= 150, "only {solved} clusters can serve");
    assert!(reached * 100 >= solved * 95, "{reached} of {solved}");
}

/// The optimum, larger being worse; nothing is worst.
fn optimum(case: &Problem) -> f64 {
    plan(case, Method::Pareto, Budget::DEFAULT).map_or(f64::INFINITY, |best| best.objective_value)
}

/// Layers of one kind, so that no heuristic on boundaries is involved.
fn even_problem(seed: u64) -> Problem {
    let draw = &mut Draw(1000 + seed);
    let count = 2 + draw.below(4) as usize;
    let mut case = problem(draw, count, "llama-3-8b-q4_k_m");
    let mut model = case.model.to_spec();
    model.layers = vec![model.layers[0].clone(); model.layers.len()];
    case.model = ModelProfile::new(model).expect("valid");
    case
}

fn with_devices(case: &Problem, change: impl Fn(usize, &mut DeviceSpec)) -> Problem {
    let mut spec = case.cluster.to_spec();
    for (index, device) in spec.devices.iter_mut().enumerate() {
        let mut changed = device.to_spec();
        change(index, &mut changed);
        *device = DeviceProfile::new(changed).expect("valid");
    }
    Problem { cluster: Cluster::new(spec).expect("valid"), ..case.clone() }
}

#[test]
fn the_order_of_devices_does_not_matter() {
    for seed in 0..20 {
        let case = even_problem(seed);
        let mut spec = case.cluster.to_spec();
        spec.devices.reverse();
        let turned = Problem { cluster: Cluster::new(spec).expect("valid"), ..case.clone() };
        let (a, b) = (optimum(&case), optimum(&turned));
        assert!(a == b || (a - b).abs() <= 1e-9 * a, "seed {seed}: {a} {b}");
    }
}

#[test]
fn more_memory_more_bandwidth_or_one_device_more_never_hurts() {
    for seed in 0..20 {
        let case = even_problem(seed);
        let before = optimum(&case);
        let better = |what: &str, other: &Problem| {
            let after = optimum(other);
            assert!(after <= before * (1.0 + 1e-9), "seed {seed}, {what}: {before} {after}");
        };
        better(
            "memory",
            &with_devices(&case, |index, device| {
                if index == 0 {
                    let more = Bytes::new(3 << 30);
                    device.memory.ram_total_bytes += more;
                    device.memory.ram_available_bytes += more;
                    if let Some(gpu) = device.gpus.first_mut() {
                        gpu.total_bytes += more;
                        gpu.usable_bytes += more;
                    }
                }
            }),
        );
        better(
            "bandwidth",
            &with_devices(&case, |_, device| {
                device.cpu.read_bytes_per_s = rate(device.cpu.read_bytes_per_s.value() * 1.5);
                for gpu in &mut device.gpus {
                    let read = gpu.processor.read_bytes_per_s.value();
                    gpu.processor.read_bytes_per_s = rate(read * 1.5);
                }
            }),
        );
        let mut spec = case.cluster.to_spec();
        spec.devices.push(Catalogue::builtin().devices[seed as usize % 12].profile("more"));
        let cluster = Cluster::new(spec).expect("valid");
        better("device", &Problem { cluster, ..case.clone() });
        let mut spec = case.cluster.to_spec();
        let link = spec.links.default.as_mut().expect("uniform");
        link.bytes_per_s = rate(link.bytes_per_s.value() * 2.0);
        let cluster = Cluster::new(spec).expect("valid");
        better("network", &Problem { cluster, ..case.clone() });
    }
}

fn times(value: BytesPerSecond, factor: f64) -> BytesPerSecond {
    rate(value.value() * factor)
}

/// Everything that takes time takes a `factor`-th of it.
fn hastened(case: &Problem, factor: f64) -> Problem {
    let shorter = |time: Seconds| s(time.value() / factor);
    let processor = |of: &mut ProcessorSpec| {
        for flops in of.flops_per_s.values_mut() {
            *flops = FlopsPerSecond::new(flops.value() * factor).expect("a rate");
        }
        of.read_bytes_per_s = times(of.read_bytes_per_s, factor);
        for time in [&mut of.kv_copy_s, &mut of.layer_overhead_s, &mut of.token_overhead_s] {
            *time = shorter(*time);
        }
        assert!(of.layer_tables.is_empty() && of.head_tables.is_empty());
    };
    let mut fast = with_devices(case, |_, device| {
        device.step_overhead_s = shorter(device.step_overhead_s);
        processor(&mut device.cpu);
        for gpu in &mut device.gpus {
            gpu.copy_bytes_per_s = times(gpu.copy_bytes_per_s, factor);
            processor(&mut gpu.processor);
        }
    });
    let mut spec = fast.cluster.to_spec();
    let link = spec.links.default.as_mut().expect("uniform");
    *link = Link { bytes_per_s: times(link.bytes_per_s, factor), rtt_s: shorter(link.rtt_s) };
    fast.cluster = Cluster::new(spec).expect("valid");
    let mut workload = case.workload.to_spec();
    let floor = workload.speed_floor_tok_per_s.expect("drawn").value() * factor;
    workload.speed_floor_tok_per_s = TokensPerSecond::new(floor).ok();
    match &mut workload.arrivals {
        Arrivals::Fixed { interval_s } | Arrivals::Poisson { interval_s } => {
            *interval_s = shorter(*interval_s);
        }
        Arrivals::Trace { .. } => panic!("none is drawn"),
    }
    fast.workload = Workload::new(workload).expect("valid");
    fast
}

#[test]
fn where_everything_is_faster_every_time_is_shorter_by_as_much() {
    let mut solved = 0;
    for seed in 0..20 {
        let draw = &mut Draw(3000 + seed);
        let count = 2 + draw.below(4) as usize;
        let mut case = problem(draw, count, MODELS[seed as usize % 3]);
        for (objective, longer) in [(Objective::Waiting, true), (Objective::Throughput, false)] {
            case.objective = objective;
            let Ok(slow) = plan(&case, Method::Pareto, Budget::DEFAULT) else { continue };
            let fast = plan(&hastened(&case, 4.0), Method::Pareto, Budget::DEFAULT);
            let fast = fast.expect("nothing but time has changed");
            let factor = if longer { 4.0 } else { 0.25 };
            let (a, b) = (slow.objective_value, fast.objective_value * factor);
            assert!((a - b).abs() <= 1e-6 * a, "seed {seed} {objective:?}: {a} {b}");
            solved += 1;
        }
    }
    assert!(solved >= 20, "{solved}");
}

#[test]
fn rates_add_up_and_hand_overs_stay_between_the_right_replicas() {
    for seed in 0..30 {
        let case = even_problem(seed);
        let Ok(outcome) = plan(&case, Method::Pareto, Budget::DEFAULT) else { continue };
        let predicted = outcome.plan.predicted();
        let sum = |of: fn(&ReplicaPrediction) -> TokensPerSecond| -> f64 {
            outcome.plan.replicas().iter().map(|one| of(&one.predicted).value()).sum()
        };
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b;
        assert!(close(sum(|one| one.prefill_tok_per_s), predicted.prefill_tok_per_s.value()));
        assert!(close(sum(|one| one.decode_tok_per_s), predicted.decode_tok_per_s.value()));
        let floor = case.workload.speed_floor_tok_per_s.expect("drawn").value();
        assert!(predicted.tpot_s.value() <= (1.0 + 1e-9) / floor, "seed {seed}");
    }
}

#[test]
fn more_memory_never_means_fewer_slots() {
    let mut case = even_problem(3);
    case.options.allow_mixed = true;
    let mut last = 0;
    for gib in [6, 7, 8, 10, 12, 16, 24] {
        let mut spec = case.cluster.to_spec();
        let mut device =
            Catalogue::builtin().device("rtx4090").expect("there").profile("one").to_spec();
        device.gpus[0].usable_bytes = Bytes::new(gib << 30).min(device.gpus[0].total_bytes);
        spec.devices = vec![DeviceProfile::new(device).expect("valid")];
        case.cluster = Cluster::new(spec).expect("valid");
        case.objective = Objective::Throughput;
        let outcome = plan(&case, Method::Pareto, Budget::DEFAULT).expect("fits");
        let slots = outcome.plan.replicas()[0].slots;
        assert!(slots >= last, "{gib} GiB: {slots} after {last}");
        last = slots;
    }
    assert!(last > 4, "{last}");
}

#[test]
fn sites_keep_hand_overs_at_home_and_state_their_bound() {
    let draw = &mut Draw(7);
    let mut spec = cluster(draw, 40);
    let names = |site: usize| {
        spec.devices
            .iter()
            .enumerate()
            .filter(move |(index, _)| index % 2 == site)
            .map(|(_, device)| device.name.clone())
            .collect::<Vec<String>>()
    };
    let fast = Link { bytes_per_s: rate(115e6), rtt_s: s(0.0004) };
    let groups: Vec<LinkGroup> =
        (0..2).map(|site| LinkGroup { members: names(site), link: fast }).collect();
    let members: Vec<Vec<String>> = groups.iter().map(|group| group.members.clone()).collect();
    spec.links.groups = groups;
    spec.links.default = Some(Link { bytes_per_s: rate(1e6), rtt_s: s(0.05) });
    let mut case = problem(draw, 2, "llama-3-8b-q4_k_m");
    case.cluster = Cluster::new(spec).expect("valid");
    case.objective = Objective::Throughput;
    let outcome = plan(&case, Method::Hierarchical, Budget::DEFAULT).expect("serves");
    let site = |device: DeviceId| members[0].contains(&case.cluster.device(device).name);
    for replica in outcome.plan.replicas() {
        let first = site(replica.members[0].device);
        assert!(replica.members.iter().all(|member| site(member.device) == first));
    }
    for way in &outcome.plan.spec().hand_overs {
        assert!(way.routes.iter().all(|route| site(route.from) == site(route.to)));
    }
    let Quality::WithinBound { gap } = outcome.quality else { panic!("{:?}", outcome.quality) };
    assert!(gap > 0.0 && gap < 0.9, "{gap}");
}
