//! What a configuration file says, compared with the options there are.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{is_setting, is_switch};
use crate::store;

/// Bytes of a file at most.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Names offered for an unknown one at most.
const OFFERED_MAX: usize = 3;

/// Why a configuration file is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The system refused.
    #[error("cannot read {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// It is far too long to be one.
    #[error("{} has more than {FILE_BYTES_MAX} bytes", path.display())]
    TooLong { path: PathBuf },
    /// It is no TOML.
    #[error("{}, line {line}: {problem}", path.display())]
    Syntax { path: PathBuf, line: usize, problem: String },
    /// No option is called so.
    #[error("{}, line {line}: no option is called '{key}'{}", path.display(), of(command))]
    Unknown { path: PathBuf, line: usize, key: String, command: String, near: Vec<String> },
    /// The option takes something else.
    #[error("{}, line {line}: {key}: {problem}", path.display())]
    Value { path: PathBuf, line: usize, key: String, problem: String },
}

fn of(command: &str) -> String {
    if command.is_empty() { String::new() } else { format!(" of motley {command}") }
}

impl ConfigError {
    /// What to write instead.
    pub(crate) fn hint(&self) -> String {
        match self {
            Self::Unknown { near, .. } if !near.is_empty() => {
                format!("did you mean {}?", near.join(" or "))
            }
            Self::Unknown { command, .. } if !command.is_empty() => {
                format!("motley config show {command} lists its options")
            }
            Self::Unknown { .. } | Self::Value { .. } => {
                "motley config show lists all options and their values".to_owned()
            }
            _ => format!("{} names another file; an empty one sets nothing", super::VARIABLE),
        }
    }
}

/// One option's values in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// The command and those below it; nothing for every command that has the option.
    place: Vec<String>,
    key: String,
    pub(crate) values: Vec<String>,
    pub(crate) line: usize,
}

/// A configuration file that fits the command line. One that is not there sets nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConfigFile {
    pub(crate) path: PathBuf,
    settings: Vec<Setting>,
}

impl ConfigFile {
    /// Reads the file at `path`; a named one must be there.
    ///
    /// # Errors
    /// When it says something that no option of `definition` takes.
    pub(crate) fn load(path: &Path, definition: &clap::Command) -> Result<Self, ConfigError> {
        let failed = |source| ConfigError::Io { path: path.to_owned(), source };
        let facts = match fs::metadata(path) {
            Ok(facts) => facts,
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && std::env::var_os(super::VARIABLE).is_none() =>
            {
                return Ok(Self { path: path.to_owned(), settings: Vec::new() });
            }
            Err(error) => return Err(failed(error)),
        };
        if facts.len() > FILE_BYTES_MAX {
            return Err(ConfigError::TooLong { path: path.to_owned() });
        }
        let text = fs::read_to_string(path).map_err(failed)?;
        Self::parse(path, &text, definition)
    }

    pub(super) fn parse(
        path: &Path,
        text: &str,
        definition: &clap::Command,
    ) -> Result<Self, ConfigError> {
        let table = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
            path: path.to_owned(),
            line: line_of(text, error.span().map_or(0, |span| span.start)),
            problem: error.message().to_owned(),
        })?;
        let mut reader = Reader { path, text, settings: Vec::new() };
        reader.table(table.get_ref(), definition, &mut Vec::new())?;
        Ok(Self { path: path.to_owned(), settings: reader.settings })
    }

    /// Whether it sets nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.settings.is_empty()
    }

    /// What the file says of the option `key` of the command at `place`: its own table first, then
    /// what holds for all commands.
    pub(crate) fn find(&self, place: &[String], key: &str) -> Option<&Setting> {
        let at = |place: &[String]| {
            self.settings.iter().find(|setting| setting.key == key && setting.place == place)
        };
        at(place).or_else(|| at(&[]))
    }
}

struct Reader<'f> {
    path: &'f Path,
    text: &'f str,
    settings: Vec<Setting>,
}

