//! Real models and vocabularies, where this machine has them.
//!
//! Models are looked for in the folder of `MOTLEY_MODELS`, else in the user's cache; vocabularies in
//! the data folder beside the checkout. What is absent is skipped with a message.

#![expect(clippy::disallowed_methods, reason = "tests read files and the environment")]
#![expect(clippy::print_stderr, reason = "a skipped test says so")]

use std::path::{Path, PathBuf};

use expect_test::{Expect, expect};
use motley_model::{
    CacheQuery, Gguf, ModelDirectory, TensorType, VocabularySummary, write_metadata_only,
};

fn models_folder() -> Option<PathBuf> {
    std::env::var_os("MOTLEY_MODELS")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/motley/models")))
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let bytes = std::fs::read(path).ok();
    if bytes.is_none() {
        eprintln!("skipped: {} is not there", path.display());
    }
    bytes
}

fn parse(bytes: &[u8]) -> Gguf<'_> {
    Gguf::parse(bytes, bytes.len() as u64).expect("a real file")
}

fn check(file: &str, expected: Expect) {
    let Some(bytes) = models_folder().and_then(|folder| read(&folder.join(file))) else { return };
    let gguf = parse(&bytes);
    let model = ModelDirectory::from_files(std::slice::from_ref(&gguf)).expect("a real model");
    expected.assert_eq(&summary(&model));
    let tensors: u64 = gguf.tensors().iter().map(|tensor| tensor.bytes).sum();
    assert_eq!(model.weights_bytes(), tensors, "every tensor has a role, and one only");

    let copy = write_metadata_only(&gguf);
    let copy = parse(&copy);
    assert_eq!(copy.metadata(), gguf.metadata());
}

fn summary(model: &ModelDirectory) -> String {
    let hyper = &model.hyper;
    let layers = &hyper.layers;
    let query = CacheQuery {
        context_tokens: 4096,
        slots: 2,
        micro_batch_tokens: 512,
        cache_types: [TensorType::F16; 2],
    };
    let needed = model.memory_needed(&query).expect("a real size");
    let full = layers.iter().filter(|layer| layer.window_tokens.is_none()).count();
    let vocabulary = model.description.vocabulary.as_ref().expect("a vocabulary");
    format!(
        "{} {:?}, {} layers ({full} full), {} wide, heads {}/{} of {}, feed-forward {}, {} tokens, context {}\n\
         {:?}\nscale {} embedding {:?} epsilon {:e} biases {} norms {} tied {}\n\
         types {:?} mostly {}, tokens {:?} {:?} {:?} {:?}, template {}\n\
         bytes: layer 0 {}, last {}, embedding {}, head {}, all {}, cache {}\n",
        hyper.architecture,
        model.description.name,
        hyper.block_count,
        hyper.embedding_length,
        layers[0].head_count,
        layers[0].head_count_kv,
        hyper.key_length,
        layers[0].feed_forward_length,
        hyper.vocabulary_size,
        hyper.context_length,
        hyper.rope,
        hyper.attention_scale,
        hyper.embedding_scale,
        hyper.rms_norm_epsilon,
        hyper.query_key_value_bias,
        hyper.query_key_norm,
        hyper.tied_embeddings,
        model.description.file_type,
        model.description.dominant_type,
        vocabulary.model,
        vocabulary.pre_tokeniser,
        vocabulary.beginning_token,
        vocabulary.end_token,
        model.description.chat_template.is_some(),
        model.layer_bytes(0),
        model.layer_bytes(hyper.block_count - 1),
        model.embedding_bytes(),
        needed.head_bytes,
        model.weights_bytes(),
        needed.cache_bytes,
    )
}

