//! What a JSON Schema from outside may look like before anyone compiles it.
//!
//! A schema is walked once into a flat list of its subschemas. On that list, references are
//! resolved, loops that never reach a value are found, and the size after expanding every reference
//! is computed, all without building anything larger than the list.

use std::collections::BTreeMap;

use regex::RegexBuilder;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::limits::SchemaLimits;

/// Checks `schema`, found at `param`, and returns it as text with its members in the client's order.
pub(crate) fn check_schema(
    schema: &Value,
    param: &str,
    limits: &SchemaLimits,
) -> Result<String, ApiError> {
    let text = schema.to_string();
    let outcome = if text.len() > limits.bytes {
        Err(Problem::at("", format!("the schema is larger than {} bytes", limits.bytes)))
    } else {
        Walk::of(schema, limits).and_then(|walk| walk.check_references())
    };
    match outcome {
        Ok(()) => Ok(text),
        Err(Problem { pointer, problem }) if pointer.is_empty() => {
            Err(ApiError::invalid(param, format!("is not a usable JSON Schema: {problem}")))
        }
        Err(Problem { pointer, problem }) => Err(ApiError::invalid(
            param,
            format!("is not a usable JSON Schema: at {pointer}: {problem}"),
        )),
    }
}

/// Keywords whose value is a schema for the same value as the one they stand in.
const SAME_VALUE: [&str; 4] = ["not", "if", "then", "else"];
/// Keywords whose value is a list of such schemas.
const SAME_VALUE_LIST: [&str; 3] = ["allOf", "anyOf", "oneOf"];
/// Keywords whose value is a schema for members of the value.
const MEMBER: [&str; 7] = [
    "additionalProperties",
    "additionalItems",
    "items",
    "contains",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// Keywords whose value maps names to schemas; the last two only store them.
const NAMED: [&str; 5] =
    ["properties", "patternProperties", "dependentSchemas", "$defs", "definitions"];
const COUNTS: [&str; 8] = [
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "minProperties",
    "maxProperties",
    "minContains",
    "maxContains",
];
const BOUNDS: [&str; 5] =
    ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
const TYPES: [&str; 7] = ["null", "boolean", "object", "array", "number", "string", "integer"];
/// Keywords that would need another document, or a scope that only exists while validating.
const FOREIGN: [&str; 3] = ["$dynamicRef", "$recursiveRef", "$anchor"];

struct Problem {
    pointer: String,
    problem: String,
}

impl Problem {
    fn at(pointer: &str, problem: impl Into<String>) -> Self {
        // The pointer holds names the client chose; enough of it to find the place is enough.
        let pointer = pointer.chars().take(120).collect();
        Self { pointer, problem: problem.into() }
    }
}

/// One schema of the document, by index, and what it leads to.
#[derive(Default)]
struct Node {
    pointer: String,
    /// Schemas applied to the same value.
    same: Vec<usize>,
    /// Schemas applied to members of the value.
    members: Vec<usize>,
    reference: Option<String>,
}

struct Walk<'a> {
    limits: &'a SchemaLimits,
    nodes: Vec<Node>,
    by_pointer: BTreeMap<String, usize>,
}

impl<'a> Walk<'a> {
    fn of(schema: &Value, limits: &'a SchemaLimits) -> Result<Self, Problem> {
        let mut walk = Self { limits, nodes: Vec::new(), by_pointer: BTreeMap::new() };
        walk.visit(schema, String::new(), 0)?;
        Ok(walk)
    }

    /// Adds `schema` and everything below it. Recursion is bounded by the depth limit.
    fn visit(&mut self, schema: &Value, pointer: String, depth: usize) -> Result<usize, Problem> {
        if depth > self.limits.depth {
            let problem = format!("schemas nest deeper than {}", self.limits.depth);
            return Err(Problem::at(&pointer, problem));
        }
        if self.nodes.len() >= self.limits.nodes {
            let problem = format!("there are more than {} schemas", self.limits.nodes);
            return Err(Problem::at("", problem));
        }
        let index = self.nodes.len();
        self.nodes.push(Node { pointer: pointer.clone(), ..Node::default() });
        self.by_pointer.insert(pointer.clone(), index);
        match schema {
            Value::Bool(_) => {}
            Value::Object(object) => {
                check_keywords(object, &pointer, self.limits)?;
                self.visit_below(object, index, depth)?;
            }
            _ => return Err(Problem::at(&pointer, "a schema must be an object, true or false")),
        }
        Ok(index)
    }

