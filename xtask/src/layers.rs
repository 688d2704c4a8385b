//! Which crate may use which: the layers of `docs/ARCHITECTURE.md`, compared with what cargo sees.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cache::Workplace;
use crate::process;
use crate::steps::Outcome;

/// What each crate of ours may use of ours.
const EDGES: &[(&str, &[&str])] = &[
    ("motley-ggml", &[]),
    ("motley-model", &[]),
    ("motley-cluster", &[]),
    ("motley-gateway", &[]),
    ("motley-engine", &["motley-ggml", "motley-model"]),
    ("motley-planner", &["motley-cluster"]),
    ("motley-ring", &["motley-cluster"]),
    ("motley-sim", &["motley-cluster", "motley-ring"]),
    (
        "motley",
        &[
            "motley-cluster",
            "motley-engine",
            "motley-gateway",
            "motley-ggml",
            "motley-model",
            "motley-planner",
            "motley-ring",
            "motley-sim",
        ],
    ),
    ("xtask", &[]),
];

/// Dependencies that only some crates may name.
const OWNERS: &[(&str, &[&str])] = &[
    ("anyhow", &["motley", "xtask"]),
    ("axum", &["motley", "motley-gateway"]),
    ("clap", &["motley"]),
    ("highs", &["motley-planner"]),
    ("libc", &["motley", "motley-engine", "motley-ggml"]),
    ("llama-cpp-sys-2", &["motley-ggml"]),
    ("llguidance", &["motley"]),
    ("mdns-sd", &["motley"]),
    ("memmap2", &["motley-ggml"]),
    ("minijinja", &["motley-model"]),
    ("minijinja-contrib", &["motley-model"]),
    ("rcgen", &["motley"]),
    ("rustls", &["motley"]),
    // The system's authorities, for downloads.
    ("rustls-native-certs", &["motley"]),
    ("socket2", &["motley"]),
    ("tokio", &["motley", "motley-gateway"]),
    // Downloads; the other crates call nobody.
    ("tokio-rustls", &["motley"]),
    ("tun-rs", &["xtask"]),
    ("webpki-roots", &["motley"]),
];

/// Crates that decide and never act ...
const PURE: &[&str] = &["motley-cluster", "motley-planner", "motley-ring", "motley-sim"];
/// ... so that none of these may reach them, even through others.
const IMPURE: &[&str] =
    &["axum", "hyper", "llama-cpp-sys-2", "mio", "reqwest", "rustls", "socket2", "tokio"];

/// Compares the dependency graph with the tables above.
pub(crate) fn run(workplace: &Workplace) -> Result<Outcome> {
    let arguments = ["metadata", "--format-version", "1", "--locked"];
    let json = process::capture(workplace.cargo(&arguments), Duration::from_secs(5 * 60))
        .context("is Cargo.lock up to date and committed?")?;
    let faults = faults(&serde_json::from_slice(&json)?)?;
    if !faults.is_empty() {
        bail!("\n   {}\n   docs/ARCHITECTURE.md has the reasons", faults.join("\n   "));
    }
    Ok(Outcome::Passed)
}

fn faults(metadata: &Value) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    let names = names(metadata)?;
    for id in list(&metadata["workspace_members"]) {
        let id = id.as_str().context("a member without an id")?;
        let name = *names.get(id).context("a member that is no package")?;
        let Some((_, allowed)) = EDGES.iter().find(|(crate_name, _)| *crate_name == name) else {
            faults.push(format!("{name} is in no layer: add it to xtask/src/layers.rs"));
            continue;
        };
        let package = list(&metadata["packages"]).iter().find(|package| package["id"] == id);
        for dependency in package.map_or(&[][..], |package| list(&package["dependencies"])) {
            let used = dependency["name"].as_str().unwrap_or_default();
            let ours = EDGES.iter().any(|(crate_name, _)| *crate_name == used);
            if ours && !allowed.contains(&used) {
                faults.push(format!("{name} may not use {used}"));
            }
            let owners = OWNERS.iter().find(|(owned, _)| *owned == used);
            if owners.is_some_and(|(_, owners)| !owners.contains(&name)) {
                faults.push(format!("{name} may not depend on {used}"));
            }
        }
        if PURE.contains(&name) {
            let reached = reachable(metadata, id);
            let reached = reached.iter().filter_map(|id| names.get(id));
            let impure: BTreeSet<_> = reached.filter(|name| IMPURE.contains(name)).collect();
            faults.extend(
                impure.iter().map(|used| format!("{name} decides only, yet {used} reaches it")),
            );
        }
    }
    Ok(faults)
}

