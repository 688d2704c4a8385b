//! Many slots in one batch, caches that move, steps back, and refusals.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test tells how close it came, and starts itself again with a variable"
)]

mod common;

use std::process::Command;

use common::{
    BATCH_ROWS, CONTEXT_TOKENS, Cut, Fixture, Greedy, THREADS, greedy, ours_greedy, run_cut,
};
use motley_engine::{
    CacheElement, CacheError, Engine, EngineOptions, Entering, FileType, LayoutChoice, LoadError,
    Residency, Row, RowsError, Step, StepError, Wanted, small_model,
};
use motley_ggml::{ReferenceModel, ReferenceRow, Token};

const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const GEMMA3: &str = "gemma-3-270m-it.Q4_K_M.gguf";

/// Eight prompts of different lengths, cut from one text.
fn prompts(fixture: &Fixture) -> Vec<Vec<Token>> {
    let text = "In the year 1805 the river rose above its banks, and the miller, who had seen many \
                such springs, carried his books up to the loft before anyone else had thought of \
                it. Nobody asked him why he did so, for he was known to read the sky.";
    let tokens = fixture.tokens(text);
    (1..=8).map(|index| tokens[..index * tokens.len() / 8].to_vec()).collect()
}

/// Logits of every slot's answer when all slots are decoded together, each fed the tokens of
/// `answers`, while longer prompts still come in chunks of four.
fn together(
    prompts: &[Vec<Token>],
    answers: &[Greedy],
    mut run: impl FnMut(&[Row], &[Token], &[usize]) -> Vec<Vec<f32>>,
) -> Vec<Vec<Vec<f32>>> {
    const CHUNK: usize = 4;
    let mut logits_of: Vec<Vec<Vec<f32>>> = vec![Vec::new(); prompts.len()];
    let mut positions = vec![0; prompts.len()];
    let inputs: Vec<Vec<Token>> = prompts
        .iter()
        .zip(answers)
        .map(|(prompt, answer)| [prompt, &answer.tokens[..answer.tokens.len() - 1]].concat())
        .collect();
    while positions.iter().zip(&inputs).any(|(position, input)| *position < input.len()) {
        let (mut rows, mut tokens, mut wanted, mut owners) = (vec![], vec![], vec![], vec![]);
        for (slot, input) in inputs.iter().enumerate() {
            let prompt_left = prompts[slot].len().saturating_sub(positions[slot]);
            let taken = prompt_left.clamp(1, CHUNK).min(input.len() - positions[slot]);
            let now = positions[slot]..positions[slot] + taken;
            tokens.extend_from_slice(&input[now.clone()]);
            rows.extend(now.map(|position| Row { slot, position }));
            positions[slot] += taken;
            if taken > 0 && positions[slot] >= prompts[slot].len() {
                wanted.push(rows.len() - 1);
                owners.push(slot);
            }
        }
        for (slot, logits) in owners.into_iter().zip(run(&rows, &tokens, &wanted)) {
            logits_of[slot].push(logits);
        }
    }
    logits_of
}

/// Steps at which the largest logit is not the token that the slot chose alone.
fn differing(alone: &[Greedy], together: &[Vec<Vec<f32>>]) -> usize {
    let steps = alone.iter().zip(together).flat_map(|(alone, together)| {
        assert_eq!(alone.tokens.len(), together.len());
        alone.tokens.iter().zip(together)
    });
    steps.filter(|(token, logits)| greedy(logits) != **token).count()
}

/// How many of llama.cpp's tokens differ in the same batches, fed its own answers.
fn reference_differing(fixture: &Fixture, prompts: &[Vec<Token>], count: usize) -> usize {
    let alone: Vec<Greedy> =
        prompts.iter().map(|prompt| fixture.reference_greedy(prompt, count, true)).collect();
    differing(&alone, &reference_together(fixture, prompts, &alone, true))
}

