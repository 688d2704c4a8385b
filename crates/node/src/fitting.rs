//! Which part of a model stays in memory and how long its contexts are, within the memory there is.

use motley_engine::{
    CacheElement, LayoutChoice, Model, Placement, Residency, StreamOptions, expert_slots_bytes,
    interleaved_bytes_max, stream_buffer_bytes,
};
use motley_model::ModelDirectory;

use crate::failure::{Failure, Kind};
use crate::loading::{self, EngineWish};
use crate::memory::{self, Duty};
use crate::run::WeightsPlace;
use crate::terminal::bytes;

mod degrading;

pub(crate) use degrading::{given_up_of_sequences, variants};

/// How a model fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fitted {
    pub(crate) context_tokens: u64,
    pub(crate) batch_rows: usize,
    pub(crate) slots: usize,
    pub(crate) cache: CacheElement,
    pub(crate) layout: LayoutChoice,
    pub(crate) placement: Placement,
    /// What was given up for the context, in words and in the order in which it was.
    pub(crate) given_up: Vec<String>,
}

impl Fitted {
    fn new(wish: &EngineWish, context_tokens: u64, placement: Placement) -> Self {
        Self {
            context_tokens,
            batch_rows: wish.batch_rows,
            slots: wish.slots,
            cache: wish.cache,
            layout: wish.layout,
            placement,
            given_up: Vec::new(),
        }
    }

    /// A line for whoever starts it, where something was given up.
    pub(crate) fn warning(&self) -> Option<String> {
        let given_up = (!self.given_up.is_empty()).then(|| self.given_up.join(", "))?;
        Some(format!(
            "warning: to make room for a context of {} tokens: {given_up}\n",
            self.context_tokens
        ))
    }
}

/// Rows of a batch that are enough to hide a disk behind computation.
const STREAM_BATCH_ROWS: usize = 128;

/// A context shorter than this is not worth a model all in memory.
const CONTEXT_TOKENS_WORTHWHILE: u64 = 1024;

/// Memory left alone on top of what the program takes: for page tables, rounding, and whatever
/// nobody counts. A thirty-third, at least 16 MB; one layer too many in memory ends the process.
fn slack_bytes(budget: u64) -> u64 {
    (budget / 33).max(16_000_000)
}

/// Bytes that an engine may hold of `budget`, beside a program of so many bytes.
pub(crate) fn engine_bytes(budget: u64, program_bytes: u64) -> u64 {
    budget.saturating_sub(program_bytes + slack_bytes(budget))
}

/// Memory that may be used: what is allowed and what there is, whichever is less.
pub(crate) fn budget_bytes(wish: &EngineWish) -> u64 {
    let available = match wish.serves {
        true => memory::left_to_engines(wish.weights),
        false => memory::available_bytes(),
    };
    let available = available.unwrap_or(u64::MAX);
    wish.memory_budget_bytes.map_or(available, |allowed| allowed.min(available))
}

/// Decides where weights go and how long the context is.
///
/// # Errors
/// When not even streaming every layer leaves room; the message says what is needed.
pub(crate) fn fit(model: &Model, wish: &EngineWish) -> Result<Fitted, Failure> {
    let mut fitted = match wish.serves && wish.context_tokens.is_some() {
        true => degrading::fit(model, wish)?,
        false => fit_as_asked(model, wish)?,
    };
    if wish.serves && !fitted.placement.streams() && !has_room_for_copies(model, wish, &fitted)? {
        fitted.layout = LayoutChoice::Plain;
    }
    Ok(fitted)
}

/// Whether interleaved copies of matrices, which an engine may find faster, fit beside the rest.
fn has_room_for_copies(model: &Model, wish: &EngineWish, fitted: &Fitted) -> anyhow::Result<bool> {
    let directory = model.directory();
    let Fitted { slots, batch_rows, cache, .. } = *fitted;
    let usage = EngineWish { slots, batch_rows, cache, ..*wish }.usage();
    let needed = memory::needed(directory, &usage, fitted.context_tokens)?.total_bytes();
    let budget = budget_bytes(wish);
    let most = needed.saturating_add(interleaved_bytes_max(
        directory,
        &(0..directory.layers.len()).into(),
        true,
    ));
    Ok(most <= budget.saturating_sub(slack_bytes(budget)))
}

