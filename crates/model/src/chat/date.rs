//! Dates as templates print them: `strftime` for the codes that templates use.

use std::fmt::Write as _;

/// A moment on the calendar and the clock, in the zone the caller chose.
///
/// This crate reads no clock: the caller says what time it is, so that renderings repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CivilTime {
    /// Year of the Gregorian calendar.
    pub year: i32,
    /// Month, 1 to 12.
    pub month: u8,
    /// Day of the month, 1 to 31.
    pub day: u8,
    /// Hour, 0 to 23.
    pub hour: u8,
    /// Minute, 0 to 59.
    pub minute: u8,
    /// Second, 0 to 60.
    pub second: u8,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const DAYS_BEFORE_MONTH: [u32; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];

impl CivilTime {
    /// Formats in the manner of C's `strftime` with English names.
    ///
    /// # Errors
    ///
    /// The first conversion code that is not known.
    pub(super) fn format(&self, format: &str) -> Result<String, char> {
        let mut text = String::new();
        let mut characters = format.chars();
        while let Some(next) = characters.next() {
            if next != '%' {
                text.push(next);
                continue;
            }
            let mut code = characters.next().unwrap_or('%');
            let unpadded = code == '-';
            if unpadded {
                code = characters.next().unwrap_or('-');
            }
            self.write_code(code, unpadded, &mut text)?;
        }
        Ok(text)
    }

    fn write_code(&self, code: char, unpadded: bool, text: &mut String) -> Result<(), char> {
        let hour_of_12 = (self.hour + 11) % 12 + 1;
        let (number, width) = match code {
            'd' => (u32::from(self.day), 2),
            'm' => (u32::from(self.month), 2),
            'y' => (self.year.rem_euclid(100).unsigned_abs(), 2),
            'H' => (u32::from(self.hour), 2),
            'I' => (u32::from(hour_of_12), 2),
            'M' => (u32::from(self.minute), 2),
            'S' => (u32::from(self.second), 2),
            'j' => (self.day_of_year(), 3),
            _ => return self.write_words(code, text),
        };
        let width = if unpadded { 0 } else { width };
        write!(text, "{number:0width$}").map_err(|_| code)
    }

    fn write_words(&self, code: char, text: &mut String) -> Result<(), char> {
        let month = MONTHS[usize::from(self.month.clamp(1, 12)) - 1];
        let weekday = WEEKDAYS[self.weekday()];
        match code {
            'B' => text.push_str(month),
            'b' | 'h' => text.push_str(&month[..3]),
            'A' => text.push_str(weekday),
            'a' => text.push_str(&weekday[..3]),
            'p' => text.push_str(if self.hour < 12 { "AM" } else { "PM" }),
            'e' => write!(text, "{:2}", self.day).map_err(|_| code)?,
            'Y' => write!(text, "{}", self.year).map_err(|_| code)?,
            'w' => write!(text, "{}", self.weekday()).map_err(|_| code)?,
            'F' => text.push_str(&self.format("%Y-%m-%d")?),
            'T' | 'X' => text.push_str(&self.format("%H:%M:%S")?),
            'R' => text.push_str(&self.format("%H:%M")?),
            'D' | 'x' => text.push_str(&self.format("%m/%d/%y")?),
            'c' => text.push_str(&self.format("%a %b %e %H:%M:%S %Y")?),
            'n' => text.push('\n'),
            't' => text.push('\t'),
            '%' => text.push('%'),
            unknown => return Err(unknown),
        }
        Ok(())
    }

    fn day_of_year(&self) -> u32 {
        let leap = self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0);
        let before = DAYS_BEFORE_MONTH[usize::from(self.month.clamp(1, 12)) - 1];
        before + u32::from(self.day) + u32::from(leap && self.month > 2)
    }

    /// Day of the week, Sunday being 0: days since a Sunday, counting leap days up to last year.
    fn weekday(&self) -> usize {
        let years = i64::from(self.year) - 1;
        let days = years * 365 + years.div_euclid(4) - years.div_euclid(100)
            + years.div_euclid(400)
            + i64::from(self.day_of_year());
        days.rem_euclid(7) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: CivilTime =
        CivilTime { year: 2025, month: 3, day: 4, hour: 0, minute: 6, second: 53 };

    #[test]
    fn formats_as_python_does() {
        // Right-hand sides are the output of CPython's strftime in the C locale.
        for (format, expected) in [
            ("%Y-%m-%d", "2025-03-04"),
            ("%d %b %Y", "04 Mar 2025"),
            ("%B %d, %Y", "March 04, 2025"),
            ("%A %a %w", "Tuesday Tue 2"),
            ("%I:%M:%S %p", "12:06:53 AM"),
            ("%j %y %e %-d %-m", "063 25  4 4 3"),
            ("%H%%%F %T", "00%2025-03-04 00:06:53"),
            ("%c|%x|%X", "Tue Mar  4 00:06:53 2025|03/04/25|00:06:53"),
        ] {
            assert_eq!(MOMENT.format(format).as_deref(), Ok(expected), "{format}");
        }
        assert_eq!(MOMENT.format("%Q"), Err('Q'));
    }

    #[test]
    fn weekdays_and_leap_years() {
        for (year, month, day, expected) in [
            (2000, 2, 29, "Tuesday 060"),
            (1900, 3, 1, "Thursday 060"),
            (2024, 12, 31, "Tuesday 366"),
            (1970, 1, 1, "Thursday 001"),
        ] {
            let date = CivilTime { year, month, day, ..MOMENT };
            assert_eq!(date.format("%A %j").as_deref(), Ok(expected));
        }
    }
}
