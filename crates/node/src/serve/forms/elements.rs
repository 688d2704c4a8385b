//! Forced calls whose arguments are elements: texts stand between tags as they are, so that each
//! argument has a form of its own.

use motley_gateway::{Refusal, ToolDefinition};
use serde_json::{Map, Value as Json};

use super::grammar::{CALLS_IN_A_ROW_MAX, Grammar, quote};
use super::schema;
use crate::serve::calls::{Kind, Markup, Values, kind_of};
use crate::serve::listener::MarkerTokens;

/// Keywords of an object that say no more than what each argument is.
const OF_ARGUMENTS: &[&str] = &[
    "$defs",
    "$schema",
    "additionalProperties",
    "definitions",
    "properties",
    "required",
    "type",
    "x-guidance",
];

/// How elements are written, and the control tokens they are written with.
type Writing<'a> = (&'static Markup, &'a MarkerTokens);

impl Grammar {
    /// Adds the rules of a tool's arguments and returns how a call of it is written.
    ///
    /// # Errors
    /// When the schema of `exact` arguments says something that cannot be forced.
    pub(super) fn add_elements(
        &mut self,
        index: usize,
        tool: &ToolDefinition,
        exact: bool,
        (markup, markers): Writing<'_>,
    ) -> Result<String, Refusal> {
        let arguments = match exact {
            true => self.exact_elements(index, tool, (markup, markers))?,
            false => format!("({})*", self.add_any(index, None, (markup, markers))),
        };
        let [before, after] = markup.name;
        let name = markers.literal(&[before, &tool.name, after].concat());
        Ok(format!("{name} {arguments} SPACE? {}", markers.literal(markup.end)))
    }

    /// Adds what stands behind an opening: a call, or several where they may share the opening.
    pub(super) fn add_block(&mut self, markup: &Markup, markers: &MarkerTokens, several: bool) {
        // A name without a tag before it stands directly behind the opening.
        let space = if markup.name[0].is_empty() { "" } else { "SPACE? " };
        let more = match several && markup.several {
            true => format!(" (SPACE? call){{0,{}}}", CALLS_IN_A_ROW_MAX - 1),
            false => String::new(),
        };
        let closing = match markup.closing {
            "" => String::new(),
            closing => format!(" SPACE? {}", markers.literal(closing)),
        };
        self.add(&format!("block: {space}call{more}{closing}"));
    }

    fn exact_elements(
        &mut self,
        index: usize,
        tool: &ToolDefinition,
        writing: Writing<'_>,
    ) -> Result<String, Refusal> {
        let pointer = format!("/{index}/function/parameters");
        let schema = self.arguments(index, tool, true)?;
        let whole = schema.as_object().cloned().unwrap_or_default();
        if let Some(keyword) =
            whole.keys().find(|keyword| !OF_ARGUMENTS.contains(&keyword.as_str()))
        {
            let problem = "cannot be forced of arguments that the model writes one by one";
            return Err(schema::refuse(&format!("{pointer}/{keyword}"), problem));
        }
        let others = whole.get("additionalProperties").cloned().unwrap_or(Json::Bool(true));
        let required: Vec<&str> = whole
            .get("required")
            .and_then(Json::as_array)
            .map_or_else(Vec::new, |names| names.iter().filter_map(Json::as_str).collect());
        let mut properties =
            whole.get("properties").and_then(Json::as_object).cloned().unwrap_or_default();
        for name in &required {
            properties.entry(*name).or_insert_with(|| others.clone());
        }
        if properties.is_empty() && others != Json::Bool(false) {
            let others = with_definitions(&others, &whole, &pointer)?;
            let schema = Some(&others).filter(|schema| !allows_anything(schema));
            return Ok(format!("({})*", self.add_any(index, schema, writing)));
        }
        let mut elements = Vec::new();
        for (at, (name, property)) in properties.iter().enumerate() {
            let here = format!("{pointer}/properties/{name}");
            if name.is_empty() || name.contains(['<', '>', '"', '\n']) {
                return Err(schema::refuse(&here, "is no name that the model can write"));
            }
            let property = with_definitions(property, &whole, &here)?;
            let element = self.add_element(&format!("{index}_{at}"), name, &property, writing);
            let often = if required.contains(&name.as_str()) { "" } else { "?" };
            elements.push(format!("{element}{often}"));
        }
        Ok(elements.join(" "))
    }

    /// Adds an argument of a known name, and returns the rule's name.
    fn add_element(
        &mut self,
        id: &str,
        name: &str,
        schema: &Json,
        (markup, markers): Writing<'_>,
    ) -> String {
        let kind = kind_of(schema);
        let key = [markup.key[0], name, &markup.key_end(kind)].concat();
        let value = self.add_value(id, schema, (markup, markers));
        self.add(&format!("element{id}: SPACE? {} {value}", markers.literal(&key)));
        format!("element{id}")
    }

    /// Adds an argument of any name, with a value that has this schema or none, and returns the
    /// rule's name.
    fn add_any(
        &mut self,
        index: usize,
        schema: Option<&Json>,
        (markup, markers): Writing<'_>,
    ) -> String {
        let id = format!("{index}_0");
        let key = |kind| {
            let [before, _] = markup.key;
            let (before, end) = (markers.literal(before), markers.literal(&markup.key_end(kind)));
            format!("{before} KEY{id} {end}")
        };
        self.add(&format!("KEY{id}: /[A-Za-z0-9_.-]{{1,64}}/"));
        let keys = match schema {
            Some(schema) => key(kind_of(schema)),
            None if markup.values == Values::Told => {
                format!("({} | {})", key(Kind::Text), key(Kind::Json))
            }
            None => key(Kind::Text),
        };
        let value = match schema {
            Some(schema) => self.add_value(&id, schema, (markup, markers)),
            None => self.add_text(&id, None, (markup, markers)),
        };
        self.add(&format!("element{id}: SPACE? {keys} {value}"));
        format!("element{id}")
    }

