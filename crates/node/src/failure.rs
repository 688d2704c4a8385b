//! How a command fails: a cause, a kind that becomes the exit code, and a next step.

use std::fmt::Write as _;
use std::io;

/// The kinds of failure that scripts tell apart. `main` alone turns them into exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Anything without a kind of its own.
    Failed,
    /// The command line is wrong.
    Usage,
    /// A file or a name does not exist.
    NotFound,
    /// A limit forbids it: memory, context, a policy.
    Refused,
    /// Stopped by Ctrl-C.
    Interrupted,
}

/// Why a command failed, and what to do next.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    error: anyhow::Error,
    hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(kind: Kind, error: impl Into<anyhow::Error>) -> Self {
        Self { kind, error: error.into(), hint: None }
    }

    /// A wrong command line.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Kind::Usage, anyhow::Error::msg(message.into()))
    }

    /// Ctrl-C; nothing is to be explained.
    pub(crate) fn interrupted() -> Self {
        Self::new(Kind::Interrupted, anyhow::anyhow!("interrupted"))
    }

    /// Adds what to do next.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The chain of causes on one line, and the next step on another.
    pub(crate) fn report(&self) -> String {
        let mut text = String::from("motley: ");
        let mut last = String::new();
        for cause in self.error.chain() {
            let cause = cause.to_string();
            // Transparent errors repeat their source.
            if cause == last {
                continue;
            }
            if !last.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&one_line(&cause));
            last = cause;
        }
        text.push('\n');
        if let Some(hint) = &self.hint {
            let _ = writeln!(text, "hint: {hint}");
        }
        text
    }

    /// Whether the reader of our output went away, which is no failure.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        self.error
            .chain()
            .filter_map(|cause| cause.downcast_ref::<io::Error>())
            .any(|error| error.kind() == io::ErrorKind::BrokenPipe)
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new(Kind::Failed, error)
    }
}

/// Text of files and messages, with nothing in it that moves a terminal's cursor.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_stand_on_one_line_once() {
        let error = anyhow::anyhow!("tensor 'a\u{1b}[2J' is missing")
            .context("cannot read x.gguf")
            .context("cannot read x.gguf");
        let failure = Failure::new(Kind::Failed, error).hint("get the file again");
        assert_eq!(
            failure.report(),
            "motley: cannot read x.gguf: tensor 'a\\u{1b}[2J' is missing\n\
             hint: get the file again\n"
        );
    }

    #[test]
    fn a_closed_pipe_is_recognised_through_contexts() {
        let closed = anyhow::Error::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(Failure::from(closed.context("cannot print")).is_broken_pipe());
        assert!(!Failure::from(anyhow::anyhow!("broken")).is_broken_pipe());
    }
}
