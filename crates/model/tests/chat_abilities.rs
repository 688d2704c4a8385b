//! What templates can do, found out by rendering.

#![expect(clippy::print_stderr, reason = "tests report skipped data")]

mod chat_common;

use expect_test::{Expect, expect};
use motley_model::{ChatTemplate, TemplateAbilities};

use chat_common::{render, shared_data, user};

fn check(template: &ChatTemplate, expected: Expect) {
    let TemplateAbilities { system, tools, object_arguments, text_arguments, content_parts } =
        template.abilities();
    let all = [
        (system, "system"),
        (tools, "tools"),
        (object_arguments, "object arguments"),
        (text_arguments, "text arguments"),
        (content_parts, "content parts"),
    ];
    let can: Vec<&str> = all.into_iter().filter(|(can, _)| *can).map(|(_, name)| name).collect();
    expected.assert_eq(&can.join(", "));
}

#[test]
fn the_default_template_knows_roles_and_parts() {
    check(&ChatTemplate::chatml(), expect!["system, content parts"]);
    let messages = [user("hi")];
    let prompt = render(&ChatTemplate::chatml(), &messages, &["<|im_end|>"]).expect("renders");
    expect![[r#"
        <|im_start|>user
        hi<|im_end|>
        <|im_start|>assistant
    "#]]
    .assert_eq(prompt.text());
}

#[test]
fn a_template_that_refuses_or_ignores_is_found_out() {
    let refusing = "{% for m in messages %}{% if m.role == 'system' %}\
                    {{ raise_exception('no system') }}{% endif %}{{ m.content }}{% endfor %}";
    check(&ChatTemplate::parse(refusing).expect("parses"), expect![""]);
    let ignoring = "{{ messages[-1].content }}";
    check(&ChatTemplate::parse(ignoring).expect("parses"), expect![""]);
}

#[test]
fn abilities_of_known_templates() {
    let folder = shared_data().join("chat_templates/templates");
    if !folder.exists() {
        eprintln!("skipped: no templates in {}", folder.display());
        return;
    }
    for (name, expected) in [
        ("Qwen-Qwen2.5-7B-Instruct", expect!["system, tools, object arguments"]),
        ("Qwen-Qwen3-0.6B", expect!["system, tools, object arguments, text arguments"]),
        ("Qwen3-Coder", expect!["system, tools, object arguments"]),
        ("google-gemma-2-2b-it", expect![""]),
        ("meta-llama-Llama-3.2-3B-Instruct", expect!["system, tools, object arguments"]),
        ("mistralai-Mistral-Nemo-Instruct-2407", expect!["system, tools, object arguments"]),
        ("microsoft-Phi-3.5-mini-instruct", expect!["system"]),
        ("openai-gpt-oss-120b", expect!["system, tools, object arguments"]),
        ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", expect!["system, object arguments"]),
        (
            "ibm-granite-granite-4.0",
            expect!["system, tools, object arguments, text arguments, content parts"],
        ),
    ] {
        let source = std::fs::read_to_string(folder.join(format!("{name}.jinja")));
        check(&ChatTemplate::parse(&source.expect("template")).expect("parses"), expected);
    }
}
