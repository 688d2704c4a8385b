//! Forms with a made vocabulary of single bytes and a few longer tokens.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "tests say what they skip and measure, and read data beside the checkout"
)]

use std::path::PathBuf;
use std::time::Instant;

use expect_test::{Expect, expect};
use llguidance::{Matcher, ParserFactory};
use motley_engine::Model;
use motley_gateway::{Content, ToolDefinition, ToolUse};
use serde_json::Value as Json;

use super::compiler::{self, Kept, KeptGrammar, TokenBytes};
use super::grammar::Scope;
use super::matcher::{FormMatcher, Opening, Trigger};
use super::*;
use crate::driver::Constrainer as _;
use crate::serve::calls::AnswerReader;

/// The token that ends an answer; those before it are bytes.
const END: u32 = 256;

/// Tokens of several bytes, after the end.
const LONGER: &[&str] = &["{\"", "\": ", "\",", "  ", "tool", "}}"];

fn made_factory() -> ParserFactory {
    // No text has the byte 255.
    let mut bytes: Vec<Vec<u8>> = (0..=254).map(|byte| vec![byte]).collect();
    bytes.resize(END as usize + 1, Vec::new());
    bytes.extend(LONGER.iter().map(|text| text.as_bytes().to_vec()));
    bytes.resize(bytes.len() + CONTROLS.len(), Vec::new());
    compiler::factory(&TokenBytes { bytes, ends: vec![END] }, 256 << 20).unwrap()
}

/// How much of `text` a form lets through, byte by byte, and whether the answer may end then.
fn follow(matcher: &Matcher, text: &str) -> (usize, bool) {
    let mut matcher = matcher.deep_clone();
    for (at, byte) in text.bytes().enumerate() {
        let mask = matcher.compute_mask_or_eos().unwrap();
        if !mask.is_allowed(u32::from(byte)) {
            return (at, mask.is_allowed(END));
        }
        matcher.consume_token(u32::from(byte)).unwrap();
    }
    (text.len(), matcher.compute_mask_or_eos().unwrap().is_allowed(END))
}

fn accepts(matcher: &Matcher, text: &str) -> bool {
    follow(matcher, text) == (text.len(), true)
}

fn compile(factory: &ParserFactory, grammar: &Grammar) -> Result<Matcher, Refusal> {
    let compiled = compiler::compile(factory, grammar.text());
    compiled.map(|(matcher, _)| matcher).map_err(|error| grammar.refusal(&matcher::problem(&error)))
}

fn of_schema(factory: &ParserFactory, schema: &str) -> Result<Matcher, Refusal> {
    compile(factory, &Grammar::of_schema(schema)?)
}

#[test]
fn an_object_is_an_object() {
    let matcher = compile(&made_factory(), &Grammar::of_any_object()).unwrap();
    for good in ["{}", r#"{"a": [1, {"b": null}], "c": "\n\té"}"#, "{\n  \"a\": 1\n}"] {
        assert!(accepts(&matcher, good), "{good}");
    }
    for bad in ["[]", " {}", "{\"a\": 1", "{\"a\": 01}", "{}x", "{\"a\":  1}", "\n{}"] {
        assert!(!accepts(&matcher, bad), "{bad}");
    }
}

#[test]
fn a_schema_is_followed() {
    let schema = r##"{
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "people",
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 8},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "kind": {"enum": ["cat", "dog"]},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 2}
        },
        "required": ["name", "age"],
        "additionalProperties": false,
        "$defs": {"tag": {"type": "string", "pattern": "^[a-z]+$"}}
    }"##;
    let matcher = of_schema(&made_factory(), schema).unwrap();
    for good in [
        r#"{"name": "Ada", "age": 36}"#,
        r#"{"name": "Ada", "age": 0, "kind": "cat", "tags": ["a", "bc"]}"#,
    ] {
        assert!(accepts(&matcher, good), "{good}");
    }
    for bad in [
        r#"{"name": "Ada"}"#,
        r#"{"name": "", "age": 36}"#,
        r#"{"name": "Ada", "age": 151}"#,
        r#"{"name": "Ada", "age": 36, "kind": "cow"}"#,
        r#"{"name": "Ada", "age": 36, "tags": ["A"]}"#,
        r#"{"name": "Ada", "age": 36, "tags": ["a", "b", "c"]}"#,
        r#"{"name": "Ada", "age": 36, "more": 1}"#,
    ] {
        assert!(!accepts(&matcher, bad), "{bad}");
    }
}

