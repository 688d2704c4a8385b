//! A model file run by our engine and by llama.cpp, for comparison.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "tests say what they skip, and find their models through the environment"
)]
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::ops::Range;
use std::path::{Path, PathBuf};

use motley_engine::{
    CacheElement, Engine, EngineOptions, Entering, LayoutChoice, Model, ModelRecipe, Placement,
    Residency, Row, Step, Wanted, make_model_file,
};
use motley_ggml::{
    ReferenceContext, ReferenceModel, ReferenceOptions, ReferenceRow, ThreadPoolOptions, Token,
    Vocabulary,
};

/// Threads of most tests: one, so that tests side by side never wait for each other's threads.
pub(crate) const THREADS: ThreadPoolOptions =
    ThreadPoolOptions { threads: 1, poll_percent: 0, pinned: false };

/// Tokens of context of every test.
pub(crate) const CONTEXT_TOKENS: usize = 1024;

/// Rows in one batch of every test.
pub(crate) const BATCH_ROWS: usize = 256;

/// Layers of one model in consecutive windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cut(pub(crate) Vec<Range<usize>>);

impl Cut {
    /// All layers in one window.
    pub(crate) fn whole(layers: usize) -> Self {
        Self(std::iter::once(0..layers).collect())
    }

    /// The ways of cutting that tests try: whole, halves, single layers, uneven.
    pub(crate) fn all(layers: usize) -> Vec<Self> {
        let half = layers / 2;
        let mut cuts = vec![Self::whole(layers)];
        if layers > 1 {
            cuts.push(Self(vec![0..half, half..layers]));
            cuts.push(Self((0..layers).map(|layer| layer..layer + 1).collect()));
        }
        if layers > 3 {
            cuts.push(Self(vec![0..1, 1..layers - 2, layers - 2..layers]));
        }
        cuts
    }
}

/// What one greedy run gave.
#[derive(Debug)]
pub(crate) struct Greedy {
    pub(crate) tokens: Vec<Token>,
    /// Logits that each token was chosen from.
    pub(crate) logits: Vec<Vec<f32>>,
}

impl Greedy {
    /// How far `other` preferred its own token where the two first chose differently.
    pub(crate) fn lead_at_first_difference(&self, other: &Self) -> Option<f32> {
        let step = self.same_tokens(other);
        let (ours, theirs) = (*self.tokens.get(step)?, *other.tokens.get(step)?);
        Some(other.logits[step][theirs as usize] - other.logits[step][ours as usize])
    }

    fn same_tokens(&self, other: &Self) -> usize {
        self.tokens.iter().zip(&other.tokens).take_while(|(a, b)| a == b).count()
    }

    /// Largest difference between logits of two runs, over the steps that had equal tokens before
    /// them.
    pub(crate) fn largest_difference(&self, other: &Self) -> f32 {
        let comparable = (self.same_tokens(other) + 1).min(self.logits.len());
        self.logits[..comparable]
            .iter()
            .zip(&other.logits)
            .flat_map(|(a, b)| a.iter().zip(b).map(|(a, b)| (a - b).abs()))
            .fold(0.0, f32::max)
    }
}

/// A model file.
#[derive(Debug)]
pub(crate) struct Fixture {
    pub(crate) model: Model,
    pub(crate) vocabulary: Vocabulary,
    path: PathBuf,
}

impl Fixture {
    /// The real model `name`, or nothing, with a message, where it was not downloaded.
    pub(crate) fn open(name: &str) -> Option<Self> {
        let path = models_folder().join(name);
        if !path.exists() {
            println!("skipped: {name} is not here; `cargo xtask models` fetches it");
            return None;
        }
        Some(Self::at(&path))
    }

    /// A made model and the folder that holds it, where there is a vocabulary to give it.
    pub(crate) fn made(recipe: &ModelRecipe) -> Option<(tempfile::TempDir, Self)> {
        let donor = Self::open("SmolLM2-135M-Instruct.Q4_1.gguf")?;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made.gguf");
        make_model_file(recipe, donor.model.path(), 2, &path).unwrap();
        let fixture = Self::at(&path);
        Some((folder, fixture))
    }

    /// The model file at `path`.
    pub(crate) fn at(path: &Path) -> Self {
        let model = Model::open(path).unwrap();
        let vocabulary = model.vocabulary().unwrap();
        Self { model, vocabulary, path: path.to_owned() }
    }

    pub(crate) fn layers(&self) -> usize {
        self.model.directory().hyper.block_count
    }

    pub(crate) fn tokens(&self, text: &str) -> Vec<Token> {
        self.vocabulary.tokenize(text, true, false).unwrap()
    }

    /// An engine with all layers.
    pub(crate) fn engine(&self, slots: usize, layout: LayoutChoice, cache: CacheElement) -> Engine {
        let options = EngineOptions { layout, cache, ..self.options(slots, Residency::Mapped) };
        Engine::load(&self.model, &options).unwrap()
    }

    /// All layers, kept in this way and laid out as in the file.
    pub(crate) fn options(&self, slots: usize, placement: impl Into<Placement>) -> EngineOptions {
        EngineOptions {
            layers: (0..self.layers()).into(),
            embedding: true,
            head: true,
            slots,
            context_tokens: CONTEXT_TOKENS,
            batch_rows_max: BATCH_ROWS,
            cache: CacheElement::F16,
            threads: THREADS,
            batch_threads: None,
            layout: LayoutChoice::Plain,
            placement: placement.into(),
        }
    }

