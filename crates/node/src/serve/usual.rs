//! What an answer is like where a request is silent: llama-server's options for it.

use clap::Args;
use motley_gateway::UsualOptions;

/// Options that hold where a request is silent. They are left out of `--help`, as limits are.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct UsualArguments {
    /// Tokens of an answer that says nothing of it; -1 for what fits
    #[arg(short = 'n', long, value_name = "N", hide = true, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..=i64::from(i32::MAX)))]
    predict: Option<i64>,
    /// Seed of an answer that says nothing of it; -1 for another each time
    #[arg(short, long, value_name = "N", hide = true, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..))]
    seed: Option<i64>,
    /// Temperature, 0 to 2
    #[arg(long, value_name = "X", hide = true, value_parser = |text: &str| within(text, 0.0, 2.0))]
    temp: Option<f32>,
    /// Choose among this many likeliest tokens; 0 among all
    #[arg(long, value_name = "N", hide = true)]
    top_k: Option<u32>,
    /// Choose among the likeliest that together reach this
    #[arg(long, value_name = "X", hide = true, value_parser = |text: &str| within(text, 0.0, 1.0))]
    top_p: Option<f32>,
    /// Drop tokens below this part of the likeliest one's
    #[arg(long, value_name = "X", hide = true, value_parser = |text: &str| within(text, 0.0, 1.0))]
    min_p: Option<f32>,
    /// Make tokens that occurred less likely; 1 is off
    #[arg(long, value_name = "X", hide = true, value_parser = |text: &str| within(text, 0.01, 10.0))]
    repeat_penalty: Option<f32>,
    /// Penalty for tokens of the answer, once
    #[arg(long, value_name = "X", hide = true, allow_negative_numbers = true)]
    #[arg(value_parser = |text: &str| within(text, -2.0, 2.0))]
    presence_penalty: Option<f32>,
    /// Penalty for tokens of the answer, each time
    #[arg(long, value_name = "X", hide = true, allow_negative_numbers = true)]
    #[arg(value_parser = |text: &str| within(text, -2.0, 2.0))]
    frequency_penalty: Option<f32>,
}

impl UsualArguments {
    /// The gateway's form of them.
    pub(super) fn options(&self) -> UsualOptions {
        UsualOptions {
            tokens_max: self.predict.and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0),
            seed: self.seed.and_then(|seed| u64::try_from(seed).ok()),
            temperature: self.temp,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            repetition_penalty: self.repeat_penalty,
        }
    }
}

/// What llama-server has to be told and motley does anyway, so that its command lines work here.
#[derive(Args, Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch that changes nothing")]
pub(crate) struct Always {
    /// Metrics are served anyway
    #[arg(long, hide = true)]
    metrics: bool,
    /// The state of slots is served anyway
    #[arg(long, hide = true)]
    slots: bool,
    /// Chat templates are followed anyway
    #[arg(long, hide = true)]
    jinja: bool,
    /// Sequences are batched as they come anyway (-cb)
    #[arg(long, hide = true)]
    cont_batching: bool,
    /// Attention is computed in one pass anyway (-fa)
    #[arg(long, value_name = "WHEN", hide = true, value_parser = ["on", "auto", "1"])]
    flash_attn: Option<String>,
    /// Texts are embedded anyway
    #[arg(long, alias = "embedding", hide = true)]
    embeddings: bool,
}

fn within(text: &str, least: f32, most: f32) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("'{text}' is no number from {least} to {most}")),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Command, FromArgMatches as _};

    use super::*;

    fn options(line: &str) -> Result<UsualOptions, clap::Error> {
        let command = UsualArguments::augment_args(Command::new("t").no_binary_name(true));
        let matches = command.try_get_matches_from(line.split_whitespace())?;
        Ok(UsualArguments::from_arg_matches(&matches)?.options())
    }

    #[test]
    fn options_become_defaults() {
        assert_eq!(options("").unwrap(), UsualOptions::default());
        assert_eq!(options("-n -1 -s -1").unwrap(), UsualOptions::default());
        let set = options("-n 7 -s 3 --temp 0.5 --top-k 0 --frequency-penalty -1").unwrap();
        assert_eq!(
            set,
            UsualOptions {
                tokens_max: Some(7),
                seed: Some(3),
                temperature: Some(0.5),
                top_k: Some(0),
                frequency_penalty: Some(-1.0),
                ..UsualOptions::default()
            }
        );
        for wrong in ["--temp 3", "--top-p NaN", "--min-p -1", "-n -2", "--repeat-penalty 0"] {
            assert!(options(wrong).is_err(), "{wrong}");
        }
    }
}
