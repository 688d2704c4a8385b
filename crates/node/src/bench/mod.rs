//! `motley bench`: speed of the engine, alone or side by side with llama.cpp's own library.
//!
//! Comparisons alternate in one process, on the same file, threads and batch, so that whatever
//! else the machine does disturbs both alike; only the ratios mean much.

mod measure;
mod report;
mod start;
mod subject;

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use motley_engine::{CacheElement, EngineOptions, LayoutChoice, Model};
use motley_ggml::{ReferenceContext, ReferenceModel, ReferenceOptions, ThreadPoolOptions};

use self::measure::{Plan, Workload, alternate, bound};
use self::report::Report;
use self::subject::{Ours, Theirs};
use crate::failure::Failure;
use crate::fitting;
use crate::loading::{self, EngineWish};
use crate::run::{CacheTypes, WeightsPlace};
use crate::{store, terminal};

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
    /// Compute threads for prompts (-tb) [default: as many]
    #[arg(long, value_name = "N", hide = true)]
    threads_batch: Option<usize>,
    #[command(flatten)]
    cache: CacheTypes,
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
    /// Where weights are kept: mmap, which the system may drop, ram, stream, or what fits
    #[arg(long, value_name = "PLACE", default_value = "auto", hide_possible_values = true)]
    weights: WeightsPlace,
    /// Memory that may be used, such as 4G [default: what is available]
    #[arg(long, value_name = "SIZE", value_parser = terminal::parse_bytes)]
    memory: Option<u64>,
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
    compare(arguments, &model)
}

fn compare(arguments: &Arguments, model: &Model) -> Result<(), Failure> {
    let threads = ThreadPoolOptions {
        threads: match arguments.threads {
            Some(threads) => threads,
            None => loading::threads_default(),
        },
        poll_percent: 50,
        pinned: false,
    };
    if let Some(engine) = arguments.first_token_of {
        return Ok(start::first_token(engine, model, threads, arguments.prompt_tokens)?);
    }
    if arguments.repetitions == 0 || arguments.prompt_tokens == 0 || arguments.generated_tokens == 0
    {
        return Err(Failure::usage("repetitions and tokens must be at least 1"));
    }
    let plan = Plan {
        prompt_tokens: arguments.prompt_tokens,
        generated_tokens: arguments.generated_tokens,
        repetitions: arguments.repetitions,
    };
    let (options, workloads) = engine_options(model, arguments, threads)?;
    let mut ours = Ours::new(motley_engine::Engine::load(model, &options)?);
    let mut report = Report::new(model, threads.threads, &ours, plan);
    let reference = match arguments.against {
        Some(Opponent::LlamaCpp) => {
            let reference = ReferenceModel::load(model.path(), !arguments.plain);
            Some(reference.context("llama.cpp cannot load the model")?)
        }
        None => None,
    };
    for workload in &workloads {
        let mut theirs = match &reference {
            Some(reference) => {
                let options = ReferenceOptions {
                    cache_elements: options.cache.elements(),
                    batch_threads: options.batch_threads,
                    ..reference_options(plan, threads, *workload)
                };
                let context = ReferenceContext::new(reference, options);
                let context = context.context("llama.cpp cannot make a context")?;
                Some(Theirs::new(context, model.directory().hyper.vocabulary_size))
            }
            None => None,
        };
        report.add(alternate(*workload, plan, &mut ours, theirs.as_mut())?);
    }
    if workloads.contains(&Workload::Decode) {
        report.bound = bound(plan, &mut ours)?;
    }
    drop(ours);
    if arguments.start {
        let against = arguments.against.is_some();
        report.start = Some(start::compare(model.path(), threads.threads, against)?);
    }
    Ok(report.print(arguments.json)?)
}

/// How the engine is loaded, and what is measured with it. Where layers are streamed, memory is
/// short and decoding is what matters, so that other workloads have to be asked for.
fn engine_options(
    model: &Model,
    arguments: &Arguments,
    threads: ThreadPoolOptions,
) -> Result<(EngineOptions, Vec<Workload>), Failure> {
    let hyper = &model.directory().hyper;
    let context_tokens = arguments.prompt_tokens.max(arguments.generated_tokens + 1);
    if context_tokens as u64 > hyper.context_length {
        let text = format!(
            "{context_tokens} tokens are more than the model's context of {}",
            hyper.context_length
        );
        return Err(Failure::usage(text).hint("use a smaller -p or -n"));
    }
    let all = Workload::value_variants().to_vec();
    let chosen = if arguments.only.is_empty() { all } else { arguments.only.clone() };
    let wish = |workloads: &[Workload]| -> Result<EngineWish, Failure> {
        let slots = workloads.iter().map(|of| of.sequences()).max().unwrap_or(1);
        let prefill = workloads.contains(&Workload::Prefill);
        let rows = if prefill { arguments.prompt_tokens.max(slots) } else { slots };
        // Contexts are as long as the longest workload needs.
        let tokens = if prefill { context_tokens } else { arguments.generated_tokens + 1 };
        Ok(EngineWish {
            context_tokens: Some(tokens as u64),
            weights: arguments.weights,
            memory_budget_bytes: arguments.memory,
            cache: arguments.cache.element(),
            ..EngineWish::new(Some(threads.threads), rows, rows, slots)?
                .with_batch_threads(arguments.threads_batch)?
        })
    };
    let decode_alone = arguments.only.is_empty().then(|| vec![Workload::Decode]);
    let mut workloads = chosen;
    let mut asked = wish(&workloads)?;
    let mut fitted = fitting::fit(model, &asked);
    let is_short = |fitted: &Result<fitting::Fitted, Failure>| {
        fitted.as_ref().map_or(true, |fitted| fitted.placement.streams())
    };
    if let Some(decode) = decode_alone.filter(|_| is_short(&fitted)) {
        workloads = decode;
        asked = wish(&workloads)?;
        fitted = fitting::fit(model, &asked);
    }
    let fitted = fitted?;
    let options = EngineOptions {
        placement: fitted.placement,
        threads,
        layout: if arguments.plain { LayoutChoice::Plain } else { LayoutChoice::Measured },
        batch_rows_max: asked.batch_rows,
        ..loading::engine_options(model, &asked, fitted.context_tokens)?
    };
    Ok((options, workloads))
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
        cache_elements: CacheElement::F16.elements(),
        batch_threads: None,
        threads,
    }
}

/// The program itself, for measurements that need a fresh process.
fn own_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find the program's own file")
}
