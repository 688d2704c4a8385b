//! Memory: what there is, what a model needs, and what would fit.

use anyhow::Context as _;
use motley_engine::CacheElement;
use motley_model::{CacheQuery, MemoryNeeded, ModelDirectory, TensorType};

use crate::failure::{Failure, Kind};
use crate::terminal::bytes;

mod pressure;
mod rules;
mod system;
mod watch;
mod yielding;

#[cfg(test)]
pub(crate) use pressure::ShortMemory;
pub(crate) use pressure::SystemPressure;
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) use system::group_folders;
pub(crate) use system::{available_bytes, peak_resident_bytes, spec};
pub(crate) use watch::{EngineShare, PressureWatch, reserve_bytes};
pub(crate) use yielding::Holding;

/// Watches this system's memory for engines whose weights are kept so; nothing where the system
/// drops mapped weights by itself, as was asked for.
pub(crate) fn watch(weights: crate::run::WeightsPlace) -> Option<PressureWatch> {
    if weights == crate::run::WeightsPlace::Mmap {
        return None;
    }
    let reserve = reserve_bytes(available_bytes()?);
    match PressureWatch::start(SystemPressure::new(), reserve) {
        Ok(watch) => Some(watch),
        Err(error) => {
            crate::terminal::note(&format!("memory is not watched: {error}\n"));
            None
        }
    }
}

/// Memory for engines whose weights are kept so, where nothing else is said: what is available,
/// less what others are always to have.
pub(crate) fn left_to_engines(weights: crate::run::WeightsPlace) -> Option<u64> {
    let available = available_bytes()?;
    Some(match weights {
        crate::run::WeightsPlace::Mmap => available,
        _ => available.saturating_sub(reserve_bytes(available)),
    })
}

/// Contexts are chosen in steps of this many tokens, as the engine's cache is.
pub(crate) const CONTEXT_STEP: u64 = 256;

/// What any program takes beside weights, cache and computation: code, buffers, metadata.
const PROGRAM_BYTES: u64 = 45_000_000;

/// What of that is in use for certain, by what nodes of rings had resident beside everything that is
/// counted; the rest is for what nobody counts.
const PROGRAM_USED_BYTES: u64 = 32_000_000;

/// What each token of the vocabulary takes where text is read and written, ...
const TEXT_TOKEN_BYTES: u64 = 220;

/// ... and where answers can be forced into forms, in the trees that masks are found with.
const FORMS_TOKEN_BYTES: u64 = 550;

/// What a program does with a model's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Duty {
    /// Computes layers for another device, which knows the vocabulary.
    Layers,
    /// Reads and writes text.
    Text,
    /// Serves text, also in forms that are asked for.
    Forms,
}

impl Duty {
    /// Of a program that serves or does not.
    pub(crate) fn of(serves: bool) -> Self {
        if serves { Self::Forms } else { Self::Text }
    }

    /// What of [`Self::program_bytes`] is in use as long as no form is asked for.
    pub(crate) fn program_used_bytes(self, directory: &ModelDirectory) -> u64 {
        let token_bytes = if self == Self::Layers { 0 } else { TEXT_TOKEN_BYTES };
        PROGRAM_USED_BYTES + token_bytes * directory.hyper.vocabulary_size as u64
    }

    /// Memory of the program itself, at most.
    pub(crate) fn program_bytes(self, directory: &ModelDirectory) -> u64 {
        let token_bytes = match self {
            Self::Layers => 0,
            Self::Text => TEXT_TOKEN_BYTES,
            Self::Forms => TEXT_TOKEN_BYTES + FORMS_TOKEN_BYTES,
        };
        PROGRAM_BYTES + token_bytes * directory.hyper.vocabulary_size as u64
    }
}

/// How a model is to be used, as far as memory depends on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    pub(crate) duty: Duty,
    pub(crate) slots: u64,
    pub(crate) batch_rows: u64,
    pub(crate) cache: CacheElement,
}

/// Memory that a model needs for a context.
#[derive(Clone, Debug)]
pub(crate) struct Needed {
    pub(crate) context_tokens: u64,
    pub(crate) model: MemoryNeeded,
    /// An upper estimate of intermediate values.
    pub(crate) compute_bytes: u64,
    /// The program itself.
    pub(crate) program_bytes: u64,
}

impl Needed {
    /// Bytes of everything, the program included.
    pub(crate) fn total_bytes(&self) -> u64 {
        let work = self.compute_bytes.saturating_add(self.program_bytes);
        self.model.total_bytes.saturating_add(work)
    }
}

/// Memory for `context_tokens` tokens of context per slot.
///
/// # Errors
/// When the cache cannot have its type or size.
pub(crate) fn needed(
    directory: &ModelDirectory,
    usage: &Usage,
    context_tokens: u64,
) -> anyhow::Result<Needed> {
    let query = CacheQuery {
        context_tokens: context_tokens.next_multiple_of(CONTEXT_STEP),
        slots: usage.slots,
        micro_batch_tokens: usage.batch_rows,
        cache_types: cache_types(usage.cache),
    };
    let model = directory.memory_needed(&query).context("cannot tell the memory needed")?;
    let compute_bytes = compute_bytes(directory, usage, context_tokens);
    let program_bytes = usage.duty.program_bytes(directory);
    Ok(Needed { context_tokens, model, compute_bytes, program_bytes })
}

