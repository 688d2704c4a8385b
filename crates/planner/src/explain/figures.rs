//! Figures as people read them: three digits and the unit that fits.

use motley_cluster::{Bytes, LayerRange, Seconds};

/// A time: `0.42 ms`, `34.5 ms`, `1.23 s`.
pub(crate) fn time(value: Seconds) -> String {
    let seconds = value.value();
    if seconds == 0.0 {
        return "0 ms".to_owned();
    }
    let (value, unit) = if seconds >= 0.9995 { (seconds, "s") } else { (seconds * 1e3, "ms") };
    format!("{} {unit}", three_digits(value))
}

/// A number of bytes in steps of 1000: `98.4 MB`, `1.23 GB`.
pub(crate) fn bytes(value: Bytes) -> String {
    let count = value.as_f64();
    if count < 999.5 {
        return format!("{} B", value.count());
    }
    let (value, unit) = if count < 999.5e3 {
        (count / 1e3, "kB")
    } else if count < 999.5e6 {
        (count / 1e6, "MB")
    } else if count < 999.5e9 {
        (count / 1e9, "GB")
    } else {
        (count / 1e12, "TB")
    };
    format!("{} {unit}", three_digits(value))
}

/// Three significant digits, no fewer before the point.
pub(super) fn three_digits(value: f64) -> String {
    if value >= 99.95 {
        format!("{value:.0}")
    } else if value >= 9.995 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

/// A change in per cent, such as `-12 %`.
pub(super) fn percent(fraction: f64) -> String {
    if fraction.abs() < 0.0995 {
        format!("{:+.1} %", fraction * 100.0)
    } else {
        format!("{:+.0} %", fraction * 100.0)
    }
}

/// Layers as ranges whose ends belong to them: `0-12, 40`.
pub(super) fn layers(ranges: &[LayerRange]) -> String {
    let mut parts = Vec::new();
    for range in ranges.iter().filter(|range| !range.is_empty()) {
        parts.push(if range.len() == 1 {
            range.start().to_string()
        } else {
            format!("{}-{}", range.start(), range.end() - 1)
        });
    }
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}

/// A count and its noun.
pub(super) fn counted(count: u32, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
