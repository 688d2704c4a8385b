//! From process start to first token, and what memory that takes.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use motley_engine::{CacheElement, EngineOptions, LayoutChoice, Model};
use motley_ggml::{ReferenceContext, ReferenceModel, ReferenceOptions, ThreadPoolOptions};
use serde_json::{Value, json};

use super::subject::{Ours, Subject, Theirs};
use super::{Engine, own_program};
use crate::memory;
use crate::profile::load_engine;

/// Fresh processes per engine.
const REPETITIONS: usize = 5;

/// Tokens of the prompt that the first token answers.
const PROMPT_TOKENS: usize = 32;

/// Runs fresh processes of both engines in turn and returns medians as JSON.
///
/// # Errors
/// When a process fails.
pub(super) fn compare(model: &Path, threads: usize, against: bool) -> anyhow::Result<Value> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..REPETITIONS {
        ours.push(child(model, threads, "motley", PROMPT_TOKENS)?.0);
        if against {
            theirs.push(child(model, threads, "llama.cpp", PROMPT_TOKENS)?.0);
        }
    }
    // A prompt as long as the context touches every buffer, so that the peak means something.
    let memory = child(model, threads, "motley", FULL_CONTEXT_TOKENS)?.1;
    let mut result = json!({ "motley_s": median(&mut ours), "memory": memory });
    if against {
        result["llama_cpp_s"] = json!(median(&mut theirs));
        result["ratio"] = json!(median(&mut ours) / median(&mut theirs));
    }
    Ok(result)
}

/// Context of the processes that are started.
const FULL_CONTEXT_TOKENS: usize = 2048;

/// Loads, answers one token, prints what memory it took as JSON; what [`compare`] starts.
///
/// # Errors
/// When loading or computing fails.
pub(super) fn first_token(
    engine: Engine,
    model: &Model,
    threads: ThreadPoolOptions,
    prompt_tokens: usize,
) -> anyhow::Result<()> {
    const BATCH_ROWS: usize = 512;
    let positions: Vec<(usize, usize)> = (0..prompt_tokens).map(|position| (0, position)).collect();
    let answer = |subject: &mut dyn Subject| -> anyhow::Result<()> {
        positions.chunks(BATCH_ROWS).try_for_each(|chunk| subject.step(chunk, false))
    };
    let memory = match engine {
        Engine::Motley => {
            // A prompt needs the vocabulary; it loads beside the engine, as in `motley run`.
            let mut ours = std::thread::scope(|scope| -> anyhow::Result<_> {
                let loading = scope.spawn(|| model.vocabulary());
                let ours = Ours::new(load_engine(model, &options(model, threads))?);
                loading.join().map_err(|_| anyhow::anyhow!("loading the vocabulary failed"))??;
                Ok(ours)
            })?;
            answer(&mut ours)?;
            let held = ours.engine.memory();
            let known = held.weights_mapped_bytes
                + held.weights_allocated_bytes
                + held.cache_bytes
                + held.compute_bytes;
            let peak = peak_resident()?;
            json!({
                "peak_resident_bytes": peak,
                "weights_mapped_bytes": held.weights_mapped_bytes,
                "weights_allocated_bytes": held.weights_allocated_bytes,
                "cache_bytes": held.cache_bytes,
                "compute_bytes": held.compute_bytes,
                "beyond_bytes": peak.saturating_sub(known),
            })
        }
        Engine::LlamaCpp => {
            let reference = ReferenceModel::load(model.path(), true)?;
            let context = ReferenceContext::new(
                &reference,
                ReferenceOptions {
                    context_tokens: u32::try_from(FULL_CONTEXT_TOKENS)?,
                    sequences: 1,
                    batch_rows: u32::try_from(BATCH_ROWS)?,
                    cache_elements: CacheElement::F16.elements(),
                    batch_threads: None,
                    threads,
                },
            )?;
            answer(&mut Theirs::new(context, reference.vocabulary_size()))?;
            json!({ "peak_resident_bytes": peak_resident()? })
        }
    };
    crate::terminal::print_json(&memory)
}

fn options(model: &Model, threads: ThreadPoolOptions) -> EngineOptions {
    EngineOptions {
        layers: (0..model.directory().hyper.block_count).into(),
        embedding: true,
        head: true,
        slots: 1,
        context_tokens: FULL_CONTEXT_TOKENS,
        batch_rows_max: 512,
        cache: CacheElement::F16,
        threads,
        batch_threads: None,
        layout: LayoutChoice::Measured,
        placement: motley_engine::Residency::Mapped.into(),
    }
}

/// Seconds that a fresh process took, and what it printed.
fn child(
    model: &Path,
    threads: usize,
    engine: &str,
    prompt_tokens: usize,
) -> anyhow::Result<(f64, Value)> {
    let start = Instant::now();
    let output = Command::new(own_program()?)
        .arg("bench")
        .arg(model)
        .args(["--first-token-of", engine])
        .args(["--threads", &threads.to_string()])
        .args(["--prompt-tokens", &prompt_tokens.to_string()])
        .output()
        .context("cannot start a process to measure")?;
    let seconds = start.elapsed().as_secs_f64();
    ensure!(
        output.status.success(),
        "a measured process failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let printed = serde_json::from_slice(&output.stdout).context("unexpected output")?;
    Ok((seconds, printed))
}

fn peak_resident() -> anyhow::Result<u64> {
    memory::peak_resident_bytes().context("peak memory is only known on Linux")
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
