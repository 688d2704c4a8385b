//! When memory is given to other programs, and when it is taken back: decisions alone.
//!
//! What others need is seen before they must wait for it: in how much is left, how fast that
//! shrinks, in how long programs wait for memory, and in the system's own word. Memory goes at
//! once and comes back after a calm while, later each time it was taken back too early.

use std::time::Duration;

/// What the system tells at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Reading {
    /// Memory that programs could still take before anything is refused.
    pub(crate) available_bytes: u64,
    /// Memory of this program's own that the system cannot drop.
    pub(crate) own_bytes: u64,
    /// Part of the time since the last reading in which some program waited for memory, where
    /// the system tells.
    pub(crate) stalled: Option<f64>,
    /// The system's word for it, where it has one.
    pub(crate) level: Level,
}

/// A system's word for how short memory is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    #[default]
    Normal,
    Warning,
    Critical,
}

/// What engines hold that could be given away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holding {
    /// Bytes that can be given away at most.
    pub(crate) yieldable_bytes: u64,
    /// Of them given away already.
    pub(crate) yielded_bytes: u64,
    /// Weights mapped from files: the system counts them as available, and they are needed.
    pub(crate) mapped_bytes: u64,
}

/// What is to be given away from now on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    /// Bytes of weights.
    pub(crate) yield_bytes: u64,
    /// How often the slots that new requests may have are halved.
    pub(crate) slot_halvings: u32,
}

/// Part of the time that programs may wait for memory before something is given away.
const STALLED_MAX: f64 = 0.06;

/// Waiting for memory is this device's concern only where so many reserves or less are left: a
/// group of programs may run into a limit of its own.
const RESERVES_NEAR: i128 = 4;

/// Memory that others take at this rate must last so long, until engines are between two steps.
const AHEAD: Duration = Duration::from_secs(2);

/// A fall is measured over at least so long, and a slow one over at most so long.
const FALL_WINDOW: Duration = Duration::from_millis(200);
const FALL_WINDOW_MAX: Duration = Duration::from_secs(1);

/// Between two steps for a cause that has no bytes.
const STEP_PAUSE: Duration = Duration::from_secs(1);

/// How long memory must be plentiful before some is taken back, at first and at most.
const CALM: Duration = Duration::from_secs(5);
const CALM_MAX: Duration = Duration::from_secs(12);

/// What is given away so soon after it was taken back was taken back too early.
const TOO_EARLY: Duration = Duration::from_secs(60);

/// Slots are halved at most so often.
const SLOT_HALVINGS_MAX: u32 = 8;

/// Parts of what can be given away: by a system's warning, and the least that is worth a step.
const PART_BY_WORD: u64 = 8;
const PART_MIN: u64 = 32;

/// Decides from readings what to give away.
#[derive(Clone, Debug)]
pub(crate) struct Yielding {
    /// Memory that is to be left to others at any time.
    reserve_bytes: u64,
    wish: Wish,
    /// Memory that others leave, some time ago and now: falls are theirs, not ours.
    left: Option<(Duration, i128)>,
    falling_bytes_per_s: f64,
    stepped: Option<Duration>,
    taken_back: Option<Duration>,
    calm_since: Option<Duration>,
    /// The least that was plentiful since then.
    spare_bytes: u64,
    calm: Duration,
}

impl Yielding {
    /// Leaves so much to others.
    pub(crate) fn new(reserve_bytes: u64) -> Self {
        Self {
            reserve_bytes,
            wish: Wish::default(),
            left: None,
            falling_bytes_per_s: 0.0,
            stepped: None,
            taken_back: None,
            calm_since: None,
            spare_bytes: 0,
            calm: CALM,
        }
    }

    /// Takes a reading and tells what is to be given away now.
    pub(crate) fn look(&mut self, reading: &Reading, holding: &Holding, now: Duration) -> Wish {
        self.watch_fall(reading, now);
        let reserve = i128::from(self.reserve_bytes);
        let available = i128::from(reading.available_bytes) - i128::from(holding.mapped_bytes);
        let soon = available - (self.falling_bytes_per_s * AHEAD.as_secs_f64()) as i128;
        let stalled = reading.stalled.is_some_and(|part| part >= STALLED_MAX)
            && available < RESERVES_NEAR * reserve;
        let short = soon < reserve / 2;
        if short {
            self.step(holding, u64::try_from(reserve - soon).unwrap_or(0), now);
        }
        if (stalled || reading.level > Level::Normal) && self.may_step_by_word(now) {
            let parts = if reading.level == Level::Critical { 2 } else { 1 };
            self.step(holding, (holding.yieldable_bytes / PART_BY_WORD).max(1) * parts, now);
        }
        if short || stalled || reading.level > Level::Normal || available < reserve {
            self.calm_since = None;
        } else {
            self.relax(holding, u64::try_from(available - reserve).unwrap_or(0), now);
        }
        self.wish
    }

