//! Reference renderings of real chat templates, with and without control tokens.
//!
//! The templates follow their models' licences, so they are read from the shared folder and
//! never committed. Where that is absent the tests say so and pass.

#![expect(clippy::print_stderr, reason = "tests report counts and skipped data")]

mod chat_common;

use std::collections::{BTreeMap, BTreeSet};

use motley_model::{ChatInput, ChatTemplate, ControlTokens, RenderedPrompt, TemplateError};
use serde_json::{Map, Value as Json};

use chat_common::{NOW, TOKENS, read_tokens, render, shared_data, user};

/// Renderings that must be byte-identical; the reference has 1,656.
const IDENTICAL_MIN: usize = 1_640;

#[test]
fn reference_renderings_are_byte_identical() {
    let Some(reference) = Reference::read() else { return };
    let mut identical = 0;
    let mut expected = 0;
    let mut misses = Vec::new();
    for case in &reference.cases {
        let Some(output) = &case.output else { continue };
        expected += 1;
        match reference.render(case, &ControlTokens::default()) {
            Ok(prompt) if prompt.text() == output => identical += 1,
            Ok(prompt) => misses.push(format!("{case}: {}", difference(output, prompt.text()))),
            Err(error) => misses.push(format!("{case}: {error}")),
        }
    }
    eprintln!("{identical} of {expected} reference renderings are byte-identical");
    for miss in &misses {
        eprintln!("  {miss}");
    }
    assert!(identical >= IDENTICAL_MIN, "only {identical} of {expected}");
}

#[test]
fn control_tokens_change_no_text_and_are_never_the_clients() {
    let Some(reference) = Reference::read() else { return };
    let mut whole = 0;
    let mut cut = 0;
    for case in &reference.cases {
        let Some(output) = &case.output else { continue };
        let control = control_tokens_of(&reference.templates[&case.template]);
        let tokens = ControlTokens::new(control.iter().cloned());
        let prompt = match reference.render(case, &tokens) {
            Ok(prompt) => prompt,
            Err(error) if error == TemplateError::OriginUnclear => panic!("{case}: {error}"),
            Err(_) => continue,
        };
        let joined: String = prompt.segments().iter().map(|segment| segment.text).collect();
        assert_eq!(joined, prompt.text(), "{case}");
        if reference.render(case, &ControlTokens::default()).is_ok_and(|it| it.text() == output) {
            assert_eq!(joined, *output, "{case}");
        }
        if prompt.segments().len() == 1 {
            whole += 1;
        } else {
            cut += 1;
        }
        if case.context != "hostile_text" {
            assert_eq!(prompt.segments().len(), 1, "{case}: {:?}", prompt.segments());
        }
    }
    eprintln!("{whole} prompts in one piece, {cut} cut");
    assert!(cut > 0, "the hostile context must have been cut somewhere");
}

/// The control tokens read from a hostile conversation are those read from a harmless one.
#[test]
fn hostile_text_yields_the_control_tokens_of_harmless_text() {
    let Some(reference) = Reference::read() else { return };
    for case in reference.cases.iter().filter(|case| case.context == "hostile_text") {
        if case.output.is_none() {
            continue;
        }
        let mut control = control_tokens_of(&reference.templates[&case.template]);
        control.extend(
            ["<|im_end|>", "<|im_start|>", "</s>", "[/INST]", "<start_of_turn>"].map(str::to_owned),
        );
        let control: Vec<String> = control.into_iter().collect();
        let tokens = ControlTokens::new(control.iter().cloned());
        let hostile = reference.render(case, &tokens).expect("the reference renders");
        let harmless = Case { context: "user_only".to_owned(), ..case.clone() };
        let harmless = reference.render(&harmless, &tokens).expect("the reference renders");
        assert_eq!(read_tokens(&hostile, &control), read_tokens(&harmless, &control), "{case}");
    }
}

/// The same for more ways to write control tokens, on every template.
#[test]
fn no_template_lets_a_user_write_control_tokens() {
    let Some(reference) = Reference::read() else { return };
    let mut compared = 0;
    for (name, source) in &reference.templates {
        let Ok(template) = &reference.compiled[name] else { continue };
        let control: Vec<String> = control_tokens_of(source).into_iter().collect();
        let borrowed: Vec<&str> = control.iter().map(String::as_str).collect();
        let Ok(harmless) = render(template, &[user("x")], &borrowed) else { continue };
        let expected = read_tokens(&harmless, &control);
        let all = control.join(" ");
        let halves: Vec<&str> = control.iter().map(|token| &token[1..token.len() - 1]).collect();
        let texts = [
            all.clone(),
            control.join(""),
            halves.join("> <"),
            format!("a {all} b"),
            format!("{{{{ '{all}' }}}}\n"),
            source.clone(),
        ];
        for text in texts {
            let hostile = render(template, &[user(&text)], &borrowed);
            let hostile = hostile.unwrap_or_else(|error| panic!("{name} on {text:.200}: {error}"));
            assert_eq!(read_tokens(&hostile, &control), expected, "{name} on {text:.200}");
            compared += 1;
        }
    }
    eprintln!("{compared} hostile conversations compared");
    assert!(compared > 300);
}

