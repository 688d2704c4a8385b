//! Weights that are read from disk for each use: the same logits, no more reading than needed, and
//! an error where the disk gives none.

mod common;

use common::{BATCH_ROWS, Cut, Fixture, Greedy, eight_slots, ours_greedy, run_cut};
use motley_engine::{
    CacheElement, Engine, EngineOptions, Entering, FileType, LayerSet, LayoutChoice, LoadError,
    ModelRecipe, Placement, ReadError, Residency, ResidencyError, Row, Step, StepError,
    StreamOptions, Wanted, read_rate, small_model,
};
use motley_ggml::Token;
use std::time::Duration;

use Residency::{Mapped, Ram, Stream};

const LAYERS: usize = 6;

/// A model whose matrices take several blocks of a disk.
fn recipe(architecture: &str) -> ModelRecipe {
    let mut recipe = small_model(architecture, FileType::Q8_0);
    recipe.shape.blocks = LAYERS;
    recipe.shape.vocabulary_size = Some(2048);
    recipe
}

/// Longer than a batch, so that a chunk passes of which nothing is wanted.
fn long_prompt() -> Vec<Token> {
    (0..i32::try_from(BATCH_ROWS).unwrap() + 44).map(|index| (index * 37 + 11) % 2000).collect()
}

/// Small pieces, reads and buffers, so that they wrap around and matrices take several reads.
fn small_reads() -> StreamOptions {
    StreamOptions {
        piece_bytes: 40_000,
        buffer_bytes: Some(0),
        read_bytes: 8192,
        ..StreamOptions::default()
    }
}

fn placements() -> Vec<Placement> {
    let uneven = vec![Stream, Ram, Stream, Stream, Mapped, Ram];
    vec![
        Stream.into(),
        Placement::from(Stream).streamed_by(small_reads()),
        Placement::from(Stream).streamed_by(StreamOptions { direct: false, ..small_reads() }),
        Placement::per_layer(uneven.clone()),
        Placement::per_layer(uneven).streamed_by(small_reads()),
        Placement::per_layer(vec![Ram; LAYERS]),
    ]
}

fn check_equal(found: &Greedy, expected: &Greedy, what: &str) {
    assert_eq!(found.tokens, expected.tokens, "{what}");
    assert!(found.logits == expected.logits, "{what}: logits differ");
}

#[test]
fn streamed_layers_give_the_logits_of_mapped_ones_in_every_architecture_and_cut() {
    for architecture in ["llama", "qwen2", "qwen3", "qwen3moe", "gemma3"] {
        let Some((_folder, fixture)) = Fixture::made(&recipe(architecture)) else { return };
        let mut mapped = fixture.engine(1, LayoutChoice::Plain, CacheElement::F16);
        let prompt = long_prompt();
        let expected = ours_greedy(&mut mapped, &Cut::whole(LAYERS), &prompt, 6);
        for placement in placements() {
            let mut engine =
                Engine::load(&fixture.model, &fixture.options(1, placement.clone())).unwrap();
            for cut in Cut::all(LAYERS) {
                let found = ours_greedy(&mut engine, &cut, &prompt, 6);
                check_equal(&found, &expected, &format!("{architecture}, {placement:?}, {cut:?}"));
            }
        }
    }
}

#[test]
fn a_real_model_streamed_within_any_budget_gives_the_logits_of_the_mapped_one() {
    let Some(fixture) = Fixture::open("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let prompt = fixture.tokens("The first snow fell on");
    let whole = Cut::whole(fixture.layers());
    let mut mapped = fixture.engine(1, LayoutChoice::Plain, CacheElement::F16);
    let expected = ours_greedy(&mut mapped, &whole, &prompt, 12);
    let all = mapped.memory().total_bytes();
    let mut streamed_before = u64::MAX;
    for percent in [85, 95, 99, 110] {
        let budget = all * percent / 100;
        let options = fixture.options(1, Placement::within(budget));
        let mut engine = Engine::load(&fixture.model, &options).unwrap();
        let streamed = engine.stream_figures().unwrap().streamed_bytes;
        assert!(engine.memory().total_bytes() <= budget, "{:?} of {budget}", engine.memory());
        assert!(streamed < streamed_before && (streamed == 0) == (percent == 110), "{streamed}");
        streamed_before = streamed;
        check_equal(&ours_greedy(&mut engine, &whole, &prompt, 12), &expected, "SmolLM2");
    }
}

#[test]
fn many_slots_and_chunks_in_one_batch_stream_too() {
    let Some((_folder, fixture)) = Fixture::made(&recipe("llama")) else { return };
    let run = |placement: Placement| eight_slots(&fixture, placement);
    let expected = run(Mapped.into());
    for placement in placements() {
        assert!(run(placement.clone()) == expected, "{placement:?}");
    }
}

fn step_of(layers: std::ops::Range<usize>, hidden: &[f32]) -> Step<'_> {
    const ROW: [Row; 1] = [Row { slot: 0, position: 0 }];
    Step { layers, rows: &ROW, entering: Entering::Hidden(hidden), wanted: Wanted::Hidden }
}

