//! `motley bench`: speed of the engine, alone or side by side with llama.cpp's own library.
//!
//! Comparisons alternate in one process, on the same file, threads and batch, so that whatever
//! else the machine does disturbs both alike; only the ratios mean much.

mod measure;
mod report;
mod start;
mod subject;

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use motley_engine::{CacheElement, EngineOptions, LayoutChoice, Model};
use motley_ggml::{ReferenceContext, ReferenceModel, ReferenceOptions, ThreadPoolOptions};

use self::measure::{Plan, Workload, alternate};
use self::report::Report;
use self::subject::{Ours, Theirs};
use crate::failure::Failure;
use crate::run::WeightsPlace;
use crate::{loading, store};

/// Arguments of `motley bench`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// A GGUF file, or the name of a model in the folder of models
    model: String,
    /// Folder of models
    #[arg(long, value_name = "DIR")]
    models: Option<PathBuf>,
    /// Measure another engine on the same file in the same run
    #[arg(long, value_name = "ENGINE")]
    against: Option<Opponent>,
    /// Compute threads [default: all processors]
    #[arg(short, long)]
    threads: Option<usize>,
    /// Runs of each measurement
    #[arg(short, long, default_value_t = 7)]
    repetitions: usize,
    /// Tokens of the prompt, in one batch
    #[arg(short = 'p', long, default_value_t = 512)]
    prompt_tokens: usize,
    /// Tokens generated per sequence
    #[arg(short = 'n', long, default_value_t = 32)]
    generated_tokens: usize,
    /// Measure only these
    #[arg(long, value_delimiter = ',')]
    only: Vec<Workload>,
    /// Also measure process start to first token, and memory beyond weights and buffers
    #[arg(long)]
    start: bool,
    /// Keep weights as in the file instead of measuring layouts
    #[arg(long)]
    plain: bool,
    /// Where weights are kept: mmap, which the system may drop, or ram
    #[arg(long, value_name = "PLACE", default_value = "mmap", hide_possible_values = true)]
    weights: WeightsPlace,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Answer one token through this engine and leave; what `--start` runs
    #[arg(long, hide = true)]
    first_token_of: Option<Engine>,
}

/// What the engine can be compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Opponent {
    /// llama.cpp's library, linked into this program.
    #[value(name = "llama.cpp")]
    LlamaCpp,
}

/// An engine under measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// This project's.
    Motley,
    /// llama.cpp's library.
    #[value(name = "llama.cpp")]
    LlamaCpp,
}

/// Most sequences of any workload.
const SEQUENCES_MAX: usize = 32;

pub(crate) fn execute(arguments: &Arguments) -> Result<(), Failure> {
    let folder = store::folder(arguments.models.clone());
    let path = store::resolve(&arguments.model, folder.as_deref())?;
    let model = Model::open(&path).map_err(loading::open_failure)?;
    Ok(compare(arguments, &model)?)
}

fn compare(arguments: &Arguments, model: &Model) -> anyhow::Result<()> {
    let threads = ThreadPoolOptions {
        threads: match arguments.threads {
            Some(threads) => threads,
            None => loading::threads_default(),
        },
        poll_percent: 50,
        pinned: false,
    };
    if let Some(engine) = arguments.first_token_of {
        return start::first_token(engine, model, threads, arguments.prompt_tokens);
    }
    if arguments.repetitions == 0 || arguments.prompt_tokens == 0 || arguments.generated_tokens == 0
    {
        bail!("repetitions and tokens must be at least 1");
    }
    let plan = Plan {
        prompt_tokens: arguments.prompt_tokens,
        generated_tokens: arguments.generated_tokens,
        repetitions: arguments.repetitions,
    };
    let mut ours = Ours::load(model, &engine_options(model, arguments, threads)?)?;
    let mut report = Report::new(model, threads.threads, &ours, plan);
    let reference = match arguments.against {
        Some(Opponent::LlamaCpp) => Some(ReferenceModel::load(model.path(), true)?),
        None => None,
    };
    for workload in Workload::value_variants() {
        if !arguments.only.is_empty() && !arguments.only.contains(workload) {
            continue;
        }
        let mut theirs = match &reference {
            Some(reference) => {
                let options = reference_options(plan, threads, *workload);
                let context = ReferenceContext::new(reference, options)?;
                Some(Theirs::new(context, model.directory().hyper.vocabulary_size))
            }
            None => None,
        };
        report.add(alternate(*workload, plan, &mut ours, theirs.as_mut())?);
    }
    drop(ours);
    if arguments.start {
        let against = arguments.against.is_some();
        report.start = Some(start::compare(model.path(), threads.threads, against)?);
    }
    report.print(arguments.json)
}

fn engine_options(
    model: &Model,
    arguments: &Arguments,
    threads: ThreadPoolOptions,
) -> anyhow::Result<EngineOptions> {
    let hyper = &model.directory().hyper;
    let context_tokens = arguments.prompt_tokens.max(arguments.generated_tokens + 1);
    if context_tokens as u64 > hyper.context_length {
        bail!(
            "{context_tokens} tokens are more than the model's context of {}; \
             use a smaller -p or -n",
            hyper.context_length
        );
    }
    Ok(EngineOptions {
        layers: (0..hyper.block_count).into(),
        embedding: true,
        head: true,
        slots: SEQUENCES_MAX,
        context_tokens,
        batch_rows_max: arguments.prompt_tokens.max(SEQUENCES_MAX),
        cache: CacheElement::F16,
        threads,
        layout: if arguments.plain { LayoutChoice::Plain } else { LayoutChoice::Measured },
        placement: arguments.weights.residency().into(),
    })
}

fn reference_options(
    plan: Plan,
    threads: ThreadPoolOptions,
    workload: Workload,
) -> ReferenceOptions {
    let tokens = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    ReferenceOptions {
        context_tokens: tokens(plan.prompt_tokens.max(plan.generated_tokens + 1)),
        sequences: tokens(workload.sequences()),
        batch_rows: tokens(plan.prompt_tokens.max(SEQUENCES_MAX)),
        cache_element: CacheElement::F16.element(),
        threads,
    }
}

/// The program itself, for measurements that need a fresh process.
fn own_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find the program's own file")
}
