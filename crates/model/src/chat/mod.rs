//! Chat templates: messages in, prompt text out, with control tokens told apart from text.
//!
//! `template` compiles and renders; `origin` says which control tokens are the template's own;
//! `json`, `date` and `python` are the functions templates expect of Python; `limits` bounds all.

mod control;
mod date;
mod json;
mod limits;
mod origin;
mod probe;
mod prompt;
mod python;
mod scan;
mod template;

pub use control::ControlTokens;
pub use date::CivilTime;
pub use probe::TemplateAbilities;
pub use prompt::{ChatInput, PromptSegment, RenderedPrompt, TokenTexts};
pub use template::{ChatTemplate, TemplateError};
