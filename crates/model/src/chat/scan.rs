//! A light scan of template source, for the two things the engine does not do: it knows no
//! `generation` tag, and it does not say which literals a template compares text with.

use std::collections::BTreeSet;
use std::ops::Range;

use super::limits::{ELIFS_MAX, OPERATORS_MAX};

/// What a template's tags mention.
#[derive(Debug, Default)]
pub(super) struct Mentions {
    /// String literals, unescaped, without the empty one.
    pub(super) literals: BTreeSet<String>,
    /// Names looked up with a dot.
    pub(super) attributes: BTreeSet<String>,
}

/// The filter through which every value goes that a template keeps under a name.
pub(super) const BOUNDED_FILTER: &str = "motley_bounded";

/// Rewrites what the engine lacks; lines stay where they are.
///
/// `{% generation %}` … `{% endgeneration %}`, which training tools use to mark the assistant's
/// text, becomes a condition that always holds. `{% set name = value %}` passes its value through
/// a filter that bounds lists: the engine joins and repeats them lazily and free of charge, so
/// that a short loop could name a list larger than memory.
pub(super) fn adapted(source: &str) -> String {
    let mut rewritten = String::with_capacity(source.len());
    let mut copied = 0;
    for tag in tags(source) {
        let body = tag_body(source, &tag);
        let text = &source[body.clone()];
        let replacement = match text {
            _ if !source[tag].starts_with("{%") => continue,
            "generation" => "if true".to_owned(),
            "endgeneration" => "endif".to_owned(),
            _ => match assignment(text) {
                Some((target, value)) => format!("{target}=({value})|{BOUNDED_FILTER}"),
                None => continue,
            },
        };
        rewritten.push_str(&source[copied..body.start]);
        rewritten.push_str(&replacement);
        copied = body.end;
    }
    rewritten.push_str(&source[copied..]);
    rewritten
}

/// Both sides of the equals sign of a `set` tag that has one.
fn assignment(body: &str) -> Option<(&str, &str)> {
    let is_set = body.strip_prefix("set").is_some_and(|rest| rest.starts_with(char::is_whitespace));
    let (target, value) = body.split_once('=')?;
    let named = |c: char| c.is_alphanumeric() || c.is_whitespace() || "_.,()".contains(c);
    (is_set && target.chars().all(named) && !value.trim().is_empty()).then_some((target, value))
}

/// Line of the first tag that nests deeper, or counts more `elif` so far, than the engine's
/// parser can follow on a small stack: it recurses for every operator.
pub(super) fn line_too_complex(source: &str) -> Option<usize> {
    let mut elifs = 0;
    for tag in tags(source) {
        let start = tag.start;
        elifs += usize::from(source[tag_body(source, &tag)].starts_with("elif"));
        let text = &source[tag];
        let mut operators = 0;
        let mut position = 0;
        while let Some(next) = text[position..].chars().next() {
            let word = identifier(&text[position..]);
            let is_operator = matches!(word, "not" | "if" | "else" | "and" | "or" | "in" | "is")
                || "+-*/~.|<>=%([{!".contains(next);
            operators += usize::from(is_operator);
            position = match next {
                '\'' | '"' => string_end(text, position),
                _ => position + next.len_utf8().max(word.len()),
            };
        }
        if operators > OPERATORS_MAX || elifs > ELIFS_MAX {
            return Some(source[..start].matches('\n').count() + 1);
        }
    }
    None
}

/// Collects the literals and attribute names of all tags.
pub(super) fn mentions(source: &str) -> Mentions {
    let mut mentions = Mentions::default();
    for tag in tags(source) {
        let text = &source[tag];
        let mut position = 0;
        while let Some(next) = text[position..].chars().next() {
            match next {
                '\'' | '"' => {
                    let end = string_end(text, position);
                    let inner = text.get(position + 1..end.saturating_sub(1)).unwrap_or("");
                    if !inner.is_empty() {
                        mentions.literals.insert(unescaped(inner));
                    }
                    position = end;
                }
                '.' => {
                    let name = identifier(&text[position + 1..]);
                    if !name.is_empty() {
                        mentions.attributes.insert(name.to_owned());
                    }
                    position += 1 + name.len();
                }
                other => position += other.len_utf8(),
            }
        }
    }
    mentions
}

/// Byte ranges of `{{ … }}` and `{% … %}`, delimiters included. Comments and raw blocks hold no
/// tags. Source that does not parse gives some ranges and no error: the engine reports those.
fn tags(source: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut position = 0;
    while let Some(offset) = source[position..].find('{') {
        let start = position + offset;
        let rest = &source[start..];
        if rest.starts_with("{#") {
            position = rest.find("#}").map_or(source.len(), |end| start + end + 2);
        } else if rest.starts_with("{{") || rest.starts_with("{%") {
            let end = tag_end(source, start);
            let is_raw =
                rest.starts_with("{%") && &source[tag_body(source, &(start..end))] == "raw";
            found.push(start..end);
            position = if is_raw { raw_end(source, end) } else { end };
        } else {
            position = start + 1;
        }
    }
    found
}

