//! The matcher of one answer.

use std::fmt;
use std::sync::Arc;

use llguidance::Matcher;
use motley_engine::TokenMask;
use motley_ggml::Token;

use crate::driver::{Constrainer, ConstraintError};
use crate::serve::thinking::CLOSING;

/// Characters of a problem that are told; the rest is the grammar itself.
const PROBLEM_CHARACTERS: usize = 160;

/// Where in an answer forms begin.
#[derive(Clone, Debug)]
pub(super) enum Trigger {
    /// At its first token, and it is nothing but the form.
    Start,
    /// Behind a text whose first byte occurs in it only once, or that is nothing but that byte.
    Opening(Opening),
    /// At its beginning, with an object that has one of these names first, and again behind a form
    /// and behind a token.
    Names { names: Arc<[String]>, again: Option<Token> },
}

/// A text behind which a form begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opening {
    pub(super) text: &'static str,
    /// The token that is all of it, if there is one.
    pub(super) token: Option<Token>,
    /// Whether the prompt ends with it.
    pub(super) is_given: bool,
}

impl Opening {
    /// One that the answer itself must have.
    pub(super) fn new(text: &'static str, token: Option<Token>) -> Self {
        Self { text, token, is_given: false }
    }
}

/// Where an answer is.
#[derive(Debug)]
enum Place {
    /// In a form, where tokens are masked.
    Form,
    /// In free text, with so many bytes of the opening met.
    Text(usize),
    /// At the beginning of what may become an object with a name, of which this has come.
    Beginning(Vec<u8>),
    /// In text in which no form can begin until reasoning ends, of whose closing tag so many bytes
    /// have been met.
    Free(usize),
}

/// What the beginning of an object says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beginning {
    /// It may still become one with a wanted name.
    Open,
    /// It has a wanted name, and begins at this byte.
    Named(usize),
    /// It is something else.
    Other,
}

/// Bytes in which a name must have come.
const BEGINNING_BYTES_MAX: usize = 512;

/// Follows one answer, or the forms within it, through a grammar.
pub(super) struct FormMatcher {
    /// The grammar at its beginning, shared by all answers that it forces.
    shared: Arc<Matcher>,
    /// Where this answer is; a copy is made at the first token, so that requests that wait hold
    /// none.
    own: Option<Matcher>,
    mask: TokenMask,
    trigger: Trigger,
    place: Place,
}

impl FormMatcher {
    pub(super) fn new(shared: Arc<Matcher>, logits: usize, trigger: Trigger) -> Self {
        let place = match &trigger {
            Trigger::Opening(opening) if opening.is_given => Place::Form,
            trigger => outside(trigger),
        };
        Self { shared, own: None, mask: TokenMask::none_allowed(logits), trigger, place }
    }

    /// Takes a token of free text, in which the opening may come.
    fn accept_text(
        &mut self,
        opening: Opening,
        met: usize,
        token: Token,
    ) -> Result<(), ConstraintError> {
        if opening.token == Some(token) {
            self.place = Place::Form;
            return Ok(());
        }
        let bytes = self.bytes_of(token)?;
        let wanted = opening.text.as_bytes();
        let mut met = met;
        for (at, byte) in bytes.iter().enumerate() {
            met = step(met, *byte, wanted);
            if met == wanted.len() {
                // What the token has behind the opening is the beginning of the form, if it fits.
                return self.enter(&bytes[at + 1..], Place::Text(0));
            }
        }
        self.place = Place::Text(met);
        Ok(())
    }

    /// Takes a token of an answer's beginning, or of text behind it.
    fn accept_beginning(&mut self, token: Token) -> Result<(), ConstraintError> {
        let Trigger::Names { names, again } = &self.trigger else { return Ok(()) };
        if *again == Some(token) {
            self.place = outside(&self.trigger);
            return Ok(());
        }
        let names = Arc::clone(names);
        for byte in self.bytes_of(token)? {
            match &mut self.place {
                Place::Beginning(held) => held.push(byte),
                Place::Free(met) => *met = step(*met, byte, CLOSING.as_bytes()),
                Place::Form | Place::Text(_) => {}
            }
            if matches!(self.place, Place::Free(met) if met == CLOSING.len()) {
                self.place = Place::Beginning(Vec::new());
            }
            let Place::Beginning(held) = &self.place else { continue };
            if beginning_of(held, &names) == Beginning::Other {
                // What is held may have the first bytes of the tag in it.
                let met = held.iter().fold(0, |met, byte| step(met, *byte, CLOSING.as_bytes()));
                self.place = Place::Free(met);
            }
        }
        let Place::Beginning(held) = &mut self.place else { return Ok(()) };
        let Beginning::Named(start) = beginning_of(held, &names) else { return Ok(()) };
        let form = held.split_off(start);
        self.enter(&form, Place::Free(0))
    }

