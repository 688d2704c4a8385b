//! The compute threads of the CPU back-end.

use std::ptr::NonNull;

use llama_cpp_sys_2 as sys;

/// How a pool waits and where it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadPoolOptions {
    /// Threads including the caller's, 1 to 512.
    pub threads: usize,
    /// Eagerness of waiting workers, 0 (sleep at once) to 100 (spin).
    pub poll_percent: u32,
    /// Bind worker `i` to processor `i`; needed when workers sleep, see `docs/ARCHITECTURE.md`.
    pub pinned: bool,
}

/// A persistent set of compute threads.
#[derive(Debug)]
pub struct ThreadPool {
    raw: NonNull<sys::ggml_threadpool>,
    threads: usize,
}

impl ThreadPool {
    /// Most threads a pool may have.
    pub const THREADS_MAX: usize = 512;

    /// Starts the threads.
    ///
    /// # Panics
    /// When the options are outside their ranges or the system refuses threads.
    pub fn new(options: ThreadPoolOptions) -> Self {
        assert!((1..=Self::THREADS_MAX).contains(&options.threads), "threads out of range");
        assert!(options.poll_percent <= 100, "poll is a percentage");
        let threads = i32::try_from(options.threads).expect("at most 512");
        // SAFETY: the structure is plain data, filled by ggml before use.
        let raw = unsafe {
            let mut parameters: sys::ggml_threadpool_params = std::mem::zeroed();
            sys::ggml_threadpool_params_init(&mut parameters, threads);
            parameters.poll = options.poll_percent;
            parameters.strict_cpu = options.pinned;
            if options.pinned {
                parameters.cpumask[..options.threads].fill(true);
            }
            sys::ggml_threadpool_new(&mut parameters)
        };
        let raw = NonNull::new(raw).expect("the system refused compute threads");
        Self { raw, threads: options.threads }
    }

    /// Threads in the pool, the caller's included.
    pub fn threads(&self) -> usize {
        self.threads
    }

    pub(crate) fn raw(&self) -> *mut sys::ggml_threadpool {
        self.raw.as_ptr()
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        // SAFETY: the pool is owned, and back-ends that use it are dropped before it.
        unsafe { sys::ggml_threadpool_free(self.raw.as_ptr()) }
    }
}
