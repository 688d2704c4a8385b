//! `motley tokenize`: text to a model's tokens.

use std::fmt::Write as _;

use motley_engine::Model;
use motley_ggml::{Token, Vocabulary};
use serde_json::json;

use crate::failure::Failure;
use crate::loading;
use crate::store;
use crate::terminal;

/// Arguments of `motley tokenize`.
#[derive(Debug, clap::Args)]
#[command(override_usage = "motley tokenize [OPTIONS] -m <MODEL> [TEXT]")]
pub(crate) struct Arguments {
    /// A GGUF file, or the name of a model in the folder of models
    #[arg(short, long, required = true)]
    model: String,
    /// The text; without it stdin is read
    text: Option<String>,
    /// Read texts such as <|im_end|> as control tokens
    #[arg(long)]
    special: bool,
    /// Do not add the begin and end tokens that the model wants
    #[arg(long)]
    no_bos: bool,
    /// Folder of models
    #[arg(long, value_name = "DIR")]
    models: Option<std::path::PathBuf>,
    /// Print JSON, with the text of each token
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(arguments: &Arguments) -> Result<(), Failure> {
    let folder = store::folder(arguments.models.clone());
    let path = store::resolve(&arguments.model, folder.as_deref())?;
    let text = match &arguments.text {
        Some(text) => text.clone(),
        None => terminal::read_stdin()?,
    };
    let model = Model::open(&path).map_err(loading::open_failure)?;
    let vocabulary = model.vocabulary().map_err(loading::open_failure)?;
    let tokens = vocabulary.tokenize(&text, !arguments.no_bos, arguments.special)?;
    if !arguments.json {
        let mut line = String::new();
        for token in &tokens {
            let _ = write!(line, "{}{token}", if line.is_empty() { "" } else { " " });
        }
        line.push('\n');
        return Ok(terminal::print(&line)?);
    }
    let pieces = tokens
        .iter()
        .map(|token| piece(&vocabulary, *token))
        .collect::<Result<Vec<_>, Failure>>()?;
    Ok(terminal::print_json(&json!({ "count": tokens.len(), "tokens": pieces }))?)
}

/// A token with its text, and with its bytes where they are no text by themselves.
fn piece(vocabulary: &Vocabulary, token: Token) -> Result<serde_json::Value, Failure> {
    let mut bytes = Vec::new();
    vocabulary.append_bytes(token, true, &mut bytes)?;
    Ok(match String::from_utf8(bytes) {
        Ok(text) => json!({ "id": token, "piece": text }),
        Err(error) => json!({
            "id": token,
            "piece": String::from_utf8_lossy(error.as_bytes()),
            "bytes": error.as_bytes(),
        }),
    })
}
