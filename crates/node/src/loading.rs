//! From a file to an engine that answers: opening, the memory check, and what can go wrong.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use motley_engine::{CacheElement, EngineOptions, LayoutChoice, LoadError, Model, OpenError};
use motley_ggml::{ThreadPool, ThreadPoolOptions, Vocabulary};
use motley_model::{DirectoryError, GgufError};

use crate::driver::{Deployment, Driver, EngineFacts};
use crate::failure::{Failure, Kind};
use crate::fitting::{self, Fitted};
use crate::gpus::{self, GpuWish};
use crate::memory::{self, Duty, Usage};
use crate::run::WeightsPlace;
use crate::terminal::{self, Progress};

/// Context where none is asked for.
pub(crate) const CONTEXT_TOKENS_DEFAULT: u64 = 4096;

/// What a user may choose about an engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EngineWish {
    /// Tokens of context, 0 for all that the model knows; nothing for a default that fits.
    pub(crate) context_tokens: Option<u64>,
    pub(crate) slots: usize,
    pub(crate) batch_rows: usize,
    pub(crate) cache: CacheElement,
    pub(crate) threads: usize,
    /// Threads for prompts, if not the same.
    pub(crate) batch_threads: Option<usize>,
    pub(crate) layout: LayoutChoice,
    pub(crate) weights: WeightsPlace,
    /// Memory that may be used; nothing for what the system has.
    pub(crate) memory_budget_bytes: Option<u64>,
    /// What GPUs are to take.
    pub(crate) gpu: GpuWish,
    /// Whether the engine stays for long: it gives memory to other programs as they need it, and
    /// a long context makes it give up what else can be given up.
    pub(crate) serves: bool,
}

/// Rows in one batch at most.
const BATCH_ROWS_MAX: usize = 8192;

/// Sequences at a time at most.
const SLOTS_MAX: usize = 256;

impl EngineWish {
    /// What of it memory depends on.
    pub(crate) fn usage(&self) -> Usage {
        Usage {
            duty: Duty::of(self.serves),
            slots: self.slots as u64,
            batch_rows: self.batch_rows as u64,
            cache: self.cache,
        }
    }

    /// A wish for these sizes, with the default of everything else.
    ///
    /// # Errors
    /// When a size is out of its range; the message names its option.
    pub(crate) fn new(
        threads: Option<usize>,
        batch_rows: usize,
        micro_batch_rows: usize,
        slots: usize,
    ) -> Result<Self, Failure> {
        let threads = threads.unwrap_or_else(threads_default);
        let rows = batch_rows.min(micro_batch_rows);
        in_range("--threads", threads, ThreadPool::THREADS_MAX)?;
        in_range("--batch-size", batch_rows, usize::MAX)?;
        in_range("--ubatch-size", rows, BATCH_ROWS_MAX)?;
        in_range("--parallel", slots, SLOTS_MAX)?;
        Ok(Self {
            context_tokens: None,
            slots,
            batch_rows: rows,
            cache: CacheElement::F16,
            threads,
            batch_threads: None,
            layout: LayoutChoice::Measured,
            weights: WeightsPlace::Auto,
            memory_budget_bytes: None,
            gpu: GpuWish::default(),
            serves: false,
        })
    }
}

impl EngineWish {
    /// The same with so many threads for prompts.
    ///
    /// # Errors
    /// When the number is out of its range.
    pub(crate) fn with_batch_threads(self, threads: Option<usize>) -> Result<Self, Failure> {
        in_range("--threads-batch", threads.unwrap_or(1), ThreadPool::THREADS_MAX)?;
        Ok(Self { batch_threads: threads, ..self })
    }
}

pub(crate) fn in_range(option: &str, value: usize, most: usize) -> Result<(), Failure> {
    if (1..=most).contains(&value) {
        return Ok(());
    }
    let range = if most == usize::MAX { "1 or more".to_owned() } else { format!("1 to {most}") };
    Err(Failure::usage(format!("{option} must be {range}, not {value}")))
}