#[test]
fn a_wide_object_is_forced() {
    let names = |count: usize| {
        let properties: Vec<String> =
            (0..count).map(|number| format!("\"p{number}\": {{\"type\": \"integer\"}}")).collect();
        format!(
            "{{\"properties\": {{{}}}, \"additionalProperties\": false, \"type\": \"object\"}}",
            properties.join(",")
        )
    };
    let matcher = of_schema(&made_factory(), &names(1000)).unwrap();
    assert!(accepts(&matcher, "{\"p7\": 1, \"p8\": 2, \"p999\": 3}"));
    assert!(!accepts(&matcher, "{\"p1000\": 1}"));
}

#[test]
fn a_complete_form_lets_only_the_end_come() {
    let matcher = of_schema(&made_factory(), r#"{"const": {"a": 1}}"#).unwrap();
    let mut matcher = matcher.deep_clone();
    for byte in r#"{"a":1}"#.bytes() {
        matcher.consume_token(u32::from(byte)).unwrap();
    }
    let mask = matcher.compute_mask_or_eos().unwrap();
    assert!(mask.is_allowed(END));
    assert!(!mask.is_allowed(u32::from(b'x')));
}

fn refusal(schema: &str) -> String {
    match of_schema(&made_factory(), schema) {
        Ok(_) => "accepted".to_owned(),
        Err(refusal) => refusal.to_string(),
    }
}

