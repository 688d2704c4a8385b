//! The engine: runs windows of layers over rows of many sequences.

use std::ops::Range;
use std::sync::Arc;

use motley_ggml::{
    AllocateError, Backend, ComputeError, Graph, MappedFile, StartError, TensorError,
    ThreadPoolOptions, Token,
};
use motley_model::HyperParameters;

use crate::cache::{Cache, CacheElement, CacheError, CacheShape};
use crate::graphs::{self, GraphKey, LookInputs, Product, Sources, WindowGraph};
use crate::kept_graphs::KeptGraphs;
use crate::layer_set::LayerSet;
use crate::layout::{Layout, Layouts};
use crate::masks;
use crate::memory::EngineMemory;
use crate::model::Model;
use crate::placement::Placement;
use crate::reuse::ReuseRule;
use crate::rows::{self, Group, Row, RowsError, Run};
use crate::sites::Site;
use crate::stream::{ReadError, Reading, Store, StoreError};
use crate::weights::{Parts, Weights};
use crate::workers::{Carry, Workers};

/// What an engine holds and how large it may work.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Layers to hold; maybe none, or several windows of a ring with several rounds.
    pub layers: LayerSet,
    /// Whether rows may enter as tokens.
    pub embedding: bool,
    /// Whether logits may be asked for.
    pub head: bool,
    /// Sequences at a time.
    pub slots: usize,
    /// Tokens of context per slot.
    pub context_tokens: usize,
    /// Rows in one batch at most.
    pub batch_rows_max: usize,
    /// How keys and values are cached.
    pub cache: CacheElement,
    /// Compute threads.
    pub threads: ThreadPoolOptions,
    /// Threads for steps of several rows, if not as many as for a single one.
    pub batch_threads: Option<usize>,
    /// How weight matrices are laid out.
    pub layout: LayoutChoice,
    /// Where weights are kept.
    pub placement: Placement,
}

/// How weight matrices are laid out in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LayoutChoice {
    /// Measured per element type when the model is first loaded, unless it was
    /// [told](Model::know_layouts) what an earlier measurement gave.
    #[default]
    Measured,
    /// As in the file: no copy but that of the residency.
    Plain,
}

/// Why an engine could not be made.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The layers do not exist.
    #[error("layers {layers} do not all exist in a model of {block_count} layers")]
    Layers {
        /// Layers asked for.
        layers: LayerSet,
        /// Layers of the model.
        block_count: usize,
    },
    /// A size of zero.
    #[error("{what} must be at least 1")]
    Zero {
        /// The option.
        what: &'static str,
    },
    /// More context than the model was trained for.
    #[error("a context of {asked} tokens is more than the model's {trained}")]
    Context {
        /// Tokens asked for.
        asked: usize,
        /// Tokens of the model.
        trained: u64,
    },
    /// A cache type that the model's rows do not fit.
    #[error(
        "the cache cannot be {element:?}: the model's heads have {head_elements} elements, no multiple of 32"
    )]
    CacheElement {
        /// Type asked for.
        element: CacheElement,
        /// Elements of a head.
        head_elements: usize,
    },
    /// Another number of residencies than layers.
    #[error("{given} residencies for {layers} layers")]
    Placement {
        /// Residencies given.
        given: usize,
        /// Layers held.
        layers: usize,
    },
    /// A GPU that is not here.
    #[error("there is no GPU {gpu}: this build sees {seen} of them")]
    NoGpu {
        /// The GPU asked for, counted from zero.
        gpu: usize,
        /// GPUs that there are.
        seen: usize,
    },
    /// A GPU is there, but refuses to work.
    #[error("cannot use the GPU")]
    Gpu(#[from] StartError),
    /// Too little memory even with every layer streamed.
    #[error(
        "{budget_bytes} bytes are too few: {least_bytes} are needed with every layer streamed, \
         {whole_bytes} with all in memory"
    )]
    Budget {
        /// Bytes that were to suffice.
        budget_bytes: u64,
        /// Bytes of cache, working memory, buffers and what cannot be streamed.
        least_bytes: u64,
        /// Bytes with all weights in memory.
        whole_bytes: u64,
    },
    /// The file became shorter while it was read.
    #[error("the model's file has become shorter while it was read")]
    Truncated,
    /// Memory for weights or cache was refused, or weights could not be read.
    #[error("cannot hold the model")]
    Tensors(#[from] TensorError),
    /// Weights could not be read from disk.
    #[error("cannot read the model's weights")]
    Read(#[from] ReadError),
    /// Memory for intermediate values was refused.
    #[error("cannot reserve working memory")]
    Compute(#[from] AllocateError),
}

impl From<StoreError> for LoadError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Tensors(error) => Self::Tensors(error),
            StoreError::Read(error) => Self::Read(error),
        }
    }
}

