//! Times of a model's layers and head on this device.

use std::time::Duration;

use motley_cluster::{
    AttentionClass, DeviceProfile, FieldError, HeadTable, LayerTable, MeasuredPoint, Phase,
};
use motley_engine::{
    CacheElement, LayoutChoice, MeterOptions, ModelMeter, PassKind, PassTimes, ProcessorMeter,
    TimedPass,
};
use motley_model::ModelDirectory;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::facts::Facts;
use super::{Effort, Options, ProfileError, Progress, cache, hardware};
use crate::memory;

/// Measured times of one model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ModelTables {
    pub(crate) layers: Vec<LayerTable>,
    pub(crate) heads: Vec<HeadTable>,
}

impl ModelTables {
    /// The device with these tables for its processor, in the place of others of the same model.
    ///
    /// # Errors
    /// When a time is none that a layer takes.
    pub(crate) fn merged_into(self, device: &DeviceProfile) -> Result<DeviceProfile, FieldError> {
        let mut spec = device.to_spec();
        let models: Vec<String> = self.heads.iter().map(|table| table.model.clone()).collect();
        spec.cpu.layer_tables.retain(|table| !models.contains(&table.model));
        spec.cpu.head_tables.retain(|table| !models.contains(&table.model));
        spec.cpu.layer_tables.extend(self.layers);
        spec.cpu.head_tables.extend(self.heads);
        DeviceProfile::new(spec)
    }
}

/// What times of a model depend on.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Key {
    facts: Facts,
    /// Digest of shapes and types of all tensors and of the numbers of the graph.
    shape: String,
    model: String,
}

/// Sequences that are decoded together.
const DECODE: [usize; 6] = [1, 2, 4, 8, 16, 32];
const DECODE_QUICK: [usize; 3] = [1, 8, 32];

/// Tokens of a prompt in one pass.
const PREFILL: [usize; 3] = [32, 128, 512];
const PREFILL_QUICK: [usize; 2] = [32, 256];

/// Context of the decoding passes: that of a conversation which has just begun.
const DECODE_DEPTH: usize = 32;

/// Passes after a longer context, which tell what every more token of it costs.
const DEEP: [TimedPass; 3] = [
    TimedPass { kind: PassKind::Decode, tokens: 1, depth_tokens: 1024 },
    TimedPass { kind: PassKind::Decode, tokens: 8, depth_tokens: 1024 },
    TimedPass { kind: PassKind::Prefill, tokens: 512, depth_tokens: 512 },
];

/// Memory that a measurement takes at most, and its part of what is available.
const MEMORY_BYTES_MAX: u64 = 2 << 30;
const MEMORY_SHARE: u64 = 3;

