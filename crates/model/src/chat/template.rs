//! A compiled chat template and its rendering.

use std::error::Error as _;
use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::Value as Json;

use super::limits::{FUEL, INPUT_DEPTH_MAX, OUTPUT_BYTES_MAX, RECURSION_MAX, TEMPLATE_BYTES_MAX};
use super::origin::{ClientData, client_control_ranges};
use super::prompt::{ChatInput, RenderedPrompt};
use super::python::{self, Raised};
use super::scan::{self, Mentions};

/// The name under which the engine knows the one template it holds.
const NAME: &str = "chat_template";

/// ChatML, for model files that bring no template.
const CHATML: &str = "\
{% for message in messages %}
{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{ message.content }}
{%- else %}{% for part in message.content %}{{ part.text }}{% endfor %}
{%- endif %}
{{- '<|im_end|>\\n' -}}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
";

/// A chat template, compiled. It reads no files, and its work and output are bounded.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    mentions: Mentions,
    /// Whether a tool call without content is better given as null than as empty text.
    takes_null_content: bool,
}

/// Why a chat template gives no prompt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The source is longer than any real template.
    #[error("chat template has {bytes} bytes, more than the limit of {limit}")]
    SourceTooLong {
        /// Length of the source.
        bytes: usize,
        /// Longest source read.
        limit: usize,
    },
    /// A tag is nested, or a condition branched, beyond any real template.
    #[error("chat template line {line} is too complex")]
    TooComplex {
        /// Line in the template, from 1.
        line: usize,
    },
    /// The source is not a template this engine understands.
    #[error("chat template line {line}: {reason}")]
    Syntax {
        /// Line in the template, from 1.
        line: usize,
        /// What the parser says.
        reason: String,
    },
    /// The template refused the conversation in its own words.
    #[error("chat template line {line} refuses the conversation: {message}")]
    Raised {
        /// Line in the template, from 1.
        line: usize,
        /// The template's message.
        message: String,
    },
    /// The template failed on the conversation.
    #[error("chat template line {line}: {reason}")]
    Render {
        /// Line in the template, from 1; 0 where the engine does not know it.
        line: usize,
        /// What the engine says.
        reason: String,
    },
    /// The template did more work than any real conversation needs.
    #[error("chat template line {line}: stopped after {limit} steps")]
    TooMuchWork {
        /// Line in the template, from 1; 0 where the engine does not know it.
        line: usize,
        /// Most steps a rendering may take.
        limit: u64,
    },
    /// The prompt outgrew the limit.
    #[error("chat template writes more than {limit} bytes")]
    OutputTooLong {
        /// Longest prompt.
        limit: usize,
    },
    /// Messages, tools or variables are nested too deeply.
    #[error("messages, tools or template variables are nested more than {limit} levels deep")]
    InputTooDeep {
        /// Deepest nesting.
        limit: usize,
    },
    /// The template reworks the messages so that control tokens of its own cannot be told from
    /// the client's text.
    #[error(
        "chat template mixes text of the messages into its control tokens, \
         and the messages contain parts of control tokens"
    )]
    OriginUnclear,
}

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    ///
    /// [`TemplateError::SourceTooLong`], [`TemplateError::TooComplex`] and
    /// [`TemplateError::Syntax`].
    pub fn parse(source: &str) -> Result<Self, TemplateError> {
        if source.len() > TEMPLATE_BYTES_MAX {
            return Err(TemplateError::SourceTooLong {
                bytes: source.len(),
                limit: TEMPLATE_BYTES_MAX,
            });
        }
        if let Some(line) = scan::line_too_complex(source) {
            return Err(TemplateError::TooComplex { line });
        }
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| syntax_error(&error))?);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(RECURSION_MAX);
        python::extend(&mut environment);
        environment
            .add_template_owned(NAME, scan::adapted(source))
            .map_err(|error| syntax_error(&error))?;
        let mentions = scan::mentions(source);
        let mut template = Self { environment, mentions, takes_null_content: true };
        template.takes_null_content = template.prints_calls_with_null_content();
        Ok(template)
    }

    /// The template to use for a model file that has none: ChatML.
    ///
    /// It is no replacement for a template that fails; that failure is the answer.
    pub fn chatml() -> Self {
        Self::parse(CHATML).expect("the built-in template parses")
    }

    /// Renders a conversation.
    ///
    /// # Errors
    ///
    /// Every variant but those of [`Self::parse`].
    pub fn render(&self, input: &ChatInput<'_>) -> Result<RenderedPrompt, TemplateError> {
        let data = self.client_data(input)?;
        let text = self.render_text(input, &data)?;
        let literal =
            client_control_ranges(&text, &data, input.control_tokens, &self.mentions, |data| {
                self.render_text(input, data).ok()
            })
            .ok_or(TemplateError::OriginUnclear)?;
        Ok(RenderedPrompt::new(text, literal))
    }

    /// Copies the client's part of the input and settles absent content: some templates know a
    /// tool call by its null content, most would print `None`.
    fn client_data(&self, input: &ChatInput<'_>) -> Result<ClientData, TemplateError> {
        let mut data = ClientData {
            messages: input.messages.to_vec(),
            tools: input.tools.to_vec(),
            variables: input.variables.clone(),
        };
        let values = data.messages.iter().chain(&data.tools).chain(data.variables.values());
        if values.into_iter().any(|value| is_deeper(value, INPUT_DEPTH_MAX)) {
            return Err(TemplateError::InputTooDeep { limit: INPUT_DEPTH_MAX });
        }
        for message in data.messages.iter_mut().filter_map(Json::as_object_mut) {
            let keeps_null = self.takes_null_content && message.contains_key("tool_calls");
            if message.get("content").is_none_or(Json::is_null) {
                let absent = if keeps_null { Json::Null } else { Json::String(String::new()) };
                message.insert("content".to_owned(), absent);
            }
        }
        Ok(data)
    }

    fn render_text(
        &self,
        input: &ChatInput<'_>,
        data: &ClientData,
    ) -> Result<String, TemplateError> {
        let template = self.environment.get_template(NAME).map_err(|e| render_error(&e))?;
        let mut output = BoundedOutput(Vec::new());
        match template.render_captured_to(variables(input, data), &mut output) {
            Ok(_) => Ok(String::from_utf8_lossy(&output.0).into_owned()),
            Err(error) if error.kind() == ErrorKind::WriteFailure => {
                Err(TemplateError::OutputTooLong { limit: OUTPUT_BYTES_MAX })
            }
            Err(error) => Err(render_error(&error)),
        }
    }
}

