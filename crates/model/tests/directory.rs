//! What a model directory says of tiny models of every architecture, and how it refuses bent ones.

mod support;

use expect_test::{Expect, expect};
use motley_model::{
    Activation, Architecture, CacheQuery, LayerTensors, ModelDirectory, RopeKind, RopeScaling,
    TensorType,
};
use support::{
    Blueprint, EMBEDDING, FEED_FORWARD, HEAD, HEADS, KV_HEADS, Setting, VOCABULARY, parse,
};

fn directory(blueprint: &Blueprint) -> ModelDirectory {
    let bytes = blueprint.bytes();
    let gguf = parse(&bytes).expect("a good file");
    ModelDirectory::from_files(&[gguf]).expect("a good model")
}

fn check_refused(blueprint: &Blueprint, expected: Expect) {
    let bytes = blueprint.bytes();
    let gguf = parse(&bytes).expect("a good file");
    let error = ModelDirectory::from_files(&[gguf]).expect_err("a bent model");
    expected.assert_eq(&error.to_string());
}

/// Refusal of a tiny model with one key set.
fn check_setting(architecture: Architecture, key: &str, setting: Setting, expected: Expect) {
    let mut blueprint = Blueprint::new(architecture);
    blueprint.set(key, setting);
    check_refused(&blueprint, expected);
}

#[test]
fn llama_has_the_defaults_of_the_reference() {
    let model = directory(&Blueprint::new(Architecture::Llama));
    let hyper = &model.hyper;
    assert_eq!(hyper.block_count, 7);
    assert_eq!(hyper.layers.len(), 7);
    assert_eq!((hyper.key_length, hyper.value_length), (16, 16));
    assert_eq!(hyper.attention_scale, 0.25);
    assert_eq!(hyper.embedding_scale, None);
    assert_eq!(hyper.activation, Activation::Silu);
    assert_eq!(hyper.rope.kind, RopeKind::Normal);
    assert_eq!(hyper.rope.dimension_count, 16);
    assert_eq!(hyper.rope.frequency_base, 10_000.0);
    assert_eq!(hyper.rope.frequency_scale, 1.0);
    assert_eq!(hyper.rope.scaling, RopeScaling::None);
    assert_eq!(hyper.rope.original_context_length, 512);
    assert_eq!((hyper.rope.extension_factor, hyper.rope.attention_factor), (0.0, 1.0));
    assert_eq!(hyper.sliding_window, None);
    assert!(hyper.tied_embeddings && !hyper.query_key_norm && !hyper.query_key_value_bias);
    assert_eq!(model.head_matrix(), &model.embedding);
    assert_eq!(model.description.file_type, Some("Q4_K_M"));
    assert_eq!(model.description.dominant_type, TensorType::Q4_0);
    let vocabulary = model.description.vocabulary.as_ref().expect("tokens");
    assert_eq!((vocabulary.beginning_token, vocabulary.end_token), (Some(4), Some(5)));
}

#[test]
fn qwen2_has_biases_and_qwen3_has_norms() {
    let qwen2 = directory(&Blueprint::new(Architecture::Qwen2));
    assert!(qwen2.hyper.query_key_value_bias && !qwen2.hyper.query_key_norm);
    assert_eq!(qwen2.hyper.rope.kind, RopeKind::Neox);
    let bias = qwen2.layers[6].key_bias.as_ref().expect("a bias");
    assert_eq!(bias.name, "blk.6.attn_k.bias");

    let qwen3 = directory(&Blueprint::new(Architecture::Qwen3));
    assert!(!qwen3.hyper.query_key_value_bias && qwen3.hyper.query_key_norm);
    assert!(qwen3.layers.iter().all(|layer| layer.query_norm.is_some()));
}

#[test]
fn every_sixth_layer_of_gemma_sees_everything() {
    let model = directory(&Blueprint::new(Architecture::Gemma3));
    let windows: Vec<_> = model.hyper.layers.iter().map(|layer| layer.window_tokens).collect();
    let slides = Some(32);
    assert_eq!(windows, [slides, slides, slides, slides, slides, None, slides]);
    assert_eq!(model.hyper.sliding_window, Some(32));
    assert_eq!(model.hyper.embedding_scale, Some(8.0));
    assert_eq!(model.hyper.activation, Activation::Gelu);
    assert!(model.hyper.post_norm);
    let rope = &model.hyper.rope;
    assert_eq!(rope.of_layer(&model.hyper.layers[0]), (10_000.0, 1.0));
    assert!(model.layers.iter().all(|layer| layer.feed_forward_post_norm.is_some()));
}

