//! Windows as a ring holds them: several per engine, embedding and head alone, many in turn.

mod common;

use std::ops::Range;

use common::{BATCH_ROWS, CONTEXT_TOKENS, Cut, Fixture, Greedy, THREADS, greedy, ours_greedy};
use motley_engine::{
    CacheElement, Engine, EngineOptions, Entering, FileType, LayerSet, LayoutChoice, ModelRecipe,
    Residency, ReuseRule, Row, RowsError, SlotHistory, Step, StepError, Wanted, small_model,
};
use motley_ggml::Token;

const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const GEMMA3: &str = "gemma-3-270m-it.Q4_K_M.gguf";

/// Longer than a batch, so that a chunk passes of which nothing is wanted.
fn long_prompt() -> Vec<Token> {
    (0..i32::try_from(BATCH_ROWS).unwrap() + 44).map(|index| (index * 37 + 11) % 2000).collect()
}

fn recipe(architecture: &str, blocks: usize) -> ModelRecipe {
    let mut recipe = small_model(architecture, FileType::Q8_0);
    recipe.shape.blocks = blocks;
    recipe.shape.vocabulary_size = Some(2048);
    recipe
}

fn engine(fixture: &Fixture, layers: LayerSet, ends: bool) -> Engine {
    let options = EngineOptions {
        layers,
        embedding: ends,
        head: ends,
        slots: 1,
        context_tokens: CONTEXT_TOKENS,
        batch_rows_max: BATCH_ROWS,
        cache: CacheElement::F16,
        threads: THREADS,
        batch_threads: None,
        layout: LayoutChoice::Plain,
        placement: Residency::Mapped.into(),
    };
    Engine::load(&fixture.model, &options).unwrap()
}

/// Devices in a ring, each with its windows; the first holds no layer but embedding and head.
struct Ring {
    ends: Engine,
    members: Vec<Engine>,
    /// In order: who runs which layers.
    windows: Vec<(usize, Range<usize>)>,
    block_count: usize,
}

impl Ring {
    /// Two devices that take turns, window by window.
    fn of_two(fixture: &Fixture, cut: &Cut) -> Self {
        let windows: Vec<(usize, Range<usize>)> =
            cut.0.iter().enumerate().map(|(index, range)| (index % 2, range.clone())).collect();
        let members = (0..2)
            .map(|member| {
                let of_member = windows.iter().filter(|(owner, _)| *owner == member);
                engine(fixture, LayerSet::new(of_member.map(|(_, range)| range.clone())), false)
            })
            .collect();
        let ends = engine(fixture, LayerSet::none(), true);
        Self { ends, members, windows, block_count: fixture.layers() }
    }

    /// Logits of the last row, if it is `wanted`.
    fn run(&mut self, rows: &[Row], tokens: &[Token], wanted: bool) -> Vec<f32> {
        let (mut hidden, mut next) = (Vec::new(), Vec::new());
        let embed =
            Step { layers: 0..0, rows, entering: Entering::Tokens(tokens), wanted: Wanted::Hidden };
        self.ends.run(&embed, &mut hidden).unwrap();
        let last = [rows.len() - 1];
        let last: &[usize] = if wanted { &last } else { &[] };
        for (owner, layers) in self.windows.clone() {
            let at_the_end = layers.end == self.block_count;
            let step = Step {
                layers,
                rows,
                entering: Entering::Hidden(&hidden),
                wanted: if at_the_end { Wanted::HiddenOf(last) } else { Wanted::Hidden },
            };
            self.members[owner].run(&step, &mut next).unwrap();
            std::mem::swap(&mut hidden, &mut next);
        }
        if !wanted {
            return Vec::new();
        }
        let project = Step {
            layers: self.block_count..self.block_count,
            rows: &rows[rows.len() - 1..],
            entering: Entering::Hidden(&hidden),
            wanted: Wanted::Logits(&[0]),
        };
        self.ends.run(&project, &mut next).unwrap();
        next
    }

    fn greedy(&mut self, prompt: &[Token], count: usize) -> Greedy {
        let mut answer = Greedy { tokens: Vec::new(), logits: Vec::new() };
        let (mut next, mut position) = (prompt.to_vec(), 0);
        while answer.tokens.len() < count {
            let mut logits = Vec::new();
            for chunk in next.chunks(BATCH_ROWS) {
                let positions = position..position + chunk.len();
                position = positions.end;
                let rows: Vec<Row> = positions.map(|position| Row { slot: 0, position }).collect();
                let wanted = position >= prompt.len() + answer.tokens.len();
                logits = self.run(&rows, chunk, wanted);
            }
            let token = greedy(&logits);
            answer.tokens.push(token);
            answer.logits.push(logits);
            next = vec![token];
        }
        answer
    }
}

