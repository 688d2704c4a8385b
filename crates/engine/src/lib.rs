//! Runs layers `a..b` of a model on this machine: the unit of work is a window of layers over
//! rows, each row belonging to a slot and a position.
//!
//! Holds graphs per architecture, cached keys and values, weight layouts, sampling and the maker
//! of synthetic models. It must not know networks, plans, other devices or HTTP.
//! Start reading at [`Engine::run`]; one architecture is one file in `graphs/`.
#![expect(
    clippy::disallowed_methods,
    reason = "the engine touches the world: it measures layouts by the clock and maps files"
)]

mod cache;
mod engine;
mod graphs;
mod kept_graphs;
mod layer_set;
mod layout;
mod maker;
mod masks;
mod measure;
mod memory;
mod model;
mod moving;
mod placement;
mod reuse;
mod rows;
mod sampling;
mod sites;
mod stream;
mod streaming;
mod weights;
mod workers;

pub use cache::{CacheElement, CacheError};
pub use engine::{
    Engine, EngineOptions, Entering, LayoutChoice, LoadError, Step, StepError, Wanted,
};
pub use layer_set::LayerSet;
pub use layout::{Layout, MeasuredLayout, interleaved_bytes_max};
pub use maker::{
    ExpertShape, FileType, Llama3Stretch, MadeModel, MakeError, ModelRecipe, ModelShape,
    SlidingWindowShape, UnknownFileType, UnknownPreset, make_model, make_model_file, preset,
    preset_names, small_model,
};
pub use measure::{
    MeasureError, MeterOptions, ModelMeter, PassKind, PassTimes, ProcessorMeter, TimedPass,
};
pub use memory::EngineMemory;
pub use model::{Model, OpenError, VocabularyLoadError};
pub use placement::{Placement, Residency};
pub use reuse::{ReuseRule, SlotHistory};
pub use rows::{Row, RowsError};
pub use sampling::{
    LOGIT_BIAS_ENTRIES_MAX, PositionedRandom, STOP_STRING_BYTES_MAX, STOP_STRINGS_MAX,
    STOP_TOKENS_MAX, SampleContext, SampleError, Sampled, Sampler, SamplingOptions,
    SamplingParameterError, SamplingParameters, StopMatcher, StopStringError, StopVerdict,
    TOP_LOGPROBS_MAX, TextStream, TokenLogProbabilities, TokenLogProbability, TokenMask,
};
pub use stream::{
    ExpertFigures, ReadError, ReadRate, StreamOptions, expert_slots_bytes, read_rate,
    stream_buffer_bytes,
};
pub use streaming::{LayerWeightsBytes, ResidencyError, StreamFigures};
pub use workers::{Declined, GpuMemory};
