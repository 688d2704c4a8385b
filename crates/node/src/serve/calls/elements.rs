//! Calls whose arguments are elements of their own, as in XML: how they are written, and a reader of
//! them. A value that the tool's schema says is a text stands there as it is, any other as JSON.

use std::collections::BTreeMap;

use serde_json::Value as Json;
use serde_json::value::RawValue;

use super::scanner::KnownTool;

/// The parts of such calls, between which there may be white space.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::serve) struct Markup {
    /// Tags that may be control tokens; the first opens a call or several.
    pub(in crate::serve) markers: &'static [&'static str],
    /// Around the name of a tool; one without an end ends with its line or at the next tag.
    pub(in crate::serve) name: [&'static str; 2],
    /// Around the key of an argument.
    pub(in crate::serve) key: [&'static str; 2],
    /// Around its value.
    pub(in crate::serve) value: [&'static str; 2],
    /// Ends a call.
    pub(in crate::serve) end: &'static str,
    /// Ends what the first marker opened, if not the call itself does.
    pub(in crate::serve) closing: &'static str,
    /// Whether several calls may stand before the closing.
    pub(in crate::serve) several: bool,
    /// What values and keys look like in particular.
    pub(in crate::serve) values: Values,
}

/// How values stand between their tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) enum Values {
    /// With nothing around them.
    Plain,
    /// On lines of their own.
    Lines,
    /// Behind keys that say whether the value is a text.
    Told,
}

/// What stands between a key and its end where keys tell what values are.
const TOLD: &str = "\" string=\"";

/// What a value is by its schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) enum Kind {
    /// A text that is written as it is.
    Text,
    /// A text that is forced as JSON, because its schema says more than how long it is.
    Quoted,
    /// JSON.
    Json,
}

/// Keywords that say more of a text than can be forced of one that stands between tags.
const BEYOND_TEXT: &[&str] =
    &["pattern", "format", "allOf", "anyOf", "oneOf", "not", "$ref", "if", "then", "else"];

impl Markup {
    /// The end of a key whose value is of a kind.
    pub(in crate::serve) fn key_end(&self, kind: Kind) -> String {
        match self.values {
            Values::Told => format!("{TOLD}{}{}", kind == Kind::Text, self.key[1]),
            Values::Plain | Values::Lines => self.key[1].to_owned(),
        }
    }
}

/// What the schema of an argument says its value is.
pub(in crate::serve) fn kind_of(schema: &Json) -> Kind {
    let choices = match (schema.get("enum"), schema.get("const")) {
        (Some(Json::Array(choices)), None) => Some(choices.as_slice()),
        (None, Some(constant)) => Some(std::slice::from_ref(constant)),
        (None, None) => None,
        _ => return Kind::Json,
    };
    let are_texts = choices.is_some_and(|choices| choices.iter().all(Json::is_string));
    match schema.get("type") {
        Some(kind) if kind != "string" => return Kind::Json,
        None if !are_texts => return Kind::Json,
        _ => {}
    }
    let has = |keyword: &str| schema.get(keyword).is_some();
    let awkward = |choice: &Json| choice.as_str().is_none_or(|text| text.contains(['<', '\n']));
    let awkward = choices
        .is_some_and(|choices| choices.iter().any(awkward) || has("minLength") || has("maxLength"));
    if awkward || BEYOND_TEXT.iter().any(|keyword| has(keyword)) {
        return Kind::Quoted;
    }
    Kind::Text
}

/// What the arguments of a tool are.
#[derive(Clone, Debug)]
pub(super) struct Kinds {
    named: BTreeMap<String, Kind>,
    others: Kind,
}

impl Kinds {
    /// As the schema of a tool's arguments says.
    pub(super) fn of(parameters: &str) -> Self {
        let schema: Json = serde_json::from_str(parameters).unwrap_or_default();
        let properties = schema.get("properties").and_then(Json::as_object);
        let named = properties.into_iter().flatten();
        Self {
            named: named.map(|(key, schema)| (key.clone(), kind_of(schema))).collect(),
            others: schema.get("additionalProperties").map_or(Kind::Json, kind_of),
        }
    }

    /// A value as JSON.
    fn json(&self, key: &str, text: &str, told: Option<Kind>) -> String {
        let kind = told.unwrap_or_else(|| *self.named.get(key).unwrap_or(&self.others));
        let written = match kind {
            Kind::Text => None,
            Kind::Quoted => serde_json::from_str::<String>(text).ok().map(|_| text.trim()),
            Kind::Json => match text.trim() {
                // As Python writes them, which templates do.
                "True" => Some("true"),
                "False" => Some("false"),
                "None" => Some("null"),
                other => serde_json::from_str::<&RawValue>(other).ok().map(RawValue::get),
            },
        };
        written.map_or_else(|| Json::from(text).to_string(), str::to_owned)
    }
}

/// Reads calls behind an opening.
#[derive(Debug)]
pub(super) struct ElementReader {
    markup: &'static Markup,
    place: Place,
    /// What has come of the part that is read now.
    part: String,
    name: String,
    key: String,
    /// The arguments that are complete, as JSON without the brackets.
    arguments: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    BeforeName,
    Name,
    /// Before an argument or the call's end.
    Inside,
    Key,
    BeforeValue,
    Value,
    /// Behind a call.
    After,
}

