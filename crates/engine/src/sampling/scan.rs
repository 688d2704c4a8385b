//! Passes over all logits of a vocabulary, written so that the compiler vectorises them.

use std::cmp::Ordering;

use motley_ggml::Token;

use super::exponential::exp_of_nonpositive;

/// A token with its logit. A banned token has negative infinity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub(super) logit: f32,
    pub(super) token: Token,
}

impl Candidate {
    /// Adding zero turns -0 into +0, so that [`best_first`] sees the two as the tie they are.
    fn new(logit: f32, token: usize) -> Self {
        Self { logit: logit + 0.0, token: token as Token }
    }
}

/// Most probable first; of equal logits the lower token.
pub(super) fn best_first(left: &Candidate, right: &Candidate) -> Ordering {
    right.logit.total_cmp(&left.logit).then(left.token.cmp(&right.token))
}

/// The exponential weights of a softmax: 1 for the greatest logit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Softmax {
    greatest: f32,
    temperature: f32,
    inverse_temperature: f32,
}

impl Softmax {
    pub(super) fn new(greatest: f32, temperature: f32) -> Self {
        Self { greatest, temperature, inverse_temperature: temperature.recip() }
    }

    #[inline(always)]
    pub(super) fn weight(self, logit: f32) -> f32 {
        exp_of_nonpositive((logit - self.greatest) * self.inverse_temperature)
    }

    /// Sum of the weights of all logits.
    pub(super) fn total(self, logits: &[f32]) -> f64 {
        logits.chunks(SUM_BLOCK).map(|block| self.block_total(block)).sum()
    }

    /// A logit that every logit with a weight of at least e^-`distance` exceeds, whatever the
    /// rounding.
    pub(super) fn logit_below(self, distance: f32) -> f32 {
        let difference = distance * self.temperature;
        let slack = 1e-4 + (self.greatest.abs() + difference) * 1e-6;
        self.greatest - difference - slack
    }

    /// A logit above which lie tokens that together weigh at least `mass`, and not many more.
    pub(super) fn threshold_of_mass(self, logits: &[f32], mass: f64) -> f32 {
        const BUCKETS: usize = 1_024;
        // Beyond this distance weights are zero.
        const DISTANCE_MAX: f32 = 87.0;
        let buckets_per_distance = BUCKETS as f32 / DISTANCE_MAX;
        let mut bucket_mass = [0.0_f64; BUCKETS];
        for &logit in logits {
            let distance = (self.greatest - logit) * self.inverse_temperature;
            let bucket = (distance * buckets_per_distance) as usize;
            bucket_mass[bucket.min(BUCKETS - 1)] += f64::from(exp_of_nonpositive(-distance));
        }
        let mut sum = 0.0;
        let last = bucket_mass.iter().position(|bucket| {
            sum += bucket;
            sum >= mass
        });
        match last {
            Some(bucket) => self.logit_below((bucket + 1) as f32 / buckets_per_distance),
            None => f32::NEG_INFINITY,
        }
    }

    /// Sums in single precision over few terms only; always in the same order.
    fn block_total(self, block: &[f32]) -> f64 {
        let mut sums = [0.0_f32; LANES];
        let (chunks, rest) = block.as_chunks::<LANES>();
        for chunk in chunks {
            for (sum, &logit) in sums.iter_mut().zip(chunk) {
                *sum += self.weight(logit);
            }
        }
        let rest_total: f64 = rest.iter().map(|&logit| f64::from(self.weight(logit))).sum();
        sums.iter().map(|&sum| f64::from(sum)).sum::<f64>() + rest_total
    }
}

/// The greatest logit and the lowest token that has it, or the place of the first logit that is
/// not finite. `logits` is not empty.
pub(super) fn find_greatest_finite(logits: &[f32]) -> Result<Candidate, usize> {
    let mut best = Candidate::new(f32::NEG_INFINITY, 0);
    for (block_index, block) in logits.chunks(SEARCH_BLOCK).enumerate() {
        if !all_finite(block) {
            let index = block.iter().position(|logit| !logit.is_finite()).unwrap_or(0);
            return Err(block_index * SEARCH_BLOCK + index);
        }
        improve(&mut best, block, block_index * SEARCH_BLOCK);
    }
    Ok(best)
}

/// The greatest logit and the lowest token that has it, if any token is not banned.
pub(super) fn find_greatest(logits: &[f32]) -> Option<Candidate> {
    let mut best = Candidate::new(f32::NEG_INFINITY, 0);
    for (block_index, block) in logits.chunks(SEARCH_BLOCK).enumerate() {
        improve(&mut best, block, block_index * SEARCH_BLOCK);
    }
    (best.logit > f32::NEG_INFINITY).then_some(best)
}

/// Collects the `count` most probable tokens that are not banned, in no particular order.
pub(super) fn gather_top(logits: &[f32], count: usize, candidates: &mut Vec<Candidate>) {
    candidates.clear();
    // Pruning to `count` when twice as many are held costs constant time per held token, and the
    // rising threshold soon lets the scan skip almost every block.
    let held_max = 2 * count + 4 * SKIP_BLOCK;
    let mut threshold = f32::NEG_INFINITY;
    for (block_index, block) in logits.chunks(SKIP_BLOCK).enumerate() {
        push_greater(block, block_index * SKIP_BLOCK, threshold, candidates);
        if candidates.len() >= held_max {
            threshold = prune(candidates, count);
        }
    }
    if candidates.len() > count {
        prune(candidates, count);
    }
}

