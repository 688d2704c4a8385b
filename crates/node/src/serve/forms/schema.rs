//! Which JSON Schemas can be forced: every keyword is either forced or refused by name.

use motley_gateway::Refusal;
use serde_json::{Map, Value as Json, json};

/// Keywords that llguidance forces, and whose values hold no schemas.
const FORCED: &[&str] = &[
    "const",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "pattern",
    "required",
    "type",
];

/// Keywords whose value is a schema.
const ONE: &[&str] = &["additionalItems", "additionalProperties", "items"];

/// Keywords whose value is a list of schemas.
const LIST: &[&str] = &["allOf", "anyOf", "items", "oneOf", "prefixItems"];

/// Keywords whose value maps names to schemas.
const NAMED: &[&str] = &["$defs", "definitions", "patternProperties", "properties"];

/// Keywords that tell people something and allow or forbid no value.
const ANNOTATIONS: &[&str] = &[
    "$comment",
    "contentEncoding",
    "contentMediaType",
    "default",
    "deprecated",
    "description",
    "examples",
    "readOnly",
    "title",
    "writeOnly",
];

/// Values of `format` that llguidance has an expression for.
const FORMATS: &[&str] =
    &["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"];

/// Versions of JSON Schema whose keywords mean here what they mean there.
const VERSIONS: &[&str] = &[
    "http://json-schema.org/draft-04/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-07/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
];

/// A schema in the form that is compiled: annotations and what forbids nothing are left out, and
/// white space between values is short, because small models are fond of endless white space.
///
/// # Errors
/// With the first keyword that cannot be forced.
pub(super) fn read(text: &str, pointer: &str) -> Result<Json, Refusal> {
    let whole: Json = serde_json::from_str(text)
        .map_err(|error| refuse(pointer, format!("is not JSON: {error}")))?;
    Ok(with_spaces(clean(&whole, pointer, Place::Root)?))
}

/// The schema of arguments of a tool, which are an object whatever else they are.
///
/// # Errors
/// With the first keyword that cannot be forced.
pub(super) fn read_arguments(text: &str, pointer: &str) -> Result<Json, Refusal> {
    let mut schema = read(text, pointer)?;
    match schema.get("type") {
        None => schema["type"] = json!("object"),
        Some(kind) if *kind == json!("object") => {}
        Some(_) => {
            return Err(refuse(&format!("{pointer}/type"), "arguments are an object"));
        }
    }
    Ok(schema)
}

/// Any object.
pub(super) fn any_object() -> Json {
    with_spaces(json!({ "type": "object" }))
}

/// A refusal of what stands at `pointer`.
pub(super) fn refuse(pointer: &str, problem: impl Into<String>) -> Refusal {
    Refusal::Schema { pointer: pointer.to_owned(), problem: problem.into() }
}

/// Where a schema stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Root,
    Below,
}

/// The gateway has bounded depth and number of schemas.
fn clean(schema: &Json, pointer: &str, place: Place) -> Result<Json, Refusal> {
    let object = match schema {
        Json::Object(object) => object,
        // A way to say anything or nothing that leaves room for options beside it.
        Json::Bool(true) => return Ok(json!({})),
        Json::Bool(false) if place == Place::Below => return Ok(json!(false)),
        _ => return Err(refuse(pointer, "allows no value")),
    };
    let mut kept = Map::new();
    for (keyword, value) in object {
        let here = format!("{pointer}/{}", keyword.replace('~', "~0").replace('/', "~1"));
        if let Some(value) = clean_keyword(keyword, value, &here, place)? {
            kept.insert(keyword.clone(), value);
        }
    }
    Ok(Json::Object(kept))
}

/// What is left of a keyword's value, if anything.
fn clean_keyword(
    keyword: &str,
    value: &Json,
    here: &str,
    place: Place,
) -> Result<Option<Json>, Refusal> {
    let kept = match (keyword, value) {
        _ if FORCED.contains(&keyword) => value.clone(),
        (_, Json::Array(list)) if LIST.contains(&keyword) => {
            let below = list.iter().enumerate();
            let cleaned: Result<_, _> = below
                .map(|(at, schema)| clean(schema, &format!("{here}/{at}"), Place::Below))
                .collect();
            Json::Array(cleaned?)
        }
        _ if ONE.contains(&keyword) => clean(value, here, Place::Below)?,
        (_, Json::Object(named)) if NAMED.contains(&keyword) => {
            let mut cleaned = Map::new();
            for (name, schema) in named {
                let escaped = name.replace('~', "~0").replace('/', "~1");
                let schema = clean(schema, &format!("{here}/{escaped}"), Place::Below)?;
                cleaned.insert(name.clone(), schema);
            }
            Json::Object(cleaned)
        }
        ("$ref", Json::String(target)) => {
            let plain = target == "#" || target.starts_with("#/");
            if !plain || target.contains(['~', '%']) {
                return Err(refuse(here, format!("a reference to {target:?} cannot be followed")));
            }
            value.clone()
        }
        ("format", Json::String(name)) if FORMATS.contains(&name.as_str()) => value.clone(),
        ("format", _) => return Err(refuse(here, format!("the format {value} cannot be forced"))),
        ("$schema", Json::String(version)) if place == Place::Root => {
            if !VERSIONS.contains(&version.trim_end_matches('#')) {
                return Err(refuse(here, format!("the version {version:?} is unknown")));
            }
            value.clone()
        }
        ("$id", Json::String(_)) if place == Place::Root => return Ok(None),
        ("uniqueItems", Json::Bool(false)) => return Ok(None),
        ("x-guidance", _) => return Err(refuse(here, "cannot be set from outside")),
        _ if ANNOTATIONS.contains(&keyword) || keyword.starts_with("x-") => return Ok(None),
        _ => return Err(refuse(here, format!("the keyword {keyword:?} cannot be forced"))),
    };
    Ok(Some(kept))
}

/// Between values: one space, or a new line with its indent.
fn with_spaces(mut schema: Json) -> Json {
    schema["x-guidance"] = json!({ "whitespace_pattern": r" |\n[ \t]{0,32}" });
    schema
}
