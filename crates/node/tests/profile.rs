//! `motley profile` as a program: what its document holds, what it keeps, and that plans read it.

mod common;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;

use common::{SMOLLM2, motley, printed, real_model};
use expect_test::expect;
use serde_json::Value as Json;

/// Every path to a value, entries of lists together.
fn paths(value: &Json, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Json::Object(fields) => {
            for (name, value) in fields {
                paths(value, &format!("{path}.{name}"), found);
            }
        }
        Json::Array(entries) => {
            entries.iter().for_each(|entry| paths(entry, &format!("{path}[]"), found));
        }
        _ => {
            found.insert(path.to_owned());
        }
    }
}

/// The fields of a device, in the form of `motley_cluster`'s documents.
fn check_fields(device: &Json) {
    let mut found = BTreeSet::new();
    paths(device, "", &mut found);
    // Only where the test may not use all of its processors.
    found.retain(|path| !path.starts_with(".cpu_quota"));
    expect![[r#"
        .cores
        .cpu.combination
        .cpu.expert_gamma
        .cpu.flops_per_s.f16
        .cpu.flops_per_s.q4_0
        .cpu.flops_per_s.q4_k
        .cpu.flops_per_s.q6_k
        .cpu.flops_per_s.q8_0
        .cpu.head_tables[].model
        .cpu.head_tables[].phase
        .cpu.head_tables[].points[].batch_tokens
        .cpu.head_tables[].points[].depth_tokens
        .cpu.head_tables[].points[].time_ms
        .cpu.kv_copy_s
        .cpu.layer_overhead_s
        .cpu.layer_tables[].attention
        .cpu.layer_tables[].model
        .cpu.layer_tables[].phase
        .cpu.layer_tables[].points[].batch_tokens
        .cpu.layer_tables[].points[].depth_tokens
        .cpu.layer_tables[].points[].time_ms
        .cpu.read_bytes_per_s
        .cpu.read_efficiency
        .cpu.token_overhead_s
        .disk.random_bytes_per_s
        .disk.sequential_bytes_per_s
        .hardware
        .memory.ram_available_bytes
        .memory.ram_total_bytes
        .memory.swap_available_bytes
        .memory.swappable_bytes
        .name
        .os
        .step_overhead_s
        .threads
        .unified_memory"#]]
    .assert_eq(&found.into_iter().collect::<Vec<_>>().join("\n"));
}

#[test]
fn a_profile_is_a_cluster_of_one_device_that_plans_read_and_is_kept() {
    let Some(model) = real_model(SMOLLM2) else { return };
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("motley").join("profile");
    let models = folder.path().join("models");
    let arguments = [
        "profile",
        "--quick",
        "--json",
        "--cache",
        cache.to_str().unwrap(),
        "--models",
        models.to_str().unwrap(),
        "--model",
        &model,
    ];
    let text = printed(&arguments);
    let first: Json = serde_json::from_str(&text).unwrap();
    let device = &first["devices"][0];
    check_fields(device);
    let tables = device["cpu"]["layer_tables"].as_array().unwrap();
    let of = |phase: &str| -> Vec<(u64, u64)> {
        let table = tables.iter().find(|table| table["phase"] == phase).unwrap();
        let points = table["points"].as_array().unwrap().iter();
        let number = |point: &Json, name: &str| point[name].as_u64().unwrap();
        points.map(|p| (number(p, "batch_tokens"), number(p, "depth_tokens"))).collect()
    };
    assert_eq!(of("decode"), [(1, 32), (1, 1024), (8, 32), (32, 32)]);
    assert_eq!(of("prefill"), [(32, 0), (128, 0), (512, 0)]);

    // Measured again, hardly one figure would be the same.
    let second: Json = serde_json::from_str(&printed(&arguments)).unwrap();
    assert_eq!(second["devices"][0]["cpu"], device["cpu"]);
    assert_eq!(second["devices"][0]["disk"], device["disk"]);

    let cluster = folder.path().join("me.json");
    std::fs::write(&cluster, text).unwrap();
    let plan = printed(&["plan", "-m", &model, "--cluster", cluster.to_str().unwrap()]);
    assert!(plan.contains(device["name"].as_str().unwrap()), "{plan}");

    // The readable form, of the same kept figures.
    let table = printed(&[&arguments[..2], &arguments[3..]].concat());
    for heading in ["memory", "disk in a row", "GFLOP/s", "layer ms"] {
        assert!(table.contains(heading), "{heading} is missing: {table}");
    }
    assert!(table.ends_with("kept from an earlier run, memory apart; --refresh measures anew\n"));

    // Whoever serves the model is told what the figures promise; without any, where they come from.
    let promise = promise_of_serving(&model, &models, folder.path());
    assert!(promise.contains(" ms per token, "), "{promise}");
    let unknown = promise_of_serving(&model, &models, &models);
    let expected = expect![
        "no speed is predicted: this device was not measured with this model (motley profile -m MODEL does)"
    ];
    expected.assert_eq(&unknown);
}

/// The line about speed of a server with the measurements below `cache`.
fn promise_of_serving(model: &str, models: &Path, cache: &Path) -> String {
    let mut server = motley()
        .args(["serve", model, "--port", "0", "--parallel", "1", "-c", "256", "--layout", "plain"])
        .arg("--models")
        .arg(models)
        .env("XDG_CACHE_HOME", cache)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let lines = BufReader::new(server.stderr.take().expect("a pipe")).lines();
    let found = lines
        .map(|line| line.expect("text"))
        .find(|line| line.starts_with("predicted: ") || line.starts_with("no speed is predicted"));
    server.kill().expect("it runs until it is stopped");
    server.wait().expect("it ends");
    found.expect("a word about speed")
}
