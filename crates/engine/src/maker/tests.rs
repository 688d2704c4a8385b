//! What a made model is: its bytes, its tensor types, its vocabulary, and that it says something.

use expect_test::expect;
use motley_ggml::{
    ElementType, ReferenceContext, ReferenceModel, ReferenceOptions, ReferenceRow,
    ThreadPoolOptions, Vocabulary,
};
use motley_model::{GgufWriter, LayerTensors, MetadataValue, ModelDirectory, write_metadata_only};

use super::file_type::{MatrixRole, MixtureContext};
use super::*;

/// A vocabulary of printable ASCII, which byte-level vocabularies spell as itself, and a few
/// merges; with tokens that begin and end a text or without.
fn donor_file(special: bool) -> Vec<u8> {
    let mut tokens: Vec<String> = ('!'..='~').map(String::from).collect();
    tokens.extend(["th", "he", "the", "<|begin|>", "<|end|>"].map(String::from));
    let texts: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let mut types = vec![1; texts.len()];
    types[texts.len() - 2..].fill(3);
    let mut metadata: Vec<(&str, MetadataValue<'_>)> = vec![
        ("general.architecture", "llama".into()),
        ("tokenizer.ggml.model", "gpt2".into()),
        ("tokenizer.ggml.pre", "default".into()),
        ("tokenizer.ggml.tokens", MetadataValue::Strings(&texts)),
        ("tokenizer.ggml.token_type", MetadataValue::I32s(&types)),
        ("tokenizer.ggml.merges", MetadataValue::Strings(&["t h", "h e", "th e"])),
    ];
    if special {
        metadata.push(("tokenizer.ggml.bos_token_id", 97_u32.into()));
        metadata.push(("tokenizer.ggml.eos_token_id", 98_u32.into()));
    }
    let mut writer = GgufWriter::new();
    for (key, value) in metadata {
        writer.metadata(key, value).expect("the keys are distinct");
    }
    writer.header()
}

fn parse(bytes: &[u8]) -> Gguf<'_> {
    Gguf::parse(bytes, bytes.len() as u64).expect("a GGUF file")
}

/// A small model with a vocabulary of 2,000 tokens.
fn small(architecture: &str, file_type: FileType) -> ModelRecipe {
    let mut recipe = small_model(architecture, file_type);
    recipe.shape.vocabulary_size = Some(2_000);
    recipe.seed = 1;
    recipe
}

fn make(recipe: &ModelRecipe, threads: usize) -> Vec<u8> {
    let donor = donor_file(true);
    let donor = parse(&donor);
    let mut bytes = Vec::new();
    let made = make_model(recipe, &donor, threads, &mut bytes).expect("the recipe can be made");
    assert_eq!(made.file_bytes, bytes.len() as u64);
    bytes
}

fn directory(bytes: &[u8]) -> ModelDirectory {
    ModelDirectory::from_files(&[parse(bytes)]).expect("made files are models")
}

/// The directory of a small made model, for tests of what needs no weights.
pub(crate) fn made_directory(architecture: &str, file_type: FileType) -> ModelDirectory {
    directory(&make(&small(architecture, file_type), 1))
}

/// Every architecture that can be made, with every feature the maker has for it.
fn recipes(file_type: FileType) -> Vec<ModelRecipe> {
    let mut recipes: Vec<ModelRecipe> =
        Architecture::ALL.iter().map(|known| small(known.name(), file_type)).collect();
    let mut stretched = small("llama", file_type);
    stretched.shape.tied_embeddings = true;
    stretched.shape.rope_stretch = Some(Llama3Stretch {
        factor: 8.0,
        low_frequency_factor: 1.0,
        high_frequency_factor: 4.0,
        original_context_length: 256,
    });
    recipes.push(stretched);
    recipes
}

