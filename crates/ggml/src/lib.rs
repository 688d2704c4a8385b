//! Safe, owned handles over the C interfaces of ggml and llama.cpp.
//!
//! The only crate with foreign functions and the only one that may contain `unsafe`.
//! Every safe function checks the indices, shapes and lengths that it hands to C: ggml aborts the
//! process on misuse, so misuse ends here as an error or a Rust assertion instead.
//! It must not know GGUF parsing, model architectures, networks or clocks.
//! No raw pointer leaves the crate. Start reading at [`Graph::build`].
#![expect(unsafe_code, reason = "this crate exists to confine the foreign interface")]

mod arena;
mod backend;
mod element;
mod experts;
mod file;
mod graph;
mod log;
mod ops;
mod packed;
mod quantize;
mod reference;
mod segments;
mod tensors;
mod threads;
mod truncation;
mod vocabulary;

pub use arena::{Arena, Region};
pub use backend::{
    Backend, BufferKind, ComputeError, Device, DeviceKind, StartError, devices, gpus,
};
pub use element::ElementType;
pub use experts::{ExpertIds, Route};
pub use file::MappedFile;
pub use graph::{AllocateError, Builder, ComputeBuffer, Graph, Input, Output, Scalar, Tensor};
pub use ops::{Attention, Rope, RopeKind};
pub use quantize::{QuantizeError, dequantize_rows, quantize_rows};
pub use reference::{
    ReferenceContext, ReferenceError, ReferenceModel, ReferenceOptions, ReferenceRow,
};
pub use tensors::{PlacedTensor, TensorError, TensorId, TensorSet, TensorSpec};
pub use threads::{ThreadPool, ThreadPoolOptions};
pub use vocabulary::{Token, Vocabulary, VocabularyError};
