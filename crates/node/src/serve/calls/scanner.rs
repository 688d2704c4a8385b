//! Looks for calls in free text. Every byte is looked at a constant number of times, and what turns
//! out to be no call is text again.

use motley_gateway::Content;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::elements::{ElementReader, Found, Kinds};
use super::span::Span;
use super::style::{CallStyle, EVERYBODY};
use super::{CALLS_MAX, Progress, add_text};

/// Bytes of a call that are held back at most; a longer one is text.
const HELD_BYTES_MAX: usize = 64 * 1024;

/// Bytes between an opening and its JSON at most: a name and an id.
const HEADER_BYTES_MAX: usize = 256;

/// A tool that may be called.
#[derive(Clone, Debug)]
pub(super) struct KnownTool {
    pub(super) name: String,
    /// Its arguments were forced, which begins behind its name: a call that is written in another
    /// order is none.
    pub(super) strict: bool,
    /// What its arguments are, where they are not written as JSON.
    pub(super) kinds: Kinds,
}

impl KnownTool {
    pub(super) fn new(name: &str, strict: bool, parameters: &str) -> Self {
        Self { name: name.to_owned(), strict, kinds: Kinds::of(parameters) }
    }
}

/// Finds calls in an answer that comes in pieces.
#[derive(Debug)]
pub(in crate::serve) struct CallScanner {
    style: CallStyle,
    tools: Vec<KnownTool>,
    parallel: bool,
    state: State,
    /// Text that may belong to a call.
    held: String,
    calls: u32,
}

#[derive(Debug)]
enum State {
    /// At the beginning of an answer, where a call needs no opening, or behind such a call.
    Bare,
    /// In text; so many bytes of an opening are held.
    Text(usize),
    /// Behind an opening of which so many bytes are held, before the JSON begins.
    Header(usize),
    /// In JSON that begins at this byte of what is held, behind an opening of so many bytes.
    Json { opening: usize, start: usize, span: Span },
    /// Behind an opening, where arguments are elements.
    Elements(ElementReader),
    /// Behind a call, before its closing, of which so many bytes are held.
    Closing(usize),
    /// Behind a whole call, where white space is not text yet.
    Behind,
    /// Nothing is looked for any more: everything is text.
    Done,
    /// The only call is complete, and what comes after is nothing.
    Complete,
}

/// A call as models write it.
#[derive(Deserialize)]
struct Written<'a> {
    name: String,
    #[serde(borrow, alias = "parameters")]
    arguments: &'a RawValue,
}

impl CallScanner {
    pub(super) fn new(style: CallStyle, tools: Vec<KnownTool>, parallel: bool) -> Self {
        let state = match style.may_begin_bare() {
            true => State::Bare,
            false if style.begins_open() => State::Header(0),
            false => State::Text(0),
        };
        Self { style, tools, parallel, state, held: String::new(), calls: 0 }
    }

    /// Calls found.
    pub(super) fn calls(&self) -> u32 {
        self.calls
    }

    /// Takes the next piece of text and appends what is known now.
    pub(super) fn push(&mut self, text: &str, contents: &mut Vec<Content>) -> Progress {
        for character in text.chars() {
            if self.take(character, contents) == Progress::Complete {
                self.state = State::Complete;
                return Progress::Complete;
            }
        }
        Progress::GoOn
    }

    /// Nothing more comes: what was held back is text after all.
    pub(super) fn finish(&mut self, contents: &mut Vec<Content>) {
        // White space behind a call and a closing that is cut off belong to the call.
        let behind_call = match &self.state {
            State::Bare => self.calls > 0,
            State::Closing(_) => true,
            State::Elements(reader) => reader.is_behind_call(),
            _ => false,
        };
        if !behind_call {
            add_text(&self.held, contents);
        }
        self.held.clear();
    }

