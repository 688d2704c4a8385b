//! Where weights are kept, and what happens when their file is cut while it is used.

mod common;

use common::{BATCH_ROWS, CONTEXT_TOKENS, Cut, Fixture, THREADS, ours_greedy};
use motley_engine::{
    CacheElement, Engine, EngineOptions, Entering, FileType, Layout, LayoutChoice, MeasuredLayout,
    Residency, Row, Step, StepError, Wanted, small_model,
};

fn engine(fixture: &Fixture, layout: LayoutChoice, residency: Residency) -> Engine {
    let options = EngineOptions {
        layers: (0..fixture.layers()).into(),
        embedding: true,
        head: true,
        slots: 1,
        context_tokens: CONTEXT_TOKENS,
        batch_rows_max: BATCH_ROWS,
        cache: CacheElement::F16,
        threads: THREADS,
        batch_threads: None,
        layout,
        placement: residency.into(),
    };
    Engine::load(&fixture.model, &options).unwrap()
}

fn tensor_bytes(fixture: &Fixture) -> u64 {
    fixture.model.directory().tensors().map(|tensor| tensor.bytes).sum()
}

/// Weights in memory give the logits of mapped ones to the last bit, and every byte is accounted
/// to the engine.
#[test]
fn weights_in_memory_give_the_logits_of_mapped_ones() {
    for name in ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-it.Q4_K_M.gguf"] {
        let Some(fixture) = Fixture::open(name) else { return };
        let prompt = fixture.tokens("The first snow fell on");
        let whole = Cut::whole(fixture.layers());
        let mut mapped = engine(&fixture, LayoutChoice::Plain, Residency::Mapped);
        let mut read = engine(&fixture, LayoutChoice::Plain, Residency::Ram);
        let (mapped_memory, read_memory) = (mapped.memory(), read.memory());
        assert_eq!(mapped_memory.weights_mapped_bytes, tensor_bytes(&fixture));
        assert_eq!(read_memory.weights_mapped_bytes, 0);
        let read_bytes = read_memory.weights_allocated_bytes;
        // A set rounds every tensor up to ggml's alignment.
        let rounding = 64 * fixture.model.directory().tensors().count() as u64;
        assert!((0..=rounding).contains(&(read_bytes - tensor_bytes(&fixture))), "{read_bytes}");
        let expected = ours_greedy(&mut mapped, &whole, &prompt, 8);
        let found = ours_greedy(&mut read, &whole, &prompt, 8);
        assert_eq!(found.tokens, expected.tokens, "{name}");
        assert!(found.logits == expected.logits, "{name}: logits differ");
    }
}

/// Layouts that were measured before are taken as they are; of those that keep matrices interleaved
/// only, nothing may miss the copy in file order.
#[test]
fn weights_are_kept_in_the_layouts_that_the_model_was_told() {
    for file_type in [FileType::Q4_0, FileType::Q8_0, FileType::Q4_K_M] {
        for (tied, residency) in [(true, Residency::Ram), (false, Residency::Mapped)] {
            let mut recipe = small_model("llama", file_type);
            recipe.shape.vocabulary_size = Some(2048);
            recipe.shape.tied_embeddings = tied;
            let within = Layout::PackedWithin { least: 2, most: usize::MAX };
            for layout in [Layout::Plain, Layout::Packed, within] {
                let Some((_folder, fixture)) = Fixture::made(&recipe) else { return };
                let types = ["q4_0", "q8_0", "q4_K", "q6_K"].map(str::to_owned);
                fixture.model.know_layouts(types.map(|element| MeasuredLayout {
                    element,
                    threads: THREADS.threads,
                    layout,
                }));
                let mut engine = engine(&fixture, LayoutChoice::Measured, residency);
                assert!(engine.layouts().all(|(_, chosen)| chosen == layout));
                if residency == Residency::Mapped && engine.layouts().count() > 0 {
                    // What is only read interleaved is not kept twice.
                    let mapped = engine.memory().weights_mapped_bytes;
                    let is_whole = mapped == tensor_bytes(&fixture);
                    assert_eq!(is_whole, layout != Layout::Packed, "{mapped}");
                }
                let whole = Cut::whole(fixture.layers());
                let answer = ours_greedy(&mut engine, &whole, &[5, 6, 7, 8], 8);
                assert_eq!(answer.tokens.len(), 8);
                assert!(answer.logits.iter().flatten().all(|logit| logit.is_finite()));
            }
        }
    }
}

/// What one engine has measured, the next one of the same model need not.
#[test]
fn layouts_are_measured_once_per_model() {
    let mut recipe = small_model("llama", FileType::Q4_0);
    recipe.shape.vocabulary_size = Some(2048);
    let Some((_folder, fixture)) = Fixture::made(&recipe) else { return };
    let first = engine(&fixture, LayoutChoice::Measured, Residency::Ram);
    let measured = fixture.model.layouts();
    assert_eq!(measured.len(), first.layouts().count());
    assert!(measured.iter().all(|it| it.threads == THREADS.threads));
    let second = engine(&fixture, LayoutChoice::Measured, Residency::Ram);
    assert!(second.layouts().eq(first.layouts()));
    assert_eq!(fixture.model.layouts(), measured);
}

/// A truncated map raised a signal that ended the process; now the step says what happened, and
/// weights in memory do not notice.
#[test]
fn a_file_that_is_truncated_while_it_serves_fails_the_step_and_not_the_process() {
    let mut recipe = small_model("llama", FileType::F16);
    recipe.shape.vocabulary_size = Some(2048);
    let Some((folder, fixture)) = Fixture::made(&recipe) else { return };
    let mut mapped = engine(&fixture, LayoutChoice::Plain, Residency::Mapped);
    let mut read = engine(&fixture, LayoutChoice::Plain, Residency::Ram);
    let mut logits = Vec::new();
    let mut step = |engine: &mut Engine, position| {
        let step = Step {
            layers: 0..fixture.layers(),
            rows: &[Row { slot: 0, position }],
            entering: Entering::Tokens(&[7]),
            wanted: Wanted::Logits(&[0]),
        };
        engine.run(&step, &mut logits).map(|()| logits.clone())
    };
    let before = step(&mut mapped, 0).unwrap();
    assert_eq!(step(&mut read, 0).unwrap(), before);
    let path = folder.path().join("made.gguf");
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(10_000).unwrap();
    for _ in 0..2 {
        assert!(matches!(step(&mut mapped, 0), Err(StepError::Truncated)));
    }
    assert_eq!(step(&mut read, 0).unwrap(), before);
    // A model opened after that is refused in the ordinary way.
    assert!(motley_engine::Model::open(&folder.path().join("made.gguf")).is_err());
}