fn is_deeper(value: &Json, levels: usize) -> bool {
    match value {
        Json::Array(items) => levels == 0 || items.iter().any(|item| is_deeper(item, levels - 1)),
        Json::Object(fields) => {
            levels == 0 || fields.values().any(|item| is_deeper(item, levels - 1))
        }
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => false,
    }
}

/// The names a template sees. A client's variable never hides one of ours.
fn variables(input: &ChatInput<'_>, data: &ClientData) -> Value {
    let tokens = [
        ("bos_token", input.tokens.bos),
        ("eos_token", input.tokens.eos),
        ("pad_token", input.tokens.pad),
        ("unk_token", input.tokens.unk),
    ];
    let own = [
        ("messages", list(&data.messages)),
        ("add_generation_prompt", Value::from(input.add_generation_prompt)),
        ("strftime_now", python::strftime_now(input.now)),
    ];
    let tools = (!data.tools.is_empty()).then(|| list(&data.tools));
    let pairs = data
        .variables
        .iter()
        .map(|(name, value)| (name.as_str(), value_of(value)))
        .chain(own)
        .chain([("tools", tools.unwrap_or_else(|| Value::from(())))])
        .chain(tokens.into_iter().filter_map(|(name, text)| Some((name, Value::from(text?)))));
    Value::from_pairs(pairs)
}

fn list(items: &[Json]) -> Value {
    Value::from(items.iter().map(value_of).collect::<Vec<_>>())
}

fn value_of(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(truth) => Value::from(*truth),
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => list(items),
        Json::Object(fields) => {
            Value::from_pairs(fields.iter().map(|(name, value)| (name.as_str(), value_of(value))))
        }
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => Value::from(integer),
            (None, Some(integer)) => Value::from(integer),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
    }
}

fn syntax_error(error: &Error) -> TemplateError {
    TemplateError::Syntax { line: error.line().unwrap_or(0), reason: reason(error) }
}

fn render_error(error: &Error) -> TemplateError {
    let line = error.line().unwrap_or(0);
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(Raised(message)) = inner.downcast_ref() {
            return TemplateError::Raised { line, message: message.clone() };
        }
        cause = inner.source();
    }
    match error.kind() {
        ErrorKind::OutOfFuel => TemplateError::TooMuchWork { line, limit: FUEL },
        _ => TemplateError::Render { line, reason: reason(error) },
    }
}

fn reason(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// Takes what the template writes, up to the limit.
struct BoundedOutput(Vec<u8>);

impl io::Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > OUTPUT_BYTES_MAX {
            return Err(io::Error::other("prompt too long"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
