//! Which characters of a rendered prompt came from the template, and which from the client.
//!
//! A template is a program; nothing can be told from its output alone. So it runs twice: once
//! with the messages as they are, and once with every punctuation character of theirs that also
//! occurs in a control token (and every word that is the word of one) replaced by a *stand-in*
//! from a plane of Unicode that has no characters. Stand-ins have the length of what they stand
//! for and are neither blanks nor letters, so trimming, splitting at line ends, slicing, joining
//! and counting act alike in both runs. If the second output, its stand-ins put back, equals the
//! first, then the stand-ins mark what the client wrote, however the template moved it.
//!
//! Templates that look for text such as `</think>` in a message act differently on the second
//! run. Then the fewest of the template's own literals that make the runs agree are left as they
//! are in the messages. A control token that can be read in the messages even so is believed to
//! be the template's only where the run with all stand-ins says the same and another control
//! token of the template lies between it and the place where the two runs part.

use std::collections::BTreeSet;
use std::ops::Range;

use serde_json::Value as Json;

use super::control::{ControlTokens, is_tracked, words};
use super::limits::ORIGIN_ATTEMPTS_MAX;
use super::scan::Mentions;

/// First code points of the unassigned planes 4 to 13, any of which can hold the stand-ins.
const PLANES: std::ops::RangeInclusive<u32> = 4..=13;
const PLANE_SIZE: u32 = 0x1_0000;

/// Roles of the chat formats in use; they name turns and are not free text.
const KNOWN_ROLES: [&str; 9] = [
    "system",
    "developer",
    "user",
    "assistant",
    "tool",
    "function",
    "ipython",
    "observation",
    "environment",
];

/// Names of the request format and of JSON Schema: templates look them up, and none of them is
/// free text.
const KNOWN_FIELDS: [&str; 22] = [
    "role",
    "content",
    "name",
    "tool_calls",
    "tool_call_id",
    "reasoning_content",
    "type",
    "text",
    "id",
    "function",
    "arguments",
    "parameters",
    "description",
    "properties",
    "required",
    "items",
    "enum",
    "default",
    "anyOf",
    "oneOf",
    "allOf",
    "title",
];

/// Whether `character` can be a stand-in for an ASCII character.
pub(super) fn stands_for_ascii(character: char) -> bool {
    let point = u32::from(character);
    PLANES.contains(&(point / PLANE_SIZE)) && point % PLANE_SIZE < 0x80
}

/// The client's part of a rendering.
#[derive(Debug, Clone)]
pub(super) struct ClientData {
    pub(super) messages: Vec<Json>,
    pub(super) tools: Vec<Json>,
    pub(super) variables: serde_json::Map<String, Json>,
}

/// Works out the byte ranges of `text` that must not be read as control tokens.
///
/// `render` renders other client data with the same template; `None` stands for a failure.
/// The answer is `None` where the two kinds of text cannot be told apart.
pub(super) fn client_control_ranges(
    text: &str,
    data: &ClientData,
    tokens: &ControlTokens,
    mentions: &Mentions,
    render: impl Fn(&ClientData) -> Option<String>,
) -> Option<Vec<Range<usize>>> {
    if !tokens.occurs_in(text) {
        return Some(Vec::new());
    }
    let strings = data.strings(mentions);
    let plane = free_plane(text, &strings)?;
    let mut disguise = Disguise { tokens, plane, kept: Vec::new() };
    let mut origins = Origins { text, tokens, client: vec![false; text.len()] };
    let nothing = BTreeSet::new();
    if strings.iter().all(|string| disguise.apply(string) == *string) {
        return Some(origins.forbidden(&nothing, None));
    }

    let attempt = |disguise: &Disguise<'_>| {
        let mut disguised = data.clone();
        disguised.replace(mentions, &mut |string| disguise.apply(string));
        render(&disguised)
    };
    let first = attempt(&disguise);
    if let Some(client) = first.as_deref().and_then(|output| disguise.client_bytes(text, output)) {
        origins.client = client;
        return Some(origins.forbidden(&nothing, None));
    }

    origins.client = disguise.keep_fewest(&strings, mentions, |disguise| {
        disguise.client_bytes(text, &attempt(disguise)?)
    })?;
    let mut readable = BTreeSet::new();
    for string in &strings {
        let left = disguise.apply(string);
        readable.extend(tokens.occurrences(&left).into_iter().map(|at| left[at].to_owned()));
    }
    let agreement = first.map(|output| Agreement::new(&disguise, text, &output));
    Some(origins.forbidden(&readable, agreement.as_ref()))
}

