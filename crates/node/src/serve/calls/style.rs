//! The ways in which models write tool calls.

use super::elements::{Markup, Values};

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
    /// `>>>NAME`, and the arguments in the next line, as functionary 3.2 does. Prompts end with the
    /// opening, and what is said to people has the name [`EVERYBODY`].
    Recipients,
    /// Arguments as elements of their own, within `<function=NAME>`, as Qwen 3 Coder does.
    Elements,
    /// The same with values that are not on lines of their own, as Seed does.
    SeedElements,
    /// Keys and values as elements of their own behind the name, as GLM does.
    Pairs,
    /// The same with more tags, as Hunyuan 3 does.
    SeparatedPairs,
    /// Arguments as elements of their own, within `<invoke name="NAME">`, as MiniMax does.
    Invocations,
    /// The same with keys that say whether the value is a text, as DeepSeek 3.2 does.
    ToldInvocations,
    /// The same within other tags, as DeepSeek 4 does.
    ToldCalls,
    /// `<function name="NAME">` with elements in it, as MiniCPM does.
    NamedFunctions,
    /// The object alone, with `parameters` for `arguments`, as Llama 3 does.
    Parameters,
    /// The object alone.
    Bare,
}

/// What stands for a name where an answer is no call in [`CallStyle::Recipients`].
pub(in crate::serve) const EVERYBODY: &str = "all";

/// What separates name and arguments in [`CallStyle::Separated`].
const SEPARATOR: &str = "<｜tool▁sep｜>";

impl CallStyle {
    /// Every style, so that the first which reads a call is the one it was written in.
    pub(in crate::serve) const ALL: [Self; 18] = [
        Self::Tagged,
        Self::Elements,
        Self::SeedElements,
        Self::Pairs,
        Self::SeparatedPairs,
        Self::Invocations,
        Self::ToldInvocations,
        Self::ToldCalls,
        Self::NamedFunctions,
        Self::Listed,
        Self::TaggedList,
        Self::CapitalList,
        Self::Functions,
        Self::Separated,
        Self::Numbered,
        Self::Recipients,
        Self::Parameters,
        Self::Bare,
    ];

    /// The style of a model whose template writes no calls, judged by what else is in it.
    pub(super) fn of_template(source: Option<&str>) -> Self {
        let has = |text: &str| source.is_some_and(|source| source.contains(text));
        if has("[TOOL_CALLS]") {
            Self::Listed
        } else if let Some(style) = Self::ALL.into_iter().find(|style| {
            // The tags of more than one may be the same.
            style.markup().is_some_and(|markup| has(markup.markers[0]) && has(markup.key[0]))
        }) {
            style
        } else if has("<tool_call>") && !has("<function=") && !has("<invoke") {
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
            Self::Recipients => &[">>>"],
            Self::Parameters => &["<|python_tag|>"],
            Self::Bare => &[],
            _ => self.markup().map_or(&[], |markup| markup.markers),
        }
    }

