//! What the size of streamed pieces does to a token's time.
//!
//! `cargo run --release -p motley-engine --example stream_pieces -- MODEL.gguf BUDGET_BYTES [THREADS]`
//!
//! The model is loaded into the budget with pieces of each size in turn, several times over, and
//! decodes some tokens of one sequence. A size of all stands for whole layers.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement prints what it found, and reads the clock and its arguments"
)]

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use motley_engine::{
    CacheElement, Engine, EngineOptions, Entering, LayoutChoice, Model, Placement, Row, Step,
    StreamOptions, Wanted,
};
use motley_ggml::ThreadPoolOptions;

const MIB: usize = 1 << 20;

/// Sizes of pieces; the last is more than any layer has.
const PIECE_BYTES: [usize; 5] = [4 * MIB, 8 * MIB, 16 * MIB, 32 * MIB, usize::MAX];

/// Turns over all sizes.
const ROUNDS: usize = 3;

/// Tokens before those that are timed: the order of pieces is learned from them.
const WARM_TOKENS: usize = 2;
const TIMED_TOKENS: usize = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let path = PathBuf::from(words.next().ok_or("which model?")?);
    let budget_bytes: u64 = words.next().ok_or("how many bytes may it take?")?.parse()?;
    let threads = words.next().map_or(Ok(1), |word| word.parse())?;
    let threads = ThreadPoolOptions { threads, poll_percent: 50, pinned: false };
    let model = Model::open(&path)?;
    println!("piece MiB   round   streamed MB   buffer MB   ms per token   MB/s");
    for round in 1..=ROUNDS {
        for piece_bytes in PIECE_BYTES {
            let streamed_by = StreamOptions { piece_bytes, ..StreamOptions::default() };
            let options = EngineOptions {
                layers: (0..model.directory().hyper.block_count).into(),
                embedding: true,
                head: true,
                slots: 1,
                context_tokens: 64,
                batch_rows_max: 8,
                cache: CacheElement::F16,
                threads,
                batch_threads: None,
                layout: LayoutChoice::Plain,
                placement: Placement::within(budget_bytes).streamed_by(streamed_by),
            };
            let mut engine = Engine::load(&model, &options)?;
            let figures = engine.stream_figures().ok_or("the budget holds all of the model")?;
            let token_s = token_s(&mut engine)?;
            let size = if piece_bytes == usize::MAX {
                "all".to_owned()
            } else {
                (piece_bytes / MIB).to_string()
            };
            let streamed = figures.streamed_bytes as f64;
            println!(
                "{size:>9}{round:>8}{:>14.0}{:>12.0}{:>15.1}{:>7.0}",
                streamed / 1e6,
                engine.memory().stream_bytes as f64 / 1e6,
                token_s * 1e3,
                streamed / token_s / 1e6
            );
        }
    }
    Ok(())
}

/// Seconds of a token, of the middle one of those timed.
fn token_s(engine: &mut Engine) -> Result<f64, Box<dyn Error>> {
    let (mut logits, mut times) = (Vec::new(), Vec::new());
    for position in 0..WARM_TOKENS + TIMED_TOKENS {
        let began = Instant::now();
        let step = Step {
            layers: 0..engine.hyper().block_count,
            rows: &[Row { slot: 0, position }],
            entering: Entering::Tokens(&[1]),
            wanted: Wanted::Logits(&[0]),
        };
        engine.run(&step, &mut logits)?;
        times.push(began.elapsed().as_secs_f64());
    }
    let timed = &mut times[WARM_TOKENS..];
    timed.sort_by(f64::total_cmp);
    Ok(timed[timed.len() / 2])
}