#[test]
fn gemma_takes_windows_bases_and_caps_from_its_keys() {
    let mut blueprint = Blueprint::new(Architecture::Gemma3);
    blueprint.set("gemma3.rope.freq_base", Setting::F32(1e6));
    blueprint.set("gemma3.rope.freq_base_swa", Setting::F32(2e4));
    blueprint.set("gemma3.rope.scaling.type", Setting::Text("linear"));
    blueprint.set("gemma3.rope.scaling.factor", Setting::F32(8.0));
    blueprint.set("gemma3.final_logit_softcapping", Setting::F32(30.0));
    let flags = [true, false, true, true, true, true, false];
    blueprint.set("gemma3.attention.sliding_window_pattern", Setting::Bools(flags.to_vec()));
    let model = directory(&blueprint);
    let layers = &model.hyper.layers;
    assert_eq!(layers.iter().map(|layer| layer.window_tokens.is_some()).collect::<Vec<_>>(), flags);
    // Only layers that see everything are stretched.
    assert_eq!(model.hyper.rope.of_layer(&layers[0]), (2e4, 1.0));
    assert_eq!(model.hyper.rope.of_layer(&layers[1]), (1e6, 0.125));
    assert_eq!(model.hyper.final_logit_softcapping, Some(30.0));

    blueprint.set("gemma3.attention.sliding_window_pattern", Setting::U32(2));
    let model = directory(&blueprint);
    assert!(model.hyper.layers[0].window_tokens.is_some());
    assert_eq!(model.hyper.layers[1].window_tokens, None);
    blueprint.set("gemma3.attention.sliding_window", Setting::U32(0));
    assert_eq!(directory(&blueprint).hyper.sliding_window, None);
}

#[test]
fn the_27b_gemma_scales_by_its_width_per_head() {
    let mut blueprint = Blueprint::new(Architecture::Gemma3);
    let layer_six: Vec<_> = blueprint
        .tensors
        .iter()
        .filter_map(|(name, shape, kind)| {
            Some((name.strip_prefix("blk.6.")?.to_owned(), shape.clone(), *kind))
        })
        .collect();
    for layer in 7..62 {
        for (part, shape, kind) in &layer_six {
            blueprint.tensor(&format!("blk.{layer}.{part}"), shape, *kind);
        }
    }
    blueprint.set("gemma3.block_count", Setting::U32(62));
    // Width per head 32, keys of 16: half the query heads, twice as long.
    blueprint.set("gemma3.attention.head_count", Setting::U32(2));
    blueprint.set("gemma3.attention.key_length", Setting::U32(16));
    blueprint.set("gemma3.attention.value_length", Setting::U32(16));
    for layer in 0..62 {
        let name = |part| format!("blk.{layer}.{part}");
        blueprint.tensor(&name("attn_q.weight"), &[EMBEDDING, 32], TensorType::Q4_0);
        blueprint.tensor(&name("attn_output.weight"), &[32, EMBEDDING], TensorType::Q4_0);
    }
    assert_eq!(directory(&blueprint).hyper.attention_scale, 1.0 / 32_f32.sqrt());
}

#[test]
fn yarn_stretches_and_leaves_its_magnitude_to_the_kernel() {
    let mut blueprint = Blueprint::new(Architecture::Qwen2);
    blueprint.set("qwen2.rope.scaling.type", Setting::Text("yarn"));
    blueprint.set("qwen2.rope.scaling.factor", Setting::F32(4.0));
    blueprint.set("qwen2.rope.scaling.original_context_length", Setting::U32(128));
    let rope = directory(&blueprint).hyper.rope;
    assert_eq!((rope.scaling, rope.frequency_scale), (RopeScaling::Yarn, 0.25));
    assert_eq!((rope.extension_factor, rope.attention_factor), (1.0, 1.0));
    assert_eq!((rope.beta_fast, rope.beta_slow), (32.0, 1.0));
    assert_eq!(rope.original_context_length, 128);
    // Where a file says that nothing is stretched, a factor beside it does nothing.
    blueprint.set("qwen2.rope.scaling.type", Setting::Text("none"));
    assert_eq!(directory(&blueprint).hyper.rope.frequency_scale, 1.0);
}

