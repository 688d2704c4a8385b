//! The time by which certificates and invitations are judged.
//!
//! Boards without a clock battery start in 1970, and others in any year. A cluster must work with
//! them, so a clock is believed only between the release of this program and ten years later; any
//! other reading counts as the moment of the release. Certificates are issued for ten years from
//! the issuer's time read this way, so that within these bounds no clock, however wrong, ends
//! one that was issued by this release. What a wrong clock can do is let an old certificate pass,
//! and who may speak is decided by the member list, not by dates.

use std::time::{Duration, SystemTime};

/// 2026-11-30, 00:00 UTC. It may be raised with a release, never lowered.
pub(crate) const RELEASED_UNIX_S: u64 = 1_795_996_800;

/// How far a clock may be ahead of the release and still be believed. Ten years of 365.25 days.
pub(crate) const BELIEVED_S: u64 = 10 * 31_557_600;

/// Seconds since 1970 for a local clock's reading, or those of the release if the reading cannot be
/// right.
pub(crate) fn trusted_unix_s(local: SystemTime) -> u64 {
    let since = local.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d: Duration| d.as_secs());
    let believed = RELEASED_UNIX_S..=RELEASED_UNIX_S + BELIEVED_S;
    if believed.contains(&since) { since } else { RELEASED_UNIX_S }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_of_1970_and_2100_count_as_the_release() {
        let at = |unix_s: u64| trusted_unix_s(SystemTime::UNIX_EPOCH + Duration::from_secs(unix_s));
        assert_eq!(at(0), RELEASED_UNIX_S);
        assert_eq!(at(4_102_444_800), RELEASED_UNIX_S);
        assert_eq!(at(RELEASED_UNIX_S - 1), RELEASED_UNIX_S);
        assert_eq!(at(RELEASED_UNIX_S + 86_400), RELEASED_UNIX_S + 86_400);
        assert_eq!(
            trusted_unix_s(SystemTime::UNIX_EPOCH - Duration::from_secs(9)),
            RELEASED_UNIX_S
        );
    }
}
