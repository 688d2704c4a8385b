//! Who decides which tokens may come next.

use std::sync::Arc;

use motley_engine::TokenMask;
use motley_ggml::Token;

/// Forces a form of one answer. Called on the engine thread between steps, so nothing here may
/// block or take long: first `allowed`, then `accept` with the token that was chosen, and so on.
///
/// Its state is that of all tokens accepted so far. A sequence that is computed again elsewhere
/// keeps it, because the tokens it has told stand.
pub(crate) trait Constrainer: Send {
    /// Tokens that may come next, or nothing when any may. Once the form is complete these are the
    /// tokens that end an answer.
    ///
    /// # Errors
    /// When they cannot be found within the limits of one step.
    fn allowed(&mut self) -> Result<Option<&TokenMask>, ConstraintError>;

    /// Takes the token that was chosen, which ends no answer.
    ///
    /// # Errors
    /// When the form does not allow it.
    fn accept(&mut self, token: Token) -> Result<(), ConstraintError>;
}

/// A form of the answer that cannot be forced any further.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the form of the answer cannot be kept: {problem}")]
pub(crate) struct ConstraintError {
    /// Why, in words without a path.
    pub(crate) problem: Arc<str>,
}