    fn take(&mut self, character: char, contents: &mut Vec<Content>) -> Progress {
        match &mut self.state {
            State::Complete => return Progress::Complete,
            State::Done => self.release(Some(character), contents),
            State::Bare => self.take_bare(character, contents),
            State::Text(matched) => {
                let matched = *matched;
                self.take_text(matched, character, contents);
            }
            State::Header(opening) => {
                let opening = *opening;
                return self.take_header(opening, character, contents);
            }
            State::Json { span, .. } => {
                self.held.push(character);
                if character.is_ascii() && span.closes_at(character as u8) {
                    return self.close(contents);
                }
                if self.held.len() > HELD_BYTES_MAX {
                    self.give_up(contents);
                }
            }
            State::Elements(_) => return self.take_element(character, contents),
            State::Closing(matched) => {
                let matched = *matched;
                self.take_closing(matched, character, contents);
            }
            State::Behind if character.is_whitespace() => {}
            State::Behind => self.take_text(0, character, contents),
        }
        Progress::GoOn
    }

    /// Before a call that needs no opening. `;` separates calls that follow each other.
    fn take_bare(&mut self, character: char, contents: &mut Vec<Content>) {
        if character == '{' && self.calls < CALLS_MAX {
            self.held.push(character);
            let start = self.held.len() - 1;
            self.begin_json(start, start, character);
        } else if character.is_whitespace() || (character == ';' && self.calls > 0) {
            self.held.push(character);
            if self.held.len() > HEADER_BYTES_MAX {
                self.give_up(contents);
            }
        } else {
            // Other text may have an opening in it.
            self.release(None, contents);
            self.state = State::Text(0);
            self.take_text(0, character, contents);
        }
    }

    fn take_text(&mut self, matched: usize, character: char, contents: &mut Vec<Content>) {
        let Some(opening) = self.style.opening().filter(|_| self.calls < CALLS_MAX) else {
            self.state = State::Done;
            return self.release(Some(character), contents);
        };
        // Also behind a call, from where one byte leads back to text.
        self.state = State::Text(0);
        if opening[matched..].starts_with(character) {
            self.held.push(character);
            let matched = matched + character.len_utf8();
            self.state = match matched == opening.len() {
                true => self.behind_opening(matched),
                false => State::Text(matched),
            };
        } else if matched > 0 {
            // The first character of an opening occurs in it only once, or it is not the character
            // that came, so that no later byte of what is held can begin another.
            self.release(None, contents);
            self.state = State::Text(0);
            self.take_text(0, character, contents);
        } else {
            add_text(character.encode_utf8(&mut [0; 4]), contents);
        }
    }

    fn behind_opening(&self, opening: usize) -> State {
        match self.style.markup() {
            Some(markup) => State::Elements(ElementReader::new(markup)),
            None => State::Header(opening),
        }
    }

    /// Behind an opening, where arguments are elements.
    fn take_element(&mut self, character: char, contents: &mut Vec<Content>) -> Progress {
        let State::Elements(reader) = &mut self.state else { return Progress::GoOn };
        let was_behind = reader.is_behind_call();
        if !(was_behind && self.held.is_empty() && character.is_whitespace()) {
            self.held.push(character);
        }
        match reader.take(character, &self.tools) {
            Found::Nothing if self.held.len() > HELD_BYTES_MAX => self.give_up(contents),
            Found::Nothing => {}
            Found::Call { name, arguments } => {
                self.held.clear();
                if reader.is_closed() || self.calls + 1 == CALLS_MAX {
                    self.state = State::Behind;
                }
                self.add_call(name, arguments, contents);
                if !self.parallel {
                    return Progress::Complete;
                }
            }
            Found::Closed => {
                self.held.clear();
                self.state = State::Behind;
            }
            Found::Wrong if was_behind => {
                // The closing is missing, and the next opening may be what came.
                let held = std::mem::take(&mut self.held);
                self.state = State::Text(0);
                for character in held.chars() {
                    self.take(character, contents);
                }
            }
            Found::Wrong => self.give_up(contents),
        }
        Progress::GoOn
    }

    fn add_call(&mut self, name: String, text: String, contents: &mut Vec<Content>) {
        let call = self.calls;
        self.calls += 1;
        contents.push(Content::CallStart { call, name });
        contents.push(Content::CallArguments { call, text });
    }