    /// How calls are written whose arguments are elements of their own.
    pub(in crate::serve) fn markup(self) -> Option<&'static Markup> {
        Some(match self {
            Self::Elements => &ELEMENTS,
            Self::SeedElements => &SEED_ELEMENTS,
            Self::Pairs => &PAIRS,
            Self::SeparatedPairs => &SEPARATED_PAIRS,
            Self::Invocations => &INVOCATIONS,
            Self::ToldInvocations => &TOLD_INVOCATIONS,
            Self::ToldCalls => &TOLD_CALLS,
            Self::NamedFunctions => &NAMED_FUNCTIONS,
            _ => return None,
        })
    }

    /// Whether a forced call is written as in free text. Others are objects, which any vocabulary
    /// can write and which are passed on as they come.
    pub(in crate::serve) fn is_forced_as_written(self) -> bool {
        self == Self::Recipients || self.markup().is_some()
    }

    /// Whether prompts end with the opening of a call.
    pub(in crate::serve) fn begins_open(self) -> bool {
        self == Self::Recipients
    }

    /// The text that opens a call, if there is one. Its first character occurs in it only once, or
    /// it is nothing but that character.
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
            Self::Listed | Self::Recipients | Self::Parameters | Self::Bare => "",
            _ => self.markup().map_or("", |markup| markup.closing),
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
        let named =
            matches!(self, Self::Functions | Self::Separated | Self::Numbered | Self::Recipients);
        !named && self.markup().is_none()
    }

    /// Whether a name may stand before the JSON, which is the arguments then.
    pub(in crate::serve) fn has_names_outside(self) -> bool {
        self == Self::Listed || !(self.has_objects() || self.markup().is_some())
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
            // The opening may be there although the prompt ends with it.
            Self::Recipients => Some(header.strip_prefix(">>>").unwrap_or(header)),
            _ => None,
        }
    }

    /// What stands around the arguments of a call of `name` whose name is outside the JSON, in each
    /// way of writing it, the opening left out and the closing included.
    pub(in crate::serve) fn named_parts(self, name: &str) -> Vec<(String, &'static str)> {
        if self == Self::Recipients {
            return vec![(format!("{name}\n"), "")];
        }
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

const ELEMENTS: Markup = Markup {
    markers: &["<tool_call>", "</tool_call>"],
    name: ["<function=", ">"],
    key: ["<parameter=", ">"],
    value: ["", "</parameter>"],
    end: "</function>",
    closing: "</tool_call>",
    several: false,
    values: Values::Lines,
};

const SEED_ELEMENTS: Markup = Markup {
    markers: &["<seed:tool_call>", "</seed:tool_call>"],
    closing: "</seed:tool_call>",
    values: Values::Plain,
    ..ELEMENTS
};

const PAIRS: Markup = Markup {
    markers: &[
        "<tool_call>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "</tool_call>",
    ],
    name: ["", ""],
    key: ["<arg_key>", "</arg_key>"],
    value: ["<arg_value>", "</arg_value>"],
    end: "</tool_call>",
    closing: "",
    several: false,
    values: Values::Plain,
};

const SEPARATED_PAIRS: Markup = Markup {
    markers: &[
        "<tool_calls:opensource>",
        "<tool_call:opensource>",
        "<tool_sep:opensource>",
        "<arg_key:opensource>",
        "</arg_key:opensource>",
        "<arg_value:opensource>",
        "</arg_value:opensource>",
        "</tool_call:opensource>",
        "</tool_calls:opensource>",
    ],
    name: ["<tool_call:opensource>", "<tool_sep:opensource>"],
    key: ["<arg_key:opensource>", "</arg_key:opensource>"],
    value: ["<arg_value:opensource>", "</arg_value:opensource>"],
    end: "</tool_call:opensource>",
    closing: "</tool_calls:opensource>",
    several: true,
    values: Values::Plain,
};

const INVOCATIONS: Markup = Markup {
    markers: &["<minimax:tool_call>", "</minimax:tool_call>"],
    name: ["<invoke name=\"", "\">"],
    key: ["<parameter name=\"", "\">"],
    value: ["", "</parameter>"],
    end: "</invoke>",
    closing: "</minimax:tool_call>",
    several: true,
    values: Values::Plain,
};

const TOLD_INVOCATIONS: Markup = Markup {
    markers: &["<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "｜DSML｜"],
    name: ["<｜DSML｜invoke name=\"", "\">"],
    key: ["<｜DSML｜parameter name=\"", "\">"],
    value: ["", "</｜DSML｜parameter>"],
    end: "</｜DSML｜invoke>",
    closing: "</｜DSML｜function_calls>",
    several: true,
    values: Values::Told,
};

const TOLD_CALLS: Markup = Markup {
    markers: &["<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", "｜DSML｜"],
    closing: "</｜DSML｜tool_calls>",
    ..TOLD_INVOCATIONS
};

const NAMED_FUNCTIONS: Markup = Markup {
    markers: &["<function name=\"", "</function>"],
    name: ["", "\">"],
    key: ["<param name=\"", "\">"],
    value: ["", "</param>"],
    end: "</function>",
    closing: "",
    several: false,
    values: Values::Plain,
};
