//! The second stage of the arguments of `motley run`: what the words mean together.

use std::hash::{BuildHasher as _, Hasher as _};
use std::io::{self, IsTerminal as _};
use std::path::PathBuf;

use motley_engine::{SamplingOptions, SamplingParameters, StopMatcher};

use super::arguments::Arguments;
use crate::failure::{Failure, Kind};
use crate::gpus::GpuWish;
use crate::loading::EngineWish;
use crate::pull::{self, HubModel};
use crate::session::AnswerOptions;
use crate::store;
use crate::terminal;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Once(String),
    Chat,
}

/// What `motley run` is to do, free of contradictions.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) path: PathBuf,
    pub(super) ask: Ask,
    pub(super) system: Option<String>,
    pub(super) template: bool,
    pub(super) engine: EngineWish,
    pub(super) answer: AnswerOptions,
    pub(super) verbose: bool,
}

impl Settings {
    /// Joins words, options and what a pipe holds.
    ///
    /// # Errors
    /// When they contradict each other or name nothing that exists.
    pub(super) fn new(arguments: Arguments) -> Result<Self, Failure> {
        let engine = engine_wish(&arguments)?;
        let answer = answer_options(&arguments)?;
        let (model, prompt) = model_and_prompt(&arguments)?;
        let ask = ask(prompt)?;
        let path = match model {
            Wanted::Named(name) => {
                store::resolve(&name, store::folder(arguments.models).as_deref())?
            }
            Wanted::OfHub(model) => pull::of_hub(&model, arguments.models, arguments.offline)?,
        };
        Ok(Self {
            path,
            ask,
            system: arguments.system,
            template: !arguments.no_template,
            engine,
            answer,
            verbose: arguments.verbose,
        })
    }
}

/// A number that nobody chose, for those who gave no seed.
pub(crate) fn random_seed() -> u64 {
    // The standard library keys its hashers with the system's random numbers.
    let keyed = std::hash::RandomState::new().build_hasher().finish();
    // Short enough to be typed again.
    keyed >> 32
}

/// Which model is wanted.
enum Wanted {
    /// A file, or a name in the folder of models.
    Named(String),
    OfHub(HubModel),
}

fn model_and_prompt(arguments: &Arguments) -> Result<(Wanted, Option<String>), Failure> {
    let mut words = arguments.words.iter();
    let model = match (&arguments.model, &arguments.hf_repo) {
        (Some(_), Some(_)) => {
            return Err(Failure::usage("the model is given twice, by --model and by -hf"));
        }
        (None, Some(model)) => Some(Wanted::OfHub(model.clone())),
        (Some(model), None) => Some(Wanted::Named(model.clone())),
        (None, None) => words.next().cloned().map(Wanted::Named),
    };
    let Some(model) = model else {
        return Err(Failure::usage("no model is named")
            .hint("motley run MODEL.gguf \"Why is the sky blue?\""));
    };
    let words: Vec<&str> = words.map(String::as_str).collect();
    let prompt = match (&arguments.prompt, words.is_empty()) {
        (Some(_), false) => {
            return Err(Failure::usage("the prompt is given twice, by --prompt and by words"));
        }
        (Some(prompt), true) => Some(prompt.clone()),
        (None, false) => Some(words.join(" ")),
        (None, true) => None,
    };
    Ok((model, prompt))
}

/// A terminal without a prompt is a chat; a pipe is the prompt, or follows it.
fn ask(prompt: Option<String>) -> Result<Ask, Failure> {
    if io::stdin().is_terminal() {
        return Ok(prompt.map_or(Ask::Chat, Ask::Once));
    }
    let piped = terminal::read_stdin()?;
    let piped = piped.trim_end_matches(['\n', '\r']);
    match (prompt, piped.is_empty()) {
        (Some(prompt), true) => Ok(Ask::Once(prompt)),
        (Some(prompt), false) => Ok(Ask::Once(format!("{prompt}\n\n{piped}"))),
        (None, false) => Ok(Ask::Once(piped.to_owned())),
        (None, true) => Err(Failure::usage("there is no prompt and stdin is empty")
            .hint("give the prompt after the model, or run it on a terminal to chat")),
    }
}

fn engine_wish(arguments: &Arguments) -> Result<EngineWish, Failure> {
    let wish = EngineWish::new(arguments.threads, arguments.batch_size, arguments.ubatch_size, 1)?;
    Ok(EngineWish {
        context_tokens: arguments.context,
        cache: arguments.cache.element(),
        layout: arguments.layout.choice(),
        weights: arguments.weights,
        memory_budget_bytes: arguments.memory,
        gpu: GpuWish { gpu_layers: arguments.gpu_layers, gpu_memory: arguments.gpu_memory },
        ..wish.with_batch_threads(arguments.threads_batch)?
    })
}

fn answer_options(arguments: &Arguments) -> Result<AnswerOptions, Failure> {
    let seed = match arguments.seed {
        None | Some(-1) => random_seed(),
        Some(seed) => {
            u64::try_from(seed).map_err(|_| Failure::usage("--seed must be -1 or more"))?
        }
    };
    let tokens_max = match arguments.predict {
        None | Some(-1) => None,
        Some(count) if count > 0 => Some(usize::try_from(count)?),
        Some(_) => return Err(Failure::usage("--predict must be -1, or 1 or more")),
    };
    let sampling = SamplingOptions {
        temperature: arguments.temp,
        top_k: arguments.top_k,
        top_p: arguments.top_p,
        min_p: arguments.min_p,
        repetition_penalty: arguments.repeat_penalty,
        repetition_window: arguments.repeat_last_n,
        presence_penalty: arguments.presence_penalty,
        frequency_penalty: arguments.frequency_penalty,
        ignore_eos: arguments.ignore_eos,
        ..SamplingOptions::unchanged(seed)
    };
    // Checked here so that a wrong number is told before a model is loaded; the vocabulary does
    // not matter for these fields.
    SamplingParameters::new(sampling.clone(), 1)
        .map_err(|error| Failure::new(Kind::Usage, error))?;
    StopMatcher::new(&arguments.stop).map_err(|error| Failure::new(Kind::Usage, error))?;
    Ok(AnswerOptions { sampling, tokens_max, stop: arguments.stop.clone() })
}
