//! Checks of the vocabulary in a file's metadata, before ggml is given it.

use crate::gguf::{Gguf, MetadataError, ValueType};
use crate::limits;

/// What a file says about its vocabulary, checked so far that a tokeniser can rely on it: there is
/// a score and a type for every token where there are any, merge rules have two sides, and special
/// tokens are in the vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VocabularySummary {
    /// Number of tokens.
    pub token_count: u64,
    /// The kind of tokeniser, such as `gpt2` (byte pairs) or `llama` (sentence pieces).
    pub model: Option<String>,
    /// The kind of splitting before byte pairs are merged.
    pub pre_tokeniser: Option<String>,
    /// The token that begins a text.
    pub beginning_token: Option<u32>,
    /// The token that ends a text.
    pub end_token: Option<u32>,
    /// Whether the file wants the first put before every prompt.
    pub add_beginning_token: Option<bool>,
}

/// Why a vocabulary cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VocabularyError {
    /// A key is missing or has another type.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// No token, or more than any model has.
    #[error("the vocabulary has {count} tokens, allowed are 1 to {}", limits::VOCABULARY_SIZE_MAX)]
    TokenCount {
        /// Number of tokens.
        count: u64,
    },
    /// Fewer scores or types than tokens.
    #[error("metadata key '{key}' has {actual} entries for {tokens} tokens")]
    TooShort {
        /// The key.
        key: &'static str,
        /// Its number of entries.
        actual: usize,
        /// Number of tokens.
        tokens: u64,
    },
    /// A special token that is not in the vocabulary.
    #[error("metadata key '{key}' is {token}, beyond the vocabulary of {tokens} tokens")]
    SpecialToken {
        /// The key.
        key: String,
        /// The token.
        token: i64,
        /// Number of tokens.
        tokens: u64,
    },
    /// A merge rule that does not name two pieces.
    #[error("merge rule {index} of the vocabulary, {rule:?}, does not name two pieces")]
    MergeRule {
        /// Which rule, from zero.
        index: usize,
        /// Its beginning.
        rule: String,
    },
}

const TOKENS_KEY: &str = "tokenizer.ggml.tokens";
const SCORES_KEY: &str = "tokenizer.ggml.scores";
const TYPES_KEY: &str = "tokenizer.ggml.token_type";
const MERGES_KEY: &str = "tokenizer.ggml.merges";

impl VocabularySummary {
    /// Checks the vocabulary of a file, which need not be a model; nothing if it has none.
    ///
    /// # Errors
    ///
    /// [`VocabularyError`] names the key that is wrong.
    pub fn from_file(gguf: &Gguf<'_>) -> Result<Option<Self>, VocabularyError> {
        let Some(array) = gguf.array(TOKENS_KEY)? else { return Ok(None) };
        gguf.strings(TOKENS_KEY)?;
        let token_count = array.len() as u64;
        if !(1..=limits::VOCABULARY_SIZE_MAX).contains(&token_count) {
            return Err(VocabularyError::TokenCount { count: token_count });
        }
        check_per_token(gguf, SCORES_KEY, token_count, &[ValueType::F32, ValueType::I32])?;
        check_per_token(gguf, TYPES_KEY, token_count, &[ValueType::I32, ValueType::U32])?;
        check_special_tokens(gguf, token_count)?;
        check_merges(gguf)?;
        let text = |key| Ok::<_, MetadataError>(gguf.string(key)?.map(str::to_owned));
        // The range of both was checked with the other special tokens.
        let token = |key| Ok::<_, MetadataError>(gguf.unsigned(key)?.map(|token| token as u32));
        Ok(Some(Self {
            token_count,
            model: text("tokenizer.ggml.model")?,
            pre_tokeniser: text("tokenizer.ggml.pre")?,
            beginning_token: token("tokenizer.ggml.bos_token_id")?,
            end_token: token("tokenizer.ggml.eos_token_id")?,
            add_beginning_token: gguf.boolean("tokenizer.ggml.add_bos_token")?,
        }))
    }
}

fn check_per_token(
    gguf: &Gguf<'_>,
    key: &'static str,
    tokens: u64,
    allowed: &[ValueType],
) -> Result<(), VocabularyError> {
    let Some(array) = gguf.array(key)? else { return Ok(()) };
    if !allowed.contains(&array.element_type()) {
        let (key, actual) = (key.to_owned(), array.element_type());
        return Err(MetadataError::WrongElementType { key, expected: "numbers", actual }.into());
    }
    if (array.len() as u64) < tokens {
        return Err(VocabularyError::TooShort { key, actual: array.len(), tokens });
    }
    Ok(())
}

/// Every key whose name ends as that of a special token, so that keys still to be invented are
/// covered. Padding alone may lie beyond: published files do so, and no generation pads.
fn check_special_tokens(gguf: &Gguf<'_>, tokens: u64) -> Result<(), VocabularyError> {
    for (key, value) in gguf.metadata() {
        let special = key.starts_with("tokenizer.ggml.") && key.ends_with("_token_id");
        if !special || *key == "tokenizer.ggml.padding_token_id" {
            continue;
        }
        let Some(token) = value.as_i64() else {
            let (key, actual) = ((*key).to_owned(), value.value_type());
            return Err(MetadataError::WrongType { key, expected: "an integer", actual }.into());
        };
        let known = u64::try_from(token).is_ok_and(|token| token < tokens);
        if !known {
            return Err(VocabularyError::SpecialToken { key: (*key).to_owned(), token, tokens });
        }
    }
    Ok(())
}

/// A rule is two pieces with a space between, of which the first may begin with one. Whether the
/// pieces are tokens is left open: a rule of others never applies.
fn check_merges(gguf: &Gguf<'_>) -> Result<(), VocabularyError> {
    const SHOWN_BYTES_MAX: usize = 40;
    let Some(rules) = gguf.array(MERGES_KEY)? else { return Ok(()) };
    gguf.strings(MERGES_KEY)?;
    for (index, rule) in rules.text_bytes().enumerate() {
        let inner = rule.get(1..rule.len().saturating_sub(1)).unwrap_or(&[]);
        if !inner.contains(&b' ') {
            let shown = rule.get(..SHOWN_BYTES_MAX).unwrap_or(rule);
            let rule = String::from_utf8_lossy(shown).into_owned();
            return Err(VocabularyError::MergeRule { index, rule });
        }
    }
    Ok(())
}
