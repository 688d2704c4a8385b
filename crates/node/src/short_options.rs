//! Two-letter short options, which fingers know and clap does not: translated to long ones before
//! anything is parsed.

use std::ffi::{OsStr, OsString};

/// Each two-letter option and the long one it stands for.
const TABLE: &[(&str, &str)] = &[
    ("-tb", "--threads-batch"),
    ("-ub", "--ubatch-size"),
    ("-np", "--parallel"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-ngl", "--gpu-layers"),
    ("-fa", "--flash-attn"),
    ("-hf", "--hf-repo"),
    ("-lv", "--log-verbosity"),
    ("-cb", "--cont-batching"),
];

/// Replaces two-letter options, with or without `=VALUE`, by long ones. What follows `--` is not
/// an option.
pub(crate) fn translate(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut options = true;
    arguments
        .into_iter()
        .map(|argument| {
            options &= argument != OsStr::new("--");
            if options { translate_one(argument) } else { argument }
        })
        .collect()
}

/// The two-letter form of a long option, for help and messages.
#[cfg(test)]
fn short_of(long: &str) -> Option<&'static str> {
    TABLE.iter().find(|(_, known)| *known == long).map(|(short, _)| *short)
}

fn translate_one(argument: OsString) -> OsString {
    let Some(text) = argument.to_str() else { return argument };
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    let Some((_, long)) = TABLE.iter().find(|(short, _)| *short == name) else { return argument };
    match value {
        Some(value) => format!("{long}={value}").into(),
        None => (*long).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(line: &str) -> String {
        let arguments = line.split(' ').map(OsString::from);
        let words: Vec<String> =
            translate(arguments).into_iter().map(|word| word.into_string().unwrap()).collect();
        words.join(" ")
    }

    #[test]
    fn every_entry_is_translated_bare_and_with_a_value() {
        for (short, long) in TABLE {
            assert_eq!(translated(&format!("run a {short} 8")), format!("run a {long} 8"));
            assert_eq!(translated(&format!("run a {short}=8")), format!("run a {long}=8"));
            assert_eq!(short_of(long), Some(*short));
        }
    }

    #[test]
    fn nothing_else_is_touched() {
        for line in ["-t 8 -c 2048", "--ubatch-size 3", "-tbx 3", "run a -- -tb 3", "-n=5 -"] {
            assert_eq!(translated(line), line);
        }
    }

    #[test]
    fn entries_are_distinct_and_longer_than_what_clap_can_do() {
        for (index, (short, long)) in TABLE.iter().enumerate() {
            assert!(short.len() > 2 && short.starts_with('-') && long.starts_with("--"));
            assert!(TABLE[..index].iter().all(|(other, known)| other != short && known != long));
        }
    }
}
