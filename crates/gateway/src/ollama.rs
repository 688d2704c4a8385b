//! Ollama's routes for asking and looking. Those that change what is on disk are not offered: they
//! are where its faults were.

mod embed;
mod generate;
mod models;
mod wire;

pub(crate) use embed::embed;
pub(crate) use generate::{chat, generate};
pub(crate) use models::{list_models, running_models, show_model, version};
