//! What a model file says: a checked GGUF reader, hyper-parameters, and a directory of layers.
//!
//! It takes bytes and gives owned facts. It knows no path, clock, socket or kernel, and never
//! believes a number of a file before comparing it with the bytes that are there.
//! Start with [`Gguf::parse`], then [`ModelDirectory::from_files`].

#![forbid(unsafe_code)]

mod chat;
mod cost;
mod directory;
mod gguf;
mod hyper;
mod keys;
mod layers;
mod limits;
mod split;
mod tensor_type;
mod vocabulary;

pub use chat::{
    ChatInput, ChatTemplate, CivilTime, ControlTokens, PromptSegment, RenderedPrompt,
    TemplateAbilities, TemplateError, TokenTexts,
};
pub use cost::{CacheQuery, MemoryError, MemoryNeeded};
pub use directory::{DirectoryError, ModelDescription, ModelDirectory};
pub use gguf::{
    Array, ArrayIter, Gguf, GgufError, GgufWriter, MetadataError, MetadataValue, TensorDataWriter,
    TensorEntry, Value, ValueType, WriteError, write_metadata_only,
};
pub use hyper::{
    Activation, Architecture, Experts, HyperParameters, LayerShape, RopeKind, RopeParameters,
    RopeScaling,
};
pub use layers::{LayerTensors, TensorInfo};
pub use split::split_paths;
pub use tensor_type::{TensorType, UnknownTensorType};
pub use vocabulary::{VocabularyError, VocabularySummary};
