//! Timed workloads, alternating between engines.

use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use motley_engine::ExpertFigures;

use super::subject::{Ours, Subject, Theirs};

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Workload {
    /// One sequence, token after token.
    Decode,
    /// One prompt in one batch.
    Prefill,
    /// Eight sequences, token after token.
    Batch8,
    /// Thirty-two sequences, token after token.
    Batch32,
}

impl Workload {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::Prefill => "prefill",
            Self::Batch8 => "batch8",
            Self::Batch32 => "batch32",
        }
    }

    pub(super) fn sequences(self) -> usize {
        match self {
            Self::Decode | Self::Prefill => 1,
            Self::Batch8 => 8,
            Self::Batch32 => 32,
        }
    }
}

/// Sizes of the workloads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) prompt_tokens: usize,
    pub(super) generated_tokens: usize,
    pub(super) repetitions: usize,
}

/// Tokens per second of each run.
#[derive(Clone, Debug)]
pub(super) struct Rates(Vec<f64>);

impl Rates {
    /// Minimum, median and maximum.
    pub(super) fn spread(&self) -> [f64; 3] {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        [sorted[0], median(&sorted), sorted[sorted.len() - 1]]
    }
}

/// One workload's result.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) workload: Workload,
    pub(super) ours: Rates,
    pub(super) theirs: Option<Rates>,
}

impl Measured {
    /// Median of the ratios of neighbouring runs, ours to theirs: a disturbance that lasts longer
    /// than a pair of runs does not move it.
    pub(super) fn ratio(&self) -> Option<f64> {
        let theirs = self.theirs.as_ref()?;
        let mut ratios: Vec<f64> =
            self.ours.0.iter().zip(&theirs.0).map(|(ours, theirs)| ours / theirs).collect();
        ratios.sort_by(f64::total_cmp);
        Some(median(&ratios))
    }
}

/// Workers of a pool go on looking for work for a while before they sleep, some 0.3 s at the level
/// in use here: those of the engine that has just run would slow the other.
const SETTLE: Duration = Duration::from_millis(600);

/// Times a workload with both engines in turn; each first runs once untimed.
pub(super) fn alternate(
    workload: Workload,
    plan: Plan,
    ours: &mut Ours,
    mut theirs: Option<&mut Theirs<'_>>,
) -> anyhow::Result<Measured> {
    let (mut our_rates, mut their_rates) = (Vec::new(), Vec::new());
    let settle = if theirs.is_some() { SETTLE } else { Duration::ZERO };
    let time = |subject: &mut dyn Subject| {
        thread::sleep(settle);
        time(workload, plan, subject)
    };
    time(ours)?;
    if let Some(theirs) = theirs.as_deref_mut() {
        time(theirs)?;
    }
    for repetition in 0..plan.repetitions {
        // Who goes first changes, so that neither always runs on the warmer processor.
        if repetition % 2 == 0 {
            our_rates.push(time(ours)?);
            ours.after_run()?;
        }
        if let Some(theirs) = theirs.as_deref_mut() {
            their_rates.push(time(theirs)?);
        }
        if repetition % 2 == 1 {
            our_rates.push(time(ours)?);
            ours.after_run()?;
        }
    }
    let theirs = (!their_rates.is_empty()).then_some(Rates(their_rates));
    Ok(Measured { workload, ours: Rates(our_rates), theirs })
}

/// What bounds a token of one sequence where weights are streamed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    /// Bytes of weights that are not in memory; of experts those that the tokens needed.
    pub(super) streamed_bytes_per_token: u64,
    /// Bytes that were read per token while tokens were timed.
    pub(super) read_bytes_per_token: f64,
    /// What became of the experts that the tokens chose, where experts come and go.
    pub(super) experts: Option<ExpertUse>,
    /// What the disk gives where nothing else is done, median over the runs.
    pub(super) disk_bytes_per_s: f64,
    /// A token without reading.
    pub(super) compute_ms: f64,
}

/// Experts that some tokens chose, per token.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpertUse {
    /// Of the experts chosen, how many were in memory.
    pub(super) hit_ratio: f64,
    /// Bytes of the experts chosen.
    pub(super) chosen_bytes: f64,
    /// Of these, bytes that were not in memory.
    pub(super) missed_bytes: f64,
    /// Bytes read for them, whole blocks.
    pub(super) read_bytes: f64,
    /// Experts that memory holds at a time.
    pub(super) slots: usize,
    /// Experts of all layers.
    pub(super) experts: usize,
}

