//! A thread that watches how short memory is, and what it tells the engines of this process.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::pressure::PressureSource;
use super::yielding::{Holding, Wish, Yielding};

/// Between two readings.
const INTERVAL: Duration = Duration::from_millis(100);

/// Part of the available memory that is left to other programs, and its limits.
const RESERVE_PART: u64 = 10;
const RESERVE_BYTES_MIN: u64 = 32_000_000;
const RESERVE_BYTES_MAX: u64 = 1_000_000_000;

/// Memory to leave to other programs of what is available, by who gives it back to them.
pub(crate) fn reserve_bytes(available_bytes: u64) -> u64 {
    (available_bytes / RESERVE_PART).clamp(RESERVE_BYTES_MIN, RESERVE_BYTES_MAX)
}

/// Watches memory until it is dropped.
#[derive(Debug)]
pub(crate) struct PressureWatch {
    engines: Arc<Mutex<Vec<Weak<Share>>>>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl PressureWatch {
    /// Watches `source` on a thread, so that others always have `reserve_bytes`.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub(crate) fn start(
        mut source: impl PressureSource + 'static,
        reserve_bytes: u64,
    ) -> io::Result<Self> {
        let engines: Arc<Mutex<Vec<Weak<Share>>>> = Arc::default();
        let known = Arc::clone(&engines);
        let (stop, stopped) = channel();
        let watching = move || watch(&mut source, reserve_bytes, &known, &stopped);
        let thread = thread::Builder::new().name("memory".to_owned()).spawn(watching)?;
        Ok(Self { engines, stop: Some(stop), thread: Some(thread) })
    }

    /// A new engine's share; `wake` is called when it should look at its wish.
    pub(crate) fn engine(&self, wake: impl Fn() + Send + Sync + 'static) -> EngineShare {
        let share = Arc::new(Share { wake: Box::new(wake), ..Share::default() });
        let mut engines = self.engines.lock().unwrap_or_else(PoisonError::into_inner);
        engines.push(Arc::downgrade(&share));
        EngineShare(share)
    }
}

impl Drop for PressureWatch {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// An engine's side: what it can give, and what is asked of it.
#[derive(Debug)]
pub(crate) struct EngineShare(Arc<Share>);

impl EngineShare {
    /// What the engine is to give away.
    pub(crate) fn wish(&self) -> Wish {
        Wish {
            yield_bytes: self.0.asked_bytes.load(Ordering::Relaxed),
            slot_halvings: self.0.slot_halvings.load(Ordering::Relaxed),
        }
    }

    /// Tells what the engine has.
    pub(crate) fn tell(&self, holding: Holding) {
        self.0.yieldable_bytes.store(holding.yieldable_bytes, Ordering::Relaxed);
        self.0.yielded_bytes.store(holding.yielded_bytes, Ordering::Relaxed);
        self.0.mapped_bytes.store(holding.mapped_bytes, Ordering::Relaxed);
    }
}

struct Share {
    yieldable_bytes: AtomicU64,
    yielded_bytes: AtomicU64,
    mapped_bytes: AtomicU64,
    asked_bytes: AtomicU64,
    slot_halvings: AtomicU32,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Default for Share {
    fn default() -> Self {
        Self {
            yieldable_bytes: AtomicU64::new(0),
            yielded_bytes: AtomicU64::new(0),
            mapped_bytes: AtomicU64::new(0),
            asked_bytes: AtomicU64::new(0),
            slot_halvings: AtomicU32::new(0),
            wake: Box::new(|| ()),
        }
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Share").field("holding", &self.holding()).finish_non_exhaustive()
    }
}

impl Share {
    fn holding(&self) -> Holding {
        Holding {
            yieldable_bytes: self.yieldable_bytes.load(Ordering::Relaxed),
            yielded_bytes: self.yielded_bytes.load(Ordering::Relaxed),
            mapped_bytes: self.mapped_bytes.load(Ordering::Relaxed),
        }
    }

