//! From a conversation to the tokens of a prompt.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use motley_gateway::{ChatMessage, ChatPrompt, PlainValue, ToolCall, ToolDefinition};
use motley_ggml::{Token, Vocabulary};
use motley_model::{
    ChatInput, ChatTemplate, CivilTime, ControlTokens, ModelDescription, PromptSegment,
    RenderedPrompt, TemplateAbilities, TokenTexts,
};
use serde_json::{Map, Value as Json, json};

/// Turns conversations into prompts for one model.
#[derive(Debug)]
pub(crate) struct PromptMaker {
    template: ChatTemplate,
    abilities: TemplateAbilities,
    source: Option<String>,
    control_tokens: ControlTokens,
    begin_text: Option<String>,
    end_text: Option<String>,
}

impl PromptMaker {
    /// The file's own template, or ChatML where the file has none.
    ///
    /// # Errors
    /// When the file's template does not parse.
    pub(crate) fn new(
        description: &ModelDescription,
        vocabulary: &Vocabulary,
    ) -> anyhow::Result<Self> {
        let source = description.chat_template.clone();
        let template = match &source {
            Some(source) => {
                ChatTemplate::parse(source).context("cannot use the model's chat template")?
            }
            None => ChatTemplate::chatml(),
        };
        Ok(Self {
            abilities: template.abilities(),
            template,
            source,
            control_tokens: ControlTokens::new(vocabulary.special_texts()),
            begin_text: text_of(vocabulary, vocabulary.begin_of_text())?,
            end_text: text_of(vocabulary, vocabulary.end_of_text())?,
        })
    }

    /// For a template alone, without a model.
    #[cfg(test)]
    pub(crate) fn of_template(source: &str) -> Self {
        let template = ChatTemplate::parse(source).unwrap();
        Self {
            abilities: template.abilities(),
            template,
            source: Some(source.to_owned()),
            control_tokens: ControlTokens::new([""; 0]),
            begin_text: Some("<s>".to_owned()),
            end_text: Some("</s>".to_owned()),
        }
    }

    /// The template's text, if the file has one.
    pub(crate) fn template_source(&self) -> Option<&str> {
        self.source.as_deref()
    }

    /// What the template can do.
    pub(crate) fn abilities(&self) -> TemplateAbilities {
        self.abilities
    }

    /// The prompt that asks for an answer to `messages`.
    ///
    /// # Errors
    /// When the template fails on them.
    pub(crate) fn chat(
        &self,
        messages: &[Json],
        vocabulary: &Vocabulary,
    ) -> anyhow::Result<Vec<Token>> {
        let conversation = Conversation {
            messages: messages.to_vec(),
            tools: Vec::new(),
            variables: Map::new(),
            ending: Ending::Answer,
        };
        self.render(&conversation)?.tokens(vocabulary)
    }

    /// An assistant's turn that is nothing but `call`, in the ways in which the template writes it:
    /// with arguments as an object or as text, and with ids of several kinds, of which templates
    /// refuse some.
    pub(crate) fn written_calls(&self, call: &ToolCall) -> Vec<String> {
        let numbered = ToolCall { id: format!("functions.{}:0", call.name), ..call.clone() };
        let object_arguments = self.abilities.object_arguments;
        let mut written = Vec::new();
        for object_arguments in [object_arguments, !object_arguments] {
            let abilities = TemplateAbilities { object_arguments, ..self.abilities };
            for call in [call, &numbered] {
                written.extend(self.written_call(call, abilities));
            }
        }
        written
    }

