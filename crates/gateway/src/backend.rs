//! What the gateway asks of whatever computes tokens: one trait, typed requests, typed refusals.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::token_stream::TokenStream;

/// The pending answer of a [`Backend`]; dropping it abandons the call.
pub type Reply<'a, T> = Pin<Box<dyn Future<Output = Result<T, Refusal>> + Send + 'a>>;

/// Something that turns prompts into tokens: one engine, or a ring of them.
///
/// The gateway calls it from many tasks at once. Snapshots ([`models`](Self::models),
/// [`health`](Self::health), [`slots`](Self::slots), [`metrics`](Self::metrics)) must not block.
/// The backend samples, decodes UTF-8, honours stop strings, forces constraints and recognises tool
/// calls; the gateway hands over parameters it has already checked against the [`ModelCard`].
pub trait Backend: Send + Sync + 'static {
    /// Every model that can be asked for, the default one first.
    fn models(&self) -> Vec<ModelCard>;

    /// Whether requests can be answered now.
    fn health(&self) -> Health;

    /// What each slot is doing; never prompt text.
    fn slots(&self) -> Vec<SlotState>;

    /// Current gauges and running totals.
    fn metrics(&self) -> BackendMetrics;

    /// The devices behind this backend and what each of them holds.
    fn cluster(&self) -> ClusterState;

    /// Text to token ids. A text that certainly has more than `tokens_max` tokens may be refused
    /// with [`Refusal::PromptTooLong`] instead; one that has a few more need not be.
    fn tokenize(
        &self,
        model: String,
        text: String,
        special: SpecialTokens,
        tokens_max: Option<u32>,
    ) -> Reply<'_, Vec<TokenId>>;

    /// Token ids to bytes, which need not be whole characters.
    fn detokenize(&self, model: String, tokens: Vec<TokenId>) -> Reply<'_, Vec<u8>>;

    /// Renders a conversation with the model's own template. Control tokens spelled out in message
    /// text must come back as text, which is why the tokens are returned along with the text.
    /// `tokens_max` as in [`tokenize`](Self::tokenize).
    fn apply_template(
        &self,
        model: String,
        prompt: ChatPrompt,
        tokens_max: Option<u32>,
    ) -> Reply<'_, RenderedPrompt>;

    /// Admits or refuses one generation. Admission is decided at once; waiting happens inside the
    /// stream. Dropping the stream cancels the generation.
    fn submit(&self, request: GenerationRequest) -> Reply<'_, TokenStream>;

    /// One vector per input, in order, all of the same length.
    fn embed(&self, request: EmbeddingRequest) -> Reply<'_, Vec<Vec<f32>>>;
}

/// Index of an entry of a model's vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenId(pub u32);

/// What is known of a model without computing anything.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelCard {
    /// Name clients use.
    pub id: String,
    /// Other names that mean the same model.
    pub aliases: Vec<String>,
    /// When the model file was made or fetched, in seconds since 1970.
    pub created_unix_s: u64,
    /// Who published it.
    pub owned_by: String,
    /// Architecture name, such as `llama`.
    pub architecture: String,
    /// Number format of most weights, such as `Q4_K_M`.
    pub quantisation: String,
    /// Number of weights.
    pub parameter_count: u64,
    /// Size of the weights.
    pub weights_bytes: u64,
    /// Names the model's content: 64 hexadecimal digits.
    pub digest: String,
    /// Tokens one sequence may hold: prompt and answer together.
    pub context_tokens: u32,
    /// Tokens of the vocabulary; ids are below it.
    pub vocabulary_tokens: u32,
    /// Length of a hidden state, and so of an embedding.
    pub embedding_length: u32,
    /// Source of the chat template, if there is one.
    pub chat_template: Option<String>,
    /// Licence text or name, if the file carries it.
    pub licence: Option<String>,
    /// What the model can be asked to do.
    pub abilities: Abilities,
    /// Names everything that decides which tokens a seed draws: build, weights, number formats. It
    /// must not change when a plan changes.
    pub system_fingerprint: String,
}

/// What a model can be asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent abilities, each named at its use")]
pub struct Abilities {
    /// Has a chat template.
    pub chat: bool,
    /// Hidden states are meaningful as embeddings.
    pub embeddings: bool,
    /// The template knows tools.
    pub tools: bool,
    /// Can separate reasoning from the answer.
    pub reasoning: bool,
}

/// Whether requests can be answered.
#[derive(Clone, Debug, PartialEq)]
pub enum Health {
    /// Yes.
    Ready,
    /// Weights are being read.
    Loading {
        /// Share already read, 0 to 1.
        progress: f32,
    },
    /// The devices at hand cannot hold the model.
    NoPlan {
        /// Why, in words for the operator.
        reason: String,
    },
}