/// llama.cpp's logits for batches of all slots, fed the tokens of `answers`.
fn reference_together(
    fixture: &Fixture,
    prompts: &[Vec<Token>],
    answers: &[Greedy],
    repack: bool,
) -> Vec<Vec<Vec<f32>>> {
    let model = ReferenceModel::load(fixture.model.path(), repack).unwrap();
    let mut context = fixture.reference_context(&model, prompts.len());
    together(prompts, answers, |rows, tokens, wanted| {
        let rows: Vec<ReferenceRow> = rows
            .iter()
            .zip(tokens)
            .enumerate()
            .map(|(index, (row, token))| ReferenceRow {
                token: *token,
                position: u32::try_from(row.position).unwrap(),
                sequence: u32::try_from(row.slot).unwrap(),
                logits: wanted.contains(&index),
            })
            .collect();
        context.decode(&rows).unwrap();
        wanted.iter().map(|index| context.logits(*index).to_vec()).collect()
    })
}

/// Every slot's answer beside others is its answer alone. Kernels for several rows add up in
/// another order than those for one, attention even in 16 bits; a model whose logits lie close
/// together then chooses differently now and then, with llama.cpp as with us. So a slot may differ
/// about as often as llama.cpp's own do.
fn check_slots(name: &str, exact: bool) {
    const COUNT: usize = 32;
    let Some(fixture) = Fixture::open(name) else { return };
    let prompts = prompts(&fixture);
    let mut engine = fixture.engine(prompts.len(), LayoutChoice::Measured, CacheElement::F16);
    let whole = Cut::whole(fixture.layers());
    let halves = Cut::all(fixture.layers())[1].clone();
    let alone: Vec<Greedy> =
        prompts.iter().map(|prompt| ours_greedy(&mut engine, &whole, prompt, COUNT)).collect();
    let allowed =
        if exact { 0 } else { 2 * reference_differing(&fixture, &prompts, COUNT) + COUNT / 8 };
    for cut in [&whole, &halves] {
        (0..prompts.len()).for_each(|slot| engine.clear(slot));
        let width = engine.hyper().vocabulary_size;
        let batches = together(&prompts, &alone, |rows, tokens, wanted| {
            let logits = run_cut(&mut engine, cut, rows, tokens, wanted);
            logits.chunks(width).map(<[f32]>::to_vec).collect()
        });
        let differing = differing(&alone, &batches);
        let steps = COUNT * prompts.len();
        println!("{name}, {} windows: {differing} of {steps} tokens differ", cut.0.len());
        assert!(differing <= allowed, "at most {allowed} may");
    }
}

#[test]
fn eight_slots_of_smollm2_answer_as_each_does_alone() {
    check_slots(SMOLLM2, true);
}

#[test]
fn eight_slots_of_gemma3_answer_as_each_does_alone() {
    check_slots(GEMMA3, false);
}

/// A model with experts, of which each row chooses its own, made for the test: every slot beside
/// others gives llama.cpp's tokens, both those it gives alone and those of the same batches.
#[test]
fn eight_slots_of_a_model_with_experts_answer_as_in_llama_cpp() {
    const COUNT: usize = 24;
    let mut recipe = small_model("qwen3moe", FileType::Q8_0);
    recipe.shape.vocabulary_size = Some(2048);
    let Some((_folder, fixture)) = Fixture::made(&recipe) else { return };
    let prompts: Vec<Vec<Token>> = (1..=8)
        .map(|slot: i32| (0..3 * slot).map(|index| (index * 37 + slot * 11) % 2000).collect())
        .collect();
    let alone: Vec<Greedy> =
        prompts.iter().map(|prompt| fixture.reference_greedy(prompt, COUNT, false)).collect();
    let theirs = reference_together(&fixture, &prompts, &alone, false);
    let mut engine = fixture.engine(prompts.len(), LayoutChoice::Plain, CacheElement::F16);
    let whole = Cut::whole(fixture.layers());
    let width = engine.hyper().vocabulary_size;
    let ours = together(&prompts, &alone, |rows, tokens, wanted| {
        let logits = run_cut(&mut engine, &whole, rows, tokens, wanted);
        logits.chunks(width).map(<[f32]>::to_vec).collect()
    });
    let pairs = ours.iter().flatten().flatten().zip(theirs.iter().flatten().flatten());
    let farthest = pairs.map(|(ours, theirs)| (ours - theirs).abs()).fold(0.0, f32::max);
    println!("largest difference of logits {farthest}");
    assert_eq!(differing(&alone, &theirs), 0);
    assert_eq!(differing(&alone, &ours), 0);
}

