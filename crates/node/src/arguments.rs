//! The first stage of the command line: words to typed arguments. What they mean together is
//! decided by each command.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::FalseyValueParser;
use clap::{Arg, ArgAction, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::config::{ConfigError, ConfigFile};
use crate::{
    bench, completions, config, doctor, init, join, key, list, load, make_model, nodes, plan,
    profile, ps, pull, rm, run, serve, short_options, show, status, stop, token, tokenize, version,
};

/// Options of commands about lists in the state folder, and of all their words.
#[derive(Debug, clap::Args)]
pub(crate) struct ListOptions {
    /// Folder of keys and lists [default: motley in the user's state folder]
    #[arg(long, value_name = "DIR", global = true)]
    pub(crate) state: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// Printed when nothing is asked.
pub(crate) const WELCOME: &str = "\
motley run MODEL.gguf \"Why is the sky blue?\"   answers; without a question it chats
motley show MODEL.gguf                         tells what a model is and what it needs
motley --help                                  lists everything else
";

/// Lines of help are at most this wide.
const HELP_COLUMNS_MAX: usize = 100;

const AFTER_HELP: &str = "\
Each option has a variable, such as MOTLEY_MODELS for --models, and can stand in a file:
options win over variables, and variables over the file. motley config path says where it is.";

/// Serves language models on the devices you have.
#[derive(Debug, Parser)]
#[command(name = "motley", version, max_term_width = HELP_COLUMNS_MAX, after_help = AFTER_HELP)]
#[command(disable_help_subcommand = true)]
struct Line {
    #[command(subcommand)]
    command: Option<Command>,
}

/// What is to be done.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// No command: show how to begin.
    #[command(skip)]
    Welcome,
    /// Answer a prompt, or chat
    Run(Box<run::Arguments>),
    /// Serve a model to OpenAI's and Ollama's clients
    Serve(Box<serve::Arguments>),
    /// Fetch a model from Hugging Face or an address
    Pull(pull::Arguments),
    /// List the models on this device
    #[command(visible_alias = "ls")]
    List(list::Arguments),
    /// Remove models
    Rm(rm::Arguments),
    /// List the servers that run on this machine
    Ps(ps::Arguments),
    /// Stop a server of this machine
    Stop(stop::Arguments),
    /// Make keys for the API of servers, list or forget them
    Key(key::Arguments),
    /// Serve layers of another device's model
    Join(join::Arguments),
    /// List the devices of the cluster, drain them or put them out
    Nodes(nodes::Arguments),
    /// Show who serves which layers, and how fast
    Status(status::Arguments),
    /// Check what may keep this device from taking part
    Doctor(doctor::Arguments),
    /// Begin a cluster on this device
    Init(init::Arguments),
    /// Invite devices to the cluster, or list and revoke invitations
    Token(token::Arguments),
    /// Show what a model is and what it needs
    Show(show::Arguments),
    /// Plan who computes what, why, and how fast that is
    Plan(Box<plan::Arguments>),
    /// Measure what this device can do, for plans
    Profile(profile::Arguments),
    /// Measure speed, alone or side by side with llama.cpp
    Bench(bench::Arguments),
    /// Measure servers under load, side by side
    Load(load::Arguments),
    /// Turn text into a model's tokens
    Tokenize(tokenize::Arguments),
    /// Make a model of random weights in a given shape
    MakeModel(Box<make_model::Arguments>),
    /// Show settings and where they come from
    Config(config::Arguments),
    /// Print a completion script for a shell
    Completions(completions::Arguments),
    /// Show versions, features and devices
    Version(version::Arguments),
}

/// Why words make no command.
#[derive(Debug)]
pub(crate) enum LineError {
    /// They name none, or help or the version is asked for; it prints itself.
    Words(clap::Error),
    /// The configuration file is wrong.
    Config(ConfigError),
}

impl From<clap::Error> for LineError {
    fn from(error: clap::Error) -> Self {
        Self::Words(error)
    }
}

/// The command that the words of a command line name, with what the configuration file and the
/// environment say.
///
/// # Errors
/// When they name none, or the file says what no option takes.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Command, LineError> {
    let words = short_options::translate(words);
    let plain = definition();
    let file = match config_file(&plain) {
        Ok(file) => file,
        // Help is there for those whose file is wrong, too.
        Err(error) => match plain.clone().try_get_matches_from(words) {
            Err(help) if !help.use_stderr() => return Err(help.into()),
            _ => return Err(LineError::Config(error)),
        },
    };
    let mut definition = config::apply(plain.clone(), &file, None);
    let mut matches = definition.try_get_matches_from_mut(words.clone())?;
    if !file.is_empty() {
        definition = config::apply(plain, &file, Some(&matches));
        matches = definition.try_get_matches_from_mut(words)?;
    }
    let line = Line::from_arg_matches(&matches).map_err(|error| error.format(&mut definition))?;
    Ok(line.command.unwrap_or(Command::Welcome))
}

/// The user's configuration file.
///
/// # Errors
/// When it says what no option of `definition` takes.
pub(crate) fn config_file(definition: &clap::Command) -> Result<ConfigFile, ConfigError> {
    match config::path() {
        Some(path) => ConfigFile::load(&path, definition),
        None => Ok(ConfigFile::default()),
    }
}

/// All commands and options, each option with its variable.
pub(crate) fn definition() -> clap::Command {
    Line::command().mut_subcommands(complete)
}

/// A command with its variables and its help, and all commands below it.
fn complete(command: clap::Command) -> clap::Command {
    // The long form, a paragraph per option, would not fit a screen.
    let help = Arg::new("help").short('h').long("help").help("Print help");
    command
        .max_term_width(HELP_COLUMNS_MAX)
        .mut_args(with_variable)
        .disable_help_flag(true)
        .arg(help.action(ArgAction::HelpShort))
        .mut_subcommands(complete)
}

/// One variable per option: `--top-k` is `MOTLEY_TOP_K`.
fn with_variable(argument: Arg) -> Arg {
    let Some(long) = argument.get_long() else { return argument };
    if matches!(long, "help" | "version") {
        return argument;
    }
    let variable = format!("MOTLEY_{}", long.to_uppercase().replace('-', "_"));
    let is_switch = matches!(argument.get_action(), ArgAction::SetTrue);
    let argument = argument.env(variable).hide_env(true);
    if is_switch { argument.value_parser(FalseyValueParser::new()) } else { argument }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        definition().debug_assert();
    }

    #[test]
    fn options_have_variables_and_switches_take_words_for_no() {
        let definition = definition();
        let run = definition.find_subcommand("run").unwrap();
        let of = |name: &str| {
            let argument = run.get_arguments().find(|argument| argument.get_long() == Some(name));
            argument.unwrap().get_env().unwrap().to_owned()
        };
        assert_eq!(of("top-k"), "MOTLEY_TOP_K");
        assert_eq!(of("models"), "MOTLEY_MODELS");
    }
}
