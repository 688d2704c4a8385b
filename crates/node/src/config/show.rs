//! `motley config show`: every value, as a file that can be kept.

use std::fmt::Write as _;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches};
use serde_json::{Value as Json, json};

use super::{ConfigFile, is_setting, is_switch};
use crate::arguments;
use crate::failure::{Failure, Kind};
use crate::store;
use crate::terminal;

/// Options whose values are nobody's business.
const SECRETS: [&str; 1] = ["api-key"];

/// Arguments of `motley config`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Print values as a configuration file
    Show(ShowArguments),
    /// Print where the configuration file is looked for
    Path,
}

#[derive(Debug, clap::Args)]
struct ShowArguments {
    /// A command [default: all of them]
    #[arg(value_name = "COMMAND")]
    name: Option<String>,
    /// Say of each value where it comes from
    #[arg(long)]
    origin: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One option of one command.
struct Shown {
    command: String,
    key: String,
    /// Nothing where the option is not set.
    values: Vec<String>,
    is_list: bool,
    is_switch: bool,
    origin: String,
}

pub(crate) fn execute(arguments: &Arguments) -> Result<(), Failure> {
    let show = match &arguments.command {
        Action::Path => {
            let path = super::path().ok_or_else(|| {
                Failure::usage(format!("there is no home folder; {} names a file", super::VARIABLE))
            })?;
            return Ok(terminal::print(&format!("{}\n", path.display()))?);
        }
        Action::Show(show) => show,
    };
    let plain = arguments::definition();
    let file = arguments::config_file(&plain)?;
    let names: Vec<&str> = plain.get_subcommands().map(clap::Command::get_name).collect();
    if let Some(name) = &show.name
        && !names.contains(&name.as_str())
    {
        let error = anyhow::anyhow!("no command is called '{name}'");
        let near = store::near_names(name, names.into_iter());
        return Err(Failure::new(Kind::NotFound, error).hint(match near.first() {
            Some(near) => format!("did you mean {near}?"),
            None => "motley --help lists the commands".to_owned(),
        }));
    }
    let is_wanted = |name: &str| show.name.as_ref().is_none_or(|wanted| wanted == name);
    let mut list = Vec::new();
    for command in plain.get_subcommands().filter(|command| is_wanted(command.get_name())) {
        collect(command.clone(), &mut Vec::new(), &file, &mut list)?;
    }
    if show.json {
        let document: Vec<Json> = list.iter().map(document).collect();
        return Ok(terminal::print_json(&Json::Array(document))?);
    }
    Ok(terminal::print(&text(&list, show.origin))?)
}

/// The options of a command and of those below it.
fn collect(
    command: clap::Command,
    place: &mut Vec<String>,
    file: &ConfigFile,
    list: &mut Vec<Shown>,
) -> Result<(), Failure> {
    place.push(command.get_name().to_owned());
    for below in command.get_subcommands() {
        collect(below.clone(), place, file, list)?;
    }
    let definition = super::with_defaults(command, file, place, None);
    // By themselves, so that nothing must be given.
    let options: Vec<Arg> =
        definition.get_arguments().filter(|argument| is_setting(argument)).map(bare).collect();
    let alone = clap::Command::new("options").no_binary_name(true).disable_help_flag(true);
    let matches = alone.args(&options).try_get_matches_from([""; 0])?;
    for argument in &options {
        list.push(shown(argument, &matches, place, file));
    }
    place.pop();
    Ok(())
}

/// An option with its values and without what it demands of others.
fn bare(argument: &Arg) -> Arg {
    let bare = Arg::new(argument.get_id().clone())
        .long(argument.get_long().unwrap_or_default().to_owned())
        .action(argument.get_action().clone())
        .value_parser(argument.get_value_parser().clone());
    let bare = match argument.get_env() {
        Some(variable) => bare.env(variable.to_owned()),
        None => bare,
    };
    match argument.get_default_values() {
        [] => bare,
        defaults => bare.default_values(defaults.to_vec()),
    }
}

fn shown(argument: &Arg, matches: &ArgMatches, place: &[String], file: &ConfigFile) -> Shown {
    let id = argument.get_id().as_str();
    let key = argument.get_long().unwrap_or_default().to_owned();
    let raw = matches.get_raw(id).into_iter().flatten();
    let mut values: Vec<String> = raw.map(|value| value.to_string_lossy().into_owned()).collect();
    let origin = match matches.value_source(id) {
        Some(ValueSource::EnvVariable) => {
            argument.get_env().unwrap_or_default().to_string_lossy().into_owned()
        }
        Some(_) => match file.find(place, &key) {
            Some(setting) => format!("{}, line {}", file.path.display(), setting.line),
            None => "default".to_owned(),
        },
        None => "not set".to_owned(),
    };
    let is_switch = is_switch(argument);
    if is_switch {
        values = vec![matches.get_flag(id).to_string()];
    }
    if SECRETS.contains(&key.as_str()) {
        values.iter_mut().for_each(|value| "(hidden)".clone_into(value));
    }
    let is_list = matches!(argument.get_action(), clap::ArgAction::Append);
    Shown { command: place.join("."), key, values, is_list, is_switch, origin }
}

fn document(shown: &Shown) -> Json {
    json!({
        "command": shown.command,
        "key": shown.key,
        "values": shown.values,
        "origin": shown.origin,
    })
}

/// A configuration file; what is not set stands in it as a comment.
fn text(list: &[Shown], with_origin: bool) -> String {
    let mut text = String::new();
    let mut last = "";
    for shown in list {
        if shown.command != last {
            let gap = if last.is_empty() { "" } else { "\n" };
            let _ = writeln!(text, "{gap}[{}]", shown.command);
            last = &shown.command;
        }
        let values: Vec<String> =
            shown.values.iter().map(|value| quoted(value, shown.is_switch)).collect();
        let mut line = match (values.as_slice(), shown.is_list) {
            ([], _) => format!("# {} =", shown.key),
            (values, true) => format!("{} = [{}]", shown.key, values.join(", ")),
            (values, false) => format!("{} = {}", shown.key, values.join(",")),
        };
        if SECRETS.contains(&shown.key.as_str()) && !values.is_empty() {
            line.insert_str(0, "# ");
        }
        if with_origin {
            let _ = write!(line, "  # {}", shown.origin);
        }
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// A value as TOML writes it.
fn quoted(value: &str, is_switch: bool) -> String {
    let is_number = value.parse::<i64>().is_ok_and(|number| number.to_string() == value)
        || (value.parse::<f64>().is_ok_and(f64::is_finite)
            && value.bytes().all(|byte| byte.is_ascii_digit() || b"-.".contains(&byte))
            && value.split_once('.').is_some_and(|(whole, part)| {
                !part.is_empty() && whole.trim_start_matches('-').parse::<u64>().is_ok()
            }));
    if is_switch || is_number {
        return value.to_owned();
    }
    toml::Value::String(value.to_owned()).to_string()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// What is shown is a file that says the same again.
    #[test]
    fn the_list_is_a_configuration_file() {
        let plain = arguments::definition();
        let mut list = Vec::new();
        let file = ConfigFile::default();
        for command in plain.get_subcommands() {
            collect(command.clone(), &mut Vec::new(), &file, &mut list).unwrap();
        }
        assert!(list.iter().any(|shown| shown.key == "limit-body"));
        let text = text(&list, true);
        let read = ConfigFile::parse(Path::new("x"), &text, &plain).unwrap();
        for shown in list.iter().filter(|shown| !shown.values.is_empty()) {
            let place: Vec<String> = shown.command.split('.').map(str::to_owned).collect();
            let again = read.find(&place, &shown.key).expect("it is in the file");
            assert_eq!(again.values, shown.values, "{}", shown.key);
        }
    }

    #[test]
    fn values_are_quoted_where_toml_wants_it() {
        for (value, expected) in [
            ("4", "4"),
            ("-1", "-1"),
            ("0.95", "0.95"),
            ("1e5", "\"1e5\""),
            ("007", "\"007\""),
            ("127.0.0.1", "\"127.0.0.1\""),
            ("a\"b", "'a\"b'"),
            ("", "\"\""),
        ] {
            assert_eq!(quoted(value, false), expected);
        }
        assert_eq!(quoted("true", true), "true");
    }
}
