//! What is to be forced, in the language of llguidance.

use std::fmt::Write as _;

use motley_gateway::{Refusal, ToolChoice, ToolDefinition, ToolUse};
use serde_json::Value as Json;

use super::schema;
use crate::serve::calls::CallStyle;

/// Calls that a forced answer may make in a row.
const CALLS_IN_A_ROW_MAX: usize = 8;

/// A grammar in Lark's notation. Equal texts force the same form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::serve) struct Grammar {
    text: String,
    /// Where the schemas have an `oneOf`, whose parts are only seen to overlap when they are
    /// compiled.
    one_of: Option<String>,
    /// The text that the form follows, as often as it occurs; otherwise it is the whole answer.
    opening: Option<&'static str>,
}

impl Grammar {
    /// Any JSON object.
    pub(super) fn of_any_object() -> Self {
        Self::of_json(&schema::any_object(), None)
    }

    /// A value that a schema accepts.
    ///
    /// # Errors
    /// When the schema uses what cannot be forced.
    pub(super) fn of_schema(text: &str) -> Result<Self, Refusal> {
        let schema = schema::read(text, "")?;
        let one_of = find_one_of(&schema, "");
        Ok(Self::of_json(&schema, one_of))
    }

    fn of_json(schema: &Json, one_of: Option<String>) -> Self {
        Self { text: format!("start: %json {schema}\n"), one_of, opening: None }
    }

    /// Calls of tools, written as the model's template writes them.
    ///
    /// # Errors
    /// When the schema of a tool's arguments uses what cannot be forced.
    pub(super) fn of_calls(tools: &ToolUse, style: CallStyle) -> Result<Self, Refusal> {
        let several = tools.parallel && tools.choice == ToolChoice::Required;
        let repeat = match style.between_calls().filter(|_| several) {
            None => String::new(),
            Some(between) => format!(" ({} call){{0,{}}}", quote(between), CALLS_IN_A_ROW_MAX - 1),
        };
        let mut grammar =
            Self { text: format!("start: call{repeat}\n"), one_of: None, opening: None };
        grammar.add_calls(tools, style, |_| true)?;
        Ok(grammar)
    }

    /// Calls in free text whose arguments are to be exact for tools that ask for it. Only for styles
    /// with an opening that does not occur otherwise; elsewhere nothing is forced.
    ///
    /// # Errors
    /// When the schema of a strict tool's arguments uses what cannot be forced.
    pub(super) fn of_strict_calls(
        tools: &ToolUse,
        style: CallStyle,
    ) -> Result<Option<Self>, Refusal> {
        let opening = style.opening().filter(|_| style == CallStyle::Tagged);
        let strict = tools.tools.iter().any(|tool| tool.strict);
        let Some(opening) = opening.filter(|_| strict) else { return Ok(None) };
        let mut grammar =
            Self { text: "start: call\n".to_owned(), one_of: None, opening: Some(opening) };
        grammar.add_calls(tools, style, |tool| tool.strict)?;
        Ok(Some(grammar))
    }

    /// Adds a rule for every tool that may be called. Arguments of tools that are not `exact` are
    /// any object.
    fn add_calls(
        &mut self,
        tools: &ToolUse,
        style: CallStyle,
        exact: impl Fn(&ToolDefinition) -> bool,
    ) -> Result<(), Refusal> {
        let mut names = Vec::new();
        for (index, tool) in tools.tools.iter().enumerate() {
            if !is_eligible(tool, &tools.choice) {
                continue;
            }
            let arguments = if exact(tool) {
                let pointer = format!("/{index}/function/parameters");
                let arguments = schema::read_arguments(&tool.parameters, &pointer)?;
                self.one_of = self.one_of.take().or_else(|| find_one_of(&arguments, &pointer));
                arguments
            } else {
                schema::any_object()
            };
            let (before, after) = style.around_arguments(&tool.name);
            let before = before.strip_prefix(self.opening.unwrap_or_default()).unwrap_or(&before);
            let (before, after) = (quote(before), quote(after));
            // Writing to a string does not fail.
            let _ = writeln!(self.text, "call{index}: {before} %json {arguments} {after}");
            names.push(format!("call{index}"));
        }
        let _ = writeln!(self.text, "call: {}", names.join(" | "));
        Ok(())
    }

    /// The text that the form follows, if it is not the whole answer.
    pub(super) fn opening(&self) -> Option<&'static str> {
        self.opening
    }

    /// The text.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// What to tell of a grammar that does not compile.
    pub(super) fn refusal(&self, problem: &str) -> Refusal {
        let pointer = self.one_of.as_deref().filter(|_| problem.contains("oneOf"));
        match pointer {
            Some(pointer) => schema::refuse(pointer, "parts of oneOf may accept the same value"),
            None => schema::refuse("", problem),
        }
    }
}

fn is_eligible(tool: &ToolDefinition, choice: &ToolChoice) -> bool {
    match choice {
        ToolChoice::Named(name) => tool.name == *name,
        ToolChoice::Auto | ToolChoice::Required => true,
    }
}

/// A text as a literal; JSON's escapes are Lark's.
fn quote(text: &str) -> String {
    Json::from(text).to_string()
}

fn find_one_of(schema: &Json, pointer: &str) -> Option<String> {
    match schema {
        Json::Object(object) => object.iter().find_map(|(keyword, value)| {
            let here = format!("{pointer}/{}", keyword.replace('~', "~0").replace('/', "~1"));
            if keyword == "oneOf" { Some(here) } else { find_one_of(value, &here) }
        }),
        Json::Array(list) => {
            let mut list = list.iter().enumerate();
            list.find_map(|(at, value)| find_one_of(value, &format!("{pointer}/{at}")))
        }
        _ => None,
    }
}
