//! The router over a fake backend, without a socket.
#![expect(unreachable_pub, reason = "a test binary has no users to reach its items")]

mod chat;
mod client;
mod completions;
mod fake;
mod fields;
mod guard;
mod hostile;
mod llama;
mod ollama;
mod request_log;
mod streams;