/// A prompt longer than window and batch together makes the sliding layers wrap around.
#[test]
fn a_sliding_window_that_wrapped_around_gives_the_tokens_of_llama_cpp() {
    const COUNT: usize = 24;
    let Some(fixture) = Fixture::open(GEMMA3) else { return };
    let text = "The lighthouse keeper counted the ships again, and wrote their names down. ";
    let prompt = fixture.tokens(&text.repeat(96));
    let prompt = &prompt[..CONTEXT_TOKENS - COUNT - 1];
    let reference = fixture.reference_greedy(prompt, COUNT, false);
    let mut engine = fixture.engine(1, LayoutChoice::Plain, CacheElement::F16);
    let ours = ours_greedy(&mut engine, &Cut::whole(fixture.layers()), prompt, COUNT);
    // llama.cpp keeps all positions, we overwrite those out of sight: cells lie in another order,
    // and attention adds up values in 16 bits in the order of cells.
    println!("largest difference of logits {}", ours.largest_difference(&reference));
    assert_eq!(ours.tokens, reference.tokens);
}

/// A device that holds some layers, another that holds the rest: nothing is shared but the hidden
/// states. Then the first one's cache moves to a third device, which goes on.
#[test]
fn layers_on_two_engines_and_a_moved_cache_change_nothing() {
    const COUNT: usize = 24;
    for name in [SMOLLM2, GEMMA3] {
        let Some(fixture) = Fixture::open(name) else { return };
        let prompt = fixture.tokens("Once upon a time there was a small bridge over");
        let reference = fixture.reference_greedy(&prompt, COUNT, false);
        let cut = fixture.layers() / 3;
        let mut tail = part(&fixture, cut..fixture.layers());
        let mut answer = Vec::new();
        let (mut next, mut position) = (prompt.clone(), 0);
        let mut head = part(&fixture, 0..cut);
        while answer.len() < COUNT {
            if answer.len() == COUNT / 2 {
                let bytes = head.export_cache(0..cut, 0, position).unwrap();
                let mut moved = part(&fixture, 0..cut);
                moved.import_cache(0..cut, 0, position, &bytes).unwrap();
                head = moved;
            }
            let rows: Vec<Row> = (position..position + next.len())
                .map(|position| Row { slot: 0, position })
                .collect();
            let (mut hidden, mut logits) = (Vec::new(), Vec::new());
            let first = Step {
                layers: 0..cut,
                rows: &rows,
                entering: Entering::Tokens(&next),
                wanted: Wanted::Hidden,
            };
            head.run(&first, &mut hidden).unwrap();
            let second = Step {
                layers: cut..fixture.layers(),
                rows: &rows,
                entering: Entering::Hidden(&hidden),
                wanted: Wanted::HiddenOf(&[rows.len() - 1]),
            };
            tail.run(&second, &mut logits).unwrap();
            // The head's owner norms and projects, as in a ring.
            let hidden = logits.clone();
            let projection = Step {
                layers: fixture.layers()..fixture.layers(),
                rows: &rows[rows.len() - 1..],
                entering: Entering::Hidden(&hidden),
                wanted: Wanted::Logits(&[0]),
            };
            tail.run(&projection, &mut logits).unwrap();
            position += next.len();
            let token = greedy(&logits);
            answer.push(token);
            next = vec![token];
        }
        assert_eq!(answer, reference.tokens, "{name}");
    }
}

fn part(fixture: &Fixture, layers: std::ops::Range<usize>) -> Engine {
    Engine::load(
        &fixture.model,
        &EngineOptions {
            embedding: layers.start == 0,
            head: layers.end == fixture.layers(),
            layers: layers.into(),
            slots: 1,
            context_tokens: CONTEXT_TOKENS,
            batch_rows_max: BATCH_ROWS,
            cache: CacheElement::F16,
            threads: THREADS,
            batch_threads: None,
            layout: LayoutChoice::Plain,
            placement: Residency::Mapped.into(),
        },
    )
    .unwrap()
}

