//! What the node may write down about requests. Never prompts, never answers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Failure, KeyId};
use crate::token_stream::Finished;

/// Told about every request, for a log. Called on the task that serves the request, so it must not
/// block.
pub trait RequestLog: Send + Sync + 'static {
    /// The status of a request is decided; a stream goes on after it.
    fn answered(&self, request: &AnsweredRequest<'_>);

    /// A generation has ended, or nobody waits for it any more.
    fn generation_ended(&self, generation: &EndedGeneration<'_>);
}

/// A request whose status is decided.
#[derive(Clone, Copy, Debug)]
pub struct AnsweredRequest<'a> {
    /// The id that the response carries.
    pub id: &'a str,
    /// Method of the request.
    pub method: &'a str,
    /// Path of the route as its table has it; `None` if the request reached no route.
    pub route: Option<&'static str>,
    /// HTTP status.
    pub status: u16,
    /// What the client was told, if it was refused.
    pub problem: Option<&'a str>,
    /// From the first byte to the status.
    pub took: Duration,
}

/// A generation that has ended.
#[derive(Clone, Copy, Debug)]
pub struct EndedGeneration<'a> {
    /// The id of the request it belongs to.
    pub id: &'a str,
    /// The model.
    pub model: &'a str,
    /// Whose request it was.
    pub key: Option<KeyId>,
    /// How it ended.
    pub end: GenerationEnd<'a>,
    /// From the request to this end.
    pub took: Duration,
}

/// How a generation ended.
#[derive(Clone, Copy, Debug)]
pub enum GenerationEnd<'a> {
    /// With an answer.
    Finished(&'a Finished),
    /// Without one; the cause may say more than the client was told.
    Failed(&'a Failure),
    /// The client left, read too slowly, or another choice of the request failed.
    Cancelled,
}

/// A log that a configuration can hold; by default it writes nothing.
#[derive(Clone, Default)]
pub struct SharedLog(Option<Arc<dyn RequestLog>>);

impl SharedLog {
    /// Wraps a log.
    pub fn new(log: impl RequestLog) -> Self {
        Self(Some(Arc::new(log)))
    }

    pub(crate) fn answered(&self, request: &AnsweredRequest<'_>) {
        if let Some(log) = &self.0 {
            log.answered(request);
        }
    }

    pub(crate) fn generation_ended(&self, generation: &EndedGeneration<'_>) {
        if let Some(log) = &self.0 {
            log.generation_ended(generation);
        }
    }
}

impl fmt::Debug for SharedLog {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.0.is_some() { "SharedLog(set)" } else { "SharedLog(none)" })
    }
}
