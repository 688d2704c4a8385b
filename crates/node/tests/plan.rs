//! `motley plan` as a program: plans, comparisons, exports, lists and refusals.

mod common;

use common::{SMOLLM2, printed, real_model, run, stderr};
use expect_test::{Expect, expect};
use serde_json::Value as Json;

fn json(arguments: &[&str]) -> Json {
    serde_json::from_str(&printed(arguments)).expect("JSON")
}

fn check(arguments: &[&str], expected: &Expect) {
    common::check_failure(arguments, &[], expected);
}

const HOME_8B: &[&str] = &["plan", "-m", "llama-3-8b-q4_k_m", "--cluster", "prima-home"];

fn with<'a>(base: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [base, more].concat()
}

#[test]
fn a_plan_is_drawn_with_what_it_was_planned_for() {
    let text = printed(HOME_8B);
    assert!(text.starts_with("llama-3-8b-q4_k_m on prima-home\n"), "{text}");
    assert!(text.contains(" per token, first token after "), "{text}");
    assert!(text.contains("planned for one request: 512 prompt"), "{text}");
    for device in ["D1", "D2", "D3", "D4"] {
        assert!(text.lines().any(|line| line.starts_with(device)), "{device} is missing: {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn explanations_answer_every_question() {
    let text = printed(&with(HOME_8B, &["--explain"]));
    for heading in [
        "Why each device has what it has",
        "Devices without work",
        "Slots",
        "What one change would bring",
    ] {
        assert!(text.contains(heading), "{heading} is missing: {text}");
    }
}

#[test]
fn json_holds_the_plan_and_its_figures() {
    let plan = json(&with(HOME_8B, &["--json", "--explain", "--export", "llama.cpp"]));
    assert_eq!(plan["model"], "llama-3-8b-q4_k_m");
    assert_eq!(plan["plan"]["layers"], 32);
    assert!(plan["predicted"]["tpot_ms"].as_f64().expect("a number") > 0.0);
    let used = plan["predicted"]["devices_used"].as_u64().expect("a count");
    assert_eq!(plan["explanation"]["used"].as_array().expect("a list").len() as u64, used);
    let commands = plan["export"]["commands"].as_array().expect("a list");
    assert!(commands.last().expect("one")["line"].as_str().expect("text").contains("llama-server"));
    assert_ne!(plan["method"], "auto");
}

#[test]
fn the_same_question_has_the_same_answer() {
    let ask = || printed(&with(HOME_8B, &["--json"]));
    assert_eq!(ask(), ask());
}

#[test]
fn drawings_are_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("plan.svg");
    printed(&with(HOME_8B, &["--svg", file.to_str().expect("a path")]));
    let svg = std::fs::read_to_string(file).expect("a drawing");
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
}

#[test]
fn comparisons_tell_every_method() {
    let document = json(&with(&["plan", "compare"], &[&HOME_8B[1..], &["--json"]].concat()));
    let methods = document["methods"].as_array().expect("a list");
    assert_eq!(methods.len(), 16);
    for method in methods {
        if method["feasible"] == true {
            for field in ["tpot_ms", "ttft_ms", "max_wait_s", "throughput_tok_s", "devices_used"] {
                assert!(method[field].is_number(), "{field} of {method}");
            }
        } else {
            assert!(method["why"].is_string(), "{method}");
        }
    }
    let single = methods.iter().find(|method| method["method"] == "best-single-device");
    assert_eq!(single.expect("listed")["feasible"], true);
    let table = printed(&with(&["plan", "compare"], &HOME_8B[1..]));
    assert!(table.contains("best-single-device"), "{table}");
}

#[test]
fn exports_are_scripts() {
    let text = printed(&with(HOME_8B, &["--export", "prima.cpp"]));
    assert!(text.contains("llama-server -m llama-3-8b-q4_k_m.gguf"), "{text}");
    assert!(text.lines().all(|line| line.starts_with('#') || line.starts_with("llama-")), "{text}");
}

#[test]
fn lists() {
    let models = printed(&["plan", "--list-models"]);
    assert_eq!(models.lines().count(), 17, "{models}");
    expect![[r#"
        cluster     devices
        prima-home  D1 (m1-8), D2 (i9-rtx3070), D3 (i9-rtx2080ti), D4 (kirin9000)
        prima-ten   D1 (m1-8), D2 (i9-rtx3070), D3 (i9-rtx2080ti), D4 (kirin9000), D5 (honor-pad-d8100), D6 (gtx1080ti), D7 (rtx4090 capped), D8 (rtx4090 capped), D9 (rtx4090 host), D10 (rtx4090 host)
        e2llm-4     Dev.1 (rtx5070-9700x), Dev.2 (rtx3060m-5800h), Dev.5 (m1-16), Dev.6 (m1-16)
        e2llm-6     Dev.1 (rtx5070-9700x), Dev.2 (rtx3060m-5800h), Dev.4 (m2max-32), Dev.5 (m1-16), Dev.6 (m1-16), Dev.7 (dgx-spark)
        e2llm-8     Dev.1 (rtx5070-9700x), Dev.2 (rtx3060m-5800h), Dev.3 (m2max-32), Dev.4 (m2max-32), Dev.5 (m1-16), Dev.6 (m1-16), Dev.7 (dgx-spark), Dev.8 (dgx-spark)
    "#]].assert_eq(&printed(&["plan", "--list-clusters"]));
    let methods = printed(&["plan", "--list-methods"]);
    assert!(methods.contains("halda-paper") && methods.contains("adapted-splitwise"), "{methods}");
    let both = printed(&["plan", "--list-models", "--list-clusters"]);
    assert!(both.contains("gpt-oss-20b-mxfp4") && both.contains("prima-ten"), "{both}");
}

#[test]
fn unknown_names_list_near_ones() {
    check(
        &["plan", "-m", "llama-3-8b", "--cluster", "prima-home"],
        &expect![[r#"
        exit 3
        motley: no model is called 'llama-3-8b'
        hint: did you mean llama-3-8b-q4_k_m or llama-2-7b-q4_0 or llama-3-45b-q4_k_s or llama-3-60b-q4_k_s or llama-3-70b-q4_k_m? motley plan --list-models shows all
    "#]],
    );
    check(
        &["plan", "-m", "llama-3-8b-q4_k_m", "--cluster", "prima-hom"],
        &expect![[r#"
        exit 3
        motley: no cluster is called 'prima-hom'
        hint: did you mean prima-home or prima-ten? motley plan --list-clusters shows all
    "#]],
    );
    check(
        &with(HOME_8B, &["--method", "haldda"]),
        &expect![[r#"
        exit 3
        motley: no method is called 'haldda'
        hint: did you mean halda or halda-exact or halda-paper? motley plan --list-methods shows all
    "#]],
    );
    check(
        &with(HOME_8B, &["--export", "vllm"]),
        &expect![[r#"
        exit 3
        motley: no engine is called 'vllm'
        hint: plans can be exported for llama.cpp and prima.cpp
    "#]],
    );
    check(
        &["plan", "-m", "llama-3-8b-q4_k_m"],
        &expect![[r#"
        exit 2
        motley: --cluster CLUSTER is missing
        hint: motley plan --list-models --list-clusters shows what is built in
    "#]],
    );
    check(
        &["plan", "-m", "llama-3-8b-q4_k_m", "--cluster", "nowhere.toml"],
        &expect![[r#"
        exit 3
        motley: cannot open nowhere.toml: No such file or directory (os error 2)
    "#]],
    );
}

#[test]
fn bad_files_name_the_field() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("cluster.toml");
    let path = file.to_str().expect("a path");
    let failed = |text: &str, expected: &Expect| {
        std::fs::write(&file, text).expect("a file");
        let arguments = ["plan", "-m", "llama-3-8b-q4_k_m", "--cluster", path];
        common::check_failure(&arguments, &[(folder.path(), "FOLDER")], expected);
    };
    failed(
        "version = 2\nname = \"a\"\ndevices = []\n",
        &expect![[r#"
        exit 1
        motley: FOLDER/cluster.toml: cannot read cluster from TOML: field `version`: version 2 is unknown, this build reads version 1
    "#]],
    );
    failed(
        "version = 1\nname = \"a\"\ndevices = []\n",
        &expect![[r#"
        exit 1
        motley: FOLDER/cluster.toml: cannot read cluster from TOML: field `.`: devices: 0 is outside the allowed range 1 to 4096
    "#]],
    );
    failed(
        "version = 1\nname = \"a\"\ndevices = []\ncolour = 1\n",
        &expect![[r#"
        exit 1
        motley: FOLDER/cluster.toml: cannot read cluster from TOML: field `colour`: unknown field `colour`, expected one of `version`, `name`, `head`, `links`, `devices`
    "#]],
    );
    failed(
        "version = 1\nname = \n",
        &expect![[r#"
        exit 1
        motley: FOLDER/cluster.toml: cannot read cluster from TOML: field `.`: TOML parse error at line 2, column 8: string values must be quoted, expected literal string
    "#]],
    );
    let workload = folder.path().join("workload.toml");
    let text = "version = 1\ncontext_tokens = 512\nprompt_tokens = { mean = 600 }\n\
                generated_tokens = { mean = 10 }\n\
                arrivals = { kind = \"poisson\", interval_s = 1.0 }\n";
    std::fs::write(&workload, text).expect("a file");
    let arguments = with(HOME_8B, &["--workload", workload.to_str().expect("a path")]);
    common::check_failure(
        &arguments,
        &[(folder.path(), "FOLDER")],
        &expect![[r#"
        exit 1
        motley: FOLDER/workload.toml: cannot read workload from TOML: field `.`: prompt_tokens.mean + generated_tokens.mean: 610 is above 512, the value of context_tokens
    "#]],
    );
}

#[test]
fn what_does_not_fit_is_refused_with_what_is_short() {
    let folder = tempfile::tempdir().expect("a folder");
    let workload = folder.path().join("workload.toml");
    // Every request must be faster than any device reads this model.
    let text = "version = 1\ncontext_tokens = 4096\nspeed_floor_tok_per_s = 5000.0\n\
                prompt_tokens = { mean = 512 }\ngenerated_tokens = { mean = 256 }\n\
                arrivals = { kind = \"poisson\", interval_s = 1.0 }\n";
    std::fs::write(&workload, text).expect("a file");
    let path = workload.to_str().expect("a path");
    let output = run(&with(HOME_8B, &["--workload", path, "--objective", "waiting"]));
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.starts_with("motley: no plan: speed is short by "), "{said}");
}

#[test]
fn files_are_planned_like_profiles() {
    let Some(model) = real_model(SMOLLM2) else { return };
    let plan = json(&["plan", "-m", &model, "--cluster", "prima-home", "--json"]);
    assert_eq!(plan["plan"]["layers"], 30);
    assert_eq!(plan["predicted"]["devices_used"], 1);
}
