//! Times of layers and head: the engine's own graphs on a cut model.

use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use motley_ggml::ThreadPoolOptions;
use motley_model::ModelDirectory;

use super::cut::{Cut, CutModel, Kind, Room, choose};
use super::{MeasureError, lower_quartile};
use crate::cache::CacheElement;
use crate::engine::{Engine, EngineOptions, Entering, LayoutChoice, Step, Wanted};
use crate::placement::Residency;
use crate::rows::Row;
use crate::sampling::PositionedRandom;

/// What a pass is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PassKind {
    /// Consecutive tokens of one sequence.
    Prefill,
    /// One token each of several sequences.
    Decode,
}

/// A pass to be timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedPass {
    /// What it is for.
    pub kind: PassKind,
    /// Tokens in it.
    pub tokens: usize,
    /// Tokens that every sequence already has.
    pub depth_tokens: usize,
}

impl TimedPass {
    fn sequences(&self) -> usize {
        match self.kind {
            PassKind::Prefill => 1,
            PassKind::Decode => self.tokens,
        }
    }

    fn end_tokens(&self) -> usize {
        self.depth_tokens + self.tokens / self.sequences()
    }

    fn rows(&self) -> Vec<Row> {
        let row = |index: usize| match self.kind {
            PassKind::Prefill => Row { slot: 0, position: self.depth_tokens + index },
            PassKind::Decode => Row { slot: index, position: self.depth_tokens },
        };
        (0..self.tokens).map(row).collect()
    }
}

/// What a pass took, without what every pass costs whatever it does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PassTimes {
    /// The pass.
    pub pass: TimedPass,
    /// Mean time of the model's layers that see everything; none in a model without them.
    pub full_layer: Option<Duration>,
    /// Mean time of the model's layers with a sliding window.
    pub sliding_layer: Option<Duration>,
    /// Time of the head for as many rows as the pass has sequences; of decoding only, and none where
    /// it is not timed.
    pub head: Option<Duration>,
}

/// How to measure.
#[derive(Clone, Debug)]
pub struct MeterOptions {
    /// Compute threads.
    pub threads: ThreadPoolOptions,
    /// How keys and values are cached.
    pub cache: CacheElement,
    /// How weights are laid out.
    pub layout: LayoutChoice,
    /// Where weights are kept.
    pub residency: Residency,
    /// Folder for the made-up weights; they take at most `memory_bytes` of its disk.
    pub folder: PathBuf,
    /// Memory that weights, keys and values may take.
    pub memory_bytes: u64,
    /// Whether the head is timed too, which takes its memory.
    pub head: bool,
    /// What every pass costs whatever it does, see
    /// [`ProcessorMeter::pass_overhead`](super::ProcessorMeter::pass_overhead).
    pub pass_overhead: Duration,
}

/// A cut model under an engine, and passes to time.
#[derive(Debug)]
pub struct ModelMeter {
    engine: Engine,
    // The engine maps its weights.
    _cut: CutModel,
    kinds: Vec<Kind>,
    probes: Vec<Vec<Probe>>,
    passes: Vec<TimedPass>,
    /// Tokens that each slot holds in all layers before its next pass.
    held: Vec<Option<usize>>,
    hidden: Vec<f32>,
    product: Vec<f32>,
    pass_overhead: Duration,
}

/// One window of one pass.
#[derive(Debug)]
struct Probe {
    /// Of the cut model; empty for the head.
    layers: Range<usize>,
    /// The kind of its layers; none for the head.
    kind: Option<usize>,
    /// Of each run, or of short passes the mean of each turn.
    times: Vec<Duration>,
    /// Of all runs together.
    spent: Duration,
}

/// Passes with more tokens are timed on few layers: arithmetic is the same on every one.
const TOKENS_OF_WHOLE_WINDOWS: usize = 16;

/// Layers of a kind in a pass with many tokens. More of them would leave time for fewer runs.
const LAYERS_OF_LARGE_PASSES: usize = 1;

/// Passes with more tokens have turns of one run.
const TOKENS_OF_SHORT_PASSES: usize = 64;

/// Runs of one pass at most.
const RUNS_MAX: usize = 40;

/// Runs that every pass gets, whatever its share of the time.
const RUNS_MIN: usize = 3;

/// Runs of a short pass before another has its turn, and their time at most.
const RUNS_PER_TURN: usize = 8;
const TURN: Duration = Duration::from_millis(200);

/// What keys and values consist of: a small half-precision number, or scale and small numbers.
const CACHE_BYTE: u8 = 0x2e;