#[test]
fn an_eight_bit_cache_halves_the_memory_and_keeps_the_logits_near() {
    let Some(fixture) = Fixture::open(SMOLLM2) else { return };
    let prompt = fixture.tokens("The bridge was built in the year");
    let whole = Cut::whole(fixture.layers());
    let mut full = fixture.engine(1, LayoutChoice::Plain, CacheElement::F16);
    let mut small = fixture.engine(1, LayoutChoice::Plain, CacheElement::Q8_0);
    let ratio = small.memory().cache_bytes as f64 / full.memory().cache_bytes as f64;
    assert!((0.5..0.56).contains(&ratio), "{ratio}");
    let full = ours_greedy(&mut full, &whole, &prompt, 1);
    let small = ours_greedy(&mut small, &whole, &prompt, 1);
    let difference =
        full.logits[0].iter().zip(&small.logits[0]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("largest difference of logits {difference}");
    assert!(difference > 0.0 && difference < 1.0);
}

/// Keys and values in types of their own, computed by other threads for prompts: as in llama.cpp,
/// once it leaves out the rotation that it puts before blocks of 8 bits. Only a variable says so,
/// which another process gets.
#[test]
fn every_type_of_cache_gives_the_tokens_of_llama_cpp() {
    const UNROTATED: &str = "LLAMA_ATTN_ROT_DISABLE";
    let Some(fixture) = Fixture::open(SMOLLM2) else { return };
    if std::env::var_os(UNROTATED).is_none() {
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "every_type_of_cache_gives_the_tokens_of_llama_cpp"]);
        assert!(again.env(UNROTATED, "1").status().unwrap().success());
        return;
    }
    let prompt = fixture.tokens("The bridge was built in the year");
    let whole = Cut::whole(fixture.layers());
    let model = ReferenceModel::load(fixture.model.path(), false).unwrap();
    for cache in
        [CacheElement::F16, CacheElement::Q8_0, CacheElement::F16Q8_0, CacheElement::Q8_0F16]
    {
        let mut context = fixture.reference_context_with(&model, 1, cache);
        let theirs = common::greedy_of(&mut context, &prompt, 32);
        let options = EngineOptions {
            cache,
            batch_threads: Some(2),
            ..fixture.options(1, Residency::Mapped)
        };
        let mut engine = Engine::load(&fixture.model, &options).unwrap();
        let ours = ours_greedy(&mut engine, &whole, &prompt, 32);
        assert_eq!(ours.tokens, theirs.tokens, "{cache:?}");
    }
}

#[test]
fn a_slot_can_go_back_and_take_another_way() {
    let Some(fixture) = Fixture::open(SMOLLM2) else { return };
    let whole = Cut::whole(fixture.layers());
    let mut engine = fixture.engine(1, LayoutChoice::Plain, CacheElement::F16);
    let common = fixture.tokens("The sea was calm and");
    let (one, other) = (fixture.tokens(" the moon"), fixture.tokens(" no ship came"));
    let answer = |engine: &mut Engine, from: usize, tail: &[Token]| {
        let tokens: Vec<Token> = [&common, tail].concat();
        let rows: Vec<Row> =
            (from..tokens.len()).map(|position| Row { slot: 0, position }).collect();
        run_cut(engine, &whole, &rows, &tokens[from..], &[rows.len() - 1])
    };
    answer(&mut engine, 0, &one);
    let after_going_back = answer(&mut engine, common.len(), &other);
    engine.clear(0);
    let fresh = answer(&mut engine, 0, &other);
    assert_eq!(greedy(&after_going_back), greedy(&fresh));
}

