//! OpenAI's routes.

mod chat;
mod completions;
mod embeddings;
mod models;
mod wire;

#[cfg(test)]
pub(crate) use chat::CHAT_FIELDS;
pub(crate) use chat::chat_completions;
#[cfg(test)]
pub(crate) use completions::COMPLETION_FIELDS;
pub(crate) use completions::completions;
#[cfg(test)]
pub(crate) use embeddings::EMBEDDING_FIELDS;
pub(crate) use embeddings::{embed_texts, embeddings, read_inputs, shorten};
pub(crate) use models::{list_models, retrieve_model};
pub(crate) use wire::chat_logprobs;
