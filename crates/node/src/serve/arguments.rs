//! The words of `motley serve`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::ValueEnum;

use motley_ring::WireElement;

use super::limits::LimitOptions;
use super::usual::{Always, UsualArguments};
use crate::cluster::Split;
use crate::gpus::GpuWish;
use crate::plan::Goal;
use crate::pull::HubModel;
use crate::run::{CacheTypes, LayoutName, WeightsPlace};
use crate::terminal;
use crate::transport::CLUSTER_PORT;

/// Arguments of `motley serve`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "motley config show serve lists more: -ngl, -tb, -ctv, limits, formats, names of metrics."
)]
pub(crate) struct Arguments {
    /// A GGUF file, or a name in the folder of models
    #[arg(value_name = "MODEL")]
    pub(super) word: Option<String>,
    /// The model, instead of the first word
    #[arg(short, long)]
    pub(super) model: Option<String>,
    /// Model of Hugging Face to fetch: ORG/REPO or ORG/REPO:QUANT (-hf)
    #[arg(long, value_name = "MODEL")]
    pub(super) hf_repo: Option<HubModel>,
    /// Fetch nothing
    #[arg(long, hide = true)]
    pub(super) offline: bool,
    /// Folder of models
    #[arg(long, value_name = "DIR")]
    pub(super) models: Option<PathBuf>,
    /// Name that clients call the model by [default: the file's]
    #[arg(short, long, value_name = "NAME")]
    pub(super) alias: Option<String>,
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(super) host: IpAddr,
    /// Port to listen on; 0 for any that is free
    #[arg(long, value_name = "N", default_value_t = 11555)]
    pub(super) port: u16,
    /// Key that clients must send; may be given several times
    #[arg(long, value_name = "KEY")]
    pub(super) api_key: Vec<String>,
    /// File of keys, one per line
    #[arg(long, value_name = "FILE")]
    pub(super) api_key_file: Option<PathBuf>,
    /// Listen beyond this machine without any key
    #[arg(long)]
    pub(super) insecure_no_auth: bool,
    /// Yes, the address may be reached from the internet
    #[arg(long)]
    pub(super) public: bool,
    /// Name that clients may call this machine by; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(super) host_name: Vec<String>,
    /// Site whose pages may read answers, such as `https://chat.example`
    #[arg(long, value_name = "ORIGIN", hide = true)]
    pub(super) allow_origin: Vec<String>,
    /// Also export metrics under other servers' names
    #[arg(long, value_name = "NAMES", hide = true)]
    pub(super) metrics_compat: Option<MetricsCompat>,
    /// Context of a slot; 0 for the model's own [default: up to 4096]
    #[arg(short = 'c', long = "ctx-size", value_name = "N")]
    pub(super) context: Option<u64>,
    /// Sequences at once (-np)
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(super) parallel: usize,
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
    #[command(flatten)]
    pub(super) gpu: GpuWish,
    /// Let other devices join, over the local network
    #[arg(long, conflicts_with = "cluster_host")]
    pub(super) lan: bool,
    /// Let other devices join, at this address
    #[arg(long, value_name = "ADDRESS")]
    pub(super) cluster_host: Option<IpAddr>,
    /// Port where other devices join
    #[arg(long, value_name = "N", default_value_t = CLUSTER_PORT)]
    pub(super) cluster_port: u16,
    /// Devices to wait for before the layers are dealt out
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) nodes: usize,
    /// Who gets layers: auto, memory, even, or 10,12,8
    #[arg(long, value_name = "SPLIT", default_value = "auto")]
    pub(super) split: Split,
    /// Goal: latency, waiting, goodput or throughput
    #[arg(long, value_enum, default_value = "latency", hide_possible_values = true)]
    pub(super) objective: Goal,
    /// File of lengths, arrivals and limits, as motley plan reads it
    #[arg(long, value_name = "FILE")]
    pub(super) workload: Option<PathBuf>,
    /// File of what this device can do [default: it is measured]
    #[arg(long, value_name = "FILE")]
    pub(super) profile: Option<PathBuf>,
    /// Rounds of the ring per token [default: as planned, or 1 where --split deals out layers]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), hide = true)]
    pub(super) rounds: Option<u32>,
    /// How activations travel: f32, f16 or q8_0
    #[arg(
        long,
        value_name = "TYPE",
        default_value = "f32",
        hide_possible_values = true,
        hide = true
    )]
    pub(super) wire: WireType,
    /// Folder of keys and lists [default: in the user's state folder]
    #[arg(long, value_name = "DIR")]
    pub(super) state: Option<PathBuf>,
    /// Print a line for every request
    #[arg(short, long)]
    pub(super) verbose: bool,
    /// From 1 on the same as --verbose (-lv)
    #[arg(long, value_name = "N", hide = true)]
    pub(super) log_verbosity: Option<u8>,
    #[command(flatten)]
    pub(super) usual: UsualArguments,
    #[command(flatten)]
    pub(super) always: Always,
    #[command(flatten)]
    pub(super) limits: LimitOptions,
}

// Without doc comments on the values, which clap would print as a paragraph each.
/// Whose metric names to export beside ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MetricsCompat {
    Vllm,
}

/// How activations travel between devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WireType {
    F32,
    F16,
    #[value(name = "q8_0")]
    Q8_0,
}

impl WireType {
    /// The protocol's name for it.
    pub(super) fn element(self) -> WireElement {
        match self {
            Self::F32 => WireElement::F32,
            Self::F16 => WireElement::F16,
            Self::Q8_0 => WireElement::Q8_0,
        }
    }
}
