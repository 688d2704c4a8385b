//! Layers in GPUs give what the processor gives, and their bytes are accounted to the GPU.
//!
//! Most tests take the processor for a GPU, twice where two are needed: every part of a step then
//! passes through the same code as with real ones, and results are equal to the last bit. Where the
//! build sees real GPUs, which may be Mesa's software Vulkan, the same is asked of them within a
//! tolerance, because their kernels add up in another order and round some products to 16 bits.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "tests say what they skip and how near they came, and whether they may skip"
)]

mod common;

use common::{Cut, Fixture, Greedy, ours_greedy};
use motley_engine::{
    CacheElement, Engine, EngineOptions, Entering, FileType, LoadError, ModelRecipe, Placement,
    Residency, ResidencyError, Row, Step, Wanted, small_model,
};
use motley_ggml::{Device, gpus};

/// How far a logit may lie from the processor's, as a part of the largest logit's size.
const LOGIT_TOLERANCE: f32 = 0.02;

/// The same with quantised weights: the processor rounds what it multiplies with them to 8 bits, a
/// GPU does not, and random weights have no preferences that would hide it.
const LOGIT_TOLERANCE_QUANTISED: f32 = 0.15;

/// Tokens that are compared.
const TOKENS: usize = 6;

const PROMPT: [i32; 5] = [5, 6, 7, 300, 8];

fn recipe(architecture: &str, file_type: FileType) -> ModelRecipe {
    let mut recipe = small_model(architecture, file_type);
    recipe.shape.vocabulary_size = Some(2048);
    recipe
}

/// Which GPU keeps each layer and the head: `p` for none.
fn placed(sites: &str, rule: Placement, devices: &[Device]) -> Placement {
    let mut gpus: Vec<Option<usize>> =
        sites.chars().map(|site| site.to_digit(10).map(|gpu| gpu as usize)).collect();
    let head = gpus.pop().expect("a site of the head");
    let placement = rule.with_gpu_layers(gpus).on_devices(devices.to_vec());
    match head {
        Some(gpu) => placement.with_gpu_head(gpu),
        None => placement,
    }
}

/// Site strings for as many layers as the model has, and the head.
fn ways(layers: usize, devices: usize) -> Vec<String> {
    let last = (devices - 1).to_string();
    let half = layers / 2;
    vec![
        "0".repeat(layers + 1),
        format!("{}p", "0".repeat(layers)),
        format!("{}{}p", "p".repeat(half), "0".repeat(layers - half)),
        format!("{}{}{last}", "0".repeat(half), last.repeat(layers - half)),
        format!("{}0", "p".repeat(layers)),
        (0..layers).map(|layer| ["0", "p"][layer % 2]).chain(["p"]).collect(),
    ]
}

fn load(fixture: &Fixture, placement: Placement) -> Engine {
    Engine::load(&fixture.model, &fixture.options(2, placement)).unwrap()
}

fn run(fixture: &Fixture, placement: Placement) -> Greedy {
    let mut engine = load(fixture, placement);
    ours_greedy(&mut engine, &Cut::whole(fixture.layers()), &PROMPT, TOKENS)
}

#[test]
fn a_step_that_passes_from_device_to_device_gives_the_logits_of_one() {
    let processors = [Device::cpu(), Device::cpu()];
    for architecture in ["llama", "qwen2", "qwen3", "gemma3"] {
        let Some((_folder, fixture)) = Fixture::made(&recipe(architecture, FileType::Q8_0)) else {
            return;
        };
        let expected = run(&fixture, Residency::Mapped.into());
        for sites in ways(fixture.layers(), 2) {
            for rule in [Residency::Mapped, Residency::Ram, Residency::Stream] {
                let found = run(&fixture, placed(&sites, rule.into(), &processors));
                assert_eq!(found.tokens, expected.tokens, "{architecture} {sites} {rule:?}");
                assert!(found.logits == expected.logits, "{architecture} {sites} {rule:?}");
            }
        }
    }
}

