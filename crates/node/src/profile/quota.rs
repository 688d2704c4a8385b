//! How much of the processors the system lets this process use.

use motley_cluster::{CpuQuota, Seconds};
use serde::{Deserialize, Serialize};

/// A quota of a control group: so much time of processors in each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProcessorTime {
    quota_us: u64,
    period_us: u64,
}

impl ProcessorTime {
    /// The quota that binds this process: of its own control group, or of one around it.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(super) fn of_this_process() -> Option<Self> {
        let groups = crate::memory::group_folders("cpu");
        tightest(groups.iter().filter_map(|folder| {
            let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
            match read("cpu.max") {
                Some(text) => unified(&text),
                None => divided(&read("cpu.cfs_quota_us")?, &read("cpu.cfs_period_us")?),
            }
        }))
    }

    /// Other systems have none.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(super) fn of_this_process() -> Option<Self> {
        None
    }

    /// What it leaves to so many threads that compute at the same time; nothing where it suffices
    /// for all of them.
    pub(super) fn for_threads(self, threads: u32) -> Option<CpuQuota> {
        let seconds = |us: f64| Seconds::new(us / 1e6).ok();
        let run_us = self.quota_us as f64 / f64::from(threads.max(1));
        let period_us = self.period_us as f64;
        let quota = CpuQuota { run_s: seconds(run_us)?, period_s: seconds(period_us)? };
        (run_us < period_us).then_some(quota)
    }
}

/// The one that lets the least run.
#[cfg_attr(
    not(any(target_os = "linux", target_os = "android")),
    allow(dead_code, reason = "tested on every system")
)]
fn tightest(quotas: impl Iterator<Item = ProcessorTime>) -> Option<ProcessorTime> {
    let part =
        |a: &ProcessorTime, b: &ProcessorTime| u128::from(a.quota_us) * u128::from(b.period_us);
    quotas.min_by(|a, b| part(a, b).cmp(&part(b, a)))
}

/// Control groups of the second version: quota, or `max`, and period.
#[cfg_attr(
    not(any(target_os = "linux", target_os = "android")),
    allow(dead_code, reason = "tested on every system")
)]
fn unified(text: &str) -> Option<ProcessorTime> {
    let (quota, period) = text.trim().split_once(' ')?;
    divided(quota, period)
}

/// Those of the first: a quota of -1 is none.
#[cfg_attr(
    not(any(target_os = "linux", target_os = "android")),
    allow(dead_code, reason = "tested on every system")
)]
fn divided(quota: &str, period: &str) -> Option<ProcessorTime> {
    let number =
        |text: &str| text.trim().parse().ok().filter(|us| (1..=10_000_000_000).contains(us));
    Some(ProcessorTime { quota_us: number(quota)?, period_us: number(period)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_tell_quotas() {
        let half = ProcessorTime { quota_us: 50_000, period_us: 100_000 };
        assert_eq!(unified("50000 100000\n"), Some(half));
        assert_eq!(unified("max 100000\n"), None);
        assert_eq!(divided("50000\n", "100000\n"), Some(half));
        assert_eq!(divided("-1\n", "100000\n"), None);
        let third = ProcessorTime { quota_us: 3000, period_us: 10_000 };
        assert_eq!(tightest([half, third, half].into_iter()), Some(third));
        assert_eq!(tightest([].into_iter()), None);
    }

    #[test]
    fn threads_share_a_quota() {
        let quota = |threads| {
            let time = ProcessorTime { quota_us: 150_000, period_us: 100_000 };
            time.for_threads(threads).map(|quota| (quota.run_s.value(), quota.period_s.value()))
        };
        assert_eq!(quota(1), None, "one thread has a whole processor");
        assert_eq!(quota(2), Some((0.075, 0.1)));
        assert_eq!(quota(3), Some((0.05, 0.1)));
    }
}
