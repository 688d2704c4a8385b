//! The matcher of one answer.

use std::fmt;
use std::sync::Arc;

use llguidance::Matcher;
use motley_engine::TokenMask;
use motley_ggml::Token;

use crate::driver::{Constrainer, ConstraintError};

/// Characters of a problem that are told; the rest is the grammar itself.
const PROBLEM_CHARACTERS: usize = 160;

/// Follows one answer through a grammar.
pub(super) struct FormMatcher {
    /// The grammar at its beginning, shared by all answers that it forces.
    shared: Arc<Matcher>,
    /// Where this answer is; a copy is made at the first token, so that requests that wait hold
    /// none.
    own: Option<Matcher>,
    mask: TokenMask,
}

impl FormMatcher {
    pub(super) fn new(shared: Arc<Matcher>, logits: usize) -> Self {
        Self { shared, own: None, mask: TokenMask::none_allowed(logits) }
    }

    fn own(&mut self) -> &mut Matcher {
        // Each answer grows a lexer of its own: a shared one would reach its limit some day.
        self.own.get_or_insert_with(|| self.shared.deep_clone())
    }
}

impl Constrainer for FormMatcher {
    fn allowed(&mut self) -> Result<Option<&TokenMask>, ConstraintError> {
        let found = self.own().compute_mask_or_eos().map_err(|error| broken(&error))?;
        self.mask.assign(found.as_slice());
        Ok(Some(&self.mask))
    }

    fn accept(&mut self, token: Token) -> Result<(), ConstraintError> {
        self.own().consume_token(token.cast_unsigned()).map_err(|error| broken(&error))
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