#[test]
fn made_files_are_models_of_the_asked_shape() {
    for &file_type in FileType::ALL {
        for mut recipe in recipes(file_type) {
            recipe.shape.vocabulary_size = Some(200);
            let model = directory(&make(&recipe, 2));
            let (hyper, shape) = (&model.hyper, &recipe.shape);
            assert_eq!(hyper.architecture.name(), recipe.architecture);
            assert_eq!(model.layers.len(), shape.blocks);
            assert_eq!(hyper.embedding_length, shape.embedding_length);
            assert_eq!(hyper.key_length, shape.head_length);
            assert_eq!(Some(hyper.vocabulary_size), shape.vocabulary_size);
            assert_eq!(hyper.tied_embeddings, shape.tied_embeddings);
            assert_eq!(hyper.query_key_value_bias, recipe.architecture == "qwen2");
            assert_eq!(hyper.sliding_window, shape.sliding_window.map(|w| w.tokens as usize));
            assert_eq!(model.rope_frequencies.is_some(), shape.rope_stretch.is_some());
            let name = model.description.file_type.expect("the file says its type");
            assert!(file_type.name().starts_with(name));
        }
    }
}

#[test]
fn bytes_depend_on_the_seed_and_not_on_the_threads() {
    let recipe = small("llama", FileType::Q4_K_M);
    let bytes = make(&recipe, 1);
    for threads in [2, 3, 7] {
        assert!(make(&recipe, threads) == bytes, "{threads} threads");
    }
    let other = make(&ModelRecipe { seed: 2, ..recipe }, 1);
    assert_eq!(other.len(), bytes.len());
    let equal = bytes.iter().zip(&other).filter(|(a, b)| a == b).count();
    assert!(equal < bytes.len() / 2, "{equal} of {} bytes are equal", bytes.len());
}

#[test]
fn a_vocabulary_is_filled_up_or_cut_to_the_asked_size() {
    let sized = |size| {
        let mut recipe = small("llama", FileType::F32);
        recipe.shape.vocabulary_size = size;
        make(&recipe, 1)
    };
    let original = directory(&sized(None));
    assert_eq!(original.hyper.vocabulary_size, 99);
    let filled = sized(Some(150));
    let vocabulary = Vocabulary::from_metadata(&write_metadata_only(&parse(&filled)))
        .expect("llama.cpp takes it");
    assert_eq!(vocabulary.size(), 150);
    let tokens = vocabulary.tokenize("the", false, false).expect("text can be encoded");
    assert_eq!(tokens, [96]);
    let gguf = parse(&filled);
    let texts: Vec<&str> =
        gguf.strings("tokenizer.ggml.tokens").expect("strings").expect("there").collect();
    assert_eq!((texts[98], texts[99], texts[149]), ("<|end|>", "[UNUSED_99]", "[UNUSED_149]"));

    // A cut loses the rule that leads to token 96, "the".
    let donor = donor_file(false);
    let mut recipe = small("llama", FileType::F32);
    recipe.shape.vocabulary_size = Some(96);
    let mut cut = Vec::new();
    make_model(&recipe, &parse(&donor), 1, &mut cut).expect("no special token is lost");
    let rules = parse(&cut).strings("tokenizer.ggml.merges").expect("strings").expect("there");
    assert_eq!(rules.collect::<Vec<_>>(), ["t h", "h e"]);
    let vocabulary =
        Vocabulary::from_metadata(&write_metadata_only(&parse(&cut))).expect("llama.cpp takes it");
    let tokens = vocabulary.tokenize("the", false, false).expect("text can be encoded");
    assert_eq!((vocabulary.size(), tokens), (96, vec![94, 68]));
}