/// The largest context up to `most` that fits into `budget` bytes; nothing if not even one step
/// of tokens does.
///
/// # Errors
/// When the cache cannot have its type.
pub(crate) fn largest_context(
    directory: &ModelDirectory,
    usage: &Usage,
    budget: u64,
    most: u64,
) -> anyhow::Result<Option<u64>> {
    largest_fitting(most, |context| Ok(needed(directory, usage, context)?.total_bytes() <= budget))
}

/// The largest context up to `most` that `fits`, in steps of tokens; nothing if not even one does.
///
/// # Errors
/// When asking fails.
pub(crate) fn largest_fitting(
    most: u64,
    fits: impl Fn(u64) -> anyhow::Result<bool>,
) -> anyhow::Result<Option<u64>> {
    if fits(most)? {
        return Ok(Some(most));
    }
    // Invariant of the search: `low` steps fit, `high` do not.
    let (mut low, mut high) = (0, most.div_ceil(CONTEXT_STEP));
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle * CONTEXT_STEP)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok((low > 0).then_some(low * CONTEXT_STEP))
}

/// Refuses a context that needs more than `budget` bytes, with what would fit.
///
/// # Errors
/// When it does not fit, or the cache cannot have its type.
pub(crate) fn admit(
    directory: &ModelDirectory,
    usage: &Usage,
    budget: u64,
    context_tokens: u64,
) -> Result<Needed, Failure> {
    let needed = needed(directory, usage, context_tokens)?;
    if needed.total_bytes() <= budget {
        return Ok(needed);
    }
    let error = anyhow::anyhow!(
        "not enough memory: {} needed ({} weights, {} cache of {context_tokens} tokens, {} work), {} available",
        bytes(needed.total_bytes()),
        bytes(needed.model.weights_bytes),
        bytes(needed.model.cache_bytes),
        bytes(needed.compute_bytes + needed.program_bytes),
        bytes(budget),
    );
    let hint = match largest_context(directory, usage, budget, context_tokens)? {
        Some(context) => format!("a context of {context} tokens fits: -c {context}"),
        None => advice_without_room(directory, usage, budget, &needed)?,
    };
    Err(Failure::new(Kind::Refused, error).hint(hint))
}

/// What to do when not even a small context fits.
fn advice_without_room(
    directory: &ModelDirectory,
    usage: &Usage,
    budget: u64,
    needed: &Needed,
) -> anyhow::Result<String> {
    if needed.model.weights_bytes > budget {
        return Ok(format!(
            "the weights alone are {}; take a smaller model or a smaller quantisation",
            bytes(needed.model.weights_bytes)
        ));
    }
    let small_batch = Usage { batch_rows: usage.batch_rows.min(64), ..*usage };
    Ok(match largest_context(directory, &small_batch, budget, needed.context_tokens)? {
        Some(context) => format!(
            "a context of {context} tokens fits with smaller batches: -c {context} -ub {}",
            small_batch.batch_rows
        ),
        None => {
            "no context fits beside the weights; take a smaller model or free memory".to_owned()
        }
    })
}

/// An upper estimate of the memory for intermediate values of one batch: hidden states, the wide
/// vectors of attention and feed-forward, masks of half-precision, and logits of one row per slot.
fn compute_bytes(directory: &ModelDirectory, usage: &Usage, context_tokens: u64) -> u64 {
    const FLOAT_BYTES: u64 = 4;
    const HALF_BYTES: u64 = 2;
    let hyper = &directory.hyper;
    let widest = |of: fn(&motley_model::LayerShape) -> usize| {
        hyper.layers.iter().map(of).max().unwrap_or(0) as u64
    };
    let embedding = hyper.embedding_length as u64;
    let attention = widest(|layer| layer.head_count) * hyper.key_length as u64;
    // Of every expert that a row uses, with the rows that each is multiplied with, 8 bytes each.
    let used = hyper.experts.map_or(1, |experts| experts.used as u64);
    let mixed = hyper.experts.map_or(0, |experts| used * (embedding + 2 * experts.count as u64));
    let feed_forward = used * widest(|layer| layer.feed_forward_length);
    // What is live at once: three hidden states, and either queries before and after rotation and
    // the result of attention, or gate and up with their product.
    let row_elements = 3 * embedding + 3 * attention.max(feed_forward) + 2 * mixed;
    let rows = usage.batch_rows.min(context_tokens);
    // Kernels convert a matrix's input to the type of its products, in a buffer of their own.
    let converted = rows.saturating_mul(feed_forward.max(embedding)).saturating_mul(HALF_BYTES);
    let masks = rows.saturating_mul(context_tokens.next_multiple_of(CONTEXT_STEP));
    let logits = match usage.duty {
        Duty::Layers => 0,
        Duty::Text | Duty::Forms => usage.slots.saturating_mul(hyper.vocabulary_size as u64),
    };
    rows.saturating_mul(row_elements)
        .saturating_mul(FLOAT_BYTES)
        .saturating_add(converted)
        .saturating_add(masks.saturating_mul(HALF_BYTES * 2))
        .saturating_add(logits.saturating_mul(FLOAT_BYTES * 2))
}

fn cache_types(cache: CacheElement) -> [TensorType; 2] {
    match cache {
        CacheElement::F16 => [TensorType::F16; 2],
        CacheElement::Q8_0 => [TensorType::Q8_0; 2],
        CacheElement::F16Q8_0 => [TensorType::F16, TensorType::Q8_0],
        CacheElement::Q8_0F16 => [TensorType::Q8_0, TensorType::F16],
    }
}
