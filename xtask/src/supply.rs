//! Licences, duplicate versions and sources of all dependencies, judged by cargo-deny after
//! `deny.toml`. Its advisory check is left out: that database lies outside the package registries.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::cache::Workplace;
use crate::process::{self, Job};
use crate::steps::Outcome;

const VERSION: &str = "0.20.2";

/// Installs cargo-deny once and runs it.
pub(crate) fn run(workplace: &Workplace) -> Result<Outcome> {
    let folder = workplace.tools.join(format!("cargo-deny-{VERSION}"));
    let program = folder.join("bin").join("cargo-deny");
    if !program.exists() {
        let mut cargo = workplace.cargo(&["install", "cargo-deny", "--version", VERSION]);
        cargo.args(["--locked", "--quiet", "--root"]).arg(&folder);
        // It runs for a second, so its own settings would cost minutes of compiling for nothing.
        cargo
            .env("CARGO_TARGET_DIR", workplace.target.join("tools"))
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
        eprintln!("   installing cargo-deny {VERSION}, once");
        let hint = "is crates.io reachable?";
        let label = "compiling cargo-deny";
        process::show(cargo, &Job { label, limit: Duration::from_secs(30 * 60), hint })?;
    }
    let mut deny = Command::new(program);
    deny.args(["--locked", "check", "--hide-inclusion-graph", "licenses", "bans", "sources"])
        .current_dir(&workplace.root);
    let hint = "deny.toml says what is allowed and why";
    process::show(deny, &Job { label: "cargo-deny", limit: Duration::from_secs(10 * 60), hint })?;
    Ok(Outcome::Passed)
}
