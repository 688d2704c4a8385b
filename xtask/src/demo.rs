//! `cargo xtask demo`: from a bare machine to a real model's answer.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::cache::Workplace;
use crate::demo_ring;
use crate::models::SMOLLM2;
use crate::process::{self, Job};
use crate::setup;
use crate::steps::{self, Outcome, Step};

const PROMPT: &str = "In two sentences: why does ice float on water?";

const STEPS: &[Step] = &[
    Step { name: "set-up", essential: true, run: setup::run },
    Step { name: "build", essential: true, run: build },
    Step { name: "model", essential: true, run: fetch_model },
    Step { name: "answer", essential: false, run: answer },
    Step { name: "ring", essential: false, run: demo_ring::run },
    Step { name: "plan", essential: false, run: plan },
];

/// Runs the demo.
pub(crate) fn run(workplace: &Workplace) -> Result<()> {
    steps::run(STEPS, workplace)
}

/// Builds the program that all of this is about.
pub(crate) fn build(workplace: &Workplace) -> Result<Outcome> {
    eprintln!("   the first build compiles llama.cpp's kernels and takes some minutes");
    let cargo = workplace.cargo(&["build", "--release", "--locked", "--package", "motley"]);
    let hint = "the compiler's first message above tells why";
    let job = Job { label: "building motley", limit: Duration::from_secs(60 * 60), hint };
    process::show(cargo, &job)?;
    Ok(Outcome::Passed)
}

fn fetch_model(workplace: &Workplace) -> Result<Outcome> {
    SMOLLM2.fetch(workplace)?;
    Ok(Outcome::Passed)
}

fn answer(workplace: &Workplace) -> Result<Outcome> {
    eprintln!("   motley run {} {PROMPT:?} --verbose\n", SMOLLM2.path(workplace).display());
    let program = workplace.target.join("release").join("motley");
    let mut motley = Command::new(&program);
    motley.arg("run").arg(SMOLLM2.path(workplace)).args([PROMPT, "--verbose"]);
    let hint = "run the command above by itself to see more";
    let job = Job { label: "motley run", limit: Duration::from_secs(10 * 60), hint };
    process::show(motley, &job)?;
    eprintln!("\n   the program is {}", program.display());
    Ok(Outcome::Passed)
}

/// What four devices at home should do with a model that fits none of them.
fn plan(workplace: &Workplace) -> Result<Outcome> {
    let words = ["plan", "-m", "llama-3-70b-q4_k_m", "--cluster", "prima-home", "--explain"];
    eprintln!("   motley {}\n", words.join(" "));
    let mut motley = Command::new(workplace.target.join("release").join("motley"));
    motley.args(words);
    let hint = "motley plan --list-models --list-clusters shows what else can be planned";
    let job = Job { label: "motley plan", limit: Duration::from_secs(2 * 60), hint };
    process::show(motley, &job)?;
    Ok(Outcome::Passed)
}
