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
    check(&["run", "no/such.gguf", "hi"], &expect![""]);
    check(&["show", "no/such.gguf"], &expect![""]);
    check(&["tokenize", "-m", "no/such.gguf", "hi"], &expect![""]);
}

#[test]
fn broken_files() {
    let folder = broken("");
    let fixtures: &[(&Path, &str)] = &[(Path::new(&folder), "FIXTURES/")];
    let check = |name: &str, expected: &expect_test::Expect| {
        check_failure(&["run", &broken(name), "hi"], fixtures, expected);
    };
    check("hdr_zip_magic.gguf", &expect![""]);
    check("trunc_023.gguf", &expect![""]);
    check("hdr_version_1.gguf", &expect![""]);
    check("sem_arch_unknown.gguf", &expect![""]);
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
        &expect![""],
    );
}

#[test]
fn a_folder_is_no_model() {
    check(&["show", "src"], &expect![""]);
}

#[test]
fn prompt_longer_than_the_context() {
    let Some(model) = real_model(common::SMOLLM2) else { return };
    let prompt = "word ".repeat(400);
    let plain = ["run", &model, &prompt, "-c", "256", "--no-template"];
    check(&plain, &expect![""]);
}

#[test]
fn context_beyond_the_model() {
    let Some(model) = real_model(common::SMOLLM2) else { return };
    check(&["run", &model, "hi", "-c", "100000"], &expect![""]);
}

#[test]
fn not_enough_memory() {
    let Some(model) = real_model(common::SMOLLM2) else { return };
    check(&["run", &model, "hi", "--memory", "64M"], &expect![""]);
    check(&["run", &model, "hi", "-c", "8192", "--memory", "256M"], &expect![""]);
    check(&["run", &model, "hi", "-c", "8192", "--memory", "175M"], &expect![""]);
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
    check("smolm2", &expect![""]);
    check("mixtral", &expect![""]);
    let empty = tempfile::tempdir().unwrap();
    check_failure(
        &["run", "smollm2", "hi", "--models", empty.path().to_str().unwrap()],
        &[(empty.path(), "MODELS")],
        &expect![""],
    );
}

#[test]
fn wrong_command_lines() {
    check(&["run", "model.gguf", "--tempp", "1"], &expect![""]);
    check(&["run"], &expect![""]);
    check(&["run", "m", "hi", "--top-p", "1.5"], &expect![""]);
    check(&["run", "m", "hi", "-ctk", "f16", "-ctv", "q8_0"], &expect![""]);
    check(&["run", "m", "hi", "-t", "2", "-tb", "3"], &expect![""]);
    check(&["run", "m", "hi", "-n", "0"], &expect![""]);
    check(&["run", "m", "hi", "--memory", "lots"], &expect![""]);
    check(&["run", "m", "hi", "--stop", ""], &expect![""]);
    check(&["run", "m", "hi", "-p", "ho"], &expect![""]);
    check(&["make-model", "--arch", "llama", "--out", "x"], &expect![""]);
    check(&["make-model", "--preset", "gpt-5", "--out", "x"], &expect![""]);
    check(&["dance"], &expect![""]);
}

#[test]
fn no_prompt_and_an_empty_pipe() {
    let folder = models_folder();
    let Some(model) = real_model(common::SMOLLM2) else { return };
    let output = run_with_input(&["run", &model], "\n");
    let said = stderr(&output).replace(folder.to_str().unwrap(), "MODELS");
    assert_eq!(output.status.code(), Some(2));
    expect![""].assert_eq(&said);
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
    expect![""].assert_eq(&stderr(&output));
}
