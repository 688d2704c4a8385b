//! Experts that are read when they are chosen: the same logits within any memory, no more reading
//! than what was not there, and an error where the disk gives none.

#![expect(clippy::disallowed_methods, reason = "a test cuts its file and writes it again")]

mod common;

use common::{BATCH_ROWS, Cut, Fixture, eight_slots, ours_greedy, run_cut};
use motley_engine::{
    CacheElement, Engine, Entering, ExpertFigures, ExpertShape, FileType, LayoutChoice, LoadError,
    ModelRecipe, Placement, ReadError, Residency, Row, Step, StepError, StreamOptions, Wanted,
    small_model,
};
use motley_ggml::Token;

use Residency::Stream;

const LAYERS: usize = 6;

/// A model with experts of two sizes, which K-quants give some layers.
fn recipe() -> ModelRecipe {
    let mut recipe = small_model("qwen3moe", FileType::Q4_K_M);
    recipe.shape.blocks = LAYERS;
    recipe.shape.vocabulary_size = Some(2048);
    recipe.shape.experts = Some(ExpertShape { count: 16, used: 3 });
    recipe
}

fn long_prompt() -> Vec<Token> {
    (0..i32::try_from(BATCH_ROWS).unwrap() + 44).map(|index| (index * 37 + 11) % 2000).collect()
}

/// Least and most memory that an engine can use.
fn least_and_whole(fixture: &Fixture) -> (u64, u64) {
    let refused = Engine::load(&fixture.model, &fixture.options(1, Placement::within(1000)));
    let Err(LoadError::Budget { least_bytes, whole_bytes, .. }) = refused else {
        panic!("1,000 bytes sufficed");
    };
    (least_bytes, whole_bytes)
}

fn experts(engine: &Engine) -> ExpertFigures {
    engine.stream_figures().unwrap().experts.unwrap()
}

#[test]
fn within_any_memory_logits_are_those_of_the_mapped_model_and_only_misses_are_read() {
    let Some((_folder, fixture)) = Fixture::made(&recipe()) else { return };
    let mut mapped = fixture.engine(1, LayoutChoice::Plain, CacheElement::F16);
    let whole = Cut::whole(LAYERS);
    let prompt = long_prompt();
    let expected = ours_greedy(&mut mapped, &whole, &prompt, 24);
    let (least, most) = least_and_whole(&fixture);
    let mut hits_before = 0.0;
    for percent in [0, 30, 60, 100] {
        let budget = least + (most - least) * percent / 100;
        let placement = Placement::within(budget);
        let mut engine = Engine::load(&fixture.model, &fixture.options(1, placement)).unwrap();
        let of_its_own = engine.memory().total_bytes() - engine.memory().weights_mapped_bytes;
        assert!(of_its_own <= budget, "{:?} in {budget}", engine.memory());
        for cut in [&whole, &Cut::all(LAYERS)[3]] {
            let found = ours_greedy(&mut engine, cut, &prompt, 24);
            assert_eq!(found.tokens, expected.tokens, "{percent} %, {cut:?}");
            assert!(found.logits == expected.logits, "{percent} %, {cut:?}: logits differ");
        }
        let found = experts(&engine);
        let misses = found.chosen_bytes - found.hit_bytes;
        assert!(found.bytes_read >= misses, "{found:?}");
        assert!(found.bytes_read as f64 <= 1.3 * misses as f64, "{found:?}");
        let hits = found.hits as f64 / found.chosen as f64;
        assert!(hits >= hits_before, "{percent} %: {hits} after {hits_before}");
        hits_before = hits;
    }
    assert_eq!(hits_before, 1.0, "with all in memory nothing is read");
}

#[test]
fn many_slots_and_chunks_bring_the_experts_of_all_rows() {
    let Some((_folder, fixture)) = Fixture::made(&recipe()) else { return };
    let run = |placement: Placement| eight_slots(&fixture, placement);
    let expected = run(Residency::Mapped.into());
    let cached = StreamOptions { direct: false, read_bytes: 8192, ..StreamOptions::default() };
    assert!(run(Stream.into()) == expected);
    assert!(run(Placement::from(Stream).streamed_by(cached)) == expected);
}