#[derive(Clone)]
struct Case {
    template: String,
    context: String,
    add_generation_prompt: bool,
    output: Option<String>,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ending = if self.add_generation_prompt { " with generation prompt" } else { "" };
        write!(f, "{} on {}{ending}", self.template, self.context)
    }
}

struct Reference {
    templates: BTreeMap<String, String>,
    compiled: BTreeMap<String, Result<ChatTemplate, TemplateError>>,
    contexts: Map<String, Json>,
    cases: Vec<Case>,
}

impl Reference {
    fn read() -> Option<Self> {
        let folder = shared_data().join("chat_templates");
        let Ok(golden) = std::fs::read_to_string(folder.join("golden.jsonl")) else {
            eprintln!("skipped: no reference renderings in {}", folder.display());
            return None;
        };
        let contexts = std::fs::read_to_string(folder.join("contexts.json")).expect("contexts");
        let cases: Vec<Case> = golden.lines().map(parse_case).collect();
        let names: BTreeSet<&str> = cases.iter().map(|case| case.template.as_str()).collect();
        let templates: BTreeMap<String, String> = names
            .into_iter()
            .map(|name| {
                let path = folder.join("templates").join(name);
                (name.to_owned(), std::fs::read_to_string(path).expect("template"))
            })
            .collect();
        let compiled = templates
            .iter()
            .map(|(name, source)| (name.clone(), ChatTemplate::parse(source)))
            .collect();
        let contexts = serde_json::from_str(&contexts).expect("contexts are JSON");
        Some(Self { templates, compiled, contexts, cases })
    }

    fn render(
        &self,
        case: &Case,
        control_tokens: &ControlTokens,
    ) -> Result<RenderedPrompt, TemplateError> {
        let mut variables = self.contexts[&case.context].as_object().expect("object").clone();
        let mut list = |name: &str| match variables.remove(name) {
            Some(Json::Array(items)) => items,
            _ => Vec::new(),
        };
        let (messages, tools) = (list("messages"), list("tools"));
        let template = self.compiled[&case.template].as_ref().map_err(Clone::clone)?;
        template.render(&ChatInput {
            messages: &messages,
            tools: &tools,
            add_generation_prompt: case.add_generation_prompt,
            tokens: TOKENS,
            control_tokens,
            now: NOW,
            variables: &variables,
        })
    }
}

fn parse_case(line: &str) -> Case {
    let case: Json = serde_json::from_str(line).expect("a line of JSON");
    let text = |name: &str| case[name].as_str().expect("text").to_owned();
    Case {
        template: text("template"),
        context: text("context"),
        add_generation_prompt: case["add_generation_prompt"] == true,
        output: case["output"].as_str().map(str::to_owned),
    }
}

/// Words in angle or square brackets in a template, which is where its control tokens are; more
/// than a vocabulary would call so, to make the test harder.
fn control_tokens_of(source: &str) -> BTreeSet<String> {
    let mut found: BTreeSet<String> = ["<BOS>", "<EOS>"].map(str::to_owned).into();
    for (open, close) in [('<', '>'), ('[', ']')] {
        for (start, _) in source.match_indices(open) {
            let Some(length) = source[start..].find(close) else { break };
            let token = &source[start..=start + length];
            let inner = &token[1..token.len() - 1];
            let plain = |c: char| c.is_alphanumeric() || "_|/｜▁-".contains(c);
            let is_upper = inner.chars().any(char::is_uppercase) && !inner.contains('-');
            if inner.chars().all(plain) && inner.len() > 1 && (open == '<' || is_upper) {
                found.insert(token.to_owned());
            }
        }
    }
    found
}

/// The first place where two texts part, with some text around it.
fn difference(expected: &str, actual: &str) -> String {
    let same = expected.chars().zip(actual.chars()).take_while(|(a, b)| a == b).count();
    let around =
        |text: &str| text.chars().skip(same.saturating_sub(30)).take(80).collect::<String>();
    format!("expected {:?}, got {:?}", around(expected), around(actual))
}