/// End of the tag that opens at `start`: its closing delimiter outside strings and brackets.
fn tag_end(source: &str, start: usize) -> usize {
    let closing = if source[start..].starts_with("{{") { "}}" } else { "%}" };
    let mut depth = 0_usize;
    let mut position = start + 2;
    while let Some(next) = source[position..].chars().next() {
        if depth == 0 && source[position..].starts_with(closing) {
            return position + 2;
        }
        match next {
            '\'' | '"' => {
                position = string_end(source, position);
                continue;
            }
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        position += next.len_utf8();
    }
    source.len()
}

/// Start of the `endraw` tag at or after `from`, or the end of the source.
fn raw_end(source: &str, from: usize) -> usize {
    let mut position = from;
    while let Some(offset) = source[position..].find("{%") {
        let start = position + offset;
        let body = source[start + 2..].trim_start_matches(['-', '+']).trim_start();
        if body.starts_with("endraw") {
            return start;
        }
        position = start + 2;
    }
    source.len()
}

/// End of the quoted string that opens at `start`, its closing quote included.
fn string_end(source: &str, start: usize) -> usize {
    let quote = source.as_bytes()[start];
    let mut escaped = false;
    for (offset, byte) in source.as_bytes()[start + 1..].iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            _ if *byte == quote => return start + offset + 2,
            _ => {}
        }
    }
    source.len()
}

/// What stands between a tag's delimiters, without white-space marks and white space.
fn tag_body(source: &str, tag: &Range<usize>) -> Range<usize> {
    let start = (tag.start + 2).min(tag.end);
    let inner = &source[start..tag.end.saturating_sub(2).max(start)];
    let trimmed = inner.strip_prefix(['-', '+']).unwrap_or(inner);
    let trimmed = trimmed.strip_suffix(['-', '+']).unwrap_or(trimmed).trim();
    // `trimmed` is a part of `inner`, so the distance of their addresses is its offset.
    let offset = trimmed.as_ptr() as usize - inner.as_ptr() as usize;
    start + offset..start + offset + trimmed.len()
}

fn identifier(text: &str) -> &str {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
    &text[..end]
}

/// The escapes that occur in templates; any other keeps its backslash, as in Python.
fn unescaped(inner: &str) -> String {
    let mut text = String::with_capacity(inner.len());
    let mut characters = inner.chars();
    while let Some(next) = characters.next() {
        if next != '\\' {
            text.push(next);
            continue;
        }
        match characters.next() {
            Some('n') => text.push('\n'),
            Some('t') => text.push('\t'),
            Some('r') => text.push('\r'),
            Some(quote @ ('\'' | '"' | '\\')) => text.push(quote),
            Some(other) => text.extend(['\\', other]),
            None => text.push('\\'),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn generation_tags_become_conditions() {
        let source = "{# {% generation %} #}{%- generation -%}\nx{% endgeneration %}\
                      {% raw %}{% generation %}{% endraw %}{{ '{% generation %}' }}";
        expect![[r#"
            {# {% generation %} #}{%- if true -%}
            x{% endif %}{% raw %}{% generation %}{% endraw %}{{ '{% generation %}' }}"#]]
        .assert_eq(&adapted(source));
    }

    #[test]
    fn kept_values_are_bounded() {
        let source = "{%- set ns.a = b if c else d -%}{% set x %}={% endset %}{{ set = 1 }}\
                      {% set a, b = 1, '=)' %}{% if set == 2 %}{% set x | replace('=', '') %}";
        expect![[r#"
            {%- set ns.a =( b if c else d)|motley_bounded -%}{% set x %}={% endset %}{{ set = 1 }}{% set a, b =( 1, '=)')|motley_bounded %}{% if set == 2 %}{% set x | replace('=', '') %}"#]]
        .assert_eq(&adapted(source));
    }

    #[test]
    fn mentions_see_strings_and_attributes_of_tags_only() {
        let source =
            r#"'outside'.outside {{ {'a': {'b': m.content}} }}{% if "it\'s\n}}" in x.y %}"#;
        expect![[r#"
            Mentions {
                literals: {
                    "a",
                    "b",
                    "it's\n}}",
                },
                attributes: {
                    "content",
                    "y",
                },
            }
        "#]]
        .assert_debug_eq(&mentions(source));
    }

    #[test]
    fn broken_source_is_scanned_to_its_end() {
        for source in
            ["{{", "{%", "{#", "{{ 'a", "{% raw %}", "{{ \\", "{", "{%-", "{%%}", "{{ ( }}"]
        {
            assert!(mentions(source).attributes.is_empty());
            assert_eq!(adapted(source), source);
        }
    }
}