#[test]
fn memory_for_experts_comes_and_goes_while_a_sequence_goes_on() {
    let Some((_folder, fixture)) = Fixture::made(&recipe()) else { return };
    let whole = Cut::whole(LAYERS);
    let mut mapped = fixture.engine(1, LayoutChoice::Plain, CacheElement::F16);
    let (least, most) = least_and_whole(&fixture);
    let mut moving =
        Engine::load(&fixture.model, &fixture.options(1, Placement::within(most))).unwrap();
    let all = experts(&moving);
    assert_eq!((all.slots, all.experts), (LAYERS * 16, LAYERS * 16));
    for position in 0..40 {
        match position % 10 {
            2 => moving.set_memory_budget(least).unwrap(),
            5 => moving.set_memory_budget(least + (most - least) / 2).unwrap(),
            8 => moving.set_residency(&[Residency::Ram; LAYERS]).unwrap(),
            _ => {}
        }
        assert_eq!(experts(&moving).slots == LAYERS * 16, !(2..8).contains(&(position % 10)));
        if position == 19 {
            moving.settle().unwrap();
        }
        let rows = [Row { slot: 0, position }];
        let token = [Token::try_from(position * 31 % 2000).unwrap()];
        let expected = run_cut(&mut mapped, &whole, &rows, &token, &[0]);
        let found = run_cut(&mut moving, &whole, &rows, &token, &[0]);
        assert!(found == expected, "position {position}");
    }
}

#[test]
fn a_file_that_is_cut_fails_the_step_and_serves_again_when_it_is_whole() {
    let Some((folder, fixture)) = Fixture::made(&recipe()) else { return };
    let mut engine = Engine::load(&fixture.model, &fixture.options(1, Stream)).unwrap();
    let mut logits = Vec::new();
    let mut run = |engine: &mut Engine, token: Token| {
        let step = Step {
            layers: 0..LAYERS,
            rows: &[Row { slot: 0, position: 0 }],
            entering: Entering::Tokens(&[token]),
            wanted: Wanted::Logits(&[0]),
        };
        engine.clear(0);
        engine.run(&step, &mut logits).map(|()| logits.clone())
    };
    let expected = run(&mut engine, 7).unwrap();
    let path = folder.path().join("made.gguf");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100_000).unwrap();
    // Experts that are in memory still serve.
    let failed = (0..20).find_map(|token| run(&mut engine, 100 + token).err());
    let truncated = matches!(failed, Some(StepError::Read(ReadError::Truncated { .. })));
    assert!(truncated, "{failed:?}");
    std::fs::write(&path, bytes).unwrap();
    // What was read ahead may still fail once.
    let served = (0..3).find_map(|_| run(&mut engine, 7).ok());
    assert!(served.unwrap() == expected);
}

/// Neither computing without reading nor reading without computing leaves anything behind.
#[test]
fn measuring_computation_or_the_disk_changes_no_result() {
    let Some((_folder, fixture)) = Fixture::made(&recipe()) else { return };
    let whole = Cut::whole(LAYERS);
    let mut engine = Engine::load(&fixture.model, &fixture.options(1, Stream)).unwrap();
    let expected = ours_greedy(&mut engine, &whole, &[5, 6, 7], 6);
    let before = experts(&engine);
    let step = Step {
        layers: 0..LAYERS,
        rows: &[Row { slot: 0, position: 0 }],
        entering: Entering::Tokens(&[7]),
        wanted: Wanted::Logits(&[0]),
    };
    let mut product = Vec::new();
    (0..9).for_each(|_| engine.run_without_reading(&step, &mut product).unwrap());
    assert_eq!(experts(&engine), before);
    engine.resume_reading();
    let mut resident = Engine::load(
        &fixture.model,
        &fixture.options(1, Placement::within(least_and_whole(&fixture).0 + 1_000_000)),
    )
    .unwrap();
    let rate = resident.measure_read_rate(std::time::Duration::from_millis(20)).unwrap().unwrap();
    assert!(rate.bytes > 0);
    let after = ours_greedy(&mut resident, &whole, &[5, 6, 7], 6);
    assert!(after.logits == expected.logits, "experts were read to where they are");
    let found = ours_greedy(&mut engine, &whole, &[5, 6, 7], 6);
    assert!(found.tokens == expected.tokens && found.logits == expected.logits);
}
