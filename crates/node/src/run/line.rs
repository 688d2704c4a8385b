//! What a line of the chat means.

use std::path::PathBuf;

use motley_engine::SamplingParameters;

use crate::session::AnswerOptions;

/// What is shown for `/help`.
pub(super) const HELP: &str = "\
/set system TEXT          tell the model something before everything else
/set PARAMETER VALUE      temperature, top_k, top_p, min_p, repeat_penalty, repeat_last_n,
                          presence_penalty, frequency_penalty, seed, num_predict, stop
/set verbose | quiet      print speeds and memory after each answer, or not
/show                     system text, parameters, template and model (/show WHAT for one)
/clear                    forget the conversation
/save FILE                write the conversation as JSON
/bye                      leave, as Ctrl-D does
\"\"\"                       begins and ends text of several lines; Ctrl-C stops an answer
";

/// A line, understood.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Line {
    Nothing,
    /// Text for the model.
    Say(String),
    /// The first line of text that goes on until `"""`.
    Open(String),
    Bye,
    Help,
    Clear,
    Save(PathBuf),
    SetSystem(String),
    SetVerbose(bool),
    SetParameter {
        name: String,
        value: String,
    },
    Show(Vec<Topic>),
}

/// What `/show` can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topic {
    Info,
    System,
    Parameters,
    Template,
}

/// Text of several lines begins and ends with this.
const BLOCK: &str = "\"\"\"";

impl Line {
    /// Understands a line.
    ///
    /// # Errors
    /// What is wrong with a command.
    pub(super) fn parse(line: &str) -> Result<Self, String> {
        let line = line.trim();
        if let Some(rest) = line.strip_prefix(BLOCK) {
            return Ok(match rest.strip_suffix(BLOCK) {
                Some(text) => Self::say(text),
                None => Self::Open(rest.to_owned()),
            });
        }
        match line.strip_prefix('/') {
            Some(command) => Self::command(command),
            None => Ok(Self::say(line)),
        }
    }

    fn say(text: &str) -> Self {
        if text.trim().is_empty() { Self::Nothing } else { Self::Say(text.to_owned()) }
    }

    fn command(command: &str) -> Result<Self, String> {
        let (name, rest) = split_word(command);
        match name {
            "bye" | "exit" | "quit" => Ok(Self::Bye),
            "help" | "?" => Ok(Self::Help),
            "clear" => Ok(Self::Clear),
            "save" if rest.is_empty() => Err("/save needs the name of a file".to_owned()),
            "save" => Ok(Self::Save(rest.into())),
            "set" => Self::set(rest),
            "show" => Self::show(rest),
            _ => Err(format!("/{name} is no command; /help lists them")),
        }
    }

    fn set(rest: &str) -> Result<Self, String> {
        let (name, value) = split_word(rest);
        match name {
            "" => Err("/set needs what to set; /help lists it".to_owned()),
            "verbose" => Ok(Self::SetVerbose(true)),
            "quiet" => Ok(Self::SetVerbose(false)),
            "system" => Ok(Self::SetSystem(value.trim_matches('"').to_owned())),
            // Ollama's fingers write `/set parameter temperature 0.5`.
            "parameter" => Self::set(value),
            _ if value.is_empty() => Err(format!("/set {name} needs a value")),
            _ => Ok(Self::SetParameter { name: name.to_owned(), value: value.to_owned() }),
        }
    }

    fn show(rest: &str) -> Result<Self, String> {
        let topics = [
            ("info", Topic::Info),
            ("system", Topic::System),
            ("parameters", Topic::Parameters),
            ("template", Topic::Template),
        ];
        if rest.is_empty() {
            return Ok(Self::Show(topics.iter().map(|(_, topic)| *topic).collect()));
        }
        match topics.iter().find(|(name, _)| *name == rest) {
            Some((_, topic)) => Ok(Self::Show(vec![*topic])),
            None => Err(format!("/show knows info, system, parameters and template, not '{rest}'")),
        }
    }
}

/// Adds a line to text that began with `"""`; true when it ends it.
pub(super) fn continue_block(text: &mut String, line: &str) -> bool {
    text.push('\n');
    match line.trim_end().strip_suffix(BLOCK) {
        Some(last) => {
            text.push_str(last);
            true
        }
        None => {
            text.push_str(line);
            false
        }
    }
}

