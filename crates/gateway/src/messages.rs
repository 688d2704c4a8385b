//! Conversations and tools as OpenAI writes them, read into the backend's types.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::backend::{
    ChatMessage, Constraint, PlainValue, Role, ToolCall, ToolChoice, ToolDefinition, ToolUse,
};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::{Limits, TEMPLATE_VARIABLE_BYTES, TEMPLATE_VARIABLES, TOOL_NAME_BYTES};
use crate::schema::check_schema;

/// Reads `messages`; there is at least one.
pub(crate) fn read_messages(
    fields: &Fields<'_>,
    limits: &Limits,
) -> Result<Vec<ChatMessage>, ApiError> {
    let list = fields.required("messages", fields.list("messages", limits.messages)?)?;
    if list.is_empty() {
        return Err(ApiError::invalid("messages", "must not be empty"));
    }
    let mut messages = Vec::with_capacity(list.len());
    let mut calls_made = BTreeSet::new();
    for (index, value) in list.iter().enumerate() {
        let message = read_message(&Fields::of(value, format!("messages[{index}]"))?, limits)?;
        calls_made.extend(message.tool_calls.iter().map(|call| call.id.clone()));
        if let Some(id) = &message.tool_call_id
            && !calls_made.contains(id)
        {
            return Err(ApiError::invalid(
                format!("messages[{index}].tool_call_id"),
                "answers a call that no earlier assistant message made",
            ));
        }
        messages.push(message);
    }
    Ok(messages)
}

fn read_message(fields: &Fields<'_>, limits: &Limits) -> Result<ChatMessage, ApiError> {
    let role = match fields.required("role", fields.text("role")?)? {
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        _ => {
            let problem = "must be system, developer, user, assistant or tool";
            return Err(ApiError::invalid(fields.path("role"), problem));
        }
    };
    let tool_calls = match role {
        Role::Assistant => read_tool_calls(fields, limits)?,
        _ => Vec::new(),
    };
    let content = match fields.value("content") {
        Some(content) => read_content(content, &fields.path("content"))?,
        None if role == Role::Assistant => String::new(),
        None => return Err(ApiError::Missing { param: fields.path("content") }),
    };
    let tool_call_id = match role {
        Role::Tool => {
            let id = fields.text("tool_call_id")?;
            Some(fields.required("tool_call_id", id)?.to_owned())
        }
        _ => None,
    };
    Ok(ChatMessage {
        role,
        content,
        name: fields.text("name")?.map(str::to_owned),
        reasoning: fields.text("reasoning_content")?.map(str::to_owned),
        tool_calls,
        tool_call_id,
    })
}

/// Content is a text, or parts of which only texts can be read here.
fn read_content(content: &Value, path: &str) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) if !parts.is_empty() => parts,
        _ => return Err(ApiError::invalid(path, "must be a text or a list of parts")),
    };
    let mut joined = String::new();
    for (index, part) in parts.iter().enumerate() {
        let part = Fields::of(part, format!("{path}[{index}]"))?;
        match part.required("type", part.text("type")?)? {
            "text" => joined.push_str(part.required("text", part.text("text")?)?),
            "refusal" => joined.push_str(part.required("refusal", part.text("refusal")?)?),
            "image_url" | "input_audio" | "file" | "video_url" => {
                return Err(ApiError::unsupported(part.path("type"), "the model reads only text"));
            }
            _ => return Err(ApiError::invalid(part.path("type"), "must be text")),
        }
    }
    Ok(joined)
}

fn read_tool_calls(fields: &Fields<'_>, limits: &Limits) -> Result<Vec<ToolCall>, ApiError> {
    let list = fields.list("tool_calls", limits.tools)?.unwrap_or_default();
    let mut calls = Vec::with_capacity(list.len());
    for (index, value) in list.iter().enumerate() {
        let call = Fields::of(value, format!("{}[{index}]", fields.path("tool_calls")))?;
        let id = call.required("id", call.text("id")?)?;
        let function = call.required("function", call.object("function")?)?;
        let name = function.required("name", function.text("name")?)?;
        check_name(name, &function.path("name"))?;
        let arguments = function.required("arguments", function.text("arguments")?)?;
        calls.push(ToolCall {
            id: id.to_owned(),
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        });
    }
    Ok(calls)
}

/// Reads `tools`, `tool_choice` and `parallel_tool_calls`. `None` when nothing may be called.
pub(crate) fn read_tool_use(
    fields: &Fields<'_>,
    limits: &Limits,
) -> Result<Option<ToolUse>, ApiError> {
    let tools = read_tools(fields, limits)?;
    let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    let choice = match fields.value("tool_choice") {
        None => ToolChoice::Auto,
        Some(Value::String(word)) => match word.as_str() {
            "none" => return Ok(None),
            "auto" => ToolChoice::Auto,
            "required" => ToolChoice::Required,
            _ => {
                let problem = "must be none, auto, required or a function";
                return Err(ApiError::invalid("tool_choice", problem));
            }
        },
        Some(value) => {
            let choice = Fields::of(value, "tool_choice")?;
            let function = choice.required("function", choice.object("function")?)?;
            let name = function.required("name", function.text("name")?)?;
            if !tools.iter().any(|tool| tool.name == name) {
                let problem = "is not among the tools of this request";
                return Err(ApiError::invalid(function.path("name"), problem));
            }
            ToolChoice::Named(name.to_owned())
        }
    };
    if tools.is_empty() {
        return match choice {
            ToolChoice::Auto => Ok(None),
            _ => Err(ApiError::invalid("tool_choice", "needs tools")),
        };
    }
    Ok(Some(ToolUse { tools, choice, parallel }))
}