#[test]
fn mixtures_choose_what_llama_cpp_chose_for_real_files() {
    let files = [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", FileType::Q4_1),
        ("gemma-3-270m-it.Q4_K_M.gguf", FileType::Q4_K_M),
        ("qwen2.5-coder-0.5b-instruct.Q4_K_M.gguf", FileType::Q4_K_M),
        ("qwen2.5-coder-1.5b-instruct.Q4_K_M.gguf", FileType::Q4_K_M),
    ];
    for (name, file_type) in files {
        let Some(file) = real_file(name) else { continue };
        let model = directory(file.bytes());
        let context = MixtureContext {
            file_type,
            blocks: model.layers.len(),
            tied_embeddings: model.output.is_none(),
            small_values: false,
        };
        let mut matrices = vec![(MatrixRole::Embedding, &model.embedding)];
        matrices.extend(model.output.as_ref().map(|output| (MatrixRole::Output, output)));
        // llama.cpp of that time counted blocks in the order of the file: 0, 1, 10, 11 …
        let mut in_file: Vec<&LayerTensors> = model.layers.iter().collect();
        in_file.sort_by_key(|layer| layer.value.offset);
        for (block, layer) in in_file.into_iter().enumerate() {
            for matrix in layer.matrices() {
                let role = if matrix == &layer.value {
                    MatrixRole::Value { block }
                } else if matrix == &layer.down {
                    MatrixRole::Down { block }
                } else {
                    MatrixRole::Other
                };
                matrices.push((role, matrix));
            }
        }
        for (role, matrix) in matrices {
            let chosen = context.tensor_type(role, matrix.shape[0]);
            assert_eq!(chosen, matrix.tensor_type, "{name}: {}", matrix.name);
        }
    }
}

#[test]
fn presets_are_the_models_of_the_device_table() {
    let table: serde_json::Value =
        serde_json::from_str(include_str!("../../../cluster/data/devices.json")).expect("JSON");
    let models = table["models"].as_array().expect("a list of models");
    assert_eq!(models.len(), 16);
    for model in models {
        let number = |field: &str| model[field].as_u64().map(|number| number as usize);
        let id = model["id"].as_str().expect("an id");
        let recipe = preset(id, None).expect("there is a preset");
        let shape = &recipe.shape;
        let sizes = [
            (number("n_layers"), shape.blocks),
            (number("n_embd"), shape.embedding_length),
            (number("n_ff").or(number("n_ff_expert")), shape.feed_forward_length),
            (number("n_head"), shape.heads),
            (number("n_head_kv"), shape.kv_heads),
            (number("head_dim"), shape.head_length),
            (number("n_vocab"), shape.vocabulary_size.expect("presets say it")),
        ];
        for (expected, actual) in sizes {
            assert_eq!(expected, Some(actual), "{id}");
        }
        let experts = shape.experts.map(|experts| (experts.count, experts.used));
        assert_eq!(experts, number("n_expert").zip(number("n_expert_used")), "{id}");
        let window = shape.sliding_window.map(|window| window.tokens as usize);
        assert_eq!(window, number("sliding_window"), "{id}");
        if recipe.architecture == "gpt-oss" {
            continue;
        }
        let plan = ModelPlan::new(&recipe, shape.vocabulary_size.expect("presets say it"))
            .expect("it can be made");
        let bytes_of = |prefix: &str| -> u64 {
            plan.tensors
                .iter()
                .filter(|tensor| tensor.name.starts_with(prefix))
                .map(|tensor| tensor.bytes())
                .sum()
        };
        for (block, bytes) in model["layer_bytes"].as_array().expect("a list").iter().enumerate() {
            let made = bytes_of(&format!("blk.{block}."));
            assert_eq!(Some(made), bytes.as_u64(), "{id} block {block}");
        }
        assert_eq!(Some(bytes_of("token_embd")), model["embed_bytes"].as_u64(), "{id}");
        assert_eq!(Some(bytes_of("output")), model["output_bytes"].as_u64(), "{id}");
    }
}