/// Every kind of step, also those that want nothing or states beside logits.
#[test]
fn every_kind_of_step_is_cut_between_devices_without_a_trace() {
    let Some((_folder, fixture)) = Fixture::made(&recipe("llama", FileType::F16)) else { return };
    let layers = fixture.layers();
    let rows: Vec<Row> =
        [(0, 0), (0, 1), (0, 2), (1, 0)].map(|(slot, position)| Row { slot, position }).into();
    let tokens = [9, 8, 7, 9];
    let mut whole = load(&fixture, Residency::Mapped.into());
    for sites in ways(layers, 1) {
        let placement = placed(&sites, Residency::Ram.into(), &[Device::cpu()]);
        let mut parted = load(&fixture, placement);
        for wanted in [
            Wanted::Hidden,
            Wanted::HiddenOf(&[3, 1]),
            Wanted::Logits(&[]),
            Wanted::Logits(&[2, 3]),
            Wanted::LogitsAndStates(&[2], &[0, 3]),
            Wanted::LogitsAndStates(&[], &[1]),
        ] {
            let entering = Entering::Tokens(&tokens);
            let step = Step { layers: 0..layers, rows: &rows, entering, wanted };
            let (mut expected, mut found) = (Vec::new(), Vec::new());
            whole.run(&step, &mut expected).unwrap();
            parted.run(&step, &mut found).unwrap();
            assert!(found == expected, "{sites} {wanted:?}");
        }
        let graphs = parted.graphs_built();
        let step = Step {
            layers: 0..layers,
            rows: &rows,
            entering: Entering::Tokens(&tokens),
            wanted: Wanted::Logits(&[2, 3]),
        };
        parted.run(&step, &mut Vec::new()).unwrap();
        assert_eq!(parted.graphs_built(), graphs, "{sites}: graphs are reused");
    }
}

/// A conversation begun on one device goes on where its cache was brought.
fn cache_moves(fixture: &Fixture, devices: &[Device], cache: CacheElement) -> (Vec<f32>, Vec<f32>) {
    let layers = fixture.layers();
    let load = |placement| {
        let options = EngineOptions { cache, ..fixture.options(2, placement) };
        Engine::load(&fixture.model, &options).unwrap()
    };
    let mut from = load(Placement::from(Residency::Mapped));
    let mut to = load(placed(&ways(layers, devices.len())[3], Residency::Ram.into(), devices));
    let rows: Vec<Row> = (0..PROMPT.len()).map(|position| Row { slot: 0, position }).collect();
    let mut product = Vec::new();
    let step = Step {
        layers: 0..layers,
        rows: &rows,
        entering: Entering::Tokens(&PROMPT),
        wanted: Wanted::Logits(&[]),
    };
    from.run(&step, &mut product).unwrap();
    let bytes = from.export_cache(0..layers, 0, PROMPT.len()).unwrap();
    to.import_cache(0..layers, 1, PROMPT.len(), &bytes).unwrap();
    assert_eq!(to.export_cache(0..layers, 1, PROMPT.len()).unwrap(), bytes);
    let mut next = |engine: &mut Engine, slot| {
        let step = Step {
            layers: 0..layers,
            rows: &[Row { slot, position: PROMPT.len() }],
            entering: Entering::Tokens(&[11]),
            wanted: Wanted::Logits(&[0]),
        };
        engine.run(&step, &mut product).unwrap();
        product.clone()
    };
    (next(&mut from, 0), next(&mut to, 1))
}

#[test]
fn a_cache_moves_into_a_device_and_out_again() {
    let Some((_folder, fixture)) = Fixture::made(&recipe("gemma3", FileType::Q8_0)) else { return };
    let (expected, found) =
        cache_moves(&fixture, &[Device::cpu(), Device::cpu()], CacheElement::F16);
    assert!(found == expected);
}

fn tensor_bytes(fixture: &Fixture) -> u64 {
    fixture.model.directory().tensors().map(|tensor| tensor.bytes).sum()
}

