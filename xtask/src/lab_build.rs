//! `cargo xtask lab` as long as the lab is not compiled in: what it needs takes a minute to compile,
//! which whoever only wants the demo should not wait for.

use std::os::unix::process::CommandExt as _;

use anyhow::{Context, Result};

use crate::cache::Workplace;

/// Builds xtask again, with the lab, and becomes it.
pub(crate) fn run(workplace: &Workplace, arguments: &[String]) -> Result<()> {
    eprintln!("   building the lab, which takes a minute the first time");
    let words = ["run", "--release", "--locked", "--quiet", "--package", "xtask"];
    let mut cargo = workplace.cargo(&words);
    cargo.args(["--features", "lab", "--manifest-path"]).arg(workplace.root.join("Cargo.toml"));
    // The description's path counts from where its reader stands.
    cargo.current_dir(std::env::current_dir()?).args(["--", "lab"]).args(arguments);
    Err(cargo.exec()).context("cannot run cargo")
}
