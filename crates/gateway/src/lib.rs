//! The HTTP surface: OpenAI's, llama.cpp's and Ollama's routes over one [`Backend`].
//!
//! It holds limits, keys, the shape of requests and answers, and nothing of what computes them. It
//! must not know engine, ring, ggml, files, sockets or the wall clock; the node listens, and hands
//! over a clock and a random number. Start at [`router`] and its table of routes, then [`Backend`].
#![forbid(unsafe_code)]

mod routes;

mod backend;
mod token_stream;

mod config;
mod limits;

mod gateway;
mod guard;

mod cluster;
mod llama;
mod ollama;
mod openai;
mod page;

mod choices;
mod respond;

mod base64;
mod fields;
mod json;
mod messages;
mod options;
mod schema;

mod error;
mod metrics;
mod request_log;

pub use backend::{
    Abilities, Backend, BackendMetrics, Caller, ChatMessage, ChatPrompt, ClusterState, Constraint,
    EmbeddingRequest, Failure, GenerationRequest, Health, KeyId, LengthRules, LinkState,
    LogprobDetail, ModelCard, NodeState, PlainValue, PlanState, Refusal, RenderedPrompt, Reply,
    Role, Sampling, Series, SeriesKind, SlotRequest, SlotState, SpecialTokens, StopRules, TokenId,
    ToolCall, ToolChoice, ToolDefinition, ToolUse,
};
pub use config::{
    BindPolicy, BindRefused, Exposure, GatewayConfig, KeyDigest, KeyRing, MetricNames, Scope,
    UnixClock, UsualOptions,
};
pub use guard::Policy;
pub use limits::{HEADERS_TIMEOUT, Limits, QUEUE_REQUESTS, QUEUE_REQUESTS_PER_KEY, SchemaLimits};
pub use request_log::{AnsweredRequest, EndedGeneration, GenerationEnd, RequestLog, SharedLog};
pub use routes::{RoutePolicy, route_policies, router};
pub use token_stream::{
    Alternative, Content, Delta, Drawn, FinishReason, Finished, SinkError, Timings, TokenEvent,
    TokenSink, TokenStream, TokenUsage,
};
