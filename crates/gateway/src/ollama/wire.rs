//! Pieces of JSON that several of Ollama's objects share.

use std::time::Duration;

use serde_json::{Value, json};

use crate::backend::ModelCard;
use crate::error::ApiError;
use crate::fields::Fields;

/// Seconds since 1970 as Ollama's clients parse them, in UTC.
pub(crate) fn rfc3339(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    let (year, month, day) = date_of(days);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a day counted from 1970-01-01.
fn date_of(days: u64) -> (u64, u64, u64) {
    // Years are counted from March, so that the leap day is the last of its year, and in eras of
    // 400 years, which all have the same number of days.
    const ERA_DAYS: u64 = 146_097;
    /// From 0000-03-01 to 1970-01-01.
    const OFFSET_DAYS: u64 = 719_468;
    let days = days + OFFSET_DAYS;
    let (era, day_of_era) = (days / ERA_DAYS, days % ERA_DAYS);
    let leap_corrected =
        day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / (ERA_DAYS - 1);
    let year_of_era = leap_corrected / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Months from March have 31, 30, 31, 30, 31 days again and again: 153 in five.
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

/// A duration as Ollama writes it.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// `details` of a model.
pub(crate) fn details(card: &ModelCard) -> Value {
    json!({
        "parent_model": "",
        "format": "gguf",
        "family": card.architecture,
        "families": [card.architecture],
        "parameter_size": parameter_size(card.parameter_count),
        "quantization_level": card.quantisation,
    })
}

fn parameter_size(count: u64) -> String {
    let count = count as f64;
    match count {
        _ if count >= 1e9 => format!("{:.1}B", count / 1e9),
        _ if count >= 1e6 => format!("{:.1}M", count / 1e6),
        _ => format!("{:.1}K", count / 1e3),
    }
}

/// Reads `keep_alive`, which is only checked: the model stays loaded as long as the server runs.
pub(crate) fn check_keep_alive(fields: &Fields<'_>) -> Result<(), ApiError> {
    let is_duration = |text: &str| {
        let number = text.trim_start_matches('-').trim_end_matches(char::is_alphabetic);
        let unit = text.trim_start_matches(|c: char| !c.is_alphabetic());
        number.parse::<f64>().is_ok_and(f64::is_finite)
            && ["", "ns", "us", "ms", "s", "m", "h"].contains(&unit)
    };
    match fields.value("keep_alive") {
        None | Some(Value::Number(_)) => Ok(()),
        Some(Value::String(text)) if is_duration(text) => Ok(()),
        Some(_) => Err(ApiError::invalid("keep_alive", "must be seconds or a time such as 5m")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_match_the_calendar() {
        for (unix_s, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_709_164_800, "2024-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(unix_s), text);
        }
    }
}
