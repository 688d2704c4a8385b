//! Times of a model's layers and head on this device.

use std::path::PathBuf;
use std::time::Duration;

use motley_cluster::{
    AttentionClass, DeviceProfile, FieldError, HeadTable, LayerTable, MeasuredPoint, Phase,
    ProcessorSpec,
};
use motley_engine::{
    CacheElement, LayoutChoice, MeasureError, MeterOptions, ModelMeter, PassKind, PassTimes,
    ProcessorMeter, Residency, TimedPass, interleaved_bytes_max,
};
use motley_ggml::gpus;
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
    /// The same on the first GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) gpu: Option<Box<Self>>,
    /// Why there are none, where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}

impl ModelTables {
    /// The device with these tables for its processor, in the place of others of the same model.
    ///
    /// # Errors
    /// When a time is none that a layer takes.
    pub(crate) fn merged_into(self, device: &DeviceProfile) -> Result<DeviceProfile, FieldError> {
        let mut spec = device.to_spec();
        self.replace_in(&mut spec.cpu);
        if let (Some(tables), Some(gpu)) = (self.gpu, spec.gpus.first_mut()) {
            tables.replace_in(&mut gpu.processor);
        }
        DeviceProfile::new(spec)
    }

    fn replace_in(&self, processor: &mut ProcessorSpec) {
        let models: Vec<&str> = self.layers.iter().map(|table| table.model.as_str()).collect();
        processor.layer_tables.retain(|table| !models.contains(&table.model.as_str()));
        processor.head_tables.retain(|table| !models.contains(&table.model.as_str()));
        processor.layer_tables.extend(self.layers.iter().cloned());
        processor.head_tables.extend(self.heads.iter().cloned());
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

/// Context of the decoding passes: that of a conversation which has just begun.
const DECODE_DEPTH: usize = 32;

/// Passes after a longer context, which tell what every more token of it costs.
const DEEP: [TimedPass; 3] = [
    TimedPass { kind: PassKind::Decode, tokens: 1, depth_tokens: 1024 },
    TimedPass { kind: PassKind::Decode, tokens: 8, depth_tokens: 1024 },
    TimedPass { kind: PassKind::Prefill, tokens: 512, depth_tokens: 512 },
];

/// Memory that a measurement takes at most, and its part of what is available: weights may be kept in
/// two layouts. A device that is measured serves nothing yet.
const MEMORY_BYTES_MAX: u64 = 2 << 30;
const MEMORY_SHARE: u64 = 2;

/// A model whose layers are measured.
#[derive(Clone, Copy)]
struct Subject<'a> {
    /// The name that its times go by.
    model: &'a str,
    directory: &'a ModelDirectory,
    layout: LayoutChoice,
    cache: CacheElement,
}

/// Times of the layers and the head of the model that `directory` describes, under the name that
/// its profile has in plans. Where not even one layer beside the head has room, there are none, and
/// plans go by the processor's rates.
///
/// # Errors
/// When made-up weights cannot be written to the cache folder, or a pass fails.
pub(crate) fn model_tables(
    options: &Options,
    model: &str,
    directory: &ModelDirectory,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<ModelTables, ProfileError> {
    let (layout, cache) = (LayoutChoice::Measured, CacheElement::F16);
    kept_or_measured(options, Subject { model, directory, layout, cache }, progress)
}

/// The name that times of a model go by whose weights stay as they are in the file.
pub(crate) fn plain_model(model: &str) -> String {
    format!("{model} (plain)")
}

/// The name that times of a model go by whose keys and values have 8 bits.
pub(crate) fn narrow_model(model: &str) -> String {
    format!("{model} (8-bit keys and values)")
}

/// All that plans of several devices ask for, each under a name of its own: keys and values of 16
/// bits, then of 8, with which attention takes longer, and of both the faster layout of weights, then
/// that of the file, which is for a device without memory to spare.
pub(crate) fn variants(model: &str) -> [(String, LayoutChoice, CacheElement); 4] {
    let narrow = narrow_model(model);
    let (fast, plain) = (LayoutChoice::Measured, LayoutChoice::Plain);
    [
        (model.to_owned(), fast, CacheElement::F16),
        (plain_model(model), plain, CacheElement::F16),
        (narrow.clone(), fast, CacheElement::Q8_0),
        (plain_model(&narrow), plain, CacheElement::Q8_0),
    ]
}

/// Times of all [`variants`] that differ here: layouts do where the processor has two.
///
/// # Errors
/// As [`model_tables`].
pub(crate) fn all_tables(
    options: &Options,
    model: &str,
    directory: &ModelDirectory,
) -> Result<Vec<ModelTables>, ProfileError> {
    let layers = (0..directory.layers.len()).into();
    let one_layout = interleaved_bytes_max(directory, &layers, true) == 0;
    let differing = variants(model).into_iter();
    let differing =
        differing.filter(|(_, layout, _)| !one_layout || *layout != LayoutChoice::Plain);
    let tables = differing.map(|(model, layout, cache)| {
        let subject = Subject { model: &model, directory, layout, cache };
        kept_or_measured(options, subject, &mut |_| {})
    });
    tables.collect()
}

/// Tables of this model that were measured before, of all [`variants`] as far as they were.
pub(crate) fn kept_tables(
    options: &Options,
    model: &str,
    directory: &ModelDirectory,
) -> Vec<ModelTables> {
    let kept = |(model, layout, cache): (String, _, _)| {
        let subject = Subject { model: &model, directory, layout, cache };
        let (path, key) = place(options, subject);
        cache::load(&path, &key, options.effort)
    };
    variants(model).into_iter().filter_map(kept).collect()
}

/// Where tables are kept, and what they depend on.
fn place(options: &Options, subject: Subject<'_>) -> (PathBuf, Key) {
    let shape = shape_digest(subject.directory);
    let plain = if subject.layout == LayoutChoice::Plain { "-plain" } else { "" };
    let narrow = if subject.cache == CacheElement::Q8_0 { "-narrow" } else { "" };
    let path = options.cache.join(format!("model-{}{narrow}{plain}.json", &shape[..16]));
    let facts = Facts::gather(options.threads, &options.store);
    (path, Key { facts, shape, model: subject.model.to_owned() })
}

fn kept_or_measured(
    options: &Options,
    subject: Subject<'_>,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<ModelTables, ProfileError> {
    let (path, key) = place(options, subject);
    if !options.refresh
        && let Some(tables) = cache::load(&path, &key, options.effort)
    {
        return Ok(tables);
    }
    let tables = match measure(options, subject, progress) {
        Err(ProfileError::Measure(error @ MeasureError::Room { .. })) => {
            // Not kept: there may be room the next time.
            let note = Some(format!("{error}; plans go by the processor's rates"));
            return Ok(ModelTables { note, ..ModelTables::default() });
        }
        tables => tables?,
    };
    // A folder that cannot be written means only that the next run measures again.
    let _ = cache::store(&path, &key, options.effort, &tables);
    Ok(tables)
}

fn measure(
    options: &Options,
    subject: Subject<'_>,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<ModelTables, ProfileError> {
    let effort = options.effort;
    let threads = hardware::threads(options);
    let pass_overhead = ProcessorMeter::new(threads).pass_overhead(Duration::from_millis(30))?;
    let available = memory::spec().map_or(u64::MAX, |spec| spec.ram_available_bytes.count());
    let on_processor = MeterOptions {
        threads,
        cache: subject.cache,
        layout: subject.layout,
        residency: Residency::Ram,
        folder: options.cache.clone(),
        memory_bytes: MEMORY_BYTES_MAX.min(available / MEMORY_SHARE),
        head: true,
        pass_overhead,
    };
    let mut tables = timed(subject, &on_processor, effort, progress)?;
    // A GPU keeps weights as they are in any case.
    let gpus = if subject.layout == LayoutChoice::Plain { Vec::new() } else { gpus() };
    if let Some(gpu) = gpus.first() {
        let in_gpu = || -> Result<ModelTables, ProfileError> {
            let mut meter = ProcessorMeter::of_gpu(*gpu)?;
            let options = MeterOptions {
                residency: Residency::Gpu(0),
                memory_bytes: MEMORY_BYTES_MAX.min(gpu.memory_bytes().0 as u64 / MEMORY_SHARE),
                pass_overhead: meter.pass_overhead(Duration::from_millis(30))?,
                ..on_processor
            };
            timed(subject, &options, effort, progress)
        };
        match in_gpu() {
            Ok(measured) => tables.gpu = Some(Box::new(measured)),
            Err(error) => {
                let error = anyhow::Error::from(error);
                tables.note = Some(format!("layers are not measured in {}: {error:#}", gpu.name()));
            }
        }
    }
    Ok(tables)
}

/// How long to time a cut model, and then its long contexts.
fn times_to_spend(effort: Effort) -> (Duration, Duration) {
    let ms = Duration::from_millis;
    match effort {
        Effort::Quick => (ms(2000), ms(300)),
        Effort::Joining => (ms(5000), ms(1000)),
        Effort::Full => (ms(11_000), ms(4000)),
    }
}

/// Times a cut model on one device.
fn timed(
    subject: Subject<'_>,
    options: &MeterOptions,
    effort: Effort,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<ModelTables, ProfileError> {
    let Subject { model, directory, .. } = subject;
    let quick = !effort.is_full();
    let mut tell = |part: f64| progress(Progress { what: "layers", part });
    tell(0.0);
    let (short, long) = times_to_spend(effort);
    let (mut meter, options) = meter_with_room(directory, quick, options)?;
    let mut times = meter.run(short, &mut tell)?;
    drop(meter);
    // A meter of its own, because long contexts leave memory for fewer layers.
    let mut tell = |part: f64| progress(Progress { what: "long contexts", part });
    tell(0.0);
    let deep = if quick { &DEEP[..1] } else { &DEEP };
    let pairs: Vec<TimedPass> = deep.iter().flat_map(|deep| [shallow(*deep), *deep]).collect();
    match ModelMeter::new(directory, &pairs, &options) {
        // Plans then go by the rate at which memory is read.
        Err(MeasureError::Room { .. }) => {}
        meter => {
            let measured = meter?.run(long, &mut tell)?;
            let deep = measured.iter().filter_map(|late| deeper(&times, &measured, late));
            times.extend(deep.collect::<Vec<_>>());
        }
    }
    times.sort_by_key(|times| (times.pass.tokens, times.pass.depth_tokens));
    let (layers, heads) = (layer_tables(model, &times), head_tables(model, &times));
    Ok(ModelTables { layers, heads, gpu: None, note: None })
}

/// The same pass early in its context.
fn shallow(deep: TimedPass) -> TimedPass {
    let depth_tokens = if deep.kind == PassKind::Decode { DECODE_DEPTH } else { 0 };
    TimedPass { depth_tokens, ..deep }
}

/// A pass late in its context, as it would have been measured beside the others: by what it took
/// longer than the early pass that it took turns with. Another moment and other layers would say
/// more of themselves than of the context.
fn deeper(times: &[PassTimes], turns: &[PassTimes], late: &PassTimes) -> Option<PassTimes> {
    let early = shallow(late.pass);
    let is_early = |times: &&PassTimes| times.pass == early && late.pass != early;
    let (early, beside) = (turns.iter().find(is_early)?, times.iter().find(is_early)?);
    let moved = |of: fn(&PassTimes) -> Option<Duration>| {
        let more = of(late)?.saturating_sub(of(early)?);
        Some(of(beside)? + more)
    };
    Some(PassTimes {
        full_layer: moved(|times| times.full_layer),
        sliding_layer: moved(|times| times.sliding_layer),
        ..*late
    })
}

/// A meter for as much as there is room for: for many sequences, for one, whose keys and values
/// take less, or without the head, which only the first device of a ring has.
fn meter_with_room(
    directory: &ModelDirectory,
    quick: bool,
    options: &MeterOptions,
) -> Result<(ModelMeter, MeterOptions), MeasureError> {
    let headless = MeterOptions { head: false, ..options.clone() };
    let (many, one) = (passes(quick), passes_of_one());
    let ways = [(&many, options), (&one, options), (&one, &headless)];
    let mut refused = None;
    for (passes, options) in ways {
        match ModelMeter::new(directory, passes, options) {
            Err(error @ MeasureError::Room { .. }) => refused = Some(error),
            meter => return Ok((meter?, options.clone())),
        }
    }
    Err(refused.expect("there are ways to measure"))
}

fn passes(quick: bool) -> Vec<TimedPass> {
    let decode: &[usize] = if quick { &DECODE_QUICK } else { &DECODE };
    let of = |kind, depth_tokens| {
        move |tokens: &usize| TimedPass { kind, tokens: *tokens, depth_tokens }
    };
    let decode = decode.iter().map(of(PassKind::Decode, DECODE_DEPTH));
    decode.chain(PREFILL.iter().map(of(PassKind::Prefill, 0))).collect()
}

/// What one user needs.
fn passes_of_one() -> Vec<TimedPass> {
    let mut passes = passes(true);
    passes.retain(|pass| pass.kind == PassKind::Prefill || pass.tokens == 1);
    passes
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
pub(super) fn shape_digest(directory: &ModelDirectory) -> String {
    let mut text = format!("{:?}", directory.hyper);
    for tensor in directory.tensors() {
        text.push_str(&format!("{} {:?} {}\n", tensor.name, tensor.shape, tensor.tensor_type));
    }
    data_encoding::HEXLOWER.encode(&Sha256::digest(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(
        kind: PassKind,
        tokens: usize,
        depth_tokens: usize,
        ms: [Option<u64>; 3],
    ) -> PassTimes {
        let [full_layer, sliding_layer, head] = ms.map(|ms| ms.map(Duration::from_millis));
        let pass = TimedPass { kind, tokens, depth_tokens };
        PassTimes { pass, full_layer, sliding_layer, head }
    }

    /// Both kinds of layers, as a model with sliding windows gives them.
    fn recorded() -> Vec<PassTimes> {
        vec![
            times(PassKind::Decode, 1, DECODE_DEPTH, [Some(3), Some(2), Some(7)]),
            times(PassKind::Decode, 1, 1024, [Some(5), Some(4), Some(99)]),
            times(PassKind::Decode, 8, DECODE_DEPTH, [Some(9), Some(8), Some(11)]),
            times(PassKind::Prefill, 512, 0, [Some(70), Some(60), None]),
        ]
    }

    fn shown(points: &[MeasuredPoint]) -> Vec<(u32, u32, f64)> {
        points.iter().map(|p| (p.batch_tokens, p.depth_tokens, p.time_ms)).collect()
    }

    #[test]
    fn times_become_tables_by_phase_and_kind_of_layer() {
        let layers = layer_tables("m", &recorded());
        let of = |attention, phase| {
            let found = layers.iter().find(|t| t.attention == attention && t.phase == phase);
            shown(&found.expect("measured").points)
        };
        assert_eq!(layers.len(), 4);
        assert_eq!(
            of(AttentionClass::Full, Phase::Decode),
            [(1, 32, 3.0), (1, 1024, 5.0), (8, 32, 9.0)]
        );
        assert_eq!(of(AttentionClass::Sliding, Phase::Prefill), [(512, 0, 60.0)]);
        for head in head_tables("m", &recorded()) {
            assert_eq!(shown(&head.points), [(1, 32, 7.0), (8, 32, 11.0)], "{:?}", head.phase);
        }
    }

    #[test]
    fn tables_of_a_model_replace_its_older_ones_and_no_others() {
        let of = |model: &str, ms| ModelTables {
            layers: layer_tables(
                model,
                &[times(PassKind::Decode, 1, 32, [Some(ms), None, Some(1)])],
            ),
            heads: head_tables(model, &[times(PassKind::Decode, 1, 32, [Some(ms), None, Some(1)])]),
            gpu: None,
            note: None,
        };
        let cluster = motley_cluster::builtin_cluster("e2llm-4").unwrap();
        let device = of("a", 3).merged_into(&cluster.devices()[0]).unwrap();
        let device = of("b", 4).merged_into(&device).unwrap();
        let device = of("a", 5).merged_into(&device).unwrap();
        let device = ModelTables::default().merged_into(&device).unwrap();
        let layers: Vec<(&str, f64)> = device
            .cpu
            .layer_tables
            .iter()
            .map(|table| (table.model.as_str(), table.points[0].time_ms))
            .collect();
        assert_eq!(layers, [("b", 4.0), ("a", 5.0)]);
        assert_eq!(device.cpu.head_tables.len(), 4);
    }
}
