//! What is asked of the cluster: lengths, arrivals, context and promises.

use std::ops::Deref;

use serde::{Deserialize, Serialize};

use crate::document::{Document, FormatVersion};
use crate::field::{FieldError, FieldProblem, check_at_most, check_range};
use crate::limits::{BATCH_TOKENS_MAX, CONTEXT_TOKENS_MAX, REQUESTS_MAX, STEP_SECONDS_MAX};
use crate::model::KvType;
use crate::units::{Seconds, TokensPerSecond};

/// A token count per request, by its first two moments.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenLength {
    /// Mean.
    pub mean: f64,
    /// Coefficient of variation: standard deviation over mean; 0 is a fixed length.
    #[serde(default)]
    pub variation: f64,
}

impl TokenLength {
    /// The same count for every request.
    #[must_use]
    pub const fn fixed(mean: f64) -> Self {
        Self { mean, variation: 0.0 }
    }

    /// Mean and variation of a sample; `None` for an empty one.
    #[must_use]
    pub fn of_sample(sample: &[u32]) -> Option<Self> {
        if sample.is_empty() {
            return None;
        }
        let count = sample.len() as f64;
        let mean = sample.iter().map(|n| f64::from(*n)).sum::<f64>() / count;
        let variance = sample.iter().map(|n| (f64::from(*n) - mean).powi(2)).sum::<f64>() / count;
        let variation = if mean > 0.0 { variance.sqrt() / mean } else { 0.0 };
        Some(Self { mean, variation })
    }
}

/// When requests come.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Arrivals {
    /// At equal intervals.
    Fixed {
        /// Interval.
        interval_s: Seconds,
    },
    /// At random with this mean interval.
    Poisson {
        /// Mean interval.
        interval_s: Seconds,
    },
    /// At these times, rising.
    Trace {
        /// Arrival times.
        times_s: Vec<Seconds>,
    },
}

impl Arrivals {
    /// Mean time between arrivals (T_a).
    #[must_use]
    pub fn mean_interval(&self) -> Seconds {
        match self {
            Self::Fixed { interval_s } | Self::Poisson { interval_s } => *interval_s,
            Self::Trace { times_s } => match (times_s.first(), times_s.last()) {
                (Some(first), Some(last)) if times_s.len() > 1 => {
                    last.saturating_sub(*first).times(1.0 / (times_s.len() - 1) as f64)
                }
                _ => Seconds::ZERO,
            },
        }
    }

    /// Coefficient of variation of the intervals (Ca): 0 fixed, 1 Poisson, measured for a trace.
    #[must_use]
    pub fn variation(&self) -> f64 {
        match self {
            Self::Fixed { .. } => 0.0,
            Self::Poisson { .. } => 1.0,
            Self::Trace { times_s } => {
                let mean = self.mean_interval().value();
                if mean <= 0.0 {
                    return 0.0;
                }
                let gaps = times_s.windows(2).map(|pair| pair[1].value() - pair[0].value());
                let variance =
                    gaps.map(|gap| (gap - mean).powi(2)).sum::<f64>() / (times_s.len() - 1) as f64;
                variance.sqrt() / mean
            }
        }
    }
}

/// A workload as a file states it; [`Workload`] is the checked form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadSpec {
    /// Version of this form.
    pub version: FormatVersion,
    /// Context each slot must be able to hold.
    pub context_tokens: u32,
    /// Requests in one run; finite-run waits depend on it.
    #[serde(default = "hundred")]
    pub requests: u32,
    /// Largest number of tokens evaluated in one prefill pass.
    #[serde(default = "default_micro_batch")]
    pub micro_batch_tokens: u32,
    /// How keys and values are stored.
    #[serde(default)]
    pub kv_type: KvType,
    /// Flash attention: no score matrix in memory.
    #[serde(default = "yes")]
    pub flash_attention: bool,
    /// Lowest acceptable generation speed of one request (`Min_TPS`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_floor_tok_per_s: Option<TokensPerSecond>,
    /// Longest acceptable time to first token, for goodput.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_limit_s: Option<Seconds>,
    /// Longest acceptable time per output token, for goodput.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpot_limit_s: Option<Seconds>,
    /// Prompt tokens per request (NP).
    pub prompt_tokens: TokenLength,
    /// Generated tokens per request (ND).
    pub generated_tokens: TokenLength,
    /// Arrivals.
    pub arrivals: Arrivals,
}

/// A workload that can be asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "WorkloadSpec", into = "WorkloadSpec")]
pub struct Workload(WorkloadSpec);