/// As [`fit`], with all that is asked for or not at all.
fn fit_as_asked(model: &Model, wish: &EngineWish) -> Result<Fitted, Failure> {
    let whole = |residency: Residency| {
        let context_tokens = loading::choose_context(model, wish)?;
        Ok(Fitted::new(wish, context_tokens, residency.into()))
    };
    match wish.weights {
        WeightsPlace::Mmap => whole(Residency::Mapped),
        WeightsPlace::Ram => whole(Residency::Ram),
        WeightsPlace::Stream => streamed(model, wish),
        WeightsPlace::Auto => {
            let allowed = budget_bytes(wish);
            let with_slack = EngineWish {
                memory_budget_bytes: Some(allowed.saturating_sub(slack_bytes(allowed))),
                ..*wish
            };
            let trained = model.directory().hyper.context_length;
            let enough = wish.context_tokens.unwrap_or(CONTEXT_TOKENS_WORTHWHILE.min(trained));
            match loading::choose_context(model, &with_slack) {
                Ok(context) if context >= enough => whole(Residency::Mapped),
                // Also where streaming does not fit either, a short context is better than none.
                Ok(_) => streamed(model, wish).or_else(|_| whole(Residency::Mapped)),
                Err(refused) => streamed(model, wish).map_err(|streamed| {
                    // What is beyond the model's training is no question of memory.
                    if wish.context_tokens.is_some_and(|asked| asked > trained) {
                        refused
                    } else {
                        streamed
                    }
                }),
            }
        }
    }
}

/// The same wish with batches that are only as large as streaming needs, if it has larger ones.
pub(crate) fn in_small_batches(wish: &EngineWish) -> Option<EngineWish> {
    let batch_rows = STREAM_BATCH_ROWS;
    (wish.batch_rows > batch_rows).then_some(EngineWish { batch_rows, ..*wish })
}

/// As many layers in memory as fit beside a context; the rest streamed.
fn streamed(model: &Model, wish: &EngineWish) -> Result<Fitted, Failure> {
    let directory = model.directory();
    let trained = directory.hyper.context_length;
    let budget = budget_bytes(wish);
    let program = Duty::of(wish.serves).program_bytes(directory);
    let room = engine_bytes(budget, program);
    let rows = |most: usize| EngineWish { batch_rows: wish.batch_rows.min(most), ..*wish }.usage();
    let context = match wish.context_tokens {
        Some(0) => Some(trained),
        Some(asked) if asked > trained => return Err(loading::beyond_training(asked, trained)),
        asked => asked,
    };
    let most = context.unwrap_or(trained.min(loading::CONTEXT_TOKENS_DEFAULT));
    // Large batches only where their buffers are small beside the weights.
    let large = rows(usize::MAX);
    let roomy = memory::needed(directory, &large, most)?.compute_bytes <= room / 8;
    let usage = if roomy { large } else { rows(STREAM_BATCH_ROWS) };
    let fixed = fixed_bytes(directory, usize::try_from(usage.batch_rows)?);
    let least = |context: u64| -> anyhow::Result<u64> {
        let needed = memory::needed(directory, &usage, context)?;
        Ok(fixed.saturating_add(needed.model.cache_bytes).saturating_add(needed.compute_bytes))
    };
    let context_tokens = match context {
        Some(asked) if least(asked)? <= room => asked,
        // Contexts must not displace the weights, of which more is read the fewer there are.
        None => match memory::largest_fitting(most, |context| {
            let needed = memory::needed(directory, &usage, context)?;
            Ok(needed.model.cache_bytes <= room / 4 && least(context)? <= room)
        })? {
            Some(context) => context,
            None => return Err(refusal(budget, program + least(memory::CONTEXT_STEP)?, None)),
        },
        Some(asked) => {
            let fitting = memory::largest_fitting(asked, |context| Ok(least(context)? <= room))?;
            return Err(refusal(budget, program + least(asked)?, fitting));
        }
    };
    let batch_rows = usize::try_from(usage.batch_rows)?;
    Ok(Fitted { batch_rows, ..Fitted::new(wish, context_tokens, Placement::within(room)) })
}

/// What stays in memory of a model whose every layer is streamed, in batches of so many rows.
fn fixed_bytes(directory: &ModelDirectory, batch_rows: usize) -> u64 {
    let vectors = |layer: &motley_model::LayerTensors| {
        layer.bytes() - layer.matrices().iter().map(|matrix| matrix.bytes).sum::<u64>()
    };
    let vectors: u64 = directory.layers.iter().map(vectors).sum();
    let buffer = stream_buffer_bytes(directory, &StreamOptions::default());
    let experts = expert_slots_bytes(directory, batch_rows);
    directory.head_matrix().bytes + directory.output_norm.bytes + vectors + buffer + experts
}

/// Refuses what takes `held` bytes without the slack.
fn refusal(budget: u64, held: u64, fitting: Option<u64>) -> Failure {
    // The slack is a share of what is given.
    let needed = (held.saturating_mul(33) / 32 + 1).max(held + slack_bytes(0));
    let error = anyhow::anyhow!(
        "not enough memory: {} needed with every layer streamed, {} available",
        bytes(needed),
        bytes(budget),
    );
    let failure = Failure::new(Kind::Refused, error);
    match fitting {
        Some(context) => failure.hint(format!("a context of {context} tokens fits: -c {context}")),
        None => failure.hint(format!("give at least --memory {}M", needed.div_ceil(1_000_000))),
    }
}
