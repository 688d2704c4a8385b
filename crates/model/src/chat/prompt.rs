//! What goes into a chat template, and what comes out.

use std::ops::Range;

use serde_json::{Map, Value as Json};

use super::control::ControlTokens;
use super::date::CivilTime;

/// Everything a chat template may look at.
#[derive(Debug, Clone, Copy)]
pub struct ChatInput<'a> {
    /// The conversation, one object per message in OpenAI's request format: `role`, `content`
    /// (text, a list of parts, or absent), `reasoning_content`, `tool_calls`, `tool_call_id`, …
    /// An absent or null content is
    /// rendered as no text.
    pub messages: &'a [Json],
    /// Tool descriptions in OpenAI's request format; none are offered if it is empty.
    pub tools: &'a [Json],
    /// Whether the prompt ends with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Texts of the vocabulary's special tokens that templates name.
    pub tokens: TokenTexts<'a>,
    /// The texts that the tokenizer reads as control tokens. Without any, the prompt is one
    /// segment that may hold control tokens, whoever wrote them.
    pub control_tokens: &'a ControlTokens,
    /// What time it is, for templates that print the date.
    pub now: CivilTime,
    /// Further variables for the template by name, such as `enable_thinking`.
    pub variables: &'a Map<String, Json>,
}

/// Texts of special tokens; a template sees an absent one as undefined.
#[derive(Debug, Clone, Copy, Default)]
pub struct TokenTexts<'a> {
    /// Beginning of a sequence.
    pub bos: Option<&'a str>,
    /// End of a sequence or turn.
    pub eos: Option<&'a str>,
    /// Padding.
    pub pad: Option<&'a str>,
    /// Unknown text.
    pub unk: Option<&'a str>,
}

/// A prompt, cut where the tokenizer must change the way it reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedPrompt {
    text: String,
    /// Where control tokens must not be read: ordered, disjoint, not empty.
    literal: Vec<Range<usize>>,
}

/// A piece of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptSegment<'a> {
    /// The text, never empty.
    pub text: &'a str,
    /// Whether control tokens in the text are the template's own and are to be read as such.
    /// Where this is false the same characters are a client's words.
    pub special: bool,
}

impl RenderedPrompt {
    pub(super) fn new(text: String, literal: Vec<Range<usize>>) -> Self {
        Self { text, literal }
    }

    /// The whole prompt.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The pieces of the prompt in order; together they are its text. A prompt without a
    /// client's control tokens is one piece, so that it is tokenized as a whole.
    pub fn segments(&self) -> Vec<PromptSegment<'_>> {
        let mut segments = Vec::new();
        let mut position = 0;
        for range in &self.literal {
            segments.push((position..range.start, true));
            segments.push((range.clone(), false));
            position = range.end;
        }
        segments.push((position..self.text.len(), true));
        segments
            .into_iter()
            .filter(|(range, _)| !range.is_empty())
            .map(|(range, special)| PromptSegment { text: &self.text[range], special })
            .collect()
    }
}
