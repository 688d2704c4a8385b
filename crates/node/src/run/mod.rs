//! `motley run`: one answer, or a chat.

mod arguments;
mod chat;
mod line;
mod report;
mod settings;

use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use serde_json::json;

pub(crate) use arguments::{Arguments, CacheTypes, LayoutName, WeightsPlace};
pub(crate) use settings::random_seed;
use settings::{Ask, Settings};

use crate::failure::Failure;
use crate::gpus;
use crate::interrupt::Interrupt;
use crate::loading::{self, Ready};
use crate::prompt::{self, PromptMaker};
use crate::session::{Ending, Given, Session};

/// A loaded model and how it is to be asked.
#[derive(Debug)]
struct Running {
    settings: Settings,
    ready: Ready,
    /// Nothing where the text is continued as it is.
    prompts: Option<PromptMaker>,
    interrupt: Interrupt,
    times: Times,
}

/// When this process began, and how long loading took.
#[derive(Clone, Copy, Debug)]
struct Times {
    started: Instant,
    load: Duration,
}

/// Answers or chats as the arguments say.
pub(crate) fn execute(arguments: Arguments, started: Instant) -> Result<(), Failure> {
    if arguments.list_devices {
        return Ok(gpus::list()?);
    }
    let settings = Settings::new(arguments)?;
    let interrupt = Interrupt::install()?;
    let loading_began = Instant::now();
    let ready = loading::load(&settings.path, &settings.engine)?;
    let prompts = match settings.template {
        true => Some(PromptMaker::new(&ready.model.directory().description, &ready.vocabulary)?),
        false => None,
    };
    let times = Times { started, load: loading_began.elapsed() };
    let running = Running { settings, ready, prompts, interrupt, times };
    match running.settings.ask.clone() {
        Ask::Once(text) => running.answer_once(&text),
        Ask::Chat => chat::run(running),
    }
}

impl Running {
    fn session(&self) -> Session<'_> {
        Session {
            driver: &self.ready.driver,
            vocabulary: &self.ready.vocabulary,
            logits: self.ready.model.directory().hyper.vocabulary_size,
            interrupt: &self.interrupt,
        }
    }

    fn answer_once(&self, text: &str) -> Result<(), Failure> {
        let vocabulary = &self.ready.vocabulary;
        let prompt = match &self.prompts {
            Some(prompts) => {
                let system = self.settings.system.iter();
                let messages: Vec<_> = system
                    .map(|system| json!({ "role": "system", "content": system }))
                    .chain([json!({ "role": "user", "content": text })])
                    .collect();
                prompts.chat(&messages, vocabulary)?
            }
            None => prompt::raw(text, vocabulary)?,
        };
        let given = self.session().answer(prompt, &self.settings.answer, &mut show)?;
        self.end_line(&given)?;
        if self.settings.verbose {
            self.report(&given);
        }
        match given.ending {
            Ending::Interrupted => Err(Failure::interrupted()),
            Ending::Finished(_) | Ending::StopString => Ok(()),
        }
    }

    /// Lets what follows begin on a line of its own.
    fn end_line(&self, given: &Given) -> Result<(), Failure> {
        if !given.text.ends_with('\n') {
            show("\n").map_err(anyhow::Error::from)?;
        }
        Ok(())
    }
}

/// Prints a piece of an answer at once.
fn show(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
