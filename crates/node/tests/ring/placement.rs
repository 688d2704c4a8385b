//! Layers go where a plan puts them: profiles are given, so that it is known what is right.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};
use tempfile::TempDir;

use crate::common::printed;
use crate::device::{PATIENCE, watch};
use crate::http::answer;
use crate::rig::{Rig, model};
use crate::tokens::{PROMPTS, TOKENS, alone};

/// Layers of the model.
const LAYERS: u64 = 30;

/// A profile of a device that reads so many MB of weights per second and gives so many MB.
fn profile(folder: &Path, name: &str, read_mb_per_s: f64, memory_mb: u64) -> String {
    let profile = json!({
        "name": name, "os": "linux", "unified_memory": false, "cores": 1, "threads": 1,
        "memory": {
            "ram_total_bytes": 4_000_000_000_u64, "ram_available_bytes": memory_mb * 1_000_000,
        },
        // So slow that no layer is streamed.
        "disk": { "sequential_bytes_per_s": 1e6, "random_bytes_per_s": 1e6 },
        "cpu": {
            "flops_per_s": { "q4_1": 1e13 }, "read_bytes_per_s": read_mb_per_s * 1e6,
            "combination": "roofline",
        },
    });
    let path: PathBuf = folder.join(format!("{name}.json"));
    fs::write(&path, profile.to_string()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Waits until so many of the nodes that are there share the model, and nothing changes any more.
#[track_caller]
fn planned(rig: &Rig, there: usize, serving: usize) -> Json {
    let seen = watch(PATIENCE, || {
        let cluster = rig.cluster()?;
        let nodes = cluster["nodes"].as_array()?;
        let busy = nodes.iter().filter(|node| node["state"] == "serving").count();
        let measured = nodes
            .iter()
            .all(|node| node["why"].as_str().is_none_or(|why| !why.contains("being measured")));
        let settled = cluster["change"].is_null() && measured && !cluster["plan"].is_null();
        (nodes.len() == there && busy == serving && settled).then_some(cluster)
    });
    seen.unwrap_or_else(|| panic!("no such plan: {:?}\n{}", rig.cluster(), rig.said()))
}

fn node<'c>(cluster: &'c Json, name: &str) -> &'c Json {
    let nodes = cluster["nodes"].as_array().unwrap();
    nodes.iter().find(|node| node["name"] == name).unwrap_or_else(|| panic!("no {name}"))
}

fn layers(node: &Json) -> u64 {
    let windows = node["layers"].as_array().unwrap();
    windows.iter().map(|it| it[1].as_u64().unwrap() - it[0].as_u64().unwrap()).sum()
}

/// A head of middling speed, a fast member with little memory, and a slow one with plenty.
fn unequal(model: &str) -> (Rig, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let of = |name, read, memory| profile(folder.path(), name, read, memory);
    let (head, fast, slow) =
        (of("head", 100.0, 2000), of("fast", 800.0, 160), of("slow", 10.0, 2000));
    let mut rig = Rig::head(model, &["--nodes", "2", "--profile", &head]);
    let models = Path::new(model).parent().unwrap().to_str().unwrap().to_owned();
    rig.join(&["--models", &models, "--profile", &fast]);
    rig.join(&["--models", &models, "--profile", &slow]);
    (rig, folder)
}

#[test]
fn layers_follow_profiles_and_a_weak_device_is_left_out() {
    let Some(model) = model() else { return };
    let (mut rig, _folder) = unequal(&model);
    let cluster = planned(&rig, 3, 2);
    let (fast, slow) = (node(&cluster, "member-0"), node(&cluster, "member-1"));
    let own = &cluster["nodes"].as_array().unwrap().iter().find(|it| it["head"] == true).unwrap();
    // As many as its memory holds, for each is faster there by more than two hops cost.
    assert!((4..LAYERS).contains(&layers(fast)), "{cluster}");
    assert_eq!(layers(own) + layers(fast), LAYERS, "{cluster}");
    let why = slow["why"].as_str().unwrap();
    assert!(why.contains("not used") && why.contains("hop"), "{why}");
    for (prompt, expected) in PROMPTS.iter().zip(&alone(&model).answers) {
        assert_eq!(answer(&rig.url(), prompt, TOKENS), *expected);
    }
    // The plan was told with its reasons when it was deployed.
    let said = rig.head.said();
    assert!(said.contains("predicted: ") && said.contains("member-1: not used"), "{said}");
    let status = printed(&["status", "--url", &rig.url()]);
    assert!(status.contains("member-1: not used") && status.contains("measuring"), "{status}");
    // Ways between members are measured too, which may be after the first plan.
    let measured = watch(PATIENCE, || {
        let cluster = rig.cluster()?;
        let links = cluster["links"].as_array()?;
        let measured = links.iter().filter(|link| link["assumed"] == false).count();
        (measured == 6 && cluster["change"].is_null()).then_some(cluster)
    });
    let cluster = measured.unwrap_or_else(|| panic!("{:?}\n{}", rig.cluster(), rig.said()));
    // Whoever has no layers may go without anybody noticing.
    let epoch = cluster["epoch"].as_u64().unwrap();
    rig.members[1].kill();
    let without = planned(&rig, 2, 2);
    assert_eq!(without["epoch"].as_u64(), Some(epoch));
    // A member with layers may not: the head takes them all.
    rig.members[0].kill();
    let alone_again = planned(&rig, 1, 1);
    assert!(alone_again["epoch"].as_u64() > Some(epoch));
    assert_eq!(answer(&rig.url(), PROMPTS[0], TOKENS), alone(&model).answers[0]);
}

