//! Calls in text, however the text is cut.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "tests say what they skip, and read data beside the checkout"
)]

use std::collections::BTreeMap;
use std::path::Path;

use expect_test::{Expect, expect};
use motley_gateway::{ToolDefinition, ToolUse};
use proptest::prelude::*;

use super::*;
use crate::prompt::PromptMaker;

fn tools(choice: ToolChoice, parallel: bool) -> ToolUse {
    let tool = |name: &str| ToolDefinition {
        name: name.to_owned(),
        description: None,
        parameters: "{}".to_owned(),
        strict: false,
    };
    ToolUse { tools: vec![tool("sun"), tool("rain")], choice, parallel }
}

/// Contents of an answer in pieces, those that belong together joined.
fn read<'a>(
    style: CallStyle,
    tools: &ToolUse,
    pieces: impl IntoIterator<Item = &'a str>,
) -> Vec<String> {
    let mut reader = AnswerReader::new(Some(tools), style);
    let mut contents = Vec::new();
    for piece in pieces {
        if reader.push(piece, &mut contents) == Progress::Complete {
            break;
        }
    }
    reader.finish(&mut contents);
    let mut lines: Vec<String> = Vec::new();
    for content in contents {
        let (text, continues) = match content {
            Content::Text(text) | Content::Reasoning(text) => (format!("text {text:?}"), false),
            Content::CallStart { call, name } => (format!("call {call} {name} "), false),
            Content::CallArguments { text, .. } => (text, true),
        };
        match lines.last_mut() {
            Some(last) if continues => last.push_str(&text),
            _ => lines.push(text),
        }
    }
    lines
}

fn check(style: CallStyle, answer: &str, expected: Expect) {
    let tools = tools(ToolChoice::Auto, true);
    let whole = read(style, &tools, [answer]);
    expected.assert_eq(&whole.join("\n"));
}