    fn ask(&self, wish: Wish) {
        let before = Wish {
            yield_bytes: self.asked_bytes.swap(wish.yield_bytes, Ordering::Relaxed),
            slot_halvings: self.slot_halvings.swap(wish.slot_halvings, Ordering::Relaxed),
        };
        if before != wish {
            (self.wake)();
        }
    }
}

fn watch(
    source: &mut impl PressureSource,
    reserve_bytes: u64,
    engines: &Mutex<Vec<Weak<Share>>>,
    stopped: &Receiver<()>,
) {
    let mut yielding = Yielding::new(reserve_bytes);
    let began = Instant::now();
    while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let shares: Vec<Arc<Share>> = {
            let mut engines = engines.lock().unwrap_or_else(PoisonError::into_inner);
            engines.retain(|share| share.strong_count() > 0);
            engines.iter().filter_map(Weak::upgrade).collect()
        };
        let holdings: Vec<Holding> = shares.iter().map(|share| share.holding()).collect();
        if holdings.iter().all(|holding| *holding == Holding::default()) {
            // Nothing is loaded yet; what loading takes was counted before.
            continue;
        }
        let Some(reading) = source.read() else { continue };
        let wish = yielding.look(&reading, &sum(&holdings), began.elapsed());
        for (share, part) in shares.iter().zip(divided(wish, &holdings)) {
            share.ask(part);
        }
    }
}

fn sum(holdings: &[Holding]) -> Holding {
    let total = |of: fn(&Holding) -> u64| holdings.iter().map(of).sum();
    Holding {
        yieldable_bytes: total(|holding| holding.yieldable_bytes),
        yielded_bytes: total(|holding| holding.yielded_bytes),
        mapped_bytes: total(|holding| holding.mapped_bytes),
    }
}

/// Each engine's part, by what it can give.
fn divided(wish: Wish, holdings: &[Holding]) -> Vec<Wish> {
    let total = sum(holdings).yieldable_bytes.max(1);
    let part = |holding: &Holding| {
        let part = u128::from(wish.yield_bytes) * u128::from(holding.yieldable_bytes);
        // Rounded up, so that the parts are never less than the whole.
        let bytes = u64::try_from(part.div_ceil(u128::from(total))).unwrap_or(u64::MAX);
        Wish { yield_bytes: bytes.min(holding.yieldable_bytes), ..wish }
    };
    holdings.iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::super::pressure::ShortMemory;
    use super::*;

    #[test]
    fn engines_are_woken_with_their_parts() {
        let watch = PressureWatch::start(ShortMemory, 40_000_000).unwrap();
        let (woken, wakes) = sync_channel(100);
        let engine = watch.engine(move || {
            let _ = woken.try_send(());
        });
        let holding = Holding { yieldable_bytes: 100_000_000, ..Holding::default() };
        engine.tell(holding);
        while engine.wish().yield_bytes == 0 {
            wakes.recv_timeout(Duration::from_secs(20)).expect("the watch looks soon");
        }
        assert!(engine.wish().yield_bytes >= 12_500_000, "{:?}", engine.wish());
        engine.tell(Holding { yielded_bytes: 100_000_000, ..holding });
        while engine.wish().slot_halvings == 0 {
            wakes.recv_timeout(Duration::from_secs(20)).expect("weights did not suffice");
        }
    }

    #[test]
    fn engines_give_by_what_they_have() {
        let holding = |yieldable_bytes| Holding { yieldable_bytes, ..Holding::default() };
        let wish = Wish { yield_bytes: 100, slot_halvings: 2 };
        let parts = divided(wish, &[holding(300), holding(0), holding(100)]);
        let bytes: Vec<u64> = parts.iter().map(|part| part.yield_bytes).collect();
        assert_eq!(bytes, [75, 0, 25]);
        assert!(parts.iter().all(|part| part.slot_halvings == 2));
        assert_eq!(divided(wish, &[holding(0)])[0].yield_bytes, 0);
    }

    #[test]
    fn others_keep_a_tenth_within_limits() {
        let reserves = [0, 1_600_000_000, 64_000_000_000].map(reserve_bytes);
        assert_eq!(reserves, [RESERVE_BYTES_MIN, 160_000_000, RESERVE_BYTES_MAX]);
    }
}