/// Each byte is accounted to the device that holds it.
fn memory_is_accounted(fixture: &Fixture, devices: &[Device]) {
    let layers = fixture.layers();
    let alone = load(fixture, Residency::Ram.into()).memory();
    // The embedding stays on the processor, and is the head's matrix too in some models.
    let directory = fixture.model.directory();
    let table = directory.embedding.bytes;
    let tied = directory.output.is_none();
    let all = load(fixture, placed(&"0".repeat(layers + 1), Residency::Ram.into(), devices));
    let (host, gpu) = (all.memory(), all.gpu_memory().remove(0));
    assert_eq!((gpu.layers, gpu.head), (layers, true));
    let rounding = 4096 * fixture.model.directory().tensors().count() as u64;
    let weights = tensor_bytes(fixture);
    let all_but_rows = if tied { weights } else { weights - table };
    assert!((all_but_rows..all_but_rows + rounding).contains(&gpu.weights_bytes), "{gpu:?}");
    assert!((table..table + rounding).contains(&host.weights_allocated_bytes), "{host:?}");
    assert_eq!(host.cache_bytes, 0);
    assert!(gpu.cache_bytes >= alone.cache_bytes && gpu.compute_bytes > 0, "{gpu:?}");
    let half = format!("{}{}p", "p".repeat(layers / 2), "0".repeat(layers - layers / 2));
    let half = load(fixture, placed(&half, Residency::Ram.into(), devices));
    let (host, gpu) = (half.memory(), half.gpu_memory().remove(0));
    assert_eq!((gpu.layers, gpu.head), (layers - layers / 2, false));
    assert!(
        (alone.cache_bytes..alone.cache_bytes + rounding)
            .contains(&(gpu.cache_bytes + host.cache_bytes))
    );
    let sum = gpu.weights_bytes + host.weights_allocated_bytes;
    assert!((weights..weights + rounding).contains(&sum), "{sum} of {weights}");
}

#[test]
fn every_byte_is_accounted_to_its_device() {
    let Some((_folder, fixture)) = Fixture::made(&recipe("llama", FileType::Q8_0)) else { return };
    memory_is_accounted(&fixture, &[Device::cpu()]);
}

#[test]
fn a_gpu_that_is_not_here_is_refused_and_layers_of_one_do_not_move() {
    let Some((_folder, fixture)) = Fixture::made(&recipe("llama", FileType::Q8_0)) else { return };
    let layers = fixture.layers();
    let nowhere = Placement::from(Residency::Gpu(1)).on_devices(vec![Device::cpu()]);
    let refused = Engine::load(&fixture.model, &fixture.options(1, nowhere));
    assert!(matches!(refused, Err(LoadError::NoGpu { gpu: 1, seen: 1 })));
    let mut kept = vec![Residency::Gpu(0); layers];
    kept[layers - 1] = Residency::Stream;
    let placement = Placement::per_layer(kept.clone()).on_devices(vec![Device::cpu()]);
    let mut engine = load(&fixture, placement);
    kept[layers - 1] = Residency::Ram;
    engine.set_residency(&kept).unwrap();
    kept[0] = Residency::Ram;
    let refused = engine.set_residency(&kept);
    assert!(matches!(refused, Err(ResidencyError::Gpu { layer: 0 })));
}

/// The GPUs of this build, or nothing, with a message.
fn real_gpus() -> Option<Vec<Device>> {
    let found = gpus();
    if found.is_empty() {
        assert!(std::env::var_os("MOTLEY_TEST_GPU").is_none(), "there is to be a GPU");
        println!("skipped: this build sees no GPU; `cargo xtask test gpu` takes a software Vulkan");
        return None;
    }
    Some(found)
}

/// The largest logit's size.
fn size(logits: &[f32]) -> f32 {
    logits.iter().fold(0.0_f32, |most, logit| most.max(logit.abs()))
}

fn tolerance(file_type: FileType) -> f32 {
    if file_type == FileType::F16 { LOGIT_TOLERANCE } else { LOGIT_TOLERANCE_QUANTISED }
}

