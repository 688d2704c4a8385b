//! Request members that chat and completions share, read into the backend's types.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::backend::{LengthRules, ModelCard, Sampling, StopRules, TokenId};
use crate::config::{GatewayConfig, UsualOptions};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::{CACHE_SALT_BYTES, Limits};

/// Names of the members read here, for the list of known members.
pub(crate) const OPTION_FIELDS: [&str; 24] = [
    "cache_salt",
    "continuous_usage_stats",
    "frequency_penalty",
    "ignore_eos",
    "logit_bias",
    "max_completion_tokens",
    "max_tokens",
    "metadata",
    "min_p",
    "min_tokens",
    "model",
    "n",
    "presence_penalty",
    "priority",
    "repetition_penalty",
    "seed",
    "stop",
    "stop_token_ids",
    "stream",
    "stream_options",
    "temperature",
    "top_k",
    "top_p",
    "user",
];

/// What both routes let a client choose.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) choices: u32,
    pub(crate) length: AskedLength,
    pub(crate) stop: StopRules,
    pub(crate) sampling: Sampling,
    pub(crate) cache_salt: Option<String>,
    pub(crate) priority: i32,
    pub(crate) stream: Option<StreamOptions>,
}

/// How an answer is streamed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamOptions {
    pub(crate) include_usage: bool,
    pub(crate) usage_in_every_chunk: bool,
}

/// Length as asked for, before the prompt's length is known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AskedLength {
    pub(crate) tokens_max: Option<u32>,
    pub(crate) tokens_min: u32,
    pub(crate) ignore_end: bool,
}

impl AskedLength {
    /// Settles the length once the prompt, read from `param`, is known: `choices` answers share the
    /// context budget.
    pub(crate) fn settle(
        self,
        param: &'static str,
        prompt_tokens: usize,
        choices: u32,
        card: &ModelCard,
    ) -> Result<LengthRules, ApiError> {
        let prompt_tokens = prompt_tokens as u64;
        let context = u64::from(card.context_tokens);
        let least = self.tokens_max.unwrap_or(1);
        if prompt_tokens + u64::from(least) > context {
            return Err(ApiError::ContextLengthExceeded {
                param,
                prompt_tokens,
                answer_tokens: least.into(),
                context_tokens: card.context_tokens,
            });
        }
        let room = u32::try_from(context - prompt_tokens).expect("at most the context");
        let tokens_max = self.tokens_max.unwrap_or((room / choices).max(1));
        if u64::from(tokens_max) * u64::from(choices) > context {
            let problem = format!("times max_tokens must not exceed the context of {context}");
            return Err(ApiError::invalid("n", problem));
        }
        if self.tokens_min > tokens_max {
            return Err(ApiError::invalid("min_tokens", "must not exceed max_tokens"));
        }
        Ok(LengthRules { tokens_max, tokens_min: self.tokens_min, ignore_end: self.ignore_end })
    }
}

/// Reads everything but the length, whose range and default differ by route.
pub(crate) fn read_options(
    fields: &Fields<'_>,
    length: AskedLength,
    card: &ModelCard,
    config: &GatewayConfig,
) -> Result<Options, ApiError> {
    let limits = &config.limits;
    let priority = fields.integer("priority", -1_000_000..=1_000_000)?.unwrap_or(0);
    let cache_salt = fields.text("cache_salt")?;
    if cache_salt.is_some_and(|salt| salt.is_empty() || salt.len() > CACHE_SALT_BYTES) {
        let problem = format!("must have 1 to {CACHE_SALT_BYTES} bytes");
        return Err(ApiError::invalid("cache_salt", problem));
    }
    Ok(Options {
        choices: fields.count("n", 1..=limits.choices)?.unwrap_or(1),
        length,
        stop: read_stop(fields, card, limits)?,
        sampling: read_sampling(fields, card, limits, config.usual.sampling(Sampling::default()))?,
        cache_salt: cache_salt.map(str::to_owned),
        priority: i32::try_from(priority).expect("within a range of i32"),
        stream: read_stream(fields)?,
    })
}

/// Reads the length; `least` is the smallest `max_tokens` that makes sense.
pub(crate) fn read_length(
    fields: &Fields<'_>,
    least: u32,
    usual: &UsualOptions,
) -> Result<AskedLength, ApiError> {
    let most = i32::MAX.unsigned_abs();
    let tokens = fields.count("max_tokens", least..=most)?;
    let completion = fields.count("max_completion_tokens", least..=most)?;
    Ok(AskedLength {
        // Both are in use; whoever sets both means the stricter one.
        tokens_max: [tokens, completion].into_iter().flatten().min().or(usual.tokens_max),
        tokens_min: fields.count("min_tokens", 0..=most)?.unwrap_or(0),
        ignore_end: fields.flag("ignore_eos")?.unwrap_or(false),
    })
}