impl ClientData {
    /// Every string the client wrote: values, and names the template does not look up itself.
    fn strings(&self, mentions: &Mentions) -> Vec<String> {
        let mut strings = Vec::new();
        self.clone().replace(mentions, &mut |string| {
            strings.push(string.to_owned());
            string.to_owned()
        });
        strings
    }

    fn replace(&mut self, mentions: &Mentions, replacement: &mut dyn FnMut(&str) -> String) {
        for message in &mut self.messages {
            let role = message
                .get("role")
                .filter(|role| role.as_str().is_some_and(|role| KNOWN_ROLES.contains(&role)))
                .cloned();
            replace_strings(message, mentions, replacement);
            if let (Some(role), Some(fields)) = (role, message.as_object_mut()) {
                fields.insert("role".to_owned(), role);
            }
        }
        for value in self.tools.iter_mut().chain(self.variables.values_mut()) {
            replace_strings(value, mentions, replacement);
        }
    }
}

fn replace_strings(
    value: &mut Json,
    mentions: &Mentions,
    replacement: &mut dyn FnMut(&str) -> String,
) {
    match value {
        Json::String(string) => *string = replacement(string),
        Json::Array(items) => {
            for item in items {
                replace_strings(item, mentions, replacement);
            }
        }
        Json::Object(fields) => {
            let old = std::mem::take(fields);
            for (name, mut item) in old {
                replace_strings(&mut item, mentions, replacement);
                let fixed =
                    KNOWN_FIELDS.contains(&name.as_str()) || mentions.attributes.contains(&name);
                fields.insert(if fixed { name } else { replacement(&name) }, item);
            }
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

/// A plane of Unicode without characters that nobody used.
fn free_plane(text: &str, strings: &[String]) -> Option<u32> {
    let used: BTreeSet<u32> = strings
        .iter()
        .map(String::as_str)
        .chain([text])
        .flat_map(str::chars)
        .map(|character| u32::from(character) / PLANE_SIZE)
        .collect();
    PLANES.into_iter().find(|plane| !used.contains(plane))
}

/// A way to replace characters of the client's strings.
struct Disguise<'a> {
    tokens: &'a ControlTokens,
    plane: u32,
    /// Literals of the template whose occurrences stay as they are.
    kept: Vec<&'a str>,
}

impl<'a> Disguise<'a> {
    fn apply(&self, string: &str) -> String {
        let mut replaced = vec![false; string.len()];
        for (at, character) in string.char_indices() {
            replaced[at] = self.tokens.has_mark(character);
        }
        for word in words(string) {
            if self.tokens.has_word(&string[word.clone()]) {
                replaced[word].fill(true);
            }
        }
        for kept in &self.kept {
            for (at, found) in string.match_indices(kept) {
                replaced[at..at + found.len()].fill(false);
            }
        }
        string
            .char_indices()
            .map(|(at, character)| if replaced[at] { self.stand_in(character) } else { character })
            .collect()
    }

    fn stand_in(&self, character: char) -> char {
        let point = u32::from(character);
        if point >= PLANE_SIZE {
            return character;
        }
        char::from_u32(self.plane * PLANE_SIZE + point).unwrap_or(character)
    }

    /// Whether `other` is the stand-in of `character`, or was before the template changed case.
    fn stands_for(&self, other: char, character: char) -> bool {
        let point = u32::from(other).checked_sub(self.plane * PLANE_SIZE);
        let original = point.filter(|point| *point < PLANE_SIZE).and_then(char::from_u32);
        original.is_some_and(|original| {
            original == character || original.to_lowercase().eq(character.to_lowercase())
        })
    }

    /// For each byte of `text` whether the client wrote it, if `output` is the same text with
    /// stand-ins.
    fn client_bytes(&self, text: &str, output: &str) -> Option<Vec<bool>> {
        let mut client = vec![false; text.len()];
        let mut others = output.chars();
        for (at, character) in text.char_indices() {
            let other = others.next()?;
            if other != character {
                if !self.stands_for(other, character) {
                    return None;
                }
                client[at..at + character.len_utf8()].fill(true);
            }
        }
        others.next().is_none().then_some(client)
    }

    /// Finds a small set of the template's literals that, kept in the client's strings, make the
    /// runs agree: starts with all that matter and drops those that are not needed, half of the
    /// rest at a time, control tokens first.
    fn keep_fewest(
        &mut self,
        strings: &[String],
        mentions: &'a Mentions,
        agree: impl Fn(&Self) -> Option<Vec<bool>>,
    ) -> Option<Vec<bool>> {
        let disguised: Vec<String> = strings.iter().map(|string| self.apply(string)).collect();
        let matters = |literal: &&'a str| {
            let keeping = Self { kept: vec![literal], ..*self };
            strings.iter().zip(&disguised).any(|(string, disguised)| {
                string.contains(literal) && keeping.apply(string) != *disguised
            })
        };
        let mut literals: Vec<&'a str> =
            mentions.literals.iter().map(String::as_str).filter(matters).collect();
        literals.sort_by_key(|literal| self.tokens.occurs_in(literal));
        self.kept = literals.clone();
        let mut client = agree(self)?;

        let mut groups = vec![literals];
        for _ in 0..ORIGIN_ATTEMPTS_MAX {
            let Some(mut group) = groups.pop() else { break };
            let before = self.kept.clone();
            self.kept.retain(|kept| !group.contains(kept));
            if let Some(agreed) = agree(self) {
                client = agreed;
                continue;
            }
            self.kept = before;
            if group.len() > 1 {
                let second = group.split_off(group.len() / 2);
                groups.extend([group, second]);
            }
        }
        Some(client)
    }
}

/// A text with the origin of its bytes.
struct Origins<'a> {
    text: &'a str,
    tokens: &'a ControlTokens,
    client: Vec<bool>,
}

