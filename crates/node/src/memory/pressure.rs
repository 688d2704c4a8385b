//! Readings of how short memory is: what Linux tells of stalls and control groups, the pressure
//! level of macOS, and what is available everywhere.

use std::time::Instant;

#[cfg(any(target_os = "linux", target_os = "android"))]
use std::fs;
#[cfg(any(target_os = "linux", target_os = "android"))]
use std::path::{Path, PathBuf};
#[cfg(not(any(target_os = "linux", target_os = "android")))]
use std::time::Duration;

use super::yielding::{Level, Reading};

/// Where readings come from.
pub(crate) trait PressureSource: Send {
    /// How it is now; nothing if the system does not tell.
    fn read(&mut self) -> Option<Reading>;
}

/// A system where memory is short from the first reading on, for tests.
#[cfg(test)]
pub(crate) struct ShortMemory;

#[cfg(test)]
impl PressureSource for ShortMemory {
    fn read(&mut self) -> Option<Reading> {
        let level = Level::Critical;
        Some(Reading { available_bytes: 0, own_bytes: 1_000_000_000, stalled: None, level })
    }
}

/// The system that this process runs on.
#[derive(Debug)]
pub(crate) struct SystemPressure {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    groups: Vec<PathBuf>,
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    system: sysinfo::System,
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    level: (Option<Instant>, Level),
    #[cfg(any(target_os = "linux", target_os = "android"))]
    stalled: Option<(Instant, Vec<u64>)>,
}

#[cfg(any(target_os = "linux", target_os = "android"))]
impl SystemPressure {
    /// Finds the control groups around this process.
    pub(crate) fn new() -> Self {
        Self { groups: super::system::group_folders("memory"), stalled: None }
    }

    /// Part of the time since the last call in which some program waited for memory: on the whole
    /// machine, or in the group that waited most.
    fn stalled_part(&mut self) -> Option<f64> {
        let machine = Path::new("/proc/pressure/memory").to_owned();
        let groups = self.groups.iter().map(|folder| folder.join("memory.pressure"));
        let totals: Vec<u64> =
            [machine].into_iter().chain(groups).map(|path| total(&path)).collect();
        let now = Instant::now();
        let (since, before) = self.stalled.replace((now, totals.clone()))?;
        let passed_us = now.duration_since(since).as_micros() as f64;
        let longest = totals.iter().zip(&before).map(|(now, before)| now.saturating_sub(*before));
        longest.max().filter(|_| passed_us > 0.0).map(|us| us as f64 / passed_us)
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
impl PressureSource for SystemPressure {
    fn read(&mut self) -> Option<Reading> {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Some(Reading {
            available_bytes: super::system::available_within(&self.groups)?,
            own_bytes: own_bytes(&status).unwrap_or(0),
            stalled: self.stalled_part(),
            level: Level::Normal,
        })
    }
}

/// Microseconds of waiting in a file of stalls; 0 where there is none, as in groups of version 1.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn total(path: &Path) -> u64 {
    fs::read_to_string(path).ok().and_then(|text| stalled_us(&text)).unwrap_or(0)
}

/// How often macOS is asked, which takes a process.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const LEVEL_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(not(any(target_os = "linux", target_os = "android")))]
impl SystemPressure {
    /// For this process.
    pub(crate) fn new() -> Self {
        Self { system: sysinfo::System::new(), level: (None, Level::Normal) }
    }

    fn level(&mut self) -> Level {
        let now = Instant::now();
        if cfg!(target_os = "macos") && self.level.0.is_none_or(|at| now >= at + LEVEL_INTERVAL) {
            let arguments = ["-n", "kern.memorystatus_vm_pressure_level"];
            let output = std::process::Command::new("sysctl").args(arguments).output();
            let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
            let level = text.ok().and_then(|text| macos_level(&text)).unwrap_or_default();
            self.level = (Some(now), level);
        }
        self.level.1
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
impl PressureSource for SystemPressure {
    fn read(&mut self) -> Option<Reading> {
        self.system.refresh_memory();
        let own_bytes = sysinfo::get_current_pid().ok().and_then(|pid| {
            self.system.refresh_processes(sysinfo::ProcessesToUpdate::Some(&[pid]), false);
            Some(self.system.process(pid)?.memory())
        });
        Some(Reading {
            available_bytes: Some(self.system.available_memory()).filter(|bytes| *bytes > 0)?,
            own_bytes: own_bytes.unwrap_or(0),
            stalled: None,
            level: self.level(),
        })
    }
}

/// Memory of a process that cannot be dropped, from the text of `/proc/self/status`.
#[cfg_attr(
    not(any(target_os = "linux", target_os = "android")),
    allow(dead_code, reason = "tested on every system")
)]
fn own_bytes(status: &str) -> Option<u64> {
    let of = |name| super::rules::kilobytes(status, name);
    of("RssAnon:").or_else(|| of("VmRSS:"))
}

/// The microseconds in which some program waited, from a text such as that of
/// `/proc/pressure/memory`.
#[cfg_attr(
    not(any(target_os = "linux", target_os = "android")),
    allow(dead_code, reason = "tested on every system")
)]
fn stalled_us(text: &str) -> Option<u64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split(' ').find_map(|field| field.strip_prefix("total="))?.parse().ok()
}

/// The level that `sysctl -n kern.memorystatus_vm_pressure_level` prints: 1, 2 or 4.
#[cfg_attr(not(target_os = "macos"), allow(dead_code, reason = "tested on every system"))]
fn macos_level(text: &str) -> Option<Level> {
    match text.trim() {
        "1" => Some(Level::Normal),
        "2" => Some(Level::Warning),
        "4" => Some(Level::Critical),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalls_are_read_as_linux_writes_them() {
        let text = "some avg10=0.12 avg60=0.05 avg300=0.01 total=5608666\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=4249153\n";
        assert_eq!(stalled_us(text), Some(5_608_666));
        assert_eq!(stalled_us("full avg10=0.00 total=1\n"), None);
    }

    #[test]
    fn a_process_owns_what_is_not_a_files() {
        let new = "VmRSS:\t  300 kB\nRssAnon:\t  100 kB\nRssFile:\t  200 kB\n";
        assert_eq!(own_bytes(new), Some(102_400));
        assert_eq!(own_bytes("VmRSS:\t  300 kB\n"), Some(307_200));
    }

    #[test]
    fn macos_says_how_short_memory_is_by_a_number() {
        let levels = ["1\n", "2\n", "4\n", "", "3\n"].map(macos_level);
        let normal = Some(Level::Normal);
        assert_eq!(levels, [normal, Some(Level::Warning), Some(Level::Critical), None, None]);
        assert!(Level::Critical > Level::Warning);
    }

    #[test]
    fn this_system_tells_what_is_left_and_what_this_process_has() {
        let mut source = SystemPressure::new();
        let first = source.read().unwrap();
        assert!(first.available_bytes > 1_000_000 && first.own_bytes > 100_000, "{first:?}");
        let second = source.read().unwrap();
        assert!(second.stalled.is_none_or(|part| part >= 0.0), "{second:?}");
    }
}
