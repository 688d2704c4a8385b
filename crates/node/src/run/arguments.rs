//! The words of `motley run`.

use std::path::PathBuf;

use clap::ValueEnum;
use motley_engine::{CacheElement, LayoutChoice, Residency};

use crate::pull::HubModel;
use crate::terminal;

/// Arguments of `motley run`.
#[derive(Debug, clap::Args)]
#[command(override_usage = "motley run [OPTIONS] <MODEL> [PROMPT]...")]
#[command(
    after_help = "Without a prompt it chats; a pipe is or follows the prompt. motley config show run lists more."
)]
pub(crate) struct Arguments {
    /// A GGUF file, or a name in the folder of models; then the prompt
    #[arg(value_names = ["MODEL", "PROMPT"], num_args = 0..)]
    pub(super) words: Vec<String>,
    /// The model, instead of the first word
    #[arg(short, long)]
    pub(super) model: Option<String>,
    /// Model of Hugging Face to fetch: ORG/REPO or ORG/REPO:QUANT (-hf)
    #[arg(long, value_name = "MODEL")]
    pub(super) hf_repo: Option<HubModel>,
    /// Fetch nothing
    #[arg(long)]
    pub(super) offline: bool,
    /// The prompt, instead of the words
    #[arg(short, long)]
    pub(super) prompt: Option<String>,
    /// Folder of models
    #[arg(long, value_name = "DIR")]
    pub(super) models: Option<PathBuf>,
    /// What the model is told before everything else
    #[arg(long, value_name = "TEXT")]
    pub(super) system: Option<String>,
    /// Continue the text as it is, without the chat template
    #[arg(long, conflicts_with = "system")]
    pub(super) no_template: bool,
    /// Tokens of context; 0 for the model's own [default: up to 4096]
    #[arg(short = 'c', long = "ctx-size", value_name = "N")]
    pub(super) context: Option<u64>,
    /// Most tokens of the answer; -1 for no limit [default: -1]
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true)]
    pub(super) predict: Option<i64>,
    /// Text that ends the answer; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub(super) stop: Vec<String>,
    /// Go on where the model would end
    #[arg(long)]
    pub(super) ignore_eos: bool,
    /// Seed of the random numbers; -1 for another each time [default: -1]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true)]
    pub(super) seed: Option<i64>,
    /// Temperature, 0 to 2; 0 takes the likeliest token
    #[arg(long, value_name = "X", default_value_t = 0.8)]
    pub(super) temp: f32,
    /// Choose among this many likeliest tokens; 0 among all
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub(super) top_k: u32,
    /// Choose among the likeliest that together reach this
    #[arg(long, value_name = "X", default_value_t = 0.95)]
    pub(super) top_p: f32,
    /// Drop tokens below this part of the likeliest one's
    #[arg(long, value_name = "X", default_value_t = 0.05)]
    pub(super) min_p: f32,
    /// Make tokens that occurred less likely; 1 is off
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub(super) repeat_penalty: f32,
    /// How many tokens the repeat penalty looks back
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(super) repeat_last_n: u32,
    /// Penalty for tokens of the answer, once
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(super) presence_penalty: f32,
    /// Penalty for tokens of the answer, each time
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(super) frequency_penalty: f32,
    /// Compute threads [default: one per core]
    #[arg(short, long, value_name = "N")]
    pub(super) threads: Option<usize>,
    /// Compute threads for prompts (-tb) [default: as many]
    #[arg(long, value_name = "N", hide = true)]
    pub(super) threads_batch: Option<usize>,
    /// Tokens computed at once, unless -ub is less
    #[arg(short, long, value_name = "N", default_value_t = 2048, hide = true)]
    pub(super) batch_size: usize,
    /// Tokens computed at once (-ub)
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(super) ubatch_size: usize,
    #[command(flatten)]
    pub(super) cache: CacheTypes,
    /// Layout of weights: measured or plain
    #[arg(
        long,
        value_name = "LAYOUT",
        default_value = "measured",
        hide_possible_values = true,
        hide = true
    )]
    pub(super) layout: LayoutName,
    /// Where weights are: mmap, ram, stream, or what fits
    #[arg(long, value_name = "PLACE", default_value = "auto", hide_possible_values = true)]
    pub(super) weights: WeightsPlace,
    /// Memory that may be used, such as 4G [default: what is available]
    #[arg(long, value_name = "SIZE", value_parser = terminal::parse_bytes)]
    pub(super) memory: Option<u64>,
    /// Layers in GPUs (-ngl), one more for the head [default: what fits]
    #[arg(long, value_name = "N", alias = "n-gpu-layers")]
    pub(super) gpu_layers: Option<usize>,
    /// Memory that may be used of each GPU [default: what is free]
    #[arg(long, value_name = "SIZE", value_parser = terminal::parse_bytes)]
    pub(super) gpu_memory: Option<u64>,
    /// List the GPUs that this build sees and end
    #[arg(long)]
    pub(super) list_devices: bool,
    /// Print speeds and memory after each answer
    #[arg(long)]
    pub(super) verbose: bool,
}

/// How keys and values are cached, which may differ.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct CacheTypes {
    /// Type of cached keys, and values without -ctv (-ctk) [default: f16]
    #[arg(long, value_name = "TYPE", hide_possible_values = true)]
    cache_type_k: Option<CacheType>,
    /// Type of cached values (-ctv) [default: that of keys]
    #[arg(long, value_name = "TYPE", hide_possible_values = true, hide = true)]
    cache_type_v: Option<CacheType>,
}

impl CacheTypes {
    /// The engine's name for both. Values alone say nothing of keys, which stay as they are.
    pub(crate) fn element(self) -> CacheElement {
        let keys = self.cache_type_k.unwrap_or(CacheType::F16);
        let values = self.cache_type_v.unwrap_or(keys);
        match (keys, values) {
            (CacheType::F16, CacheType::F16) => CacheElement::F16,
            (CacheType::Q8_0, CacheType::Q8_0) => CacheElement::Q8_0,
            (CacheType::F16, CacheType::Q8_0) => CacheElement::F16Q8_0,
            (CacheType::Q8_0, CacheType::F16) => CacheElement::Q8_0F16,
        }
    }

    /// Whether keys and values have different types.
    pub(crate) fn differ(self) -> bool {
        matches!(self.element(), CacheElement::F16Q8_0 | CacheElement::Q8_0F16)
    }
}

// Without doc comments on the values, which clap would print as a paragraph each.
/// How keys or values are cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CacheType {
    F16,
    #[value(name = "q8_0")]
    Q8_0,
}

/// How weights lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LayoutName {
    Measured,
    Plain,
}

impl LayoutName {
    /// The engine's name for it.
    pub(crate) fn choice(self) -> LayoutChoice {
        match self {
            Self::Measured => LayoutChoice::Measured,
            Self::Plain => LayoutChoice::Plain,
        }
    }
}

/// Where weights are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WeightsPlace {
    // Mapped where all of it fits, else streamed.
    Auto,
    Mmap,
    Ram,
    // As many layers in memory as fit, the rest read from disk for each use.
    Stream,
}

impl WeightsPlace {
    /// The residency of all layers, where memory for all of them was found before.
    pub(crate) fn residency(self) -> Residency {
        match self {
            Self::Auto | Self::Mmap => Residency::Mapped,
            Self::Ram => Residency::Ram,
            Self::Stream => Residency::Stream,
        }
    }
}