/// Why a backend does not do what was asked. Nothing has been computed when one is returned.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// Too many requests wait already.
    #[error("{waiting} requests are waiting, the queue is full")]
    QueueFull {
        /// Requests waiting now.
        waiting: u32,
        /// When a place is likely to be free.
        retry_after: Duration,
    },
    /// This key alone has too many requests waiting.
    #[error("{waiting} requests of this key are waiting, which is its share of the queue")]
    KeyQueueFull {
        /// Requests of this key waiting now.
        waiting: u32,
        /// When a place is likely to be free.
        retry_after: Duration,
    },
    /// Prompt and answer do not fit in the context.
    #[error("{prompt_tokens} prompt and {answer_tokens} answer tokens exceed {context_tokens}")]
    ContextExceeded {
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// Tokens asked for.
        answer_tokens: u32,
        /// Tokens there is room for.
        context_tokens: u32,
    },
    /// The prompt alone does not fit in the context, which its length told.
    #[error("at least {tokens_min} prompt tokens exceed {context_tokens}")]
    PromptTooLong {
        /// Tokens that the prompt has at least.
        tokens_min: u32,
        /// Tokens there is room for.
        context_tokens: u32,
    },
    /// The model is still being loaded.
    #[error("the model is loading")]
    Loading {
        /// When it is likely to be ready.
        retry_after: Duration,
    },
    /// No device or group of devices can run the model now.
    #[error("no plan: {reason}")]
    NoPlan {
        /// Why, in words.
        reason: String,
    },
    /// The model or this build cannot do what a field asks for.
    #[error("{feature} is not supported by this model")]
    Unsupported {
        /// Name of the request field.
        param: String,
        /// What is not supported, in words.
        feature: String,
    },
    /// A schema uses something that cannot be forced.
    #[error("schema at {pointer}: {problem}")]
    Schema {
        /// JSON pointer into the schema.
        pointer: String,
        /// The keyword or construct, in words.
        problem: String,
    },
    /// The chat template refuses this conversation.
    #[error("the chat template refuses the messages: {problem}")]
    Template {
        /// The template's own words.
        problem: String,
    },
    /// A fault of the backend, not of the request.
    #[error("the backend failed: {0}")]
    Failed(Failure),
}

/// How a generation can end without an answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A device went away and its work could not be taken over.
    #[error("a device was lost and its work could not be taken over")]
    NodeLost,
    /// No device or group of devices can run the model any more.
    #[error("no plan: {reason}")]
    NoPlan {
        /// Why, in words.
        reason: String,
    },
    /// The backend ended the stream without a final event; always our bug.
    #[error("the generation ended without a result")]
    Abandoned,
    /// No progress within the time allowed.
    #[error("no progress within {} s", limit.as_secs())]
    TimedOut {
        /// The limit that passed.
        limit: Duration,
    },
    /// Shut down while the request ran.
    #[error("the server is stopping")]
    Stopping,
    /// Computing failed; the text is for the log and the client both, so it names no path.
    #[error("computing failed: {cause}")]
    Compute {
        /// What went wrong.
        cause: String,
    },
}

/// How [`Backend::tokenize`] treats special tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Put the model's begin-of-sequence token in front, if the model wants one.
    pub add: bool,
    /// Read the spelling of a special token in the text as that token.
    pub parse: bool,
}

/// A conversation to be rendered.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatPrompt {
    /// Messages in order; never empty.
    pub messages: Vec<ChatMessage>,
    /// Tools the model may call.
    pub tools: Vec<ToolDefinition>,
    /// End with the opening of an assistant turn. When false and the last message is the
    /// assistant's, that turn is left open to be continued.
    pub add_generation_prompt: bool,
    /// Plain values the template may read, such as `enable_thinking`.
    pub variables: BTreeMap<String, PlainValue>,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct ChatMessage {
    /// Who speaks.
    pub role: Role,
    /// What is said; empty for a turn that only calls tools.
    pub content: String,
    /// The speaker's name, if given.
    pub name: Option<String>,
    /// Earlier reasoning of an assistant turn.
    pub reasoning: Option<String>,
    /// Calls an assistant turn made.
    pub tool_calls: Vec<ToolCall>,
    /// The call a tool turn answers.
    pub tool_call_id: Option<String>,
}

/// Who speaks in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Role {
    /// Instructions; `developer` means the same.
    System,
    /// The person or program asking.
    #[default]
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

impl Role {
    /// The word used in templates and on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// A call an assistant turn made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// Unique within the conversation.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// Arguments as JSON text, exactly as the client sent it.
    pub arguments: String,
}

/// A tool the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolDefinition {
    /// Name, of letters, digits, `_` and `-`.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// JSON Schema of its arguments as JSON text, properties in the client's order.
    pub parameters: String,
    /// Arguments must follow the schema even when the model calls the tool of its own accord.
    pub strict: bool,
}