    /// Nothing where the template refuses or drops the call.
    fn written_call(&self, call: &ToolCall, abilities: TemplateAbilities) -> Option<String> {
        let question = ChatMessage {
            role: motley_gateway::Role::User,
            content: "question".to_owned(),
            ..ChatMessage::default()
        };
        let answer = ChatMessage {
            role: motley_gateway::Role::Assistant,
            tool_calls: vec![call.clone()],
            ..ChatMessage::default()
        };
        let tool = ToolDefinition {
            name: call.name.clone(),
            description: None,
            parameters: "{}".to_owned(),
            strict: false,
        };
        let render = |messages: &[&ChatMessage], add_generation_prompt| {
            let prompt = ChatPrompt {
                messages: messages.iter().copied().cloned().collect(),
                tools: vec![tool.clone()],
                add_generation_prompt,
                variables: BTreeMap::default(),
            };
            let mut conversation = Conversation::from_prompt(&prompt, abilities);
            if !add_generation_prompt {
                // The turn is to be closed, not gone on with.
                conversation.ending = Ending::Closed;
            }
            self.render(&conversation).ok().map(Rendered::into_text)
        };
        let before = render(&[&question], true)?;
        let whole = render(&[&question, &answer], false)?;
        let common = before.chars().zip(whole.chars()).take_while(|(one, other)| one == other);
        let bytes: usize = common.map(|(character, _)| character.len_utf8()).sum();
        let written = &whole[bytes..];
        written.contains(&call.name).then(|| written.to_owned())
    }

    /// A conversation as the model reads it.
    ///
    /// # Errors
    /// When the template fails on it.
    pub(crate) fn render(&self, conversation: &Conversation) -> anyhow::Result<Rendered> {
        let prompt = self
            .template
            .render(&ChatInput {
                messages: &conversation.messages,
                tools: &conversation.tools,
                add_generation_prompt: matches!(conversation.ending, Ending::Answer),
                tokens: TokenTexts {
                    bos: self.begin_text.as_deref(),
                    eos: self.end_text.as_deref(),
                    pad: None,
                    unk: None,
                },
                control_tokens: &self.control_tokens,
                now: civil_time(SystemTime::now()),
                variables: &conversation.variables,
            })
            .context("the model's chat template refuses this conversation")?;
        let mut bytes = prompt.text().len();
        if let Ending::Continue(text) = &conversation.ending {
            // What the template writes after the last words closes the turn.
            let start = prompt.text().rfind(text.as_str());
            bytes = start.map_or(bytes, |start| start + text.len());
        }
        Ok(Rendered { prompt, bytes })
    }
}

/// What a template is asked to render.
#[derive(Debug)]
pub(crate) struct Conversation {
    messages: Vec<Json>,
    tools: Vec<Json>,
    variables: Map<String, Json>,
    ending: Ending,
}

/// How a prompt ends.
#[derive(Debug)]
enum Ending {
    /// With the opening of an assistant's turn.
    Answer,
    /// With these words of the assistant, whose turn stays open.
    Continue(String),
    /// As the template ends it.
    Closed,
}

impl Conversation {
    /// A request's conversation, in the form that the template reads best.
    pub(crate) fn from_prompt(prompt: &ChatPrompt, abilities: TemplateAbilities) -> Self {
        let tools = prompt.tools.iter().map(|tool| {
            // The gateway has checked that parameters are JSON.
            let parameters: Json =
                serde_json::from_str(&tool.parameters).unwrap_or_else(|_| json!({}));
            json!({
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description.as_deref().unwrap_or_default(),
                    "parameters": parameters,
                },
            })
        });
        let variables = prompt.variables.iter().map(|(name, value)| {
            let value = match value {
                PlainValue::Flag(flag) => json!(flag),
                PlainValue::Number(number) => json!(number),
                PlainValue::Text(text) => json!(text),
            };
            (name.clone(), value)
        });
        let ending = match prompt.messages.last() {
            _ if prompt.add_generation_prompt => Ending::Answer,
            Some(last) if last.role == motley_gateway::Role::Assistant => {
                Ending::Continue(last.content.trim_end().to_owned())
            }
            _ => Ending::Closed,
        };
        let tools: Vec<Json> = tools.collect();
        let mut messages: Vec<ChatMessage> = prompt.messages.clone();
        if !tools.is_empty() && !abilities.tools {
            tell_of_tools(&mut messages, &tools, abilities);
        }
        Self {
            messages: messages.iter().map(|message| as_json(message, abilities)).collect(),
            tools,
            variables: variables.collect(),
            ending,
        }
    }
}