/// Collects all tokens whose logit exceeds `threshold`, lowest token first.
pub(super) fn gather_greater(logits: &[f32], threshold: f32, candidates: &mut Vec<Candidate>) {
    candidates.clear();
    for (block_index, block) in logits.chunks(SKIP_BLOCK).enumerate() {
        push_greater(block, block_index * SKIP_BLOCK, threshold, candidates);
    }
}

/// Collects all tokens up to and including `last` in the order of [`best_first`], lowest token
/// first.
pub(super) fn gather_until(logits: &[f32], last: Candidate, candidates: &mut Vec<Candidate>) {
    candidates.clear();
    let all = logits.iter().enumerate().map(|(token, &logit)| Candidate::new(logit, token));
    candidates.extend(all.filter(|candidate| best_first(candidate, &last).is_le()));
}

/// Keeps the fewest most probable candidates whose weights sum to at least `mass`; at least one.
///
/// Halves the undecided range at its median, so that the cost is linear and no order is
/// established outside the last few.
pub(super) fn keep_mass(candidates: &mut Vec<Candidate>, softmax: Softmax, mass: f64) {
    let weigh = |candidate: &Candidate| f64::from(softmax.weight(candidate.logit));
    let (mut low, mut high) = (0, candidates.len());
    let mut mass_below = 0.0;
    while high - low > SKIP_BLOCK {
        let half = (high - low) / 2;
        candidates[low..high].select_nth_unstable_by(half, best_first);
        let middle = low + half;
        let mass_half: f64 = candidates[low..middle].iter().map(weigh).sum();
        if mass_below + mass_half >= mass {
            high = middle;
        } else {
            mass_below += mass_half;
            low = middle;
        }
    }
    candidates[low..high].sort_unstable_by(best_first);
    let reached = candidates[low..high].iter().position(|candidate| {
        mass_below += weigh(candidate);
        mass_below >= mass
    });
    candidates.truncate(reached.map_or(high, |index| low + index + 1));
}

/// Draws from the whole softmax: walks sums of blocks first, then the tokens of one block.
/// `uniform` is in [0, 1).
pub(super) fn draw_from_all(
    logits: &[f32],
    softmax: Softmax,
    uniform: f64,
    block_totals: &mut Vec<f64>,
) -> Option<Token> {
    block_totals.clear();
    block_totals.extend(logits.chunks(SUM_BLOCK).map(|block| softmax.block_total(block)));
    let mut remaining = uniform * block_totals.iter().sum::<f64>();
    let mut chosen_block = None;
    for (block_index, &total) in block_totals.iter().enumerate() {
        if total == 0.0 {
            continue;
        }
        chosen_block = Some((block_index, remaining));
        if remaining < total {
            break;
        }
        remaining -= total;
    }
    let (block_index, remaining) = chosen_block?;
    let first = block_index * SUM_BLOCK;
    let block = &logits[first..logits.len().min(first + SUM_BLOCK)];
    let index = pick(block.iter().map(|&logit| softmax.weight(logit)), remaining)?;
    Some((first + index) as Token)
}

/// Index of the weight at which the running sum exceeds `remaining`. When rounding lets the sum
/// end below, the last weight that is not zero.
pub(super) fn pick(weights: impl Iterator<Item = f32>, mut remaining: f64) -> Option<usize> {
    let mut last = None;
    for (index, weight) in weights.enumerate() {
        if weight > 0.0 {
            last = Some(index);
            remaining -= f64::from(weight);
            if remaining < 0.0 {
                break;
            }
        }
    }
    last
}

/// Independent accumulators per loop: four vectors of the narrowest x86 registers.
const LANES: usize = 16;

/// Logits whose greatest is found before its place is looked up; they stay in the first cache.
const SEARCH_BLOCK: usize = 1_024;

/// Logits that are skipped together when none exceeds the threshold.
const SKIP_BLOCK: usize = 64;

/// Logits summed in single precision before the sum is widened.
const SUM_BLOCK: usize = 256;

fn improve(best: &mut Candidate, block: &[f32], first_token: usize) {
    let greatest = greatest_of(block);
    if greatest > best.logit {
        let index = block.iter().position(|&logit| logit == greatest).unwrap_or(0);
        *best = Candidate::new(greatest, first_token + index);
    }
}

fn greatest_of(block: &[f32]) -> f32 {
    let mut greatest = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = block.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &logit) in greatest.iter_mut().zip(chunk) {
            *lane = if logit > *lane { logit } else { *lane };
        }
    }
    greatest.iter().chain(rest).fold(f32::NEG_INFINITY, |best, &logit| best.max(logit))
}

fn all_finite(block: &[f32]) -> bool {
    // An exponent of all ones is infinity or not a number. Combining without branches lets the
    // loop vectorise.
    const EXPONENT: u32 = 0x7f80_0000;
    let found = block
        .iter()
        .fold(0, |found, logit| found | u32::from(logit.to_bits() & EXPONENT == EXPONENT));
    found == 0
}

fn push_greater(
    block: &[f32],
    first_token: usize,
    threshold: f32,
    candidates: &mut Vec<Candidate>,
) {
    if greatest_of(block) <= threshold {
        return;
    }
    for (index, &logit) in block.iter().enumerate() {
        if logit > threshold {
            candidates.push(Candidate::new(logit, first_token + index));
        }
    }
}

/// Keeps the best `count` candidates and returns the logit that later tokens must exceed; later
/// tokens of that very logit rank behind, because their numbers are higher.
fn prune(candidates: &mut Vec<Candidate>, count: usize) -> f32 {
    let Some(last) = count.checked_sub(1) else {
        candidates.clear();
        return f32::INFINITY;
    };
    candidates.select_nth_unstable_by(last, best_first);
    candidates.truncate(count);
    candidates[last].logit
}