impl ExpertUse {
    fn between(before: &ExpertFigures, after: &ExpertFigures, tokens: usize) -> Self {
        let per_token = |after: u64, before: u64| (after - before) as f64 / tokens as f64;
        let chosen = per_token(after.chosen, before.chosen);
        let chosen_bytes = per_token(after.chosen_bytes, before.chosen_bytes);
        Self {
            hit_ratio: per_token(after.hits, before.hits) / chosen,
            chosen_bytes,
            missed_bytes: chosen_bytes - per_token(after.hit_bytes, before.hit_bytes),
            read_bytes: per_token(after.bytes_read, before.bytes_read),
            slots: after.slots,
            experts: after.experts,
        }
    }
}

impl Bound {
    /// A token takes at least this long: the slower of computing and reading.
    pub(super) fn bound_ms(&self) -> f64 {
        self.compute_ms.max(self.streamed_bytes_per_token as f64 / self.disk_bytes_per_s * 1e3)
    }
}

/// Runs of computing alone.
const COMPUTE_RUNS: usize = 3;

/// Measures what bounds decoding with streamed weights, after it was timed; nothing where none are.
pub(super) fn bound(plan: Plan, ours: &mut Ours) -> anyhow::Result<Option<Bound>> {
    let Some(figures) = ours.engine.stream_figures().filter(|of| of.streamed_bytes > 0) else {
        return Ok(None);
    };
    ours.clear();
    ours.step(&[(0, 0)], true)?;
    let before = ours.engine.stream_figures().unwrap_or(figures);
    for position in 1..=plan.generated_tokens {
        ours.step(&[(0, position)], true)?;
    }
    let after = ours.engine.stream_figures().unwrap_or(figures);
    let experts = before.experts.zip(after.experts);
    let experts =
        experts.map(|(before, after)| ExpertUse::between(&before, &after, plan.generated_tokens));
    // Experts are counted as chosen, everything else as it is not in memory.
    let streamed = match (&experts, figures.experts) {
        (Some(of), Some(_)) => figures.dense_streamed_bytes as f64 + of.missed_bytes,
        _ => figures.streamed_bytes as f64,
    };
    ours.without_reading = true;
    let computed = (0..COMPUTE_RUNS)
        .map(|_| time(Workload::Decode, plan, ours))
        .collect::<anyhow::Result<Vec<f64>>>();
    ours.without_reading = false;
    ours.engine.resume_reading();
    let [_, tokens_per_s, _] = Rates(computed?).spread();
    let [_, disk_bytes_per_s, _] = Rates(ours.disk_rates.clone()).spread();
    Ok(Some(Bound {
        streamed_bytes_per_token: streamed as u64,
        read_bytes_per_token: (after.bytes_read - before.bytes_read) as f64
            / plan.generated_tokens as f64,
        experts,
        disk_bytes_per_s,
        compute_ms: 1e3 / tokens_per_s,
    }))
}

/// Tokens per second of one run.
fn time(workload: Workload, plan: Plan, subject: &mut dyn Subject) -> anyhow::Result<f64> {
    subject.clear();
    let sequences = workload.sequences();
    if workload == Workload::Prefill {
        let rows: Vec<(usize, usize)> =
            (0..plan.prompt_tokens).map(|position| (0, position)).collect();
        let start = Instant::now();
        subject.step(&rows, false)?;
        return Ok(plan.prompt_tokens as f64 / start.elapsed().as_secs_f64());
    }
    // The first token of each sequence fills the caches and is not timed.
    let rows_at = |position: usize| -> Vec<(usize, usize)> {
        (0..sequences).map(|sequence| (sequence, position)).collect()
    };
    subject.step(&rows_at(0), true)?;
    let start = Instant::now();
    for position in 1..=plan.generated_tokens {
        subject.step(&rows_at(position), true)?;
    }
    Ok((sequences * plan.generated_tokens) as f64 / start.elapsed().as_secs_f64())
}

fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    }
}
