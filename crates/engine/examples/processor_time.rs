//! Processor time of this engine and of llama.cpp's library for the same work, one thread each, in
//! turn: on a machine that others use as well it says more than the clock.
//!
//! `cargo run --release -p motley-engine --example processor_time -- FILE [REPETITIONS]`; Linux.

#![expect(clippy::print_stdout, reason = "a measurement prints what it found")]

use std::error::Error;
use std::path::Path;

use motley_engine::{
    CacheElement, Engine, EngineOptions, Entering, LayoutChoice, LoadError, Model, Residency, Row,
    Step, Wanted,
};
use motley_ggml::{
    ElementType, ReferenceContext, ReferenceModel, ReferenceOptions, ReferenceRow,
    ThreadPoolOptions,
};

const THREADS: ThreadPoolOptions = ThreadPoolOptions { threads: 1, poll_percent: 0, pinned: false };

/// What is timed.
#[derive(Clone, Copy)]
struct Work {
    name: &'static str,
    sequences: usize,
    /// Rows of each sequence in a step.
    rows: usize,
    steps: usize,
}

const WORK: [Work; 4] = [
    Work { name: "decode", sequences: 1, rows: 1, steps: 24 },
    Work { name: "prefill", sequences: 1, rows: 512, steps: 1 },
    Work { name: "batch8", sequences: 8, rows: 1, steps: 8 },
    Work { name: "batch32", sequences: 32, rows: 1, steps: 4 },
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("no model file is given")?;
    let repetitions = arguments.next().map_or(Ok(7), |count| count.parse::<usize>())?;
    let repetitions = repetitions.max(1);
    let model = Model::open(Path::new(&file))?;
    let mut engine = engine(&model)?;
    let reference = ReferenceModel::load(Path::new(&file), true)?;
    println!("{:<10}{:>12}{:>12}{:>8}  spread", "", "ours, ms", "theirs, ms", "ratio");
    for work in WORK {
        let mut theirs = context(&reference, work)?;
        let (mut ours_ms, mut theirs_ms, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for repetition in 0..=repetitions {
            let [ours, theirs] = once(work, &mut engine, &mut theirs)?;
            // The first repetition builds graphs.
            if repetition > 0 {
                ours_ms.push(ours);
                theirs_ms.push(theirs);
                ratios.push(theirs / ours);
            }
        }
        for values in [&mut ours_ms, &mut theirs_ms, &mut ratios] {
            values.sort_by(f64::total_cmp);
        }
        let middle = repetitions / 2;
        println!(
            "{:<10}{:>12.1}{:>12.1}{:>8.3}  {:.2} to {:.2}",
            work.name,
            ours_ms[middle],
            theirs_ms[middle],
            ratios[middle],
            ratios[0],
            ratios[repetitions - 1]
        );
    }
    Ok(())
}

fn engine(model: &Model) -> Result<Engine, LoadError> {
    let options = EngineOptions {
        layers: (0..model.directory().hyper.block_count).into(),
        embedding: true,
        head: true,
        slots: 32,
        context_tokens: 512,
        batch_rows_max: 512,
        cache: CacheElement::F16,
        threads: THREADS,
        batch_threads: None,
        layout: LayoutChoice::Measured,
        placement: Residency::Mapped.into(),
    };
    Engine::load(model, &options)
}

fn context(reference: &ReferenceModel, work: Work) -> Result<ReferenceContext<'_>, Box<dyn Error>> {
    let options = ReferenceOptions {
        context_tokens: 512,
        sequences: u32::try_from(work.sequences)?,
        batch_rows: 512,
        cache_elements: [ElementType::F16; 2],
        threads: THREADS,
        batch_threads: None,
    };
    Ok(ReferenceContext::new(reference, options)?)
}

/// Processor time of one run of ours and of theirs, ms.
fn once(
    work: Work,
    engine: &mut Engine,
    context: &mut ReferenceContext<'_>,
) -> Result<[f64; 2], Box<dyn Error>> {
    let Work { sequences, rows, steps, .. } = work;
    let answers = rows == 1;
    let row = |step: usize, index: usize| Row {
        slot: index / rows,
        position: if answers { step } else { index % rows },
    };
    // The first step of answers fills caches and is not timed.
    let all = (0..steps + usize::from(answers))
        .map(|step| (0..sequences * rows).map(move |i| row(step, i)));
    let batches: Vec<Vec<Row>> = all.map(Iterator::collect).collect();
    let (first, timed) = batches.split_at(usize::from(answers));
    let mut logits = Vec::new();
    (0..engine.slots()).for_each(|slot| engine.clear(slot));
    first.iter().try_for_each(|batch| ours(engine, batch, &mut logits))?;
    let began_ms = processor_ms()?;
    timed.iter().try_for_each(|batch| ours(engine, batch, &mut logits))?;
    let ours_ms = processor_ms()? - began_ms;
    context.clear();
    first.iter().try_for_each(|batch| other(context, batch))?;
    let began_ms = processor_ms()?;
    timed.iter().try_for_each(|batch| other(context, batch))?;
    Ok([ours_ms, processor_ms()? - began_ms])
}

fn token(row: &Row) -> i32 {
    i32::try_from(1000 + (row.slot * 7919 + row.position * 104_729) % 20_000).unwrap_or(1000)
}

/// Logits of every row of answers, of a prompt's last row.
fn wanted(rows: &[Row]) -> Vec<usize> {
    let one_slot = rows.iter().all(|row| row.slot == 0);
    if one_slot { vec![rows.len() - 1] } else { (0..rows.len()).collect() }
}

fn ours(engine: &mut Engine, rows: &[Row], logits: &mut Vec<f32>) -> Result<(), Box<dyn Error>> {
    let tokens: Vec<i32> = rows.iter().map(token).collect();
    let step = Step {
        layers: 0..engine.hyper().block_count,
        rows,
        entering: Entering::Tokens(&tokens),
        wanted: Wanted::Logits(&wanted(rows)),
    };
    Ok(engine.run(&step, logits)?)
}

fn other(context: &mut ReferenceContext<'_>, rows: &[Row]) -> Result<(), Box<dyn Error>> {
    let wanted = wanted(rows);
    let rows: Result<Vec<ReferenceRow>, std::num::TryFromIntError> = rows
        .iter()
        .enumerate()
        .map(|(index, row)| {
            Ok(ReferenceRow {
                token: token(row),
                position: u32::try_from(row.position)?,
                sequence: u32::try_from(row.slot)?,
                logits: wanted.contains(&index),
            })
        })
        .collect();
    Ok(context.decode(&rows?)?)
}

/// Time that this thread has run.
fn processor_ms() -> Result<f64, Box<dyn Error>> {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let ran_ns = told.split_whitespace().next().ok_or("the system tells no processor time")?;
    Ok(ran_ns.parse::<f64>()? / 1e6)
}