#[test]
fn tagged_calls_are_found() {
    check(
        CallStyle::Tagged,
        "Let me look.<tool_call>\n{\"name\": \"sun\", \"arguments\": {\"at\": \"O}slo\"}}\n</tool_call>\n\
         <tool_call>\n{\"name\": \"rain\", \"arguments\": {}}\n</tool_call>",
        expect![[r#"
            text "Let me look."
            call 0 sun {"at": "O}slo"}
            call 1 rain {}"#]],
    );
    // The closing may be missing, as after a stop token.
    check(
        CallStyle::Tagged,
        r#"<tool_call>{"name": "sun", "arguments": {"at": 1.0}}</tool_"#,
        expect![[r#"call 0 sun {"at": 1.0}"#]],
    );
}

#[test]
fn what_is_no_call_stays_text() {
    let tagged = |answer, expected| check(CallStyle::Tagged, answer, expected);
    tagged("a < b <tool <tool_call", expect![[r#"text "a < b <tool <tool_call""#]]);
    tagged(
        r#"<tool_call>{"name": "moon", "arguments": {}}</tool_call>"#,
        expect![[r#"text "<tool_call>{\"name\": \"moon\", \"arguments\": {}}</tool_call>""#]],
    );
    tagged(
        r#"<tool_call>{"name": "sun", "arguments": {}"#,
        expect![[r#"text "<tool_call>{\"name\": \"sun\", \"arguments\": {}""#]],
    );
    tagged("<tool_call>sun</tool_call>", expect![[r#"text "<tool_call>sun</tool_call>""#]]);
    tagged(
        r#"<tool_call>{"name": "sun", "arguments": 3}"#,
        expect![[r#"text "<tool_call>{\"name\": \"sun\", \"arguments\": 3}""#]],
    );
    check(
        CallStyle::Bare,
        r#"{"name": "Ada", "age": 36} is JSON"#,
        expect![[r#"text "{\"name\": \"Ada\", \"age\": 36} is JSON""#]],
    );
    check(
        CallStyle::Bare,
        r#"Call {"name": "sun", "arguments": {}}"#,
        expect![[r#"text "Call {\"name\": \"sun\", \"arguments\": {}}""#]],
    );
}

#[test]
fn bare_calls_are_found_at_the_beginning() {
    check(
        CallStyle::Bare,
        "\n{\"name\": \"sun\", \"arguments\": {\"at\": [1, {}]}}\n",
        expect![[r#"call 0 sun {"at": [1, {}]}"#]],
    );
    check(
        CallStyle::Parameters,
        r#"<|python_tag|>{"name": "sun", "parameters": {}}; {"name": "rain", "parameters": {}}"#,
        expect![[r#"
            call 0 sun {}
            call 1 rain {}"#]],
    );
}

#[test]
fn listed_calls_are_found() {
    check(
        CallStyle::Listed,
        r#"[TOOL_CALLS][{"name": "sun", "arguments": {"at": 1}, "id": "123456789"}, {"name": "rain", "arguments": {}}]"#,
        expect![[r#"
            call 0 sun {"at": 1}
            call 1 rain {}"#]],
    );
    check(
        CallStyle::Listed,
        r#"Well.[TOOL_CALLS]sun[CALL_ID]123456789[ARGS]{"at": 1}[TOOL_CALLS]rain[ARGS]{}"#,
        expect![[r#"
            text "Well."
            call 0 sun {"at": 1}
            call 1 rain {}"#]],
    );
    check(CallStyle::Listed, "[TOOL_CALLS][1, 2]", expect![[r#"text "[TOOL_CALLS][1, 2]""#]]);
}

#[test]
fn calls_with_names_outside_their_json_are_found() {
    let two = expect![[r#"
        text "Well."
        call 0 sun {"at": "}"}
        call 1 rain {}"#]];
    let check = |style, answer: &str| {
        let found = read(style, &tools(ToolChoice::Auto, true), [answer]);
        two.assert_eq(&found.join("\n"));
    };
    check(
        CallStyle::Functions,
        "Well.<function=sun>{\"at\": \"}\"}</function>\n<function=rain>{}</function>",
    );
    check(
        CallStyle::Separated,
        "Well.<｜tool▁call▁begin｜>function<｜tool▁sep｜>sun\n```json\n{\"at\": \"}\"}\n```<｜tool▁call▁end｜>\n\
         <｜tool▁call▁begin｜>rain<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
    );
    check(
        CallStyle::Numbered,
        "Well.<|tool_call_begin|>functions.sun:0<|tool_call_argument_begin|>{\"at\": \"}\"}<|tool_call_end|>\
         <|tool_call_begin|>functions.rain:1<|tool_call_argument_begin|>{}<|tool_call_end|>",
    );
    check(
        CallStyle::TaggedList,
        r#"Well.<tool_calls>{"name": "sun", "arguments": {"at": "}"}}
        {"name": "rain", "arguments": {}}</tool_calls>"#,
    );
    check(
        CallStyle::CapitalList,
        r#"Well.<TOOLCALL>[{"name": "sun", "arguments": {"at": "}"}},
        {"name": "rain", "arguments": {}}]</TOOLCALL>"#,
    );
}

/// What is forced begins behind the name, so that arguments before it would be whatever they are.
#[test]
fn a_strict_call_has_its_name_first() {
    let mut tools = tools(ToolChoice::Auto, true);
    let answer = r#"{"arguments": {"at": 1}, "name": "sun"}"#;
    assert_eq!(read(CallStyle::Bare, &tools, [answer]), [r#"call 0 sun {"at": 1}"#]);
    tools.tools[0].strict = true;
    assert_eq!(read(CallStyle::Bare, &tools, [answer]), [format!("text {answer:?}")]);
}

#[test]
fn one_call_is_enough_where_only_one_is_allowed() {
    let answer = r#"<tool_call>{"name": "sun", "arguments": {}}</tool_call>
<tool_call>{"name": "rain", "arguments": {}}</tool_call>"#;
    let found = read(CallStyle::Tagged, &tools(ToolChoice::Auto, false), [answer]);
    assert_eq!(found, ["call 0 sun {}"]);
}

#[test]
fn forced_arguments_are_passed_on_as_they_come() {
    let tools = tools(ToolChoice::Required, true);
    let mut reader = AnswerReader::new(Some(&tools), CallStyle::Bare);
    let mut contents = Vec::new();
    for piece in ["{\"na", "me\": \"su", "n\", \"arguments\": {\"at", "\": \"}\"", "}", "}"] {
        reader.push(piece, &mut contents);
    }
    expect![[r#"
        [CallStart { call: 0, name: "sun" }, CallArguments { call: 0, text: "{\"at" }, CallArguments { call: 0, text: "\": \"}\"" }, CallArguments { call: 0, text: "}" }]"#]]
    .assert_eq(&format!("{contents:?}"));
    assert_eq!(reader.calls(), 1);
}

#[test]
fn a_call_that_is_too_long_is_text() {
    let endless = format!("<tool_call>{{\"name\": \"{}", "x".repeat(100_000));
    let found = read(CallStyle::Tagged, &tools(ToolChoice::Auto, true), [endless.as_str()]);
    assert_eq!(found, [format!("text {endless:?}")]);
}

#[test]
fn templates_tell_the_style() {
    for (template, style) in [
        (None, CallStyle::Bare),
        (Some("{{ messages }}"), CallStyle::Bare),
        (Some("return <tool_call>\n{\"name\": ..}\n</tool_call>"), CallStyle::Tagged),
        (Some("<tool_call>\n<function=example>\n</function>"), CallStyle::Bare),
        (Some("<tool_call>\n<function=example>\n<parameter=a>"), CallStyle::Elements),
        (Some("<tool_call>{name}\n<arg_key>"), CallStyle::Pairs),
        (Some("[TOOL_CALLS] {{ calls }}"), CallStyle::Listed),
        (Some("{{ '{\"name\": ' }} {{ '\"parameters\": ' }}"), CallStyle::Parameters),
        (Some("<|python_tag|>"), CallStyle::Parameters),
    ] {
        assert_eq!(CallStyle::of_template(template), style, "{template:?}");
    }
}

/// The style in which each template's calls are read back. Those that are `Bare` without writing
/// calls so have forms of their own that are not read.
#[test]
fn templates_show_their_style() {
    let here = Path::new("../../../shared").to_owned();
    let shared = std::env::var_os("MOTLEY_SHARED").map_or(here, Into::into);
    let Ok(files) = std::fs::read_dir(shared.join("data/chat_templates/templates")) else {
        println!("skipped: the templates are not beside the checkout");
        return;
    };
    let probe = probe();
    let mut styles: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files {
        let path = file.unwrap().path();
        let source = std::fs::read_to_string(&path).unwrap();
        let prompts = PromptMaker::of_template(&source);
        let written = prompts.written_calls(&probe);
        let style = style_of(&probe, &written, Some(&source));
        let read = written.iter().any(|text| reads_back(style, &probe, text));
        let by = if read { "read" } else { "guessed" };
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        styles.entry(format!("{style:?} {by}")).or_default().push(name);
    }
    let mut lines = String::new();
    for (style, mut names) in styles {
        names.sort();
        lines.push_str(&format!("{style}: {}\n", names.join(" ")));
    }
    expect![[r#"
        Bare guessed: Apertus-8B-Instruct GigaChat3-10B-A1.8B GigaChat3.1-10B-A1.8B HuggingFaceTB-SmolLM3-3B Kimi-K3 LFM2-8B-A1B LFM2.5-8B-A1B LFM2.5-Instruct MiniMax-M3 fireworks-ai-llama-3-firefunction-v2 google-gemma-2-2b-it google-gemma-4-31B-it google-gemma-4-31B-it-interleaved ibm-granite-granite-3.3-2B-Instruct llama-cpp-rwkv-world microsoft-Phi-3.5-mini-instruct openai-gpt-oss-120b upstage-Solar-Open-100B
        CapitalList guessed: NVIDIA-Nemotron-Nano-v2
        Elements read: NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 Qwen3-Coder Qwen3.5-4B StepFun3.5-Flash
        Functions read: meetkai-functionary-medium-v3.1
        Invocations read: MiniMax-M2
        Listed read: Mistral-Small-3.2-24B-Instruct-2506 mistralai-Ministral-3-14B-Reasoning-2512 mistralai-Mistral-Nemo-Instruct-2407 unsloth-mistral-Devstral-Small-2507
        NamedFunctions read: openbmb-MiniCPM5-1B
        Numbered guessed: Kimi-K2-Instruct Kimi-K2-Thinking
        Numbered read: moonshotai-Kimi-K2
        Pairs read: GLM-4.6 GLM-4.7-Flash Spark2.5 inclusionai-ling-3.0-flash poolside-Laguna-S-2.1 poolside-Laguna-XS-2.1 poolside-Laguna-XS.2
        Parameters guessed: Cohere2MoE CohereForAI-c4ai-command-r-plus-tool_use CohereForAI-c4ai-command-r7b-12-2024-tool_use muse-glimmer
        Parameters read: meta-llama-Llama-3.1-8B-Instruct meta-llama-Llama-3.2-3B-Instruct meta-llama-Llama-3.3-70B-Instruct
        Recipients read: meetkai-functionary-medium-v3.2
        SeedElements guessed: ByteDance-Seed-OSS
        Separated guessed: deepseek-ai-DeepSeek-R1-Distill-Llama-8B
        Separated read: deepseek-ai-DeepSeek-R1-Distill-Qwen-32B deepseek-ai-DeepSeek-V3.1 llama-cpp-deepseek-r1
        SeparatedPairs read: tencent-Hy3
        Tagged guessed: Qwen-QwQ-32B
        Tagged read: Bielik-11B-v3.0-Instruct MiMo-VL NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use NousResearch-Hermes-3-Llama-3.1-8B-tool_use Qwen-Qwen2.5-7B-Instruct Qwen-Qwen3-0.6B Reka-Edge ibm-granite-granite-4.0 ibm-granite-granite-4.1
        TaggedList read: Apriel-1.6-15b-Thinker-fixed MiniMax-M1 unsloth-Apriel-1.5
        ToldCalls read: deepseek-ai-DeepSeek-V4 deepseek-ai-DeepSeek-V4-Flash-0731
        ToldInvocations read: deepseek-ai-DeepSeek-V3.2
    "#]].assert_eq(&lines);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the text and however it is cut, the same is found, and without calls nothing is
    /// lost.
    #[test]
    fn cuts_make_no_difference(
        style in 0..CallStyle::ALL.len(),
        parts in prop::collection::vec(prop::sample::select(vec![
            "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "sun", "[ARGS]", " ",
            "\n", "é", ";", "{", "}", "[", "]", "\"", "\\", "<tool", "<", "<tool_calls>",
            "</tool_calls>", "<TOOLCALL>", "<function=", ">", "</function>", "functions.", ":0",
            "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<parameter=a>", "</parameter>",
            "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<function=sun>",
            "<minimax:tool_call>", "<invoke name=\"sun\">", "</invoke>", "</minimax:tool_call>",
            ">>>", ">>>all\n", ">>>sun\n", "<function name=\"rain\">", "<param name=\"b\">", "</param>",
            r#"{"name": "sun", "arguments": {"a": "b"}}"#,
            r#"{"name": "rain", "parameters": {}}"#,
        ]), 0..12),
        cut in 1..7_usize,
    ) {
        let text = parts.concat();
        let tools = tools(ToolChoice::Auto, true);
        let whole = read(CallStyle::ALL[style], &tools, [text.as_str()]);
        let characters: Vec<char> = text.chars().collect();
        let pieces: Vec<String> =
            characters.chunks(cut).map(|piece| piece.iter().collect()).collect();
        let mut reader = AnswerReader::new(Some(&tools), CallStyle::ALL[style]);
        let mut contents = Vec::new();
        for piece in &pieces {
            reader.push(piece, &mut contents);
        }
        reader.finish(&mut contents);
        let mut joined = Vec::new();
        for content in contents {
            match content {
                Content::Text(text) => add_text(&text, &mut joined),
                other => joined.push(other),
            }
        }
        prop_assert_eq!(joined.len(), whole.len() + reader.calls() as usize);
        // An answer to everybody loses the line that says so.
        if reader.calls() == 0 && CallStyle::ALL[style] != CallStyle::Recipients {
            prop_assert_eq!(whole, match text.is_empty() {
                true => vec![],
                false => vec![format!("text {text:?}")],
            });
        }
    }
}
