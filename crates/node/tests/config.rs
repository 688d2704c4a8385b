//! The configuration file, and what wins over it.

mod common;

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use common::{SMOLLM2, motley, real_model, stderr, stdout};
use expect_test::expect;
use serde_json::Value as Json;

struct Rig {
    folder: tempfile::TempDir,
}

impl Rig {
    fn new(text: &str) -> Self {
        let rig = Self { folder: tempfile::tempdir().unwrap() };
        fs::write(rig.path(), text).unwrap();
        rig
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("config.toml")
    }

    fn run(&self, words: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut command = motley();
        command.env("MOTLEY_CONFIG", self.path()).args(words).envs(variables.iter().copied());
        command.output().expect("the program starts")
    }

    fn said(&self, output: &Output) -> String {
        stderr(output).replace(&*self.path().to_string_lossy(), "FILE")
    }

    fn shown(&self, words: &[&str], variables: &[(&str, &str)]) -> String {
        let output = self.run(&[&["config", "show"], words].concat(), variables);
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output).replace(&*self.path().to_string_lossy(), "FILE")
    }
}

#[test]
fn each_value_tells_where_it_comes_from() {
    let rig = Rig::new(
        "state = \"kept\"\n\n[serve]\nport = 8080\napi-key = [\"sk-12345678\"]\nlimit-body = \"1MiB\"\n",
    );
    let shown = rig.shown(&["serve", "--origin"], &[("MOTLEY_PARALLEL", "8")]);
    assert!(!shown.contains("sk-12345678"), "{shown}");
    let wanted = [
        "alias",
        "api-key",
        "host",
        "port",
        "parallel",
        "lan",
        "state",
        "limit-body",
        "limit-idle",
    ];
    let lines: Vec<&str> = shown
        .lines()
        .filter(|line| {
            let key = line.trim_start_matches("# ").split(' ').next().unwrap_or_default();
            wanted.contains(&key)
        })
        .collect();
    expect![[r#"
        # alias =  # not set
        host = "127.0.0.1"  # default
        port = 8080  # FILE, line 4
        # api-key = ["(hidden)"]  # FILE, line 5
        parallel = 8  # MOTLEY_PARALLEL
        lan = false  # default
        state = "kept"  # FILE, line 1
        limit-body = "1MiB"  # FILE, line 6
        limit-idle = "60s"  # default"#]]
    .assert_eq(&lines.join("\n"));
    // What is shown is a file that can be kept.
    let again = Rig::new(&rig.shown(&["serve"], &[]));
    assert!(again.shown(&["serve"], &[]).contains("port = 8080\n"));
}

#[test]
fn words_win_over_variables_and_variables_over_the_file() {
    let Some(model) = real_model(SMOLLM2) else { return };
    let rig = Rig::new("[show]\nctx-size = 1024\njson = true\n");
    let tokens = |words: &[&str], variables: &[(&str, &str)]| {
        let output = rig.run(&[&["show", &model], words].concat(), variables);
        let document: Json = serde_json::from_str(&stdout(&output)).expect("JSON");
        document["memory"]["context_tokens"].as_u64().unwrap()
    };
    assert_eq!(tokens(&[], &[]), 1024);
    assert_eq!(tokens(&[], &[("MOTLEY_CTX_SIZE", "2048")]), 2048);
    assert_eq!(tokens(&["-c", "512"], &[("MOTLEY_CTX_SIZE", "2048")]), 512);
    let plain = rig.run(&["show", &model], &[("MOTLEY_JSON", "no")]);
    assert!(stdout(&plain).starts_with("model "), "a switch of the file is undone by its variable");
}

#[test]
fn a_word_that_contradicts_the_file_wins() {
    let rig = Rig::new("[run]\nsystem = \"Be brief.\"\n");
    // The model is not there, which is told only after words and file went together.
    let output = rig.run(&["run", "no/such.gguf", "hi", "--no-template"], &[]);
    assert!(
        rig.said(&output).starts_with("motley: cannot open no/such.gguf"),
        "{}",
        rig.said(&output)
    );
}

#[test]
fn a_wrong_file_is_told_with_its_line_and_what_was_meant() {
    let rig = Rig::new("[serve]\nparalel = 8\n");
    let output = rig.run(&["version"], &[]);
    assert_eq!(output.status.code(), Some(2));
    expect![[r#"
        motley: FILE, line 2: no option is called 'paralel' of motley serve
        hint: did you mean parallel?
    "#]]
    .assert_eq(&rig.said(&output));
    let help = rig.run(&["serve", "--help"], &[]);
    assert!(help.status.success(), "help is there all the same");
    fs::remove_file(rig.path()).unwrap();
    let output = rig.run(&["version"], &[]);
    expect![[r#"
        motley: cannot read FILE: No such file or directory (os error 2)
        hint: MOTLEY_CONFIG names another file; an empty one sets nothing
    "#]]
    .assert_eq(&rig.said(&output));
    let place = motley().args(["config", "path"]).output().unwrap();
    assert_eq!(stdout(&place), "/nowhere/motley/config.toml\n");
}

#[test]
fn limits_that_contradict_each_other_are_refused() {
    let rig = Rig::new("[serve]\nlimit-first-token = \"2h\"\n");
    let output = rig.run(&["serve", "no/such.gguf"], &[]);
    expect![[r#"
        motley: --limit-first-token is more than --limit-total
    "#]]
    .assert_eq(&rig.said(&output));
    let rig = Rig::new("[serve]\nlimit-json-depth = 1000\n");
    expect![[r#"
        motley: FILE, line 2: limit-json-depth: invalid value '1000': 1000 is not within 4 and 64
        hint: motley config show lists all options and their values
    "#]]
    .assert_eq(&rig.said(&rig.run(&["version"], &[])));
}
