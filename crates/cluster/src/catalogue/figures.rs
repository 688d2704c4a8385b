//! The typed form of `data/devices.json`: every figure with its source and whether it is estimated.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde::de::IgnoredAny;

/// A figure, where it comes from, and whether it was estimated rather than published.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure<T = f64> {
    /// The value; absent where nothing is known.
    pub value: Option<T>,
    /// Key into [`Catalogue::sources`].
    pub source: String,
    /// Estimated, derived or guessed.
    pub estimated: bool,
    /// Remark.
    pub note: Option<String>,
}

/// What a paper calls the device.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceRole {
    /// Paper.
    pub paper: String,
    /// Its name there.
    pub id: String,
    /// The head of that cluster.
    #[serde(default)]
    pub head: bool,
    /// Remark.
    pub note: Option<String>,
}

/// Memory sizes and bandwidths in GB (1e9), GiB (2^30) and GB/s.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryFigures {
    /// Nominal GPU memory; its "GB" are GiB.
    pub vram_gb: Figure,
    /// Nominal RAM; its "GB" are GiB.
    pub ram_gb: Figure,
    /// Shared by CPU and GPU.
    pub unified: bool,
    /// What weights, KV and head may take on the GPU, in 1e9 bytes.
    pub usable_vram_gb: Figure,
    /// Peak GPU bandwidth.
    pub gpu_bw_gbs: Option<Figure>,
    /// Peak CPU bandwidth.
    pub cpu_bw_gbs_peak: Figure,
    /// CPU bandwidth reached.
    pub cpu_bw_gbs_effective: Figure,
    /// RAM free for a model.
    pub ram_available_gib: Option<Figure>,
    /// Memory of other processes that can be swapped out.
    pub swappable_gib: Option<Figure>,
    /// Limit a study put on the GPU memory.
    pub vram_cap_gib: Option<Figure>,
}

/// Compute rates in TFLOP/s, TOP/s and GFLOP/s.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the names are the file's and say what and in which unit")]
pub struct ComputeFigures {
    pub gpu_fp32_tflops: Option<Figure>,
    pub gpu_fp16_tflops: Figure,
    pub gpu_fp4_tops_sparse: Option<Figure>,
    pub gpu_int8_tops_dense: Figure,
    pub gpu_cores: Option<Figure>,
    pub cpu_cores: Figure,
    pub cpu_fp32_gflops_peak: Option<Figure>,
    pub cpu_q4_gflops_effective: Figure,
}

/// Disk read rates in GB/s.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the names are the file's and say what and in which unit")]
pub struct DiskFigures {
    pub seq_read_gbs: Figure,
    pub rnd_read_gbs: Figure,
}

/// How expert layers deviate from dense ones.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertFit {
    /// Exponent of batch in the count of distinct experts.
    pub gamma: f64,
    /// Fraction of peak bandwidth reached.
    pub bw_fraction: f64,
}

/// Rates that benchmarks reach, in GB/s and TFLOP/s.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the names are the file's and say what and in which unit")]
pub struct EffectiveFigures {
    pub decode_bw_gbs: Figure,
    pub prefill_tflops: Figure,
    pub decode_bw_fraction: Option<Figure>,
    pub moe_gpt_oss_decode_bw_gbs: Option<Figure>,
    pub moe_fit: Option<Figure<ExpertFit>>,
}

/// A published benchmark row.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Benchmark {
    /// Model.
    pub model: String,
    /// File type.
    pub quant: String,
    /// Test, such as `pp512` or `tg128`.
    pub test: String,
    /// Result in tokens per second.
    pub tok_s: f64,
    /// Key into [`Catalogue::sources`].
    pub source: String,
    /// Estimated.
    pub estimated: bool,
    /// Backend.
    pub backend: Option<String>,
    /// Remark.
    pub note: Option<String>,
}

/// A device of the catalogue.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the parts are documented at their types")]
pub struct CatalogueDevice {
    pub id: String,
    pub name: String,
    pub roles: Vec<DeviceRole>,
    pub os: Figure<String>,
    pub memory: MemoryFigures,
    pub compute: ComputeFigures,
    pub disk: DiskFigures,
    pub effective: EffectiveFigures,
    pub benchmarks: Vec<Benchmark>,
}

/// A model of the catalogue, under the file's own names; bytes and FLOPs per token.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the names are the file's and say what and in which unit")]
pub struct CatalogueModel {
    pub id: String,
    pub name: String,
    pub quant: String,
    pub kind: String,
    pub n_layers: u32,
    pub n_embd: u32,
    pub n_head: u32,
    pub n_head_kv: u32,
    pub head_dim: u32,
    pub n_ff: Option<u32>,
    pub n_ff_expert: Option<u32>,
    pub n_expert: Option<u32>,
    pub n_expert_used: Option<u32>,
    pub n_vocab: u32,
    #[serde(default)]
    pub qkv_bias: bool,
    pub params_b: f64,
    pub active_params_b: Option<f64>,
    pub layer_bytes: Vec<u64>,
    pub layer_bytes_avg: u64,
    pub layer_bytes_min: u64,
    pub layer_bytes_max: u64,
    pub attn_bytes_avg: Option<u64>,
    pub expert_bytes_avg: Option<u64>,
    pub active_layer_bytes_one_token: Option<u64>,
    pub embed_bytes: u64,
    pub output_bytes: u64,
    pub file_bytes_derived: u64,
    pub file_gib_derived: f64,
    pub file_gib_published: Option<f64>,
    pub kv_bytes_per_token_layer_f16: u64,
    pub layer_matmul_flops_per_token: f64,
    pub attn_flops_per_token_per_ctx_token_layer: f64,
    pub output_flops_per_token: f64,
    pub activation_bytes_per_token_f32: u64,
    pub sliding_window: Option<u32>,
    pub sliding_window_layers: Option<String>,
    pub layer_types: Option<Vec<String>>,
    pub estimated: bool,
    pub source: String,
    pub note: Option<String>,
}

