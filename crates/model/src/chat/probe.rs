//! What a template can do, found out by rendering small conversations with it.

use serde_json::{Map, Value as Json, json};

use super::control::ControlTokens;
use super::date::CivilTime;
use super::prompt::{ChatInput, TokenTexts};
use super::template::ChatTemplate;

/// What a template does with the less common parts of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts about one template, read by name"
)]
pub struct TemplateAbilities {
    /// A system message reaches the prompt.
    pub system: bool,
    /// Offered tools reach the prompt.
    pub tools: bool,
    /// An assistant's tool calls reach the prompt with their arguments as an object.
    pub object_arguments: bool,
    /// An assistant's tool calls reach the prompt with their arguments as JSON text.
    pub text_arguments: bool,
    /// Content given as a list of text parts reaches the prompt as its text.
    pub content_parts: bool,
}

/// Words that no template contains by itself.
const PROBE: &str = "zqxprobe";

impl ChatTemplate {
    /// Finds out what the template can do. Each answer comes from rendering one conversation;
    /// a failure counts as no.
    pub fn abilities(&self) -> TemplateAbilities {
        let user = json!({"role": "user", "content": "hello"});
        let tools = [json!({"type": "function", "function": {
            "name": PROBE, "description": "probe",
            "parameters": {"type": "object", "properties": {}, "required": []}}})];
        let calls = |arguments: Json| {
            let call = json!({"id": "call00001", "type": "function",
                "function": {"name": "probe", "arguments": arguments}});
            [
                user.clone(),
                json!({"role": "assistant", "content": "", "tool_calls": [call]}),
                json!({"role": "tool", "tool_call_id": "call00001", "content": "1"}),
            ]
        };
        let system = json!({"role": "system", "content": PROBE});
        let parts = json!({"role": "user", "content": [{"type": "text", "text": PROBE}]});
        // JSON text as a client sends it; printed twice encoded it would mislead a model.
        let text = format!(r#"{{"{PROBE}": 1}}"#);
        TemplateAbilities {
            system: self.prints(PROBE, &[system, user.clone()], &[]),
            tools: self.prints(PROBE, std::slice::from_ref(&user), &tools),
            object_arguments: self.prints(PROBE, &calls(json!({ PROBE: 1 })), &[]),
            text_arguments: self.prints(&format!("\"{PROBE}\""), &calls(Json::String(text)), &[]),
            content_parts: self.prints(PROBE, std::slice::from_ref(&parts), &[])
                && !self.prints("'type'", &[parts], &[]),
        }
    }

    /// Whether a call in a message whose content is null reaches the prompt, and the null as no
    /// text.
    pub(super) fn prints_calls_with_null_content(&self) -> bool {
        let call = json!({"id": "call00001", "type": "function",
            "function": {"name": PROBE, "arguments": {}}});
        let messages = [
            json!({"role": "user", "content": "hello"}),
            json!({"role": "assistant", "content": null, "tool_calls": [call]}),
            json!({"role": "tool", "tool_call_id": "call00001", "content": "1"}),
        ];
        self.prints(PROBE, &messages, &[]) && !self.prints("None", &messages, &[])
    }

    fn prints(&self, wanted: &str, messages: &[Json], tools: &[Json]) -> bool {
        let input = ChatInput {
            messages,
            tools,
            add_generation_prompt: false,
            tokens: TokenTexts {
                bos: Some("<s>"),
                eos: Some("</s>"),
                pad: Some("<pad>"),
                unk: Some("<unk>"),
            },
            control_tokens: &ControlTokens::default(),
            now: CivilTime { year: 2025, month: 1, day: 1, hour: 0, minute: 0, second: 0 },
            variables: &Map::new(),
        };
        self.render(&input).is_ok_and(|prompt| prompt.text().contains(wanted))
    }
}