impl Origins<'_> {
    /// Ranges that must not be read as control tokens: those with a byte of the client's, those
    /// without a character that could show it, and those that the client's strings still spell
    /// out (`readable`) unless `agreement` speaks for them.
    fn forbidden(
        &self,
        readable: &BTreeSet<String>,
        agreement: Option<&Agreement>,
    ) -> Vec<Range<usize>> {
        let shows_origin = |at: &Range<usize>| self.text[at.clone()].chars().any(is_tracked);
        let (unmarked, mut foreign): (Vec<_>, Vec<_>) = self
            .tokens
            .occurrences(self.text)
            .into_iter()
            .partition(|at| shows_origin(at) && !self.client[at.clone()].contains(&true));
        let (doubtful, mut own): (Vec<_>, Vec<_>) =
            unmarked.into_iter().partition(|at| readable.contains(&self.text[at.clone()]));
        let (confirmed, refused): (Vec<_>, Vec<_>) = doubtful
            .into_iter()
            .partition(|at| agreement.is_some_and(|agreement| agreement.confirms(at, &own)));
        own.extend(confirmed);
        foreign.extend(refused);

        let mut forbidden = vec![false; self.text.len()];
        for at in foreign {
            forbidden[at].fill(true);
        }
        for at in own {
            forbidden[at].fill(false);
        }
        runs(&forbidden)
    }
}

/// Where the run with all stand-ins says the same as the text, counted from either end, and the
/// template wrote it.
struct Agreement {
    own_from_start: Vec<bool>,
    own_from_end: Vec<bool>,
}

impl Agreement {
    fn new(disguise: &Disguise<'_>, text: &str, output: &str) -> Self {
        let own = |(of_text, of_output): (char, char)| {
            let is_same = of_text == of_output;
            let agrees = is_same || disguise.stands_for(of_output, of_text);
            agrees.then(|| std::iter::repeat_n(is_same, of_text.len_utf8()))
        };
        let both = text.chars().zip(output.chars());
        let mut own_from_start: Vec<bool> = both.map_while(own).flatten().collect();
        own_from_start.resize(text.len(), false);
        let both = text.chars().rev().zip(output.chars().rev());
        let mut own_from_end: Vec<bool> = both.map_while(own).flatten().collect();
        own_from_end.resize(text.len(), false);
        own_from_end.reverse();
        Self { own_from_start, own_from_end }
    }

    /// Whether the token at `at` is the template's in that run too, and one of the tokens `sure`
    /// lies between it and the place where the runs part.
    fn confirms(&self, at: &Range<usize>, sure: &[Range<usize>]) -> bool {
        let all = |own: &[bool], at: &Range<usize>| !own[at.clone()].contains(&false);
        let before = |shield: &Range<usize>| shield.end <= at.start;
        let after = |shield: &Range<usize>| at.end <= shield.start;
        let (start, end) = (&self.own_from_start, &self.own_from_end);
        (all(start, at) && sure.iter().any(|shield| after(shield) && all(start, shield)))
            || (all(end, at) && sure.iter().any(|shield| before(shield) && all(end, shield)))
    }
}

/// Byte ranges of the runs of `true`.
fn runs(flags: &[bool]) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    for (at, _) in flags.iter().enumerate().filter(|(_, flag)| **flag) {
        match found.last_mut() {
            Some(last) if last.end == at => last.end += 1,
            _ => found.push(at..at + 1),
        }
    }
    found
}
