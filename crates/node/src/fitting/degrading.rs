//! What a long context makes an engine give up, in this order: keys and values of 16 bits for
//! those of 8, then slots, then weights in memory.

use motley_engine::{CacheElement, Model};

use super::{Fitted, budget_bytes, engine_bytes, fit_as_asked, streamed};
use crate::failure::Failure;
use crate::loading::EngineWish;
use crate::memory;
use crate::run::WeightsPlace;

/// Elements of a block of 8-bit keys and values, of which heads must be multiples.
const BLOCK_ELEMENTS: usize = 32;

/// Part of the memory that a context may take before weights are streamed for it.
const CACHE_PART: u64 = 4;

/// Fits the context that `wish` asks for, giving up as little as possible.
///
/// # Errors
/// When it does not fit however much is given up; the message says what would.
pub(super) fn fit(model: &Model, wish: &EngineWish) -> Result<Fitted, Failure> {
    let variants = variants(model, wish);
    if wish.weights != WeightsPlace::Stream {
        let whole = variants.iter().filter_map(|variant| {
            let fitted = fit_as_asked(model, variant).ok()?;
            (!fitted.placement.streams()).then_some(fitted)
        });
        if let Some(fitted) = first(wish, whole) {
            return Ok(fitted);
        }
    }
    if matches!(wish.weights, WeightsPlace::Auto | WeightsPlace::Stream) {
        let modest = variants.iter().filter(|variant| is_modest(model, variant));
        // At last any context that fits beside streamed weights.
        let tried = modest.chain(variants.last());
        if let Some(fitted) = first(wish, tried.filter_map(|it| streamed(model, it).ok())) {
            return Ok(fitted);
        }
    }
    let least = variants.last().unwrap_or(wish);
    fit_as_asked(model, least)
}

fn first(wish: &EngineWish, mut fitting: impl Iterator<Item = Fitted>) -> Option<Fitted> {
    let mut fitted = fitting.next()?;
    fitted.given_up = given_up(wish, &fitted);
    Some(fitted)
}

/// The wish with more and more given up, weights aside.
pub(crate) fn variants(model: &Model, wish: &EngineWish) -> Vec<EngineWish> {
    let hyper = &model.directory().hyper;
    let blocks = |elements: usize| elements.is_multiple_of(BLOCK_ELEMENTS);
    let mut least = *wish;
    let mut variants = vec![least];
    if wish.cache == CacheElement::F16 && blocks(hyper.key_length) && blocks(hyper.value_length) {
        least.cache = CacheElement::Q8_0;
        variants.push(least);
    }
    while least.slots > 1 {
        least.slots /= 2;
        variants.push(least);
    }
    variants
}

/// Whether a context leaves most of the memory to weights.
fn is_modest(model: &Model, wish: &EngineWish) -> bool {
    let trained = model.directory().hyper.context_length;
    let context = wish.context_tokens.filter(|asked| *asked > 0).unwrap_or(trained);
    let usage = wish.usage();
    let program = usage.duty.program_bytes(model.directory());
    let room = engine_bytes(budget_bytes(wish), program);
    let needed = memory::needed(model.directory(), &usage, context);
    needed.is_ok_and(|needed| needed.model.cache_bytes <= room / CACHE_PART)
}

/// What of the sequences is not as asked for, in words.
pub(crate) fn given_up_of_sequences(
    wish: &EngineWish,
    cache: CacheElement,
    slots: usize,
) -> Vec<String> {
    let mut given_up = Vec::new();
    if cache != wish.cache {
        given_up.push("keys and values have 8 bits instead of 16".to_owned());
    }
    if slots != wish.slots {
        given_up.push(format!("{slots} of {} slots", wish.slots));
    }
    given_up
}

/// What is not as asked for, in words.
fn given_up(wish: &EngineWish, fitted: &Fitted) -> Vec<String> {
    let mut given_up = given_up_of_sequences(wish, fitted.cache, fitted.slots);
    if fitted.placement.streams() && wish.weights == WeightsPlace::Auto {
        given_up.push("weights are read from disk".to_owned());
    }
    given_up
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::super::fit;
    use super::*;
    use crate::small_model::small_model;

    /// How a context of so many tokens fits 4 slots into so many megabytes, line by line.
    fn shown(model: &Model, context_tokens: u64, megabytes: u64) -> String {
        let wish = EngineWish {
            context_tokens: Some(context_tokens),
            memory_budget_bytes: Some(megabytes * 1_000_000),
            serves: true,
            ..EngineWish::new(Some(1), 64, 64, 4).unwrap()
        };
        match fit(model, &wish) {
            Ok(fitted) => fitted.warning().unwrap_or_else(|| "as asked for\n".to_owned()),
            Err(failure) => failure.report(),
        }
    }

    fn check(model: &Model, context_tokens: u64, sizes: &[u64], expected: Expect) {
        let lines: Vec<String> = sizes
            .iter()
            .map(|megabytes| {
                format!("{megabytes} MB: {}", shown(model, context_tokens, *megabytes))
            })
            .collect();
        expected.assert_eq(&lines.concat());
    }

    #[test]
    fn a_long_context_gives_up_bits_then_slots_then_memory_for_weights() {
        let Some(model) = small_model() else { return };
        check(
            &model,
            8192,
            &[1600, 700, 450, 310, 250, 180],
            expect![[r#"
            1600 MB: as asked for
            700 MB: warning: to make room for a context of 8192 tokens: keys and values have 8 bits instead of 16
            450 MB: warning: to make room for a context of 8192 tokens: keys and values have 8 bits instead of 16, 2 of 4 slots
            310 MB: warning: to make room for a context of 8192 tokens: keys and values have 8 bits instead of 16, 1 of 4 slots
            250 MB: warning: to make room for a context of 8192 tokens: keys and values have 8 bits instead of 16, 1 of 4 slots, weights are read from disk
            180 MB: motley: not enough memory: 243 MB needed with every layer streamed, 180 MB available
            hint: a context of 3072 tokens fits: -c 3072
        "#]],
        );
    }
}
