//! Survives that a mapped file becomes shorter.
//!
//! Reading a page of a map that its file no longer has ends a process by SIGBUS, on whichever
//! thread computes. Here the signal's handler puts zeros where the file was, and notes it, so that
//! the reader goes on to a result that its caller then knows to be worthless.

#[cfg(unix)]
pub(crate) use unix::Guard;

/// Without effect on systems that refuse to truncate a mapped file.
#[cfg(not(unix))]
#[derive(Debug)]
pub(crate) struct Guard;

#[cfg(not(unix))]
impl Guard {
    pub(crate) fn new(_bytes: &[u8]) -> Self {
        Self
    }

    pub(crate) fn was_hit(&self) -> bool {
        false
    }
}

#[cfg(unix)]
mod unix {
    use std::cell::UnsafeCell;
    use std::mem::MaybeUninit;
    use std::sync::Once;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    /// Guarded ranges at a time; the maps of one model are its parts. Further ones are unguarded.
    const PLACES: usize = 256;

    /// A range of addresses that the handler may replace; free where `start` is 0.
    struct Place {
        start: AtomicUsize,
        end: AtomicUsize,
        hit: AtomicBool,
    }

    static GUARDED: [Place; PLACES] = [const {
        Place { start: AtomicUsize::new(0), end: AtomicUsize::new(0), hit: AtomicBool::new(false) }
    }; PLACES];
    static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);
    static INSTALLED: Once = Once::new();
    static BEFORE: Before = Before(UnsafeCell::new(MaybeUninit::zeroed()));

    /// What the process did on SIGBUS before; written once, before the handler can run.
    struct Before(UnsafeCell<MaybeUninit<libc::sigaction>>);

    // SAFETY: written under `INSTALLED` before any reader exists, read-only afterwards.
    unsafe impl Sync for Before {}

    /// Guards one map as long as it lives; it must be dropped before the map is.
    #[derive(Debug)]
    pub(crate) struct Guard(Option<usize>);

    impl Guard {
        pub(crate) fn new(bytes: &[u8]) -> Self {
            if bytes.is_empty() {
                return Self(None);
            }
            INSTALLED.call_once(install);
            let range = bytes.as_ptr_range();
            let free = GUARDED.iter().position(|place| {
                // An end of 1 reserves the place while no address can lie in it.
                place.end.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            });
            if let Some(index) = free {
                let place = &GUARDED[index];
                place.hit.store(false, Ordering::Relaxed);
                place.start.store(range.start.addr(), Ordering::Relaxed);
                place.end.store(range.end.addr(), Ordering::Release);
            }
            Self(free)
        }

        /// Whether bytes were missing when they were read, ever since the guard was made.
        pub(crate) fn was_hit(&self) -> bool {
            self.0.is_some_and(|index| GUARDED[index].hit.load(Ordering::Acquire))
        }
    }

    impl Drop for Guard {
        fn drop(&mut self) {
            if let Some(index) = self.0 {
                GUARDED[index].end.store(0, Ordering::Release);
            }
        }
    }

    fn install() {
        // SAFETY: the structures are plain data; the handler below keeps to functions that are
        // safe in a signal handler, and hands every other fault to what was installed before.
        unsafe {
            let page = usize::try_from(libc::sysconf(libc::_SC_PAGESIZE)).unwrap_or(4096);
            PAGE_BYTES.store(page, Ordering::Relaxed);
            libc::sigaction(libc::SIGBUS, std::ptr::null(), (*BEFORE.0.get()).as_mut_ptr());
            let mut action: libc::sigaction = std::mem::zeroed();
            let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = handle;
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
        }
    }

    extern "C" fn handle(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the system passes a valid structure.
        let address = unsafe { (*info).si_addr() }.addr();
        if !replace_by_zeros(address) {
            // SAFETY: restores what was there; the faulting instruction runs again and meets it.
            unsafe {
                libc::sigaction(libc::SIGBUS, (*BEFORE.0.get()).as_ptr(), std::ptr::null_mut());
            }
        }
    }

    /// Maps zeros from the page of `address` to the end of its guarded range.
    fn replace_by_zeros(address: usize) -> bool {
        let found = GUARDED.iter().find(|place| {
            let end = place.end.load(Ordering::Acquire);
            place.start.load(Ordering::Relaxed) <= address && address < end
        });
        let Some(place) = found else { return false };
        place.hit.store(true, Ordering::Release);
        let page = address & !(PAGE_BYTES.load(Ordering::Relaxed) - 1);
        let bytes = place.end.load(Ordering::Acquire).saturating_sub(page);
        // SAFETY: the pages belong to a read-only map of this process that lives as long as its
        // place is taken; nobody relies on their content, whose file is gone.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::with_exposed_provenance_mut(page),
                bytes,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        mapped != libc::MAP_FAILED
    }
}
