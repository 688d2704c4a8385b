//! Choosing one token from the logits of one position.

use motley_ggml::Token;

use super::limits::TOP_LOGPROBS_MAX;
use super::mask::TokenMask;
use super::parameters::SamplingParameters;
use super::random::PositionedRandom;
use super::scan::{self, Candidate, Softmax};

/// Chooses tokens for the sequences of one model.
///
/// It holds scratch memory only, nothing of a sequence: one sampler may serve many sequences, and
/// what it returns depends on its arguments alone. Once it has seen a request of every kind it
/// does not allocate any more.
///
/// The logits pass, in this order: logit bias, repetition penalty, presence and frequency
/// penalties, bans of end tokens, the mask, temperature, top-k, top-p (over what top-k left),
/// min-p, one draw. Logits that tie are taken lowest token first.
#[derive(Debug)]
pub struct Sampler {
    vocabulary_size: usize,
    end_tokens: Vec<Token>,
    adjusted: Vec<f32>,
    counts: TokenCounts,
    candidates: Vec<Candidate>,
    block_totals: Vec<f64>,
}

/// The sequence that a token is chosen for.
#[derive(Debug, Clone, Copy)]
pub struct SampleContext<'a> {
    /// What the request asks.
    pub parameters: &'a SamplingParameters,
    /// Tokens the sequence began with.
    pub prompt: &'a [Token],
    /// Tokens chosen so far, oldest first.
    pub generated: &'a [Token],
    /// Eligible tokens, where a constraint is in force.
    pub allowed: Option<&'a TokenMask>,
}

/// A chosen token.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: Token,
    /// Whether the token ends the answer: an end token of the model or a stop token of the
    /// request. Such a token has no text.
    pub ends_answer: bool,
    /// Log-probabilities at this position, where the request asks for them.
    pub log_probabilities: Option<TokenLogProbabilities>,
}

/// A token's natural logarithm of its probability in the model's own distribution, before bias,
/// penalties, temperature and filters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogProbability {
    /// The token.
    pub token: Token,
    /// At most 0.
    pub log_probability: f32,
}

/// Log-probabilities at one position.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogProbabilities {
    chosen: TokenLogProbability,
    top: [TokenLogProbability; TOP_LOGPROBS_MAX],
    top_count: usize,
}

impl TokenLogProbabilities {
    /// The token that was sampled.
    pub fn chosen(&self) -> TokenLogProbability {
        self.chosen
    }

    /// The most probable tokens, best first; as many as were asked for.
    pub fn top(&self) -> &[TokenLogProbability] {
        &self.top[..self.top_count]
    }
}

/// Why no token could be chosen.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// The number of logits is not that of the vocabulary.
    #[error("{logit_count} logits for a vocabulary of {vocabulary_size} tokens")]
    LogitCount {
        /// Logits given.
        logit_count: usize,
        /// Tokens of the sampler's model.
        vocabulary_size: usize,
    },
    /// Parameters or mask belong to another vocabulary.
    #[error("parameters or mask for {checked_size} tokens used with {vocabulary_size} tokens")]
    OtherVocabulary {
        /// Vocabulary size of the parameters or the mask.
        checked_size: usize,
        /// Tokens of the sampler's model.
        vocabulary_size: usize,
    },
    /// The model produced a logit that is infinite or not a number.
    #[error("logit of token {token} is {value}")]
    LogitNotFinite {
        /// First such token.
        token: Token,
        /// Its logit.
        value: f32,
    },
    /// A token of the history or an end token that the vocabulary does not have.
    #[error("token {token} is outside the vocabulary of {vocabulary_size} tokens")]
    TokenOutsideVocabulary {
        /// The token.
        token: Token,
        /// Tokens of the sampler's model.
        vocabulary_size: usize,
    },
    /// Mask and bans together leave no token.
    #[error("no token is allowed at position {position}")]
    NoTokenAllowed {
        /// Position in the sequence.
        position: usize,
    },
}

impl Sampler {
    /// A sampler for a vocabulary and the tokens by which its model ends an answer.
    pub fn new(vocabulary_size: usize, end_tokens: &[Token]) -> Result<Self, SampleError> {
        check_tokens(end_tokens, vocabulary_size)?;
        Ok(Self {
            vocabulary_size,
            end_tokens: end_tokens.to_vec(),
            adjusted: Vec::new(),
            counts: TokenCounts::default(),
            candidates: Vec::new(),
            block_totals: Vec::new(),
        })
    }

