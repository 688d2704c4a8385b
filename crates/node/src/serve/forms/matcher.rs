//! The matcher of one answer.

use std::fmt;
use std::sync::Arc;

use llguidance::Matcher;
use motley_engine::TokenMask;
use motley_ggml::Token;

use crate::driver::{Constrainer, ConstraintError};

/// Characters of a problem that are told; the rest is the grammar itself.
const PROBLEM_CHARACTERS: usize = 160;

/// The text behind which a form begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opening {
    /// Its first byte occurs in it only once.
    pub(super) text: &'static str,
    /// The token that is all of it, if there is one.
    pub(super) token: Option<Token>,
}

/// Follows one answer, or the forms within it, through a grammar.
pub(super) struct FormMatcher {
    /// The grammar at its beginning, shared by all answers that it forces.
    shared: Arc<Matcher>,
    /// Where this answer is; a copy is made at the first token, so that requests that wait hold
    /// none.
    own: Option<Matcher>,
    mask: TokenMask,
    /// Where free text ends, if the form is not the whole answer.
    opening: Option<Opening>,
    /// Bytes of the opening that have been met; nothing within a form.
    met: Option<usize>,
}

impl FormMatcher {
    pub(super) fn new(shared: Arc<Matcher>, logits: usize, opening: Option<Opening>) -> Self {
        let (mask, met) = (TokenMask::none_allowed(logits), opening.map(|_| 0));
        Self { shared, own: None, mask, opening, met }
    }

    /// Takes a token of free text, in which the opening may come.
    fn accept_free(&mut self, opening: Opening, token: Token) -> Result<(), ConstraintError> {
        if opening.token == Some(token) {
            self.met = None;
            return Ok(());
        }
        let vocabulary = self.shared.tok_env().map_err(|error| broken(&error))?;
        let bytes = vocabulary.tok_trie().token(token.cast_unsigned());
        let wanted = opening.text.as_bytes();
        let mut met = self.met.unwrap_or(0);
        for (at, byte) in bytes.iter().enumerate() {
            met = match *byte == wanted[met] {
                true => met + 1,
                false => usize::from(*byte == wanted[0]),
            };
            if met == wanted.len() {
                // What the token has behind the opening is the beginning of the form, if it fits.
                let rest = vocabulary.tok_trie().greedy_tokenize(&bytes[at + 1..]);
                let fits = self.own().try_consume_tokens(&rest).map_err(|error| broken(&error))?;
                self.met = (fits < rest.len()).then_some(0);
                if self.met.is_some() {
                    self.own = None;
                }
                return Ok(());
            }
        }
        self.met = Some(met);
        Ok(())
    }

    fn own(&mut self) -> &mut Matcher {
        // Each answer grows a lexer of its own: a shared one would reach its limit some day.
        self.own.get_or_insert_with(|| self.shared.deep_clone())
    }
}

impl Constrainer for FormMatcher {
    fn allowed(&mut self) -> Result<Option<&TokenMask>, ConstraintError> {
        if self.met.is_some() {
            return Ok(None);
        }
        let found = self.own().compute_mask_or_eos().map_err(|error| broken(&error))?;
        self.mask.assign(found.as_slice());
        Ok(Some(&self.mask))
    }

    fn accept(&mut self, token: Token) -> Result<(), ConstraintError> {
        if let (Some(opening), Some(_)) = (self.opening, self.met) {
            return self.accept_free(opening, token);
        }
        let own = self.own();
        own.consume_token(token.cast_unsigned()).map_err(|error| broken(&error))?;
        if self.opening.is_some() && self.own().is_stopped() {
            // Behind a form text is free again.
            self.own = None;
            self.met = Some(0);
        }
        Ok(())
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
