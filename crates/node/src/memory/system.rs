//! What the operating system says about memory.

use std::fs;
#[cfg(any(target_os = "linux", target_os = "android"))]
use std::path::{Path, PathBuf};

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos")))]
use motley_cluster::Bytes;
use motley_cluster::MemorySpec;

use super::rules;
#[cfg(any(target_os = "linux", target_os = "android"))]
use super::rules::Group;
use super::rules::kilobytes;

/// The most memory this process has had resident, if the system tells.
pub(crate) fn peak_resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    kilobytes(&status, "VmHWM:")
}

/// Memory that a new program can use: what the system calls available, or what the limits of the
/// control groups around this process leave, whichever is less.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn available_bytes() -> Option<u64> {
    available_within(&group_folders("memory"))
}

/// Memory that a new program in these control groups can use.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn available_within(groups: &[PathBuf]) -> Option<u64> {
    let machine =
        fs::read_to_string("/proc/meminfo").ok().and_then(|text| kilobytes(&text, "MemAvailable:"));
    let groups = groups.iter().filter_map(|folder| group_headroom(folder));
    machine.into_iter().chain(groups).min()
}

/// Memory that a new program can use.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn available_bytes() -> Option<u64> {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    Some(system.available_memory()).filter(|bytes| *bytes > 0)
}

/// What a plan may count on, by the rules of this system.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn spec() -> Option<MemorySpec> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let machine =
        if cfg!(target_os = "android") { rules::android(&text)? } else { rules::linux(&text)? };
    let groups = group_folders("memory").into_iter().filter_map(|folder| read_group(&folder));
    Some(groups.fold(machine, |left, group| rules::within(left, &group)))
}

/// What a plan may count on, by the rules of this system.
#[cfg(target_os = "macos")]
pub(crate) fn spec() -> Option<MemorySpec> {
    let printed = |program: &str, arguments: &[&str]| {
        let output = std::process::Command::new(program).args(arguments).output().ok()?;
        String::from_utf8(output.stdout).ok()
    };
    let vm_stat = printed("vm_stat", &[])?;
    let sysctl = printed("sysctl", &["-n", "hw.memsize", "vm.swapusage"])?;
    rules::macos(&vm_stat, &sysctl, cfg!(target_arch = "aarch64"))
}

/// What a plan may count on: what the system calls available.
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos")))]
pub(crate) fn spec() -> Option<MemorySpec> {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let total = system.total_memory();
    (total > 0).then(|| MemorySpec {
        ram_total_bytes: Bytes::new(total),
        ram_available_bytes: Bytes::new(system.available_memory().min(total)),
        swap_available_bytes: Bytes::new(system.free_swap()),
        swappable_bytes: Bytes::ZERO,
    })
}

/// Folders of the control groups that limit this process by a controller such as `memory`, each with
/// all above it.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn group_folders(controller: &str) -> Vec<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut folders = Vec::new();
    for mount in mounts.lines().filter_map(|line| Mount::parse(line, controller)) {
        let group = groups.lines().find_map(|line| mount.group_of(line, controller));
        let Some(inside) = group else { continue };
        // In a container the group's path may lie outside what is mounted; the mount's own root
        // is the group then.
        let inside = Path::new(inside).strip_prefix(mount.root).unwrap_or(Path::new(""));
        let leaf = mount.point.join(inside);
        folders.extend(
            leaf.ancestors()
                .take_while(|folder| folder.starts_with(&mount.point))
                .map(Path::to_owned),
        );
    }
    folders
}

/// A mounted hierarchy of control groups with some controller.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[derive(Debug, PartialEq, Eq)]
struct Mount<'m> {
    /// Which group is mounted.
    root: &'m str,
    point: PathBuf,
    unified: bool,
}

#[cfg(any(target_os = "linux", target_os = "android"))]
impl<'m> Mount<'m> {
    /// Reads a line of `/proc/self/mountinfo`: id, parent, device, root, point, options, optional
    /// fields, a dash, type, source, options of the file system.
    fn parse(line: &'m str, controller: &str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, point) = (left.next()?, left.next()?);
        let mut right = right.split(' ');
        let (kind, _, options) = (right.next()?, right.next()?, right.next()?);
        let unified = match kind {
            "cgroup2" => true,
            "cgroup" if options.split(',').any(|option| option == controller) => false,
            _ => return None,
        };
        Some(Self { root, point: point.into(), unified })
    }

    /// The path of the process's group, if a line of `/proc/self/cgroup` is about this hierarchy.
    fn group_of(&self, line: &'m str, controller: &str) -> Option<&'m str> {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let ours = if self.unified {
            controllers.is_empty()
        } else {
            controllers.split(',').any(|other| other == controller)
        };
        ours.then_some(path)
    }
}

/// What a group's limit leaves, if it has one. Files in the page cache count as free: they are
/// dropped before anything is refused.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn group_headroom(folder: &Path) -> Option<u64> {
    let group = read_group(folder)?;
    Some(group.limit_bytes.saturating_sub(group.used_bytes.saturating_sub(group.file_bytes)))
}

