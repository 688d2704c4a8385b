//! Prints, as Markdown, the predicted waiting of three planners over E2LLM's 36 configurations.

#![expect(clippy::print_stdout, reason = "an example that prints a table")]

use motley_cluster::{
    Arrivals, FormatVersion, KvType, Seconds, TokenLength, TokensPerSecond, Workload, WorkloadSpec,
    builtin_cluster, builtin_model,
};
use motley_planner::{
    Budget, Method, Objective, PlanError, PlanOptions, PlanOutcome, Problem, WaitingModel, plan,
};

/// Users read at seven tokens per second, the study's floor.
const FLOOR: f64 = 7.0;

const SETTINGS: [(&str, &str, f64, f64); 4] = [
    ("gpt-oss-20b-mxfp4", "IELTS", 2291.0, 1385.0),
    ("gpt-oss-20b-mxfp4", "LZByteDance", 576.0, 588.0),
    ("qwen3-30b-a3b-q4_k_m", "IELTS", 2291.0, 1957.0),
    ("qwen3-30b-a3b-q4_k_m", "LZByteDance", 576.0, 746.0),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let paper = PlanOptions { waiting: WaitingModel::Concurrency, ..PlanOptions::e2llm_paper() };
    println!(
        "| devices | model | data | interval | ours | finishing time | splitwise | ratios | full |"
    );
    println!("|--:|---|---|--:|--:|--:|--:|---|--:|");
    for cluster in ["e2llm-4", "e2llm-6", "e2llm-8"] {
        for setting in SETTINGS {
            for interval_ms in [100.0, 1000.0, 3000.0] {
                let mut problem = Problem {
                    cluster: builtin_cluster(cluster)?,
                    model: builtin_model(setting.0).ok_or("built in")?,
                    workload: workload(setting, interval_ms)?,
                    objective: Objective::Waiting,
                    options: paper.clone(),
                };
                let run = |problem: &Problem, method| plan(problem, method, Budget::DEFAULT);
                let ours = run(&problem, Method::Pareto);
                let finishing = run(&problem, Method::FinishingTime);
                let splitwise = run(&problem, Method::AdaptedSplitwise);
                problem.options = PlanOptions::full();
                let full = run(&problem, Method::Pareto);
                println!(
                    "| {} | {} | {} | {} ms | {} | {} | {} | {} / {} | {} |",
                    problem.cluster.devices().len(),
                    setting.0,
                    setting.1,
                    interval_ms,
                    shown(&ours),
                    shown(&finishing),
                    shown(&splitwise),
                    ratio(&finishing, &ours),
                    ratio(&splitwise, &ours),
                    shown(&full),
                );
                if std::env::args().any(|argument| argument == "--plans") {
                    for outcome in [&ours, &finishing, &splitwise, &full].into_iter().flatten() {
                        describe(outcome);
                    }
                }
            }
        }
    }
    Ok(())
}

fn workload(
    (_, _, prompt, generated): (&str, &str, f64, f64),
    interval_ms: f64,
) -> Result<Workload, Box<dyn std::error::Error>> {
    Ok(Workload::new(WorkloadSpec {
        version: FormatVersion::default(),
        context_tokens: 8192,
        requests: 100,
        micro_batch_tokens: 512,
        kv_type: KvType::F16,
        flash_attention: true,
        speed_floor_tok_per_s: Some(TokensPerSecond::new(FLOOR)?),
        ttft_limit_s: None,
        tpot_limit_s: None,
        prompt_tokens: TokenLength::fixed(prompt),
        generated_tokens: TokenLength::fixed(generated),
        arrivals: Arrivals::Fixed { interval_s: Seconds::from_ms(interval_ms)? },
    })?)
}

fn shown(outcome: &Result<PlanOutcome, PlanError>) -> String {
    match outcome {
        Ok(outcome) => format!("{:.1} s", outcome.plan.predicted().max_wait_s.value()),
        Err(error) => error.to_string(),
    }
}

fn ratio(other: &Result<PlanOutcome, PlanError>, ours: &Result<PlanOutcome, PlanError>) -> String {
    match (other, ours) {
        (Ok(other), Ok(ours)) => {
            let wait = |outcome: &PlanOutcome| outcome.plan.predicted().max_wait_s.value();
            format!("{:.2}", wait(other) / wait(ours))
        }
        _ => "-".to_owned(),
    }
}

fn describe(outcome: &PlanOutcome) {
    for replica in outcome.plan.replicas() {
        let members: Vec<String> = replica
            .members
            .iter()
            .map(|member| {
                let gpu = member.count(motley_cluster::Residency::Gpu);
                let name = outcome.plan.device_name(member.device);
                format!("{name} {}-{}", gpu, member.layers_count() - gpu)
            })
            .collect();
        println!(
            "    {} {:?} x{} g{} {} | {:.0} {:.0} tok/s tpot {:.0} ms",
            outcome.method.name(),
            replica.role,
            replica.slots,
            replica.groups,
            members.join(", "),
            replica.predicted.prefill_tok_per_s.value(),
            replica.predicted.decode_tok_per_s.value(),
            replica.predicted.tpot_s.as_ms(),
        );
    }
}