/// Reads `stop` and `stop_token_ids`.
pub(crate) fn read_stop(
    fields: &Fields<'_>,
    card: &ModelCard,
    limits: &Limits,
) -> Result<StopRules, ApiError> {
    let texts: Vec<&str> = match fields.value("stop") {
        None => Vec::new(),
        Some(Value::String(text)) => vec![text],
        Some(_) => {
            let list = fields.list("stop", limits.stops)?.unwrap_or_default();
            let texts = list.iter().map(Value::as_str).collect::<Option<_>>();
            texts.ok_or_else(|| ApiError::invalid("stop", "must be a text or a list of texts"))?
        }
    };
    if texts.iter().any(|text| text.is_empty() || text.len() > limits.stop_bytes) {
        let problem = format!("texts must have 1 to {} bytes", limits.stop_bytes);
        return Err(ApiError::invalid("stop", problem));
    }
    let tokens = fields.list("stop_token_ids", limits.stops)?.unwrap_or_default();
    let tokens = tokens.iter().map(|id| read_token(id, "stop_token_ids", card));
    Ok(StopRules {
        texts: texts.into_iter().map(str::to_owned).collect(),
        tokens: tokens.collect::<Result<_, _>>()?,
    })
}

/// A token id inside the model's vocabulary.
pub(crate) fn read_token(
    value: &Value,
    param: &str,
    card: &ModelCard,
) -> Result<TokenId, ApiError> {
    let id = value.as_u64().filter(|&id| id < u64::from(card.vocabulary_tokens));
    let id = id.and_then(|id| u32::try_from(id).ok());
    id.map(TokenId).ok_or_else(|| {
        let problem = format!("must hold token ids from 0 to {}", card.vocabulary_tokens - 1);
        ApiError::invalid(param, problem)
    })
}

/// Reads how tokens are drawn; `usual` holds where the request is silent.
pub(crate) fn read_sampling(
    fields: &Fields<'_>,
    card: &ModelCard,
    limits: &Limits,
    usual: Sampling,
) -> Result<Sampling, ApiError> {
    let top_k = fields.integer("top_k", -1..=i64::from(i32::MAX))?;
    let number = |name: &str, range, usual| fields.number(name, range).map(|n| n.unwrap_or(usual));
    // Any 64-bit integer is a seed; a negative one is as good as its two's complement.
    let seed = match fields.value("seed") {
        None => usual.seed,
        Some(value) => match (value.as_u64(), value.as_i64()) {
            (Some(seed), _) => Some(seed),
            (None, Some(seed)) => Some(seed.cast_unsigned()),
            (None, None) => return Err(ApiError::invalid("seed", "must be a 64-bit integer")),
        },
    };
    Ok(Sampling {
        seed,
        temperature: number("temperature", 0.0..=2.0, usual.temperature)?,
        top_p: number("top_p", 0.0..=1.0, usual.top_p)?,
        // Both -1 and 0 are in use for "all".
        top_k: match top_k {
            None => usual.top_k,
            Some(k) => u32::try_from(k).ok().filter(|&k| k > 0),
        },
        min_p: number("min_p", 0.0..=1.0, usual.min_p)?,
        frequency_penalty: number("frequency_penalty", -2.0..=2.0, usual.frequency_penalty)?,
        presence_penalty: number("presence_penalty", -2.0..=2.0, usual.presence_penalty)?,
        repetition_penalty: number("repetition_penalty", 0.01..=10.0, usual.repetition_penalty)?,
        logit_bias: read_logit_bias(fields, card, limits)?,
    })
}

fn read_logit_bias(
    fields: &Fields<'_>,
    card: &ModelCard,
    limits: &Limits,
) -> Result<BTreeMap<TokenId, f32>, ApiError> {
    let Some(bias) = fields.object("logit_bias")? else { return Ok(BTreeMap::new()) };
    if bias.names().count() > limits.logit_bias {
        let problem = format!("must have at most {} entries", limits.logit_bias);
        return Err(ApiError::invalid("logit_bias", problem));
    }
    let mut read = BTreeMap::new();
    for name in bias.names() {
        // Only plain digits: `+1` and ` 1` are not token ids.
        let digits = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
        let id = name.parse().ok().filter(|&id: &u32| digits && id < card.vocabulary_tokens);
        let Some(id) = id else {
            let problem = format!("must map token ids from 0 to {}", card.vocabulary_tokens - 1);
            return Err(ApiError::invalid("logit_bias", problem));
        };
        let value = bias.value(name).and_then(Value::as_f64);
        let Some(value) = value.filter(|value| (-100.0..=100.0).contains(value)) else {
            return Err(ApiError::invalid("logit_bias", "values must be from -100 to 100"));
        };
        read.insert(TokenId(id), value as f32);
    }
    Ok(read)
}

fn read_stream(fields: &Fields<'_>) -> Result<Option<StreamOptions>, ApiError> {
    let stream = fields.flag("stream")?.unwrap_or(false);
    let Some(options) = fields.object("stream_options")? else {
        return Ok(stream.then(StreamOptions::default));
    };
    if !stream {
        return Err(ApiError::invalid("stream_options", "is only allowed when stream is true"));
    }
    let usage_in_every_chunk = options.flag("continuous_usage_stats")?.unwrap_or(false);
    let include_usage = options.flag("include_usage")?.unwrap_or(false);
    Ok(Some(StreamOptions { include_usage, usage_in_every_chunk }))
}