/// Puts tools into words for a template that drops them.
fn tell_of_tools(messages: &mut Vec<ChatMessage>, tools: &[Json], abilities: TemplateAbilities) {
    let mut words = "These functions can be called:\n".to_owned();
    for tool in tools {
        words.push_str(&tool["function"].to_string());
        words.push('\n');
    }
    words.push_str(
        "To call one, answer with nothing but an object of this form:\n\
         {\"name\": \"the function's name\", \"arguments\": {\"an argument's name\": \"its value\"}}",
    );
    match messages.first_mut() {
        // Without a place for instructions they open the first message, whoever speaks.
        Some(first) if first.role == motley_gateway::Role::System || !abilities.system => {
            first.content = match first.content.is_empty() {
                true => words,
                false => format!("{words}\n\n{}", first.content),
            };
        }
        _ => {
            let role = motley_gateway::Role::System;
            messages.insert(0, ChatMessage { role, content: words, ..ChatMessage::default() });
        }
    }
}

fn as_json(message: &ChatMessage, abilities: TemplateAbilities) -> Json {
    let mut fields = Map::new();
    fields.insert("role".to_owned(), json!(message.role.as_str()));
    fields.insert("content".to_owned(), json!(message.content));
    for (name, value) in [
        ("name", &message.name),
        ("reasoning_content", &message.reasoning),
        ("tool_call_id", &message.tool_call_id),
    ] {
        if let Some(value) = value {
            fields.insert(name.to_owned(), json!(value));
        }
    }
    if !message.tool_calls.is_empty() {
        let calls: Vec<Json> =
            message.tool_calls.iter().map(|call| call_as_json(call, abilities)).collect();
        fields.insert("tool_calls".to_owned(), Json::Array(calls));
    }
    Json::Object(fields)
}

fn call_as_json(call: &ToolCall, abilities: TemplateAbilities) -> Json {
    let parsed = serde_json::from_str(&call.arguments).ok();
    let arguments = match parsed {
        Some(value @ Json::Object(_)) if abilities.object_arguments => value,
        _ => Json::String(call.arguments.clone()),
    };
    json!({
        "id": call.id,
        "type": "function",
        "function": { "name": call.name, "arguments": arguments },
    })
}

/// A rendered prompt, perhaps cut so that its last turn stays open.
#[derive(Debug)]
pub(crate) struct Rendered {
    prompt: RenderedPrompt,
    /// Bytes of the text that count.
    bytes: usize,
}

impl Rendered {
    /// Its tokens. Control tokens are read only where the template wrote them.
    ///
    /// # Errors
    /// When the text is too long to count.
    pub(crate) fn tokens(&self, vocabulary: &Vocabulary) -> anyhow::Result<Vec<Token>> {
        let mut left = self.bytes;
        let segments = self.prompt.segments().into_iter().filter_map(|segment| {
            let text = &segment.text[..segment.text.len().min(left)];
            left -= text.len();
            (!text.is_empty()).then_some(PromptSegment { text, ..segment })
        });
        tokens_of(&segments.collect::<Vec<_>>(), vocabulary)
    }

    /// A number of tokens that it has at least, told from its length alone.
    pub(crate) fn tokens_at_least(&self, vocabulary: &Vocabulary) -> usize {
        vocabulary.tokens_at_least(&self.prompt.text()[..self.bytes])
    }

    /// Its text.
    pub(crate) fn into_text(self) -> String {
        self.prompt.text()[..self.bytes].to_owned()
    }
}

/// The prompt that a text is by itself.
///
/// # Errors
/// When the text is too long to count.
pub(crate) fn raw(text: &str, vocabulary: &Vocabulary) -> anyhow::Result<Vec<Token>> {
    Ok(vocabulary.tokenize(text, true, false)?)
}

