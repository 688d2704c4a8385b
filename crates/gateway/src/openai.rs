//! OpenAI's routes.

mod chat;
mod completions;
mod embeddings;
mod models;
mod wire;

pub(crate) use chat::chat_completions;
pub(crate) use completions::completions;
pub(crate) use embeddings::embeddings;
pub(crate) use models::{list_models, retrieve_model};
