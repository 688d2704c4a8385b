//! A real vocabulary, brought to the size that a made model needs.

use std::collections::BTreeSet;

use motley_model::{Array, Gguf, GgufWriter, MetadataValue, Value};

use super::MakeError;

const TOKENS_KEY: &str = "tokenizer.ggml.tokens";
const SCORES_KEY: &str = "tokenizer.ggml.scores";
const TYPES_KEY: &str = "tokenizer.ggml.token_type";
const MERGES_KEY: &str = "tokenizer.ggml.merges";

/// llama.cpp's number of a token that no text becomes.
const UNUSED_TOKEN: i32 = 5;

/// Number of tokens in the vocabulary of `donor`.
pub(super) fn token_count(donor: &Gguf<'_>) -> Result<usize, MakeError> {
    let tokens = donor.array(TOKENS_KEY)?.ok_or(MakeError::NoVocabulary)?;
    Ok(tokens.len())
}

/// Writes all keys of the tokeniser, for `size` tokens.
///
/// A shorter vocabulary is filled with unused tokens. A longer one loses its last tokens, and the
/// merges that would lead to them; it stays a vocabulary that can encode every text.
pub(super) fn copy(
    donor: &Gguf<'_>,
    size: usize,
    writer: &mut GgufWriter,
) -> Result<(), MakeError> {
    let count = token_count(donor)?;
    for (key, value) in donor.metadata() {
        if !key.starts_with("tokenizer.") {
            continue;
        }
        if key.ends_with("_token_id") && value.as_u64().is_some_and(|id| id >= size as u64) {
            return Err(MakeError::SpecialTokenCut { key: (*key).to_owned(), size });
        }
        if size == count {
            writer.metadata(key, *value)?;
        } else if *key == MERGES_KEY {
            let rules = possible_merges(donor, value, size);
            writer.metadata(key, MetadataValue::Strings(&rules))?;
        } else {
            resized(key, value, size, writer)?;
        }
    }
    Ok(())
}

fn resized(
    key: &str,
    value: &Value<'_>,
    size: usize,
    writer: &mut GgufWriter,
) -> Result<(), MakeError> {
    match (key, value.as_array()) {
        (TOKENS_KEY, Some(tokens)) => {
            let names: Vec<String> = (0..size).map(|id| format!("[UNUSED_{id}]")).collect();
            let mut texts: Vec<&str> = strings(&tokens).take(size).collect();
            texts.extend(names.iter().skip(texts.len()).map(String::as_str));
            writer.metadata(key, MetadataValue::Strings(&texts))?;
        }
        (SCORES_KEY, Some(scores)) => {
            let mut numbers: Vec<f32> =
                scores.iter().map(|score| score.as_f64().unwrap_or(0.0) as f32).collect();
            numbers.resize(size, 0.0);
            writer.metadata(key, MetadataValue::F32s(&numbers))?;
        }
        (TYPES_KEY, Some(types)) => {
            let mut numbers: Vec<i32> = types
                .iter()
                .map(|kind| kind.as_i64().and_then(|kind| i32::try_from(kind).ok()).unwrap_or(1))
                .collect();
            numbers.resize(size, UNUSED_TOKEN);
            writer.metadata(key, MetadataValue::I32s(&numbers))?;
        }
        _ => {
            writer.metadata(key, *value)?;
        }
    }
    Ok(())
}

/// The rules whose result is among the first `size` tokens.
fn possible_merges<'a>(donor: &Gguf<'a>, rules: &Value<'a>, size: usize) -> Vec<&'a str> {
    let kept: BTreeSet<&str> = donor
        .value(TOKENS_KEY)
        .and_then(|tokens| tokens.as_array())
        .iter()
        .flat_map(strings)
        .take(size)
        .collect();
    let is_possible = |rule: &&str| {
        // The first character may itself be a space.
        let first = rule.chars().next().map_or(0, char::len_utf8);
        rule[first..].split_once(' ').is_some_and(|(left, right)| {
            kept.contains(format!("{}{left}{right}", &rule[..first]).as_str())
        })
    };
    rules.as_array().iter().flat_map(strings).filter(is_possible).collect()
}

fn strings<'a>(array: &Array<'a>) -> impl Iterator<Item = &'a str> {
    array.strings().into_iter().flatten()
}