#[test]
fn llama_3_brings_its_scaling_as_a_tensor() {
    let mut blueprint = Blueprint::new(Architecture::Llama);
    blueprint.tensor("rope_freqs.weight", &[HEAD / 2], TensorType::F32);
    let model = directory(&blueprint);
    assert_eq!(model.rope_frequencies.as_ref().map(|tensor| tensor.shape[0]), Some(8));
    assert!(model.tensors().any(|tensor| tensor.name == "rope_freqs.weight"));
    blueprint.tensor("rope_freqs.weight", &[HEAD], TensorType::F32);
    check_refused(
        &blueprint,
        expect!["tensor 'rope_freqs.weight' has shape [16], expected is [8]"],
    );
}

#[test]
fn layers_may_differ() {
    let mut blueprint = Blueprint::new(Architecture::Llama);
    blueprint.set("llama.feed_forward_length", Setting::U32s(vec![96, 96, 96, 96, 96, 96, 32]));
    blueprint.tensor("blk.6.ffn_gate.weight", &[EMBEDDING, 32], TensorType::Q4_0);
    blueprint.tensor("blk.6.ffn_up.weight", &[EMBEDDING, 32], TensorType::Q4_0);
    blueprint.tensor("blk.6.ffn_down.weight", &[32, EMBEDDING], TensorType::Q4_0);
    let model = directory(&blueprint);
    assert_eq!(model.hyper.layers[5].feed_forward_length, 96);
    assert_eq!(model.hyper.layers[6].feed_forward_length, 32);
    assert!(model.layer_bytes(6) < model.layer_bytes(5));
}

#[test]
fn bytes_and_operations_follow_the_formulas() {
    let model = directory(&Blueprint::new(Architecture::Gemma3));
    let parameters = 2 * EMBEDDING * HEADS * HEAD
        + 2 * EMBEDDING * KV_HEADS * HEAD
        + 3 * EMBEDDING * FEED_FORWARD;
    let norms = 4 * (4 * EMBEDDING + 2 * HEAD);
    assert_eq!(model.layers[0].products(0).map(|(_, elements)| elements).sum::<u64>(), parameters);
    assert_eq!(model.layer_bytes(0), parameters / 32 * 18 + norms);
    // Layer 5 sees all 100 tokens, layer 0 its window of 32.
    assert_eq!(model.layer_flops_per_token(5, 100), 2 * parameters + 4 * HEADS * HEAD * 100);
    assert_eq!(model.layer_flops_per_token(0, 100), 2 * parameters + 4 * HEADS * HEAD * 32);
    assert_eq!(model.head_flops_per_token(), 2 * EMBEDDING * VOCABULARY);
    assert_eq!(model.embedding_bytes(), EMBEDDING / 32 * 34 * VOCABULARY);
    assert_eq!(model.head_bytes(), model.embedding_bytes() + 4 * EMBEDDING);
    let layers: u64 = model.layers.iter().map(LayerTensors::bytes).sum();
    assert_eq!(model.weights_bytes(), layers + model.head_bytes());
}

#[test]
fn an_untied_head_is_counted_apart() {
    let mut blueprint = Blueprint::new(Architecture::Qwen2);
    blueprint.tensor("output.weight", &[EMBEDDING, VOCABULARY], TensorType::F16);
    blueprint.tensor("output.bias", &[VOCABULARY], TensorType::F32);
    let model = directory(&blueprint);
    assert!(!model.hyper.tied_embeddings);
    assert_eq!(model.head_bytes(), 2 * EMBEDDING * VOCABULARY + 4 * EMBEDDING + 4 * VOCABULARY);
    let query = CacheQuery {
        context_tokens: 512,
        slots: 1,
        micro_batch_tokens: 64,
        cache_types: [TensorType::F16; 2],
    };
    let needed = model.memory_needed(&query).expect("a small model");
    assert_eq!(needed.head_bytes, model.head_bytes());
}

