//! Forced forms of answers: from a request's schema or tools to masks of tokens.
//!
//! `schema` refuses what cannot be forced, `grammar` writes what is to be forced, `compiler` turns
//! that into a matcher within limits, `matcher` is the matcher of one answer. How calls are written
//! is `calls`' knowledge; `elements` writes what is to be forced where arguments are elements.

mod compiler;
mod elements;
mod grammar;
mod matcher;
mod schema;
#[cfg(test)]
mod tests;

use motley_gateway::{Constraint, GenerationRequest, Refusal, ToolChoice};

pub(super) use compiler::{Compiler, FormLimits};
pub(super) use grammar::{Grammar, quote};

use super::calls::CallStyle;
use super::listener::MarkerTokens;

/// What `request` forces, if anything. `markers` are the control tokens that calls are written with.
///
/// # Errors
/// When a schema uses what cannot be forced, or another field contradicts a forced form.
pub(super) fn forced(
    request: &GenerationRequest,
    style: CallStyle,
    markers: &MarkerTokens,
) -> Result<Option<Grammar>, Refusal> {
    let tools = request.tools.as_ref();
    let grammar = match (tools, &request.constraint) {
        (Some(tools), _) if tools.choice != ToolChoice::Auto => {
            Grammar::of_calls(tools, style, markers)?
        }
        (_, Constraint::JsonObject) => Grammar::of_any_object(),
        (_, Constraint::JsonSchema { schema, .. }) => Grammar::of_schema(schema)?,
        // Text stays free, so that nothing below concerns it.
        (Some(tools), Constraint::Free) => return Grammar::of_strict_calls(tools, style, markers),
        (None, Constraint::Free) => return Ok(None),
    };
    let endless =
        [(request.length.ignore_end, "ignore_eos"), (request.length.tokens_min > 0, "min_tokens")];
    if let Some((_, param)) = endless.iter().find(|(asked, _)| *asked) {
        let feature = "way to go on after a forced form is complete".to_owned();
        return Err(Refusal::Unsupported { param: (*param).to_owned(), feature });
    }
    Ok(Some(grammar))
}
