//! What a process holds in memory and has computed, as the kernel tells.

use serde::Serialize;

/// What a program took at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Peak {
    /// Resident while it served, mapped files included, which the system can drop.
    pub(super) resident_bytes: u64,
    /// Of it what is the program's own.
    pub(super) own_bytes: u64,
    /// Resident at any time since it started.
    pub(super) ever_bytes: u64,
}

impl Peak {
    /// Takes another look at it.
    pub(super) fn see(&mut self, now: Self) {
        self.resident_bytes = self.resident_bytes.max(now.resident_bytes);
        self.own_bytes = self.own_bytes.max(now.own_bytes);
        self.ever_bytes = self.ever_bytes.max(now.ever_bytes);
    }
}

/// Reads `/proc/PID/status`; what it does not tell is nothing.
pub(super) fn read(status: &str) -> Peak {
    let bytes = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kib.unwrap_or(0) * 1024
    };
    Peak { resident_bytes: bytes("VmRSS"), own_bytes: bytes("RssAnon"), ever_bytes: bytes("VmHWM") }
}

/// Hundredths of a second that a process has computed, from `/proc/PID/stat`.
pub(super) fn ticks(stat: &str) -> u64 {
    // The program's name may have blanks and ends with a bracket.
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields = rest.split_whitespace().skip(11).take(2);
    fields.filter_map(|field| field.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_are_those_of_all_looks() {
        let status = "Name:\tmotley\nVmHWM:\t     300 kB\nVmRSS:\t     200 kB\nRssAnon:\t  90 kB\n";
        let mut peak = read(status);
        let expected =
            Peak { resident_bytes: 200 * 1024, own_bytes: 90 * 1024, ever_bytes: 300 * 1024 };
        assert_eq!(peak, expected);
        peak.see(read("VmRSS:\t 250 kB\n"));
        assert_eq!(peak, Peak { resident_bytes: 250 * 1024, ..expected });
        assert_eq!(read(""), Peak::default(), "it has ended");
    }

    #[test]
    fn computing_is_counted_by_user_and_system() {
        assert_eq!(ticks("7 (a b) S 1 7 7 0 -1 4194560 3 0 0 0 250 31 0 0 20"), 281);
        assert_eq!(ticks(""), 0);
    }
}
