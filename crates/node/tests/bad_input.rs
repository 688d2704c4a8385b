//! Everything that is refused says what, why and what to do, with an exit code for scripts.
#![expect(clippy::disallowed_methods, reason = "a test cuts a file")]

mod common;

use std::path::Path;

use common::{broken, check_failure, models_folder, motley, real_model, run_with_input, stderr};
use expect_test::expect;

fn check(arguments: &[&str], expected: &expect_test::Expect) {
    check_failure(arguments, &[], expected);
}

#[test]
fn missing_file() {
    check(
        &["run", "no/such.gguf", "hi"],
        &expect![[r#"
            exit 3
            motley: cannot open no/such.gguf: No such file or directory (os error 2)
            hint: give the path of a GGUF file, or put one into /nowhere/motley/models (--models names another folder)
        "#]],
    );
    check(
        &["show", "no/such.gguf"],
        &expect![[r#"
            exit 3
            motley: cannot open no/such.gguf: No such file or directory (os error 2)
            hint: give the path of a GGUF file, or put one into /nowhere/motley/models (--models names another folder)
        "#]],
    );
    check(
        &["tokenize", "-m", "no/such.gguf", "hi"],
        &expect![[r#"
            exit 3
            motley: cannot open no/such.gguf: No such file or directory (os error 2)
            hint: give the path of a GGUF file, or put one into /nowhere/motley/models (--models names another folder)
        "#]],
    );
}

#[test]
fn broken_files() {
    let folder = broken("");
    let fixtures: &[(&Path, &str)] = &[(Path::new(&folder), "FIXTURES/")];
    let check = |name: &str, expected: &expect_test::Expect| {
        check_failure(&["run", &broken(name), "hi"], fixtures, expected);
    };
    check(
        "hdr_zip_magic.gguf",
        &expect![[r#"
        exit 1
        motley: cannot read FIXTURES/hdr_zip_magic.gguf: not a GGUF file: it begins with PK\x03\x04, not 'GGUF'
        hint: models are GGUF files; convert other formats first
    "#]],
    );
    check(
        "trunc_023.gguf",
        &expect![[r#"
        exit 1
        motley: cannot read FIXTURES/trunc_023.gguf: file ends in the metadata count: 8 bytes needed at offset 16, 7 left
        hint: the file is damaged or was not copied whole; get it again
    "#]],
    );
    check(
        "hdr_version_1.gguf",
        &expect![[r#"
            exit 1
            motley: cannot read FIXTURES/hdr_version_1.gguf: GGUF version 1 is not supported: its lengths have 32 bits and no current tool writes it; convert the model again
        "#]],
    );
    check(
        "sem_arch_unknown.gguf",
        &expect![[r#"
        exit 1
        motley: cannot run the model in FIXTURES/sem_arch_unknown.gguf: architecture '../../../tmp/x' is not supported (supported are llama, qwen2, qwen3, qwen3moe, gemma3)
        hint: motley version lists what can be run
    "#]],
    );
}

#[test]
fn truncated_real_file() {
    let Some(model) = real_model(common::SMOLLM2) else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("short.gguf");
    let whole = std::fs::File::open(model).unwrap();
    let mut part = std::io::Read::take(whole, 50_000_000);
    std::io::copy(&mut part, &mut std::fs::File::create(&path).unwrap()).unwrap();
    check_failure(
        &["run", path.to_str().unwrap(), "hi"],
        &[(folder.path(), "FOLDER")],
        &expect![[r#"
            exit 1
            motley: cannot read FOLDER/short.gguf: tensor 'blk.16.ffn_down.weight' needs 552960 bytes at 47814912 in the data (which begins at offset 1785664), but the file has 50000000 bytes
            hint: the file is damaged or was not copied whole; get it again
        "#]],
    );
}

#[test]
fn a_folder_is_no_model() {
    check(
        &["show", "src"],
        &expect![[r#"
            exit 1
            motley: cannot open src: not a regular file
            hint: give a GGUF file that you may read
        "#]],
    );
}

#[test]
fn prompt_longer_than_the_context() {
    let Some(model) = real_model(common::SMOLLM2) else { return };
    let prompt = "word ".repeat(400);
    let plain = ["run", &model, &prompt, "-c", "256", "--no-template"];
    check(
        &plain,
        &expect![[r#"
        exit 4
        motley: the prompt has 401 tokens, the context only 256
        hint: shorten it, or give more context: -c 768
    "#]],
    );
}

#[test]
fn context_beyond_the_model() {
    let Some(model) = real_model(common::SMOLLM2) else { return };
    check(
        &["run", &model, "hi", "-c", "100000"],
        &expect![[r#"
            exit 4
            motley: a context of 100000 tokens is more than the 8192 the model was trained for
            hint: give at most -c 8192
        "#]],
    );
}

#[test]
fn not_enough_memory() {
    let Some(model) = real_model(common::SMOLLM2) else { return };
    for place in ["auto", "stream"] {
        check(
            &["run", &model, "hi", "--memory", "64M", "--weights", place],
            &expect![[r#"
                exit 4
                motley: not enough memory: 121 MB needed with every layer streamed, 64.0 MB available
                hint: give at least --memory 121M
            "#]],
        );
        check(
            &["run", &model, "hi", "-c", "8192", "--memory", "256M", "--weights", place],
            &expect![[r#"
                exit 4
                motley: not enough memory: 308 MB needed with every layer streamed, 256 MB available
                hint: a context of 5888 tokens fits: -c 5888
            "#]],
        );
    }
    check(
        &["run", &model, "hi", "--weights", "mmap", "--memory", "64M"],
        &expect![[r#"
            exit 4
            motley: not enough memory: 270 MB needed (96.6 MB weights, 94.4 MB cache of 4096 tokens, 79.1 MB work), 64.0 MB available
            hint: the weights alone are 96.6 MB; take a smaller model or a smaller quantisation
        "#]],
    );
    check(
        &["run", &model, "hi", "-c", "8192", "--memory", "256M", "--weights", "mmap"],
        &expect![[r#"
            exit 4
            motley: not enough memory: 373 MB needed (96.6 MB weights, 189 MB cache of 8192 tokens, 87.5 MB work), 256 MB available
            hint: a context of 3328 tokens fits: -c 3328
        "#]],
    );
    check(
        &["run", &model, "hi", "-c", "8192", "--memory", "175M", "--weights", "mmap"],
        &expect![[r#"
            exit 4
            motley: not enough memory: 373 MB needed (96.6 MB weights, 189 MB cache of 8192 tokens, 87.5 MB work), 175 MB available
            hint: a context of 256 tokens fits: -c 256
        "#]],
    );
}

#[test]
fn unknown_names() {
    if real_model(common::SMOLLM2).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for name in ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-it.Q4_K_M.gguf"] {
        std::fs::write(folder.path().join(name), "").unwrap();
    }
    let models = folder.path().to_str().unwrap();
    let check = |name: &str, expected: &expect_test::Expect| {
        let folders: &[(&Path, &str)] = &[(folder.path(), "MODELS")];
        check_failure(&["run", name, "hi", "--models", models], folders, expected);
    };
    check(
        "smolm2",
        &expect![[r#"
        exit 3
        motley: no model is called 'smolm2'
        hint: did you mean smollm2-135m-instruct.q4_1?
    "#]],
    );
    check(
        "mixtral",
        &expect![[r#"
        exit 3
        motley: no model is called 'mixtral'
        hint: MODELS holds gemma-3-270m-it.q4_k_m, smollm2-135m-instruct.q4_1
    "#]],
    );
    let empty = tempfile::tempdir().unwrap();
    check_failure(
        &["run", "smollm2", "hi", "--models", empty.path().to_str().unwrap()],
        &[(empty.path(), "MODELS")],
        &expect![[r#"
            exit 3
            motley: no model is called 'smollm2'
            hint: give the path of a GGUF file, or put one into MODELS (--models names another folder)
        "#]],
    );
}

#[test]
fn words_that_name_nothing() {
    check(
        &["dance"],
        &expect![[r#"
        exit 2
        error: unrecognized subcommand 'dance'

        Usage: motley [COMMAND]

        For more information, try '--help'.
    "#]],
    );
    check(
        &["run", "model.gguf", "--tempp", "1"],
        &expect![[r#"
        exit 2
        error: unexpected argument '--tempp' found

          tip: a similar argument exists: '--temp'

        Usage: motley run [OPTIONS] <MODEL> [PROMPT]...

        For more information, try '--help'.
    "#]],
    );
    check(
        &["run"],
        &expect![[r#"
        exit 2
        motley: no model is named
        hint: motley run MODEL.gguf "Why is the sky blue?"
    "#]],
    );
}

#[test]
fn options_out_of_range_or_against_each_other() {
    check(
        &["run", "m", "hi", "--top-p", "1.5"],
        &expect![[r#"
        exit 2
        motley: top_p must be between 0 and 1, not 1.5
    "#]],
    );
    check(
        &["serve", "m", "--lan", "-ctk", "f16", "-ctv", "q8_0"],
        &expect![[r#"
        exit 2
        motley: devices of a cluster cache keys and values in one type
        hint: give -ctk alone, or the same for -ctv
    "#]],
    );
    check(
        &["run", "m", "hi", "-t", "2", "-tb", "0"],
        &expect![[r#"
        exit 2
        motley: --threads-batch must be 1 to 512, not 0
    "#]],
    );
    check(
        &["run", "m", "hi", "-n", "0"],
        &expect![[r#"
        exit 2
        motley: --predict must be -1, or 1 or more
    "#]],
    );
    check(
        &["run", "m", "hi", "--memory", "lots"],
        &expect![[r#"
        exit 2
        error: invalid value 'lots' for '--memory <SIZE>': 'lots' is no unit of bytes; use B, k, M, G, T or KiB to TiB

        For more information, try '--help'.
    "#]],
    );
    check(
        &["run", "m", "hi", "--stop", ""],
        &expect![[r#"
        exit 2
        motley: stop string 0 is empty
    "#]],
    );
    check(
        &["run", "m", "hi", "-p", "ho"],
        &expect![[r#"
        exit 2
        motley: the prompt is given twice, by --prompt and by words
    "#]],
    );
}

#[test]
fn models_that_cannot_be_made() {
    check(
        &["make-model", "--arch", "llama", "--out", "x"],
        &expect![[r#"
            exit 2
            error: the following required arguments were not provided:
              --blocks <N>
              --embedding <N>
              --ffn <N>
              --heads <N>
              --kv-heads <N>
              --type <TYPE>

            Usage: motley make-model --preset <NAME> [--blocks <N>] --out <FILE>
                   motley make-model --arch <NAME> --blocks <N> --embedding <N> --ffn <N>
                                     --heads <N> --kv-heads <N> --type <TYPE> --out <FILE>

            For more information, try '--help'.
        "#]],
    );
    check(
        &["make-model", "--preset", "gpt-5", "--out", "x"],
        &expect![[r#"
        exit 3
        motley: 'gpt-5' is no preset (known are llama-2-7b-q4_0, llama-3-8b-q4_k_m, llama-3-70b-q4_k_m, llama-3-70b-q4_k_s, qwen2.5-7b-q4_k_m, qwen2.5-14b-q4_k_m, qwen2.5-32b-q4_k_m, qwen2.5-72b-q4_k_m, llama-1-30b-q4_k_m, llama-1-30b-q4_k_s, llama-3-45b-q4_k_s, llama-3-60b-q4_k_s, llama-1-65b-q4_k_m, llama-1-65b-q4_k_s, qwen3-30b-a3b-q4_k_m, gpt-oss-20b-mxfp4, llama-3.2-1b-q4_0, qwen3-0.6b-q8_0, qwen3-8b-q4_k_m, gemma-3-1b-q4_k_m)
    "#]],
    );
}

#[test]
fn no_prompt_and_an_empty_pipe() {
    let folder = models_folder();
    let Some(model) = real_model(common::SMOLLM2) else { return };
    let output = run_with_input(&["run", &model], "\n");
    let said = stderr(&output).replace(folder.to_str().unwrap(), "MODELS");
    assert_eq!(output.status.code(), Some(2));
    expect![[r#"
        motley: there is no prompt and stdin is empty
        hint: give the prompt after the model, or run it on a terminal to chat
    "#]]
    .assert_eq(&said);
}

#[test]
fn input_that_is_no_text() {
    let Some(model) = real_model(common::SMOLLM2) else { return };
    let mut child = motley()
        .args(["tokenize", "-m", &model])
        .stdin(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"ab\xff").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    expect![[r#"
        motley: stdin is no UTF-8 text from byte 2 on
        hint: convert it first, for example with iconv
    "#]]
    .assert_eq(&stderr(&output));
}

#[cfg(not(any(feature = "cuda", feature = "rocm", feature = "vulkan", target_os = "macos")))]
#[test]
fn layers_in_a_gpu_that_this_build_cannot_see() {
    let Some(model) = real_model(common::SMOLLM2) else { return };
    check(
        &["run", &model, "-ngl", "4", "hi"],
        &expect![[r#"
            exit 4
            motley: this build sees no GPU
            hint: motley version lists its devices; -ngl 0 does without
        "#]],
    );
}
