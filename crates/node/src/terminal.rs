//! What people read: tables, byte counts, and progress that only a terminal sees.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::time::Duration;

use anyhow::Context as _;

use crate::failure::{Failure, Kind};

/// Text read from a pipe at most.
const STDIN_BYTES_MAX: usize = 16 << 20;

/// Writes a command's whole result to stdout.
///
/// # Errors
/// When nobody reads it.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot print")
}

/// Writes a JSON value to stdout, ending with a line break.
///
/// # Errors
/// When nobody reads it.
pub(crate) fn print_json(value: &serde_json::Value) -> anyhow::Result<()> {
    print(&format!("{value:#}\n"))
}

/// Columns of text, numbers to the right.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<S: Into<String>>(head: impl IntoIterator<Item = S>) -> Self {
        Self { rows: vec![head.into_iter().map(Into::into).collect()] }
    }

    pub(crate) fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The table as text. Columns that hold only numbers below their head stand right.
    pub(crate) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let numeric: Vec<bool> = (0..columns).map(|column| self.is_numeric(column)).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                let _ = match numeric[column] {
                    true => write!(line, "{cell:>width$}  "),
                    false => write!(line, "{cell:<width$}  "),
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    fn is_numeric(&self, column: usize) -> bool {
        let is_number = |cell: &String| {
            cell.is_empty() || cell.starts_with(|first: char| first.is_ascii_digit())
        };
        self.rows.iter().skip(1).filter_map(|row| row.get(column)).all(is_number)
    }
}

/// Bytes with a unit: three digits and the step of 1000 that fits.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    match unit {
        0 => format!("{count} B"),
        _ if value < 9.995 => format!("{value:.2} {}", UNITS[unit]),
        _ if value < 99.95 => format!("{value:.1} {}", UNITS[unit]),
        _ => format!("{value:.0} {}", UNITS[unit]),
    }
}

/// Reads bytes as people write them: `512M`, `4G`, `1.5GiB`, `800000`.
///
/// # Errors
/// When it is no number with a known unit, or more than 64 bits count.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[digits.len()..].to_ascii_lowercase();
    let factor: f64 = match unit.as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "t" | "tb" => 1e12,
        "kib" => 1024.0,
        "mib" => 1_048_576.0,
        "gib" => 1_073_741_824.0,
        "tib" => 1_099_511_627_776.0,
        _ => return Err(format!("'{unit}' is no unit of bytes; use B, k, M, G, T or KiB to TiB")),
    };
    let number: f64 = digits.trim().parse().map_err(|_| format!("'{text}' is no size"))?;
    let count = number * factor;
    if !(0.0..=9.0e18).contains(&count) {
        return Err(format!("'{text}' is no size"));
    }
    Ok(count as u64)
}

/// A time with three digits and the unit that fits.
pub(crate) fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds >= 100.0 {
        format!("{seconds:.0} s")
    } else if seconds >= 1.0 {
        format!("{seconds:.2} s")
    } else {
        format!("{:.1} ms", seconds * 1e3)
    }
}

/// A line on stderr that is replaced and at last removed; nothing where stderr is no terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    shown: bool,
}

impl Progress {
    pub(crate) fn start(text: &str) -> Self {
        let shown = io::stderr().is_terminal();
        if shown {
            let mut err = io::stderr().lock();
            let _ = write!(err, "\r{text}").and_then(|()| err.flush());
        }
        Self { shown }
    }

    /// Replaces the text.
    pub(crate) fn update(&self, text: &str) {
        if self.shown {
            let mut err = io::stderr().lock();
            let _ = write!(err, "\r{text}\x1b[K").and_then(|()| err.flush());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let mut err = io::stderr().lock();
            let _ = write!(err, "\r\x1b[K").and_then(|()| err.flush());
        }
    }
}

/// Shows a failure on stderr; its first word is red where colours are welcome.
pub(crate) fn complain(report: &str) {
    let mut err = io::stderr().lock();
    let shown = match report.split_once(' ') {
        Some((first, rest)) if colours() => format!("\x1b[1;31m{first}\x1b[0m {rest}"),
        _ => report.to_owned(),
    };
    // When stderr is closed there is nobody to tell.
    let _ = err.write_all(shown.as_bytes());
}

/// Tells something beside the result, on stderr.
pub(crate) fn note(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Everything that stdin has to give.
///
/// # Errors
/// When it is no UTF-8 text or longer than [`STDIN_BYTES_MAX`].
pub(crate) fn read_stdin() -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let most = STDIN_BYTES_MAX as u64 + 1;
    io::stdin().lock().take(most).read_to_end(&mut bytes).context("cannot read stdin")?;
    if bytes.len() > STDIN_BYTES_MAX {
        let error = anyhow::anyhow!("stdin has more than {STDIN_BYTES_MAX} bytes");
        return Err(Failure::new(Kind::Refused, error));
    }
    String::from_utf8(bytes).map_err(|error| {
        let place = error.utf8_error().valid_up_to();
        let error = anyhow::anyhow!("stdin is no UTF-8 text from byte {place} on");
        Failure::from(error).hint("convert it first, for example with iconv")
    })
}

/// Whether stderr may be coloured: a terminal that knows colours, and nobody said `NO_COLOR`.
fn colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    !refused && !dumb && io::stderr().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_three_digits() {
        for (count, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.00 kB"),
            (98_362_432, "98.4 MB"),
            (999_499, "999 kB"),
            (999_500, "1.00 MB"),
            (40_000_000_000, "40.0 GB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, count) in [
            ("800000", 800_000),
            ("512M", 512_000_000),
            ("1.5GiB", 1_610_612_736),
            ("4 gb", 4e9 as u64),
        ] {
            assert_eq!(parse_bytes(text), Ok(count));
        }
        for text in ["", "G", "-1G", "4X", "1e30T", "NaN"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_stand_right() {
        let mut table = Table::new(["name", "bytes"]);
        table.row(["a", "1.00 kB"]);
        table.row(["long", "10 B"]);
        assert_eq!(table.render(), "name    bytes\na     1.00 kB\nlong     10 B\n");
    }
}
