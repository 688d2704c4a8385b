//! The limits of a server, each an option: what one request may cost and how long anything may take.
//!
//! One table names them all. They are left out of `--help`, which they would fill; `motley config
//! show serve` lists them.

use std::ops::RangeInclusive;
use std::time::Duration;

use clap::{Arg, ArgMatches, Command};
use motley_gateway::{HEADERS_TIMEOUT, Limits, QUEUE_REQUESTS, QUEUE_REQUESTS_PER_KEY};

use super::forms::FormLimits;
use super::http::ListenerLimits;
use crate::driver::QueueLimits;
use crate::terminal;

/// All limits of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ServeLimits {
    pub(super) gateway: Limits,
    pub(super) listener: ListenerLimits,
    pub(super) queue: QueueLimits,
    pub(super) forms: FormLimits,
}

impl ServeLimits {
    /// What ships.
    pub(super) const DEFAULT: Self = Self {
        gateway: Limits::DEFAULT,
        listener: ListenerLimits {
            headers: HEADERS_TIMEOUT,
            connections: 1024,
            farewell: Duration::from_secs(10),
        },
        queue: QueueLimits {
            requests: QUEUE_REQUESTS as usize,
            requests_per_caller: QUEUE_REQUESTS_PER_KEY as usize,
        },
        forms: FormLimits {
            compile: Duration::from_secs(2),
            memory_bytes: 256 << 20,
            kept: 64,
            kept_bytes: 128 << 20,
        },
    };
}