impl Workload {
    /// Checks a specification.
    ///
    /// # Errors
    /// Names the field that is out of range or contradicts another.
    pub fn new(spec: WorkloadSpec) -> Result<Self, FieldError> {
        let context = f64::from(spec.context_tokens);
        check_range("context_tokens", context, (1.0, f64::from(CONTEXT_TOKENS_MAX)))?;
        check_range("requests", f64::from(spec.requests), (1.0, f64::from(REQUESTS_MAX)))?;
        let batch = f64::from(spec.micro_batch_tokens);
        check_range("micro_batch_tokens", batch, (1.0, f64::from(BATCH_TOKENS_MAX)))?;
        for (field, length) in
            [("prompt_tokens", spec.prompt_tokens), ("generated_tokens", spec.generated_tokens)]
        {
            let range = (1.0, f64::from(CONTEXT_TOKENS_MAX));
            check_range(&format!("{field}.mean"), length.mean, range)?;
            check_range(&format!("{field}.variation"), length.variation, (0.0, 100.0))?;
        }
        let total = spec.prompt_tokens.mean + spec.generated_tokens.mean;
        check_at_most(
            "prompt_tokens.mean + generated_tokens.mean",
            total,
            "context_tokens",
            context,
        )?;
        if let Some(floor) = spec.speed_floor_tok_per_s {
            check_range("speed_floor_tok_per_s", floor.value(), (0.0, 1e6))?;
        }
        for (field, limit) in
            [("ttft_limit_s", spec.ttft_limit_s), ("tpot_limit_s", spec.tpot_limit_s)]
        {
            if let Some(limit) = limit {
                check_range(field, limit.value(), (1e-6, STEP_SECONDS_MAX * 24.0))?;
            }
        }
        check_arrivals(&spec.arrivals)?;
        Ok(Self(spec))
    }

    /// One user, one request at a time: what latency planning serves.
    ///
    /// # Errors
    /// The lengths are out of range or do not fit the context.
    pub fn single_user(
        prompt_tokens: f64,
        generated_tokens: f64,
        context_tokens: u32,
    ) -> Result<Self, FieldError> {
        Self::new(WorkloadSpec {
            version: FormatVersion::default(),
            context_tokens,
            requests: 1,
            micro_batch_tokens: default_micro_batch(),
            kv_type: KvType::F16,
            flash_attention: true,
            speed_floor_tok_per_s: None,
            ttft_limit_s: None,
            tpot_limit_s: None,
            prompt_tokens: TokenLength::fixed(prompt_tokens),
            generated_tokens: TokenLength::fixed(generated_tokens),
            arrivals: Arrivals::Trace { times_s: vec![Seconds::ZERO] },
        })
    }

    /// A copy to change and check again.
    #[must_use]
    pub fn to_spec(&self) -> WorkloadSpec {
        self.0.clone()
    }

    /// Context of a sequence in the middle of its generation, where decode costs are evaluated.
    #[must_use]
    pub fn mean_depth_tokens(&self) -> u32 {
        (self.0.prompt_tokens.mean + self.0.generated_tokens.mean / 2.0).round() as u32
    }
}

/// Rows that a chunk of a prompt is not cut below, neither to fill a pipeline nor to fill a
/// micro-batch up: from here on ggml's attention works on tiles.
pub const PREFILL_ROWS_MIN: u32 = 64;

/// A prompt is cut into this many chunks per stage: the pipeline then runs full for all but a
/// fifth of the time, and more chunks would read the weights more often than that saves.
const PREFILL_CHUNKS_PER_STAGE: u32 = 4;

/// Rows of a prompt's chunks where so many devices compute one after another, so that all of them
/// work on a prompt that is alone; a whole batch where only one does.
#[must_use]
pub fn prefill_chunk_rows(prompt_tokens: u32, stages: u32, batch_rows_max: u32) -> u32 {
    if stages <= 1 {
        return batch_rows_max;
    }
    let chunks = stages.saturating_mul(PREFILL_CHUNKS_PER_STAGE);
    prompt_tokens.div_ceil(chunks).max(PREFILL_ROWS_MIN).min(batch_rows_max)
}

impl Document for Workload {
    const KIND: &'static str = "workload";
}

impl Deref for Workload {
    type Target = WorkloadSpec;
    fn deref(&self) -> &WorkloadSpec {
        &self.0
    }
}

impl TryFrom<WorkloadSpec> for Workload {
    type Error = FieldError;
    fn try_from(spec: WorkloadSpec) -> Result<Self, FieldError> {
        Self::new(spec)
    }
}

impl From<Workload> for WorkloadSpec {
    fn from(workload: Workload) -> Self {
        workload.0
    }
}

fn check_arrivals(arrivals: &Arrivals) -> Result<(), FieldError> {
    match arrivals {
        Arrivals::Fixed { interval_s } | Arrivals::Poisson { interval_s } => {
            check_range("arrivals.interval_s", interval_s.value(), (1e-6, 1e7))
        }
        Arrivals::Trace { times_s } => {
            let first = times_s
                .first()
                .ok_or_else(|| FieldError::new("arrivals.times_s", FieldProblem::Empty))?;
            let mut before = first.value();
            for (index, time) in times_s.iter().enumerate() {
                let field = format!("arrivals.times_s[{index}]");
                check_range(&field, time.value(), (before, 1e9))?;
                before = time.value();
            }
            Ok(())
        }
    }
}

fn hundred() -> u32 {
    100
}

fn default_micro_batch() -> u32 {
    512
}

fn yes() -> bool {
    true
}
