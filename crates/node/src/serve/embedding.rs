//! From the mean of a prompt's hidden states to the vector that a client gets.

use std::collections::VecDeque;

use motley_engine::{Sampled, TokenLogProbabilities};
use motley_gateway::Refusal;
use tokio::sync::oneshot;

use super::listener::failure;
use crate::driver::{AnswerError, Ended, Listener, Prefill, Verdict};

/// One vector that is being computed; dropping it gives it up.
pub(super) type Pending = oneshot::Receiver<Result<Vec<f32>, AnswerError>>;

/// Takes the vector of one prompt from the driver.
pub(super) struct EmbeddingListener {
    reply: oneshot::Sender<Result<Vec<f32>, AnswerError>>,
    vector: Vec<f32>,
}

/// Both ends of one embedding.
pub(super) fn channel() -> (EmbeddingListener, Pending) {
    let (reply, pending) = oneshot::channel();
    (EmbeddingListener { reply, vector: Vec::new() }, pending)
}

/// Waits for the oldest of `pending`; nothing when none is left.
///
/// # Errors
/// When it could not be computed.
pub(super) async fn next(pending: &mut VecDeque<Pending>) -> Result<Option<Vec<f32>>, Refusal> {
    let Some(oldest) = pending.pop_front() else { return Ok(None) };
    let outcome = oldest.await.unwrap_or(Err(AnswerError::Stopped));
    outcome.map(Some).map_err(|error| Refusal::Failed(failure(&error)))
}

impl Listener for EmbeddingListener {
    fn is_gone(&self) -> bool {
        self.reply.is_closed()
    }

    fn has_room(&self) -> bool {
        true
    }

    fn scored(&mut self, _probabilities: &TokenLogProbabilities) {}

    fn embedded(&mut self, mean: Vec<f32>) {
        self.vector = to_unit_length(mean);
    }

    fn prefilled(&mut self, _prefill: &Prefill) {}

    fn token(&mut self, _sampled: &Sampled) -> Verdict {
        Verdict::Stop
    }

    fn ended(self: Box<Self>, outcome: Result<Ended, AnswerError>) {
        let Self { reply, vector } = *self;
        // Who has left needs no vector.
        let _ = reply.send(outcome.map(|_| vector));
    }
}

/// Scales a vector to the length 1, as clients expect of embeddings; zero stays zero.
fn to_unit_length(mut vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
    }
    vector
}
