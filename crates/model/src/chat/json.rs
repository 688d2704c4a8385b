//! `tojson` as the templates' authors know it: Python's `json.dumps`, with its separators and
//! number texts, and no ASCII escapes unless asked for.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::limits::{INPUT_DEPTH_MAX, OUTPUT_BYTES_MAX};
use super::origin::stands_for_ascii;

/// The filter `tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
pub(super) fn tojson(
    state: &State<'_, '_>,
    value: &Value,
    positional: Rest<Value>,
    options: Kwargs,
) -> Result<String, Error> {
    let mut writer = Writer::new(&positional, &options)?;
    options.assert_all_used()?;
    writer.write(value, 0)?;
    // Sixteen units of data per byte, what the engine itself charges for serialising.
    state.consume_fuel(writer.text.len() as u64 / 4)?;
    Ok(writer.text)
}

struct Writer {
    text: String,
    ascii_only: bool,
    sorted: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
}

impl Writer {
    fn new(positional: &[Value], options: &Kwargs) -> Result<Self, Error> {
        // Transformers puts `ensure_ascii` first, Jinja2 `indent`; a number can only be the latter.
        let first = positional.first().filter(|first| first.is_number());
        let indent = match options.get::<Option<Value>>("indent")?.as_ref().or(first) {
            None => None,
            Some(value) if value.is_none() => None,
            Some(value) => match value.as_str() {
                Some(text) => Some(text.to_owned()),
                None => Some(" ".repeat(value.as_usize().unwrap_or(0).min(32))),
            },
        };
        let separators = options.get::<Option<Vec<String>>>("separators")?;
        let (item_separator, key_separator) = match separators.as_deref() {
            Some([item, key]) => (item.clone(), key.clone()),
            Some(_) => return Err(invalid("tojson takes two separators")),
            None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
            None => (", ".to_owned(), ": ".to_owned()),
        };
        Ok(Self {
            text: String::new(),
            ascii_only: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
            sorted: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
            indent,
            item_separator,
            key_separator,
        })
    }

    fn write(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > INPUT_DEPTH_MAX {
            return Err(invalid("tojson: nested too deeply"));
        }
        if self.text.len() > OUTPUT_BYTES_MAX {
            return Err(invalid("tojson: output too long"));
        }
        match value.kind() {
            ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool => self.text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.text.push_str(&number(value)),
            ValueKind::String => self.write_string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.write_list(value, depth)?,
            ValueKind::Map => self.write_object(value, depth)?,
            other => return Err(invalid(&format!("{other} is not JSON serializable"))),
        }
        Ok(())
    }

    fn write_list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.text.push('[');
        let mut empty = true;
        for item in value.try_iter()? {
            self.open_item(&mut empty, depth + 1);
            self.write(&item, depth + 1)?;
        }
        self.close(empty, depth);
        self.text.push(']');
        Ok(())
    }

    fn write_object(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.text.push('{');
        let mut empty = true;
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sorted {
            keys.sort();
        }
        for key in keys {
            self.open_item(&mut empty, depth + 1);
            match key.kind() {
                ValueKind::String => self.write_string(key.as_str().unwrap_or_default()),
                ValueKind::Number | ValueKind::Bool | ValueKind::None => {
                    self.text.push('"');
                    self.write(&key, depth)?;
                    self.text.push('"');
                }
                other => return Err(invalid(&format!("keys must not be {other}"))),
            }
            self.text.push_str(&self.key_separator);
            self.write(&value.get_item(&key)?, depth + 1)?;
        }
        self.close(empty, depth);
        self.text.push('}');
        Ok(())
    }

    fn open_item(&mut self, empty: &mut bool, depth: usize) {
        if !std::mem::replace(empty, false) {
            self.text.push_str(&self.item_separator);
        }
        self.new_line(depth);
    }

    fn close(&mut self, empty: bool, depth: usize) {
        if !empty {
            self.new_line(depth);
        }
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.text.push('\n');
            for _ in 0..depth {
                self.text.push_str(indent);
            }
        }
    }

    fn write_string(&mut self, string: &str) {
        self.text.push('"');
        for character in string.chars() {
            match character {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                '\u{8}' => self.text.push_str("\\b"),
                '\u{c}' => self.text.push_str("\\f"),
                control if control < ' ' => self.push_escape(u32::from(control)),
                // Stand-ins for user text keep the place of an ASCII character, see `origin`.
                other if self.ascii_only && !other.is_ascii() && !stands_for_ascii(other) => {
                    for unit in other.encode_utf16(&mut [0; 2]) {
                        self.push_escape(u32::from(*unit));
                    }
                }
                other => self.text.push(other),
            }
        }
        self.text.push('"');
    }

    fn push_escape(&mut self, unit: u32) {
        // Writing to a string does not fail.
        let _ = write!(self.text, "\\u{unit:04x}");
    }
}

/// A number as Python prints it.
pub(super) fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(float) => python_float(float),
        Err(_) => value.to_string(),
    }
}

/// The shortest text that reads back as the same number, in Python's layout: exponents below -4
/// and from 16 on are written out, the others are not.
fn python_float(float: f64) -> String {
    if float.is_nan() {
        return "NaN".to_owned();
    }
    if float.is_infinite() {
        return if float > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if float != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{float}");
    if plain.contains('.') { plain } else { format!("{plain}.0") }
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.to_owned())
}