fn names(metadata: &Value) -> Result<BTreeMap<&str, &str>> {
    list(&metadata["packages"])
        .iter()
        .map(|package| {
            let id = package["id"].as_str().context("a package without an id")?;
            Ok((id, package["name"].as_str().context("a package without a name")?))
        })
        .collect()
}

/// Every package that code of this one links, tests and build scripts left out.
fn reachable<'a>(metadata: &'a Value, start: &'a str) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::from([start]);
    let mut open = vec![start];
    while let Some(id) = open.pop() {
        let node = list(&metadata["resolve"]["nodes"]).iter().find(|node| node["id"] == id);
        for dependency in node.map_or(&[][..], |node| list(&node["deps"])) {
            let linked = list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
            if let Some(used) = dependency["pkg"].as_str()
                && linked
                && seen.insert(used)
            {
                open.push(used);
            }
        }
    }
    seen
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn package(name: &str, dependencies: &[&str]) -> Value {
        let list: Vec<Value> = dependencies.iter().map(|name| json!({ "name": name })).collect();
        json!({ "id": name, "name": name, "dependencies": list })
    }

    fn node(name: &str, dependencies: &[&str]) -> Value {
        let list: Vec<Value> = dependencies
            .iter()
            .map(|name| json!({ "pkg": name, "dep_kinds": [{ "kind": null }] }))
            .collect();
        json!({ "id": name, "deps": list })
    }

    fn check(packages: &[(&str, &[&str])]) -> Vec<String> {
        let all: Vec<Value> = packages.iter().map(|(name, used)| package(name, used)).collect();
        let nodes: Vec<Value> = packages.iter().map(|(name, used)| node(name, used)).collect();
        let members: Vec<&str> =
            packages.iter().map(|(name, _)| *name).filter(|name| !name.starts_with("x-")).collect();
        let metadata = json!({
            "packages": all, "workspace_members": members, "resolve": { "nodes": nodes }
        });
        faults(&metadata).expect("the metadata is complete")
    }

    #[test]
    fn upward_edges_are_faults() {
        assert_eq!(check(&[("motley-engine", &["motley-model"]), ("motley-model", &[])]), [""; 0]);
        assert_eq!(
            check(&[("motley-model", &["motley-engine"]), ("motley-engine", &[])]),
            ["motley-model may not use motley-engine"]
        );
    }

    #[test]
    fn owned_dependencies_stay_with_their_owner() {
        assert_eq!(
            check(&[("motley-engine", &["anyhow"])]),
            ["motley-engine may not depend on anyhow"]
        );
    }

    #[test]
    fn an_impure_crate_is_found_behind_another() {
        assert_eq!(
            check(&[("motley-planner", &["x-between"]), ("x-between", &["x-mio"]), ("x-mio", &[])]),
            [""; 0]
        );
        let packages = [
            package("motley-planner", &["x-between"]),
            package("x-between", &["mio"]),
            package("mio", &[]),
        ];
        let nodes = [node("motley-planner", &["x-between"]), node("x-between", &["mio"])];
        let metadata = json!({
            "packages": packages,
            "workspace_members": ["motley-planner"],
            "resolve": { "nodes": nodes },
        });
        assert_eq!(
            faults(&metadata).expect("the metadata is complete"),
            ["motley-planner decides only, yet mio reaches it"]
        );
    }

    #[test]
    fn a_crate_outside_the_layers_is_a_fault() {
        assert_eq!(
            check(&[("motley-utils", &[])]),
            ["motley-utils is in no layer: add it to xtask/src/layers.rs"]
        );
    }
}
