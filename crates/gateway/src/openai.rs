//! OpenAI's routes.

mod chat;
mod completions;
mod embeddings;
mod models;
mod wire;

pub(crate) use chat::chat_completions;
pub(crate) use completions::completions;
pub(crate) use embeddings::{embed_texts, embeddings, read_inputs, shorten};
pub(crate) use models::{list_models, retrieve_model};
pub(crate) use wire::chat_logprobs;