/// What a character told.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing yet.
    Nothing,
    /// A call is complete.
    Call { name: String, arguments: String },
    /// No more calls can follow.
    Closed,
    /// This is no call, or nothing that follows one.
    Wrong,
}

impl ElementReader {
    pub(super) fn new(markup: &'static Markup) -> Self {
        let mut reader = Self {
            markup,
            place: Place::BeforeName,
            part: String::new(),
            name: String::new(),
            key: String::new(),
            arguments: String::new(),
        };
        reader.go(Place::BeforeName);
        reader
    }

    /// Whether a call is complete, and no other has begun.
    pub(super) fn is_behind_call(&self) -> bool {
        self.place == Place::After
    }

    /// Whether nothing can follow a complete call.
    pub(super) fn is_closed(&self) -> bool {
        self.is_behind_call() && self.markup.closing.is_empty()
    }

    /// Takes the next character.
    pub(super) fn take(&mut self, character: char, tools: &[KnownTool]) -> Found {
        match self.place {
            Place::Name if self.markup.name[1].is_empty() => {
                if self.part.is_empty() && character.is_whitespace() {
                    return Found::Nothing;
                }
                if !(character == '<' || character.is_whitespace()) {
                    self.part.push(character);
                    return Found::Nothing;
                }
                match self.finish_part(tools) {
                    Found::Nothing => self.take_gap(character),
                    found => found,
                }
            }
            Place::Name | Place::Key | Place::Value => {
                self.part.push(character);
                let end = self.end_of_part();
                match self.part.strip_suffix(end).map(str::len) {
                    Some(length) => {
                        self.part.truncate(length);
                        self.finish_part(tools)
                    }
                    None => Found::Nothing,
                }
            }
            _ => self.take_gap(character),
        }
    }

    fn end_of_part(&self) -> &'static str {
        match self.place {
            Place::Name => self.markup.name[1],
            Place::Key => self.markup.key[1],
            _ => self.markup.value[1],
        }
    }

    /// A name, key or value is complete.
    fn finish_part(&mut self, tools: &[KnownTool]) -> Found {
        let part = std::mem::take(&mut self.part);
        match self.place {
            Place::Name => {
                self.name = part;
                self.arguments.clear();
                self.go(Place::Inside);
                if !tools.iter().any(|tool| tool.name == self.name) {
                    return Found::Wrong;
                }
            }
            Place::Key => {
                self.key = part;
                self.go(Place::BeforeValue);
            }
            _ => {
                let tool = tools.iter().find(|tool| tool.name == self.name);
                self.add_argument(&part, tool);
                self.go(Place::Inside);
            }
        }
        Found::Nothing
    }

    fn add_argument(&mut self, part: &str, tool: Option<&KnownTool>) {
        let mut text = part;
        if self.markup.values == Values::Lines {
            text = text.strip_prefix('\n').unwrap_or(text);
            text = text.strip_suffix('\n').unwrap_or(text);
        }
        let told = self.key.split_once(TOLD).filter(|_| self.markup.values == Values::Told);
        let (key, told) = match told {
            Some((key, "true")) => (key, Some(Kind::Text)),
            Some((key, _)) => (key, Some(Kind::Json)),
            None => (self.key.as_str(), None),
        };
        let Some(tool) = tool else { return };
        let value = tool.kinds.json(key, text, told);
        let separator = if self.arguments.is_empty() { "" } else { ", " };
        self.arguments.push_str(&format!("{separator}{}: {value}", Json::from(key)));
    }

    /// Takes a character between parts: white space, or one of a tag.
    fn take_gap(&mut self, character: char) -> Found {
        if self.part.is_empty() && character.is_whitespace() {
            return Found::Nothing;
        }
        self.part.push(character);
        let markup = self.markup;
        let (tag, other) = match self.place {
            Place::BeforeName => (markup.name[0], None),
            Place::Inside => (markup.key[0], Some(markup.end)),
            Place::BeforeValue => (markup.value[0], None),
            _ => (if markup.several { markup.name[0] } else { "" }, Some(markup.closing)),
        };
        if tag == self.part {
            self.go(match self.place {
                Place::BeforeName | Place::After => Place::Name,
                Place::Inside => Place::Key,
                _ => Place::Value,
            });
        } else if other.is_some_and(|other| other == self.part) {
            self.part.clear();
            if self.place == Place::After {
                return Found::Closed;
            }
            self.place = Place::After;
            let arguments = format!("{{{}}}", std::mem::take(&mut self.arguments));
            return Found::Call { name: self.name.clone(), arguments };
        } else if !(tag.starts_with(&self.part)
            || other.is_some_and(|other| other.starts_with(&self.part)))
        {
            return Found::Wrong;
        }
        Found::Nothing
    }

    /// Goes on at a place, or behind the tag that would stand there if it is none.
    fn go(&mut self, place: Place) {
        self.part.clear();
        self.place = match place {
            Place::BeforeName if self.markup.name[0].is_empty() => Place::Name,
            Place::BeforeValue if self.markup.value[0].is_empty() => Place::Value,
            place => place,
        };
    }
}