    /// Enters a form of which some has come; if that does not fit, it is none.
    fn enter(&mut self, come: &[u8], otherwise: Place) -> Result<(), ConstraintError> {
        let vocabulary = self.shared.tok_env().map_err(|error| broken(&error))?;
        let tokens = vocabulary.tok_trie().greedy_tokenize(come);
        let fit = self.own().try_consume_tokens(&tokens).map_err(|error| broken(&error))?;
        self.place = Place::Form;
        if fit < tokens.len() {
            self.own = None;
            self.place = otherwise;
        }
        Ok(())
    }

    fn bytes_of(&self, token: Token) -> Result<Vec<u8>, ConstraintError> {
        let vocabulary = self.shared.tok_env().map_err(|error| broken(&error))?;
        Ok(vocabulary.tok_trie().token(token.cast_unsigned()).to_vec())
    }

    fn own(&mut self) -> &mut Matcher {
        // Each answer grows a lexer of its own: a shared one would reach its limit some day.
        self.own.get_or_insert_with(|| self.shared.deep_clone())
    }
}

impl Constrainer for FormMatcher {
    fn allowed(&mut self) -> Result<Option<&TokenMask>, ConstraintError> {
        if !matches!(self.place, Place::Form) {
            return Ok(None);
        }
        let found = self.own().compute_mask_or_eos().map_err(|error| broken(&error))?;
        self.mask.assign(found.as_slice());
        Ok(Some(&self.mask))
    }

    fn accept(&mut self, token: Token) -> Result<(), ConstraintError> {
        match (&self.place, &self.trigger) {
            (Place::Text(met), Trigger::Opening(opening)) => {
                return self.accept_text(*opening, *met, token);
            }
            (Place::Form, _) => {}
            _ => return self.accept_beginning(token),
        }
        let own = self.own();
        own.consume_token(token.cast_unsigned()).map_err(|error| broken(&error))?;
        if !matches!(self.trigger, Trigger::Start) && self.own().is_stopped() {
            // Behind a form text is free again.
            self.own = None;
            self.place = outside(&self.trigger);
        }
        Ok(())
    }
}

/// Bytes of `wanted` that are met with one more byte. Its first byte occurs in it only once, or it
/// is nothing but that byte.
fn step(met: usize, byte: u8, wanted: &[u8]) -> usize {
    match wanted.get(met) == Some(&byte) {
        true => met + 1,
        false => usize::from(byte == wanted[0]),
    }
}

/// Where an answer is that is in no form yet, or no more.
fn outside(trigger: &Trigger) -> Place {
    match trigger {
        Trigger::Start => Place::Form,
        Trigger::Opening(_) => Place::Text(0),
        Trigger::Names { .. } => Place::Beginning(Vec::new()),
    }
}

/// Judges the beginning of an answer, or of what follows a form: white space, a `;` between calls,
/// and `{"name": "..."` with any white space in between.
fn beginning_of(held: &[u8], names: &[String]) -> Beginning {
    if held.len() > BEGINNING_BYTES_MAX {
        return Beginning::Other;
    }
    let skip = |text: &mut &[u8], also: u8| {
        while let [first, rest @ ..] = *text
            && (first.is_ascii_whitespace() || *first == also)
        {
            *text = rest;
        }
    };
    let mut text = held;
    skip(&mut text, b';');
    let start = held.len() - text.len();
    for part in [&b"{"[..], b"\"name\"", b":", b"\""] {
        let common = text.iter().zip(part).take_while(|(found, wanted)| found == wanted).count();
        if common < part.len() {
            return if common == text.len() { Beginning::Open } else { Beginning::Other };
        }
        text = &text[common..];
        if part != b"\"" {
            skip(&mut text, b' ');
        }
    }
    match text.iter().position(|byte| *byte == b'"') {
        None => Beginning::Open,
        Some(end) if names.iter().any(|name| name.as_bytes() == &text[..end]) => {
            Beginning::Named(start)
        }
        Some(_) => Beginning::Other,
    }
}

impl fmt::Debug for FormMatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FormMatcher").finish_non_exhaustive()
    }
}

fn broken(error: &anyhow::Error) -> ConstraintError {
    ConstraintError { problem: problem(error).into() }
}

/// The first line of an error, without where in the grammar it is: clients do not see that.
pub(super) fn problem(error: &anyhow::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    let line = line.rsplit_once("JSON schema: ").map_or(line, |(_, own)| own);
    line.chars().take(PROBLEM_CHARACTERS).collect()
}