    /// Chooses the token that follows `context`, from the logits of its last position.
    ///
    /// The random number is that of (seed, length of the sequence so far): moving tokens from the
    /// answer to the prompt, as a resumed request does, changes no draw.
    pub fn sample(
        &mut self,
        logits: &[f32],
        context: &SampleContext<'_>,
    ) -> Result<Sampled, SampleError> {
        self.check(logits, context)?;
        let own_best = greatest_finite(logits)?;
        let position = context.prompt.len() + context.generated.len();
        let draw = Draw { parameters: context.parameters, position: position as u64 };
        let token = if self.adjust(logits, context)? {
            let best = scan::find_greatest(&self.adjusted)
                .ok_or(SampleError::NoTokenAllowed { position })?;
            draw.choose(&self.adjusted, best, &mut self.candidates, &mut self.block_totals)
        } else {
            draw.choose(logits, own_best, &mut self.candidates, &mut self.block_totals)
        };
        let options = context.parameters.options();
        Ok(Sampled {
            token,
            ends_answer: self.end_tokens.contains(&token)
                || options.stop_token_ids.contains(&token),
            log_probabilities: options
                .top_logprobs
                .map(|count| self.log_probabilities(logits, own_best.logit, token, count as usize)),
        })
    }

    /// How probable `token` and the `top_count` likeliest were where `logits` decide, by the
    /// model's own distribution.
    ///
    /// # Errors
    /// When the logits are not those of this vocabulary or not finite, or the token is outside it.
    pub fn score(
        &mut self,
        logits: &[f32],
        token: Token,
        top_count: u8,
    ) -> Result<TokenLogProbabilities, SampleError> {
        let vocabulary_size = self.vocabulary_size;
        if logits.len() != vocabulary_size || logits.is_empty() {
            return Err(SampleError::LogitCount { logit_count: logits.len(), vocabulary_size });
        }
        check_tokens(&[token], vocabulary_size)?;
        let greatest = greatest_finite(logits)?.logit;
        let top_count = usize::from(top_count).min(TOP_LOGPROBS_MAX);
        Ok(self.log_probabilities(logits, greatest, token, top_count))
    }

    fn check(&self, logits: &[f32], context: &SampleContext<'_>) -> Result<(), SampleError> {
        let vocabulary_size = self.vocabulary_size;
        if logits.len() != vocabulary_size || logits.is_empty() {
            return Err(SampleError::LogitCount { logit_count: logits.len(), vocabulary_size });
        }
        let mask_size = context.allowed.map(TokenMask::vocabulary_size);
        for checked_size in [Some(context.parameters.vocabulary_size()), mask_size] {
            if let Some(checked_size) = checked_size.filter(|size| *size != vocabulary_size) {
                return Err(SampleError::OtherVocabulary { checked_size, vocabulary_size });
            }
        }
        Ok(())
    }

    /// Fills `adjusted` when the request changes any logit, and says whether it does.
    fn adjust(&mut self, logits: &[f32], context: &SampleContext<'_>) -> Result<bool, SampleError> {
        let options = context.parameters.options();
        let before_min_tokens = context.generated.len() < options.min_tokens as usize;
        let repetition = context.parameters.has_repetition_penalty();
        let generation = context.parameters.has_generation_penalty();
        let changes = !options.logit_bias.is_empty()
            || repetition
            || generation
            || options.ignore_eos
            || before_min_tokens
            || context.allowed.is_some();
        if !changes {
            return Ok(false);
        }
        self.adjusted.clear();
        self.adjusted.extend_from_slice(logits);
        for &(token, bias) in &options.logit_bias {
            change(&mut self.adjusted, token, |logit| logit + bias);
        }
        if repetition {
            self.penalise_repetition(context)?;
        }
        if generation {
            self.penalise_generated(context)?;
        }
        if options.ignore_eos || before_min_tokens {
            ban(&mut self.adjusted, &self.end_tokens);
        }
        if before_min_tokens {
            ban(&mut self.adjusted, &options.stop_token_ids);
        }
        if let Some(allowed) = context.allowed {
            allowed.ban_others(&mut self.adjusted);
        }
        Ok(true)
    }

    /// Keskar et al. 2019 divide the logit; a negative logit is multiplied instead, because
    /// dividing would make the token more likely.
    fn penalise_repetition(&mut self, context: &SampleContext<'_>) -> Result<(), SampleError> {
        let options = context.parameters.options();
        let penalty = options.repetition_penalty;
        let window = options.repetition_window as usize;
        let generated = last(context.generated, window);
        let prompt = last(context.prompt, window - generated.len());
        let adjusted = &mut self.adjusted;
        self.counts.count(&[prompt, generated], self.vocabulary_size)?;
        self.counts.drain(|token, _| {
            change(
                adjusted,
                token,
                |logit| {
                    if logit > 0.0 { logit / penalty } else { logit * penalty }
                },
            );
        });
        Ok(())
    }

