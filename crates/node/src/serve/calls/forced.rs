//! Reads calls whose form a grammar has forced, and passes their arguments on as they come.

use motley_gateway::Content;

use super::CALLS_MAX;
use super::span::Span;
use super::style::CallStyle;

/// Reads calls of a known form.
#[derive(Debug)]
pub(in crate::serve) struct ForcedCalls {
    style: CallStyle,
    place: Place,
    calls: u32,
}

#[derive(Debug)]
enum Place {
    /// Before the name, with so many bytes of what stands there read.
    Before(usize),
    /// In the name.
    Name(String),
    /// Between name and arguments, with so many bytes read.
    Between(usize),
    Arguments(Span),
    /// Behind the arguments, with so many bytes read.
    After(usize),
}

impl ForcedCalls {
    pub(super) fn new(style: CallStyle) -> Self {
        Self { style, place: Place::Before(0), calls: 0 }
    }

    /// Calls that have begun.
    pub(super) fn calls(&self) -> u32 {
        self.calls
    }

    /// Takes the next piece of text and appends what it says.
    pub(super) fn push(&mut self, text: &str, contents: &mut Vec<Content>) {
        let mut from = 0;
        for (at, character) in text.char_indices() {
            let end = at + character.len_utf8();
            if let Place::Arguments(span) = &mut self.place {
                // Brackets and quotes are bytes by themselves, other characters say nothing.
                let closed = character.is_ascii() && span.closes_at(character as u8);
                if closed {
                    self.add_arguments(&text[from..end], contents);
                    self.place = Place::After(0);
                }
                continue;
            }
            self.step(character, contents);
            from = end;
        }
        if matches!(self.place, Place::Arguments(_)) && from < text.len() {
            self.add_arguments(&text[from..], contents);
        }
    }

    /// Takes a character outside arguments. The grammar lets only the right ones come.
    fn step(&mut self, character: char, contents: &mut Vec<Content>) {
        let [before, between, after] = self.style.forced_parts().map(str::len);
        let length = character.len_utf8();
        match &mut self.place {
            // What separates calls comes before the first byte of the next.
            Place::Before(0) if character == '\n' => {}
            Place::Before(read) => {
                *read += length;
                if *read == before {
                    self.place = Place::Name(String::new());
                }
            }
            Place::Name(name) if character != '"' => name.push(character),
            Place::Name(name) => {
                let name = std::mem::take(name);
                contents.push(Content::CallStart { call: self.calls, name });
                self.calls += 1;
                self.place = Place::Between(length);
            }
            Place::Between(read) => {
                *read += length;
                if *read == between {
                    self.place = Place::Arguments(Span::default());
                }
            }
            Place::After(read) => {
                *read += length;
                if *read == after && self.calls < CALLS_MAX {
                    self.place = Place::Before(0);
                }
            }
            Place::Arguments(_) => {}
        }
    }

    fn add_arguments(&self, text: &str, contents: &mut Vec<Content>) {
        let call = self.calls - 1;
        contents.push(Content::CallArguments { call, text: text.to_owned() });
    }
}