#[test]
fn every_preset_is_made_with_one_block_or_says_why_not() {
    let donor = donor_file(true);
    let donor = parse(&donor);
    let mut refusals = Vec::new();
    for name in preset_names() {
        let recipe = preset(name, Some(1)).expect("listed names are known");
        assert_ne!(recipe.shape.original_blocks, 1);
        let size = recipe.shape.vocabulary_size.expect("presets say it");
        match ModelPlan::new(&recipe, size) {
            Ok(plan) => {
                let writer = plan.directory(&recipe, &donor).expect("the vocabulary is filled up");
                let (header, file_bytes) = (writer.header(), writer.file_bytes());
                let gguf = Gguf::parse(&header, file_bytes).expect("a GGUF file");
                let model = ModelDirectory::from_files(&[gguf]).expect("a model");
                assert_eq!((model.layers.len(), model.hyper.vocabulary_size), (1, size), "{name}");
            }
            Err(error) => refusals.push(error.to_string()),
        }
    }
    expect!["gpt-oss-20b-mxfp4 has the architecture 'gpt-oss', which cannot be made yet (supported are llama, qwen2, qwen3, qwen3moe, gemma3)"].assert_eq(&refusals.join("\n"));
}

#[test]
fn each_refusal_says_what_was_found() {
    let good = small("llama", FileType::F16);
    let with = |change: &dyn Fn(&mut ModelShape)| {
        let mut recipe = good.clone();
        change(&mut recipe.shape);
        recipe
    };
    let refused = [
        small("mamba", FileType::F16),
        with(&|shape| shape.vocabulary_size = Some(98)),
        with(&|shape| shape.blocks = 0),
        with(&|shape| shape.heads = 5),
        with(&|shape| shape.head_length = 63),
        with(&|shape| shape.rope_frequency_base = f32::NAN),
        with(&|shape| shape.vocabulary_size = Some(1 << 25)),
    ];
    let donor = donor_file(true);
    let donor = parse(&donor);
    let mut messages: Vec<String> = refused
        .iter()
        .map(|recipe| {
            let mut out = Vec::new();
            let error = make_model(recipe, &donor, 1, &mut out).expect_err("must be refused");
            assert!(out.is_empty());
            error.to_string()
        })
        .collect();
    let empty = GgufWriter::new().header();
    let empty = parse(&empty);
    let mut without = good.clone();
    without.shape.vocabulary_size = None;
    messages
        .push(make_model(&without, &empty, 1, Vec::new()).expect_err("no vocabulary").to_string());
    messages.push("q3_k".parse::<FileType>().expect_err("not made").to_string());
    messages.push(preset("llama-9", None).expect_err("unknown").to_string());
    expect![[r#"
        small mamba has the architecture 'mamba', which cannot be made yet (supported are llama, qwen2, qwen3, qwen3moe, gemma3)
        a vocabulary of 98 tokens would lose the token of 'tokenizer.ggml.eos_token_id'
        blocks is 0, allowed are 1 to 512
        5 heads are no multiple of 2 key and value heads
        head length 63 is odd
        rope frequency base is NaN, it must be finite and above 0
        vocabulary size is 33554432, allowed are 1 to 16777216
        the vocabulary's file has no tokens
        'q3_k' is no type that can be made (known are F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K_S, Q4_K_M, Q5_K_S, Q5_K_M, Q6_K, MXFP4_MOE)
        'llama-9' is no preset (known are llama-2-7b-q4_0, llama-3-8b-q4_k_m, llama-3-70b-q4_k_m, llama-3-70b-q4_k_s, qwen2.5-7b-q4_k_m, qwen2.5-14b-q4_k_m, qwen2.5-32b-q4_k_m, qwen2.5-72b-q4_k_m, llama-1-30b-q4_k_m, llama-1-30b-q4_k_s, llama-3-45b-q4_k_s, llama-3-60b-q4_k_s, llama-1-65b-q4_k_m, llama-1-65b-q4_k_s, qwen3-30b-a3b-q4_k_m, gpt-oss-20b-mxfp4, llama-3.2-1b-q4_0, qwen3-0.6b-q8_0, qwen3-8b-q4_k_m, gemma-3-1b-q4_k_m)"#]].assert_eq(&messages.join("\n"));
}

#[test]
fn llama_3_stretches_low_frequencies_only() {
    let stretch = Llama3Stretch {
        factor: 32.0,
        low_frequency_factor: 1.0,
        high_frequency_factor: 4.0,
        original_context_length: 8_192,
    };
    let divisors = stretch.divisors(64, 500_000.0);
    assert_eq!(divisors.len(), 32);
    assert!(divisors.is_sorted());
    assert_eq!((divisors[0], divisors[31]), (1.0, 32.0));
    // Pair 15 turns 2.78 times over 8,192 tokens: a little more than half of it is kept.
    assert!((divisors[15] - 1.0 / (0.407 / 32.0 + 0.593)).abs() < 0.02, "{}", divisors[15]);
}

/// A model of noise must not answer with one token for ever: such a model would agree with the
/// reference even if its layers were computed wrongly.
#[test]
fn greedy_answers_vary_and_logits_are_spread() {
    for recipe in recipes(FileType::Q8_0) {
        let bytes = make(&recipe, 2);
        let path = std::env::temp_dir().join(format!(
            "motley-made-{}-{}-{}.gguf",
            std::process::id(),
            recipe.architecture,
            recipe.shape.tied_embeddings
        ));
        fs::write(&path, bytes).expect("the temporary folder can be written");
        let (tokens, deviation) = reference_greedy(&path, 64);
        fs::remove_file(&path).expect("it was just written");
        let mut distinct = tokens.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let name = (&recipe.architecture, recipe.shape.tied_embeddings);
        assert!(distinct.len() >= 32, "{name:?}: {} distinct of {tokens:?}", distinct.len());
        assert!((1.5..4.0).contains(&deviation), "{name:?}: deviation {deviation}");
    }
}

/// Greedy tokens of llama.cpp, and the standard deviation of the first logits.
fn reference_greedy(path: &Path, count: u32) -> (Vec<i32>, f32) {
    let model = ReferenceModel::load(path, false).expect("llama.cpp loads it");
    let threads = ThreadPoolOptions { threads: 1, poll_percent: 0, pinned: false };
    let options = ReferenceOptions {
        context_tokens: 256,
        sequences: 1,
        batch_rows: 64,
        cache_elements: [ElementType::F16; 2],
        batch_threads: None,
        threads,
    };
    let mut context = ReferenceContext::new(&model, options).expect("a context");
    let (mut tokens, mut deviation) = (Vec::new(), 0.0);
    let mut next = 7;
    for position in 0..count {
        let row = ReferenceRow { token: next, position, sequence: 0, logits: true };
        context.decode(&[row]).expect("it decodes");
        let logits = context.logits(0);
        if position == 0 {
            let mean = logits.iter().sum::<f32>() / logits.len() as f32;
            let squares: f32 = logits.iter().map(|logit| (logit - mean).powi(2)).sum();
            deviation = (squares / logits.len() as f32).sqrt();
        }
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
        next = best.expect("there are logits") as i32;
        tokens.push(next);
    }
    (tokens, deviation)
}

/// A real model, or nothing, with a message, where it was not downloaded.
#[expect(clippy::print_stdout, reason = "a test says what it skips")]
fn real_file(name: &str) -> Option<MappedFile> {
    let folder = std::env::var_os("MOTLEY_MODELS").map(PathBuf::from).unwrap_or_else(|| {
        let home = std::env::var_os("HOME").unwrap_or_default();
        PathBuf::from(home).join(".cache/motley/models")
    });
    let file = MappedFile::open(&folder.join(name)).ok();
    if file.is_none() {
        println!("skipped: {name} is not here; `cargo xtask models` fetches it");
    }
    file
}
