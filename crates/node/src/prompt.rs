//! From a conversation to the tokens of a prompt.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use motley_ggml::{Token, Vocabulary};
use motley_model::{
    ChatInput, ChatTemplate, CivilTime, ControlTokens, ModelDescription, PromptSegment, TokenTexts,
};
use serde_json::{Map, Value as Json};

/// Turns conversations into prompts for one model.
#[derive(Debug)]
pub(crate) struct PromptMaker {
    template: ChatTemplate,
    source: Option<String>,
    control_tokens: ControlTokens,
    begin_text: Option<String>,
    end_text: Option<String>,
}

impl PromptMaker {
    /// The file's own template, or ChatML where the file has none.
    ///
    /// # Errors
    /// When the file's template does not parse.
    pub(crate) fn new(
        description: &ModelDescription,
        vocabulary: &Vocabulary,
    ) -> anyhow::Result<Self> {
        let source = description.chat_template.clone();
        let template = match &source {
            Some(source) => {
                ChatTemplate::parse(source).context("cannot use the model's chat template")?
            }
            None => ChatTemplate::chatml(),
        };
        Ok(Self {
            template,
            source,
            control_tokens: ControlTokens::new(vocabulary.special_texts()),
            begin_text: text_of(vocabulary, vocabulary.begin_of_text())?,
            end_text: text_of(vocabulary, vocabulary.end_of_text())?,
        })
    }

    /// The template's text, if the file has one.
    pub(crate) fn template_source(&self) -> Option<&str> {
        self.source.as_deref()
    }

    /// The prompt that asks for an answer to `messages`.
    ///
    /// # Errors
    /// When the template fails on them.
    pub(crate) fn chat(
        &self,
        messages: &[Json],
        vocabulary: &Vocabulary,
    ) -> anyhow::Result<Vec<Token>> {
        let rendered = self
            .template
            .render(&ChatInput {
                messages,
                tools: &[],
                add_generation_prompt: true,
                tokens: TokenTexts {
                    bos: self.begin_text.as_deref(),
                    eos: self.end_text.as_deref(),
                    pad: None,
                    unk: None,
                },
                control_tokens: &self.control_tokens,
                now: civil_time(SystemTime::now()),
                variables: &Map::new(),
            })
            .context("the model's chat template refuses this conversation")?;
        tokens_of(&rendered.segments(), vocabulary)
    }
}

/// The prompt that a text is by itself.
///
/// # Errors
/// When the text is too long to count.
pub(crate) fn raw(text: &str, vocabulary: &Vocabulary) -> anyhow::Result<Vec<Token>> {
    Ok(vocabulary.tokenize(text, true, false)?)
}

/// Control tokens are read only where the template wrote them. The begin token, which many
/// templates write themselves, stands once.
fn tokens_of(
    segments: &[PromptSegment<'_>],
    vocabulary: &Vocabulary,
) -> anyhow::Result<Vec<Token>> {
    let mut tokens = Vec::new();
    for segment in segments {
        tokens.extend(vocabulary.tokenize(segment.text, false, segment.special)?);
    }
    if vocabulary.adds_begin_of_text()
        && let Some(begin) = vocabulary.begin_of_text()
        && tokens.first() != Some(&begin)
    {
        tokens.insert(0, begin);
    }
    Ok(tokens)
}

fn text_of(vocabulary: &Vocabulary, token: Option<Token>) -> anyhow::Result<Option<String>> {
    let Some(token) = token else { return Ok(None) };
    let mut bytes = Vec::new();
    vocabulary.append_bytes(token, true, &mut bytes)?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// The calendar's day and the clock in universal time.
fn civil_time(now: SystemTime) -> CivilTime {
    const DAY_SECONDS: u64 = 86_400;
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / DAY_SECONDS, seconds % DAY_SECONDS);
    let (year, month, day) = civil_day(days);
    let part = |value: u64| u8::try_from(value).expect("parts of a day and a year are small");
    CivilTime {
        year: i32::try_from(year).unwrap_or(i32::MAX),
        month: part(month),
        day: part(day),
        hour: part(second / 3600),
        minute: part(second / 60 % 60),
        second: part(second % 60),
    }
}

/// Year, month and day of a day counted from 1 January 1970.
///
/// Years are taken to begin in March, so that the leap day is a year's last; 400 such years have
/// 146,097 days.
fn civil_day(days: u64) -> (u64, u64, u64) {
    const ERA_DAYS: u64 = 146_097;
    /// Days from 1 March of year 0 to 1 January 1970.
    const BEFORE_1970_DAYS: u64 = 719_468;
    let days = days + BEFORE_1970_DAYS;
    let (era, day_of_era) = (days / ERA_DAYS, days % ERA_DAYS);
    // Leap days are taken out before dividing: one in 4 years, none in 100, one again in 400.
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Months from March have 31, 30, 31, 30, 31 days over and over: 153 in five.
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn days_have_their_dates() {
        // Right-hand sides are the output of `date -u -d @SECONDS`.
        for (seconds, date) in [
            (0, (1970, 1, 1, 0, 0, 0)),
            (951_782_400, (2000, 2, 29, 0, 0, 0)),
            (951_868_799, (2000, 2, 29, 23, 59, 59)),
            (1_767_225_599, (2025, 12, 31, 23, 59, 59)),
            (4_107_542_400, (2100, 3, 1, 0, 0, 0)),
        ] {
            let time = civil_time(UNIX_EPOCH + Duration::from_secs(seconds));
            let found = (time.year, time.month, time.day, time.hour, time.minute, time.second);
            assert_eq!(found, date, "{seconds}");
        }
    }
}
