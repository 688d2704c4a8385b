//! Request bodies: read under a limit, measured while they arrive, and only then parsed.

use std::fmt;

use axum::body::Body;
use futures_util::StreamExt;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::limits::Limits;

/// Reads a body that must be one JSON object.
pub(crate) async fn read_object(
    body: Body,
    limits: &Limits,
) -> Result<Map<String, Value>, ApiError> {
    let mut shape = JsonShape::default();
    let mut bytes = Vec::new();
    let mut frames = body.into_data_stream();
    while let Some(frame) = frames.next().await {
        let frame = frame.map_err(|_| ApiError::BodyBroken)?;
        if frame.len() > limits.body_bytes - bytes.len() {
            return Err(ApiError::BodyTooLarge { limit: limits.body_bytes });
        }
        shape.feed(&frame);
        shape.check(limits)?;
        bytes.extend_from_slice(&frame);
    }
    match parse(&bytes)? {
        Value::Object(object) => Ok(object),
        _ => Err(ApiError::NotAnObject),
    }
}

/// Parses one JSON text in which no object names a member twice: readers that pick different ones
/// would see different requests.
fn parse(bytes: &[u8]) -> Result<Value, ApiError> {
    let mut parser = serde_json::Deserializer::from_slice(bytes);
    let value = Unambiguous.deserialize(&mut parser).and_then(|value| {
        parser.end()?;
        Ok(value)
    });
    value.map_err(|error| match error.classify() {
        Category::Data => ApiError::NameTwice { line: error.line(), column: error.column() },
        _ => ApiError::MalformedJson { line: error.line(), column: error.column() },
    })
}

/// Builds a [`Value`], or fails at the second member of a name.
struct Unambiguous;

impl<'de> DeserializeSeed<'de> for Unambiguous {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Unambiguous {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Value, E> {
        Ok(flag.into())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Self)? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            let value = members.next_value_seed(Self)?;
            if object.insert(name, value).is_some() {
                return Err(A::Error::custom("a name twice"));
            }
        }
        Ok(object.into())
    }
}

/// Depth and size of JSON text, counted byte by byte. Text that is not JSON gets some numbers too;
/// the parser refuses it afterwards.
#[derive(Default)]
struct JsonShape {
    depth: usize,
    depth_max: usize,
    /// Containers, and separators between their members: at least the number of values.
    nodes: usize,
    in_text: bool,
    escaped: bool,
}

impl JsonShape {
    fn feed(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if self.in_text {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_text = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_text = true,
                b'[' | b'{' => {
                    self.depth += 1;
                    self.depth_max = self.depth_max.max(self.depth);
                    self.nodes += 1;
                }
                b']' | b'}' => self.depth = self.depth.saturating_sub(1),
                b',' => self.nodes += 1,
                _ => {}
            }
        }
    }

    fn check(&self, limits: &Limits) -> Result<(), ApiError> {
        if self.depth_max > limits.json_depth {
            return Err(ApiError::TooDeep { limit: limits.json_depth });
        }
        if self.nodes > limits.json_nodes {
            return Err(ApiError::TooManyValues { limit: limits.json_nodes });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn depth_of(value: &Value) -> usize {
        match value {
            Value::Array(items) => 1 + items.iter().map(depth_of).max().unwrap_or(0),
            Value::Object(map) => 1 + map.values().map(depth_of).max().unwrap_or(0),
            _ => 0,
        }
    }

    fn nodes_of(value: &Value) -> usize {
        match value {
            Value::Array(items) => 1 + items.iter().map(nodes_of).sum::<usize>(),
            Value::Object(map) => 1 + map.values().map(nodes_of).sum::<usize>(),
            _ => 1,
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::from),
            "[\\[\\]{},:\"\\\\a\u{e9}]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 40, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::vec(("[{}\"\\\\a]{0,3}", inner), 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    #[test]
    fn names_must_be_unique_at_every_level() {
        for twice in [r#"{"a":1,"a":1}"#, r#"[{"b":{"a":1,"\u0061":2}}]"#] {
            let refused = parse(twice.as_bytes());
            assert!(matches!(refused, Err(ApiError::NameTwice { .. })), "{twice}: {refused:?}");
        }
        for broken in ["", "{", "{} {}", "{\"a\":1e999}", "{\"a\":NaN}", "\u{feff}{}", "[1,]"] {
            let refused = parse(broken.as_bytes());
            assert!(matches!(refused, Err(ApiError::MalformedJson { .. })), "{broken}");
        }
    }

    proptest! {
        #[test]
        fn parsing_agrees_with_the_library(value in any_json()) {
            prop_assert_eq!(parse(value.to_string().as_bytes()), Ok(value));
        }

        /// However the bytes are cut into frames, the counted depth is the parsed one and the
        /// counted size is within a factor of the parsed one.
        #[test]
        fn shape_matches_the_parsed_value(value in any_json(), cut in 1_usize..7) {
            let text = value.to_string();
            let mut shape = JsonShape::default();
            for frame in text.as_bytes().chunks(cut) {
                shape.feed(frame);
            }
            prop_assert_eq!(shape.depth_max, depth_of(&value));
            prop_assert!(shape.nodes <= 2 * nodes_of(&value));
            prop_assert!(2 * shape.nodes + 1 >= nodes_of(&value));
        }
    }
}
