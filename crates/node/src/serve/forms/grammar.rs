//! What is to be forced, in the language of llguidance.

use motley_gateway::{Refusal, ToolChoice, ToolDefinition, ToolUse};
use serde_json::Value as Json;

use super::schema;
use crate::serve::calls::{CallStyle, EVERYBODY};
use crate::serve::listener::MarkerTokens;

/// Calls that a forced answer may make in a row.
pub(super) const CALLS_IN_A_ROW_MAX: usize = 8;

/// A grammar in Lark's notation. Equal texts force the same form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::serve) struct Grammar {
    text: String,
    /// Where the schemas have an `oneOf`, whose parts are only seen to overlap when they are
    /// compiled.
    one_of: Option<String>,
    scope: Scope,
}

/// Which part of an answer a form is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::serve) enum Scope {
    /// All of it.
    Whole,
    /// What follows this text, as often as it occurs.
    Behind(&'static str),
    /// The beginning, and what follows this text, as often as it occurs.
    BeginningAndBehind(&'static str),
    /// The beginning, and what follows a form, where it is an object that begins with one of these
    /// names. `again` is a text behind which an answer as good as begins.
    Beginning { names: Vec<String>, again: Option<&'static str> },
}

/// White space where models are free to put it, and what else may stand in an object of a call.
const PARTS_OF_CALLS: &str = concat!(
    "SPACE: /[ \\t\\r\\n]{1,4}/\n",
    "ID: /\"[A-Za-z0-9_-]{1,32}\"/\n",
    "key: \"\\\"arguments\\\"\" | \"\\\"parameters\\\"\"\n",
    "id: SPACE? \",\" SPACE? \"\\\"id\\\"\" SPACE? \":\" SPACE? ID\n",
);

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
        Self { text: format!("start: %json {schema}\n"), one_of, scope: Scope::Whole }
    }

    /// Calls of tools, written as the model's template writes them.
    ///
    /// # Errors
    /// When the schema of a tool's arguments uses what cannot be forced.
    pub(super) fn of_calls(
        tools: &ToolUse,
        style: CallStyle,
        markers: &MarkerTokens,
    ) -> Result<Self, Refusal> {
        let several = tools.parallel && tools.choice == ToolChoice::Required;
        if style.is_forced_as_written() {
            return Self::of_written_calls(tools, style, markers);
        }
        let repeat = match style.between_calls().filter(|_| several) {
            None => String::new(),
            Some(between) => format!(" ({} call){{0,{}}}", quote(between), CALLS_IN_A_ROW_MAX - 1),
        };
        let text = format!("start: call{repeat}\n");
        let mut grammar = Self { text, one_of: None, scope: Scope::Whole };
        let mut names = Vec::new();
        for (index, tool) in tools.tools.iter().enumerate() {
            if !is_eligible(tool, &tools.choice) {
                continue;
            }
            let arguments = grammar.arguments(index, tool, true)?;
            let (before, after) = style.around_arguments(&tool.name);
            grammar.add(&format!(
                "call{index}: {} %json {arguments} {}",
                quote(&before),
                quote(after)
            ));
            names.push(format!("call{index}"));
        }
        grammar.add(&format!("call: {}", names.join(" | ")));
        Ok(grammar)
    }

    /// Calls of tools, each as the model writes it of its own accord.
    fn of_written_calls(
        tools: &ToolUse,
        style: CallStyle,
        markers: &MarkerTokens,
    ) -> Result<Self, Refusal> {
        let several = tools.parallel && tools.choice == ToolChoice::Required;
        let opening = markers.literal(style.opening().unwrap_or_default());
        let text = PARTS_OF_CALLS.to_owned();
        let mut grammar = Self { text, one_of: None, scope: Scope::Whole };
        let mut ways = Vec::new();
        for (index, tool) in tools.tools.iter().enumerate() {
            if !is_eligible(tool, &tools.choice) {
                continue;
            }
            match style.markup() {
                Some(markup) => {
                    ways.push(grammar.add_elements(index, tool, true, (markup, markers))?)
                }
                None => ways.extend(grammar.add_named(index, tool, true, (style, markers))?),
            }
        }
        grammar.add(&format!("call: {}", ways.join(" | ")));
        let next = match style.markup() {
            Some(markup) => {
                grammar.add_block(markup, markers, several);
                format!("SPACE? {opening} block")
            }
            None => format!("{opening} call"),
        };
        // Where calls begin open, the prompt has the first opening.
        let first =
            if style.begins_open() { "call".to_owned() } else { format!("{opening} block") };
        let more = match several {
            true => format!(" ({next}){{0,{}}}", CALLS_IN_A_ROW_MAX - 1),
            false => String::new(),
        };
        grammar.add(&format!("start: {first}{more}"));
        Ok(grammar)
    }

    /// Calls in free text, whose arguments are to be exact for tools that ask for it. `markers` are
    /// the control tokens that the model writes calls with.
    ///
    /// # Errors
    /// When the schema of a strict tool's arguments uses what cannot be forced.
    pub(super) fn of_strict_calls(
        tools: &ToolUse,
        style: CallStyle,
        markers: &MarkerTokens,
    ) -> Result<Option<Self>, Refusal> {
        if !tools.tools.iter().any(|tool| tool.strict) {
            return Ok(None);
        }
        let scope = match style.opening() {
            Some(opening) if style.begins_open() => Scope::BeginningAndBehind(opening),
            Some(opening) if !style.may_begin_bare() => Scope::Behind(opening),
            again => {
                let names = tools.tools.iter().map(|tool| tool.name.clone()).collect();
                Scope::Beginning { names, again }
            }
        };
        let text = PARTS_OF_CALLS.to_owned();
        let mut grammar = Self { text, one_of: None, scope };
        let (mut objects, mut named) = (Vec::new(), Vec::new());
        for (index, tool) in tools.tools.iter().enumerate() {
            let exact = tool.strict;
            if let Some(markup) = style.markup() {
                named.push(grammar.add_elements(index, tool, exact, (markup, markers))?);
                continue;
            }
            named.extend(grammar.add_named(index, tool, exact, (style, markers))?);
            let name = quote(&quote(&tool.name));
            objects.push(format!("{name} SPACE? \",\" SPACE? key SPACE? \":\" arguments{index}"));
        }
        if let Some(markup) = style.markup() {
            grammar.add(&format!("call: {}", named.join(" | ")));
            grammar.add_block(markup, markers, true);
            grammar.add("start: block");
        } else {
            grammar.add_calls(style, &objects, &named);
        }
        Ok(Some(grammar))
    }

    /// Adds the arguments of a tool and returns the ways of writing a call that has its name
    /// outside the JSON.
    fn add_named(
        &mut self,
        index: usize,
        tool: &ToolDefinition,
        exact: bool,
        (style, markers): (CallStyle, &MarkerTokens),
    ) -> Result<Vec<String>, Refusal> {
        let arguments = self.arguments(index, tool, exact)?;
        self.add(&format!("arguments{index}: SPACE? %json {arguments}"));
        if !style.has_names_outside() {
            return Ok(Vec::new());
        }
        let parts = style.named_parts(&tool.name).into_iter();
        let ways = parts.map(|(before, after)| {
            let (before, after) = (markers.literal(&before), markers.literal(after));
            format!("{before} arguments{index} {after}")
        });
        Ok(ways.collect())
    }

    /// The rules of calls in free text: names and arguments within an object, and outside of one.
    fn add_calls(&mut self, style: CallStyle, objects: &[String], named: &[String]) {
        let mut ways = named.to_vec();
        if style.begins_open() {
            ways.push(quote(&format!("{EVERYBODY}\n")));
        }
        let closing = match style.closing() {
            "" => String::new(),
            closing => format!(" SPACE? {}", quote(closing)),
        };
        if style.has_objects() {
            let id = if style.has_lists() { " id?" } else { "" };
            let objects = objects.join(" | ");
            self.add(&format!(
                "object: \"{{\" SPACE? \"\\\"name\\\"\" SPACE? \":\" SPACE? ({objects}){id} SPACE? \"}}\""
            ));
            let more = CALLS_IN_A_ROW_MAX - 1;
            if style.has_lists() {
                self.add(&format!(
                    "list: \"[\" SPACE? object (SPACE? \",\" SPACE? object){{0,{more}}} SPACE? \"]\""
                ));
                ways.push(format!("SPACE? list{closing}"));
            }
            if style == CallStyle::TaggedList {
                ways.push(format!("SPACE? object (SPACE? object){{0,{more}}}{closing}"));
            } else if !style.has_lists() {
                ways.push(format!("SPACE? object{closing}"));
            }
        }
        self.add(&format!("start: {}", ways.join(" | ")));
    }

    /// The schema of a tool's arguments; any object if they need not be `exact`.
    pub(super) fn arguments(
        &mut self,
        index: usize,
        tool: &ToolDefinition,
        exact: bool,
    ) -> Result<Json, Refusal> {
        if !exact {
            return Ok(schema::any_object());
        }
        let pointer = format!("/{index}/function/parameters");
        let arguments = schema::read_arguments(&tool.parameters, &pointer)?;
        self.one_of = self.one_of.take().or_else(|| find_one_of(&arguments, &pointer));
        Ok(arguments)
    }

    pub(super) fn add(&mut self, rule: &str) {
        self.text.push_str(rule);
        self.text.push('\n');
    }

    /// Whether it is all of an answer.
    pub(in crate::serve) fn is_whole(&self) -> bool {
        self.scope == Scope::Whole
    }

    /// Which part of an answer it forces.
    pub(super) fn scope(&self) -> &Scope {
        &self.scope
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
pub(in crate::serve) fn quote(text: &str) -> String {
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
