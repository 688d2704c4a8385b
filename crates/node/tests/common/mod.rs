//! Running the program `motley` and looking at what it prints.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "tests say what they skip, and find their models through the environment"
)]
#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod server;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use expect_test::Expect;

/// The smallest real model.
pub(crate) const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// The program, with nothing of the caller's environment that changes what it does.
pub(crate) fn motley() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_motley"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MOTLEY_") {
            command.env_remove(name);
        }
    }
    for folder in ["XDG_DATA_HOME", "XDG_CONFIG_HOME", "HF_HOME", "OLLAMA_MODELS"] {
        command.env(folder, "/nowhere");
    }
    for name in ["HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"] {
        command.env_remove(name).env_remove(name.to_lowercase());
    }
    for name in ["HF_TOKEN", "HF_TOKEN_PATH", "HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_HUB_CACHE"] {
        command.env_remove(name);
    }
    // Servers leave notes of themselves in it.
    command.env("XDG_STATE_HOME", Path::new(env!("CARGO_TARGET_TMPDIR")).join("state"));
    command.stdin(Stdio::null());
    // Tests run side by side, and compute threads that wait for each other suffer most from that.
    command.env("MOTLEY_THREADS", "1");
    command
}

/// Runs the program with arguments and without input.
pub(crate) fn run(arguments: &[&str]) -> Output {
    motley().args(arguments).output().expect("the program starts")
}

/// Runs the program with something in its pipe.
pub(crate) fn run_with_input(arguments: &[&str], input: &str) -> Output {
    let mut child = motley()
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // The program may end before it has read everything, which is its right.
    let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    child.wait_with_output().expect("the program ends")
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("output is UTF-8")
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("messages are UTF-8")
}

/// Stdout of a run that succeeds.
pub(crate) fn printed(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    stdout(&output)
}

/// Compares how a run fails: the exit code and what it says. Folders of this machine are named
/// in capitals instead.
pub(crate) fn check_failure(arguments: &[&str], folders: &[(&Path, &str)], expected: &Expect) {
    let output = run(arguments);
    let mut said = stderr(&output);
    for (folder, name) in folders {
        said = said.replace(&*folder.to_string_lossy(), name);
    }
    assert_eq!(stdout(&output), "", "nothing but messages");
    let code = output.status.code().map_or("none".to_owned(), |code| code.to_string());
    expected.assert_eq(&format!("exit {code}\n{said}"));
}

/// The path of a real model, or nothing, with a message, where it was not fetched.
pub(crate) fn real_model(name: &str) -> Option<String> {
    let path = models_folder().join(name);
    if path.exists() {
        return Some(path.to_str().expect("a path that is text").to_owned());
    }
    println!("skipped: {name} is not here; `cargo xtask models` fetches it");
    None
}

/// Where real models lie.
pub(crate) fn models_folder() -> PathBuf {
    if let Some(folder) = std::env::var_os("MOTLEY_MODELS") {
        return folder.into();
    }
    let home = std::env::var_os("HOME").unwrap_or_default();
    PathBuf::from(home).join(".cache").join("motley").join("models")
}

/// Broken files, each with what is wrong in its name.
pub(crate) fn broken(name: &str) -> String {
    let path = Path::new("../model/tests/fixtures/gguf_malformed").join(name);
    path.to_str().expect("a path that is text").to_owned()
}