/// A ring of two with every way of cutting gives what one engine with all layers gives, bit by bit.
fn check_ring(fixture: &Fixture, prompt: &[Token], count: usize) {
    let mut whole = fixture.engine(1, LayoutChoice::Plain, CacheElement::F16);
    let expected = ours_greedy(&mut whole, &Cut::whole(fixture.layers()), prompt, count);
    for cut in Cut::all(fixture.layers()) {
        let found = Ring::of_two(fixture, &cut).greedy(prompt, count);
        assert_eq!(found.tokens, expected.tokens, "{cut:?}");
        assert!(found.logits == expected.logits, "logits differ: {cut:?}");
    }
}

#[test]
fn rings_of_several_rounds_give_the_logits_of_one_engine_in_every_architecture() {
    for architecture in ["llama", "qwen2", "qwen3", "qwen3moe", "gemma3"] {
        let Some((_folder, fixture)) = Fixture::made(&recipe(architecture, 6)) else { return };
        check_ring(&fixture, &long_prompt(), 8);
    }
}

#[test]
fn rings_of_several_rounds_give_the_logits_of_one_engine_on_real_models() {
    for name in [SMOLLM2, GEMMA3] {
        let Some(fixture) = Fixture::open(name) else { return };
        check_ring(&fixture, &fixture.tokens("Once upon a time there was a"), 8);
    }
}

#[test]
fn each_window_of_one_layer_may_end_a_prompt_of_which_nothing_is_wanted() {
    // A last layer alone, of which only the cache is wanted, reads no mask at all.
    for architecture in ["llama", "gemma3"] {
        let Some((_folder, fixture)) = Fixture::made(&recipe(architecture, 4)) else { return };
        let single = Cut((0..4).map(|layer| layer..layer + 1).collect());
        let mut engine = fixture.engine(1, LayoutChoice::Plain, CacheElement::F16);
        let whole = ours_greedy(&mut engine, &Cut::whole(4), &long_prompt(), 4);
        let cut = ours_greedy(&mut engine, &single, &long_prompt(), 4);
        assert_eq!(cut.tokens, whole.tokens, "{architecture}");
    }
}

#[test]
fn windows_must_lie_in_one_held_range_and_empty_ones_at_an_end() {
    let Some((_folder, fixture)) = Fixture::made(&recipe("llama", 6)) else { return };
    let width = fixture.model.directory().hyper.embedding_length;
    let hidden = vec![0.5; width];
    let hidden = Entering::Hidden(&hidden);
    let rows = [Row { slot: 0, position: 0 }];
    let mut product = Vec::new();
    let mut run = |engine: &mut Engine, layers, entering, wanted| {
        engine.run(&Step { layers, rows: &rows, entering, wanted }, &mut product)
    };
    let mut member = engine(&fixture, LayerSet::new([0..2, 4..6]), false);
    assert_eq!(member.layers().to_string(), "0..2, 4..6");
    assert!(run(&mut member, 4..5, hidden, Wanted::Hidden).is_ok());
    let refused = run(&mut member, 1..5, hidden, Wanted::Hidden).unwrap_err();
    assert_eq!(refused.to_string(), "layers 1..5 are not held here together; held are 0..2, 4..6");
    let mut ends = engine(&fixture, LayerSet::none(), true);
    assert!(run(&mut ends, 0..0, Entering::Tokens(&[7]), Wanted::Hidden).is_ok());
    assert!(run(&mut ends, 6..6, hidden, Wanted::Logits(&[])).is_ok());
    for (layers, entering, wanted) in [
        (0..0, hidden, Wanted::Hidden),
        (3..3, hidden, Wanted::Hidden),
        (6..6, Entering::Tokens(&[7]), Wanted::Logits(&[0])),
        (0..1, hidden, Wanted::Hidden),
    ] {
        let refused = run(&mut ends, layers.clone(), entering, wanted);
        assert!(matches!(refused, Err(StepError::NotHeld { .. })), "{layers:?}: {refused:?}");
    }
    for wanted in [Wanted::Hidden, Wanted::HiddenOf(&[0])] {
        let refused = run(&mut ends, 6..6, hidden, wanted);
        assert!(matches!(refused, Err(StepError::Part { what: "the head", .. })));
    }
    let refused = run(&mut ends, 0..0, Entering::Tokens(&[7]), Wanted::Logits(&[0]));
    assert!(matches!(refused, Err(StepError::Part { what: "a selection of rows", .. })));
}

