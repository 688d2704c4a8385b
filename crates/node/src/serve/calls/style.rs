//! The ways in which models write tool calls.

/// How a model was taught to write calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) enum CallStyle {
    /// `<tool_call>{"name": ..., "arguments": ...}</tool_call>`, as Hermes and Qwen do.
    Tagged,
    /// `[TOOL_CALLS]` and a list of such objects, or a name, `[ARGS]` and the arguments, as Mistral
    /// does.
    Listed,
    /// The object alone, with `parameters` for `arguments`, as Llama 3 does.
    Parameters,
    /// The object alone.
    Bare,
}

/// Ways of writing that have the tags of [`CallStyle::Tagged`] around something other than JSON.
const OTHER_TAGGED: &[&str] =
    &["<function=", "<function name", "<arg_key>", "<parameter", "<invoke"];

impl CallStyle {
    /// The style of a model, judged by what its chat template writes.
    pub(in crate::serve) fn of_template(source: Option<&str>) -> Self {
        let has = |text: &str| source.is_some_and(|source| source.contains(text));
        if has("[TOOL_CALLS]") {
            Self::Listed
        } else if has("<tool_call>") && !OTHER_TAGGED.iter().any(|text| has(text)) {
            Self::Tagged
        } else if has("<|python_tag|>") || has("\"parameters\": ") {
            Self::Parameters
        } else {
            Self::Bare
        }
    }

    /// Texts that open calls or stand within them, and that may be control tokens.
    pub(in crate::serve) fn markers(self) -> &'static [&'static str] {
        match self {
            Self::Tagged => &["<tool_call>", "</tool_call>"],
            Self::Listed => &["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"],
            Self::Parameters => &["<|python_tag|>"],
            Self::Bare => &[],
        }
    }

    /// The text that opens a call, if there is one.
    pub(in crate::serve) fn opening(self) -> Option<&'static str> {
        self.markers().first().copied()
    }

    /// Whether a call may begin an answer without its opening.
    pub(super) fn may_begin_bare(self) -> bool {
        matches!(self, Self::Parameters | Self::Bare)
    }

    /// What closes a call.
    pub(super) fn closing(self) -> &'static str {
        if self == Self::Tagged { "</tool_call>" } else { "" }
    }

    /// What is written before and after the arguments of a forced call. Control tokens are not
    /// used, so that any vocabulary can write it.
    pub(in crate::serve) fn around_arguments(self, name: &str) -> (String, &'static str) {
        let [before, between, after] = self.forced_parts();
        (format!("{before}{name}{between}"), after)
    }

    /// What a forced call consists of besides the name and the arguments: before, between and after
    /// them.
    pub(super) fn forced_parts(self) -> [&'static str; 3] {
        match self {
            Self::Tagged => {
                ["<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>"]
            }
            Self::Parameters => ["{\"name\": \"", "\", \"parameters\": ", "}"],
            Self::Listed | Self::Bare => ["{\"name\": \"", "\", \"arguments\": ", "}"],
        }
    }

    /// What stands between forced calls, where there may be several.
    pub(in crate::serve) fn between_calls(self) -> Option<&'static str> {
        (self == Self::Tagged).then_some("\n")
    }
}