    fn take_header(
        &mut self,
        opening: usize,
        character: char,
        contents: &mut Vec<Content>,
    ) -> Progress {
        self.held.push(character);
        let start = self.held.len() - character.len_utf8();
        let header = &self.held[opening..start];
        let named = self.style.has_names_outside();
        let list = self.style.has_lists() && character == '[' && header.trim().is_empty();
        if character == '\n' && self.style == CallStyle::Recipients {
            let name = self.style.name_in(header).unwrap_or_default();
            if name == EVERYBODY {
                self.held.clear();
                self.state = State::Text(0);
            } else if self.tool(name).is_none() {
                self.give_up(contents);
            }
        } else if character == '{' || list {
            self.begin_json(opening, start, character);
        } else if !(named || character.is_whitespace()) || header.len() > HEADER_BYTES_MAX {
            self.give_up(contents);
        }
        Progress::GoOn
    }

    fn begin_json(&mut self, opening: usize, start: usize, character: char) {
        let mut span = Span::default();
        span.closes_at(character as u8);
        self.state = State::Json { opening, start, span };
    }

    /// The JSON is complete: one call, several, or none.
    fn close(&mut self, contents: &mut Vec<Content>) -> Progress {
        let State::Json { opening, start, .. } = self.state else { return Progress::GoOn };
        let Some(mut found) = self.read(opening, start) else {
            self.give_up(contents);
            return Progress::GoOn;
        };
        if !self.parallel {
            found.truncate(1);
        }
        found.truncate((CALLS_MAX - self.calls) as usize);
        for (name, text) in found {
            self.add_call(name, text, contents);
        }
        self.held.clear();
        if !self.parallel {
            return Progress::Complete;
        }
        self.state = match self.style {
            CallStyle::Listed | CallStyle::Recipients => State::Behind,
            CallStyle::Parameters | CallStyle::Bare => State::Bare,
            _ => State::Closing(0),
        };
        Progress::GoOn
    }

    /// Names and arguments of the calls in what is held, if all of it is calls of known tools.
    fn read(&self, opening: usize, start: usize) -> Option<Vec<(String, String)>> {
        let json = &self.held[start..];
        let header = self.held[opening..start].trim();
        if !header.is_empty() || !self.style.has_objects() {
            // The JSON is the arguments.
            let arguments: &RawValue = serde_json::from_str(json).ok()?;
            let tool = self.tool(self.style.name_in(header)?)?;
            return Some(vec![(tool.name.clone(), arguments.get().to_owned())]);
        }
        let calls: Vec<&RawValue> = match json.starts_with('[') {
            true => serde_json::from_str(json).ok()?,
            false => vec![serde_json::from_str(json).ok()?],
        };
        let calls = calls.into_iter().map(|call| self.read_object(call.get()));
        calls.collect::<Option<Vec<_>>>().filter(|calls| !calls.is_empty())
    }

    /// A call that is one object.
    fn read_object(&self, text: &str) -> Option<(String, String)> {
        let call: Written<'_> = serde_json::from_str(text).ok()?;
        let inside = text.strip_prefix('{')?.trim_start();
        let tool = self.tool(&call.name)?;
        let in_order = !tool.strict || inside.starts_with("\"name\"");
        let arguments = call.arguments.get();
        (in_order && arguments.starts_with('{')).then(|| (call.name, arguments.to_owned()))
    }

    fn tool(&self, name: &str) -> Option<&KnownTool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// Behind a call: white space and its closing are no text.
    fn take_closing(&mut self, matched: usize, character: char, contents: &mut Vec<Content>) {
        let closing = self.style.closing();
        if closing[matched..].starts_with(character) {
            self.held.push(character);
            let matched = matched + character.len_utf8();
            self.state = State::Closing(matched);
            if matched == closing.len() {
                self.held.clear();
                self.state = State::Behind;
            }
        } else if matched == 0 && character == '{' && self.style == CallStyle::TaggedList {
            // The next call between the same tags.
            self.held.push(character);
            self.begin_json(0, 0, character);
        } else if matched > 0 || !self.style.is_nothing_behind(character) {
            self.release(None, contents);
            self.state = State::Text(0);
            self.take_text(0, character, contents);
        }
    }

    /// What is held is no call; text follows.
    fn give_up(&mut self, contents: &mut Vec<Content>) {
        self.release(None, contents);
        self.state = State::Text(0);
    }

    fn release(&mut self, then: Option<char>, contents: &mut Vec<Content>) {
        add_text(&self.held, contents);
        self.held.clear();
        if let Some(character) = then {
            add_text(character.encode_utf8(&mut [0; 4]), contents);
        }
    }
}