    /// Memory falls where others take it: what this program takes or gives does not count.
    fn watch_fall(&mut self, reading: &Reading, now: Duration) {
        let left = i128::from(reading.available_bytes) + i128::from(reading.own_bytes);
        let (since, before) = *self.left.get_or_insert((now, left));
        let passed = now.saturating_sub(since);
        if passed >= FALL_WINDOW {
            let fallen = before - left;
            // What is always in motion is no fall.
            let is_fall = fallen > i128::from(self.reserve_bytes / 8);
            if is_fall {
                self.falling_bytes_per_s = fallen as f64 / passed.as_secs_f64();
                self.left = Some((now, left));
            } else if passed >= FALL_WINDOW_MAX || fallen < 0 {
                self.falling_bytes_per_s = 0.0;
                self.left = Some((now, left));
            }
        }
    }

    fn may_step_by_word(&self, now: Duration) -> bool {
        self.stepped.is_none_or(|at| now >= at + STEP_PAUSE)
    }

    /// Gives `bytes` away beyond what is given away already; what was asked for and has not
    /// happened yet is part of it.
    fn step(&mut self, holding: &Holding, bytes: u64, now: Duration) {
        let bytes = bytes.max(holding.yieldable_bytes / PART_MIN);
        let wanted = holding.yielded_bytes.saturating_add(bytes);
        let most = holding.yieldable_bytes;
        if wanted.min(most) > self.wish.yield_bytes {
            self.wish.yield_bytes = wanted.min(most);
            if self.taken_back.take().is_some_and(|at| now < at + TOO_EARLY) {
                self.calm = (self.calm * 2).min(CALM_MAX);
            }
            self.stepped = Some(now);
        } else if holding.yielded_bytes >= most && self.may_step_by_word(now) {
            // All weights are given away, and it does not suffice.
            self.wish.slot_halvings = (self.wish.slot_halvings + 1).min(SLOT_HALVINGS_MAX);
            self.stepped = Some(now);
        }
    }

