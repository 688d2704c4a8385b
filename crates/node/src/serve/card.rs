//! What clients are told of a model.

use std::time::UNIX_EPOCH;

use motley_engine::Model;
use motley_gateway::{Abilities, ModelCard};
use motley_model::Gguf;
use sha2::{Digest, Sha256};

use super::thinking;
use crate::prompt::PromptMaker;

/// Hexadecimal digits of a fingerprint.
const FINGERPRINT_DIGITS: usize = 12;

/// The card of `model`, served under `name` with `context_tokens` tokens per slot.
///
/// # Errors
/// When the file cannot be read again.
pub(super) fn card(
    model: &Model,
    prompts: &PromptMaker,
    name: String,
    context_tokens: u32,
) -> anyhow::Result<ModelCard> {
    let directory = model.directory();
    let (hyper, description) = (&directory.hyper, &directory.description);
    let file = motley_ggml::MappedFile::open(&motley_model::split_paths(model.path())[0])?;
    let gguf = Gguf::parse(file.bytes(), file.bytes().len() as u64)?;
    let text = |key: &str| gguf.string(key).ok().flatten().map(str::to_owned);
    let made = std::fs::metadata(model.path())?.modified().ok();
    let created = made.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let header_bytes = usize::try_from(gguf.data_offset())?.min(file.bytes().len());
    let header = &file.bytes()[..header_bytes];
    let digest = digest_of_header(header, &description.file_bytes);
    let fingerprint = &digest[..FINGERPRINT_DIGITS];
    Ok(ModelCard {
        aliases: description.name.clone().filter(|own| *own != name).into_iter().collect(),
        id: name,
        created_unix_s: created.map_or(0, |since| since.as_secs()),
        owned_by: text("general.organization").unwrap_or_else(|| "local".to_owned()),
        architecture: hyper.architecture.to_string(),
        quantisation: description.file_type.unwrap_or(description.dominant_type.name()).to_owned(),
        parameter_count: directory.tensors().map(|tensor| tensor.elements()).sum(),
        weights_bytes: model.file_bytes(),
        context_tokens,
        vocabulary_tokens: u32::try_from(hyper.vocabulary_size)?,
        embedding_length: u32::try_from(hyper.embedding_length)?,
        chat_template: prompts.template_source().map(str::to_owned),
        licence: text("general.license"),
        abilities: Abilities {
            chat: true,
            embeddings: true,
            tools: prompts.abilities().tools,
            reasoning: thinking::is_known(prompts.template_source()),
        },
        system_fingerprint: format!("fp_{}_{fingerprint}", env!("CARGO_PKG_VERSION")),
        digest,
    })
}

/// Names a model without reading all of it: SHA-256 of its header, which lists every tensor, and of
/// the lengths of its files.
fn digest_of_header(header: &[u8], file_bytes: &[u64]) -> String {
    let mut hasher = Sha256::new();
    hasher.update(header);
    for length in file_bytes {
        hasher.update(length.to_le_bytes());
    }
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