impl ModelMeter {
    /// Makes weights for a few layers of the model that `directory` describes, and for its head.
    /// Passes that reach beyond the model's context are left out.
    ///
    /// # Errors
    /// When memory or the folder does not suffice.
    pub fn new(
        directory: &ModelDirectory,
        passes: &[TimedPass],
        options: &MeterOptions,
    ) -> Result<Self, MeasureError> {
        let trained = usize::try_from(directory.hyper.context_length).unwrap_or(usize::MAX);
        let passes: Vec<TimedPass> = passes
            .iter()
            .copied()
            .filter(|pass| pass.tokens > 0 && pass.end_tokens() <= trained)
            .collect();
        let most = |of: fn(&TimedPass) -> usize| passes.iter().map(of).max().unwrap_or(1);
        let (slots, context_tokens) = (most(TimedPass::sequences), most(TimedPass::end_tokens));
        let kinds = choose(
            directory,
            Room {
                bytes: options.memory_bytes,
                cells: (slots * context_tokens.next_multiple_of(256)) as u64,
                cell_element_bytes: 2,
                head: options.head,
            },
        )?;
        let cut = Cut::new(directory, &kinds, options.head).open(&options.folder)?;
        let engine = Engine::load(
            &cut.model,
            &EngineOptions {
                layers: (0..cut.model.directory().hyper.block_count).into(),
                embedding: false,
                head: options.head,
                slots,
                context_tokens,
                batch_rows_max: most(|pass| pass.tokens),
                cache: options.cache,
                threads: options.threads,
                batch_threads: None,
                layout: options.layout,
                placement: options.residency.into(),
            },
        )?;
        let width = directory.hyper.embedding_length;
        let random = PositionedRandom::new(1);
        let values = most(|pass| pass.tokens) * width;
        Ok(Self {
            probes: passes.iter().map(|pass| probes(*pass, &kinds, options.head)).collect(),
            held: vec![None; slots],
            hidden: (0..values).map(|at| random.uniform(at as u64, 0) as f32 - 0.5).collect(),
            product: Vec::new(),
            pass_overhead: options.pass_overhead,
            engine,
            _cut: cut,
            kinds,
            passes,
        })
    }

    /// Layers that are timed, and bytes of their weights and the head's in all layouts.
    pub fn layers(&self) -> (usize, u64) {
        let memory = self.engine.memory();
        let gpus: u64 = self.engine.gpu_memory().iter().map(|gpu| gpu.weights_bytes).sum();
        let bytes = memory.weights_mapped_bytes + memory.weights_allocated_bytes + gpus;
        (self.engine.layers().len(), bytes)
    }

    /// Times all passes in turn, round after round, for about `time`; tells `tick` how much of it
    /// is gone, from 0 to 1. Every pass has at least one timed run, however long it takes.
    ///
    /// # Errors
    /// When a pass fails.
    pub fn run(
        &mut self,
        time: Duration,
        tick: &mut dyn FnMut(f64),
    ) -> Result<Vec<PassTimes>, MeasureError> {
        let begun = Instant::now();
        let gone = |begun: Instant| begun.elapsed().as_secs_f64() / time.as_secs_f64().max(1e-9);
        for pass in 0..self.passes.len() {
            // The first run builds graphs; in short passes it is no measurement.
            self.run_pass(pass)?;
            if self.passes[pass].tokens <= TOKENS_OF_SHORT_PASSES {
                self.forget_last(pass);
            }
            tick(gone(begun).min(1.0));
        }
        let share = time / self.passes.len().max(1) as u32;
        loop {
            let mut ran = false;
            for pass in 0..self.passes.len() {
                let (runs, spent) = self.state(pass);
                let enough = runs >= RUNS_MAX || (runs >= RUNS_MIN && spent >= share);
                if enough || (runs > 0 && begun.elapsed() >= time) {
                    continue;
                }
                self.take_turn(pass)?;
                ran = true;
                tick(gone(begun).min(1.0));
            }
            if !ran {
                break;
            }
        }
        Ok((0..self.passes.len()).map(|pass| self.result(pass)).collect())
    }

    fn run_pass(&mut self, pass: usize) -> Result<(), MeasureError> {
        for probe in 0..self.probes[pass].len() {
            let took = self.time(self.passes[pass], self.probes[pass][probe].layers.clone())?;
            self.probes[pass][probe].times.push(took);
            self.probes[pass][probe].spent += took;
        }
        Ok(())
    }

    fn forget_last(&mut self, pass: usize) {
        for probe in &mut self.probes[pass] {
            probe.times.pop();
        }
    }