    /// Takes back what is plentiful after a calm while: slots first, which cost nothing yet.
    fn relax(&mut self, holding: &Holding, spare_bytes: u64, now: Duration) {
        if self.calm_since.is_none() {
            self.spare_bytes = spare_bytes;
        }
        self.spare_bytes = self.spare_bytes.min(spare_bytes);
        let since = *self.calm_since.get_or_insert(now);
        if self.stepped.is_none_or(|at| now >= at + TOO_EARLY) {
            self.calm = CALM;
        }
        if now < since + self.calm {
            return;
        }
        // What was needed a moment ago is not plentiful yet: the next while begins.
        self.calm_since = None;
        if self.wish.slot_halvings > 0 {
            self.wish.slot_halvings = 0;
            return;
        }
        let least = (holding.yieldable_bytes / PART_MIN).min(self.wish.yield_bytes);
        let back = self.spare_bytes.min(self.wish.yield_bytes);
        if back > 0 && back >= least {
            self.wish.yield_bytes -= back;
            self.taken_back = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    /// A device in virtual time: an engine that follows at its next step, and others.
    struct Device {
        yielding: Yielding,
        total: u64,
        others: u64,
        engine_full: u64,
        yieldable: u64,
        yielded: u64,
        now_ms: u64,
        /// The engine looks so often.
        step_ms: u64,
        least_left: u64,
        wish: Wish,
    }

    impl Device {
        /// 1,000 MB, of which an engine has 900 and can give 700 away; 64 MB are for others.
        fn new() -> Self {
            Self {
                yielding: Yielding::new(64 * MB),
                total: 1000 * MB,
                others: 0,
                engine_full: 900 * MB,
                yieldable: 700 * MB,
                yielded: 0,
                now_ms: 0,
                step_ms: 300,
                least_left: u64::MAX,
                wish: Wish::default(),
            }
        }

        fn run(&mut self, ms: u64, others: impl Fn(u64) -> u64) {
            let begin = self.now_ms;
            while self.now_ms < begin + ms {
                self.now_ms += 100;
                self.others = others(self.now_ms - begin);
                if self.now_ms.is_multiple_of(self.step_ms) {
                    self.yielded = self.wish.yield_bytes;
                }
                self.look(Level::Normal, None);
            }
        }

        fn look(&mut self, level: Level, stalled: Option<f64>) {
            let own_bytes = self.engine_full - self.yielded;
            let available_bytes = self.total.saturating_sub(self.others + own_bytes);
            self.least_left = self.least_left.min(available_bytes);
            let reading = Reading { available_bytes, own_bytes, stalled, level };
            let holding = Holding {
                yieldable_bytes: self.yieldable,
                yielded_bytes: self.yielded,
                mapped_bytes: 0,
            };
            let now = Duration::from_millis(self.now_ms);
            self.wish = self.yielding.look(&reading, &holding, now);
        }

        fn yielded_mb(&self) -> u64 {
            self.yielded / MB
        }
    }

    #[test]
    fn a_program_that_takes_memory_gets_it_in_time_and_it_comes_back() {
        let mut device = Device::new();
        device.run(3000, |_| 0);
        assert_eq!(device.wish, Wish::default(), "nothing happens where nothing is wanted");
        // 150 MB per second up to 500.
        device.run(6000, |ms| (ms * 150 * MB / 1000).min(500 * MB));
        assert!(device.least_left > 0, "nobody had to wait");
        assert!(device.yielded_mb() >= 464, "{}", device.yielded_mb());
        assert!(device.yielded_mb() <= 700, "{}", device.yielded_mb());
        let before = device.yielded;
        device.run(20_000, |_| 500 * MB);
        assert_eq!(device.wish.slot_halvings, 0);
        assert!(device.yielded.abs_diff(before) <= 350 * MB, "it stays about so");
        device.run(30_000, |_| 0);
        assert_eq!(device.yielded_mb(), 0, "all is back within 30 s");
    }

    #[test]
    fn small_changes_do_not_matter_and_need_no_step() {
        let mut device = Device::new();
        device.run(60_000, |ms| (ms / 100 % 7) * MB);
        assert_eq!(device.yielded, 0);
    }

    #[test]
    fn what_has_not_happened_yet_is_not_asked_for_twice() {
        let mut device = Device::new();
        device.step_ms = 5000;
        device.others = 80 * MB;
        for _ in 0..9 {
            device.now_ms += 100;
            device.look(Level::Normal, None);
        }
        // 44 MB short of the reserve, and the first look saw no fall.
        assert_eq!(device.wish.yield_bytes, 44 * MB);
    }

    #[test]
    fn slots_go_when_weights_do_not_suffice_and_come_back_first() {
        let mut device = Device::new();
        device.run(9000, |ms| (ms * 200 * MB / 1000).min(790 * MB));
        assert_eq!(device.yielded_mb(), 700);
        assert!(device.wish.slot_halvings > 0);
        device.run(6000, |_| 300 * MB);
        assert_eq!(device.wish.slot_halvings, 0);
    }

    #[test]
    fn waiting_and_the_systems_word_count_where_memory_is_near_its_end() {
        let mut device = Device::new();
        for _ in 0..30 {
            device.now_ms += 100;
            device.look(Level::Normal, Some(0.2));
        }
        assert!(device.wish.yield_bytes > 0, "100 MB are near the reserve of 64");
        let mut device = Device::new();
        device.total *= 2;
        device.look(Level::Normal, Some(0.2));
        assert_eq!(device.wish.yield_bytes, 0, "others wait for something else");
        device.now_ms += 1000;
        device.look(Level::Critical, None);
        assert_eq!(device.wish.yield_bytes, 700 * MB / 8 * 2);
    }

    #[test]
    fn mapped_weights_are_not_left_to_others() {
        let mut yielding = Yielding::new(64 * MB);
        let reading = Reading {
            available_bytes: 500 * MB,
            own_bytes: 100 * MB,
            stalled: None,
            level: Level::Normal,
        };
        let holding =
            Holding { yieldable_bytes: 400 * MB, yielded_bytes: 0, mapped_bytes: 480 * MB };
        let wish = yielding.look(&reading, &holding, Duration::ZERO);
        assert_eq!(wish.yield_bytes, 44 * MB);
    }

    #[test]
    fn who_takes_back_too_early_waits_longer_the_next_time() {
        let mut device = Device::new();
        let wave = |ms: u64| if ms % 16_000 < 8000 { 400 * MB } else { 0 };
        let mut changes = 0;
        let mut before = Wish::default();
        for _ in 0..1600 {
            let at = device.now_ms;
            device.run(100, |ms| wave(at + ms));
            changes += u32::from((device.wish.yield_bytes == 0) != (before.yield_bytes == 0));
            before = device.wish;
        }
        assert!(changes <= 4, "{changes} changes in ten waves");
    }
}