/// A model that answers.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) model: Arc<Model>,
    pub(crate) vocabulary: Vocabulary,
    pub(crate) driver: Arc<Driver>,
    pub(crate) facts: EngineFacts,
    /// How the engine was loaded.
    pub(crate) options: EngineOptions,
}

/// How long compute threads spin between two graphs, in percent of what ggml allows.
pub(crate) const POLL_PERCENT: u32 = 50;

/// Opens the model at `path` and loads engine and vocabulary side by side.
///
/// # Errors
/// When the file is no model that can be run, or memory does not suffice.
pub(crate) fn load(path: &Path, wish: &EngineWish) -> Result<Ready, Failure> {
    let model = Arc::new(Model::open(path).map_err(open_failure)?);
    let fitted = fitting::fit(&model, wish)?;
    if let Some(warning) = fitted.warning() {
        terminal::note(&warning);
    }
    let Fitted { context_tokens, batch_rows, slots, cache, layout, placement, .. } = fitted;
    let wish = EngineWish { batch_rows, slots, cache, layout, ..*wish };
    let usage = wish.usage();
    let placement = gpus::share(model.directory(), (&usage, context_tokens), wish.gpu, placement)?;
    let options = EngineOptions { placement, ..engine_options(&model, &wish, context_tokens)? };
    let progress = Progress::start(&format!("loading {} ...", title(&model)));
    let driver = Driver::new();
    if let Some(watch) = wish.serves.then(|| memory::watch(wish.weights)).flatten() {
        driver.yield_to(Arc::new(watch));
    }
    let deployment = Deployment::alone(Arc::clone(&model), options.clone())?;
    let (send, loaded) = sync_channel(1);
    let report = move |facts| drop(send.send(facts));
    let standby = driver.load(deployment, report, Box::new(|_| ()))?;
    // Beside the engine, which loads on its own thread.
    let vocabulary = model.vocabulary().map_err(open_failure)?;
    driver.end_answers_by(vocabulary.end_tokens());
    let facts = loaded.recv()?.map_err(load_failure)?;
    driver.start(standby);
    drop(progress);
    if facts.memory.stream_bytes > 0 {
        let kept = terminal::bytes(facts.memory.weights_allocated_bytes);
        terminal::note(&format!(
            "{kept} of the weights stay in memory; the rest is read from disk for each token\n"
        ));
    }
    Ok(Ready { model, vocabulary, driver: Arc::new(driver), facts, options })
}

/// Name and size of a model's file.
pub(crate) fn title(model: &Model) -> String {
    let path = model.path();
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    format!("{name} ({})", terminal::bytes(model.file_bytes()))
}

/// An engine for all of a model.
///
/// # Errors
/// When the context cannot be counted.
pub(crate) fn engine_options(
    model: &Model,
    wish: &EngineWish,
    context_tokens: u64,
) -> Result<EngineOptions, Failure> {
    let threads = wish.threads;
    Ok(EngineOptions {
        layers: (0..model.directory().hyper.block_count).into(),
        embedding: true,
        head: true,
        slots: wish.slots,
        context_tokens: usize::try_from(context_tokens)?,
        batch_rows_max: wish.batch_rows,
        cache: wish.cache,
        threads: ThreadPoolOptions { threads, poll_percent: POLL_PERCENT, pinned: false },
        batch_threads: wish.batch_threads,
        layout: wish.layout,
        placement: wish.weights.residency().into(),
    })
}

/// The context asked for, or the default, where several devices share the memory for it.
///
/// # Errors
/// When the model was not trained for so much.
pub(crate) fn shared_context(model: &Model, wish: &EngineWish) -> Result<u64, Failure> {
    let trained = model.directory().hyper.context_length;
    match wish.context_tokens {
        None => Ok(trained.min(CONTEXT_TOKENS_DEFAULT)),
        Some(0) => Ok(trained),
        Some(asked) if asked > trained => Err(beyond_training(asked, trained)),
        Some(asked) => Ok(asked),
    }
}