/// Rows that enter a window.
#[derive(Clone, Copy, Debug)]
pub enum Entering<'a> {
    /// A token per row; the window begins with the embedding.
    Tokens(&'a [Token]),
    /// Hidden states, `[embedding]` per row, row after row.
    Hidden(&'a [f32]),
}

/// What a window is run for.
#[derive(Clone, Copy, Debug)]
pub enum Wanted<'a> {
    /// Hidden states of all rows.
    Hidden,
    /// Hidden states of these rows only; allowed where the window includes the last layer.
    HiddenOf(&'a [usize]),
    /// Logits of these rows, maybe of none; the window must reach the end of the model.
    Logits(&'a [usize]),
    /// Logits of some rows, and after them the final hidden states, normed as the head norms them,
    /// of others; the window must reach the end of the model.
    LogitsAndStates(&'a [usize], &'a [usize]),
}

impl<'a> Wanted<'a> {
    /// The selected rows of either kind; `None` when all are wanted.
    pub(crate) fn selection(self) -> Option<(&'a [usize], &'a [usize])> {
        match self {
            Self::Hidden => None,
            Self::HiddenOf(rows) | Self::Logits(rows) => Some((rows, &[])),
            Self::LogitsAndStates(logits, states) => Some((logits, states)),
        }
    }

    /// Whether the head is needed.
    pub(crate) fn needs_head(self) -> bool {
        matches!(self, Self::Logits(_) | Self::LogitsAndStates(..))
    }
}

/// One run of a window.
#[derive(Clone, Debug)]
pub struct Step<'a> {
    /// Layers to run, all in one held range. Empty at the start of the model for the embedding
    /// alone (tokens enter, hidden states are wanted), and at its end for the head alone (hidden
    /// states enter, logits are wanted).
    pub layers: Range<usize>,
    /// Rows, those of a slot together and in order.
    pub rows: &'a [Row],
    /// What enters.
    pub entering: Entering<'a>,
    /// What is wanted.
    pub wanted: Wanted<'a>,
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The rows are no batch.
    #[error(transparent)]
    Rows(#[from] RowsError),
    /// The layers are not held here, or with gaps between them.
    #[error("layers {layers:?} are not held here together; held are {held}")]
    NotHeld {
        /// Layers asked for.
        layers: Range<usize>,
        /// Layers of this engine.
        held: LayerSet,
    },
    /// The step needs a part that this engine does not hold, or a window of another place.
    #[error("{what} cannot be used by this step: {why}")]
    Part {
        /// The part.
        what: &'static str,
        /// Why not.
        why: &'static str,
    },
    /// Another number of values than the rows need.
    #[error("{given} values enter where {rows} rows need {expected}")]
    Length {
        /// Values given.
        given: usize,
        /// Rows of the batch.
        rows: usize,
        /// Values needed.
        expected: usize,
    },
    /// A token outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {size}")]
    UnknownToken {
        /// The token.
        token: Token,
        /// Size of the vocabulary.
        size: usize,
    },
    /// A wanted row that does not exist.
    #[error("row {row} is wanted of a batch of {rows}")]
    UnknownRow {
        /// The row.
        row: usize,
        /// Rows of the batch.
        rows: usize,
    },
    /// Weights are mapped, and their file has become shorter: results are worthless from now on.
    #[error("the model's file has become shorter while it was used; its weights are gone")]
    Truncated,
    /// Streamed weights could not be read; the step may be tried again.
    #[error("cannot read the model's weights")]
    Read(#[from] ReadError),
    /// Memory for intermediate values was refused.
    #[error("cannot grow working memory")]
    Memory(#[from] AllocateError),
    /// The back-end failed.
    #[error("cannot compute")]
    Compute(#[from] ComputeError),
}

/// Runs windows of layers over rows of many sequences.
///
/// One batch may mix prompt chunks and single tokens of many slots. The caller feeds rows of a
/// slot in order; the engine keeps their keys and values. Not `Send`: it lives on the thread that
/// made it.
#[derive(Debug)]
pub struct Engine {
    // Declared before what graphs point to only for reading; graphs own references to all of it.
    pub(crate) graphs: KeptGraphs,
    pub(crate) workers: Workers,
    pub(crate) hyper: HyperParameters,
    pub(crate) held: LayerSet,
    // Whose maps weights are read from; none with weights in memory.
    pub(crate) mapped_files: Vec<Arc<MappedFile>>,
    pub(crate) weights: Weights,
    // The weights that may move; none where all are placed for good.
    pub(crate) store: Option<Store>,
    // The store's changes that kept graphs know.
    pub(crate) changes_known: u64,
    pub(crate) reading: Reading,
    pub(crate) layouts: Layouts,
    pub(crate) cache: Cache,
    pub(crate) batch_rows_max: usize,
    threads: StepThreads,
    scratch: Scratch,
}

/// Threads that compute a step.
#[derive(Clone, Copy, Debug)]
struct StepThreads {
    single: usize,
    several: usize,
}

impl StepThreads {
    fn of(self, rows: usize) -> usize {
        if rows > 1 { self.several } else { self.single }
    }
}

/// Buffers that steps reuse, so that none is allocated per token.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) runs: Vec<Run>,
    pub(crate) groups: Vec<Group>,
    pub(crate) carry: Carry,
    numbers: Vec<i32>,
    cells: Vec<i64>,
    mask: Vec<u16>,
}

impl Engine {
    /// Loads the parts of `model` that `options` name.
    ///
    /// # Errors
    /// When the options do not fit the model or memory is refused.
    pub fn load(model: &Model, options: &EngineOptions) -> Result<Self, LoadError> {
        let directory = model.directory();
        check_options(&directory.hyper, options)?;
        let mut workers = Workers::start(directory, options)?;
        let processor = &mut workers.processor.backend;
        let layouts = layouts(processor, model, options.layout, &options.placement)?;
        let parts = Parts {
            layers: &options.layers,
            embedding: options.embedding,
            head: options.head,
            placement: &options.placement,
            sites: &workers.sites,
            batch_rows: options.batch_rows_max,
        };
        let (weights, store) = Weights::load(model.files(), directory, parts, &layouts)?;
        let shape = CacheShape::of(options);
        let cache = Cache::new(&directory.hyper, &options.layers, shape, &workers.sites)?;
        let mut engine = Self {
            graphs: KeptGraphs::default(),
            workers,
            hyper: directory.hyper.clone(),
            held: options.layers.clone(),
            mapped_files: mapped_files(model, &weights),
            weights,
            store,
            changes_known: 0,
            reading: Reading::Disk,
            layouts,
            cache,
            batch_rows_max: options.batch_rows_max,
            threads: StepThreads {
                single: options.threads.threads,
                several: options.batch_threads.unwrap_or(options.threads.threads),
            },
            scratch: Scratch::default(),
        };
        engine.follow_experts();
        engine.reserve()?;
        engine.place_weights(&options.placement)?;
        if model.files().iter().any(|file| file.was_truncated()) {
            return Err(LoadError::Truncated);
        }
        Ok(engine)
    }

    /// The model's numbers.
    pub fn hyper(&self) -> &HyperParameters {
        &self.hyper
    }

    /// Layers held.
    pub fn layers(&self) -> &LayerSet {
        &self.held
    }

    /// Whether rows may enter as tokens.
    pub fn holds_embedding(&self) -> bool {
        self.weights.embedding.is_some()
    }

    /// Whether logits may be asked for.
    pub fn holds_head(&self) -> bool {
        self.weights.head.is_some()
    }

    /// How far slots can go back, in all layers of the model: also in those that others hold, if
    /// their engines have the same context and batch size.
    pub fn reuse_rule(&self) -> ReuseRule {
        ReuseRule::new(&self.hyper, self.context_tokens(), self.batch_rows_max)
    }

    /// Graphs built since the start; constant once every window ran in every shape.
    pub fn graphs_built(&self) -> u64 {
        self.graphs.built()
    }

    /// Sequences at a time.
    pub fn slots(&self) -> usize {
        self.cache.shape().slots
    }

    /// Tokens of context per slot.
    pub fn context_tokens(&self) -> usize {
        self.cache.shape().context_tokens
    }

    /// Rows in one batch at most.
    pub fn batch_rows_max(&self) -> usize {
        self.batch_rows_max
    }

    /// Bytes held now, but for those in [GPUs](Self::gpu_memory).
    pub fn memory(&self) -> EngineMemory {
        EngineMemory {
            weights_mapped_bytes: self.weights.mapped_bytes,
            weights_allocated_bytes: self.weights.allocated_bytes
                + self.store.as_ref().map_or(0, Store::resident_bytes),
            cache_bytes: self.cache.bytes(Site::Processor),
            compute_bytes: self.workers.processor.memory.bytes() as u64,
            stream_bytes: self.store.as_ref().map_or(0, Store::buffer_bytes),
        }
    }

    /// Layouts chosen per element type, for types with a choice.
    pub fn layouts(&self) -> impl Iterator<Item = (&'static str, Layout)> {
        self.layouts.choices().iter().map(|(element, layout)| (element.name(), *layout))
    }

    /// Runs one step and leaves what was wanted in `product`, row after row.
    ///
    /// # Errors
    /// When the step does not fit this engine or the state of its slots; the slots are unchanged
    /// then. A failing back-end leaves the rows' slots in an unknown state: clear them.
    pub fn run(&mut self, step: &Step<'_>, product: &mut Vec<f32>) -> Result<(), StepError> {
        let done = self.run_checked(step, product);
        if done.is_err() {
            product.clear();
        }
        done
    }

    /// Lets compute threads sleep until the next step, instead of looking for work for a while:
    /// for who knows that none will come soon.
    pub fn rest(&self) {
        self.workers.processor.backend.rest();
    }

    fn run_checked(&mut self, step: &Step<'_>, product: &mut Vec<f32>) -> Result<(), StepError> {
        self.check_window(step)?;
        self.check_values(step)?;
        let shape = self.cache.shape();
        if step.rows.len() > self.batch_rows_max {
            let (rows, most) = (step.rows.len(), self.batch_rows_max);
            return Err(RowsError::TooMany { rows, most }.into());
        }
        let threads = self.threads.of(step.rows.len());
        self.workers.processor.backend.use_threads(threads);
        let mut scratch = std::mem::take(&mut self.scratch);
        let done = rows::into_runs(step.rows, shape.slots, shape.context_tokens, &mut scratch.runs)
            .and_then(|()| self.cache.check(step.layers.clone(), &scratch.runs))
            .map_err(StepError::from)
            .and_then(|()| self.run_parts(step, &mut scratch, product));
        if done.is_ok() {
            self.cache.advance(step.layers.clone(), &scratch.runs);
        }
        self.scratch = scratch;
        done
    }

    /// Forgets what a slot holds.
    ///
    /// # Panics
    /// When the slot does not exist.
    pub fn clear(&mut self, slot: usize) {
        assert!(slot < self.slots(), "slot {slot} does not exist");
        self.cache.clear(slot);
    }

    /// The cached keys and values of the first `tokens` tokens of a slot in `layers`, for another
    /// engine of the same model and cache type.
    ///
    /// # Errors
    /// When the layers or the slot are not here or hold fewer tokens.
    pub fn export_cache(
        &self,
        layers: Range<usize>,
        slot: usize,
        tokens: usize,
    ) -> Result<Vec<u8>, CacheError> {
        self.cache.export(layers, slot, tokens)
    }

    /// Bytes that [`export_cache`](Self::export_cache) gives of layers that are held.
    pub(crate) fn cache_export_bytes(&self, layers: Range<usize>, tokens: usize) -> usize {
        self.cache.export_bytes(layers, tokens)
    }

    /// Replaces what a slot holds in `layers` by exported bytes of `tokens` tokens.
    ///
    /// # Errors
    /// When the layers or the slot are not here, or the bytes are not those of so many tokens.
    pub fn import_cache(
        &mut self,
        layers: Range<usize>,
        slot: usize,
        tokens: usize,
        bytes: &[u8],
    ) -> Result<(), CacheError> {
        self.cache.import(layers, slot, tokens, bytes)
    }

    fn check_window(&self, step: &Step<'_>) -> Result<(), StepError> {
        let Range { start, end } = step.layers;
        let block_count = self.hyper.block_count;
        let from_tokens = matches!(step.entering, Entering::Tokens(_));
        let embedding_alone = from_tokens && step.layers == (0..0);
        let head_alone = !from_tokens && step.layers == (block_count..block_count);
        if !embedding_alone && !head_alone && !self.held.contains(&step.layers) {
            let held = self.held.clone();
            return Err(StepError::NotHeld { layers: step.layers.clone(), held });
        }
        let refuse = |what, why| Err(StepError::Part { what, why });
        if head_alone && !step.wanted.needs_head() {
            return refuse("the head", "a window without layers is run for logits");
        }
        if from_tokens {
            if self.weights.embedding.is_none() {
                return refuse("the embedding", "it is not held here");
            }
            if start != 0 {
                return refuse("the embedding", "the window does not begin with the first layer");
            }
        }
        if step.wanted.selection().is_some() && end != block_count {
            return refuse("a selection of rows", "the window does not reach the end of the model");
        }
        if step.wanted.needs_head() && self.weights.head.is_none() {
            return refuse("the head", "it is not held here");
        }
        Ok(())
    }

    fn check_values(&self, step: &Step<'_>) -> Result<(), StepError> {
        let rows = step.rows.len();
        let (given, expected) = match step.entering {
            Entering::Tokens(tokens) => (tokens.len(), rows),
            Entering::Hidden(values) => (values.len(), rows * self.hyper.embedding_length),
        };
        if given != expected {
            return Err(StepError::Length { given, rows, expected });
        }
        if let Entering::Tokens(tokens) = step.entering {
            let size = self.hyper.vocabulary_size;
            let known = |token: Token| usize::try_from(token).is_ok_and(|token| token < size);
            if let Some(token) = tokens.iter().copied().find(|token| !known(*token)) {
                return Err(StepError::UnknownToken { token, size });
            }
        }
        if let Some((wanted, states)) = step.wanted.selection()
            && let Some(row) = wanted.iter().chain(states).copied().find(|row| *row >= rows)
        {
            return Err(StepError::UnknownRow { row, rows });
        }
        Ok(())
    }

    /// Runs what is one graph on one device.
    pub(crate) fn compute(
        &mut self,
        step: &Step<'_>,
        scratch: &mut Scratch,
        product: &mut Vec<f32>,
    ) -> Result<(), StepError> {
        let window = self.hyper.sliding_window;
        rows::into_groups(
            &scratch.runs,
            |end| self.cache.cells_for(end, window),
            &mut scratch.groups,
        );
        if step.layers.is_empty() {
            // Nothing attends, so that one graph serves all positions.
            scratch.groups.clear();
        }
        self.follow_store()?;
        let index = self.graph_for(step, &scratch.groups)?;
        self.write_inputs(index, step, scratch);
        let window = self.graphs.get_mut(index);
        let site = self.workers.sites.of_window(&window.key.layers, window.key.from_tokens);
        let worker = self.workers.at(site);
        match &mut self.store {
            Some(store) if site == Site::Processor => {
                store.run(&mut worker.backend, window, self.reading)?;
            }
            _ => worker.backend.compute(&window.graph)?,
        }
        if self.mapped_files.iter().any(|file| file.was_truncated()) {
            return Err(StepError::Truncated);
        }
        let outputs = [window.product, window.states];
        let lengths =
            outputs.map(|output| output.map_or(0, |output| window.graph.output_elements(output)));
        // Of the same length as before it keeps its memory as it is: all of it is replaced.
        product.resize(lengths.iter().sum(), 0.0);
        let (first, second) = product.split_at_mut(lengths[0]);
        for (output, values) in outputs.into_iter().zip([first, second]) {
            if let Some(output) = output {
                window.graph.read(output, values);
            }
        }
        Ok(())
    }

    /// The index of a graph for this step, with memory; built if there is none yet.
    fn graph_for(&mut self, step: &Step<'_>, groups: &[Group]) -> Result<usize, StepError> {
        let matches = |key: &GraphKey| {
            key.layers == step.layers
                && key.from_tokens == matches!(step.entering, Entering::Tokens(_))
                && (key.product, key.selected) == product_of(step)
                && key.rows == step.rows.len()
                && key.groups == groups
        };
        if let Some(found) = self.graphs.find(|window| matches(&window.key)) {
            self.place(found)?;
            return Ok(found);
        }
        let (product, selected) = product_of(step);
        let key = GraphKey {
            layers: step.layers.clone(),
            from_tokens: matches!(step.entering, Entering::Tokens(_)),
            product,
            selected,
            rows: step.rows.len(),
            groups: groups.to_vec(),
        };
        let tensors = graphs::tensors_max(&key, &self.hyper);
        let mut built = graphs::build(key, self.sources());
        if let Some(store) = &self.store {
            store.cut(&mut built);
        }
        let index = self.graphs.keep(built, tensors);
        self.place(index)?;
        Ok(index)
    }

    /// Gives a graph memory unless it still has it.
    fn place(&mut self, index: usize) -> Result<(), AllocateError> {
        let window = self.graphs.get_mut(index);
        if window.graph.is_allocated() {
            return Ok(());
        }
        let site = self.workers.sites.of_window(&window.key.layers, window.key.from_tokens);
        self.workers.at(site).memory.allocate(&mut window.graph)
    }

    pub(crate) fn sources(&self) -> Sources<'_> {
        Sources { hyper: &self.hyper, weights: &self.weights, cache: &self.cache }
    }

    fn write_inputs(&mut self, index: usize, step: &Step<'_>, scratch: &mut Scratch) {
        let window = self.graphs.get_mut(index);
        match step.entering {
            Entering::Tokens(tokens) => window.graph.write(window.rows, tokens),
            Entering::Hidden(values) => window.graph.write(window.rows, values),
        }
        if let Some(positions) = window.positions {
            scratch.numbers.clear();
            scratch.numbers.extend(step.rows.iter().map(|row| as_i32(row.position)));
            window.graph.write(positions, &scratch.numbers);
        }
        if let (Some(selection), Some((rows, states))) = (window.selection, step.wanted.selection())
        {
            scratch.numbers.clear();
            scratch.numbers.extend(rows.iter().chain(states).map(|row| as_i32(*row)));
            window.graph.write(selection, &scratch.numbers);
        }
        let sliding_window = self.hyper.sliding_window;
        let shape = self.cache.shape();
        let WindowGraph { graph, full, sliding, .. } = window;
        if let Some(look) = full {
            let rule = LookRule { cells: shape.full_cells(), window: None };
            write_look(graph, look, rule, step.rows, scratch);
        }
        if let (Some(look), Some(window)) = (sliding, sliding_window) {
            let rule = LookRule { cells: shape.window_cells(window), window: Some(window) };
            write_look(graph, look, rule, step.rows, scratch);
        }
    }
}

/// The layouts of weights that are kept so.
pub(crate) fn layouts(
    backend: &mut Backend,
    model: &Model,
    choice: LayoutChoice,
    placement: &Placement,
) -> Result<Layouts, TensorError> {
    match choice {
        LayoutChoice::Measured if placement.fixed().is_some() => Layouts::measure(backend, model),
        _ => Ok(Layouts::plain()),
    }
}

/// The files whose maps these weights are read from.
pub(crate) fn mapped_files(model: &Model, weights: &Weights) -> Vec<Arc<MappedFile>> {
    if weights.mapped_bytes == 0 { Vec::new() } else { model.files().to_vec() }
}

/// Where one kind of layer keeps positions and which of them it sees.
#[derive(Clone, Copy, Debug)]
struct LookRule {
    cells: usize,
    window: Option<usize>,
}

/// Writes the cells and masks of one kind of layer.
fn write_look(
    graph: &mut Graph,
    look: &LookInputs,
    LookRule { cells, window }: LookRule,
    rows: &[Row],
    scratch: &mut Scratch,
) {
    scratch.cells.clear();
    scratch.cells.extend(rows.iter().map(|row| {
        i64::try_from(row.slot * cells + row.position % cells).expect("cells fit memory")
    }));
    graph.write(look.cells, &scratch.cells);
    let mut runs = scratch.runs.iter();
    for (group, mask) in scratch.groups.iter().zip(&look.masks) {
        let columns = if window.is_some() { group.window_cells } else { group.cells };
        scratch.mask.clear();
        for run in runs.by_ref().take(group.slots) {
            masks::append(run.positions(), cells, columns, window, &mut scratch.mask);
        }
        graph.write(*mask, &scratch.mask);
    }
}

fn product_of(step: &Step<'_>) -> (Product, Option<usize>) {
    let selected = step.wanted.selection();
    let product = match selected {
        Some((_, states)) if step.wanted.needs_head() => Product::Logits { states: states.len() },
        _ => Product::Hidden,
    };
    (product, selected.map(|(rows, states)| rows.len() + states.len()))
}

fn check_options(hyper: &HyperParameters, options: &EngineOptions) -> Result<(), LoadError> {
    let block_count = hyper.block_count;
    if options.layers.ranges().last().is_some_and(|last| last.end > block_count) {
        return Err(LoadError::Layers { layers: options.layers.clone(), block_count });
    }
    if let Some(given) = options.placement.residencies()
        && given != options.layers.len()
    {
        return Err(LoadError::Placement { given, layers: options.layers.len() });
    }
    for (what, value) in [
        ("the number of slots", options.slots),
        ("the context", options.context_tokens),
        ("the batch size", options.batch_rows_max),
        ("the number of threads", options.threads.threads),
        ("the number of threads for prompts", options.batch_threads.unwrap_or(1)),
    ] {
        if value == 0 {
            return Err(LoadError::Zero { what });
        }
    }
    if options.context_tokens as u64 > hyper.context_length {
        let (asked, trained) = (options.context_tokens, hyper.context_length);
        return Err(LoadError::Context { asked, trained });
    }
    let element = options.cache;
    let heads = [hyper.key_length, hyper.value_length];
    for (stored, head_elements) in element.elements().into_iter().zip(heads) {
        if stored.row_bytes(head_elements).is_none() {
            return Err(LoadError::CacheElement { element, head_elements });
        }
    }
    Ok(())
}

fn as_i32(value: usize) -> i32 {
    i32::try_from(value).expect("positions and rows are limited by the context")
}
