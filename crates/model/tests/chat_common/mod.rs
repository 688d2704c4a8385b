//! What the tests of chat templates share.

#![allow(dead_code, reason = "each test binary uses a part")]
#![expect(clippy::disallowed_methods, reason = "tests read reference data from files")]

use std::collections::BTreeSet;
use std::path::PathBuf;

use motley_model::{
    ChatInput, ChatTemplate, CivilTime, ControlTokens, RenderedPrompt, TemplateError, TokenTexts,
};
use serde_json::{Map, Value as Json, json};

pub(crate) const TOKENS: TokenTexts<'_> =
    TokenTexts { bos: Some("<BOS>"), eos: Some("<EOS>"), pad: Some("<PAD>"), unk: Some("<UNK>") };
pub(crate) const NOW: CivilTime =
    CivilTime { year: 2025, month: 3, day: 14, hour: 9, minute: 26, second: 53 };

/// The folder of reference data: next to the checkout, or where the environment says.
pub(crate) fn shared_data() -> PathBuf {
    let near = PathBuf::from("../../../shared");
    std::env::var_os("MOTLEY_SHARED").map_or(near, PathBuf::from).join("data")
}

/// Renders messages without tools, with a generation prompt.
pub(crate) fn render(
    template: &ChatTemplate,
    messages: &[Json],
    control: &[&str],
) -> Result<RenderedPrompt, TemplateError> {
    render_with_tools(template, messages, &[], control)
}

pub(crate) fn render_with_tools(
    template: &ChatTemplate,
    messages: &[Json],
    tools: &[Json],
    control: &[&str],
) -> Result<RenderedPrompt, TemplateError> {
    template.render(&ChatInput {
        messages,
        tools,
        add_generation_prompt: true,
        tokens: TOKENS,
        control_tokens: &ControlTokens::new(control.iter().copied()),
        now: NOW,
        variables: &Map::new(),
    })
}

pub(crate) fn user(content: &str) -> Json {
    json!({"role": "user", "content": content})
}

/// What a tokenizer that takes the longest control token first reads from the special segments.
pub(crate) fn read_tokens<S: AsRef<str>>(prompt: &RenderedPrompt, control: &[S]) -> Vec<String> {
    let distinct: BTreeSet<&str> = control.iter().map(AsRef::as_ref).collect();
    let mut read = Vec::new();
    for segment in prompt.segments().iter().filter(|segment| segment.special) {
        let mut rest = segment.text;
        while let Some(next) = rest.chars().next() {
            let token =
                distinct.iter().filter(|token| rest.starts_with(**token)).max_by_key(|t| t.len());
            read.extend(token.map(|token| (*token).to_owned()));
            rest = &rest[token.map_or(next.len_utf8(), |token| token.len())..];
        }
    }
    read
}