impl Reader<'_> {
    fn table(
        &mut self,
        table: &DeTable<'_>,
        command: &clap::Command,
        place: &mut Vec<String>,
    ) -> Result<(), ConfigError> {
        for (key, value) in table {
            let line = line_of(self.text, key.span().start);
            let key = key.get_ref().as_ref();
            if let DeValue::Table(inner) = value.get_ref()
                && let Some(below) = command.find_subcommand(key)
            {
                place.push(below.get_name().to_owned());
                self.table(inner, below, place)?;
                place.pop();
                continue;
            }
            let Some(argument) = option(command, key, place.is_empty()) else {
                return Err(self.unknown(line, key, command, place));
            };
            let values = self.values(value, argument).map_err(|problem| ConfigError::Value {
                path: self.path.to_owned(),
                line,
                key: key.to_owned(),
                problem,
            })?;
            self.settings.push(Setting { place: place.clone(), key: key.to_owned(), values, line });
        }
        Ok(())
    }

    fn unknown(
        &self,
        line: usize,
        key: &str,
        command: &clap::Command,
        place: &[String],
    ) -> ConfigError {
        let mut known = Vec::new();
        names(command, place.is_empty(), &mut known);
        known.sort();
        known.dedup();
        let near = store::near_names(&key.replace('_', "-"), known.iter().map(String::as_str));
        ConfigError::Unknown {
            path: self.path.to_owned(),
            line,
            key: key.to_owned(),
            command: place.join(" "),
            near: near.into_iter().take(OFFERED_MAX).map(str::to_owned).collect(),
        }
    }

    /// The values as words of a command line, each tried by the option's own parser.
    fn values(&self, value: &Spanned<DeValue<'_>>, argument: &Arg) -> Result<Vec<String>, String> {
        let values = match value.get_ref() {
            DeValue::Array(list) => {
                if !matches!(argument.get_action(), ArgAction::Append) {
                    return Err("it takes one value, not a list".to_owned());
                }
                list.iter().map(|value| word(value.get_ref())).collect::<Result<Vec<_>, _>>()?
            }
            single => vec![word(single)?],
        };
        let is_boolean = matches!(value.get_ref(), DeValue::Boolean(_));
        if is_switch(argument) != is_boolean {
            let wanted = if is_boolean { "a value, not true or false" } else { "true or false" };
            return Err(format!("it takes {wanted}"));
        }
        if !is_boolean {
            values.iter().try_for_each(|value| try_value(argument, value))?;
        }
        Ok(values)
    }
}

/// The option that `key` names; for all commands, that of the first which has it.
fn option<'c>(command: &'c clap::Command, key: &str, everywhere: bool) -> Option<&'c Arg> {
    let own = command
        .get_arguments()
        .find(|argument| is_setting(argument) && argument.get_long() == Some(key));
    if own.is_some() || !everywhere {
        return own;
    }
    command.get_subcommands().find_map(|below| option(below, key, true))
}

/// Names that a table may hold: options, and tables of commands below.
fn names(command: &clap::Command, everywhere: bool, known: &mut Vec<String>) {
    let options = command.get_arguments().filter(|argument| is_setting(argument));
    known.extend(options.filter_map(|argument| argument.get_long().map(str::to_owned)));
    for below in command.get_subcommands() {
        known.push(below.get_name().to_owned());
        if everywhere {
            names(below, true, known);
        }
    }
}

/// A value as a word.
fn word(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().replace('_', "")),
        DeValue::Float(number) => Ok(number.as_str().replace('_', "")),
        DeValue::Boolean(truth) => Ok(truth.to_string()),
        other => Err(format!("it takes no {}", other.type_str())),
    }
}

/// Lets the option's own parser judge a value.
fn try_value(argument: &Arg, value: &str) -> Result<(), String> {
    let long = argument.get_long().unwrap_or_default().to_owned();
    let probe = Arg::new("value")
        .long(long.clone())
        .num_args(1)
        .allow_hyphen_values(true)
        .action(ArgAction::Set)
        .value_parser(argument.get_value_parser().clone());
    let command = clap::Command::new("file").no_binary_name(true).disable_help_flag(true);
    let judged = command.arg(probe).try_get_matches_from([format!("--{long}={value}")]);
    judged.map(drop).map_err(|error| {
        let text = error.to_string();
        let text = text.trim_start_matches("error: ");
        // Its first paragraph; what follows is about command lines.
        let first = text.split("\n\n").next().unwrap_or(text).replace("\n  ", " ");
        first.replace(&format!(" for '--{long} <value>'"), "").trim().to_owned()
    })
}

