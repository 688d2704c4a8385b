//! Prints how long load planning takes: medians, 99th percentiles and growth with devices.
//!
//! Where the system tells it, processor time is given next to the clock's, because a machine shared
//! with other work stretches only the latter.
//!
//! Arguments choose parts (`small`, `sites`, `genetic`, `exact`) and fewer runs (`--quick`).

#![expect(clippy::print_stdout, reason = "an example that prints its measurements")]
#![expect(clippy::disallowed_methods, reason = "measuring time is its purpose")]

use std::time::Instant;

use motley_cluster::{
    Arrivals, Bytes, BytesPerSecond, Catalogue, Cluster, ClusterSpec, DeviceProfile, FormatVersion,
    KvType, Link, LinkGroup, LinkSpec, Seconds, TokenLength, TokensPerSecond, Workload,
    WorkloadSpec, builtin_model,
};
use motley_planner::{Budget, Method, Objective, PlanOptions, Problem, plan};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!(
        "| devices | alike | model | method | runs | median ms | p99 ms | processor median | p99 \
         | quality | used |"
    );
    println!("|--:|---|---|---|--:|--:|--:|--:|--:|---|--:|");
    let given = |name: &str| std::env::args().any(|argument| argument == name);
    let runs = if given("--quick") { 3 } else { 21 };
    let all = !["small", "exact", "genetic", "sites"].into_iter().any(given);
    if all || given("small") {
        for model in ["llama-3-8b-q4_k_m", "llama-3-70b-q4_k_m", "gpt-oss-20b-mxfp4"] {
            for devices in [4, 6, 8] {
                measure((devices, 1, true), model, Method::Pareto, runs)?;
            }
            measure((8, 1, false), model, Method::Pareto, runs)?;
        }
    }
    if all || given("sites") {
        for (devices, sites) in [(64, 2), (250, 2), (500, 4), (1000, 8)] {
            measure((devices, sites, false), "llama-3-8b-q4_k_m", Method::Hierarchical, 3)?;
        }
    }
    if all || given("genetic") {
        for devices in [8, 16, 32, 64] {
            measure((devices, 1, false), "llama-3-8b-q4_k_m", Method::Genetic, 3)?;
        }
    }
    if all || given("exact") {
        for devices in [10, 12, 14] {
            measure((devices, 1, false), "llama-3-8b-q4_k_m", Method::Pareto, runs.min(3))?;
        }
        measure((14, 1, true), "llama-3-8b-q4_k_m", Method::Pareto, 3)?;
    }
    Ok(())
}

fn measure(
    (devices, sites, distinct): (usize, usize, bool),
    model: &str,
    method: Method,
    runs: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let (mut times, mut busy) = (Vec::new(), Vec::new());
    let mut last = None;
    for run in 0..runs {
        let problem = problem((devices, sites, distinct), model, run)?;
        let (start, worked) = (Instant::now(), processor_ms());
        let outcome = plan(&problem, method, Budget::DEFAULT);
        times.push(start.elapsed().as_secs_f64() * 1e3);
        busy.push(processor_ms() - worked);
        last = Some(outcome);
    }
    let at = |times: &mut Vec<f64>, part: f64| {
        times.sort_by(f64::total_cmp);
        times[((times.len() - 1) as f64 * part).round() as usize]
    };
    let (quality, used) = match last {
        Some(Ok(outcome)) => (format!("{:?}", outcome.quality), outcome.plan.devices_used().len()),
        Some(Err(error)) => (error.to_string(), 0),
        None => ("-".to_owned(), 0),
    };
    println!(
        "| {devices} | {} | {model} | {} | {runs} | {:.1} | {:.1} | {:.1} | {:.1} | {quality} | {used} |",
        if distinct { "no" } else { "yes" },
        method.name(),
        at(&mut times, 0.5),
        at(&mut times, 0.99),
        at(&mut busy, 0.5),
        at(&mut busy, 0.99),
    );
    Ok(())
}

/// Processor time of this thread so far, in steps of a few milliseconds; zero where nobody tells.
fn processor_ms() -> f64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    told.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1e6
}

/// Catalogue devices in turn; `distinct` gives each a slightly different memory, so that none are
/// twins. Sites are joined by slow links.
fn problem(
    (count, sites, distinct): (usize, usize, bool),
    model: &str,
    run: usize,
) -> Result<Problem, Box<dyn std::error::Error>> {
    let catalogue = &Catalogue::builtin().devices;
    let mut devices = Vec::new();
    for index in 0..count {
        let mut spec =
            catalogue[(index + run) % catalogue.len()].profile(&format!("d{index}")).to_spec();
        if distinct {
            for gpu in &mut spec.gpus {
                gpu.usable_bytes = Bytes::new(gpu.usable_bytes.count() - 1000 * index as u64);
            }
            spec.memory.ram_available_bytes =
                Bytes::new(spec.memory.ram_available_bytes.count() - 1000 * index as u64);
        }
        devices.push(DeviceProfile::new(spec)?);
    }
    let link = |bytes: f64, rtt_ms: f64| -> Result<Link, Box<dyn std::error::Error>> {
        Ok(Link { bytes_per_s: BytesPerSecond::new(bytes)?, rtt_s: Seconds::from_ms(rtt_ms)? })
    };
    let site = |site: usize| (0..count).filter(move |index| index % sites == site);
    let group = |index: usize| -> Result<LinkGroup, Box<dyn std::error::Error>> {
        let members = site(index).map(|device| format!("d{device}")).collect();
        Ok(LinkGroup { members, link: link(115e6, 0.4)? })
    };
    let groups =
        if sites > 1 { (0..sites).map(group).collect::<Result<_, _>>()? } else { Vec::new() };
    let default = if sites > 1 { link(2.5e6, 40.0)? } else { link(115e6, 0.4)? };
    let cluster = Cluster::new(ClusterSpec {
        version: FormatVersion::default(),
        name: "speed".to_owned(),
        head: None,
        links: LinkSpec { default: Some(default), groups, pairs: Vec::new() },
        devices,
    })?;
    let workload = Workload::new(WorkloadSpec {
        version: FormatVersion::default(),
        context_tokens: 8192,
        requests: 1000,
        micro_batch_tokens: 512,
        kv_type: KvType::F16,
        flash_attention: true,
        speed_floor_tok_per_s: Some(TokensPerSecond::new(7.0)?),
        ttft_limit_s: None,
        tpot_limit_s: None,
        prompt_tokens: TokenLength { mean: 576.0, variation: 0.5 },
        generated_tokens: TokenLength { mean: 588.0, variation: 0.5 },
        arrivals: Arrivals::Poisson { interval_s: Seconds::new(0.8 / count as f64)? },
    })?;
    Ok(Problem {
        cluster,
        model: builtin_model(model).ok_or("built in")?,
        workload,
        objective: Objective::Waiting,
        options: PlanOptions::full(),
    })
}