/// What the rule allows is what a whole engine accepts, position by position.
#[test]
fn the_rule_of_going_back_is_the_engine_s_own() {
    let Some((_folder, fixture)) = Fixture::made(&recipe("gemma3", 4)) else { return };
    let mut engine = fixture.engine(1, LayoutChoice::Plain, CacheElement::F16);
    let rule = engine.reuse_rule();
    assert_eq!(rule, ReuseRule::new(engine.hyper(), CONTEXT_TOKENS, BATCH_ROWS));
    let length = 900;
    let (mut history, mut product) = (SlotHistory::default(), Vec::new());
    let mut run = |engine: &mut Engine, positions: Range<usize>| {
        let tokens = vec![5; positions.len()];
        let rows: Vec<Row> = positions.map(|position| Row { slot: 0, position }).collect();
        let step = Step {
            layers: 0..4,
            rows: &rows,
            entering: Entering::Tokens(&tokens),
            wanted: Wanted::Logits(&[]),
        };
        engine.run(&step, &mut product)
    };
    for start in (0..length).step_by(BATCH_ROWS) {
        let end = (start + BATCH_ROWS).min(length);
        run(&mut engine, start..end).unwrap();
        history = rule.extended(history, end);
    }
    let mut refused = 0;
    // From behind, so that every step back starts from a history that reached as far as possible.
    for position in (length - 600..length).rev() {
        let allowed = rule.allows(&history, position);
        let found = run(&mut engine, position..position + 1);
        assert_eq!(found.is_ok(), allowed, "position {position}");
        if allowed {
            history = rule.extended(history, position + 1);
        } else {
            assert!(matches!(found, Err(StepError::Rows(RowsError::Overwritten { .. }))));
            refused += 1;
        }
    }
    assert!((1..600).contains(&refused), "{refused} of 600 refused");
}

#[test]
fn an_imported_window_cannot_go_back_to_what_was_not_moved() {
    let Some((_folder, fixture)) = Fixture::made(&recipe("gemma3", 4)) else { return };
    let mut from = fixture.engine(1, LayoutChoice::Plain, CacheElement::F16);
    ours_greedy(&mut from, &Cut::whole(4), &long_prompt(), 1);
    let tokens = long_prompt().len();
    let bytes = from.export_cache(0..4, 0, tokens).unwrap();
    let mut to = fixture.engine(1, LayoutChoice::Plain, CacheElement::F16);
    to.import_cache(0..4, 0, tokens, &bytes).unwrap();
    let mut product = Vec::new();
    let mut at = |position| {
        let step = Step {
            layers: 0..4,
            rows: &[Row { slot: 0, position }],
            entering: Entering::Tokens(&[5]),
            wanted: Wanted::Logits(&[0]),
        };
        to.run(&step, &mut product)
    };
    assert!(matches!(at(tokens - 1), Err(StepError::Rows(RowsError::Overwritten { .. }))));
    assert!(at(tokens).is_ok());
}

/// A ring with many rounds runs many small windows in turn; building a graph costs about as much
/// as running a small layer.
#[test]
fn sixty_four_windows_in_turn_build_their_graphs_once() {
    let mut recipe = recipe("llama", 64);
    recipe.shape.embedding_length = 64;
    recipe.shape.feed_forward_length = 64;
    recipe.shape.heads = 2;
    recipe.shape.kv_heads = 1;
    recipe.shape.head_length = 32;
    let Some((_folder, fixture)) = Fixture::made(&recipe) else { return };
    let single = Cut((0..64).map(|layer| layer..layer + 1).collect());
    let mut engine = fixture.engine(1, LayoutChoice::Plain, CacheElement::F16);
    ours_greedy(&mut engine, &single, &[5, 6, 7], 2);
    let built = engine.graphs_built();
    assert_eq!(built, 2 * 64, "one shape for the prompt, one for single tokens");
    ours_greedy(&mut engine, &single, &[5, 6, 7], 20);
    assert_eq!(engine.graphs_built(), built);
}