pub(crate) fn read_tools(
    fields: &Fields<'_>,
    limits: &Limits,
) -> Result<Vec<ToolDefinition>, ApiError> {
    let list = fields.list("tools", limits.tools)?.unwrap_or_default();
    let mut names = BTreeSet::new();
    let mut tools = Vec::with_capacity(list.len());
    for (index, value) in list.iter().enumerate() {
        let tool = Fields::of(value, format!("tools[{index}]"))?;
        if tool.required("type", tool.text("type")?)? != "function" {
            let problem = "only functions can be called";
            return Err(ApiError::unsupported(tool.path("type"), problem));
        }
        let function = tool.required("function", tool.object("function")?)?;
        let name = function.required("name", function.text("name")?)?;
        check_name(name, &function.path("name"))?;
        if !names.insert(name) {
            return Err(ApiError::invalid(function.path("name"), "is used by two tools"));
        }
        let path = function.path("parameters");
        let parameters = match function.value("parameters") {
            Some(schema @ Value::Object(_)) => check_schema(schema, &path, &limits.schema)?,
            Some(_) => return Err(ApiError::invalid(path, "must be an object")),
            // A function declared without parameters takes none.
            None => r#"{"type":"object","properties":{},"additionalProperties":false}"#.to_owned(),
        };
        tools.push(ToolDefinition {
            name: name.to_owned(),
            description: function.text("description")?.map(str::to_owned),
            parameters,
            strict: function.flag("strict")?.unwrap_or(false),
        });
    }
    Ok(tools)
}

fn check_name(name: &str, path: &str) -> Result<(), ApiError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if name.is_empty() || name.len() > TOOL_NAME_BYTES || !name.bytes().all(plain) {
        let problem = format!("must be 1 to {TOOL_NAME_BYTES} letters, digits, _ or -");
        return Err(ApiError::invalid(path, problem));
    }
    Ok(())
}

/// The member that [`read_response_format`] takes its schema from.
pub(crate) const SCHEMA_PARAM: &str = "response_format.json_schema.schema";

/// Reads `response_format`.
pub(crate) fn read_response_format(
    fields: &Fields<'_>,
    limits: &Limits,
) -> Result<Constraint, ApiError> {
    let Some(format) = fields.object("response_format")? else { return Ok(Constraint::Free) };
    match format.required("type", format.text("type")?)? {
        "text" => Ok(Constraint::Free),
        "json_object" => Ok(Constraint::JsonObject),
        "json_schema" => {
            let named = format.required("json_schema", format.object("json_schema")?)?;
            let name = named.required("name", named.text("name")?)?;
            check_name(name, &named.path("name"))?;
            let schema = named.required("schema", named.value("schema"))?;
            Ok(Constraint::JsonSchema {
                schema: check_schema(schema, SCHEMA_PARAM, &limits.schema)?,
                strict: named.flag("strict")?.unwrap_or(false),
            })
        }
        _ => {
            let problem = "must be text, json_object or json_schema";
            Err(ApiError::invalid(format.path("type"), problem))
        }
    }
}

/// Template variables a client must not set, because the renderer does.
const RESERVED_VARIABLES: [&str; 16] = [
    "add_generation_prompt",
    "bos_token",
    "chat_template",
    "continue_final_message",
    "conversation",
    "date_string",
    "documents",
    "eos_token",
    "generation",
    "messages",
    "padding",
    "return_dict",
    "return_tensors",
    "tokenize",
    "tools",
    "truncation",
];

/// Reads `chat_template_kwargs` and `reasoning_effort` as template variables.
pub(crate) fn read_template_variables(
    fields: &Fields<'_>,
) -> Result<BTreeMap<String, PlainValue>, ApiError> {
    let mut variables = BTreeMap::new();
    if let Some(effort) = fields.text("reasoning_effort")? {
        const EFFORTS: [&str; 6] = ["none", "minimal", "low", "medium", "high", "xhigh"];
        if !EFFORTS.contains(&effort) {
            let problem = format!("must be one of {}", EFFORTS.join(", "));
            return Err(ApiError::invalid("reasoning_effort", problem));
        }
        variables.insert("reasoning_effort".to_owned(), PlainValue::Text(effort.to_owned()));
        if effort == "none" {
            variables.insert("enable_thinking".to_owned(), PlainValue::Flag(false));
        }
    }
    let Some(given) = fields.object("chat_template_kwargs")? else { return Ok(variables) };
    if given.names().count() > TEMPLATE_VARIABLES {
        let problem = format!("must have at most {TEMPLATE_VARIABLES} entries");
        return Err(ApiError::invalid("chat_template_kwargs", problem));
    }
    for name in given.names() {
        let identifier = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let reserved = RESERVED_VARIABLES.contains(&name) || name.starts_with('_');
        if !identifier || reserved || name.len() > TOOL_NAME_BYTES {
            let problem = "holds a name that requests may not set";
            return Err(ApiError::invalid("chat_template_kwargs", problem));
        }
        let value = match given.value(name) {
            None => continue,
            Some(Value::Bool(flag)) => PlainValue::Flag(*flag),
            Some(Value::Number(number)) => PlainValue::Number(number.as_f64().unwrap_or_default()),
            Some(Value::String(text)) if text.len() <= TEMPLATE_VARIABLE_BYTES => {
                PlainValue::Text(text.clone())
            }
            Some(_) => {
                let problem = "values must be true, false, numbers or short texts";
                return Err(ApiError::invalid("chat_template_kwargs", problem));
            }
        };
        variables.insert(name.to_owned(), value);
    }
    Ok(variables)
}
