//! `motley completions`: scripts for shells.

use anyhow::Context as _;
use clap_complete::Shell;

use crate::arguments;
use crate::failure::Failure;
use crate::terminal;

/// Arguments of `motley completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "bash: motley completions bash > \
    ~/.local/share/bash-completion/completions/motley")]
pub(crate) struct Arguments {
    /// The shell
    shell: Shell,
}

pub(crate) fn execute(arguments: &Arguments) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut arguments::definition(), "motley", &mut script);
    let script = String::from_utf8(script).context("the script is no text")?;
    Ok(terminal::print(&script)?)
}
