//! How much of a machine's memory a plan may count on, by each system's own figures (PLANNER 1.1).
//!
//! Everything here takes text as the system prints it, so that every rule is tested on every
//! system. `MemorySpec` states what is left after these discounts; nobody discounts again.

use motley_cluster::{Bytes, MemorySpec};

/// What of the available memory a plan may take: the rest is for what other programs will ask.
const AVAILABLE_SHARE: f64 = 0.8;

/// Files and kernel objects that can be dropped: half of them are in use again soon.
const DROPPABLE_SHARE: f64 = 0.5;

/// Linux, from the text of `/proc/meminfo`.
pub(crate) fn linux(meminfo: &str) -> Option<MemorySpec> {
    let of = |name| kilobytes(meminfo, name);
    Some(MemorySpec {
        ram_total_bytes: Bytes::new(of("MemTotal:")?),
        ram_available_bytes: share(of("MemAvailable:")?, AVAILABLE_SHARE),
        swap_available_bytes: Bytes::new(of("SwapFree:").unwrap_or(0)),
        swappable_bytes: Bytes::ZERO,
    })
}

/// Android, from the same text: anonymous memory of other programs that is not locked can move to
/// compressed swap.
#[cfg_attr(not(target_os = "android"), allow(dead_code, reason = "tested on every system"))]
pub(crate) fn android(meminfo: &str) -> Option<MemorySpec> {
    let of = |name| kilobytes(meminfo, name);
    let anonymous = of("Active(anon):")? + of("Inactive(anon):")?;
    let swappable = anonymous.saturating_sub(of("Mlocked:").unwrap_or(0));
    Some(MemorySpec { swappable_bytes: Bytes::new(swappable), ..linux(meminfo)? })
}

/// A control group with a limit, from its files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) limit_bytes: u64,
    pub(crate) used_bytes: u64,
    /// Files in the page cache, active or not.
    pub(crate) file_bytes: u64,
    /// Kernel objects that can be dropped.
    pub(crate) reclaimable_slab_bytes: u64,
    /// Swap that the group may still use, where it has a limit.
    pub(crate) swap_bytes: Option<u64>,
}

/// What a group leaves of the machine's memory.
pub(crate) fn within(machine: MemorySpec, group: &Group) -> MemorySpec {
    let droppable = share(group.file_bytes + group.reclaimable_slab_bytes, DROPPABLE_SHARE);
    let free = group.limit_bytes.saturating_sub(group.used_bytes);
    let available = Bytes::new(group.limit_bytes.min(free + droppable.count()));
    let total = machine.ram_total_bytes.min(Bytes::new(group.limit_bytes));
    let swap = group.swap_bytes.map_or(machine.swap_available_bytes, Bytes::new);
    MemorySpec {
        ram_total_bytes: total,
        ram_available_bytes: machine.ram_available_bytes.min(available).min(total),
        swap_available_bytes: machine.swap_available_bytes.min(swap),
        swappable_bytes: machine.swappable_bytes.min(total),
    }
}

/// macOS, from what `vm_stat` and `sysctl -n hw.memsize vm.swapusage` print. With memory that the
/// GPU shares, active pages are mostly needed; else half of them, and the compressed ones, give way.
#[cfg_attr(not(target_os = "macos"), allow(dead_code, reason = "tested on every system"))]
pub(crate) fn macos(vm_stat: &str, sysctl: &str, unified: bool) -> Option<MemorySpec> {
    let page: u64 =
        vm_stat.lines().next()?.split("page size of ").nth(1)?.split(' ').next()?.parse().ok()?;
    let pages = |name: &str| -> Option<f64> {
        let line = vm_stat.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().trim_end_matches('.').parse().ok()
    };
    let named = |name: &str| pages(name).unwrap_or(0.0);
    let idle = pages("Pages free:")? + named("Pages inactive:") + named("Pages purgeable:");
    let active = named("Pages active:");
    let available = if unified {
        idle + 0.1 * active
    } else {
        let compressed = named("Pages occupied by compressor:");
        idle + 0.5 * active + named("Pages speculative:") + compressed
    };
    let mut lines = sysctl.lines();
    let total: u64 = lines.next()?.trim().parse().ok()?;
    let bytes = |pages: f64| Bytes::new(((pages * page as f64) as u64).min(total));
    Some(MemorySpec {
        ram_total_bytes: Bytes::new(total),
        ram_available_bytes: bytes(available),
        swap_available_bytes: Bytes::new(lines.next().and_then(free_swap).unwrap_or(0)),
        swappable_bytes: bytes(named("Anonymous pages:")),
    })
}