#[test]
fn misfitting_steps_and_moves_are_refused_and_change_nothing() {
    let Some(fixture) = Fixture::open(SMOLLM2) else { return };
    let layers = fixture.layers();
    let mut engine = part(&fixture, 0..4);
    let mut product = Vec::new();
    let mut run = |engine: &mut Engine, layers, position, entering, wanted| {
        let rows = [Row { slot: 0, position }];
        engine.run(&Step { layers, rows: &rows, entering, wanted }, &mut product)
    };
    let token = Entering::Tokens(&[1]);
    assert!(matches!(
        run(&mut engine, 0..5, 0, token, Wanted::Hidden),
        Err(StepError::NotHeld { held, .. }) if held == (0..4).into()
    ));
    assert!(matches!(
        run(&mut engine, 1..4, 0, token, Wanted::Hidden),
        Err(StepError::Part { what: "the embedding", .. })
    ));
    assert!(matches!(
        run(&mut engine, 0..4, 0, token, Wanted::Logits(&[0])),
        Err(StepError::Part { what: "a selection of rows", .. })
    ));
    assert!(matches!(
        run(&mut engine, 0..4, 0, Entering::Tokens(&[-1]), Wanted::Hidden),
        Err(StepError::UnknownToken { token: -1, .. })
    ));
    assert!(matches!(
        run(&mut engine, 0..4, 0, Entering::Hidden(&[0.0]), Wanted::Hidden),
        Err(StepError::Length { given: 1, expected: 576, .. })
    ));
    assert!(matches!(
        run(&mut engine, 0..4, 3, token, Wanted::Hidden),
        Err(StepError::Rows(RowsError::Gap { cached: 0, position: 3, .. }))
    ));
    assert!(matches!(
        run(&mut engine, layers..layers, 0, Entering::Hidden(&[0.0; 576]), Wanted::Logits(&[0])),
        Err(StepError::Part { what: "the head", .. })
    ));
    assert!(run(&mut engine, 0..4, 0, token, Wanted::Hidden).is_ok());
    assert!(matches!(engine.export_cache(0..4, 0, 2), Err(CacheError::Tokens { .. })));
    assert!(matches!(engine.export_cache(0..5, 0, 1), Err(CacheError::NotHeld { .. })));
    assert!(matches!(
        engine.import_cache(0..4, 0, 1, &[0; 3]),
        Err(CacheError::Length { bytes: 3, .. })
    ));
}

#[test]
fn a_window_s_cache_cannot_go_back_further_than_it_reaches() {
    let Some(fixture) = Fixture::open(GEMMA3) else { return };
    let whole = Cut::whole(fixture.layers());
    let mut engine = fixture.engine(1, LayoutChoice::Plain, CacheElement::F16);
    let text = fixture.tokens(&"A stone rolled down the hill. ".repeat(160));
    ours_greedy(&mut engine, &whole, &text[..CONTEXT_TOKENS - 2], 1);
    let mut product = Vec::new();
    let mut from = |position: usize| {
        let rows = [Row { slot: 0, position }];
        let step = Step {
            layers: 0..fixture.layers(),
            rows: &rows,
            entering: Entering::Tokens(&[1]),
            wanted: Wanted::Hidden,
        };
        engine.run(&step, &mut product)
    };
    assert!(matches!(from(500), Err(StepError::Rows(RowsError::Overwritten { .. }))));
    assert!(from(CONTEXT_TOKENS - 8).is_ok());
}

#[test]
fn options_that_do_not_fit_the_model_are_refused() {
    let Some(fixture) = Fixture::open(SMOLLM2) else { return };
    let fitting = EngineOptions {
        layers: (0..2).into(),
        embedding: true,
        head: false,
        slots: 1,
        context_tokens: 64,
        batch_rows_max: 8,
        cache: CacheElement::F16,
        threads: THREADS,
        batch_threads: None,
        layout: LayoutChoice::Plain,
        placement: Residency::Mapped.into(),
    };
    let load = |options: EngineOptions| Engine::load(&fixture.model, &options).map(|_| ());
    assert!(matches!(
        load(EngineOptions { layers: (0..31).into(), ..fitting.clone() }),
        Err(LoadError::Layers { block_count: 30, .. })
    ));
    assert!(matches!(
        load(EngineOptions { slots: 0, ..fitting.clone() }),
        Err(LoadError::Zero { what: "the number of slots" })
    ));
    assert!(matches!(
        load(EngineOptions { context_tokens: 1 << 20, ..fitting.clone() }),
        Err(LoadError::Context { asked: 1_048_576, .. })
    ));
    assert!(load(fitting).is_ok());
}