/// A ring's member with two windows that take turns, as rounds do, and one that skips a window.
#[test]
fn no_more_is_read_than_is_used_whatever_the_order_of_windows() {
    let Some((_folder, fixture)) = Fixture::made(&recipe("llama")) else { return };
    let hidden = vec![0.5; fixture.model.directory().hyper.embedding_length];
    for placement in placements().into_iter().take(3) {
        let options = EngineOptions {
            layers: LayerSet::new([0..2, 4..6]),
            embedding: false,
            head: false,
            ..fixture.options(1, placement)
        };
        let mut engine = Engine::load(&fixture.model, &options).unwrap();
        let per_token = engine.stream_figures().unwrap().streamed_bytes;
        let buffer = engine.memory().stream_bytes;
        let mut product = Vec::new();
        // First and last layer of each window.
        for (windows, share) in [
            (vec![[0, 1], [4, 5]], 1.0),
            (vec![[4, 5], [0, 1]], 1.0),
            (vec![[4, 5]], 0.5),
            (vec![[0, 0], [1, 1], [4, 4], [5, 5]], 1.0),
        ] {
            let mut run = |rounds: usize| {
                for [first, last] in windows.iter().cycle().take(windows.len() * rounds) {
                    engine.run(&step_of(*first..last + 1, &hidden), &mut product).unwrap();
                }
                engine.stream_figures().unwrap().bytes_read
            };
            // The first round learns the order.
            let before = run(2);
            let read = (run(10) - before) as f64;
            let used = 10.0 * share * per_token as f64;
            assert!((read - used).abs() <= buffer as f64, "{windows:?}: {read} read, {used} used");
        }
    }
}

#[test]
fn a_file_that_is_cut_while_it_is_streamed_fails_the_step() {
    for direct in [true, false] {
        let Some((folder, fixture)) = Fixture::made(&recipe("llama")) else { return };
        let stream = StreamOptions { direct, ..StreamOptions::default() };
        let placement = Placement::from(Stream).streamed_by(stream);
        let mut engine = Engine::load(&fixture.model, &fixture.options(1, placement)).unwrap();
        let mut logits = Vec::new();
        let mut run = |engine: &mut Engine, position| {
            let step = Step {
                layers: 0..LAYERS,
                rows: &[Row { slot: 0, position }],
                entering: Entering::Tokens(&[7]),
                wanted: Wanted::Logits(&[0]),
            };
            engine.run(&step, &mut logits)
        };
        run(&mut engine, 0).unwrap();
        let path = folder.path().join("made.gguf");
        let length = std::fs::metadata(&path).unwrap().len();
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(length / 2).unwrap();
        // What was read ahead may still serve one step.
        let failed = (0..3).map(|_| run(&mut engine, 0)).filter(Result::is_err).collect::<Vec<_>>();
        assert!(failed.len() >= 2, "{failed:?}");
        for error in failed {
            let truncated = matches!(error, Err(StepError::Read(ReadError::Truncated { .. })));
            assert!(truncated, "{error:?}");
        }
    }
}

#[test]
fn layers_move_between_memory_and_disk_while_a_sequence_goes_on() {
    let Some((_folder, fixture)) = Fixture::made(&recipe("llama")) else { return };
    let whole = Cut::whole(LAYERS);
    let mut mapped = fixture.engine(1, LayoutChoice::Plain, CacheElement::F16);
    let mut moving = Engine::load(&fixture.model, &fixture.options(1, Stream)).unwrap();
    let all = moving.stream_figures().unwrap().streamed_bytes;
    let plans: [[Residency; LAYERS]; 4] = [
        [Ram; LAYERS],
        [Ram, Stream, Ram, Stream, Ram, Stream],
        [Stream, Stream, Stream, Stream, Stream, Ram],
        [Stream; LAYERS],
    ];
    for position in 0..40 {
        if position % 5 == 0 {
            let plan = plans[position / 5 % plans.len()];
            moving.set_residency(&plan).unwrap();
            let found = moving.stream_figures().unwrap();
            assert!(found.streamed_bytes + found.resident_bytes >= all, "{found:?}");
        }
        if position % 10 == 3 {
            moving.settle().unwrap();
            let layers = moving.layer_weights();
            let plan = plans[position / 5 % plans.len()];
            for (layer, residency) in layers.iter().zip(plan) {
                assert_eq!(layer.streamed_bytes == 0, residency == Ram, "{layer:?}");
                assert_eq!(layer.resident_bytes == 0, residency == Stream, "{layer:?}");
            }
        }
        let rows = [Row { slot: 0, position }];
        let token = [Token::try_from(position * 31 % 2000).unwrap()];
        let expected = run_cut(&mut mapped, &whole, &rows, &token, &[0]);
        let found = run_cut(&mut moving, &whole, &rows, &token, &[0]);
        assert!(found == expected, "position {position}");
    }
}