/// The free part of a line such as `total = 2048.00M  used = 891.00M  free = 1157.00M  (encrypted)`.
fn free_swap(line: &str) -> Option<u64> {
    let megabytes = line.split("free = ").nth(1)?.split('M').next()?;
    Some((megabytes.trim().parse::<f64>().ok()? * 1_048_576.0) as u64)
}

/// The value of a line such as `MemAvailable:  123 kB`.
pub(super) fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn share(bytes: u64, share: f64) -> Bytes {
    Bytes::new((bytes as f64 * share) as u64)
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn check(spec: Option<MemorySpec>, expected: Expect) {
        let spec = spec.expect("the figures are complete");
        let mb = |bytes: Bytes| bytes.count() / 1_000_000;
        expected.assert_eq(&format!(
            "total {} available {} swap {} swappable {} MB",
            mb(spec.ram_total_bytes),
            mb(spec.ram_available_bytes),
            mb(spec.swap_available_bytes),
            mb(spec.swappable_bytes)
        ));
    }

    /// In the form of a Linux server with 24 GB.
    const SERVER: &str = "MemTotal:       24684280 kB\nMemFree:        17236140 kB\n\
        MemAvailable:   23943228 kB\nActive(anon):     520000 kB\nSwapFree:              0 kB\n";

    /// In the form of a phone with 8 GB and compressed swap.
    const PHONE: &str = "MemTotal:        7631984 kB\nMemFree:          182364 kB\n\
        MemAvailable:    3241880 kB\nActive(anon):     948132 kB\nInactive(anon):  1423668 kB\n\
        Mlocked:          131072 kB\nSwapTotal:       4194300 kB\nSwapFree:        2514420 kB\n";

    /// In the form of a laptop with 16 GB that its GPU shares.
    const LAPTOP: &str = "Mach Virtual Memory Statistics: (page size of 16384 bytes)\n\
        Pages free:                               12345.\n\
        Pages active:                            301234.\n\
        Pages inactive:                          298765.\n\
        Pages speculative:                         1234.\n\
        Pages wired down:                        141000.\n\
        Pages purgeable:                           9876.\n\
        Anonymous pages:                         345678.\n\
        Pages occupied by compressor:            223344.\n";

    const LAPTOP_SYSTEM: &str =
        "17179869184\ntotal = 2048.00M  used = 891.25M  free = 1156.75M  (encrypted)\n";

    #[test]
    fn linux_gives_a_share_of_what_it_calls_available() {
        check(linux(SERVER), expect!["total 25276 available 19614 swap 0 swappable 0 MB"]);
        assert_eq!(linux("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn android_adds_what_other_programs_can_give_up() {
        check(android(PHONE), expect!["total 7815 available 2655 swap 2574 swappable 2294 MB"]);
    }

    #[test]
    fn a_container_has_its_limit_less_what_stays_in_use() {
        let machine = linux(SERVER).unwrap();
        let group = Group {
            limit_bytes: 4_000_000_000,
            used_bytes: 2_500_000_000,
            file_bytes: 1_000_000_000,
            reclaimable_slab_bytes: 200_000_000,
            swap_bytes: Some(0),
        };
        check(
            Some(within(machine.clone(), &group)),
            expect!["total 4000 available 2100 swap 0 swappable 0 MB"],
        );
        // More than the machine has is no gain, nor is a group that is over its limit.
        let large = Group { limit_bytes: 1 << 60, ..group };
        assert_eq!(
            within(machine.clone(), &large).ram_available_bytes,
            machine.ram_available_bytes
        );
        let over = Group { used_bytes: 5_000_000_000, file_bytes: 0, ..group };
        check(
            Some(within(machine, &over)),
            expect!["total 4000 available 100 swap 0 swappable 0 MB"],
        );
    }

    #[test]
    fn macos_counts_active_pages_by_whether_the_gpu_shares_them() {
        check(
            macos(LAPTOP, LAPTOP_SYSTEM, true),
            expect!["total 17179 available 5752 swap 1212 swappable 5663 MB"],
        );
        check(
            macos(LAPTOP, LAPTOP_SYSTEM, false),
            expect!["total 17179 available 11406 swap 1212 swappable 5663 MB"],
        );
        assert_eq!(macos("", LAPTOP_SYSTEM, true), None);
    }
}
