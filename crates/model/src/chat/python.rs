//! What templates expect of Python beyond the engine: exceptions, dates, `tojson`, methods.

use minijinja::value::{ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, Output, State, UndefinedBehavior, Value};
use minijinja_contrib::pycompat;

use super::date::CivilTime;
use super::json;
use super::limits::{INPUT_DEPTH_MAX, LIST_ITEMS_MAX};
use super::scan::BOUNDED_FILTER;

/// The text a template gave to `raise_exception`, as the cause of an engine error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

/// Adds Python's functions, filters and methods.
pub(super) fn extend(environment: &mut Environment<'_>) {
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_unknown_method_callback(method);
    environment.set_formatter(|out, state, value| print(out, state, value, 0));
    environment.add_filter(BOUNDED_FILTER, bounded);
    environment.add_filter("tojson", json::tojson);
    environment.add_test("iterable", is_iterable);
    environment.add_function("raise_exception", raise_exception);
}

/// The function `strftime_now` for a given moment.
pub(super) fn strftime_now(now: CivilTime) -> Value {
    Value::from_function(move |format: &str| {
        now.format(format).map_err(|code| {
            Error::new(ErrorKind::InvalidOperation, format!("strftime_now: unknown code %{code}"))
        })
    })
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let message = message.to_string();
    Err(Error::new(ErrorKind::InvalidOperation, "raised by the template")
        .with_source(Raised(message)))
}

/// Prints a value as Python does. The engine would print a list that it repeats lazily to its
/// end, however long; here every item costs fuel.
fn print(
    out: &mut Output<'_>,
    state: &State<'_, '_>,
    value: &Value,
    depth: usize,
) -> Result<(), Error> {
    state.consume_fuel(1)?;
    let is_map = value.kind() == ValueKind::Map;
    if !is_map && !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return if depth == 0 { write!(out, "{value}") } else { write!(out, "{value:?}") }
            .map_err(Error::from);
    }
    if depth > INPUT_DEPTH_MAX {
        return Err(Error::new(ErrorKind::InvalidOperation, "list nested too deeply to print"));
    }
    let (open, close) = match (is_map, value.is_tuple()) {
        (true, _) => ("{", "}"),
        (false, true) if value.len() == Some(1) => ("(", ",)"),
        (false, true) => ("(", ")"),
        (false, false) => ("[", "]"),
    };
    out.write_str(open)?;
    for (index, item) in value.try_iter()?.enumerate() {
        if index > 0 {
            out.write_str(", ")?;
        }
        print(out, state, &item, depth + 1)?;
        if is_map {
            out.write_str(": ")?;
            print(out, state, &value.get_item(&item)?, depth + 1)?;
        }
    }
    out.write_str(close).map_err(Error::from)
}

/// Passes a value on unless it is a list of more items than any conversation has.
fn bounded(value: Value) -> Result<Value, Error> {
    let is_list = matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    if is_list && value.len().is_some_and(|items| items > LIST_ITEMS_MAX) {
        let reason = format!("a list has more than {LIST_ITEMS_MAX} items");
        return Err(Error::new(ErrorKind::InvalidOperation, reason));
    }
    Ok(value)
}

/// Python's `None` cannot be iterated over; the engine's can.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// Methods of Python's strings, lists and dictionaries.
fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    if value.kind() == ValueKind::String && matches!(name, "removeprefix" | "removesuffix") {
        let (affix,): (&str,) = from_args(arguments)?;
        let text = value.as_str().unwrap_or_default();
        let rest = match name {
            "removeprefix" => text.strip_prefix(affix),
            _ => text.strip_suffix(affix),
        };
        return Ok(Value::from(rest.unwrap_or(text)));
    }
    pycompat::unknown_method_callback(state, value, name, arguments)
}

#[cfg(test)]
mod tests {
    use minijinja::Environment;

    use super::*;

    fn evaluated(expression: &str) -> String {
        let mut environment = Environment::new();
        extend(&mut environment);
        environment.set_fuel(Some(1_000));
        environment
            .render_str(&format!("{{{{ {expression} }}}}"), Value::UNDEFINED)
            .unwrap_or_else(|error| format!("{}: {}", error.kind(), error.detail().unwrap_or("")))
    }

    #[test]
    fn values_print_as_in_python() {
        for (expression, expected) in [
            (r#"["a", 'it\'s', none, true, 1, 2.5]"#, r#"['a', "it's", None, True, 1, 2.5]"#),
            (r#"{"a": [1, {"b": false}], 2: "x\ny"}"#, r#"{'a': [1, {'b': False}], 2: 'x\ny'}"#),
            ("[1, 2] + [3]", "[1, 2, 3]"),
            ("{'a': 1}.items() | list", "[('a', 1)]"),
            ("[(1,), ()]", "[(1,), ()]"),
            ("[] ~ '' ~ {}", "[]{}"),
            ("none", "None"),
            ("nothing", ""),
            ("nothing | length", "0"),
            ("1.0", "1.0"),
            ("none is iterable", "False"),
            ("'ab'.removeprefix('a') ~ 'ab'.removesuffix('b')", "ba"),
            ("'a b'.split()[1].upper()", "B"),
        ] {
            assert_eq!(evaluated(expression), expected, "{expression}");
        }
    }

    #[test]
    fn json_prints_as_in_python() {
        // Right-hand sides are the output of CPython's json.dumps.
        for (expression, expected) in [
            (
                r#"{"a": [1, 2.0, 1e16, 1e-5, 0.1], "b": none} | tojson"#,
                r#"{"a": [1, 2.0, 1e+16, 1e-05, 0.1], "b": null}"#,
            ),
            (r#""<å'\"\\\n🙂>" | tojson"#, r#""<å'\"\\\n🙂>""#),
            (r#""å🙂" | tojson(ensure_ascii=true)"#, r#""\u00e5\ud83d\ude42""#),
            ("[] | tojson(indent=2)", "[]"),
            ("{'a': [1, {}]} | tojson(indent=2)", "{\n  \"a\": [\n    1,\n    {}\n  ]\n}"),
            ("[1, 2] | tojson(4)", "[\n    1,\n    2\n]"),
            (
                "{'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':'))",
                r#"{"a":2,"b":1}"#,
            ),
            ("{1: true, none: 2} | tojson", r#"{"1": true, "null": 2}"#),
            ("nothing | tojson", "invalid operation: undefined is not JSON serializable"),
            ("1 | tojson(colour=2)", "too many arguments: unknown keyword argument 'colour'"),
        ] {
            assert_eq!(evaluated(expression), expected, "{expression}");
        }
    }

    #[test]
    fn long_lists_cost_fuel() {
        let expected = "engine ran out of fuel: ";
        assert_eq!(evaluated("[1] * 100000000"), expected);
        assert_eq!(evaluated("[[[1] * 100] * 100] * 100"), expected);
        let reason = evaluated("([1] * 100000000) | motley_bounded");
        assert_eq!(reason, "invalid operation: a list has more than 1048576 items");
    }
}