/// A value that a template variable may have.
#[derive(Clone, Debug, PartialEq)]
pub enum PlainValue {
    /// True or false.
    Flag(bool),
    /// A finite number.
    Number(f64),
    /// A short text.
    Text(String),
}

/// A conversation as the model reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedPrompt {
    /// The rendered text.
    pub text: String,
    /// Its tokens; control tokens come only from the template itself.
    pub tokens: Vec<TokenId>,
}

/// One answer to be generated.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationRequest {
    /// Identifies the request in logs; unique per request, shared by the choices of one request.
    pub id: String,
    /// [`ModelCard::id`] of the model.
    pub model: String,
    /// The prompt; may be empty only if the model can start from nothing.
    pub prompt: Vec<TokenId>,
    /// How long the answer may be.
    pub length: LengthRules,
    /// What ends the answer early.
    pub stop: StopRules,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Which probabilities are wanted.
    pub logprobs: LogprobDetail,
    /// The form the answer must have.
    pub constraint: Constraint,
    /// Tools, if the answer may or must call some. A forced call takes precedence over
    /// [`constraint`](Self::constraint).
    pub tools: Option<ToolUse>,
    /// Reasoning ahead of the answer is to be told from it, where the model marks it.
    pub reasoning: bool,
    /// On whose behalf; decides fairness and which cached prefixes may be used.
    pub caller: Caller,
    /// Larger is less urgent; zero is usual.
    pub priority: i32,
}

/// How long an answer may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LengthRules {
    /// Most tokens to draw.
    pub tokens_max: u32,
    /// Draw at least so many before an end-of-sequence token or stop rule counts.
    pub tokens_min: u32,
    /// Go on past end-of-sequence tokens.
    pub ignore_end: bool,
}

/// What ends an answer besides its end-of-sequence token.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct StopRules {
    /// Texts that end the answer and are never part of it, also when split over tokens.
    pub texts: Vec<String>,
    /// Tokens that end the answer and are never part of it.
    pub tokens: Vec<TokenId>,
}

/// How tokens are drawn. All numbers are finite and within the ranges named.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Draws depend only on this, the position and the logits; chosen at random if absent.
    pub seed: Option<u64>,
    /// 0 (always the likeliest) to 2.
    pub temperature: f32,
    /// Keep the likeliest tokens of this total probability, 0 to 1.
    pub top_p: f32,
    /// Keep so many of the likeliest tokens; `None` keeps all.
    pub top_k: Option<u32>,
    /// Keep tokens at least this likely relative to the likeliest, 0 to 1.
    pub min_p: f32,
    /// Subtracted per earlier occurrence, -2 to 2.
    pub frequency_penalty: f32,
    /// Subtracted once for any earlier occurrence, -2 to 2.
    pub presence_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens seen before, 0.01 to 10.
    pub repetition_penalty: f32,
    /// Added to the logits of these tokens, -100 to 100 each.
    pub logit_bias: BTreeMap<TokenId, f32>,
}

impl Default for Sampling {
    /// OpenAI's defaults: plain sampling at temperature 1.
    fn default() -> Self {
        Self {
            seed: None,
            temperature: 1.0,
            top_p: 1.0,
            top_k: None,
            min_p: 0.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: BTreeMap::new(),
        }
    }
}

/// Which log-probabilities are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LogprobDetail {
    /// Of the drawn tokens, with so many alternatives each.
    pub drawn: Option<u8>,
    /// Of the prompt's own tokens too, as [`Delta::Prompt`](crate::Delta::Prompt) ahead of the rest.
    pub prompt: bool,
}

/// The form an answer must have. Schemas have passed the gateway's structural limits, but the
/// backend may still refuse a keyword it cannot force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Constraint {
    /// Anything.
    Free,
    /// One JSON object.
    JsonObject,
    /// One JSON value that the schema accepts.
    JsonSchema {
        /// The schema as JSON text, properties in the client's order.
        schema: String,
        /// The client insists; when false the backend may loosen what it cannot force.
        strict: bool,
    },
}

/// Tools and how free the model is to call them.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolUse {
    /// What may be called; never empty.
    pub tools: Vec<ToolDefinition>,
    /// Whether a call is forced.
    pub choice: ToolChoice,
    /// More than one call may be made in one turn.
    pub parallel: bool,
}

/// Whether a tool must be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    Auto,
    /// Some tool.
    Required,
    /// This tool.
    Named(String),
}

/// On whose behalf a request runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Caller {
    /// Position of the API key in the key ring, if keys are in use.
    pub key: Option<KeyId>,
    /// Separates cached prefixes further, at the client's wish.
    pub cache_salt: Option<String>,
}

/// Position of an API key in the key ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyId(pub u32);

impl fmt::Display for KeyId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "key {}", self.0)
    }
}

