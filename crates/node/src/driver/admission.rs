//! How many requests may be inside: decided at once, whatever the engine thread is doing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use motley_gateway::{QUEUE_REQUESTS, QUEUE_REQUESTS_PER_KEY};

use super::SubmitError;

/// How many requests may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueLimits {
    /// Of all callers.
    pub(crate) requests: usize,
    /// Of one caller who is told apart.
    pub(crate) requests_per_caller: usize,
}

/// Counts requests from their submission to their end.
#[derive(Debug)]
pub(super) struct Admission {
    slots: AtomicUsize,
    requests_max: AtomicUsize,
    requests_per_caller_max: AtomicUsize,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    requests: usize,
    by_caller: BTreeMap<u64, usize>,
}

impl Admission {
    /// For an engine that is not known yet.
    pub(super) fn new() -> Self {
        Self {
            slots: AtomicUsize::new(0),
            requests_max: AtomicUsize::new(QUEUE_REQUESTS as usize),
            requests_per_caller_max: AtomicUsize::new(QUEUE_REQUESTS_PER_KEY as usize),
            inside: Mutex::default(),
        }
    }

    /// Other limits than those that ship.
    pub(super) fn set_limits(&self, limits: QueueLimits) {
        self.requests_max.store(limits.requests, Ordering::Relaxed);
        self.requests_per_caller_max.store(limits.requests_per_caller, Ordering::Relaxed);
    }

    /// So many requests run at once.
    pub(super) fn set_slots(&self, slots: usize) {
        self.slots.store(slots, Ordering::Relaxed);
    }

    /// Requests inside now.
    pub(super) fn inside(&self) -> usize {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner).requests
    }

    /// Lets a request in. Callers who are told apart have a limit of their own.
    pub(super) fn enter(admission: &Arc<Self>, caller: Option<u64>) -> Result<Pass, SubmitError> {
        let slots = admission.slots.load(Ordering::Relaxed);
        let mut inside = admission.inside.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = inside.requests.saturating_sub(slots);
        if waiting >= admission.requests_max.load(Ordering::Relaxed) {
            return Err(SubmitError::Busy { waiting });
        }
        if let Some(caller) = caller {
            let own = inside.by_caller.entry(caller).or_default();
            let waiting = own.saturating_sub(slots);
            if waiting >= admission.requests_per_caller_max.load(Ordering::Relaxed) {
                return Err(SubmitError::CallerBusy { waiting });
            }
            *own += 1;
        }
        inside.requests += 1;
        Ok(Pass { admission: Arc::clone(admission), caller })
    }
}

/// A request's place; dropping it gives the place back.
#[derive(Debug)]
pub(super) struct Pass {
    admission: Arc<Admission>,
    caller: Option<u64>,
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut inside = self.admission.inside.lock().unwrap_or_else(PoisonError::into_inner);
        inside.requests -= 1;
        if let Some(caller) = self.caller
            && let Some(own) = inside.by_caller.get_mut(&caller)
        {
            *own -= 1;
            if *own == 0 {
                inside.by_caller.remove(&caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_and_all_together_have_limits_and_places_are_given_back() {
        let admission = Arc::new(Admission::new());
        admission.set_slots(2);
        let enter = |caller| Admission::enter(&admission, caller);
        let per_caller = QUEUE_REQUESTS_PER_KEY as usize + 2;
        let mut passes: Vec<Pass> = (0..per_caller).map(|_| enter(Some(1)).unwrap()).collect();
        assert!(matches!(enter(Some(1)), Err(SubmitError::CallerBusy { waiting: 16 })));
        assert!(enter(Some(2)).is_ok(), "another caller has room, and leaves at once");
        passes.extend((per_caller..QUEUE_REQUESTS as usize + 2).map(|_| enter(None).unwrap()));
        assert!(matches!(enter(None), Err(SubmitError::Busy { waiting: 512 })));
        assert!(matches!(enter(Some(3)), Err(SubmitError::Busy { .. })));
        passes.clear();
        assert_eq!(admission.inside(), 0);
        assert!(admission.inside.lock().unwrap().by_caller.is_empty());
    }

    #[test]
    fn other_limits_hold_from_then_on() {
        let admission = Arc::new(Admission::new());
        admission.set_limits(QueueLimits { requests: 2, requests_per_caller: 1 });
        let enter = |caller| Admission::enter(&admission, caller);
        let _first = enter(Some(1)).unwrap();
        assert!(matches!(enter(Some(1)), Err(SubmitError::CallerBusy { waiting: 1 })));
        let _second = enter(None).unwrap();
        assert!(matches!(enter(None), Err(SubmitError::Busy { waiting: 2 })));
    }
}