/// Changes one parameter.
///
/// # Errors
/// When there is no such parameter or it cannot have the value; nothing is changed then.
pub(super) fn set_parameter(
    options: &mut AnswerOptions,
    name: &str,
    value: &str,
) -> Result<(), String> {
    let mut changed = options.clone();
    let sampling = &mut changed.sampling;
    match name {
        "temperature" | "temp" => sampling.temperature = number(name, value)?,
        "top_k" => sampling.top_k = number(name, value)?,
        "top_p" => sampling.top_p = number(name, value)?,
        "min_p" => sampling.min_p = number(name, value)?,
        "repeat_penalty" => sampling.repetition_penalty = number(name, value)?,
        "repeat_last_n" => sampling.repetition_window = number(name, value)?,
        "presence_penalty" => sampling.presence_penalty = number(name, value)?,
        "frequency_penalty" => sampling.frequency_penalty = number(name, value)?,
        "seed" => sampling.seed = number(name, value)?,
        "num_predict" if value == "-1" => changed.tokens_max = None,
        "num_predict" => changed.tokens_max = Some(number(name, value)?),
        "stop" => changed.stop = value.split_whitespace().map(str::to_owned).collect(),
        _ => return Err(format!("there is no parameter '{name}'; /help lists them")),
    }
    SamplingParameters::new(changed.sampling.clone(), 1).map_err(|error| error.to_string())?;
    *options = changed;
    Ok(())
}

/// The parameters as `/set` takes them.
pub(super) fn parameters(options: &AnswerOptions) -> String {
    let sampling = &options.sampling;
    let mut text = String::new();
    for (name, value) in [
        ("temperature", sampling.temperature.to_string()),
        ("top_k", sampling.top_k.to_string()),
        ("top_p", sampling.top_p.to_string()),
        ("min_p", sampling.min_p.to_string()),
        ("repeat_penalty", sampling.repetition_penalty.to_string()),
        ("repeat_last_n", sampling.repetition_window.to_string()),
        ("presence_penalty", sampling.presence_penalty.to_string()),
        ("frequency_penalty", sampling.frequency_penalty.to_string()),
        ("seed", sampling.seed.to_string()),
        ("num_predict", options.tokens_max.map_or("-1".to_owned(), |count| count.to_string())),
        ("stop", options.stop.join(" ")),
    ] {
        text.push_str(&format!("{name:<19}{value}"));
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

fn number<N: std::str::FromStr>(name: &str, value: &str) -> Result<N, String> {
    value.parse().map_err(|_| format!("{name} cannot be '{value}'"))
}

fn split_word(text: &str) -> (&str, &str) {
    let text = text.trim();
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    (word, rest.trim())
}

#[cfg(test)]
mod tests {
    use motley_engine::SamplingOptions;

    use super::*;

    #[test]
    fn lines_are_text_or_commands() {
        let say = |text: &str| Ok(Line::Say(text.to_owned()));
        let set = |name: &str, value: &str| {
            Ok(Line::SetParameter { name: name.to_owned(), value: value.to_owned() })
        };
        for (line, expected) in [
            ("", Ok(Line::Nothing)),
            ("  hello /bye ", say("hello /bye")),
            ("/bye", Ok(Line::Bye)),
            ("/?", Ok(Line::Help)),
            ("/save a file.json", Ok(Line::Save("a file.json".into()))),
            ("/set system \"You are terse.\"", Ok(Line::SetSystem("You are terse.".to_owned()))),
            ("/set top_k 5", set("top_k", "5")),
            ("/set parameter  top_k  5", set("top_k", "5")),
            ("/set verbose", Ok(Line::SetVerbose(true))),
            ("/show system", Ok(Line::Show(vec![Topic::System]))),
            ("\"\"\"one line\"\"\"", say("one line")),
            ("\"\"\"first", Ok(Line::Open("first".to_owned()))),
            ("/save", Err("/save needs the name of a file".to_owned())),
            ("/fly", Err("/fly is no command; /help lists them".to_owned())),
            ("/set top_k", Err("/set top_k needs a value".to_owned())),
        ] {
            assert_eq!(Line::parse(line), expected, "{line}");
        }
    }

    #[test]
    fn blocks_keep_their_lines() {
        let mut text = "first".to_owned();
        assert!(!continue_block(&mut text, "  second"));
        assert!(!continue_block(&mut text, ""));
        assert!(continue_block(&mut text, "last\"\"\" "));
        assert_eq!(text, "first\n  second\n\nlast");
    }

    #[test]
    fn a_wrong_parameter_changes_nothing() {
        let mut options = AnswerOptions {
            sampling: SamplingOptions::unchanged(7),
            tokens_max: None,
            stop: Vec::new(),
        };
        let before = parameters(&options);
        for (name, value) in [("top_p", "2"), ("top_k", "-1"), ("colour", "red"), ("seed", "x")] {
            assert!(set_parameter(&mut options, name, value).is_err(), "{name}");
        }
        assert_eq!(parameters(&options), before);
        set_parameter(&mut options, "stop", "A B").unwrap();
        set_parameter(&mut options, "num_predict", "12").unwrap();
        let after = parameters(&options);
        assert!(
            after.contains("num_predict        12\n") && after.contains("stop               A B\n")
        );
    }
}