/// Times of the layers and the head of the model that `directory` describes, under the name that
/// its profile has in plans.
///
/// # Errors
/// When memory or the cache folder does not suffice, or a pass fails.
pub(crate) fn model_tables(
    options: &Options,
    model: &str,
    directory: &ModelDirectory,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<ModelTables, ProfileError> {
    let shape = shape_digest(directory);
    let path = options.cache.join(format!("model-{}.json", &shape[..16]));
    let facts = Facts::gather(options.threads, &options.store);
    let key = Key { facts, shape, model: model.to_owned() };
    if !options.refresh
        && let Some(tables) = cache::load(&path, &key, options.effort)
    {
        return Ok(tables);
    }
    let tables = measure(options, model, directory, progress)?;
    // A folder that cannot be written means only that the next run measures again.
    let _ = cache::store(&path, &key, options.effort, &tables);
    Ok(tables)
}

fn measure(
    options: &Options,
    model: &str,
    directory: &ModelDirectory,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<ModelTables, ProfileError> {
    let quick = options.effort == Effort::Quick;
    let threads = hardware::threads(options);
    let pass_overhead = ProcessorMeter::new(threads).pass_overhead(Duration::from_millis(30))?;
    let available = memory::spec().map_or(u64::MAX, |spec| spec.ram_available_bytes.count());
    let options = MeterOptions {
        threads,
        cache: CacheElement::F16,
        layout: LayoutChoice::Measured,
        folder: options.cache.clone(),
        memory_bytes: MEMORY_BYTES_MAX.min(available / MEMORY_SHARE),
        pass_overhead,
    };
    let mut tell = |part: f64| progress(Progress { what: "layers", part });
    tell(0.0);
    let time = |ms| Duration::from_millis(ms);
    let mut meter = ModelMeter::new(directory, &passes(quick), &options)?;
    let mut times = meter.run(time(if quick { 2000 } else { 11_000 }), &mut tell)?;
    drop(meter);
    if !quick {
        // A meter of its own, because long contexts leave memory for fewer layers.
        let mut tell = |part: f64| progress(Progress { what: "long contexts", part });
        tell(0.0);
        times.extend(ModelMeter::new(directory, &DEEP, &options)?.run(time(4000), &mut tell)?);
        times.sort_by_key(|times| (times.pass.tokens, times.pass.depth_tokens));
    }
    Ok(ModelTables { layers: layer_tables(model, &times), heads: head_tables(model, &times) })
}

fn passes(quick: bool) -> Vec<TimedPass> {
    let (decode, prefill): (&[usize], &[usize]) =
        if quick { (&DECODE_QUICK, &PREFILL_QUICK) } else { (&DECODE, &PREFILL) };
    let of = |kind, depth_tokens| {
        move |tokens: &usize| TimedPass { kind, tokens: *tokens, depth_tokens }
    };
    let decode = decode.iter().map(of(PassKind::Decode, DECODE_DEPTH));
    decode.chain(prefill.iter().map(of(PassKind::Prefill, 0))).collect()
}

fn layer_tables(model: &str, times: &[PassTimes]) -> Vec<LayerTable> {
    let mut tables = Vec::new();
    for attention in [AttentionClass::Full, AttentionClass::Sliding] {
        for phase in [Phase::Decode, Phase::Prefill] {
            let time = |times: &PassTimes| match attention {
                AttentionClass::Full => times.full_layer,
                AttentionClass::Sliding => times.sliding_layer,
            };
            let points = points(times, phase, time);
            if !points.is_empty() {
                tables.push(LayerTable { model: model.to_owned(), attention, phase, points });
            }
        }
    }
    tables
}

/// The head's times count rows of logits, whatever made them: both phases share them.
fn head_tables(model: &str, times: &[PassTimes]) -> Vec<HeadTable> {
    // The head sees no context.
    let times: Vec<PassTimes> =
        times.iter().copied().filter(|times| times.pass.depth_tokens == DECODE_DEPTH).collect();
    let points = points(&times, Phase::Decode, |times| times.head);
    let table = |phase| HeadTable { model: model.to_owned(), phase, points: points.clone() };
    [Phase::Decode, Phase::Prefill]
        .map(table)
        .into_iter()
        .filter(|t| !t.points.is_empty())
        .collect()
}

fn points(
    times: &[PassTimes],
    phase: Phase,
    time: impl Fn(&PassTimes) -> Option<Duration>,
) -> Vec<MeasuredPoint> {
    let kind = match phase {
        Phase::Prefill => PassKind::Prefill,
        Phase::Decode => PassKind::Decode,
    };
    let count = |tokens: usize| u32::try_from(tokens).unwrap_or(u32::MAX);
    let of_phase = times.iter().filter(|times| times.pass.kind == kind);
    let point = |times: &PassTimes| {
        Some(MeasuredPoint {
            batch_tokens: count(times.pass.tokens),
            depth_tokens: count(times.pass.depth_tokens),
            time_ms: time(times)?.as_secs_f64() * 1e3,
        })
    };
    of_phase.filter_map(point).collect()
}

/// A digest of everything in a directory that decides how long its layers take, and of no weight.
fn shape_digest(directory: &ModelDirectory) -> String {
    let mut text = format!("{:?}", directory.hyper);
    for tensor in directory.tensors() {
        text.push_str(&format!("{} {:?} {}\n", tensor.name, tensor.shape, tensor.tensor_type));
    }
    data_encoding::HEXLOWER.encode(&Sha256::digest(text))
}
