//! Two devices with half a real model each compute what one with all of it computes.

#![expect(clippy::print_stdout, reason = "tests say what they skip")]

use motley_engine::{
    CacheElement, Engine, EngineOptions, Entering, LayerSet, LayoutChoice, Model, Residency, Row,
    Step, Wanted,
};
use motley_ggml::ThreadPoolOptions;

use super::*;

const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

fn real_model() -> Option<PathBuf> {
    let named = std::env::var_os("MOTLEY_MODELS").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let folder = named.or_else(|| Some(home?.join(".cache").join("motley").join("models")));
    let path = folder?.join(SMOLLM2);
    if path.exists() {
        return Some(path);
    }
    println!("skipped: {SMOLLM2} is not here; `cargo xtask models` fetches it");
    None
}

fn engine(path: &Path, wanted: &WantedParts) -> Engine {
    let options = EngineOptions {
        layers: LayerSet::new(wanted.layers.clone()),
        embedding: wanted.embedding,
        head: wanted.head,
        slots: 1,
        context_tokens: 64,
        batch_rows_max: 8,
        cache: CacheElement::F16,
        threads: ThreadPoolOptions { threads: 1, poll_percent: 0, pinned: false },
        batch_threads: None,
        layout: LayoutChoice::Plain,
        placement: Residency::Mapped.into(),
    };
    Engine::load(&Model::open(path).unwrap(), &options).unwrap()
}

fn run(engine: &mut Engine, layers: Range<usize>, entering: Entering<'_>, head: bool) -> Vec<f32> {
    let rows: Vec<Row> = (0..5).map(|position| Row { slot: 0, position }).collect();
    let wanted = if head { Wanted::Logits(&[4]) } else { Wanted::Hidden };
    let mut given = Vec::new();
    engine.run(&Step { layers, rows: &rows, entering, wanted }, &mut given).unwrap();
    given
}

#[test]
fn halves_from_blocks_compute_what_the_whole_computes() {
    let Some(path) = real_model() else { return };
    let tokens = [1, 4093, 198, 504, 2730];
    let manifest = Arc::new(Manifest::of_files(std::slice::from_ref(&path), |_, _| {}).unwrap());
    let outer = tempfile::tempdir().unwrap();
    let layer_count = Model::open(&path).unwrap().directory().layers.len();
    let half = layer_count / 2;
    let part = |layers: Range<usize>| WantedParts {
        embedding: layers.start == 0,
        head: layers.end == layer_count,
        layers: vec![layers],
    };
    let device = |name: &str, wanted: &WantedParts| {
        let store = outer.path().join(name);
        let mut model = PartialModel::open(&store, Arc::clone(&manifest), plenty()).unwrap();
        let source = || -> Vec<Box<dyn BlockSource>> {
            let copy = LocalModel::open(&path, &manifest).unwrap();
            vec![Box::new(CopySource(copy))]
        };
        let metadata = metadata_blocks(&manifest);
        let head = fetch(&mut model, &metadata, source(), |_| {}).unwrap();
        let directory = model.directory().unwrap();
        let blocks = blocks_for(&manifest, &directory, wanted);
        let rest = fetch(&mut model, &blocks, source(), |_| {}).unwrap();
        let needed: u64 = tensors(&directory, wanted).iter().map(|tensor| tensor.bytes).sum();
        let expected = needed + manifest.files()[0].metadata_bytes;
        let fetched = head.bytes + rest.bytes;
        let over = fetched.abs_diff(expected) as f64 / needed as f64;
        assert!(over <= 0.02, "{name}: {fetched} bytes for {expected}");
        engine(model.path(), wanted)
    };
    let mut first = device("first", &part(0..half));
    let mut second = device("second", &part(half..layer_count));
    let hidden = run(&mut first, 0..half, Entering::Tokens(&tokens), false);
    let logits = run(&mut second, half..layer_count, Entering::Hidden(&hidden), true);
    let mut whole = engine(&path, &part(0..layer_count));
    let expected = run(&mut whole, 0..layer_count, Entering::Tokens(&tokens), true);
    assert!(logits == expected, "the logits differ");
}

/// A copy on this device as a source.
struct CopySource(LocalModel);

impl BlockSource for CopySource {
    fn name(&self) -> String {
        "copy".to_owned()
    }

    fn fetch(&mut self, index: usize, _next: Option<usize>) -> Result<Vec<u8>, SourceError> {
        let block = self.0.read_block(index).map_err(|error| SourceError::Failed(error.into()))?;
        block.ok_or(SourceError::Missing)
    }
}