#[test]
fn budgets_and_residencies_that_cannot_be_are_refused() {
    let Some((_folder, fixture)) = Fixture::made(&recipe("llama")) else { return };
    let load = |placement: Placement| Engine::load(&fixture.model, &fixture.options(1, placement));
    let refused = load(Placement::per_layer(vec![Ram])).unwrap_err();
    assert_eq!(refused.to_string(), "1 residencies for 6 layers");
    let Err(LoadError::Budget { least_bytes, whole_bytes, .. }) = load(Placement::within(1000))
    else {
        panic!("1,000 bytes sufficed");
    };
    let least = load(Placement::within(least_bytes)).unwrap();
    // An embedding of its own stays mapped, and is not the engine's to count.
    let of_its_own = least.memory().total_bytes() - least.memory().weights_mapped_bytes;
    assert!(of_its_own <= least_bytes, "{:?} in {least_bytes}", least.memory());
    assert!(matches!(load(Placement::within(least_bytes - 1)), Err(LoadError::Budget { .. })));
    let mut whole = load(Placement::within(whole_bytes)).unwrap();
    assert_eq!(whole.stream_figures().unwrap().streamed_bytes, 0);
    whole.set_memory_budget(least_bytes).unwrap();
    assert_eq!(whole.memory(), least.memory());
    let refused = whole.set_memory_budget(least_bytes - 1);
    assert!(matches!(refused, Err(ResidencyError::Budget { .. })));
    let mut fixed = load(Mapped.into()).unwrap();
    assert!(matches!(fixed.set_residency(&[Ram; LAYERS]), Err(ResidencyError::Fixed)));
    let refused = whole.set_residency(&[Mapped; LAYERS]);
    assert!(matches!(refused, Err(ResidencyError::Mapped { layer: 0 })));
}

/// Computing without reading leaves nothing behind that a later step could see.
#[test]
fn measuring_computation_and_the_disk_changes_no_result() {
    let Some((_folder, fixture)) = Fixture::made(&recipe("llama")) else { return };
    let whole = Cut::whole(LAYERS);
    let mut engine = Engine::load(&fixture.model, &fixture.options(1, Stream)).unwrap();
    let expected = ours_greedy(&mut engine, &whole, &[5, 6, 7], 6);
    let before = engine.stream_figures().unwrap().bytes_read;
    let step = Step {
        layers: 0..LAYERS,
        rows: &[Row { slot: 0, position: 0 }],
        entering: Entering::Tokens(&[7]),
        wanted: Wanted::Logits(&[0]),
    };
    let mut product = Vec::new();
    for _ in 0..20 {
        engine.run_without_reading(&step, &mut product).unwrap();
    }
    let read = engine.stream_figures().unwrap().bytes_read - before;
    assert!(read <= engine.memory().stream_bytes, "{read} bytes were on their way");
    engine.resume_reading();
    let rate = engine.measure_read_rate(Duration::from_millis(20)).unwrap().unwrap();
    assert!(rate.bytes > 0 && rate.bytes_per_s() > 0.0);
    check_equal(&ours_greedy(&mut engine, &whole, &[5, 6, 7], 6), &expected, "after measuring");
}

#[test]
fn the_rate_of_a_disk_is_measured_with_any_file_and_refused_without_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let options = StreamOptions::default();
    let duration = Duration::from_millis(20);
    assert!(read_rate(&path, &options, duration).is_err());
    std::fs::write(&path, b"short").unwrap();
    assert!(read_rate(&path, &options, duration).is_err());
    std::fs::write(&path, vec![1; 3 << 20]).unwrap();
    for direct in [true, false] {
        let rate = read_rate(&path, &StreamOptions { direct, ..options }, duration).unwrap();
        assert!(rate.bytes >= 3 << 20 && rate.elapsed >= duration, "{rate:?}");
        assert!(direct || !rate.direct);
    }
}