#[test]
fn layers_with_a_window_cache_it_and_one_micro_batch() {
    let model = directory(&Blueprint::new(Architecture::Gemma3));
    let mut query = CacheQuery {
        context_tokens: 512,
        slots: 3,
        micro_batch_tokens: 64,
        cache_types: [TensorType::F16; 2],
    };
    let needed = model.memory_needed(&query).expect("a small model");
    let per_token = 2 * KV_HEADS * HEAD * 2;
    assert_eq!(needed.layer_cache_bytes[0], (32 + 64) * 3 * per_token);
    assert_eq!(needed.layer_cache_bytes[5], 512 * 3 * per_token);
    assert_eq!(needed.cache_bytes, needed.layer_cache_bytes.iter().sum::<u64>());
    assert_eq!(needed.total_bytes, needed.cache_bytes + model.weights_bytes());
    let parts =
        needed.layer_weights_bytes.iter().sum::<u64>() + needed.embedding_bytes + needed.head_bytes;
    assert_eq!(needed.weights_bytes, parts);

    query.cache_types = [TensorType::Q8_0; 2];
    let needed = model.memory_needed(&query).expect("rows of one block");
    assert_eq!(needed.layer_cache_bytes[5], 512 * 3 * 2 * 34);
    query.context_tokens = 50;
    let needed = model.memory_needed(&query).expect("less than a window");
    assert_eq!(needed.layer_cache_bytes[0], needed.layer_cache_bytes[5]);

    query.cache_types = [TensorType::Q4_K; 2];
    let error = model.memory_needed(&query).expect_err("blocks of 256");
    expect!["keys and values cannot be cached as Q4_K: the 32 elements of one token in layer 0 are no multiple of 256"].assert_eq(&error.to_string());
    query = CacheQuery { slots: u64::MAX, cache_types: [TensorType::F16; 2], ..query };
    let error = model.memory_needed(&query).expect_err("too many");
    expect!["18446744073709551615 slots of 50 tokens need more memory than can be counted"]
        .assert_eq(&error.to_string());
}

#[test]
fn no_file_is_no_model() {
    let error = ModelDirectory::from_files(&[]).expect_err("nothing");
    expect!["a model needs at least one file"].assert_eq(&error.to_string());
}

#[test]
fn architectures_are_known_by_name() {
    let key = "general.architecture";
    check_setting(
        Architecture::Llama,
        key,
        Setting::Text("mamba\n"),
        expect![[
            r#"architecture 'mamba\n' is not supported (supported are llama, qwen2, qwen3, qwen3moe, gemma3)"#
        ]],
    );
    let mut blueprint = Blueprint::new(Architecture::Llama);
    check_refused(blueprint.unset(key), expect!["metadata key 'general.architecture' is missing"]);
    check_setting(
        Architecture::Llama,
        key,
        Setting::U32(1),
        expect!["metadata key 'general.architecture' is a u32, expected is a string"],
    );
}

#[test]
fn an_adapter_is_no_model() {
    check_setting(
        Architecture::Llama,
        "general.type",
        Setting::Text("adapter"),
        expect!["the file is of type 'adapter', not 'model'"],
    );
}

#[test]
fn what_would_change_the_graph_is_refused() {
    let check = check_setting;
    let llama = Architecture::Llama;
    check(
        llama,
        "llama.nextn_predict_layers",
        Setting::U32(1),
        expect!["metadata key 'llama.nextn_predict_layers' is 1, which is not supported for llama"],
    );
    check(
        llama,
        "llama.attention.causal",
        Setting::Bool(false),
        expect!["metadata key 'llama.attention.causal' is false, which is not supported for llama"],
    );
}