#[test]
fn smollm2() {
    check(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        expect![[r#"
        llama Some("Smollm2 135M 8k Lc100K Mix1 Ep2"), 30 layers (30 full), 576 wide, heads 9/3 of 64, feed-forward 1536, 49152 tokens, context 8192
        RopeParameters { kind: Normal, dimension_count: 64, frequency_base: 100000.0, frequency_scale: 1.0, frequency_base_sliding: 10000.0, frequency_scale_sliding: 1.0, scaling: None, original_context_length: 8192, extension_factor: 0.0, attention_factor: 1.0, beta_fast: 32.0, beta_slow: 1.0 }
        scale 0.125 embedding None epsilon 1e-5 biases false norms false tied true
        types Some("Q4_1") mostly Q4_1, tokens Some("gpt2") Some("smollm") Some(1) Some(2), template true
        bytes: layer 0 2216448, last 2216448, embedding 30081024, head 2304, all 96576768, cache 188743680
    "#]],
    );
}

#[test]
fn gemma3() {
    check(
        "gemma-3-270m-it.Q4_K_M.gguf",
        expect![[r#"
        gemma3 Some("Gemma 3 270m"), 18 layers (3 full), 640 wide, heads 4/1 of 256, feed-forward 2048, 262144 tokens, context 32768
        RopeParameters { kind: Neox, dimension_count: 256, frequency_base: 1000000.0, frequency_scale: 1.0, frequency_base_sliding: 10000.0, frequency_scale_sliding: 1.0, scaling: None, original_context_length: 32768, extension_factor: 0.0, attention_factor: 1.0, beta_fast: 32.0, beta_slow: 1.0 }
        scale 0.0625 embedding Some(25.298222) epsilon 1e-6 biases false norms true tied true
        types Some("Q4_K_M") mostly Q5_0, tokens Some("llama") Some("default") Some(2) Some(1), template false
        bytes: layer 0 3995648, last 3995648, embedding 178257920, head 2560, all 246587904, cache 56623104
    "#]],
    );
}

#[test]
fn qwen_small() {
    check(
        "qwen2.5-coder-0.5b-instruct.Q4_K_M.gguf",
        expect![[r#"
        qwen2 Some("Qwen2.5 Coder 0.5B Instruct AWQ"), 24 layers (24 full), 896 wide, heads 14/2 of 64, feed-forward 4864, 151936 tokens, context 32768
        RopeParameters { kind: Neox, dimension_count: 64, frequency_base: 1000000.0, frequency_scale: 1.0, frequency_base_sliding: 10000.0, frequency_scale_sliding: 1.0, scaling: None, original_context_length: 32768, extension_factor: 0.0, attention_factor: 1.0, beta_fast: 32.0, beta_slow: 1.0 }
        scale 0.125 embedding None epsilon 1e-6 biases true norms false tied false
        types Some("Q4_K_M") mostly Q5_0, tokens Some("gpt2") Some("qwen2") Some(151643) Some(151645), template true
        bytes: layer 0 10883840, last 9717248, embedding 93592576, head 144646656, all 485452288, cache 100663296
    "#]],
    );
}

#[test]
fn qwen_large() {
    check(
        "qwen2.5-coder-1.5b-instruct.Q4_K_M.gguf",
        expect![[r#"
        qwen2 Some("Qwen2.5 Coder 1.5B Instruct GGUF"), 28 layers (28 full), 1536 wide, heads 12/2 of 128, feed-forward 8960, 151936 tokens, context 32768
        RopeParameters { kind: Neox, dimension_count: 128, frequency_base: 1000000.0, frequency_scale: 1.0, frequency_base_sliding: 10000.0, frequency_scale_sliding: 1.0, scaling: None, original_context_length: 32768, extension_factor: 0.0, attention_factor: 1.0, beta_fast: 32.0, beta_slow: 1.0 }
        scale 0.088388346 embedding None epsilon 1e-6 biases true norms false tied false
        types Some("Q4_K_M") mostly Q4_K, tokens Some("gpt2") Some("qwen2") Some(151643) Some(151645), template true
        bytes: layer 0 29990912, last 29990912, embedding 131272704, head 191445504, all 1111370240, cache 234881024
    "#]],
    );
}

#[test]
fn vocabularies_are_accepted() {
    let folder = Path::new("../../../shared/data/tokenizer");
    let Ok(entries) = std::fs::read_dir(folder) else {
        eprintln!("skipped: {} is not there", folder.display());
        return;
    };
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let files: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "gguf"))
        .collect();
    assert!(!files.is_empty());
    for path in files {
        let bytes = read(&path).expect("a file of the folder");
        let gguf = parse(&bytes);
        let vocabulary = VocabularySummary::from_file(&gguf)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(vocabulary.is_some_and(|vocabulary| vocabulary.token_count > 1000));
    }
}