#[test]
fn a_plan_is_compared_with_what_is_measured() {
    let Some(model) = model() else { return };
    let (rig, _folder) = unequal(&model);
    planned(&rig, 3, 2);
    let measured = watch(PATIENCE, || {
        answer(&rig.url(), PROMPTS[0], 64);
        let live: Json =
            serde_json::from_str(&printed(&["plan", "--live", "--json", "--url", &rig.url()]))
                .unwrap();
        let stages = live["stages"].as_array()?;
        let all = stages.iter().all(|stage| stage["measured_ms"].as_f64() > Some(0.0));
        (all && stages.len() == 2 && live["hops"]["measured_ms"].is_number()).then_some(live)
    });
    let live = measured.unwrap_or_else(|| panic!("{}", rig.said()));
    assert!(live["token"]["predicted_ms"].as_f64() > Some(10.0), "{live}");
    // What was written down is believed: it is not corrected, and the plan stays.
    assert!(live["stages"][0]["correction"].is_null(), "{live}");
    let table = printed(&["plan", "--live", "--url", &rig.url()]);
    assert!(table.contains("member-0") && table.contains("\ntoken "), "{table}");
}

#[test]
fn a_better_device_that_comes_later_takes_layers_over() {
    let Some(model) = model() else { return };
    let folder = tempfile::tempdir().unwrap();
    let head = profile(folder.path(), "head", 100.0, 2000);
    let fast = profile(folder.path(), "fast", 800.0, 2000);
    let mut rig = Rig::head(&model, &["--profile", &head]);
    let before = planned(&rig, 1, 1);
    let expected = answer(&rig.url(), PROMPTS[1], TOKENS);
    rig.join(&["--profile", &fast]);
    let after = planned(&rig, 2, 2);
    assert!(after["epoch"].as_u64() > before["epoch"].as_u64());
    assert_eq!(layers(node(&after, "member-0")), LAYERS, "{after}");
    assert_eq!(answer(&rig.url(), PROMPTS[1], TOKENS), expected);
}

#[test]
fn a_ring_gives_up_bits_and_slots_before_it_streams() {
    let Some(model) = model() else { return };
    let folder = tempfile::tempdir().unwrap();
    let [head, member] = ["head", "member"].map(|name| profile(folder.path(), name, 100.0, 300));
    let mut rig = Rig::head(&model, &["--nodes", "1", "--profile", &head, "-np", "64"]);
    let models = Path::new(&model).parent().unwrap().to_str().unwrap().to_owned();
    rig.join(&["--models", &models, "--profile", &member]);
    let cluster = planned(&rig, 2, 2);
    let said = rig.head.said();
    let why =
        "To make room for a context of 512 tokens: keys and values have 8 bits instead of 16, ";
    let (_, less) = said.split_once(why).unwrap_or_else(|| panic!("{said}"));
    assert!(less.contains(" of 64 slots"), "{less}");
    assert!(!said.contains("read from disk"), "{said}");
    let slots = crate::http::get(&rig.url(), "/slots").unwrap().1;
    assert!((1..64).contains(&slots.as_array().unwrap().len()), "{slots}");
    assert!(cluster["plan"]["reasons"][0].as_str().unwrap().starts_with(why), "{cluster}");
    answer(&rig.url(), PROMPTS[0], TOKENS);
}
