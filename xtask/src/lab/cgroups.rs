//! Limits of a device by control groups, of either version.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::description::Device;
use super::plan::Step;

/// Quotas are counted over this long: short, so that a small share is a slow processor rather than
/// a fast one with pauses, ...
const PERIOD_US: f64 = 10_000.0;
/// ... but no shorter than makes a quota of this, the least that the kernel takes.
const QUOTA_US_MIN: f64 = 1000.0;
const CONTROLLERS: [&str; 4] = ["blkio", "cpu", "freezer", "memory"];

/// What this machine has of control groups.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cgroups {
    /// Where each controller is mounted.
    V1(BTreeMap<String, PathBuf>),
    /// Where the one hierarchy is mounted.
    V2(PathBuf),
    Absent,
}

impl Cgroups {
    /// Reads what `/proc/mounts` says.
    pub(super) fn find(mounts: &str) -> Self {
        let mut first = BTreeMap::new();
        let mut second = None;
        for line in mounts.lines() {
            let mut words = line.split(' ').skip(1);
            let (Some(path), Some(kind), Some(options)) =
                (words.next(), words.next(), words.next())
            else {
                continue;
            };
            if kind == "cgroup2" {
                second.get_or_insert_with(|| PathBuf::from(path));
            } else if kind == "cgroup" {
                let options = options.split(',').filter(|option| CONTROLLERS.contains(option));
                first.extend(options.map(|option| (option.to_owned(), PathBuf::from(path))));
            }
        }
        match second {
            _ if first.contains_key("cpu") || first.contains_key("memory") => Self::V1(first),
            Some(path) => Self::V2(path),
            None => Self::Absent,
        }
    }

    /// The folders in which groups named `group` lie, one per hierarchy.
    pub(super) fn folders(&self, group: &str) -> Vec<PathBuf> {
        let mounts: Vec<&PathBuf> = match self {
            Self::V1(mounts) => mounts.values().collect(),
            Self::V2(mount) => vec![mount],
            Self::Absent => Vec::new(),
        };
        let mut folders: Vec<PathBuf> = mounts.iter().map(|mount| mount.join(group)).collect();
        folders.dedup();
        folders
    }

    /// What makes the group that holds those of the devices.
    pub(super) fn prepare(&self, group: &str) -> Vec<Step> {
        let mut steps: Vec<Step> = self.folders(group).into_iter().map(Step::Folder).collect();
        if let Self::V2(mount) = self {
            for folder in [mount.clone(), mount.join(group)] {
                for controller in ["+cpu", "+memory", "+io"] {
                    let file = folder.join("cgroup.subtree_control");
                    steps.push(Step::Limit(file, controller.to_owned()));
                }
            }
        }
        steps
    }

    /// What makes the group of a device and sets its limits; `disk` is the number of the disk that
    /// the lab reads from.
    pub(super) fn limit(&self, group: &str, device: &Device, disk: Option<&str>) -> Vec<Step> {
        let group = format!("{group}/{}", device.name);
        let mut steps: Vec<Step> = self.folders(&group).into_iter().map(Step::Folder).collect();
        // Whole processors are given as such.
        let shared = device.cpu_share.filter(|_| device.whole_processors().is_none());
        let (quota_us, period_us) = quota(shared.unwrap_or(1.0));
        let memory_bytes = device.memory_mib.map(|mib| (mib * 1024 * 1024).to_string());
        let disk_bytes = device.disk_read_mib_s.map(|mib| mib * 1024 * 1024);
        let mut set = |folder: Option<PathBuf>, file: &str, text: String| {
            if let Some(folder) = folder {
                steps.push(Step::Limit(folder.join(file), text));
            }
        };
        match self {
            Self::V1(mounts) => {
                let folder = |name: &str| mounts.get(name).map(|mount| mount.join(&group));
                if shared.is_some() {
                    set(folder("cpu"), "cpu.cfs_period_us", period_us.to_string());
                    set(folder("cpu"), "cpu.cfs_quota_us", quota_us.to_string());
                }
                if let Some(bytes) = memory_bytes {
                    set(folder("memory"), "memory.limit_in_bytes", bytes);
                }
                if let (Some(bytes), Some(disk)) = (disk_bytes, disk) {
                    let text = format!("{disk} {bytes}");
                    set(folder("blkio"), "blkio.throttle.read_bps_device", text);
                }
            }
            Self::V2(mount) => {
                let folder = || Some(mount.join(&group));
                if shared.is_some() {
                    set(folder(), "cpu.max", format!("{quota_us} {period_us}"));
                }
                if let Some(bytes) = memory_bytes {
                    set(folder(), "memory.max", bytes);
                    set(folder(), "memory.swap.max", "0".to_owned());
                }
                if let (Some(bytes), Some(disk)) = (disk_bytes, disk) {
                    set(folder(), "io.max", format!("{disk} rbps={bytes}"));
                }
            }
            Self::Absent => {}
        }
        steps
    }

    /// The file of a device that stops all its processes when `frozen` is written to it and lets
    /// them go on with `thawed`.
    pub(super) fn freezer(&self, group: &str, device: &str) -> Option<Freezer> {
        let below = Path::new(group).join(device);
        let (file, frozen, thawed) = match self {
            Self::V1(mounts) => {
                (mounts.get("freezer")?.join(below).join("freezer.state"), "FROZEN", "THAWED")
            }
            Self::V2(mount) => (mount.join(below).join("cgroup.freeze"), "1", "0"),
            Self::Absent => return None,
        };
        Some(Freezer { file, frozen, thawed })
    }
}

/// How a device's processes are stopped and let go on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Freezer {
    pub(super) file: PathBuf,
    pub(super) frozen: &'static str,
    pub(super) thawed: &'static str,
}

/// Microseconds of time per microseconds passed that make a share.
fn quota(share: f64) -> (u64, u64) {
    let period_us = PERIOD_US.max(QUOTA_US_MIN / share);
    ((share * period_us).round() as u64, period_us.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_tell_the_version() {
        let hybrid = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let mounts = [("cpu", "/sys/fs/cgroup/cpu,cpuacct"), ("memory", "/sys/fs/cgroup/memory")];
        let mounts = mounts.map(|(name, path)| (name.to_owned(), PathBuf::from(path)));
        assert_eq!(Cgroups::find(hybrid), Cgroups::V1(mounts.into()));
        let second = "cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n";
        assert_eq!(Cgroups::find(second), Cgroups::V2("/sys/fs/cgroup".into()));
        assert_eq!(Cgroups::find("proc /proc proc rw 0 0\n"), Cgroups::Absent);
    }

    #[test]
    fn quotas_stay_above_the_kernels_least() {
        assert_eq!(quota(0.5), (5000, 10_000));
        assert_eq!(quota(2.0), (20_000, 10_000));
        assert_eq!(quota(0.05), (1000, 20_000));
    }
}