#[test]
fn what_cannot_be_forced_is_named() {
    let check = |schema: &str, expected: Expect| expected.assert_eq(&refusal(schema));
    check(
        r#"{"type": "object", "properties": {"a/b": {"not": {"type": "null"}}}}"#,
        expect![[r#"schema at /properties/a~1b/not: the keyword "not" cannot be forced"#]],
    );
    check(
        r#"{"type": "array", "uniqueItems": true}"#,
        expect![[r#"schema at /uniqueItems: the keyword "uniqueItems" cannot be forced"#]],
    );
    check(r#"{"type": "array", "uniqueItems": false}"#, expect!["accepted"]);
    check(
        r#"{"anyOf": [{"type": "string"}, {"type": "string", "format": "iri"}]}"#,
        expect![[r#"schema at /anyOf/1/format: the format "iri" cannot be forced"#]],
    );
    check(
        r#"{"x-guidance": {"lenient": true}}"#,
        expect!["schema at /x-guidance: cannot be set from outside"],
    );
    check(
        r#"{"type": "string", "colour": "red"}"#,
        expect![[r#"schema at /colour: the keyword "colour" cannot be forced"#]],
    );
    check(
        r##"{"$ref": "#/$defs/a~1b", "$defs": {"a/b": true}}"##,
        expect![[r##"schema at /$ref: a reference to "#/$defs/a~1b" cannot be followed"##]],
    );
    check(
        r#"{"properties": {"a": {"oneOf": [{"minimum": 1}, {"maximum": 3}]}}}"#,
        expect!["schema at /properties/a/oneOf: parts of oneOf may accept the same value"],
    );
    check("false", expect!["schema at : allows no value"]);
    check(
        r#"{"type": "string", "minLength": 3, "maxLength": 2}"#,
        expect!["schema at : Unsatisfiable schema: minLength (3) is greater than maxLength (2)"],
    );
}

fn tool(name: &str, parameters: &str) -> ToolDefinition {
    ToolDefinition {
        name: name.to_owned(),
        description: None,
        parameters: parameters.to_owned(),
        strict: false,
    }
}

#[test]
fn calls_are_written_as_the_model_writes_them() {
    let factory = made_factory();
    let at = r#"{"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}"#;
    let calls = |choice: ToolChoice, style| {
        let tools = vec![tool("sun", at), tool("rain", "{}")];
        let tools = ToolUse { tools, choice, parallel: true };
        compile(&factory, &Grammar::of_calls(&tools, style, &controls()).unwrap()).unwrap()
    };
    let sun = r#"{"name": "sun", "arguments": {"at": "x"}}"#;
    let rain = r#"{"name": "rain", "arguments": {}}"#;

    let required = calls(ToolChoice::Required, CallStyle::Bare);
    assert!(accepts(&required, sun) && accepts(&required, rain));
    let wrong = [
        r#"{"name": "moon", "arguments": {}}"#,
        r#"{"name": "sun", "arguments": {}}"#,
        r#"{"name": "rain", "arguments": 3}"#,
        "Certainly!",
    ];
    for wrong in wrong {
        assert!(!accepts(&required, wrong), "{wrong}");
    }

    let named = calls(ToolChoice::Named("rain".to_owned()), CallStyle::Parameters);
    assert!(accepts(&named, r#"{"name": "rain", "parameters": {"any": [1]}}"#));
    assert!(!accepts(&named, &sun.replace("arguments", "parameters")));

    let tagged = calls(ToolChoice::Required, CallStyle::Tagged);
    let wrap = |call: &str| format!("<tool_call>\n{call}\n</tool_call>");
    assert!(accepts(&tagged, &wrap(sun)));
    assert!(accepts(&tagged, &[wrap(sun), wrap(rain)].join("\n")));
    assert!(!accepts(&tagged, &[wrap(rain).as_str(); 9].join("\n")));

    let tools = ToolUse {
        tools: vec![tool("sun", at), tool("rain", r#"{"properties": {"a": {"if": true}}}"#)],
        choice: ToolChoice::Required,
        parallel: true,
    };
    let refusal = Grammar::of_calls(&tools, CallStyle::Bare, &controls()).unwrap_err();
    expect![[
        r#"schema at /1/function/parameters/properties/a/if: the keyword "if" cannot be forced"#
    ]]
    .assert_eq(&refusal.to_string());
}

/// Two strict tools and one that is not, in free text.
fn strict_tools() -> ToolUse {
    let strict =
        |name: &str, parameters: &str| ToolDefinition { strict: true, ..tool(name, parameters) };
    let once = r#"{"properties": {"at": {"const": 1}}, "required": ["at"]}"#;
    ToolUse {
        tools: vec![strict("sun", once), tool("rain", r#"{"not": {}}"#)],
        choice: ToolChoice::Auto,
        parallel: true,
    }
}

/// The control tokens of the made vocabulary, which stand behind all others.
const CONTROLS: &[&str] =
    &["[ARGS]", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<arg_key>", "</arg_value>"];

/// Those that a model's calls are written with, in most tests.
fn controls() -> MarkerTokens {
    let mut controls = all_controls();
    controls.0.truncate(3);
    controls
}

fn all_controls() -> MarkerTokens {
    let first = END as i32 + 1 + LONGER.len() as i32;
    MarkerTokens((first..).zip(CONTROLS.iter().copied()).collect())
}

/// A form of strict calls, as it begins in the made vocabulary.
fn strict_form(style: CallStyle) -> FormMatcher {
    strict_form_of(&strict_tools(), style)
}

fn strict_form_of(tools: &ToolUse, style: CallStyle) -> FormMatcher {
    strict_form_with(tools, style, &controls())
}

fn strict_form_with(tools: &ToolUse, style: CallStyle, controls: &MarkerTokens) -> FormMatcher {
    let grammar = Grammar::of_strict_calls(tools, style, controls).unwrap().unwrap();
    let matcher = std::sync::Arc::new(compile(&made_factory(), &grammar).unwrap());
    let trigger = match grammar.scope().clone() {
        Scope::Whole => Trigger::Start,
        Scope::Behind(text) => Trigger::Opening(Opening::new(text, None)),
        Scope::BeginningAndBehind(text) => {
            Trigger::Opening(Opening { is_given: true, ..Opening::new(text, None) })
        }
        Scope::Beginning { names, .. } => Trigger::Names { names: names.into(), again: Some(0) },
    };
    FormMatcher::new(matcher, END as usize + 1 + LONGER.len() + CONTROLS.len(), trigger)
}

/// Takes a text byte by byte, control tokens whole; where it stops being allowed, if it does.
fn take(form: &mut FormMatcher, text: &str) -> Option<usize> {
    take_with(form, text, &controls())
}

fn take_with(form: &mut FormMatcher, text: &str, controls: &MarkerTokens) -> Option<usize> {
    let mut at = 0;
    while at < text.len() {
        let control = controls
            .0
            .iter()
            .find(|(_, control)| text.as_bytes()[at..].starts_with(control.as_bytes()));
        let (token, length) = match control {
            Some((token, control)) => (*token, control.len()),
            None => (i32::from(text.as_bytes()[at]), 1),
        };
        let allowed = form.allowed().unwrap();
        if allowed.is_some_and(|mask| !mask.is_allowed(token)) {
            return Some(at);
        }
        form.accept(token).unwrap();
        at += length;
    }
    None
}

/// In every style free text is free, arguments of strict tools are exact, and those of others are
/// any object.
#[test]
fn strict_calls_in_free_text_are_exact() {
    let check = |style, sun: &str, rain: &str, between: &str| {
        let answer = [sun, between, rain].concat();
        assert_eq!(take(&mut strict_form(style), &answer), None, "{style:?} {answer}");
        let wrong = answer.replace(": 1", ": 2");
        assert_eq!(take(&mut strict_form(style), &wrong), wrong.find('2'), "{style:?} {wrong}");
    };
    let sun = r#"{"name": "sun", "arguments": {"at": 1}}"#;
    let rain = "{\"name\":\"rain\",\n\"parameters\": {\"any\": 2}}";
    let around = |before: &str, call: &str, after: &str| [before, call, after].concat();
    let tagged = |call| around("<tool_call>\n", call, "\n</tool_call>");
    check(CallStyle::Tagged, &["Look, <tool! ", &tagged(sun)].concat(), &tagged(rain), "and <<");
    let list =
        |call: &str| format!("[TOOL_CALLS][{call}, {}]", r#"{"name": "rain", "arguments": {}}"#);
    check(CallStyle::Listed, &list(sun), &list(rain), " and ");
    check(CallStyle::Listed, "[TOOL_CALLS]sun[ARGS]{\"at\": 1}", "[TOOL_CALLS]rain[ARGS]{}", "");
    let tagged = |call| around("<tool_calls>", call, "</tool_calls>");
    check(
        CallStyle::TaggedList,
        &tagged(&[sun, "\n", rain].concat()),
        &tagged("[]").replace("[]", &format!("[{rain}]")),
        "",
    );
    let tagged = |call: &str| format!("<TOOLCALL>[{call}]</TOOLCALL>");
    check(CallStyle::CapitalList, &tagged(sun), &tagged(rain), "\n");
    check(
        CallStyle::Functions,
        "Well. <function=sun>{\"at\": 1}</function>",
        "<function=rain>{}</function>",
        "",
    );
    check(
        CallStyle::Separated,
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>sun\n```json\n{\"at\": 1}\n```<｜tool▁call▁end｜>",
        "<｜tool▁call▁begin｜>rain<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
        "\n",
    );
    check(
        CallStyle::Numbered,
        "<|tool_call_begin|>functions.sun:0<|tool_call_argument_begin|>{\"at\": 1}<|tool_call_end|>",
        "<|tool_call_begin|>functions.rain:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
        "",
    );
    check(CallStyle::Parameters, &sun.replace("arguments", "parameters"), rain, "; ");
    check(CallStyle::Bare, sun, rain, "\n");
    check(CallStyle::Bare, &["\n ", sun].concat(), rain, "\n");
}

/// A tool with a text, a number and a choice, and one that takes anything.
fn weather_tools(choice: ToolChoice) -> ToolUse {
    let weather = r##"{
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "where", "maxLength": 12},
            "days": {"$ref": "#/$defs/few"},
            "unit": {"enum": ["C", "F"]}
        },
        "required": ["city", "days"],
        "additionalProperties": false,
        "$defs": {"few": {"type": "integer", "minimum": 1, "maximum": 9}}
    }"##;
    ToolUse {
        tools: vec![ToolDefinition { strict: true, ..tool("sun", weather) }, tool("rain", "{}")],
        choice,
        parallel: true,
    }
}

/// Contents that an answer is read as, however it comes.
fn contents(tools: &ToolUse, style: CallStyle, answer: &str) -> Vec<Content> {
    let mut reader = AnswerReader::new(Some(tools), style);
    let mut contents = Vec::new();
    for character in answer.chars() {
        reader.push(character.encode_utf8(&mut [0; 4]), &mut contents);
    }
    reader.finish(&mut contents);
    contents
}

/// Two calls in each style whose arguments are elements, as templates write them, and in the one
/// that addresses recipients.
const WRITTEN: &[(CallStyle, &str, &str)] = &[
    (
        CallStyle::Elements,
        "<tool_call>\n<function=sun>\n<parameter=city>\nA </b>\nB\n</parameter>\n\
         <parameter=days>\n7\n</parameter>\n<parameter=unit>\nC\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=rain>\n<parameter=any>\nx\n</parameter>\n</function>\n</tool_call>",
    ),
    (
        CallStyle::SeedElements,
        "<seed:tool_call>\n<function=sun>\n<parameter=city>A </b>\nB</parameter>\n\
         <parameter=days>7</parameter>\n<parameter=unit>C</parameter>\n</function>\n</seed:tool_call>",
        "<seed:tool_call>\n<function=rain>\n<parameter=any>x</parameter>\n</function>\n</seed:tool_call>",
    ),
    (
        CallStyle::Pairs,
        "<tool_call>sun\n<arg_key>city</arg_key>\n<arg_value>A </b>\nB</arg_value>\n\
         <arg_key>days</arg_key>\n<arg_value>7</arg_value>\n\
         <arg_key>unit</arg_key>\n<arg_value>C</arg_value>\n</tool_call>",
        "<tool_call>rain<arg_key>any</arg_key><arg_value>x</arg_value></tool_call>",
    ),
    (
        CallStyle::SeparatedPairs,
        "<tool_calls:opensource>\n<tool_call:opensource>sun<tool_sep:opensource>\n\
         <arg_key:opensource>city</arg_key:opensource>\n\
         <arg_value:opensource>A </b>\nB</arg_value:opensource>\n\
         <arg_key:opensource>days</arg_key:opensource>\n\
         <arg_value:opensource>7</arg_value:opensource>\n\
         <arg_key:opensource>unit</arg_key:opensource>\n\
         <arg_value:opensource>C</arg_value:opensource>\n</tool_call:opensource>",
        "<tool_call:opensource>rain<tool_sep:opensource>\n\
         <arg_key:opensource>any</arg_key:opensource>\n\
         <arg_value:opensource>x</arg_value:opensource>\n\
         </tool_call:opensource>\n</tool_calls:opensource>",
    ),
    (
        CallStyle::Invocations,
        "<minimax:tool_call>\n<invoke name=\"sun\">\n<parameter name=\"city\">A </b>\nB</parameter>\n\
         <parameter name=\"days\">7</parameter>\n<parameter name=\"unit\">C</parameter>\n</invoke>",
        "<invoke name=\"rain\">\n<parameter name=\"any\">x</parameter>\n</invoke>\n</minimax:tool_call>",
    ),
    (
        CallStyle::ToldInvocations,
        "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"sun\">\n\
         <｜DSML｜parameter name=\"city\" string=\"true\">A </b>\nB</｜DSML｜parameter>\n\
         <｜DSML｜parameter name=\"days\" string=\"false\">7</｜DSML｜parameter>\n\
         <｜DSML｜parameter name=\"unit\" string=\"true\">C</｜DSML｜parameter>\n</｜DSML｜invoke>",
        "<｜DSML｜invoke name=\"rain\">\n\
         <｜DSML｜parameter name=\"any\" string=\"true\">x</｜DSML｜parameter>\n\
         </｜DSML｜invoke>\n</｜DSML｜function_calls>",
    ),
    (
        CallStyle::NamedFunctions,
        "<function name=\"sun\"><param name=\"city\">A </b>\nB</param>\
         <param name=\"days\">7</param><param name=\"unit\">C</param></function>",
        "<function name=\"rain\"><param name=\"any\">x</param></function>",
    ),
    (
        CallStyle::Recipients,
        "sun\n{\"city\": \"A </b>\\nB\", \"days\": 7, \"unit\": \"C\"}",
        ">>>rain\n{\"any\": \"x\"}",
    ),
];

/// Whatever the choice, arguments of strict tools are exact, and what is written is read back as
/// calls with nothing left over.
#[test]
fn calls_of_elements_are_exact_and_read_back() {
    let factory = made_factory();
    for (style, sun, rain) in WRITTEN {
        let calls = [*sun, "\n", *rain].concat();
        let calls = if *style == CallStyle::Recipients { [*sun, *rain].concat() } else { calls };
        let wrong = [
            (calls.replace('7', "0"), '0'),
            (calls.replace(">C<", ">X<").replace("\nC\n", "\nX\n").replace("\"C\"", "\"X\""), 'X'),
            (calls.replace("A </b>", "A </b> and t!"), '!'),
        ];
        let auto = weather_tools(ToolChoice::Auto);
        assert_eq!(take(&mut strict_form_of(&auto, *style), &calls), None, "{style:?}");
        for (wrong, at) in &wrong {
            let stopped = take(&mut strict_form_of(&auto, *style), wrong);
            assert_eq!(stopped, wrong.find(*at), "{style:?} {wrong}");
        }
        let required = weather_tools(ToolChoice::Required);
        let grammar = Grammar::of_calls(&required, *style, &controls()).unwrap();
        let matcher = compile(&factory, &grammar).unwrap();
        assert!(accepts(&matcher, &calls), "{style:?} {:?}", follow(&matcher, &calls));
        assert!(!accepts(&matcher, "Certainly!"));
        for (wrong, at) in &wrong {
            assert_eq!(follow(&matcher, wrong).0, wrong.find(*at).unwrap(), "{style:?} {wrong}");
        }
        let named = weather_tools(ToolChoice::Named("rain".to_owned()));
        let grammar = Grammar::of_calls(&named, *style, &controls()).unwrap();
        let matcher = compile(&factory, &grammar).unwrap();
        assert!(!accepts(&matcher, &calls), "{style:?}");

        let read = expect![[r#"
            [CallStart { call: 0, name: "sun" }, CallArguments { call: 0, text: "{\"city\": \"A </b>\\nB\", \"days\": 7, \"unit\": \"C\"}" }, CallStart { call: 1, name: "rain" }, CallArguments { call: 1, text: "{\"any\": \"x\"}" }]"#]];
        for tools in [&auto, &required] {
            read.assert_eq(&format!("{:?}", contents(tools, *style, &calls)));
        }
    }
}

/// In every other style a call that must be made is an object, which is read as it comes.
#[test]
fn required_calls_are_forced_and_read_in_every_style() {
    let factory = made_factory();
    let required = weather_tools(ToolChoice::Required);
    let arguments = r#"{"city": "Oslo", "days": 7}"#;
    let mut styles = 0;
    for style in CallStyle::ALL.into_iter().filter(|style| !style.is_forced_as_written()) {
        let grammar = Grammar::of_calls(&required, style, &controls()).unwrap();
        let matcher = compile(&factory, &grammar).unwrap();
        let (before, after) = style.around_arguments("sun");
        let call = [before.as_str(), arguments, after].concat();
        assert!(accepts(&matcher, &call), "{style:?} {call}");
        assert!(!accepts(&matcher, &call.replace('7', "0")), "{style:?}");
        assert!(!accepts(&matcher, "Certainly!"), "{style:?}");
        let read = contents(&required, style, &call);
        let text: String = read
            .iter()
            .map(|content| match content {
                Content::CallStart { name, .. } => format!("{name} "),
                Content::CallArguments { text, .. } => text.clone(),
                Content::Text(text) | Content::Reasoning(text) => panic!("{style:?}: {text}"),
            })
            .collect();
        assert_eq!(text, format!("sun {arguments}"), "{style:?}");
        styles += 1;
    }
    assert_eq!(styles + WRITTEN.len() + 1, CallStyle::ALL.len(), "ToldCalls differ in their tags");
}

/// Tags may be control tokens, which end a text that is as long as it may be or shorter.
#[test]
fn elements_may_be_written_with_control_tokens() {
    let (auto, controls) = (weather_tools(ToolChoice::Auto), all_controls());
    let taken = |city: &str| {
        let call = format!(
            "<tool_call>sun\n<arg_key>city</arg_key>\n<arg_value>{city}</arg_value>\n\
             <arg_key>days</arg_key><arg_value>7</arg_value></tool_call>"
        );
        let mut form = strict_form_with(&auto, CallStyle::Pairs, &controls);
        take_with(&mut form, &call, &controls).map(|at| call[at..].chars().next())
    };
    assert_eq!(taken("Oslo <b>"), None);
    assert_eq!(taken(""), None);
    assert_eq!(taken("twelve bytes!"), Some(Some('!')));
}

/// An answer to people has no recipient in its text.
#[test]
fn what_is_for_everybody_is_text() {
    let auto = weather_tools(ToolChoice::Auto);
    let answer = "all\nIt is >> sunny.\n>>>rain\n{}";
    assert_eq!(take(&mut strict_form_of(&auto, CallStyle::Recipients), answer), None);
    expect![[r#"
        [Text("It is >> sunny.\n"), CallStart { call: 0, name: "rain" }, CallArguments { call: 0, text: "{}" }]"#]]
    .assert_eq(&format!("{:?}", contents(&auto, CallStyle::Recipients, answer)));
    // Only tools and everybody can be addressed.
    assert_eq!(take(&mut strict_form_of(&auto, CallStyle::Recipients), "snow\n{}"), Some(1));
}

/// A schema that says more of a text than its length is forced as JSON, which is read back.
#[test]
fn texts_of_a_pattern_are_quoted() {
    let schema = r#"{
        "properties": {"id": {"type": "string", "pattern": "^[0-9]+$"}},
        "required": ["id"]
    }"#;
    let tools = ToolUse {
        tools: vec![ToolDefinition { strict: true, ..tool("sun", schema) }],
        choice: ToolChoice::Auto,
        parallel: true,
    };
    let call = |value: &str| {
        format!("<tool_call>sun<arg_key>id</arg_key><arg_value>{value}</arg_value></tool_call>")
    };
    assert_eq!(take(&mut strict_form_of(&tools, CallStyle::Pairs), &call("\"12\"")), None);
    assert!(take(&mut strict_form_of(&tools, CallStyle::Pairs), &call("12")).is_some());
    for value in ["\"12\"", "12"] {
        let read = contents(&tools, CallStyle::Pairs, &call(value));
        assert!(format!("{read:?}").contains(r#"{\"id\": \"12\"}"#), "{read:?}");
    }
}

#[test]
fn arguments_that_cannot_be_elements_are_refused() {
    let refusal = |schema: &str| {
        let tools = ToolUse {
            tools: vec![tool("sun", schema)],
            choice: ToolChoice::Required,
            parallel: true,
        };
        match Grammar::of_calls(&tools, CallStyle::Pairs, &controls()) {
            Ok(_) => "accepted".to_owned(),
            Err(refusal) => refusal.to_string(),
        }
    };
    expect!["schema at /0/function/parameters/minProperties: cannot be forced of arguments that the model writes one by one"]
        .assert_eq(&refusal(r#"{"minProperties": 1}"#));
    expect!["schema at /0/function/parameters/properties/a<b: is no name that the model can write"]
        .assert_eq(&refusal(r#"{"properties": {"a<b": {}}}"#));
    expect!["schema at /0/function/parameters/properties/a: a reference to all arguments cannot be followed from one"]
        .assert_eq(&refusal(r##"{"properties": {"a": {"items": {"$ref": "#"}}}}"##));
}

#[test]
fn what_begins_like_a_call_and_is_none_stays_free() {
    for text in [
        r#"{"name": "Ada", "age": 36}"#,
        r#"{"name": "sunny", "arguments": 3}"#,
        r#"Call {"name": "sun", "arguments": 3}"#,
        r#"{"names": ["sun"], "at": 2}"#,
        r#"{"name": "sun"}"#,
    ] {
        let mut form = strict_form(CallStyle::Bare);
        assert_eq!(take(&mut form, text), text.find("sun\"}").map(|at| at + 4), "{text}");
    }
    // A name that ends within a token, behind which no call can go on.
    let mut form = strict_form(CallStyle::Bare);
    assert_eq!(take(&mut form, r#"{"name": "sun"#), None);
    form.accept(END as i32 + 2).unwrap();
    assert_eq!(take(&mut form, "2 and more"), None);
    // One behind which it does.
    let mut form = strict_form(CallStyle::Bare);
    assert_eq!(take(&mut form, r#"{"name": "sun"#), None);
    form.accept(END as i32 + 3).unwrap();
    assert_eq!(take(&mut form, r#" "arguments": {"at": 2"#), Some(21));
    // Behind reasoning an answer begins.
    let thought = r#"<think>{"name": "sun"?</think> {"name": "sun", "x"#;
    let mut form = strict_form(CallStyle::Bare);
    assert_eq!(take(&mut form, thought), thought.find('x'));
    // A token begins the answer again.
    let mut form = strict_form(CallStyle::Bare);
    assert_eq!(take(&mut form, "Well. "), None);
    form.accept(0).unwrap();
    assert_eq!(take(&mut form, r#"{"name": "sun", "x"#), Some(17));
}

#[test]
fn an_opening_is_a_token_or_bytes() {
    let tools = strict_tools();
    let grammar =
        Grammar::of_strict_calls(&tools, CallStyle::Tagged, &controls()).unwrap().unwrap();
    let matcher = std::sync::Arc::new(compile(&made_factory(), &grammar).unwrap());
    let opening = Opening::new("<tool_call>", Some(END as i32 + 5));
    let tokens = END as usize + 1 + LONGER.len() + CONTROLS.len();
    let mut form = FormMatcher::new(matcher, tokens, Trigger::Opening(opening));
    form.accept(END as i32 + 5).unwrap();
    assert_eq!(take(&mut form, "\n{\"name\": \"moon"), Some(11));
}

#[test]
fn the_grammars_used_last_are_kept() {
    let matcher = std::sync::Arc::new(Matcher::new(Err(anyhow::Error::msg("none"))));
    let entry = |number: usize, bytes| KeptGrammar {
        text: number.to_string(),
        matcher: std::sync::Arc::clone(&matcher),
        bytes,
    };
    let mut kept = Kept::new(crate::serve::limits::ServeLimits::DEFAULT.forms);
    assert!((0..64).all(|number| kept.keep(entry(number, 1)).is_empty()));
    assert!(kept.find("0").is_some());
    assert_eq!(kept.keep(entry(64, 1)).len(), 1);
    assert!(kept.find("0").is_some() && kept.find("1").is_none());
    kept.keep(entry(65, (128 << 20) + 1));
    assert!(kept.find("0").is_none() && kept.find("65").is_none());
}

/// A test of the suite.
struct SuiteTest {
    /// File and group.
    group: (String, String),
    schema: Json,
    data: Json,
    valid: bool,
}

/// The suite's tests in the folder `draft`, or nothing, with a message, where they are not here.
fn suite(draft: &str) -> Option<Vec<SuiteTest>> {
    let here = || PathBuf::from("../../../shared");
    let shared = std::env::var_os("MOTLEY_SHARED").map_or_else(here, PathBuf::from);
    let folder = shared.join("data/json_schema/JSON-Schema-Test-Suite/tests").join(draft);
    let Ok(files) = std::fs::read_dir(&folder) else {
        println!("skipped: the JSON Schema suite is not beside the checkout");
        return None;
    };
    let mut tests = Vec::new();
    for file in files.filter_map(Result::ok).filter(|file| file.path().is_file()) {
        let groups: Json = serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap();
        let name = file.file_name().to_string_lossy().into_owned();
        for group in groups.as_array().unwrap() {
            for test in group["tests"].as_array().unwrap() {
                tests.push(SuiteTest {
                    group: (name.clone(), group["description"].to_string()),
                    schema: group["schema"].clone(),
                    data: test["data"].clone(),
                    valid: test["valid"].as_bool().unwrap(),
                });
            }
        }
    }
    Some(tests)
}

/// A schema that is accepted lets no value through that the suite calls invalid.
#[test]
fn the_suite_finds_nothing_forced_wrongly() {
    let factory = made_factory();
    for (draft, groups_least) in [("draft2020-12", 60), ("draft7", 60)] {
        let Some(tests) = suite(draft) else { return };
        let (mut groups, mut wrong, mut last) = (0, Vec::new(), None);
        for SuiteTest { group, schema, data, valid } in tests {
            if last.as_ref().is_none_or(|(before, _)| *before != group) {
                let compiled = of_schema(&factory, &schema.to_string()).ok();
                groups += usize::from(compiled.is_some());
                last = Some((group.clone(), compiled));
            }
            let Some((_, Some(matcher))) = &last else { continue };
            if !valid && accepts(matcher, &data.to_string()) {
                wrong.push(format!("{group:?} {data}"));
            }
        }
        println!("{draft}: {groups} schemas forced");
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(groups >= groups_least, "{draft}: only {groups}");
    }
}

/// Prints how long masks take with a real vocabulary.
#[test]
#[ignore = "measures; run by hand with --nocapture"]
fn time_of_masks() {
    let Some(folder) = std::env::var_os("MOTLEY_MODELS") else { return println!("no models") };
    let Ok(files) = std::fs::read_dir(folder) else { return println!("no models") };
    for file in files.filter_map(Result::ok) {
        let model = Model::open(&file.path()).unwrap();
        let vocabulary = model.vocabulary().unwrap();
        let logits = model.directory().hyper.vocabulary_size;
        let began = Instant::now();
        let tokens = compiler::token_bytes(&vocabulary, logits).unwrap();
        let factory = compiler::factory(&tokens, 256 << 20).unwrap();
        println!("{:?}: {logits} tokens, tree in {:?}", file.file_name(), began.elapsed());
        let schema = r#"{"type": "object", "properties": {
            "name": {"type": "string", "maxLength": 40},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "kind": {"enum": ["cat", "dog", "cow"]},
            "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,12}$"}}},
            "required": ["name", "age", "kind", "tags"], "additionalProperties": false}"#;
        let text = r#"{"name": "Augusta Ada King of Lovelace", "age": 36, "kind": "cow", "tags": ["mathematics", "poetry", "engines", "london"]}"#;
        let call = "<tool_call>\n<function=sun>\n<parameter=city>\nfn main() {\n    println!(\"<b>Oslo, \
                    in the north, has a harbour.</b>\");\n}\n</parameter>\n<parameter=days>\n7\n\
                    </parameter>\n</function>\n</tool_call>";
        let tools = ToolUse {
            tools: vec![tool(
                "sun",
                r#"{"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}"#,
            )],
            choice: ToolChoice::Required,
            parallel: true,
        };
        let elements =
            Grammar::of_calls(&tools, CallStyle::Elements, &MarkerTokens::default()).unwrap();
        let forms = [
            ("object", Grammar::of_any_object(), text),
            ("schema", Grammar::of_schema(schema).unwrap(), text),
            ("elements", elements, call),
        ];
        for (name, grammar, text) in forms {
            let began = Instant::now();
            let (shared, bytes) = compiler::compile(&factory, grammar.text()).unwrap();
            let compiled = began.elapsed();
            let began = Instant::now();
            let mut times = Vec::new();
            let mut own = shared.deep_clone();
            let copied = began.elapsed();
            let mut mask = motley_engine::TokenMask::none_allowed(logits);
            for token in vocabulary.tokenize(text, false, false).unwrap() {
                let began = Instant::now();
                mask.assign(own.compute_mask_or_eos().unwrap().as_slice());
                assert!(mask.is_allowed(token), "{token}");
                own.consume_token(token.cast_unsigned()).unwrap();
                times.push(began.elapsed());
            }
            times.sort_unstable();
            let (middle, most) = (times[times.len() / 2], times[times.len() - 1]);
            let ninety = times[times.len() * 9 / 10];
            println!(
                "  {name}: compiled in {compiled:?}, {bytes} bytes, copied in {copied:?}; masks p50 \
                 {middle:?}, p90 {ninety:?}, most {most:?} of {}",
                times.len()
            );
        }
    }
}
