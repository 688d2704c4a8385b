//! Every limit of the gateway in one place, and what ties them together.

use std::time::Duration;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// What one request may cost, and how long anything may take. [`Limits::DEFAULT`] is what ships;
/// each can be set in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request body. A million-token prompt is 4 to 6 MiB of text.
    pub body_bytes: usize,
    /// Nesting of JSON, checked on the bytes before anything is built from them.
    pub json_depth: usize,
    /// JSON values in one body.
    pub json_nodes: usize,
    /// Bytes of all header names and values together.
    pub header_bytes: usize,
    /// Header fields.
    pub header_fields: usize,
    /// Messages of one conversation.
    pub messages: usize,
    /// Tools of one request.
    pub tools: usize,
    /// Stop texts, and as many stop tokens.
    pub stops: usize,
    /// Bytes of one stop text.
    pub stop_bytes: usize,
    /// `n` and `best_of`.
    pub choices: u32,
    /// Prompts of one completions request, inputs of one embeddings request.
    pub prompts: usize,
    /// Generations one request may start: prompts times `best_of`.
    pub generations: usize,
    /// `top_logprobs`.
    pub top_logprobs: u8,
    /// Entries of `logit_bias`.
    pub logit_bias: usize,
    /// Limits of a JSON Schema.
    pub schema: SchemaLimits,
    /// Time until the first token.
    pub first_token: Duration,
    /// Time between tokens.
    pub idle: Duration,
    /// Time for the whole answer.
    pub total: Duration,
    /// Silence after which a waiting stream says that it is alive.
    pub keep_alive: Duration,
    /// Bytes of one response that may wait for a slow reader.
    pub unread_bytes: usize,
    /// How long a response may wait for a slow reader before it is dropped.
    pub unread: Duration,
}

/// What a JSON Schema may cost before a grammar is made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchemaLimits {
    /// Bytes of the schema as text.
    pub bytes: usize,
    /// Schemas within schemas.
    pub depth: usize,
    /// Schemas in total.
    pub nodes: usize,
    /// Schemas after every reference is replaced by what it names.
    pub expanded_nodes: u64,
    /// Values of one `enum`.
    pub enum_values: usize,
    /// Bytes of one `pattern`.
    pub pattern_bytes: usize,
    /// Bytes a `pattern` may take when compiled for a linear-time engine.
    pub pattern_compiled_bytes: usize,
    /// Values of counting keywords such as `minItems`.
    pub count: u64,
}

impl Limits {
    /// The shipped limits.
    pub const DEFAULT: Self = Self {
        body_bytes: 10 * MIB,
        json_depth: 32,
        json_nodes: 250_000,
        header_bytes: 32 * KIB,
        header_fields: 100,
        messages: 2_048,
        tools: 128,
        stops: 16,
        stop_bytes: KIB,
        choices: 8,
        prompts: 64,
        generations: 64,
        top_logprobs: 20,
        logit_bias: 1_024,
        schema: SchemaLimits {
            bytes: 64 * KIB,
            depth: 16,
            nodes: 1_024,
            expanded_nodes: 16_384,
            enum_values: 4_096,
            pattern_bytes: 512,
            pattern_compiled_bytes: MIB,
            count: 65_536,
        },
        first_token: Duration::from_secs(10 * 60),
        idle: Duration::from_secs(60),
        total: Duration::from_secs(60 * 60),
        keep_alive: Duration::from_secs(15),
        unread_bytes: 256 * KIB,
        unread: Duration::from_secs(60),
    };
}

/// Requests a backend should let wait before it refuses more.
pub const QUEUE_REQUESTS: u32 = 512;
/// Requests of one key a backend should let wait before it refuses more.
pub const QUEUE_REQUESTS_PER_KEY: u32 = 16;
/// Time within which all headers of a request must arrive; the listener enforces it.
pub const HEADERS_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a model name; longer names are not looked up.
pub(crate) const MODEL_NAME_BYTES: usize = 256;
/// Bytes of a request id that a client may choose.
pub(crate) const REQUEST_ID_BYTES: usize = 128;
/// Variables a chat template may be given, and bytes of each text among them.
pub(crate) const TEMPLATE_VARIABLES: usize = 16;
pub(crate) const TEMPLATE_VARIABLE_BYTES: usize = KIB;
/// Bytes of a tool's or schema's name, as OpenAI has it.
pub(crate) const TOOL_NAME_BYTES: usize = 64;
/// Bytes of a cache salt.
pub(crate) const CACHE_SALT_BYTES: usize = 256;
/// Chunks of one response in flight between its feeder and its reader; bytes bound it as well.
pub(crate) const UNREAD_CHUNKS: usize = 1_024;
/// Fields named in one `warnings` header.
pub(crate) const WARNINGS: usize = 8;

const _: () = {
    let limits = Limits::DEFAULT;
    assert!(limits.schema.bytes < limits.body_bytes);
    assert!(limits.schema.depth < limits.json_depth);
    assert!(limits.schema.nodes < limits.json_nodes);
    assert!(limits.schema.nodes as u64 <= limits.schema.expanded_nodes);
    // The shortest value and its comma take two bytes.
    assert!(limits.schema.enum_values * 2 < limits.schema.bytes);
    assert!(limits.choices as usize <= limits.generations);
    assert!(limits.prompts <= limits.generations);
    assert!(limits.keep_alive.as_secs() * 2 < limits.idle.as_secs());
    assert!(limits.idle.as_secs() <= limits.first_token.as_secs());
    assert!(limits.first_token.as_secs() <= limits.total.as_secs());
    assert!(QUEUE_REQUESTS_PER_KEY < QUEUE_REQUESTS);
    assert!(REQUEST_ID_BYTES + MODEL_NAME_BYTES < limits.header_bytes);
};