    fn visit_below(
        &mut self,
        object: &Map<String, Value>,
        index: usize,
        depth: usize,
    ) -> Result<(), Problem> {
        let pointer = self.nodes[index].pointer.clone();
        for (keyword, value) in object {
            let keyword = keyword.as_str();
            let here = format!("{pointer}/{}", escape(keyword));
            if SAME_VALUE.contains(&keyword) {
                let below = self.visit(value, here, depth + 1)?;
                self.nodes[index].same.push(below);
            } else if SAME_VALUE_LIST.contains(&keyword) || keyword == "prefixItems" {
                let below = self.visit_list(value, &here, depth)?;
                if keyword == "prefixItems" {
                    self.nodes[index].members.extend(below);
                } else {
                    self.nodes[index].same.extend(below);
                }
            } else if keyword == "items" && value.is_array() {
                let below = self.visit_list(value, &here, depth)?;
                self.nodes[index].members.extend(below);
            } else if MEMBER.contains(&keyword) {
                let below = self.visit(value, here, depth + 1)?;
                self.nodes[index].members.push(below);
            } else if NAMED.contains(&keyword) {
                let below = self.visit_named(value, &here, depth)?;
                match keyword {
                    "dependentSchemas" => self.nodes[index].same.extend(below),
                    "$defs" | "definitions" => {}
                    _ => self.nodes[index].members.extend(below),
                }
            } else if keyword == "$ref" {
                self.nodes[index].reference = value.as_str().map(str::to_owned);
            }
        }
        Ok(())
    }

    fn visit_list(
        &mut self,
        value: &Value,
        pointer: &str,
        depth: usize,
    ) -> Result<Vec<usize>, Problem> {
        let list = value.as_array().filter(|list| !list.is_empty());
        let list = list.ok_or_else(|| Problem::at(pointer, "must be a list of schemas"))?;
        let below = list.iter().enumerate();
        below.map(|(at, schema)| self.visit(schema, format!("{pointer}/{at}"), depth + 1)).collect()
    }

    fn visit_named(
        &mut self,
        value: &Value,
        pointer: &str,
        depth: usize,
    ) -> Result<Vec<usize>, Problem> {
        let named = value.as_object();
        let named = named.ok_or_else(|| Problem::at(pointer, "must map names to schemas"))?;
        let below = named.iter();
        below
            .map(|(name, schema)| {
                self.visit(schema, format!("{pointer}/{}", escape(name)), depth + 1)
            })
            .collect()
    }

    fn check_references(mut self) -> Result<(), Problem> {
        for index in 0..self.nodes.len() {
            let Some(reference) = self.nodes[index].reference.clone() else { continue };
            let node = &self.nodes[index];
            let Some(pointer) = reference.strip_prefix('#') else {
                let problem = "$ref must stay inside the schema, as in #/$defs/name";
                return Err(Problem::at(&node.pointer, problem));
            };
            let Some(&target) = self.by_pointer.get(pointer) else {
                return Err(Problem::at(&node.pointer, "$ref names no schema of this document"));
            };
            self.nodes[index].same.push(target);
        }
        self.check_loops()?;
        self.check_expansion()
    }

    /// A schema that leads back to itself without a step into the value describes nothing and sends
    /// a naive compiler round in circles.
    fn check_loops(&self) -> Result<(), Problem> {
        let mut marks = vec![Mark::New; self.nodes.len()];
        for start in 0..self.nodes.len() {
            // Depth first with a stack of our own: chains may be as long as the node limit.
            let mut stack = vec![(start, 0)];
            while let Some((index, next)) = stack.pop() {
                if next == 0 {
                    match marks[index] {
                        Mark::Done => continue,
                        Mark::Open => {
                            let problem = "references lead back here without a step into the value";
                            return Err(Problem::at(&self.nodes[index].pointer, problem));
                        }
                        Mark::New => marks[index] = Mark::Open,
                    }
                }
                match self.nodes[index].same.get(next) {
                    Some(&below) => stack.extend([(index, next + 1), (below, 0)]),
                    None => marks[index] = Mark::Done,
                }
            }
        }
        Ok(())
    }

