//! What the program tells about itself and about models.

mod common;

use common::{SMOLLM2, printed, real_model, run, run_with_input, stdout};
use expect_test::expect;
use serde_json::Value as Json;

fn json(arguments: &[&str]) -> Json {
    serde_json::from_str(&printed(arguments)).expect("JSON")
}

#[test]
fn without_arguments_it_says_how_to_begin() {
    expect![[r#"
        motley run MODEL.gguf "Why is the sky blue?"   answers; without a question it chats
        motley show MODEL.gguf                         tells what a model is and what it needs
        motley --help                                  lists everything else
    "#]]
    .assert_eq(&printed(&[]));
}

#[test]
fn every_help_fits_a_screen() {
    let overview = printed(&["--help"]);
    expect![[r#"
        Serves language models on the devices you have

        Usage: motley [COMMAND]

        Commands:
          run          Answer a prompt, or chat
          serve        Serve a model to OpenAI's and Ollama's clients
          pull         Fetch a model from Hugging Face or an address
          list         List the models on this device [alias: ls]
          rm           Remove models
          ps           List the servers that run on this machine
          stop         Stop a server of this machine
          key          Make keys for the API of servers, list or forget them
          join         Serve layers of another device's model
          nodes        List the devices of the cluster, drain them or put them out
          status       Show who serves which layers, and how fast
          doctor       Check what may keep this device from taking part
          init         Begin a cluster on this device
          token        Invite devices to the cluster, or list and revoke invitations
          show         Show what a model is and what it needs
          plan         Plan who computes what, why, and how fast that is
          profile      Measure what this device can do, for plans
          bench        Measure speed, alone or side by side with llama.cpp
          load         Measure servers under load, side by side
          tokenize     Turn text into a model's tokens
          make-model   Make a model of random weights in a given shape
          config       Show settings and where they come from
          completions  Print a completion script for a shell
          version      Show versions, features and devices

        Options:
          -h, --help     Print help
          -V, --version  Print version

        Each option has a variable, such as MOTLEY_MODELS for --models, and can stand in a file:
        options win over variables, and variables over the file. motley config path says where it is.
    "#]]
    .assert_eq(&overview);
    let commands: Vec<&str> = overview
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(commands.len() >= 6, "{commands:?}");
    for command in commands {
        let help = printed(&[command, "--help"]);
        let lines = help.lines().count();
        assert!(lines <= 40, "{command} --help has {lines} lines");
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{command} --help is wide");
    }
}

#[test]
fn version_names_what_it_was_built_from() {
    let version = json(&["version", "--json"]);
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    let known = ["llama", "qwen2", "qwen3", "qwen3moe", "gemma3"];
    assert_eq!(version["architectures"], serde_json::json!(known));
    assert_eq!(version["devices"][0]["kind"], "cpu");
    let text = printed(&["version"]);
    let bindings = version["llama_cpp_sys_2"].as_str().unwrap();
    assert!(text.contains(&format!("llama-cpp-sys-2 {bindings}")), "{text}");
    assert_eq!(printed(&["--version"]), format!("motley {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn completions_know_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = printed(&["completions", shell]);
        assert!(script.contains("make-model") && script.contains("repeat-penalty"), "{shell}");
    }
}

#[test]
fn tokenize_prints_ids() {
    let Some(model) = real_model(SMOLLM2) else { return };
    let of = |text: &str| printed(&["tokenize", "-m", &model, text]);
    expect![[r#"
        19556 28 905 17
    "#]]
    .assert_eq(&of("Hello, world!"));
    let piped = run_with_input(&["tokenize", "-m", &model], "Hello, world!");
    assert_eq!(stdout(&piped), of("Hello, world!"));
    // Control tokens in a text are only words, unless they are asked for.
    expect![[r#"
        44 108 306 79 486 108 46
    "#]]
    .assert_eq(&of("<|im_end|>"));
    expect![[r#"
        2
    "#]]
    .assert_eq(&printed(&["tokenize", "-m", &model, "--special", "<|im_end|>"]));
    let pieces = json(&["tokenize", "-m", &model, "--json", "naïve 🙂"]);
    expect![[r#"{"count":3,"tokens":[{"id":3546,"piece":"na"},{"id":46494,"piece":"ïve"},{"id":47526,"piece":" 🙂"}]}"#]].assert_eq(&format!("{pieces}"));
}

#[test]
fn show_tells_layers_and_memory() {
    let Some(model) = real_model(SMOLLM2) else { return };
    let text = printed(&["show", &model]);
    let text = text.replace(&*common::models_folder().to_string_lossy(), "MODELS");
    expect![[r#"
        model          Smollm2 135M 8k Lc100K Mix1 Ep2
        file           MODELS/SmolLM2-135M-Instruct.Q4_1.gguf (98.4 MB)
        architecture   llama
        parameters     135 M
        quantisation   Q4_1
        context        8192 tokens
        embedding      576
        vocabulary     49152 tokens
        chat template  in the file

        metadata
        key                                     value
        general.architecture                    llama
        general.type                            model
        general.name                            Smollm2 135M 8k Lc100K Mix1 Ep2
        general.organization                    HuggingFaceTB
        general.finetune                        8k-lc100k-mix1-ep2
        general.basename                        smollm2
        general.size_label                      135M
        general.license                         apache-2.0
        general.languages                       [1 x string]
        llama.block_count                       30
        llama.context_length                    8192
        llama.embedding_length                  576
        llama.feed_forward_length               1536
        llama.attention.head_count              9
        llama.attention.head_count_kv           3
        llama.rope.freq_base                    100000.0
        llama.attention.layer_norm_rms_epsilon  0.00001
        general.file_type                       3
        llama.vocab_size                        49152
        llama.rope.dimension_count              64
        tokenizer.ggml.add_space_prefix         false
        tokenizer.ggml.add_bos_token            false
        tokenizer.ggml.model                    gpt2
        tokenizer.ggml.pre                      smollm
        tokenizer.ggml.tokens                   [49152 x string]
        tokenizer.ggml.token_type               [49152 x i32]
        tokenizer.ggml.merges                   [48900 x string]
        tokenizer.ggml.bos_token_id             1
        tokenizer.ggml.eos_token_id             2
        tokenizer.ggml.unknown_token_id         0
        tokenizer.ggml.padding_token_id         2
        tokenizer.chat_template                 {% for message in messages %}{% if loop.first and messages[0... (373 characters)
        general.quantization_version            2

        layers
        layers  types  weights    cache  MFLOP/token  heads  kv heads   ffn  window
        0-29    Q4_1   2.22 MB  3.15 MB         16.5      9         3  1536  -
        embed   Q8_0   30.1 MB
        head    tied   2.30 kB

        memory
        for                             bytes
        weights                       96.6 MB
        cache, 1 slot of 4096 tokens  94.4 MB
        computation, at most          23.3 MB
        the program, at most          82.8 MB
        together                       297 MB
    "#]].assert_eq(&text);
}

#[test]
fn show_counts_memory_for_slots_context_and_cache_type() {
    let Some(model) = real_model(SMOLLM2) else { return };
    let memory = |more: &[&str]| {
        let arguments = [&["show", &model, "--json"], more].concat();
        json(&arguments)["memory"].clone()
    };
    let one = memory(&["-c", "2048"]);
    // 30 layers of 3 heads of 64 elements, keys and values, two bytes each.
    let expected = 30 * 2 * 3 * 64 * 2 * 2048_u64;
    assert_eq!(one["cache_bytes"], expected);
    assert_eq!(memory(&["-c", "2048", "-np", "4"])["cache_bytes"], 4 * expected);
    let small = memory(&["-c", "2048", "-ctk", "q8_0"]);
    assert_eq!(small["cache_bytes"], expected / 64 * 34);
    let whole = json(&["show", &model, "--json"]);
    assert_eq!(whole["architecture"], "llama");
    assert_eq!(whole["layers"].as_array().unwrap().len(), 30);
    assert_eq!(whole["metadata"]["llama.context_length"], 8192);
    let weights: u64 = whole["layers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|layer| layer["weights_bytes"].as_u64().unwrap())
        .sum();
    let outside =
        whole["embedding_bytes"].as_u64().unwrap() + whole["head_bytes"].as_u64().unwrap();
    assert_eq!(whole["memory"]["weights_bytes"], weights + outside);
}

#[test]
fn a_made_model_is_shown_as_it_was_asked_for() {
    let Some(donor) = real_model(SMOLLM2) else { return };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("made.gguf");
    let out = out.to_str().unwrap();
    let shape =
        "--arch qwen3 --blocks 3 --embedding 256 --ffn 512 --heads 4 --kv-heads 2 --type Q8_0";
    let mut arguments = vec!["make-model", "--vocabulary-from", &donor, "--out", out, "--json"];
    arguments.extend(shape.split(' '));
    let made = json(&arguments);
    assert_eq!(made["blocks"], 3);
    let shown = json(&["show", out, "--json"]);
    assert_eq!(shown["architecture"], "qwen3");
    assert_eq!(shown["embedding_length"], 256);
    assert_eq!(shown["file_bytes"], made["file_bytes"]);
    assert_eq!(shown["layers"][2]["kv_heads"], 2);
    let answer = ["run", out, "hi", "--temp", "0", "-n", "4", "--ignore-eos", "--no-template"];
    let first = run(&answer);
    assert!(first.status.success(), "{}", common::stderr(&first));
    assert_eq!(first.stdout, run(&answer).stdout);
}

#[test]
fn a_preset_is_cut_to_its_first_blocks() {
    let Some(donor) = real_model(SMOLLM2) else { return };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("made.gguf");
    let out = out.to_str().unwrap();
    let list = common::stderr(&run(&["make-model", "--preset", "?", "--out", out]));
    let known = list.split("known are ").nth(1).unwrap();
    let smallest = known
        .trim_end_matches([')', '\n'])
        .split(", ")
        .find(|name| name.to_lowercase().contains("llama-3.2-1b"))
        .expect("the 1B Llama is a preset");
    let preset = ["make-model", "--preset", smallest, "--blocks", "1", "--out", out];
    printed(&[&preset[..], &["--vocabulary-from", &donor]].concat());
    let shown = json(&["show", out, "--json"]);
    assert_eq!(shown["layers"].as_array().unwrap().len(), 1);
    assert_eq!(shown["embedding_length"], 2048);
}