#[test]
fn rotations_and_heads_that_no_graph_has_are_refused() {
    let check = check_setting;
    let llama = Architecture::Llama;
    check(
        llama,
        "llama.rope.scaling.type",
        Setting::Text("longrope"),
        expect![
            "metadata key 'llama.rope.scaling.type' is longrope, which is not supported for llama"
        ],
    );
    check(
        llama,
        "llama.rope.scaling.factor",
        Setting::F32(-2.0),
        expect!["metadata key 'llama.rope.scaling.factor' is -2, which is not supported for llama"],
    );
    check(
        llama,
        "llama.rope.freq_base",
        Setting::F32(0.0),
        expect!["metadata key 'llama.rope.freq_base' is 0, which is not supported for llama"],
    );
    check(
        llama,
        "llama.rope.dimension_count",
        Setting::U32(8),
        expect!["metadata key 'llama.rope.dimension_count' is 8, which does not fit heads of 16"],
    );
    check(
        llama,
        "llama.attention.value_length",
        Setting::U32(32),
        expect![
            "metadata key 'llama.attention.value_length' is 32, which is not supported for llama"
        ],
    );
    check(
        llama,
        "llama.embedding_length_out",
        Setting::U32(32),
        expect![
            "metadata key 'llama.embedding_length_out' is 32, which is not supported for llama"
        ],
    );
    let gemma = Architecture::Gemma3;
    check(
        gemma,
        "gemma3.attention.key_length_swa",
        Setting::U32(8),
        expect![
            "metadata key 'gemma3.attention.key_length_swa' is 8, which is not supported for gemma3"
        ],
    );
    check(
        gemma,
        "gemma3.rope.dimension_count_swa",
        Setting::U32(8),
        expect![
            "metadata key 'gemma3.rope.dimension_count_swa' is 8, which is not supported for gemma3"
        ],
    );
}

#[test]
fn wild_numbers_are_refused() {
    let check = check_setting;
    let llama = Architecture::Llama;
    check(
        llama,
        "llama.block_count",
        Setting::U32(0),
        expect!["metadata key 'llama.block_count' is 0, allowed are 1 to 512"],
    );
    check(
        llama,
        "llama.block_count",
        Setting::I32(-1),
        expect!["metadata key 'llama.block_count' is -1, expected is no negative number"],
    );
    check(
        llama,
        "llama.block_count",
        Setting::F32(7.0),
        expect!["metadata key 'llama.block_count' is a f32, expected is an integer"],
    );
    check(
        llama,
        "llama.context_length",
        Setting::U32(u32::MAX),
        expect!["metadata key 'llama.context_length' is 4294967295, allowed are 1 to 67108864"],
    );
    check(
        llama,
        "llama.attention.head_count_kv",
        Setting::U32(3),
        expect!["layer 0 has 4 heads, no multiple of its 3 key and value heads"],
    );
    check(
        llama,
        "llama.feed_forward_length",
        Setting::U32s(vec![96]),
        expect!["metadata key 'llama.feed_forward_length' has 1 entries for 7 layers"],
    );
    check(
        llama,
        "llama.feed_forward_length",
        Setting::F32s(vec![96.0; 7]),
        expect!["metadata key 'llama.feed_forward_length' is a f32, expected is an integer"],
    );
    check(
        llama,
        "llama.feed_forward_length",
        Setting::I32s(vec![0; 7]),
        expect!["metadata key 'llama.feed_forward_length' is 0, allowed are 1 to 16777216"],
    );
}

#[test]
fn arrays_and_floats_that_fit_no_model_are_refused() {
    let check = check_setting;
    let llama = Architecture::Llama;
    let epsilon = "llama.attention.layer_norm_rms_epsilon";
    check(
        llama,
        epsilon,
        Setting::F32(f32::NAN),
        expect![
            "metadata key 'llama.attention.layer_norm_rms_epsilon' is NaN, expected is a finite number"
        ],
    );
    check(
        llama,
        epsilon,
        Setting::F32(f32::INFINITY),
        expect![
            "metadata key 'llama.attention.layer_norm_rms_epsilon' is inf, expected is a finite number"
        ],
    );
    let pattern = "gemma3.attention.sliding_window_pattern";
    let gemma = Architecture::Gemma3;
    check(
        gemma,
        pattern,
        Setting::Bools(vec![true]),
        expect![
            "metadata key 'gemma3.attention.sliding_window_pattern' has 1 entries for 7 layers"
        ],
    );
    check(
        gemma,
        pattern,
        Setting::Strings(vec!["a"]),
        expect![
            "metadata key 'gemma3.attention.sliding_window_pattern' is an array of string, expected is an array of truth values or integers"
        ],
    );
}