    /// Size of the tree after replacing references, where a reference to a schema that is being
    /// expanded counts as one: compilers handle such recursion by name.
    fn check_expansion(&self) -> Result<(), Problem> {
        let mut sizes: Vec<Option<u64>> = vec![None; self.nodes.len()];
        let mut open = vec![false; self.nodes.len()];
        let mut stack = vec![(0_usize, false)];
        while let Some((index, below_done)) = stack.pop() {
            let node = &self.nodes[index];
            let edges = || node.same.iter().chain(&node.members);
            if below_done {
                let below = edges().map(|&edge| sizes[edge].unwrap_or(1));
                let size = below.fold(1_u64, u64::saturating_add);
                if size > self.limits.expanded_nodes {
                    let limit = self.limits.expanded_nodes;
                    let problem = format!("it expands to more than {limit} schemas");
                    return Err(Problem::at(&node.pointer, problem));
                }
                sizes[index] = Some(size);
                open[index] = false;
            } else if sizes[index].is_none() && !open[index] {
                open[index] = true;
                stack.push((index, true));
                stack.extend(edges().map(|&edge| (edge, false)));
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Mark {
    New,
    Open,
    Done,
}

fn escape(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

fn check_keywords(
    object: &Map<String, Value>,
    pointer: &str,
    limits: &SchemaLimits,
) -> Result<(), Problem> {
    for (keyword, value) in object {
        let keyword = keyword.as_str();
        let problem = match keyword {
            "type" => (!is_type(value)).then(|| "is not a JSON type".to_owned()),
            "enum" => match value.as_array() {
                Some(values) if values.len() > limits.enum_values => {
                    Some(format!("has more than {} values", limits.enum_values))
                }
                Some(values) if !values.is_empty() => None,
                _ => Some("must be a list with at least one value".to_owned()),
            },
            "required" => (!is_list_of_texts(value)).then(|| "must be a list of names".to_owned()),
            "pattern" => value.as_str().map_or_else(
                || Some("must be a text".to_owned()),
                |pattern| check_pattern(pattern, limits),
            ),
            "patternProperties" => value
                .as_object()
                .and_then(|named| named.keys().find_map(|pattern| check_pattern(pattern, limits))),
            "$ref" => (!value.is_string()).then(|| "must be a text".to_owned()),
            _ if COUNTS.contains(&keyword) => (value.as_u64().is_none_or(|n| n > limits.count))
                .then(|| format!("must be an integer from 0 to {}", limits.count)),
            _ if BOUNDS.contains(&keyword) => {
                // Draft 4 wrote the exclusive bounds as flags beside the bounds.
                let flag = keyword.starts_with("exclusive") && value.is_boolean();
                (!value.is_number() && !flag).then(|| "must be a number".to_owned())
            }
            _ if FOREIGN.contains(&keyword) => Some("is not supported".to_owned()),
            _ => None,
        };
        if let Some(problem) = problem {
            return Err(Problem::at(&format!("{pointer}/{}", escape(keyword)), problem));
        }
    }
    for pair in COUNTS.chunks_exact(2) {
        let bound = |name: &str| object.get(name).and_then(Value::as_u64);
        if let (Some(least), Some(most)) = (bound(pair[0]), bound(pair[1]))
            && least > most
        {
            return Err(Problem::at(pointer, format!("{} is above {}", pair[0], pair[1])));
        }
    }
    Ok(())
}

fn is_type(value: &Value) -> bool {
    let known = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    match value {
        Value::Array(types) => !types.is_empty() && types.iter().all(known),
        single => known(single),
    }
}

fn is_list_of_texts(value: &Value) -> bool {
    value.as_array().is_some_and(|names| names.iter().all(Value::is_string))
}

/// The problem with a pattern, if it has one. Look-around and back-references have no linear-time
/// engine, and a counted repeat may be tiny to write and huge to compile.
fn check_pattern(pattern: &str, limits: &SchemaLimits) -> Option<String> {
    if pattern.len() > limits.pattern_bytes {
        return Some(format!("is a pattern longer than {} bytes", limits.pattern_bytes));
    }
    let compiled = RegexBuilder::new(pattern).size_limit(limits.pattern_compiled_bytes).build();
    match compiled {
        Ok(_) => None,
        Err(regex::Error::CompiledTooBig(_)) => Some("is a pattern that is too large".to_owned()),
        Err(_) => Some("is not a pattern that can be matched in linear time".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::json;

    use super::*;
    use crate::limits::Limits;

    fn check(schema: &Value, expected: &Expect) {
        let outcome = match check_schema(schema, "s", &Limits::DEFAULT.schema) {
            Ok(text) => text,
            Err(error) => error.to_string(),
        };
        expected.assert_eq(&outcome);
    }

    #[test]
    fn members_keep_their_order() {
        let schema = json!({"type": "object", "properties": {"z": true, "a": {"type": "null"}}});
        check(
            &schema,
            &expect![[r#"{"type":"object","properties":{"z":true,"a":{"type":"null"}}}"#]],
        );
    }

    #[test]
    fn recursion_through_a_member_is_allowed() {
        let tree = json!({
            "$defs": {"node": {"type": "object", "properties": {
                "value": {"type": "integer"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            }}},
            "$ref": "#/$defs/node",
        });
        assert!(check_schema(&tree, "s", &Limits::DEFAULT.schema).is_ok());
    }

    #[test]
    fn each_abuse_is_refused_by_name() {
        check(
            &json!([]),
            &expect!["s is not a usable JSON Schema: a schema must be an object, true or false"],
        );
        check(
            &json!({"$ref": "#"}),
            &expect![
                "s is not a usable JSON Schema: references lead back here without a step into the value"
            ],
        );
        check(
            &json!({"$ref": "#/$defs/a"}),
            &expect!["s is not a usable JSON Schema: $ref names no schema of this document"],
        );
        check(
            &json!({"items": {"$ref": "http://x/"}}),
            &expect![
                "s is not a usable JSON Schema: at /items: $ref must stay inside the schema, as in #/$defs/name"
            ],
        );
        check(
            &json!({"properties": {"a/b": {"type": "text"}}}),
            &expect!["s is not a usable JSON Schema: at /properties/a~1b/type: is not a JSON type"],
        );
        check(
            &json!({"minItems": 5, "maxItems": 4}),
            &expect!["s is not a usable JSON Schema: minItems is above maxItems"],
        );
        check(
            &json!({"pattern": "(?=a)b"}),
            &expect![
                "s is not a usable JSON Schema: at /pattern: is not a pattern that can be matched in linear time"
            ],
        );
        check(
            &json!({"pattern": "[a-z]{1000000}"}),
            &expect!["s is not a usable JSON Schema: at /pattern: is a pattern that is too large"],
        );
        check(
            &json!({"enum": []}),
            &expect![
                "s is not a usable JSON Schema: at /enum: must be a list with at least one value"
            ],
        );
        check(
            &json!({"allOf": []}),
            &expect!["s is not a usable JSON Schema: at /allOf: must be a list of schemas"],
        );
        check(
            &json!({"$dynamicRef": "#x"}),
            &expect!["s is not a usable JSON Schema: at /$dynamicRef: is not supported"],
        );
    }

    #[test]
    fn doubling_is_counted_without_being_expanded() {
        let mut definitions = Map::new();
        for level in 0..30 {
            let next = json!({"$ref": format!("#/$defs/{}", level + 1)});
            definitions.insert(level.to_string(), json!({"allOf": [next, next]}));
        }
        definitions.insert("30".to_owned(), json!({"type": "string"}));
        let bomb = json!({"$defs": definitions, "$ref": "#/$defs/0"});
        check(
            &bomb,
            &expect![
                "s is not a usable JSON Schema: at /$defs/17: it expands to more than 16384 schemas"
            ],
        );
    }
}
