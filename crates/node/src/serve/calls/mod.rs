//! Tool calls within the text of an answer: how a model writes them, and how they are read.
//!
//! `style` knows the ways of writing, `forced` reads objects that a grammar has forced, `scanner`
//! looks for calls in free text, `elements` reads those whose arguments are elements, `span` finds
//! where a JSON value ends.

mod elements;
mod forced;
mod scanner;
mod span;
mod style;
#[cfg(test)]
mod tests;

use motley_gateway::{Content, ToolCall, ToolChoice, ToolUse};

pub(super) use elements::{Kind, Markup, Values, kind_of};
pub(super) use style::{CallStyle, EVERYBODY};

use forced::ForcedCalls;
use scanner::{CallScanner, KnownTool};

/// Calls of one answer that are recognised; what comes after is text.
const CALLS_MAX: u32 = 16;

/// A call by which templates show how they write calls.
pub(super) fn probe() -> ToolCall {
    ToolCall {
        id: "motley123".to_owned(),
        name: "motley_probe".to_owned(),
        arguments: r#"{"probe_key": "probe value"}"#.to_owned(),
    }
}

/// The style of a model whose template writes a call of `probe` as `written`, and has the text
/// `source`. The style is the one in which the call is read back.
pub(super) fn style_of(probe: &ToolCall, written: &[String], source: Option<&str>) -> CallStyle {
    let reads = |style: &CallStyle| written.iter().any(|text| reads_back(*style, probe, text));
    let known = CallStyle::ALL.into_iter().find(reads);
    known.unwrap_or_else(|| CallStyle::of_template(source))
}

fn reads_back(style: CallStyle, probe: &ToolCall, text: &str) -> bool {
    // The styles differ in nothing else.
    if style == CallStyle::Parameters && !text.contains("\"parameters\"") {
        return false;
    }
    let tool = KnownTool::new(&probe.name, false, "");
    let mut scanner = CallScanner::new(style, vec![tool], true);
    let mut contents = Vec::new();
    scanner.push(text, &mut contents);
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
    contents.iter().any(|content| match content {
        Content::CallArguments { text, .. } => json(text) == json(&probe.arguments),
        _ => false,
    })
}

/// Makes content of an answer's text.
#[derive(Debug)]
pub(super) enum AnswerReader {
    /// Nothing but text.
    Text,
    /// Text in which there may be calls.
    Free(CallScanner),
    /// Objects that are calls, and nothing else.
    Forced(ForcedCalls),
}

/// What has been read of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    GoOn,
    /// The call that was to be the only one is complete.
    Complete,
}

impl AnswerReader {
    /// A reader for an answer that may use `tools`.
    pub(super) fn new(tools: Option<&ToolUse>, style: CallStyle) -> Self {
        let Some(tools) = tools else { return Self::Text };
        if tools.choice != ToolChoice::Auto && !style.is_forced_as_written() {
            return Self::Forced(ForcedCalls::new(style));
        }
        let known = tools
            .tools
            .iter()
            .map(|tool| KnownTool::new(&tool.name, tool.strict, &tool.parameters));
        Self::Free(CallScanner::new(style, known.collect(), tools.parallel))
    }

    /// Pieces of content that one piece of text can give at most.
    pub(super) fn contents_max(&self) -> usize {
        match self {
            Self::Text => 1,
            // Before, between and after calls there may be text; a call is two pieces.
            Self::Free(_) | Self::Forced(_) => 3 * CALLS_MAX as usize + 1,
        }
    }

    /// Takes the next piece of text and appends what is known to be content now.
    pub(super) fn push(&mut self, text: &str, contents: &mut Vec<Content>) -> Progress {
        match self {
            Self::Text => {
                add_text(text, contents);
                Progress::GoOn
            }
            Self::Free(scanner) => scanner.push(text, contents),
            Self::Forced(calls) => {
                calls.push(text, contents);
                Progress::GoOn
            }
        }
    }

    /// Appends what was held back, now that nothing more comes.
    pub(super) fn finish(&mut self, contents: &mut Vec<Content>) {
        if let Self::Free(scanner) = self {
            scanner.finish(contents);
        }
    }

    /// Calls that have begun.
    pub(super) fn calls(&self) -> u32 {
        match self {
            Self::Text => 0,
            Self::Free(scanner) => scanner.calls(),
            Self::Forced(calls) => calls.calls(),
        }
    }
}

/// Appends text to the text that stands last, if any does.
fn add_text(text: &str, contents: &mut Vec<Content>) {
    if text.is_empty() {
        return;
    }
    match contents.last_mut() {
        Some(Content::Text(before)) => before.push_str(text),
        _ => contents.push(Content::Text(text.to_owned())),
    }
}
