//! A line per request on stderr, for `--verbose`.

use motley_gateway::{AnsweredRequest, EndedGeneration, GenerationEnd, RequestLog};

use crate::terminal;

/// Writes lines; never a prompt, never an answer.
pub(super) struct Lines;

impl RequestLog for Lines {
    fn answered(&self, request: &AnsweredRequest<'_>) {
        let AnsweredRequest { id, method, route, status, problem, took } = *request;
        let route = route.unwrap_or("(no route)");
        let problem = problem.map(|problem| format!(": {problem}")).unwrap_or_default();
        let took = terminal::duration(took);
        terminal::note(&format!("{id} {method} {route} {status} in {took}{problem}\n"));
    }

    fn generation_ended(&self, generation: &EndedGeneration<'_>) {
        let EndedGeneration { id, took, ref end, .. } = *generation;
        let took = terminal::duration(took);
        let end = match end {
            GenerationEnd::Finished(finished) => format!(
                "{}: {} prompt tokens ({} cached), {} answer tokens",
                finished.reason.as_str(),
                finished.usage.prompt_tokens,
                finished.usage.cached_tokens,
                finished.usage.completion_tokens
            ),
            GenerationEnd::Failed(failure) => format!("failed: {failure}"),
            GenerationEnd::Cancelled => "the client left".to_owned(),
        };
        terminal::note(&format!("{id} ended after {took}: {end}\n"));
    }
}
