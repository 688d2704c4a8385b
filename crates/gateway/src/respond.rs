//! Answers on the wire: one JSON body, or a stream that is fed by a task of its own.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use futures_util::stream;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

use crate::choices::Choices;
use crate::error::ApiError;
use crate::limits::{Limits, UNREAD_CHUNKS};
use crate::token_stream::{Delta, Finished, TokenEvent};

/// A 200 with a JSON body.
pub(crate) fn json_response(value: &Value) -> Response {
    with_type(Body::from(value.to_string()), "application/json")
}

pub(crate) fn with_type(body: Body, content_type: &'static str) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Writes the events of one request in the form some client expects.
pub(crate) trait Encoder: Send + 'static {
    /// Media type of the stream.
    const CONTENT_TYPE: &'static str;
    /// What to send while there is nothing to say; empty if the form has no room for it.
    const KEEP_ALIVE: &'static str;

    fn delta(&mut self, choice: usize, delta: Delta, out: &mut String);
    fn finished(&mut self, choice: usize, finished: &Finished, out: &mut String);
    fn failed(&mut self, error: &ApiError, out: &mut String);
    /// Everything has been said, and no failure.
    fn end(&mut self, out: &mut String);
}

/// Streams `choices`.
///
/// The status is only decided when the first event is there, or when the client has waited so long
/// that it needs a sign of life; until then a failure still gets a status of its own.
pub(crate) async fn stream_response<E: Encoder>(
    mut choices: Choices,
    encoder: E,
    limits: &Limits,
) -> Result<Response, ApiError> {
    let first = match timeout(limits.keep_alive, choices.next()).await {
        Ok(Some((_, TokenEvent::Failed(failure)))) => return Err(failure.into()),
        Ok(first) => First::Event(first),
        Err(_) => First::Nothing,
    };
    let (outlet, inlet) = Outlet::new(limits);
    let feeder = Feeder { choices, encoder, outlet, keep_alive: limits.keep_alive };
    tokio::spawn(feeder.run(first));
    let mut response = with_type(inlet, E::CONTENT_TYPE);
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}

/// What was read before the stream began.
enum First {
    Event(Option<(usize, TokenEvent)>),
    Nothing,
}

struct Feeder<E> {
    choices: Choices,
    encoder: E,
    outlet: Outlet,
    keep_alive: Duration,
}

impl<E: Encoder> Feeder<E> {
    /// Feeds the response until its end. Returning early drops the choices, which cancels them: when
    /// the client has gone, or reads too slowly.
    async fn run(mut self, first: First) {
        let mut text = String::new();
        let mut more = match first {
            First::Event(event) => self.encode(event, &mut text),
            First::Nothing => {
                text.push_str(E::KEEP_ALIVE);
                true
            }
        };
        loop {
            if self.outlet.send(&text).await.is_err() {
                return;
            }
            if !more {
                return self.outlet.close().await;
            }
            text.clear();
            let waited = tokio::select! {
                biased;
                () = self.outlet.reader_gone() => return,
                waited = timeout(self.keep_alive, self.choices.next()) => waited,
            };
            match waited {
                Ok(event) => more = self.encode(event, &mut text),
                Err(_) => text.push_str(E::KEEP_ALIVE),
            }
        }
    }

    /// Encodes an event; false if it was the last.
    fn encode(&mut self, event: Option<(usize, TokenEvent)>, text: &mut String) -> bool {
        match event {
            Some((choice, TokenEvent::Delta(delta))) => self.encoder.delta(choice, delta, text),
            Some((choice, TokenEvent::Finished(finished))) => {
                self.encoder.finished(choice, &finished, text);
            }
            Some((_, TokenEvent::Failed(failure))) => {
                self.encoder.failed(&failure.into(), text);
                return false;
            }
            None => {
                self.encoder.end(text);
                return false;
            }
        }
        true
    }
}

/// The feeder's side of a response body, bounded in bytes and in time.
struct Outlet {
    chunks: mpsc::Sender<Chunk>,
    unread: Arc<Semaphore>,
    unread_bytes: u32,
    patience: Duration,
}

enum Chunk {
    Data(Bytes, OwnedSemaphorePermit),
    /// The body is complete. A body that ends without it is cut off, so that the client notices.
    End,
}

/// The reader is gone, or has not read for too long.
struct ReaderLost;

/// A response ended before everything was said, because its reader was too slow.
#[derive(Debug, thiserror::Error)]
#[error("the response was cut off because it was not read")]
struct CutOff;

impl Outlet {
    fn new(limits: &Limits) -> (Self, Body) {
        let (chunks, mut inlet) = mpsc::channel(UNREAD_CHUNKS);
        let unread = Arc::new(Semaphore::new(limits.unread_bytes));
        let unread_bytes = u32::try_from(limits.unread_bytes).unwrap_or(u32::MAX);
        let outlet = Self { chunks, unread, unread_bytes, patience: limits.unread };
        let mut ended = false;
        let body = stream::poll_fn(move |context| {
            if ended {
                return std::task::Poll::Ready(None);
            }
            inlet.poll_recv(context).map(|chunk| match chunk {
                Some(Chunk::Data(bytes, _permit)) => Some(Ok(bytes)),
                Some(Chunk::End) => None,
                None => {
                    ended = true;
                    Some(Err(CutOff))
                }
            })
        });
        (outlet, Body::from_stream(body))
    }

    async fn send(&self, text: &str) -> Result<(), ReaderLost> {
        if text.is_empty() {
            return Ok(());
        }
        let bytes = Bytes::copy_from_slice(text.as_bytes());
        // A chunk larger than the whole allowance waits until everything else has been read.
        let cost = u32::try_from(bytes.len()).unwrap_or(u32::MAX).min(self.unread_bytes);
        let hand_over = async {
            let permit = Arc::clone(&self.unread).acquire_many_owned(cost).await;
            let permit = permit.expect("the semaphore is never closed");
            self.chunks.send(Chunk::Data(bytes, permit)).await.map_err(|_| ReaderLost)
        };
        tokio::select! {
            biased;
            () = self.reader_gone() => Err(ReaderLost),
            sent = timeout(self.patience, hand_over) => sent.unwrap_or(Err(ReaderLost)),
        }
    }

    async fn reader_gone(&self) {
        self.chunks.closed().await;
    }

    async fn close(self) {
        // If there is no room for the mark within the time allowed, cutting off is right.
        let _ = timeout(self.patience, self.chunks.send(Chunk::End)).await;
    }
}
