//! The ways in which models write tool calls.

/// How a model was taught to write calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) enum CallStyle {
    /// `<tool_call>{"name": ..., "arguments": ...}</tool_call>`, as Hermes and Qwen do.
    Tagged,
    /// `[TOOL_CALLS]` and a list of such objects, or a name, `[ARGS]` and the arguments, as Mistral
    /// does.
    Listed,
    /// `<tool_calls>` around a list of such objects, or around one after the other.
    TaggedList,
    /// `<TOOLCALL>` around a list of such objects, as Nemotron does.
    CapitalList,
    /// `<function=NAME>{...}</function>`, as functionary does.
    Functions,
    /// Control tokens around name and arguments, as DeepSeek does: `function`, a separator, the name
    /// and a block of code, or the name, a separator and the arguments.
    Separated,
    /// Control tokens around `functions.NAME:0` and the arguments, as Kimi does.
    Numbered,
    /// The object alone, with `parameters` for `arguments`, as Llama 3 does.
    Parameters,
    /// The object alone.
    Bare,
}

/// Ways of writing that have the tags of [`CallStyle::Tagged`] around something other than JSON.
const OTHER_TAGGED: &[&str] =
    &["<function=", "<function name", "<arg_key>", "<parameter", "<invoke"];

/// What separates name and arguments in [`CallStyle::Separated`].
const SEPARATOR: &str = "<｜tool▁sep｜>";

impl CallStyle {
    /// Every style, so that the first which reads a call is the one it was written in.
    pub(super) const ALL: [Self; 9] = [
        Self::Tagged,
        Self::Listed,
        Self::TaggedList,
        Self::CapitalList,
        Self::Functions,
        Self::Separated,
        Self::Numbered,
        Self::Parameters,
        Self::Bare,
    ];

    /// The style of a model whose template writes no calls, judged by what else is in it.
    pub(super) fn of_template(source: Option<&str>) -> Self {
        let has = |text: &str| source.is_some_and(|source| source.contains(text));
        if has("[TOOL_CALLS]") {
            Self::Listed
        } else if has("<tool_call>") && !OTHER_TAGGED.iter().any(|text| has(text)) {
            Self::Tagged
        } else if has(SEPARATOR) {
            Self::Separated
        } else if has("<TOOLCALL>") {
            Self::CapitalList
        } else if has("<|tool_call_begin|>") {
            Self::Numbered
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
            Self::TaggedList => &["<tool_calls>", "</tool_calls>"],
            Self::CapitalList => &["<TOOLCALL>", "</TOOLCALL>"],
            Self::Functions => &["<function=", "</function>"],
            Self::Separated => &["<｜tool▁call▁begin｜>", SEPARATOR, "<｜tool▁call▁end｜>"],
            Self::Numbered => {
                &["<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"]
            }
            Self::Parameters => &["<|python_tag|>"],
            Self::Bare => &[],
        }
    }

    /// The text that opens a call, if there is one. Its first character occurs in it only once.
    pub(in crate::serve) fn opening(self) -> Option<&'static str> {
        self.markers().first().copied()
    }

    /// Whether a call may begin an answer without its opening.
    pub(in crate::serve) fn may_begin_bare(self) -> bool {
        matches!(self, Self::Parameters | Self::Bare)
    }

    /// What closes a call or a list of them.
    pub(in crate::serve) fn closing(self) -> &'static str {
        match self {
            Self::Tagged
            | Self::TaggedList
            | Self::CapitalList
            | Self::Functions
            | Self::Separated
            | Self::Numbered => self.markers().last().copied().unwrap_or_default(),
            Self::Listed | Self::Parameters | Self::Bare => "",
        }
    }

    /// Whether a character between a call and its closing says nothing.
    pub(super) fn is_nothing_behind(self, character: char) -> bool {
        character.is_whitespace() || (self == Self::Separated && character == '`')
    }

    /// Whether calls may stand in a list behind the opening.
    pub(in crate::serve) fn has_lists(self) -> bool {
        matches!(self, Self::Listed | Self::TaggedList | Self::CapitalList)
    }

    /// Whether a call may consist of name and arguments within one object.
    pub(in crate::serve) fn has_objects(self) -> bool {
        !matches!(self, Self::Functions | Self::Separated | Self::Numbered)
    }

    /// Whether a name may stand before the JSON, which is the arguments then.
    pub(in crate::serve) fn has_names_outside(self) -> bool {
        self == Self::Listed || !self.has_objects()
    }

    /// The name in what stands between the opening and the arguments, if it is one.
    pub(super) fn name_in(self, header: &str) -> Option<&str> {
        let header = header.trim();
        match self {
            // Perhaps with an id.
            Self::Listed => header.split('[').next().map(str::trim_end),
            Self::Functions => header.strip_suffix('>'),
            Self::Separated => match header.strip_prefix("function").unwrap_or(header) {
                rest if rest.starts_with(SEPARATOR) => rest[SEPARATOR.len()..].lines().next(),
                _ => header.strip_suffix(SEPARATOR),
            },
            Self::Numbered => {
                let rest = header.strip_prefix("functions.")?.strip_suffix(self.markers()[1])?;
                rest.rsplit_once(':').map(|(name, _)| name)
            }
            Self::Tagged | Self::TaggedList | Self::CapitalList | Self::Parameters | Self::Bare => {
                None
            }
        }
    }

    /// What stands around the arguments of a call of `name` whose name is outside the JSON, in each
    /// way of writing it, the opening left out and the closing included.
    pub(in crate::serve) fn named_parts(self, name: &str) -> Vec<(String, &'static str)> {
        let [_, separator, end, ..] = self.markers() else {
            // The tag itself is closed behind the name.
            return vec![(format!("{name}>"), self.closing())];
        };
        match self {
            Self::Listed => vec![(format!("{name}{end}"), "")],
            Self::Separated => vec![
                (format!("function{separator}{name}\n```json\n"), "\n```<｜tool▁call▁end｜>"),
                (format!("{name}{separator}"), end),
            ],
            _ => vec![(format!("functions.{name}:0{separator}"), end)],
        }
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
            _ => ["{\"name\": \"", "\", \"arguments\": ", "}"],
        }
    }

    /// What stands between forced calls, where there may be several.
    pub(in crate::serve) fn between_calls(self) -> Option<&'static str> {
        (self == Self::Tagged).then_some("\n")
    }
}