/// Aggregate decode rates of one device and model by batch, at a prompt of 512 tokens.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the names are the file's and say what and in which unit")]
pub struct BatchedDecodeRow {
    pub device: String,
    pub model: String,
    pub quant: String,
    pub batch: Vec<u32>,
    pub tok_s: Vec<f64>,
    pub source: String,
    pub note: Option<String>,
}

/// A row of prima.cpp's latency tables: milliseconds per token on its home cluster.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the columns are systems, in milliseconds per token")]
pub struct LatencyRow {
    pub model: String,
    #[serde(rename = "llama_cpp_D3")]
    pub llama_cpp_d3: f64,
    pub exo: Option<f64>,
    pub dllama: Option<f64>,
    pub prima: f64,
}

/// A row of prima.cpp's ablation study.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatencyAblation {
    /// Model, where named.
    pub model: Option<String>,
    /// What was changed.
    pub variant: String,
    /// Milliseconds per token.
    pub ms: f64,
    /// Key into [`Catalogue::sources`].
    pub source: String,
}

/// The whole catalogue.
#[derive(Debug, Clone, PartialEq)]
pub struct Catalogue {
    /// Where figures come from, by key.
    pub sources: BTreeMap<String, String>,
    /// Devices.
    pub devices: Vec<CatalogueDevice>,
    /// Models.
    pub models: Vec<CatalogueModel>,
    /// Validation set of the batch model.
    pub batched_decode: Vec<BatchedDecodeRow>,
    /// prima.cpp's published latencies.
    pub prima_latency: Vec<LatencyRow>,
    /// prima.cpp's published ablation.
    pub prima_ablation: Vec<LatencyAblation>,
    pub(super) clusters: ClusterFigures,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct ClusterFigures {
    pub(super) e2llm: ClusterRow,
    pub(super) prima_home: ClusterRow,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct ClusterRow {
    pub(super) nodes: Vec<NodeRow>,
    pub(super) link: LinkRow,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct NodeRow {
    pub(super) id: String,
    pub(super) device: String,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkRow {
    pub(super) bandwidth_mbps: Figure<OneOrRange>,
    #[serde(alias = "latency_ms")]
    pub(super) rtt_ms: Figure<OneOrRange>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(untagged)]
pub(super) enum OneOrRange {
    One(f64),
    Range(f64, f64),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "title")]
    _title: IgnoredAny,
    #[serde(rename = "units")]
    _units: IgnoredAny,
    #[serde(rename = "rule")]
    _rule: IgnoredAny,
    sources: BTreeMap<String, String>,
    devices: Vec<CatalogueDevice>,
    clusters: ClusterFigures,
    models: Vec<CatalogueModel>,
    batched_decode: BatchedDecode,
    prima_published_latency: PrimaLatency,
    #[serde(rename = "reference_only")]
    _reference_only: IgnoredAny,
}

#[derive(Deserialize)]
struct BatchedDecode {
    rows: Vec<BatchedDecodeRow>,
}

#[derive(Deserialize)]
struct PrimaLatency {
    rows: Vec<LatencyRow>,
    ablation: Vec<LatencyAblation>,
}

impl Catalogue {
    /// The catalogue this build carries.
    ///
    /// # Panics
    /// Never in a build whose tests passed: the data is part of the crate.
    #[must_use]
    pub fn builtin() -> &'static Self {
        static BUILTIN: LazyLock<Catalogue> = LazyLock::new(|| {
            let file: File = serde_json::from_str(include_str!("../../data/devices.json"))
                .expect("the built-in catalogue is well-formed");
            Catalogue {
                sources: file.sources,
                devices: file.devices,
                models: file.models,
                batched_decode: file.batched_decode.rows,
                prima_latency: file.prima_published_latency.rows,
                prima_ablation: file.prima_published_latency.ablation,
                clusters: file.clusters,
            }
        });
        &BUILTIN
    }

    /// A device by id.
    #[must_use]
    pub fn device(&self, id: &str) -> Option<&CatalogueDevice> {
        self.devices.iter().find(|device| device.id == id)
    }

    /// A model by id.
    #[must_use]
    pub fn model(&self, id: &str) -> Option<&CatalogueModel> {
        self.models.iter().find(|model| model.id == id)
    }
}