/// The number of the line in which a byte stands.
fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::arguments;

    fn parse(text: &str) -> Result<ConfigFile, ConfigError> {
        ConfigFile::parse(Path::new("config.toml"), text, &arguments::definition())
    }

    fn check_refused(text: &str, expected: &Expect) {
        let error = parse(text).expect_err("it is refused");
        expected.assert_eq(&format!("{error}\n{}\n", error.hint()));
    }

    #[test]
    fn settings_hold_for_their_command_or_for_all() {
        let file = parse("threads = 2\n[serve]\nport = 8_080\napi-key = [\"a\", \"b\"]\nlan = true\n[run]\nthreads = 1\n").unwrap();
        let find = |place: &str, key: &str| {
            let setting = file.find(&[place.to_owned()], key)?;
            Some((setting.values.join(","), setting.line))
        };
        assert_eq!(find("serve", "threads"), Some(("2".to_owned(), 1)));
        assert_eq!(find("run", "threads"), Some(("1".to_owned(), 7)));
        assert_eq!(find("serve", "port"), Some(("8080".to_owned(), 3)));
        assert_eq!(find("serve", "api-key"), Some(("a,b".to_owned(), 4)));
        assert_eq!(find("serve", "lan"), Some(("true".to_owned(), 5)));
        assert_eq!(find("join", "port"), None);
    }

    #[test]
    fn unknown_names_are_refused_with_the_nearest() {
        check_refused(
            "[serve]\nparalel = 1\n",
            &expect![[r#"
            config.toml, line 2: no option is called 'paralel' of motley serve
            did you mean parallel?
        "#]],
        );
        check_refused(
            "[serve]\nubatch_size = 1\n",
            &expect![[r#"
            config.toml, line 2: no option is called 'ubatch_size' of motley serve
            did you mean ubatch-size or batch-size?
        "#]],
        );
        check_refused(
            "\n[severe]\nport = 1\n",
            &expect![[r#"
            config.toml, line 2: no option is called 'severe'
            did you mean serve?
        "#]],
        );
        check_refused(
            "[serve]\nxyzzy = 1\n",
            &expect![[r#"
            config.toml, line 2: no option is called 'xyzzy' of motley serve
            motley config show serve lists its options
        "#]],
        );
    }

    #[test]
    fn values_are_judged_by_the_options_themselves() {
        check_refused(
            "[serve]\nport = 70_000\n",
            &expect![[r#"
            config.toml, line 2: port: invalid value '70000': 70000 is not in 0..=65535
            motley config show lists all options and their values
        "#]],
        );
        check_refused(
            "[serve]\nport = [1, 2]\n",
            &expect![[r#"
            config.toml, line 2: port: it takes one value, not a list
            motley config show lists all options and their values
        "#]],
        );
        check_refused(
            "[serve]\nlan = \"yes\"\n",
            &expect![[r#"
            config.toml, line 2: lan: it takes true or false
            motley config show lists all options and their values
        "#]],
        );
        check_refused(
            "[serve]\nport = true\n",
            &expect![[r#"
            config.toml, line 2: port: it takes a value, not true or false
            motley config show lists all options and their values
        "#]],
        );
        check_refused(
            "[run]\ntemp = { a = 1 }\n",
            &expect![[r#"
            config.toml, line 2: temp: it takes no table
            motley config show lists all options and their values
        "#]],
        );
        check_refused(
            "[serve]\ncache-type-k = \"q9\"\n",
            &expect![[r#"
            config.toml, line 2: cache-type-k: invalid value 'q9' [possible values: f16, q8_0]
            motley config show lists all options and their values
        "#]],
        );
        let syntax = parse("[serve\nport = 1").unwrap_err();
        assert!(matches!(syntax, ConfigError::Syntax { line: 1, .. }), "{syntax}");
    }
}