/// Control tokens are read only where the template wrote them. The begin token, which many
/// templates write themselves, stands once.
fn tokens_of(
    segments: &[PromptSegment<'_>],
    vocabulary: &Vocabulary,
) -> anyhow::Result<Vec<Token>> {
    let mut tokens = Vec::new();
    for segment in segments {
        tokens.extend(vocabulary.tokenize(segment.text, false, segment.special)?);
    }
    if vocabulary.adds_begin_of_text()
        && let Some(begin) = vocabulary.begin_of_text()
        && tokens.first() != Some(&begin)
    {
        tokens.insert(0, begin);
    }
    Ok(tokens)
}

fn text_of(vocabulary: &Vocabulary, token: Option<Token>) -> anyhow::Result<Option<String>> {
    let Some(token) = token else { return Ok(None) };
    let mut bytes = Vec::new();
    vocabulary.append_bytes(token, true, &mut bytes)?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// The calendar's day and the clock in universal time.
fn civil_time(now: SystemTime) -> CivilTime {
    const DAY_SECONDS: u64 = 86_400;
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / DAY_SECONDS, seconds % DAY_SECONDS);
    let (year, month, day) = civil_day(days);
    let part = |value: u64| u8::try_from(value).expect("parts of a day and a year are small");
    CivilTime {
        year: i32::try_from(year).unwrap_or(i32::MAX),
        month: part(month),
        day: part(day),
        hour: part(second / 3600),
        minute: part(second / 60 % 60),
        second: part(second % 60),
    }
}

/// Year, month and day of a day counted from 1 January 1970.
///
/// Years are taken to begin in March, so that the leap day is a year's last; 400 such years have
/// 146,097 days.
fn civil_day(days: u64) -> (u64, u64, u64) {
    const ERA_DAYS: u64 = 146_097;
    /// Days from 1 March of year 0 to 1 January 1970.
    const BEFORE_1970_DAYS: u64 = 719_468;
    let days = days + BEFORE_1970_DAYS;
    let (era, day_of_era) = (days / ERA_DAYS, days % ERA_DAYS);
    // Leap days are taken out before dividing: one in 4 years, none in 100, one again in 400.
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Months from March have 31, 30, 31, 30, 31 days over and over: 153 in five.
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn tools_are_told_where_a_template_drops_them() {
        let check = |system: bool, roles: &[motley_gateway::Role], expected: &[&str]| {
            let tool = ToolDefinition {
                name: "sun".to_owned(),
                description: None,
                parameters: "{}".to_owned(),
                strict: false,
            };
            let message =
                |role| ChatMessage { role, content: "x".to_owned(), ..Default::default() };
            let prompt = ChatPrompt {
                messages: roles.iter().copied().map(message).collect(),
                tools: vec![tool],
                add_generation_prompt: true,
                variables: Default::default(),
            };
            let mut abilities = ChatTemplate::chatml().abilities();
            (abilities.system, abilities.tools) = (system, false);
            let told = Conversation::from_prompt(&prompt, abilities);
            let lines: Vec<String> = told
                .messages
                .iter()
                .map(|message| {
                    let content = message["content"].as_str().unwrap();
                    let tells = content.contains("\"name\":\"sun\"");
                    let keeps = content.ends_with('x');
                    format!("{} {tells} {keeps}", message["role"].as_str().unwrap())
                })
                .collect();
            assert_eq!(lines, expected);
        };
        use motley_gateway::Role::{System, User};
        check(true, &[User], &["system true false", "user false true"]);
        check(true, &[System, User], &["system true true", "user false true"]);
        check(false, &[User], &["user true true"]);
    }

    #[test]
    fn days_have_their_dates() {
        // Right-hand sides are the output of `date -u -d @SECONDS`.
        for (seconds, date) in [
            (0, (1970, 1, 1, 0, 0, 0)),
            (951_782_400, (2000, 2, 29, 0, 0, 0)),
            (951_868_799, (2000, 2, 29, 23, 59, 59)),
            (1_767_225_599, (2025, 12, 31, 23, 59, 59)),
            (4_107_542_400, (2100, 3, 1, 0, 0, 0)),
        ] {
            let time = civil_time(UNIX_EPOCH + Duration::from_secs(seconds));
            let found = (time.year, time.month, time.day, time.hour, time.minute, time.second);
            assert_eq!(found, date, "{seconds}");
        }
    }
}
