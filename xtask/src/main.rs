//! `cargo xtask`: set-up, the demo and every check of this repository.
//!
//! It links nothing of Motley: it starts cargo, apt and pip, watches them, and reports.
//! It must stay quick to compile, because it is built before anything else can be shown.
//! Start at the lists of steps in `demo` and `checks`; both share `setup`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "its output is its purpose")]
#![expect(clippy::disallowed_methods, reason = "it measures time, starts programs, reads files")]

mod cache;
mod checks;
mod clients;
mod demo;
mod demo_ring;
mod fixtures;
#[cfg(feature = "lab")]
mod lab;
#[cfg(not(feature = "lab"))]
mod lab_build;
mod layers;
mod models;
mod process;
mod setup;
mod steps;
mod supply;
mod tidy;
mod vulkan;

use std::process::ExitCode;

use anyhow::{Result, bail};

use cache::Workplace;

const USAGE: &str = "\
cargo xtask demo            set up, build, fetch a small model, let one node and then three answer
cargo xtask test [STEP..]   set up and run every check (or only the named ones)
cargo xtask models [NAME..] fetch models for tests and benchmarks; without names, list them
cargo xtask fixtures [NAME..]
                            make random models of every architecture and number format in the
                            cache; without names, list them
cargo xtask lab FILE [--limit 10m] -- COMMAND..
                            build the cluster that FILE describes (docs/LAB.md), and run COMMAND
                            on its first device; with --check instead, measure the cluster;
                            with `study` instead of FILE, measure how plans keep their promises";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nerror: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let Some((command, rest)) = arguments.split_first() else {
        bail!("no command given; there are:\n{USAGE}");
    };
    match command.as_str() {
        "demo" if rest.is_empty() => demo::run(&Workplace::find()?),
        "test" => checks::run(&Workplace::find()?, rest),
        #[cfg(not(feature = "lab"))]
        "lab" => lab_build::run(&Workplace::find()?, rest),
        #[cfg(feature = "lab")]
        "lab" => lab::run(&Workplace::find()?, rest),
        #[cfg(feature = "lab")]
        _ if command.starts_with("lab-") => lab::hidden(command, rest),
        "models" => models::run(&Workplace::find()?, rest),
        "fixtures" => fixtures::run(&Workplace::find()?, rest),
        "help" | "--help" | "-h" => {
            println!("{USAGE}");
            Ok(())
        }
        _ => bail!("`{}` is not a command; there are:\n{USAGE}", arguments.join(" ")),
    }
}
