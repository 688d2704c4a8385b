//! The control tokens of a vocabulary, and where their texts occur.

use std::collections::BTreeSet;
use std::ops::Range;

/// The texts that a tokenizer reads as control tokens when told to parse special tokens.
///
/// List the vocabulary's control (and unknown) tokens. Tokens that the tokenizer always matches,
/// such as runs of blanks added by hand, do not belong here.
#[derive(Debug, Clone, Default)]
pub struct ControlTokens {
    texts: BTreeSet<String>,
    lengths_bytes: BTreeSet<usize>,
    first_characters: BTreeSet<char>,
    marks: BTreeSet<char>,
    words: BTreeSet<String>,
}

impl ControlTokens {
    /// Prepares the list; empty texts are left out.
    pub fn new<S: Into<String>>(texts: impl IntoIterator<Item = S>) -> Self {
        let mut tokens = Self::default();
        for text in texts {
            let text: String = text.into();
            let Some(first) = text.chars().next() else { continue };
            tokens.first_characters.insert(first);
            tokens.lengths_bytes.insert(text.len());
            tokens.marks.extend(text.chars().filter(|c| is_mark(*c)));
            tokens.words.extend(words(&text).map(|word| text[word].to_owned()));
            tokens.texts.insert(text);
        }
        tokens
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Every occurrence in `text`, overlapping ones too, in order of their start.
    pub(super) fn occurrences(&self, text: &str) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        for (start, character) in text.char_indices() {
            if !self.first_characters.contains(&character) {
                continue;
            }
            for length in &self.lengths_bytes {
                let Some(candidate) = text.get(start..start + length) else { continue };
                if self.texts.contains(candidate) {
                    found.push(start..start + length);
                }
            }
        }
        found
    }

    /// Whether any control token occurs in `text`.
    pub(super) fn occurs_in(&self, text: &str) -> bool {
        !self.is_empty() && !self.occurrences(text).is_empty()
    }

    /// Whether `character` is punctuation of some control token.
    pub(super) fn has_mark(&self, character: char) -> bool {
        self.marks.contains(&character)
    }

    /// Whether `word` is a whole word of some control token.
    pub(super) fn has_word(&self, word: &str) -> bool {
        self.words.contains(word)
    }
}

/// Characters that can carry a stand-in (see `origin`) without a template noticing: not white
/// space, which templates trim, nor quotes and backslashes, which they escape, nor letters.
fn is_mark(character: char) -> bool {
    !(is_word_character(character)
        || character.is_whitespace()
        || character.is_control()
        || matches!(character, '"' | '\'' | '\\')
        || character > '\u{ffff}')
}

/// Whether the origin of `character` can be followed through a rendering, at least as part of a
/// word.
pub(super) fn is_tracked(character: char) -> bool {
    is_mark(character) || (is_word_character(character) && character <= '\u{ffff}')
}

fn is_word_character(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Byte ranges of the longest runs of letters, digits and underscores.
pub(super) fn words(text: &str) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut position = 0;
    std::iter::from_fn(move || {
        let start = position + text[position..].find(is_word_character)?;
        let end = text[start..]
            .find(|c| !is_word_character(c))
            .map_or(text.len(), |length| start + length);
        position = end;
        Some(start..end)
    })
}