/// Texts to be turned into vectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddingRequest {
    /// Identifies the request in logs.
    pub id: String,
    /// [`ModelCard::id`] of the model.
    pub model: String,
    /// Token ids per input, none empty.
    pub inputs: Vec<Vec<TokenId>>,
    /// On whose behalf.
    pub caller: Caller,
}

/// What one slot is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotState {
    /// Index of the slot.
    pub slot: u32,
    /// Tokens the slot can hold.
    pub context_tokens: u32,
    /// The request in it, if any.
    pub request: Option<SlotRequest>,
}

/// The request a slot is working on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotRequest {
    /// [`GenerationRequest::id`].
    pub id: String,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Prompt tokens already computed or found in the cache.
    pub prefilled_tokens: u32,
    /// Tokens drawn so far.
    pub drawn_tokens: u32,
    /// Most tokens that may be drawn.
    pub tokens_max: u32,
}

/// The devices that answer, and how a token travels between them.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct ClusterState {
    /// Counts plans; it only grows. Zero before the first plan runs.
    pub epoch: u64,
    /// What is being changed, in words, if anything is.
    pub change: Option<String>,
    /// Micro-batches that may be on their way at once.
    pub groups: u32,
    /// Passes around the ring per token.
    pub rounds: u32,
    /// Every device that is known, those of the plan first and in ring order.
    pub nodes: Vec<NodeState>,
    /// What the plan promises and why it is as it is, where layers were placed by one.
    pub plan: Option<PlanState>,
    /// Ways between devices, as far as they were measured or taken to be.
    pub links: Vec<LinkState>,
}

/// A plan's promise and reasons.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct PlanState {
    /// Predicted time per token of one sequence.
    pub token_predicted: Duration,
    /// The same as measured.
    pub token_measured: Option<Duration>,
    /// Why it is as it is, a sentence each.
    pub reasons: Vec<String>,
}

/// One direction between two devices.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct LinkState {
    /// Name of the device that sends.
    pub from: String,
    /// Name of the device that receives.
    pub to: String,
    /// Round trip of a short message.
    pub round_trip: Duration,
    /// Rate in this direction.
    pub bytes_per_s: u64,
    /// It was not measured, but put together from other links.
    pub assumed: bool,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct NodeState {
    /// Its name.
    pub name: String,
    /// What it is known by whatever its name: 64 hexadecimal digits, or empty for this device.
    pub id: String,
    /// Where it can be reached, or empty for this device.
    pub address: String,
    /// Whether it embeds, projects and samples.
    pub head: bool,
    /// In words: `serving`, `loading 40 %`, `idle: ...`.
    pub state: String,
    /// Layers it computes, in ring order, as first and last plus one.
    pub layers: Vec<(u32, u32)>,
    /// Memory it gives.
    pub memory_budget_bytes: u64,
    /// Memory it holds for the plan.
    pub memory_used_bytes: u64,
    /// Round trip to it, if it is another device.
    pub round_trip: Option<Duration>,
    /// Share of the last seconds in which it computed, 0 to 1.
    pub busy_ratio: Option<f64>,
    /// Mean time for one micro-batch.
    pub step: Option<Duration>,
    /// Time it should compute for one token of one sequence, by the plan.
    pub token_predicted: Option<Duration>,
    /// The same as measured.
    pub token_measured: Option<Duration>,
    /// Time it should take to send that on, by the plan.
    pub hop_predicted: Option<Duration>,
    /// What its predicted times are multiplied by, because earlier ones were wrong.
    pub correction: Option<f64>,
    /// Why it has no layers, if that is known.
    pub why: Option<String>,
}

/// Gauges and running totals of a backend.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct BackendMetrics {
    /// Requests being computed.
    pub running: u32,
    /// Requests waiting for a slot.
    pub waiting: u32,
    /// Share of KV memory in use, 0 to 1, by node name.
    pub kv_used_ratio: BTreeMap<String, f64>,
    /// Prompt tokens looked up in the prefix cache, in total.
    pub prefix_queried_tokens: u64,
    /// Prompt tokens found there, in total.
    pub prefix_hit_tokens: u64,
    /// Requests put back to make room, in total.
    pub preemptions: u64,
    /// Requests moved to other devices, in total, by cause.
    pub migrations: BTreeMap<String, u64>,
    /// Anything else the backend measures.
    pub more: Vec<Series>,
}

/// A metric that the gateway passes on without knowing what it means.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Name without prefix, unit last.
    pub name: &'static str,
    /// One sentence without a full stop.
    pub help: &'static str,
    /// Whether it only grows.
    pub kind: SeriesKind,
    /// Values by label set; label values must come from a bounded set.
    pub samples: Vec<(Vec<(&'static str, String)>, f64)>,
}

/// Whether a [`Series`] only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeriesKind {
    /// Goes up and down.
    Gauge,
    /// Only grows.
    Counter,
}