#[test]
fn layers_in_a_gpu_choose_the_tokens_of_the_processor() {
    let Some(gpus) = real_gpus() else { return };
    for (architecture, file_type) in [
        ("llama", FileType::F16),
        ("llama", FileType::Q4_0),
        ("llama", FileType::Q4_1),
        ("llama", FileType::Q4_K_M),
        ("qwen2", FileType::F16),
        ("qwen3", FileType::Q8_0),
        ("gemma3", FileType::F16),
    ] {
        let recipe = recipe(architecture, file_type);
        let Some((_folder, fixture)) = Fixture::made(&recipe) else { return };
        compare(&fixture, &gpus, tolerance(file_type), &format!("{architecture} {file_type:?}"));
    }
}

/// A trained model is sure of most of its tokens, so that they are the same whatever the rounding.
#[test]
fn a_real_model_says_the_same_from_a_gpu() {
    let Some(gpus) = real_gpus() else { return };
    let name = "SmolLM2-135M-Instruct.Q4_1.gguf";
    let Some(fixture) = Fixture::open(name) else { return };
    let prompt = fixture.tokens("The capital of France is");
    let layers = fixture.layers();
    let whole = Cut::whole(layers);
    let mut alone = load(&fixture, Residency::Mapped.into());
    let expected = ours_greedy(&mut alone, &whole, &prompt, TOKENS);
    let sites = format!("{}{}p", "p".repeat(layers / 2), "0".repeat(layers - layers / 2));
    let mut engine = load(&fixture, placed(&sites, Residency::Mapped.into(), &gpus));
    assert_eq!(engine.declined(), []);
    let found = ours_greedy(&mut engine, &whole, &prompt, TOKENS);
    println!("{name}: logits {:.6} of their size apart", apart(&found, &expected));
    assert_eq!(found.tokens, expected.tokens);
}

/// All of a model in a GPU, and half of it: up to where the choice of a token was close, tokens are
/// those of the processor, and their logits near its own.
fn compare(fixture: &Fixture, gpus: &[Device], tolerance: f32, what: &str) {
    let expected = run(fixture, Residency::Mapped.into());
    let ways = ways(fixture.layers(), gpus.len());
    for sites in [&ways[0], &ways[2]] {
        let mut engine = load(fixture, placed(sites, Residency::Ram.into(), gpus));
        assert_eq!(engine.declined(), [], "{what} {sites}");
        let found = ours_greedy(&mut engine, &Cut::whole(fixture.layers()), &PROMPT, TOKENS);
        let apart = apart(&found, &expected);
        println!("{what} {sites}: logits {apart:.6} of their size apart");
        assert!(apart <= tolerance, "{what} {sites}");
        let lead = found.lead_at_first_difference(&expected).unwrap_or(0.0);
        assert!(lead <= 2.0 * tolerance * size(&expected.logits[0]), "{what} {sites}: {lead}");
        let same = found.tokens.iter().zip(&expected.tokens).take_while(|(a, b)| a == b).count();
        assert!(same >= TOKENS / 2, "{what} {sites}: {:?} {:?}", found.tokens, expected.tokens);
    }
}

/// The largest distance over the steps that had the same tokens before them.
fn apart(found: &Greedy, expected: &Greedy) -> f32 {
    found.largest_difference(expected) / size(&expected.logits[0])
}

#[test]
fn a_cache_moves_between_a_gpu_and_the_processor() {
    let Some(gpus) = real_gpus() else { return };
    let Some((_folder, fixture)) = Fixture::made(&recipe("gemma3", FileType::Q8_0)) else { return };
    for cache in [CacheElement::F16, CacheElement::Q8_0] {
        let (expected, found) = cache_moves(&fixture, &gpus, cache);
        let most = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let apart = most / size(&expected);
        println!("{cache:?}: logits {apart:.6} of their size apart");
        assert!(apart <= tolerance(FileType::Q8_0), "{cache:?}");
    }
}

#[test]
fn every_byte_in_a_gpu_is_accounted_to_it() {
    let Some(gpus) = real_gpus() else { return };
    let Some((_folder, fixture)) = Fixture::made(&recipe("llama", FileType::Q8_0)) else { return };
    memory_is_accounted(&fixture, &gpus);
}
