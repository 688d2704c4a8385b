//! How long latency planning takes, and how that grows: medians and 99th percentiles over drawn
//! clusters. `cargo run --release -p motley-planner --example plan_speed`.

#![expect(clippy::print_stdout, reason = "the tables are the product")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::time::Instant;

use motley_cluster::*;
use motley_planner::*;

fn main() {
    println!(
        "devices  layers  links      method        median_ms    p99_ms  processor p50     p99  feasible"
    );
    for (devices, uniform, draws) in [
        (2, true, 200),
        (4, true, 200),
        (8, true, 200),
        (14, true, 40),
        (32, true, 10),
        (64, true, 4),
        (4, false, 100),
        (8, false, 100),
        (10, false, 20),
        (14, false, 3),
    ] {
        for method in [Method::Halda, Method::HaldaPaper] {
            measure(devices, uniform, (method, draws));
        }
    }
}

fn measure(devices: usize, uniform: bool, (method, draws): (Method, u64)) {
    let (mut times_ms, mut busy_ms) = (Vec::new(), Vec::new());
    let mut feasible = 0;
    let mut layers = 0;
    for seed in 0..draws {
        let problem = problem(devices, uniform, seed);
        layers = problem.model.layers_count();
        let (begin, worked) = (Instant::now(), processor_ms());
        let found = plan(&problem, method, Budget::DEFAULT);
        times_ms.push(begin.elapsed().as_secs_f64() * 1e3);
        busy_ms.push(processor_ms() - worked);
        feasible += u32::from(found.is_ok());
    }
    let at = |times: &mut Vec<f64>, part: f64| {
        times.sort_by(f64::total_cmp);
        times[((times.len() - 1) as f64 * part).round() as usize]
    };
    let links = if uniform { "alike" } else { "drawn" };
    println!(
        "{devices:7}  {layers:6}  {links:9}  {:12}  {:9.2} {:9.2}  {:13.2} {:7.2}  {feasible}/{draws}",
        method.name(),
        at(&mut times_ms, 0.5),
        at(&mut times_ms, 0.99),
        at(&mut busy_ms, 0.5),
        at(&mut busy_ms, 0.99)
    );
}

/// Processor time of this thread so far, in steps of a few milliseconds; zero where nobody tells. A
/// machine shared with other work stretches only the clock's.
fn processor_ms() -> f64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    told.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1e6
}

/// A 70B model with 80 layers on drawn catalogue devices; about half of the clusters must stream.
fn problem(devices: usize, uniform: bool, seed: u64) -> Problem {
    let mut draw = Draw(seed + 1);
    let kinds = &Catalogue::builtin().devices;
    let mut spec = builtin_cluster("prima-home").expect("built in").to_spec();
    spec.devices = (0..devices)
        .map(|at| kinds[draw.below(kinds.len() as u64) as usize].profile(&format!("d{at}")))
        .collect();
    if !uniform {
        let names: Vec<String> = spec.devices.iter().map(|device| device.name.clone()).collect();
        for from in &names {
            for to in names.iter().filter(|to| *to != from) {
                let rtt_s = Seconds::from_ms(draw.below(20_000) as f64 / 1e3).expect("a time");
                let bytes_per_s = BytesPerSecond::new(1e7 + draw.below(100_000_000) as f64);
                let link = Link { bytes_per_s: bytes_per_s.expect("a rate"), rtt_s };
                spec.links.pairs.push(LinkPair {
                    from: from.clone(),
                    to: to.clone(),
                    symmetric: false,
                    link: Some(link),
                });
            }
        }
    }
    Problem {
        cluster: Cluster::new(spec).expect("valid"),
        model: builtin_model("llama-3-70b-q4_k_s").expect("built in"),
        workload: Workload::single_user(256.0, 256.0, 2048).expect("valid"),
        objective: Objective::Latency,
        options: PlanOptions::full(),
    }
}

/// Steele's SplitMix64, so that a benchmark repeats.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}