#[test]
fn tensors_must_be_there_in_shape_and_alone() {
    let mut blueprint = Blueprint::new(Architecture::Qwen3);
    blueprint.remove("blk.3.attn_k_norm.weight");
    check_refused(
        &blueprint,
        expect!["tensor 'blk.3.attn_k_norm.weight' is missing, expected with shape [16]"],
    );

    let mut blueprint = Blueprint::new(Architecture::Llama);
    blueprint.tensor("blk.3.ffn_down.weight", &[EMBEDDING, FEED_FORWARD], TensorType::Q4_0);
    check_refused(
        &blueprint,
        expect!["tensor 'blk.3.ffn_down.weight' has shape [64, 96], expected is [96, 64]"],
    );

    let mut blueprint = Blueprint::new(Architecture::Llama);
    blueprint.tensor("blk.3.ffn_norm.weight", &[EMBEDDING], TensorType::F16);
    check_refused(
        &blueprint,
        expect!["tensor 'blk.3.ffn_norm.weight' has type F16, which cannot be used for it"],
    );
    blueprint = Blueprint::new(Architecture::Llama);
    blueprint.tensor("token_embd.weight", &[EMBEDDING, VOCABULARY], TensorType::I32);
    check_refused(
        &blueprint,
        expect!["tensor 'token_embd.weight' has type I32, which cannot be used for it"],
    );

    let mut blueprint = Blueprint::new(Architecture::Gemma3);
    blueprint.tensor("dense_2.weight", &[EMBEDDING, 8], TensorType::F32);
    blueprint.tensor("blk.7.attn_q.weight", &[EMBEDDING, EMBEDDING], TensorType::F32);
    check_refused(
        &blueprint,
        expect![
            "2 tensors are not used by architecture 'gemma3', the first is 'blk.7.attn_q.weight'"
        ],
    );
}

#[test]
fn vocabularies_must_hold_together() {
    let check = |key: &str, setting, expected| {
        check_setting(Architecture::Llama, &format!("tokenizer.ggml.{key}"), setting, expected);
    };
    check(
        "tokens",
        Setting::Strings(vec![]),
        expect!["the vocabulary has 0 tokens, allowed are 1 to 16777216"],
    );
    check(
        "tokens",
        Setting::U32s(vec![1]),
        expect![
            "metadata key 'tokenizer.ggml.tokens' is an array of u32, expected is an array of strings"
        ],
    );
    check(
        "scores",
        Setting::F32s(vec![0.0; 5]),
        expect!["metadata key 'tokenizer.ggml.scores' has 5 entries for 6 tokens"],
    );
    check(
        "scores",
        Setting::Strings(vec!["a"; 6]),
        expect![
            "metadata key 'tokenizer.ggml.scores' is an array of string, expected is an array of numbers"
        ],
    );
    check(
        "token_type",
        Setting::I32s(vec![1; 2]),
        expect!["metadata key 'tokenizer.ggml.token_type' has 2 entries for 6 tokens"],
    );
    check(
        "bos_token_id",
        Setting::I32(-1),
        expect![
            "metadata key 'tokenizer.ggml.bos_token_id' is -1, beyond the vocabulary of 6 tokens"
        ],
    );
    check(
        "eot_token_id",
        Setting::U32(6),
        expect![
            "metadata key 'tokenizer.ggml.eot_token_id' is 6, beyond the vocabulary of 6 tokens"
        ],
    );
    check(
        "eos_token_id",
        Setting::Text("5"),
        expect!["metadata key 'tokenizer.ggml.eos_token_id' is a string, expected is an integer"],
    );
    check(
        "merges",
        Setting::Strings(vec!["a b", "ab "]),
        expect![[r#"merge rule 1 of the vocabulary, "ab ", does not name two pieces"#]],
    );
    check(
        "merges",
        Setting::Strings(vec![" b"]),
        expect![[r#"merge rule 0 of the vocabulary, " b", does not name two pieces"#]],
    );

    let mut blueprint = Blueprint::new(Architecture::Llama);
    blueprint.set("tokenizer.ggml.padding_token_id", Setting::U32(u32::MAX));
    directory(&blueprint);
    blueprint.unset("tokenizer.ggml.tokens");
    check_refused(&blueprint, expect!["metadata key 'tokenizer.ggml.tokens' is missing"]);
    blueprint.set("llama.vocab_size", Setting::U32(6));
    assert_eq!(directory(&blueprint).hyper.vocabulary_size, 6);
}