    /// logit - presence - count * frequency, for every token that was generated.
    fn penalise_generated(&mut self, context: &SampleContext<'_>) -> Result<(), SampleError> {
        let options = context.parameters.options();
        let adjusted = &mut self.adjusted;
        self.counts.count(&[context.generated], self.vocabulary_size)?;
        self.counts.drain(|token, count| {
            let penalty = options.presence_penalty + count as f32 * options.frequency_penalty;
            change(adjusted, token, |logit| logit - penalty);
        });
        Ok(())
    }

    fn log_probabilities(
        &mut self,
        logits: &[f32],
        greatest: f32,
        token: Token,
        top_count: usize,
    ) -> TokenLogProbabilities {
        let softmax = Softmax::new(greatest, 1.0);
        let log_total = softmax.total(logits).ln();
        let log_probability_of = |token: Token, logit: f32| TokenLogProbability {
            token,
            log_probability: (f64::from(logit) - f64::from(greatest) - log_total) as f32,
        };
        scan::gather_top(logits, top_count, &mut self.candidates);
        self.candidates.sort_unstable_by(scan::best_first);
        let chosen = log_probability_of(token, logits[token as usize]);
        let mut top = [chosen; TOP_LOGPROBS_MAX];
        for (entry, candidate) in top.iter_mut().zip(&self.candidates) {
            *entry = log_probability_of(candidate.token, candidate.logit);
        }
        TokenLogProbabilities { chosen, top, top_count: self.candidates.len() }
    }
}

/// The greatest of logits that must all be numbers.
fn greatest_finite(logits: &[f32]) -> Result<Candidate, SampleError> {
    scan::find_greatest_finite(logits).map_err(|index| SampleError::LogitNotFinite {
        token: index as Token,
        value: logits[index],
    })
}

/// One choice at one position, after the logits are adjusted.
#[derive(Debug, Clone, Copy)]
struct Draw<'a> {
    parameters: &'a SamplingParameters,
    position: u64,
}

impl Draw<'_> {
    fn choose(
        self,
        logits: &[f32],
        best: Candidate,
        candidates: &mut Vec<Candidate>,
        block_totals: &mut Vec<f64>,
    ) -> Token {
        if self.parameters.is_greedy() {
            return best.token;
        }
        let options = self.parameters.options();
        let softmax = Softmax::new(best.logit, options.temperature);
        let uniform = PositionedRandom::new(options.seed).uniform(self.position, 0);
        let token = if self.filter(logits, softmax, candidates) {
            let weights = candidates.iter().map(|candidate| softmax.weight(candidate.logit));
            let total: f64 = weights.clone().map(f64::from).sum();
            scan::pick(weights, uniform * total).map(|index| candidates[index].token)
        } else {
            scan::draw_from_all(logits, softmax, uniform, block_totals)
        };
        token.expect("the best token has weight 1")
    }

    /// Collects what top-k, top-p and min-p leave, lowest token first; false when none of them is
    /// in force.
    fn filter(self, logits: &[f32], softmax: Softmax, candidates: &mut Vec<Candidate>) -> bool {
        let options = self.parameters.options();
        let top_p = f64::from(options.top_p);
        let top_k = options.top_k as usize;
        if 0 < top_k && top_k < logits.len() {
            scan::gather_top(logits, top_k, candidates);
            if top_p < 1.0 {
                let total = total_weight(candidates, softmax);
                scan::keep_mass(candidates, softmax, top_p * total);
            }
        } else if top_p < 1.0 {
            gather_mass(logits, softmax, top_p * softmax.total(logits), candidates);
        } else if options.min_p > 0.0 {
            // The exact comparison follows below.
            let threshold = softmax.logit_below(-options.min_p.ln());
            scan::gather_greater(logits, threshold, candidates);
        } else {
            return false;
        }
        if options.min_p > 0.0 {
            candidates.retain(|candidate| softmax.weight(candidate.logit) >= options.min_p);
        }
        order_by_token(logits, candidates);
        true
    }
}

