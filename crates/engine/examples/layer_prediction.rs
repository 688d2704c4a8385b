//! How near times of a whole model are to those that its measured layers predict.
//!
//! `cargo run --release -p motley-engine --example layer_prediction -- MODEL.gguf [THREADS]`
//!
//! Layers of a cut model and the whole model run in turn, a second each, and of both sides the
//! lower quartile counts, so that whatever else the machine does disturbs both alike.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement prints what it found, and reads the clock and its arguments"
)]

use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use motley_engine::{
    CacheElement, Engine, EngineOptions, Entering, LayoutChoice, MeterOptions, Model, ModelMeter,
    PassKind, ProcessorMeter, Residency, Row, Step, TimedPass, Wanted,
};
use motley_ggml::ThreadPoolOptions;

/// Turns of both sides.
const ROUNDS: usize = 12;

const DECODE_DEPTH: usize = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let path = PathBuf::from(words.next().ok_or("which model?")?);
    let threads = words.next().map_or(Ok(2), |word| word.parse())?;
    let threads = ThreadPoolOptions { threads, poll_percent: 50, pinned: false };
    let pass = |kind, tokens, depth_tokens| TimedPass { kind, tokens, depth_tokens };
    let passes = [
        pass(PassKind::Decode, 1, DECODE_DEPTH),
        pass(PassKind::Decode, 8, DECODE_DEPTH),
        pass(PassKind::Decode, 32, DECODE_DEPTH),
        pass(PassKind::Prefill, 512, 0),
    ];
    let model = Model::open(&path)?;
    let mut meter = meter(&model, &passes, threads)?;
    let mut whole = Whole::load(&model, threads)?;
    let mut measured: Vec<Vec<Duration>> = vec![Vec::new(); passes.len()];
    let mut predicted = Vec::new();
    for round in 0..ROUNDS {
        predicted = meter.run(Duration::from_secs(1), &mut |_| {})?;
        for (pass, times) in passes.iter().zip(&mut measured) {
            // A long pass takes seconds alone.
            if pass.tokens < 64 || round % 3 == 0 {
                whole.time(*pass, times)?;
            }
        }
    }
    let hyper = &model.directory().hyper;
    let sliding = hyper.layers.iter().filter(|layer| layer.window_tokens.is_some()).count();
    let (layers, bytes) = meter.layers();
    println!("{}: {layers} layers timed, {:.0} MB", path.display(), bytes as f64 / 1e6);
    println!("pass            predicted ms   measured ms   ratio");
    let head = predicted[0].head;
    for (times, measured) in predicted.iter().zip(&mut measured) {
        let layers = times.full_layer.unwrap_or_default() * (hyper.layers.len() - sliding) as u32
            + times.sliding_layer.unwrap_or_default() * sliding as u32;
        let all = (layers + times.head.or(head).unwrap_or_default()).as_secs_f64() * 1e3;
        measured.sort_unstable();
        let real = measured[measured.len() / 4].as_secs_f64() * 1e3;
        let name = format!("{:?} {}", times.pass.kind, times.pass.tokens);
        println!("{name:<14}{all:>14.2}{real:>14.2}{:>8.3}", all / real);
    }
    Ok(())
}

fn meter(
    model: &Model,
    passes: &[TimedPass],
    threads: ThreadPoolOptions,
) -> Result<ModelMeter, Box<dyn Error>> {
    let pass_overhead = ProcessorMeter::new(threads).pass_overhead(Duration::from_millis(100))?;
    let options = MeterOptions {
        threads,
        cache: CacheElement::F16,
        layout: LayoutChoice::Measured,
        residency: Residency::Ram,
        folder: std::env::temp_dir(),
        memory_bytes: 2 << 30,
        head: true,
        pass_overhead,
    };
    Ok(ModelMeter::new(model.directory(), passes, &options)?)
}

/// The whole model in one window.
struct Whole {
    engine: Engine,
    logits: Vec<f32>,
}

impl Whole {
    fn load(model: &Model, threads: ThreadPoolOptions) -> Result<Self, Box<dyn Error>> {
        let options = EngineOptions {
            layers: (0..model.directory().hyper.block_count).into(),
            embedding: true,
            head: true,
            slots: 32,
            context_tokens: 512,
            batch_rows_max: 512,
            cache: CacheElement::F16,
            threads,
            batch_threads: None,
            layout: LayoutChoice::Measured,
            placement: Residency::Ram.into(),
        };
        let mut whole = Self { engine: Engine::load(model, &options)?, logits: Vec::new() };
        let before: Vec<Row> =
            (0..DECODE_DEPTH).map(|position| Row { slot: 0, position }).collect();
        whole.run(&before, &[])?;
        let layers = 0..whole.engine.hyper().block_count;
        let cached = whole.engine.export_cache(layers.clone(), 0, DECODE_DEPTH)?;
        for slot in 1..whole.engine.slots() {
            whole.engine.import_cache(layers.clone(), slot, DECODE_DEPTH, &cached)?;
        }
        Ok(whole)
    }

    /// A quarter of a second of runs over slots that all have the context of decoding; they can go
    /// back to it. The first run of a short pass does not count: the threads of the other side may
    /// still be awake.
    fn time(&mut self, pass: TimedPass, times: &mut Vec<Duration>) -> Result<(), Box<dyn Error>> {
        let row = |index: usize| match pass.kind {
            PassKind::Decode => Row { slot: index, position: pass.depth_tokens },
            PassKind::Prefill => Row { slot: 0, position: index },
        };
        let rows: Vec<Row> = (0..pass.tokens).map(row).collect();
        let wanted: Vec<usize> = match pass.kind {
            PassKind::Decode => (0..pass.tokens).collect(),
            PassKind::Prefill => vec![pass.tokens - 1],
        };
        if pass.tokens < 64 {
            self.run(&rows, &wanted)?;
        }
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(250) {
            let start = Instant::now();
            self.run(&rows, &wanted)?;
            times.push(start.elapsed());
        }
        Ok(())
    }

    fn run(&mut self, rows: &[Row], wanted: &[usize]) -> Result<(), Box<dyn Error>> {
        let layers = 0..self.engine.hyper().block_count;
        let tokens: Vec<i32> = rows
            .iter()
            .map(|row| ((row.slot * 7919 + row.position * 104_729) % 1000) as i32)
            .collect();
        let step = Step {
            layers,
            rows,
            entering: Entering::Tokens(&tokens),
            wanted: Wanted::Logits(wanted),
        };
        Ok(self.engine.run(&step, &mut self.logits)?)
    }
}