/// The figures of a group of either version, if it has a limit.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn read_group(folder: &Path) -> Option<Group> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let statistics = read("memory.stat").unwrap_or_default();
    let sum = |keys: &[&str]| -> u64 {
        let values = statistics.lines().filter_map(|line| {
            let (key, value) = line.split_once(' ')?;
            keys.contains(&key).then(|| value.trim().parse::<u64>().ok()).flatten()
        });
        values.sum()
    };
    if let Some(limit_bytes) = number("memory.max") {
        let swap = number("memory.swap.max").zip(number("memory.swap.current"));
        return Some(Group {
            limit_bytes,
            used_bytes: number("memory.current")?,
            file_bytes: sum(&["active_file", "inactive_file"]),
            reclaimable_slab_bytes: sum(&["slab_reclaimable"]),
            swap_bytes: swap.map(|(most, used)| most.saturating_sub(used)),
        });
    }
    let used_bytes = number("memory.usage_in_bytes")?;
    let limit_bytes = number("memory.limit_in_bytes")?;
    // The limit of both together; what it leaves beyond memory is swap.
    let with_swap =
        number("memory.memsw.limit_in_bytes").zip(number("memory.memsw.usage_in_bytes"));
    Some(Group {
        limit_bytes,
        used_bytes,
        file_bytes: sum(&["total_active_file", "total_inactive_file"]),
        // Version 1 tells no such part of the kernel's memory.
        reclaimable_slab_bytes: 0,
        swap_bytes: with_swap.map(|(most, used)| {
            let beyond = most.saturating_sub(limit_bytes);
            beyond.saturating_sub(used.saturating_sub(used_bytes))
        }),
    })
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use super::*;

    #[test]
    fn kilobyte_lines_are_read() {
        let text = "MemTotal:  100 kB\nMemAvailable:    7 kB\nVmHWM: x kB\n";
        assert_eq!(kilobytes(text, "MemAvailable:"), Some(7 * 1024));
        assert_eq!(kilobytes(text, "VmHWM:"), None);
        assert_eq!(kilobytes(text, "Swap:"), None);
    }

    #[test]
    fn both_kinds_of_control_groups_are_found() {
        let unified =
            "29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        let memory = "35 30 0:31 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory";
        let processors = "36 30 0:32 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct";
        let mount = Mount::parse(unified, "memory").unwrap();
        assert!(mount.unified);
        assert_eq!(mount.group_of("0::/user.slice/a", "memory"), Some("/user.slice/a"));
        assert_eq!(mount.group_of("5:memory:/docker/abc", "memory"), None);
        let mount = Mount::parse(memory, "memory").unwrap();
        assert_eq!((mount.root, mount.unified), ("/docker/abc", false));
        assert_eq!(mount.group_of("5:memory:/docker/abc", "memory"), Some("/docker/abc"));
        assert_eq!(Mount::parse(processors, "memory"), None);
        let mount = Mount::parse(processors, "cpu").unwrap();
        assert_eq!(mount.group_of("6:cpu,cpuacct:/docker/abc", "cpu"), Some("/docker/abc"));
        assert_eq!(mount.group_of("5:memory:/docker/abc", "cpu"), None);
    }

    #[test]
    fn a_limit_leaves_what_is_not_used_and_what_files_hold() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        assert_eq!(group_headroom(folder.path()), None);
        write("memory.limit_in_bytes", "1000\n");
        write("memory.usage_in_bytes", "700\n");
        write("memory.stat", "active_file 5\ntotal_active_file 100\ntotal_inactive_file 50\n");
        assert_eq!(group_headroom(folder.path()), Some(450));
        write("memory.max", "max\n");
        assert_eq!(group_headroom(folder.path()), Some(450));
        write("memory.max", "2000\n");
        write("memory.current", "1500\n");
        write("memory.stat", "anon 1\nactive_file 10\ninactive_file 20\n");
        assert_eq!(group_headroom(folder.path()), Some(530));
        write("memory.stat", "anon 1\nactive_file 10\ninactive_file 20\nslab_reclaimable 8\n");
        write("memory.swap.max", "100\n");
        write("memory.swap.current", "30\n");
        let group = read_group(folder.path()).unwrap();
        assert_eq!((group.file_bytes, group.reclaimable_slab_bytes), (30, 8));
        assert_eq!(group.swap_bytes, Some(70));
    }

    #[test]
    fn this_process_has_been_resident_and_there_is_memory() {
        assert!(peak_resident_bytes().unwrap() > 100_000);
        assert!(available_bytes().unwrap() > 1_000_000);
        let spec = spec().unwrap();
        assert!(spec.ram_available_bytes <= spec.ram_total_bytes);
        assert!(spec.ram_available_bytes.count() > 1_000_000);
    }
}