pub(crate) fn beyond_training(asked: u64, trained: u64) -> Failure {
    let error = anyhow::anyhow!(
        "a context of {asked} tokens is more than the {trained} the model was trained for"
    );
    Failure::new(Kind::Refused, error).hint(format!("give at most -c {trained}"))
}

/// The context asked for, if it fits; without a wish as much as the model, memory and the default
/// allow.
pub(crate) fn choose_context(model: &Model, wish: &EngineWish) -> Result<u64, Failure> {
    let directory = model.directory();
    let trained = directory.hyper.context_length;
    let usage = wish.usage();
    let budget = wish.memory_budget_bytes.or_else(memory::available_bytes).unwrap_or(u64::MAX);
    if let Some(asked) = wish.context_tokens {
        let asked = if asked == 0 { trained } else { asked };
        if asked > trained {
            return Err(beyond_training(asked, trained));
        }
        return Ok(memory::admit(directory, &usage, budget, asked)?.context_tokens);
    }
    let most = trained.min(CONTEXT_TOKENS_DEFAULT);
    match memory::largest_context(directory, &usage, budget, most)? {
        Some(context) => Ok(context),
        None => Ok(memory::admit(directory, &usage, budget, most)?.context_tokens),
    }
}

/// Threads where none are asked for: one per core that this process may use. Two threads on one
/// core only take turns at its vector units.
pub(crate) fn threads_default() -> usize {
    let allowed = std::thread::available_parallelism().map_or(1, usize::from);
    core_count().map_or(allowed, |cores| cores.min(allowed)).clamp(1, ThreadPool::THREADS_MAX)
}

/// Cores of the machine, counting those that run several threads once; Linux tells.
pub(crate) fn core_count() -> Option<usize> {
    let mut cores = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir("/sys/devices/system/cpu").ok()? {
        let siblings = entry.ok()?.path().join("topology").join("thread_siblings_list");
        if let Ok(siblings) = std::fs::read_to_string(siblings) {
            cores.insert(siblings);
        }
    }
    (!cores.is_empty()).then_some(cores.len())
}

/// How a file that could not be opened is reported.
pub(crate) fn open_failure(error: OpenError) -> Failure {
    let (kind, hint) = match &error {
        OpenError::File { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            (Kind::NotFound, Some("all parts of a model must lie in one folder"))
        }
        OpenError::File { .. } => (Kind::Failed, Some("give a GGUF file that you may read")),
        OpenError::Format { source, .. } => (Kind::Failed, format_hint(source)),
        OpenError::Directory { source, .. } => (Kind::Failed, directory_hint(source)),
        OpenError::Vocabulary { .. } => {
            (Kind::Failed, Some("the file is damaged or of a newer kind; get it again"))
        }
    };
    let failure = Failure::new(kind, error);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

fn format_hint(error: &GgufError) -> Option<&'static str> {
    match error {
        GgufError::Magic { .. } => Some("models are GGUF files; convert other formats first"),
        // The message says it all.
        GgufError::BigEndian { .. } | GgufError::Version { .. } => None,
        _ => Some("the file is damaged or was not copied whole; get it again"),
    }
}

fn directory_hint(error: &DirectoryError) -> Option<&'static str> {
    match error {
        DirectoryError::NotAModel { .. } => Some("give the file of the model itself"),
        DirectoryError::UnknownArchitecture { .. } | DirectoryError::Unsupported { .. } => {
            Some("motley version lists what can be run")
        }
        _ => Some("the file is damaged or unusual; motley show tells what it says"),
    }
}

fn load_failure(error: LoadError) -> Failure {
    let refused = matches!(
        error,
        LoadError::Tensors(_)
            | LoadError::Compute(_)
            | LoadError::Budget { .. }
            | LoadError::CacheElement { .. }
    );
    let kind = if refused { Kind::Refused } else { Kind::Failed };
    let cache = matches!(error, LoadError::CacheElement { .. });
    let failure = Failure::new(kind, error);
    match (refused, cache) {
        (true, true) => failure.hint("cache as 16-bit floats: -ctk f16"),
        (true, false) => failure.hint("take a smaller context (-c), or free memory"),
        (false, _) => failure,
    }
}
