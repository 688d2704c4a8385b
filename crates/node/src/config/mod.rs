//! The configuration file: every option of every command can be set in it.
//!
//! There is no list of settings here: clap's definition of the command line is the list. What the
//! file says becomes the default of an option, so that variables and words win over it.
//! `file` reads it, `show` tells each value and where it comes from.

mod file;
mod show;

use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches};

pub(crate) use file::{ConfigError, ConfigFile};
pub(crate) use show::{Arguments, execute};

/// The name of the variable that names another file.
pub(crate) const VARIABLE: &str = "MOTLEY_CONFIG";

/// Where the file is: where the variable says, else in the user's folder of configurations.
pub(crate) fn path() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE).filter(|named| !named.is_empty()) {
        return Some(named.into());
    }
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    absolute("XDG_CONFIG_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".config")))
        .or_else(|| absolute("APPDATA"))
        .map(|folder| folder.join("motley").join("config.toml"))
}

/// Options that a file may set.
pub(crate) fn is_setting(argument: &clap::Arg) -> bool {
    argument.get_long().is_some_and(|long| !matches!(long, "help" | "version"))
}

/// Whether an option is given without a value.
fn is_switch(argument: &clap::Arg) -> bool {
    matches!(argument.get_action(), ArgAction::SetTrue)
}

/// The definition with the file's values as defaults. `given` are the words and variables by
/// themselves: what contradicts one of them loses.
pub(crate) fn apply(
    command: clap::Command,
    file: &ConfigFile,
    given: Option<&ArgMatches>,
) -> clap::Command {
    with_defaults(command, file, &mut Vec::new(), given)
}

fn with_defaults(
    command: clap::Command,
    file: &ConfigFile,
    place: &mut Vec<String>,
    given: Option<&ArgMatches>,
) -> clap::Command {
    let contradicted = given.map(|given| contradicted(&command, given)).unwrap_or_default();
    let command = command.mut_args(|argument| {
        let long = argument.get_long().unwrap_or_default();
        let is_free = !contradicted.iter().any(|id| id == argument.get_id().as_str());
        match file.find(place, long).filter(|_| is_setting(&argument) && is_free) {
            Some(setting) => argument.required(false).default_values(setting.values.clone()),
            None => argument,
        }
    });
    command.mut_subcommands(|below| {
        let name = below.get_name().to_owned();
        let given = given.and_then(|given| given.subcommand_matches(&name));
        place.push(name);
        let below = with_defaults(below, file, place, given);
        place.pop();
        below
    })
}

/// Options that something given by word or variable excludes.
fn contradicted(command: &clap::Command, given: &ArgMatches) -> Vec<String> {
    let is_given = |argument: &clap::Arg| {
        let id = argument.get_id().as_str();
        let known = given.ids().any(|known| known.as_str() == id);
        known
            && matches!(
                given.value_source(id),
                Some(ValueSource::CommandLine | ValueSource::EnvVariable)
            )
    };
    let id = |argument: &clap::Arg| argument.get_id().as_str().to_owned();
    let mut losing = Vec::new();
    for argument in command.get_arguments() {
        for other in command.get_arg_conflicts_with(argument) {
            if is_given(argument) {
                losing.push(id(other));
            }
            if is_given(other) {
                losing.push(id(argument));
            }
        }
    }
    losing
}
