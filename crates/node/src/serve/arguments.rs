//! The words of `motley serve`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::ValueEnum;

use crate::run::{CacheType, LayoutName};
use crate::terminal;

/// Arguments of `motley serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// A GGUF file, or a name in the folder of models
    #[arg(value_name = "MODEL")]
    pub(super) word: Option<String>,
    /// The model, instead of the first word
    #[arg(short, long)]
    pub(super) model: Option<String>,
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
    /// Host name that clients may call this machine by; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(super) host_name: Vec<String>,
    /// Site whose pages may read answers, such as https://chat.example
    #[arg(long, value_name = "ORIGIN")]
    pub(super) allow_origin: Vec<String>,
    /// Also export metrics under other servers' names
    #[arg(long, value_name = "NAMES")]
    pub(super) metrics_compat: Option<MetricsCompat>,
    /// Tokens of context per slot; 0 for the model's own [default: up to 4096]
    #[arg(short = 'c', long = "ctx-size", value_name = "N")]
    pub(super) context: Option<u64>,
    /// Sequences at once (-np)
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(super) parallel: usize,
    /// Compute threads [default: one per core]
    #[arg(short, long, value_name = "N")]
    pub(super) threads: Option<usize>,
    /// Tokens computed at once, unless -ub is less
    #[arg(short, long, value_name = "N", default_value_t = 2048)]
    pub(super) batch_size: usize,
    /// Tokens computed at once (-ub)
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(super) ubatch_size: usize,
    /// Type of cached keys and values (-ctk)
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    pub(super) cache_type_k: CacheType,
    /// Layout of weights: measured or plain
    #[arg(long, value_name = "LAYOUT", default_value = "measured", hide_possible_values = true)]
    pub(super) layout: LayoutName,
    /// Memory that may be used, such as 4G [default: what is available]
    #[arg(long, value_name = "SIZE", value_parser = terminal::parse_bytes)]
    pub(super) memory: Option<u64>,
    /// Print a line for every request
    #[arg(long)]
    pub(super) verbose: bool,
}

// Without doc comments on the values, which clap would print as a paragraph each.
/// Whose metric names to export beside ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MetricsCompat {
    Vllm,
}
