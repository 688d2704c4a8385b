//! `cargo xtask test`: every check of this repository, each reported with its time.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::cache::Workplace;
use crate::models::{GEMMA3, QWEN_500M, SMOLLM2};
use crate::process::{self, Job};
use crate::steps::{self, Outcome, Step};
use crate::{layers, setup, supply, tidy, vulkan};

/// Quick checks come first. All cargo calls use one profile and one target folder, so that
/// llama.cpp is compiled once.
const STEPS: &[Step] = &[
    Step { name: "set-up", essential: true, run: setup::run },
    Step { name: "formatting", essential: false, run: formatting },
    Step { name: "tidy", essential: false, run: tidy::run },
    Step { name: "layering", essential: false, run: layers::run },
    Step { name: "models", essential: false, run: fetch_models },
    Step { name: "clippy", essential: false, run: clippy },
    Step { name: "tests", essential: false, run: tests },
    Step { name: "gpu", essential: false, run: vulkan::run },
    Step { name: "clients", essential: false, run: clients },
    Step { name: "doc-tests", essential: false, run: doc_tests },
    Step { name: "docs", essential: false, run: docs },
    Step { name: "fuzz-targets", essential: false, run: fuzz_targets },
    Step { name: "supply-chain", essential: false, run: supply::run },
];

/// What `cargo xtask` leaves out to be there quickly.
const WITH_LAB: &str = "xtask/lab";

/// Runs the checks named, or all of them. Set-up always runs.
pub(crate) fn run(workplace: &Workplace, names: &[String]) -> Result<()> {
    if let Some(unknown) = names.iter().find(|name| STEPS.iter().all(|step| step.name != **name)) {
        let known: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
        bail!("no step is called `{unknown}`; there are {}", known.join(", "));
    }
    let chosen: Vec<Step> = STEPS
        .iter()
        .filter(|step| {
            names.is_empty() || step.essential || names.iter().any(|name| name == step.name)
        })
        .copied()
        .collect();
    steps::run(&chosen, workplace)
}

fn formatting(workplace: &Workplace) -> Result<Outcome> {
    let cargo = workplace.cargo(&["fmt", "--all", "--check"]);
    let hint = "run `cargo fmt --all` (`rustup component add rustfmt` if it is missing)";
    cargo_step(cargo, &Job { label: "formatting", limit: minutes(5), hint })
}

fn fetch_models(workplace: &Workplace) -> Result<Outcome> {
    for model in [&SMOLLM2, &GEMMA3, &QWEN_500M] {
        model.fetch(workplace)?;
    }
    Ok(Outcome::Passed)
}

fn clippy(workplace: &Workplace) -> Result<Outcome> {
    let mut cargo = workplace.cargo(&["clippy", "--workspace", "--all-targets", "--release"]);
    cargo.args(["--locked", "--features", WITH_LAB, "--", "-D", "warnings"]);
    let hint = "mend what it names (`rustup component add clippy` if it is missing)";
    cargo_step(cargo, &Job { label: "clippy", limit: minutes(40), hint })
}

fn tests(workplace: &Workplace) -> Result<Outcome> {
    let mut cargo = workplace.cargo(&["test", "--workspace", "--release", "--locked"]);
    cargo.args(["--all-targets", "--no-fail-fast", "--features", WITH_LAB]);
    give_data(&mut cargo, workplace);
    cargo_step(cargo, &Job { label: "tests", limit: minutes(50), hint: "see the failures above" })
}

/// The program was built for the tests above; named alone, this step builds it.
fn clients(workplace: &Workplace) -> Result<Outcome> {
    crate::demo::build(workplace)?;
    SMOLLM2.fetch(workplace)?;
    crate::clients::run(workplace)
}

fn doc_tests(workplace: &Workplace) -> Result<Outcome> {
    let mut cargo = workplace.cargo(&["test", "--workspace", "--release", "--locked", "--doc"]);
    give_data(&mut cargo, workplace);
    let hint = "see the failures above";
    cargo_step(cargo, &Job { label: "doc tests", limit: minutes(30), hint })
}

fn docs(workplace: &Workplace) -> Result<Outcome> {
    let mut cargo = workplace.cargo(&["doc", "--workspace", "--release", "--locked", "--no-deps"]);
    cargo.args(["--document-private-items", "--features", WITH_LAB]);
    cargo.env("RUSTDOCFLAGS", "-D warnings");
    let hint = "mend the links and examples that rustdoc names";
    cargo_step(cargo, &Job { label: "docs", limit: minutes(20), hint })
}

/// Fuzzing itself needs a nightly compiler; that the targets still compile does not.
fn fuzz_targets(workplace: &Workplace) -> Result<Outcome> {
    let manifest = workplace.root.join("fuzz").join("Cargo.toml");
    if !manifest.exists() {
        return Ok(Outcome::Skipped("there is no fuzz folder"));
    }
    let mut cargo = workplace.cargo(&["check", "--locked", "--manifest-path"]);
    // Another dependency graph in the same folder would unsettle the main one.
    cargo.arg(manifest).env("CARGO_TARGET_DIR", workplace.target.join("fuzz"));
    let hint = "the fuzz targets no longer compile";
    cargo_step(cargo, &Job { label: "fuzz targets", limit: minutes(20), hint })
}

/// Tells the tests where models and the data beside the checkout lie.
fn give_data(cargo: &mut Command, workplace: &Workplace) {
    cargo.env("MOTLEY_MODELS", &workplace.models);
    if let Some(shared) = &workplace.shared {
        cargo.env("MOTLEY_SHARED", shared);
    }
}

fn cargo_step(cargo: Command, job: &Job<'_>) -> Result<Outcome> {
    process::show(cargo, job)?;
    Ok(Outcome::Passed)
}

const fn minutes(count: u64) -> Duration {
    Duration::from_secs(count * 60)
}