/// A number of the limits, in the type that it has there.
enum Field<'l> {
    Size(&'l mut usize),
    Count(&'l mut u32),
    Few(&'l mut u8),
    Many(&'l mut u64),
    Time(&'l mut Duration),
}

/// How a limit is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Number,
    Bytes,
    /// Whole milliseconds inside, seconds or with a unit outside.
    Time,
}

/// One limit.
struct Limit {
    /// The option without its dashes.
    name: &'static str,
    help: &'static str,
    unit: Unit,
    range: RangeInclusive<u64>,
    field: fn(&mut ServeLimits) -> Field<'_>,
}

const SECOND: u64 = 1_000;
const HOUR: u64 = 3_600 * SECOND;
const DAY: u64 = 24 * HOUR;
const MIB: u64 = 1 << 20;

/// A row of the table.
macro_rules! limit {
    ($name:literal, $help:literal, $unit:ident, $range:expr, $kind:ident $($path:ident).+) => {
        Limit {
            name: $name,
            help: $help,
            unit: Unit::$unit,
            range: $range,
            field: |limits| Field::$kind(&mut limits.$($path).+),
        }
    };
}

/// Every limit. Upper ends keep one request below what would hurt others whatever is configured.
#[rustfmt::skip]
static LIMITS: &[Limit] = &[
    limit!("limit-body", "Bytes of a request", Bytes, 1024..=1024 * MIB, Size gateway.body_bytes),
    limit!("limit-json-depth", "Nesting of JSON", Number, 4..=64, Size gateway.json_depth),
    limit!("limit-json-nodes", "JSON values in one request", Number, 16..=10_000_000, Size gateway.json_nodes),
    limit!("limit-header-bytes", "Bytes of all headers", Bytes, 8192..=MIB, Size gateway.header_bytes),
    limit!("limit-header-fields", "Header fields", Number, 16..=1_000, Size gateway.header_fields),
    limit!("limit-headers-time", "Time for headers to arrive", Time, SECOND..=HOUR, Time listener.headers),
    limit!("limit-connections", "Connections at once", Number, 1..=65_536, Size listener.connections),
    limit!("limit-messages", "Messages of a conversation", Number, 1..=1_000_000, Size gateway.messages),
    limit!("limit-tools", "Tools of a request", Number, 1..=4_096, Size gateway.tools),
    limit!("limit-stops", "Stop texts of a request", Number, 1..=256, Size gateway.stops),
    limit!("limit-stop-bytes", "Bytes of a stop text", Bytes, 1..=64 << 10, Size gateway.stop_bytes),
    limit!("limit-choices", "n and best_of", Number, 1..=256, Count gateway.choices),
    limit!("limit-prompts", "Prompts of a completions request", Number, 1..=4_096, Size gateway.prompts),
    limit!("limit-generations", "Generations that a request may start", Number, 1..=4_096, Size gateway.generations),
    limit!("limit-top-logprobs", "top_logprobs", Number, 0..=100, Few gateway.top_logprobs),
    limit!("limit-logit-bias", "Entries of logit_bias", Number, 0..=1_000_000, Size gateway.logit_bias),
    limit!("limit-schema-bytes", "Bytes of a JSON Schema", Bytes, 64..=16 * MIB, Size gateway.schema.bytes),
    limit!("limit-schema-depth", "Nesting of a schema", Number, 1..=32, Size gateway.schema.depth),
    limit!("limit-schema-nodes", "Schemas within a schema", Number, 1..=65_536, Size gateway.schema.nodes),
    limit!("limit-schema-expanded", "The same with references followed", Number, 1..=1_000_000, Many gateway.schema.expanded_nodes),
    limit!("limit-schema-enum", "Values of an enum", Number, 1..=1_000_000, Size gateway.schema.enum_values),
    limit!("limit-schema-pattern", "Bytes of a pattern", Bytes, 1..=64 << 10, Size gateway.schema.pattern_bytes),
    limit!("limit-schema-count", "Values of minItems and its like", Number, 1..=1_000_000, Many gateway.schema.count),
    limit!("limit-grammar-time", "Time to compile a grammar", Time, 1..=600 * SECOND, Time forms.compile),
    limit!("limit-grammar-memory", "Memory of a grammar", Bytes, 4 * MIB..=64 * 1024 * MIB, Size forms.memory_bytes),
    limit!("limit-grammars-kept", "Compiled grammars that are kept", Number, 0..=65_536, Size forms.kept),
    limit!("limit-grammars-bytes", "Memory of all that are kept", Bytes, 0..=1 << 40, Size forms.kept_bytes),
    limit!("limit-first-token", "Time until the first token", Time, SECOND..=DAY, Time gateway.first_token),
    limit!("limit-idle", "Time between tokens", Time, SECOND..=DAY, Time gateway.idle),
    limit!("limit-total", "Time for a whole answer", Time, SECOND..=30 * DAY, Time gateway.total),
    limit!("limit-keep-alive", "Silence until a stream says that it lives", Time, SECOND..=HOUR, Time gateway.keep_alive),
    limit!("limit-unread-bytes", "Bytes that may wait for a slow reader", Bytes, 4096..=1024 * MIB, Size gateway.unread_bytes),
    limit!("limit-unread-time", "Time that a slow reader has", Time, SECOND..=DAY, Time gateway.unread),
    limit!("limit-queue", "Requests that may wait", Number, 1..=65_536, Size queue.requests),
    limit!("limit-queue-per-key", "The same for one key", Number, 1..=65_536, Size queue.requests_per_caller),
    limit!("limit-drain", "Time that running answers have when the server is to end", Time, 0..=DAY, Time listener.farewell),
];

impl Field<'_> {
    /// The number, times in milliseconds.
    fn value(&self) -> u64 {
        match self {
            Self::Size(value) => **value as u64,
            Self::Count(value) => u64::from(**value),
            Self::Few(value) => u64::from(**value),
            Self::Many(value) => **value,
            Self::Time(value) => u64::try_from(value.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Sets the number, which the table's range keeps within its type.
    fn set(self, number: u64) {
        match self {
            Self::Size(value) => *value = usize::try_from(number).unwrap_or(usize::MAX),
            Self::Count(value) => *value = u32::try_from(number).unwrap_or(u32::MAX),
            Self::Few(value) => *value = u8::try_from(number).unwrap_or(u8::MAX),
            Self::Many(value) => *value = number,
            Self::Time(value) => *value = Duration::from_millis(number),
        }
    }
}

impl Unit {
    fn parse(self, text: &str) -> Result<u64, String> {
        match self {
            Self::Number => {
                text.replace('_', "").parse().map_err(|_| format!("'{text}' is no whole number"))
            }
            Self::Bytes => terminal::parse_bytes(text),
            Self::Time => parse_time(text),
        }
    }

    /// The shortest way to write a value.
    fn write(self, value: u64) -> String {
        match self {
            Self::Number => value.to_string(),
            Self::Bytes if value > 0 && value.is_multiple_of(MIB) => format!("{}MiB", value / MIB),
            Self::Bytes if value > 0 && value.is_multiple_of(1024) => {
                format!("{}KiB", value / 1024)
            }
            Self::Bytes => value.to_string(),
            Self::Time if value.is_multiple_of(SECOND) => format!("{}s", value / SECOND),
            Self::Time => format!("{value}ms"),
        }
    }
}

/// Milliseconds of a time such as `90`, `90s`, `1.5m`, `500ms`, `1h`.
fn parse_time(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "" | "s" => SECOND,
        "ms" => 1,
        "m" | "min" => 60 * SECOND,
        "h" => HOUR,
        "d" => DAY,
        unit => return Err(format!("'{unit}' is no unit of time; use ms, s, m, h or d")),
    };
    let number: f64 = digits.trim().parse().map_err(|_| format!("'{text}' is no time"))?;
    let time = number * factor as f64;
    if !(0.0..=9.0e15).contains(&time) {
        return Err(format!("'{text}' is no time"));
    }
    Ok(time.round() as u64)
}

impl Limit {
    fn parse(&self, text: &str) -> Result<u64, String> {
        let value = self.unit.parse(text)?;
        if self.range.contains(&value) {
            return Ok(value);
        }
        let (least, most) =
            (self.unit.write(*self.range.start()), self.unit.write(*self.range.end()));
        Err(format!("{} is not within {least} and {most}", self.unit.write(value)))
    }
}

/// The limits as options of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitOptions(ServeLimits);

impl LimitOptions {
    /// The limits, if they go together.
    ///
    /// # Errors
    /// When one that must lie below another does not.
    pub(super) fn checked(self) -> Result<ServeLimits, String> {
        let limits = self.0;
        let of = |name: &str| {
            let limit = LIMITS.iter().find(|limit| limit.name == name);
            let mut copy = limits;
            limit.map_or(0, |limit| (limit.field)(&mut copy).value())
        };
        for (lesser, greater) in [
            ("limit-schema-bytes", "limit-body"),
            ("limit-schema-depth", "limit-json-depth"),
            ("limit-schema-nodes", "limit-json-nodes"),
            ("limit-schema-nodes", "limit-schema-expanded"),
            ("limit-choices", "limit-generations"),
            ("limit-prompts", "limit-generations"),
            ("limit-keep-alive", "limit-idle"),
            ("limit-idle", "limit-first-token"),
            ("limit-first-token", "limit-total"),
            ("limit-queue-per-key", "limit-queue"),
        ] {
            if of(lesser) > of(greater) {
                return Err(format!("--{lesser} is more than --{greater}"));
            }
        }
        Ok(limits)
    }
}

impl clap::FromArgMatches for LimitOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut limits = ServeLimits::DEFAULT;
        for limit in LIMITS {
            if let Some(value) = matches.get_one::<u64>(limit.name) {
                (limit.field)(&mut limits).set(*value);
            }
        }
        Ok(Self(limits))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for LimitOptions {
    fn augment_args(command: Command) -> Command {
        let mut defaults = ServeLimits::DEFAULT;
        LIMITS.iter().fold(command, |command, limit| {
            let default = limit.unit.write((limit.field)(&mut defaults).value());
            command.arg(
                Arg::new(limit.name)
                    .long(limit.name)
                    .help(limit.help)
                    .hide(true)
                    .value_name(match limit.unit {
                        Unit::Number => "N",
                        Unit::Bytes => "SIZE",
                        Unit::Time => "TIME",
                    })
                    .value_parser(|text: &str| limit.parse(text))
                    .default_value(default),
            )
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};

    use super::*;

    fn limits(words: &[&str]) -> Result<LimitOptions, clap::Error> {
        let command = LimitOptions::augment_args(Command::new("t").no_binary_name(true));
        LimitOptions::from_arg_matches(&command.try_get_matches_from(words)?)
    }

    #[test]
    fn defaults_are_those_that_ship_and_lie_within_their_ranges() {
        assert_eq!(limits(&[]).unwrap().checked(), Ok(ServeLimits::DEFAULT));
        let mut defaults = ServeLimits::DEFAULT;
        for limit in LIMITS {
            let value = (limit.field)(&mut defaults).value();
            assert_eq!(limit.parse(&limit.unit.write(value)), Ok(value), "{}", limit.name);
        }
    }

    /// Each row sets its own number and no other.
    #[test]
    fn every_limit_is_set_by_its_own_option() {
        for limit in LIMITS {
            let value = *limit.range.end();
            let words = format!("--{}={}", limit.name, limit.unit.write(value));
            let mut set = limits(&[&words]).unwrap().0;
            assert_eq!((limit.field)(&mut set).value(), value, "{}", limit.name);
            let mut defaults = ServeLimits::DEFAULT;
            (limit.field)(&mut set).set((limit.field)(&mut defaults).value());
            assert_eq!(set, ServeLimits::DEFAULT, "{}", limit.name);
        }
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        let refused = limits(&["--limit-first-token=2h"]).unwrap().checked();
        assert_eq!(refused, Err("--limit-first-token is more than --limit-total".to_owned()));
        assert!(limits(&["--limit-json-depth=1000"]).is_err());
        assert!(limits(&["--limit-idle=1x"]).is_err());
    }

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, milliseconds) in
            [("90", 90_000), ("90s", 90_000), ("1.5m", 90_000), ("500ms", 500), ("1h", HOUR)]
        {
            assert_eq!(parse_time(text), Ok(milliseconds));
        }
        for text in ["", "s", "-1s", "1 fortnight", "NaN"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }
}
