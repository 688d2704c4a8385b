//! The chat: lines in, answers out, until `/bye`, Ctrl-D, or Ctrl-C at the prompt.

use std::path::Path;

use anyhow::Context as _;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::{Value as Json, json};

use super::line::{self, Line, Topic};
use super::{Running, show};
use crate::driver::FinishReason;
use crate::failure::{Failure, Kind, one_line};
use crate::prompt;
use crate::session::{Ending, Given};
use crate::terminal::{bytes, note};

/// Lines that can be called back.
const HISTORY_LINES_MAX: usize = 1000;

/// A conversation that goes on.
struct Chat {
    running: Running,
    editor: DefaultEditor,
    /// User and assistant in turn; the system's text is added when a prompt is made.
    messages: Vec<Json>,
}

/// Chats until the user leaves.
pub(super) fn run(running: Running) -> Result<(), Failure> {
    let mut editor = DefaultEditor::new().context("cannot edit lines on this terminal")?;
    rustyline::history::History::set_max_len(editor.history_mut(), HISTORY_LINES_MAX)
        .context("cannot keep a history")?;
    let mut chat = Chat { running, editor, messages: Vec::new() };
    note("/help lists commands, Ctrl-D leaves\n");
    while let Some(line) = chat.read()? {
        if !chat.obey(line)? {
            break;
        }
    }
    Ok(())
}

impl Chat {
    /// The next line that means something; nothing at the end.
    fn read(&mut self) -> Result<Option<Line>, Failure> {
        let Some(text) = self.read_line(">>> ")? else { return Ok(None) };
        match Line::parse(&text) {
            Ok(Line::Open(mut block)) => loop {
                let Some(next) = self.read_line("... ")? else { return Ok(None) };
                if line::continue_block(&mut block, &next) {
                    return Ok(Some(Line::Say(block)));
                }
            },
            Ok(line) => Ok(Some(line)),
            Err(message) => {
                note(&format!("{message}\n"));
                Ok(Some(Line::Nothing))
            }
        }
    }

    fn read_line(&mut self, prompt: &str) -> Result<Option<String>, Failure> {
        match self.editor.readline(prompt) {
            Ok(line) => {
                if !line.trim().is_empty() {
                    let _ = self.editor.add_history_entry(line.as_str());
                }
                Ok(Some(line))
            }
            Err(ReadlineError::Eof) => Ok(None),
            Err(ReadlineError::Interrupted) => Err(Failure::interrupted()),
            Err(error) => Err(anyhow::Error::from(error).context("cannot read a line").into()),
        }
    }

    /// Does what a line says; false to leave.
    fn obey(&mut self, line: Line) -> Result<bool, Failure> {
        match line {
            Line::Nothing | Line::Open(_) => {}
            Line::Bye => return Ok(false),
            Line::Help => note(line::HELP),
            Line::Clear => self.messages.clear(),
            Line::Save(path) => match self.save(&path) {
                Ok(()) => note(&format!("saved to {}\n", path.display())),
                Err(error) => note(&format!("{error:#}\n")),
            },
            Line::SetSystem(text) => {
                self.running.settings.system = Some(text).filter(|text| !text.is_empty());
            }
            Line::SetVerbose(verbose) => self.running.settings.verbose = verbose,
            Line::SetParameter { name, value } => {
                let options = &mut self.running.settings.answer;
                if let Err(message) = line::set_parameter(options, &name, &value) {
                    note(&format!("{message}\n"));
                }
            }
            Line::Show(topics) => topics.into_iter().for_each(|topic| note(&self.topic(topic))),
            Line::Say(text) => self.say(text)?,
        }
        Ok(true)
    }

    /// Answers a message. What is refused is told and forgotten; the chat goes on.
    fn say(&mut self, text: String) -> Result<(), Failure> {
        self.messages.push(json!({ "role": "user", "content": text }));
        let answered = self.tokens(&text).and_then(|prompt| {
            self.running.session().answer(prompt, &self.running.settings.answer, &mut show)
        });
        match answered {
            Ok(given) => self.conclude(given),
            Err(failure) if matches!(failure.kind, Kind::Refused | Kind::Usage) => {
                self.messages.pop();
                note(&failure.report());
                if self.messages.len() > 1 {
                    note("hint: /clear forgets the conversation so far\n");
                }
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    fn tokens(&self, text: &str) -> Result<Vec<motley_ggml::Token>, Failure> {
        let vocabulary = &self.running.ready.vocabulary;
        let Some(prompts) = &self.running.prompts else {
            return Ok(prompt::raw(text, vocabulary)?);
        };
        let system = self.running.settings.system.iter();
        let messages: Vec<Json> = system
            .map(|system| json!({ "role": "system", "content": system }))
            .chain(self.messages.iter().cloned())
            .collect();
        Ok(prompts.chat(&messages, vocabulary)?)
    }

    fn conclude(&mut self, given: Given) -> Result<(), Failure> {
        self.running.end_line(&given)?;
        match given.ending {
            Ending::Interrupted => note("(stopped)\n"),
            Ending::Finished(FinishReason::ContextFull) => {
                note("(the context is full; /clear forgets the conversation)\n");
            }
            Ending::Finished(FinishReason::Length) => note("(cut off by num_predict)\n"),
            Ending::Finished(FinishReason::End | FinishReason::Stop) | Ending::StopString => {}
        }
        if self.running.settings.verbose {
            self.running.report(&given);
        }
        self.messages.push(json!({ "role": "assistant", "content": given.text }));
        show("\n").map_err(anyhow::Error::from)?;
        Ok(())
    }

    fn save(&self, path: &Path) -> anyhow::Result<()> {
        let settings = &self.running.settings;
        let document = json!({
            "model": settings.path,
            "system": settings.system,
            "messages": self.messages,
        });
        std::fs::write(path, format!("{document:#}\n"))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    fn topic(&self, topic: Topic) -> String {
        let Running { settings, ready, prompts, .. } = &self.running;
        match topic {
            Topic::Info => {
                let directory = ready.model.directory();
                let name = directory.description.name.as_deref().unwrap_or("without a name");
                format!(
                    "model      {}, {}, {} layers, {}\ncontext    {} tokens\n",
                    one_line(name),
                    directory.hyper.architecture,
                    directory.hyper.block_count,
                    bytes(ready.model.file_bytes()),
                    ready.facts.context_tokens,
                )
            }
            Topic::System => match &settings.system {
                Some(system) => format!("system     {}\n", one_line(system)),
                None => "system     (none)\n".to_owned(),
            },
            Topic::Parameters => line::parameters(&settings.answer),
            Topic::Template => match prompts.as_ref().map(|prompts| prompts.template_source()) {
                Some(Some(source)) => format!("{}\n", source.replace('\x1b', "\\e").trim_end()),
                Some(None) => "template   ChatML, because the file has none\n".to_owned(),
                None => "template   (none: the text is continued as it is)\n".to_owned(),
            },
        }
    }
}