    /// A context of llama.cpp with the sizes of our engines.
    pub(crate) fn reference_context<'m>(
        &self,
        model: &'m ReferenceModel,
        sequences: usize,
    ) -> ReferenceContext<'m> {
        self.reference_context_with(model, sequences, CacheElement::F16)
    }

    /// The same with a cache of these types.
    pub(crate) fn reference_context_with<'m>(
        &self,
        model: &'m ReferenceModel,
        sequences: usize,
        cache: CacheElement,
    ) -> ReferenceContext<'m> {
        let options = ReferenceOptions {
            context_tokens: CONTEXT_TOKENS as u32,
            sequences: sequences as u32,
            batch_rows: BATCH_ROWS as u32,
            cache_elements: cache.elements(),
            batch_threads: None,
            threads: THREADS,
        };
        ReferenceContext::new(model, options).unwrap()
    }

    /// Greedy tokens of llama.cpp.
    pub(crate) fn reference_greedy(&self, prompt: &[Token], count: usize, repack: bool) -> Greedy {
        let model = ReferenceModel::load(&self.path, repack).unwrap();
        greedy_of(&mut self.reference_context(&model, 1), prompt, count)
    }
}

/// Greedy tokens of a context of llama.cpp.
pub(crate) fn greedy_of(
    context: &mut ReferenceContext<'_>,
    prompt: &[Token],
    count: usize,
) -> Greedy {
    let mut result = Greedy { tokens: Vec::new(), logits: Vec::new() };
    let mut next = prompt.to_vec();
    let mut position = 0;
    while result.tokens.len() < count {
        for chunk in next.chunks(BATCH_ROWS) {
            let rows: Vec<ReferenceRow> = chunk
                .iter()
                .enumerate()
                .map(|(index, token)| ReferenceRow {
                    token: *token,
                    position: (position + index) as u32,
                    sequence: 0,
                    logits: index + 1 == chunk.len(),
                })
                .collect();
            context.decode(&rows).unwrap();
            position += chunk.len();
        }
        let last = (next.len() - 1) % BATCH_ROWS;
        let logits = context.logits(last).to_vec();
        let token = greedy(&logits);
        result.tokens.push(token);
        result.logits.push(logits);
        next = vec![token];
    }
    result
}

/// Greedy tokens of our engine, one window after another.
pub(crate) fn ours_greedy(
    engine: &mut Engine,
    cut: &Cut,
    prompt: &[Token],
    count: usize,
) -> Greedy {
    engine.clear(0);
    let mut result = Greedy { tokens: Vec::new(), logits: Vec::new() };
    let mut next = prompt.to_vec();
    let mut position = 0;
    while result.tokens.len() < count {
        let mut logits = Vec::new();
        for (index, chunk) in next.chunks(BATCH_ROWS).enumerate() {
            let rows: Vec<Row> = (position..position + chunk.len())
                .map(|position| Row { slot: 0, position })
                .collect();
            let last = [chunk.len() - 1];
            let wanted: &[usize] = if (index + 1) * BATCH_ROWS >= next.len() { &last } else { &[] };
            logits = run_cut(engine, cut, &rows, chunk, wanted);
            position += chunk.len();
        }
        let token = greedy(&logits);
        result.tokens.push(token);
        result.logits.push(logits);
        next = vec![token];
    }
    result
}

/// Runs the windows of `cut` one after another and returns the logits of the wanted rows.
pub(crate) fn run_cut(
    engine: &mut Engine,
    cut: &Cut,
    rows: &[Row],
    tokens: &[Token],
    wanted: &[usize],
) -> Vec<f32> {
    let (mut hidden, mut product) = (Vec::new(), Vec::new());
    for (index, layers) in cut.0.iter().enumerate() {
        let entering =
            if index == 0 { Entering::Tokens(tokens) } else { Entering::Hidden(&hidden) };
        let last = index + 1 == cut.0.len();
        let wanted = if last { Wanted::Logits(wanted) } else { Wanted::Hidden };
        let step = Step { layers: layers.clone(), rows, entering, wanted };
        engine.run(&step, &mut product).unwrap();
        std::mem::swap(&mut hidden, &mut product);
    }
    hidden
}

/// Logits of five steps of eight slots: the last takes chunks of a prompt while the others go on
/// by one token.
pub(crate) fn eight_slots(fixture: &Fixture, placement: Placement) -> Vec<Vec<f32>> {
    let mut engine = Engine::load(&fixture.model, &fixture.options(8, placement)).unwrap();
    let whole = Cut::whole(fixture.layers());
    let steps = (0..5).map(|step| {
        let mut rows: Vec<Row> = (0..7).map(|slot| Row { slot, position: step }).collect();
        rows.extend((0..9).map(|index| Row { slot: 7, position: step * 9 + index }));
        let tokens: Vec<Token> = (0..16).map(|row| 5 + row * 3).collect();
        let wanted: Vec<usize> = (0..8).collect();
        run_cut(&mut engine, &whole, &rows, &tokens, &wanted)
    });
    steps.collect()
}

/// The first token with the largest logit.
pub(crate) fn greedy(logits: &[f32]) -> Token {
    let mut best = 0;
    for (index, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = index;
        }
    }
    best as Token
}

fn models_folder() -> PathBuf {
    if let Some(folder) = std::env::var_os("MOTLEY_MODELS") {
        return folder.into();
    }
    let home = std::env::var_os("HOME").unwrap_or_default();
    PathBuf::from(home).join(".cache/motley/models")
}