    /// Adds a value and returns how it is written, with what stands around it.
    fn add_value(&mut self, id: &str, schema: &Json, (markup, markers): Writing<'_>) -> String {
        if allows_anything(schema) {
            return self.add_text(id, None, (markup, markers));
        }
        let choices = match (schema.get("enum"), schema.get("const")) {
            (Some(Json::Array(choices)), _) => Some(choices.as_slice()),
            (_, constant) => constant.map(std::slice::from_ref),
        };
        let value = match (kind_of(schema), choices) {
            (Kind::Text, None) => return self.add_text(id, Some(schema), (markup, markers)),
            (Kind::Text, Some(choices)) => {
                let choices: Vec<_> =
                    choices.iter().filter_map(Json::as_str).map(literal).collect();
                format!("({})", choices.join(" | "))
            }
            (Kind::Quoted | Kind::Json, _) => format!("%json {schema}"),
        };
        let line = if markup.values == Values::Lines { "\n" } else { "" };
        let after = markers.literal(&[line, markup.value[1]].concat());
        format!("{} {value} {after}", before_value(markup, markers))
    }

    /// Adds a text, of a length that the schema says, and returns how it is written.
    fn add_text(
        &mut self,
        id: &str,
        schema: Option<&Json>,
        (markup, markers): Writing<'_>,
    ) -> String {
        let limit = |name| schema.and_then(|schema| schema.get(name)).and_then(Json::as_u64);
        let (least, most) = (limit("minLength").unwrap_or(0), limit("maxLength"));
        let most = most.map(|most| most.to_string()).unwrap_or_default();
        let before = before_value(markup, markers);
        let (line, end) = (if markup.values == Values::Lines { "\n" } else { "" }, markup.value[1]);
        let plain = markers.plain_beginning(end);
        let rest = markers.literal(&end[plain.len()..]);
        if plain.is_empty() {
            // No text has a control token in it.
            self.add(&format!("TEXT{id}: /(?s:.{{{},{most}}})/", least.max(1)));
            let often = if least == 0 { "?" } else { "" };
            return format!("{before} TEXT{id}{often} {} {rest}", literal(line));
        }
        self.add(&format!(
            "INNER{id}: /(?s:.{{{least},{most}}})/ & ~/(?s:.*){}(?s:.*)/",
            expression(plain)
        ));
        self.add(&format!("TEXT{id}: INNER{id} {}", quote(&[line, plain].concat())));
        format!("{before} TEXT{id} {rest}")
    }
}

/// Whether any value is allowed, so that whatever is written can be read as one.
fn allows_anything(schema: &Json) -> bool {
    schema.as_object().is_some_and(|schema| schema.keys().all(|keyword| keyword == "x-guidance"))
}

/// What stands between a key and its value.
fn before_value(markup: &Markup, markers: &MarkerTokens) -> String {
    let line = if markup.values == Values::Lines { "\n" } else { "" };
    match markup.value[0] {
        "" => literal(line),
        opening => format!("SPACE? {} {}", markers.literal(opening), literal(line)),
    }
}

/// A text as a literal; nothing for none.
fn literal(text: &str) -> String {
    if text.is_empty() { String::new() } else { quote(text) }
}

/// A tag as a regular expression. They have no other characters with a meaning.
fn expression(tag: &str) -> String {
    tag.replace('/', "\\/")
}

/// The schema of one argument, with what it may refer to.
///
/// # Errors
/// When it refers to the whole.
fn with_definitions(
    schema: &Json,
    whole: &Map<String, Json>,
    pointer: &str,
) -> Result<Json, Refusal> {
    let mut own = match schema {
        Json::Object(object) => object.clone(),
        Json::Bool(true) => Map::new(),
        other => return Ok(other.clone()),
    };
    let mut shared = vec!["x-guidance"];
    let mut targets = Vec::new();
    add_references(schema, &mut targets);
    if !targets.is_empty() {
        for name in ["$defs", "definitions"] {
            add_references(whole.get(name).unwrap_or(&Json::Null), &mut targets);
            shared.push(name);
        }
    }
    let is_known =
        |target: &&str| target.starts_with("#/$defs/") || target.starts_with("#/definitions/");
    if !targets.iter().all(is_known) {
        let problem = "a reference to all arguments cannot be followed from one";
        return Err(schema::refuse(pointer, problem));
    }
    for name in shared {
        own.extend(whole.get(name).map(|value| (name.to_owned(), value.clone())));
    }
    Ok(Json::Object(own))
}

/// Appends what a schema refers to.
fn add_references<'a>(schema: &'a Json, targets: &mut Vec<&'a str>) {
    match schema {
        Json::Object(object) => {
            for (keyword, value) in object {
                match value {
                    Json::String(target) if keyword == "$ref" => targets.push(target),
                    _ => add_references(value, targets),
                }
            }
        }
        Json::Array(list) => list.iter().for_each(|schema| add_references(schema, targets)),
        _ => {}
    }
}