/// Collects the fewest most probable tokens whose weights sum to at least `mass`. Usually few
/// suffice; otherwise a histogram of the weights says how far down to look.
fn gather_mass(logits: &[f32], softmax: Softmax, mass: f64, candidates: &mut Vec<Candidate>) {
    const USUALLY_ENOUGH: usize = 256;
    scan::gather_top(logits, USUALLY_ENOUGH, candidates);
    if total_weight(candidates, softmax) < mass {
        let threshold = softmax.threshold_of_mass(logits, mass);
        scan::gather_greater(logits, threshold, candidates);
    }
    scan::keep_mass(candidates, softmax, mass);
}

fn total_weight(candidates: &[Candidate], softmax: Softmax) -> f64 {
    candidates.iter().map(|candidate| f64::from(softmax.weight(candidate.logit))).sum()
}

/// The draw walks candidates in token order, the one order that does not depend on how they were
/// selected. Many are gathered anew, which is cheaper than sorting.
fn order_by_token(logits: &[f32], candidates: &mut Vec<Candidate>) {
    const SORTED_MAX: usize = 2_048;
    if candidates.len() <= SORTED_MAX {
        candidates.sort_unstable_by_key(|candidate| candidate.token);
    } else if let Some(&last) = candidates.iter().max_by(|a, b| scan::best_first(a, b)) {
        scan::gather_until(logits, last, candidates);
    }
}

/// How often each token of a history occurs, without clearing a vocabulary's worth of memory.
#[derive(Debug, Default)]
struct TokenCounts {
    counts: Vec<u32>,
    seen: Vec<Token>,
}

impl TokenCounts {
    fn count(&mut self, parts: &[&[Token]], vocabulary_size: usize) -> Result<(), SampleError> {
        self.counts.resize(vocabulary_size, 0);
        for part in parts {
            check_tokens(part, vocabulary_size)?;
        }
        for &token in parts.iter().copied().flatten() {
            let count = &mut self.counts[token as usize];
            if *count == 0 {
                self.seen.push(token);
            }
            *count += 1;
        }
        Ok(())
    }

    fn drain(&mut self, mut visit: impl FnMut(Token, u32)) {
        for token in self.seen.drain(..) {
            visit(token, std::mem::take(&mut self.counts[token as usize]));
        }
    }
}

/// Changes one logit and keeps it finite: infinity stands for banned.
fn change(logits: &mut [f32], token: Token, operation: impl Fn(f32) -> f32) {
    let logit = &mut logits[token as usize];
    *logit = operation(*logit).clamp(f32::MIN, f32::MAX);
}

fn ban(logits: &mut [f32], tokens: &[Token]) {
    for &token in tokens {
        logits[token as usize] = f32::NEG_INFINITY;
    }
}

fn last(tokens: &[Token], count_max: usize) -> &[Token] {
    &tokens[tokens.len().saturating_sub(count_max)..]
}

/// A negative token becomes a huge index.
fn check_tokens(tokens: &[Token], vocabulary_size: usize) -> Result<(), SampleError> {
    match tokens.iter().find(|token| **token as usize >= vocabulary_size) {
        Some(&token) => Err(SampleError::TokenOutsideVocabulary { token, vocabulary_size }),
        None => Ok(()),
    }
}

#[cfg(test)]
pub(super) use inspection::eligible_tokens;

#[cfg(test)]
mod inspection {
    use super::*;

    impl Sampler {
        pub(in super::super) fn adjusted_logits(&self) -> &[f32] {
            &self.adjusted
        }

        pub(in super::super) fn scratch_addresses(&self) -> [(usize, usize); 5] {
            [
                (self.adjusted.as_ptr().addr(), self.adjusted.capacity()),
                (self.counts.counts.as_ptr().addr(), self.counts.counts.capacity()),
                (self.counts.seen.as_ptr().addr(), self.counts.seen.capacity()),
                (self.candidates.as_ptr().addr(), self.candidates.capacity()),
                (self.block_totals.as_ptr().addr(), self.block_totals.capacity()),
            ]
        }
    }

    /// Tokens that the filters of `parameters` leave, lowest first.
    pub(in super::super) fn eligible_tokens(
        logits: &[f32],
        parameters: &SamplingParameters,
    ) -> Vec<Token> {
        let best = scan::find_greatest(logits).expect("there are logits");
        let softmax = Softmax::new(best.logit, parameters.options().temperature);
        let mut candidates = Vec::new();
        let draw = Draw { parameters, position: 0 };
        if draw.filter(logits, softmax, &mut candidates) {
            candidates.iter().map(|candidate| candidate.token).collect()
        } else {
            (0..logits.len() as Token).collect()
        }
    }
}