    /// Several runs of a short pass after one that wakes the threads, or one of a long pass. Windows
    /// and head follow each other as in a whole model, so that caches hold as much as they do there.
    /// The runs of a turn count as one, of their mean: where a group of programs may only use a
    /// processor for part of each moment, some runs are not held up at all and others for long.
    fn take_turn(&mut self, pass: usize) -> Result<(), MeasureError> {
        let short = self.passes[pass].tokens <= TOKENS_OF_SHORT_PASSES;
        self.run_pass(pass)?;
        if !short {
            return Ok(());
        }
        self.forget_last(pass);
        let turns = self.state(pass).0;
        let begun = Instant::now();
        for _ in 0..RUNS_PER_TURN {
            self.run_pass(pass)?;
            if begun.elapsed() >= TURN {
                break;
            }
        }
        for probe in &mut self.probes[pass] {
            let runs: Vec<Duration> = probe.times.drain(turns..).collect();
            let count = u32::try_from(runs.len()).unwrap_or(1).max(1);
            probe.times.push(runs.iter().sum::<Duration>() / count);
        }
        Ok(())
    }

    /// Runs and time of a pass so far.
    fn state(&self, pass: usize) -> (usize, Duration) {
        let probes = &self.probes[pass];
        let runs = probes.first().map_or(RUNS_MAX, |probe| probe.times.len());
        (runs, probes.iter().map(|probe| probe.spent).sum())
    }

    fn time(&mut self, pass: TimedPass, layers: Range<usize>) -> Result<Duration, MeasureError> {
        let rows = pass.rows();
        let all: Vec<usize> = (0..rows.len()).collect();
        let is_head = layers.is_empty();
        if !is_head {
            (0..pass.sequences()).try_for_each(|slot| self.set_back(slot, pass.depth_tokens))?;
        }
        let width = self.engine.hyper().embedding_length;
        let step = Step {
            layers,
            rows: &rows,
            entering: Entering::Hidden(&self.hidden[..rows.len() * width]),
            wanted: if is_head { Wanted::Logits(&all) } else { Wanted::Hidden },
        };
        let start = Instant::now();
        self.engine.run(&step, &mut self.product)?;
        let took = start.elapsed();
        // Never more than a part of it: the overhead was measured at another moment.
        Ok(took - self.pass_overhead.min(took / 4))
    }

    /// Gives a slot a history of `depth` tokens in all layers, unless it has it: a pass repeats
    /// the last one's positions, and every layer keeps what they look at.
    fn set_back(&mut self, slot: usize, depth: usize) -> Result<(), MeasureError> {
        if self.held[slot] == Some(depth) {
            return Ok(());
        }
        let layers = 0..self.engine.hyper().block_count;
        self.engine.clear(slot);
        if depth > 0 {
            let bytes = vec![CACHE_BYTE; self.engine.cache_export_bytes(layers.clone(), depth)];
            self.engine.import_cache(layers, slot, depth, &bytes)?;
        }
        self.held[slot] = Some(depth);
        Ok(())
    }

    fn result(&self, pass: usize) -> PassTimes {
        let mean = |sliding: bool| {
            let (mut time, mut count) = (0.0, 0.0);
            for probe in &self.probes[pass] {
                let Some(kind) = probe.kind.map(|kind| &self.kinds[kind]) else { continue };
                if kind.sliding == sliding {
                    let layer = quartile_s(probe) / probe.layers.len() as f64;
                    time += layer * kind.stands_for;
                    count += kind.stands_for;
                }
            }
            (count > 0.0).then(|| Duration::from_secs_f64(time / count))
        };
        let head = self.probes[pass].iter().find(|probe| probe.kind.is_none());
        PassTimes {
            pass: self.passes[pass],
            full_layer: mean(false),
            sliding_layer: mean(true),
            head: head.map(|probe| Duration::from_secs_f64(quartile_s(probe))),
        }
    }
}

fn quartile_s(probe: &Probe) -> f64 {
    lower_quartile(&probe.times).as_secs_f64()
}

/// The windows of one pass: a part of the layers of each kind, and the head.
fn probes(pass: TimedPass, kinds: &[Kind], head: bool) -> Vec<Probe> {
    let large = pass.tokens > TOKENS_OF_WHOLE_WINDOWS;
    let most = if large { LAYERS_OF_LARGE_PASSES } else { usize::MAX };
    let layers = kinds.iter().enumerate().map(|(kind, of)| {
        let end = of.layers.start + of.layers.len().min(most);
        Probe {
            layers: of.layers.start..end,
            kind: Some(kind),
            times: Vec::new(),
            spent: Duration::ZERO,
        }
    });
    let after_all = kinds.iter().map(|kind| kind.layers.end).max().unwrap_or(0);
    let head = (head && pass.kind == PassKind::Decode).then(|| Probe {
        layers: after_all..after_all,
        kind: None,
        times: Vec::new(),
        spent: Duration::ZERO,
    });
    layers.chain(head).collect()
}
