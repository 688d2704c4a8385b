//! Work that must not hold the engine up: on threads of its own, of a lower priority.
//!
//! Where this work waits for nothing and the engine's threads fill all processors, it gets a quarter
//! or a tenth of one. So nothing that the engine's thread or a thread of the gateway's may wait for is
//! held while it is done, but for a moment.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;

use motley_gateway::{Failure, Refusal};
use tokio::sync::{Semaphore, oneshot};

/// What is left of a processor that the engine wants too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Haste {
    /// A quarter: a form that takes 0.2 s to compile has its 2 s of time for that.
    Request,
    /// A tenth: what only the first request waits for, and takes long enough for steps to suffer.
    Once,
}

impl Haste {
    /// How much nicer threads are than those of the engine, in Linux's terms.
    #[cfg(target_os = "linux")]
    fn niceness(self) -> i32 {
        match self {
            Self::Request => 5,
            Self::Once => 10,
        }
    }
}

/// Stack of a thread: schemas nest at most as deep as the gateway lets them, patterns deeper.
const STACK_BYTES: usize = 16 << 20;

/// Threads for one kind of work, of which only so many run at a time.
pub(crate) struct Background {
    name: &'static str,
    haste: Haste,
    places: Arc<Semaphore>,
}

/// Why work was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BackgroundError {
    /// The system refuses a thread.
    #[error("no thread could be started")]
    NoThread(#[source] io::Error),
    /// The work panicked, which is a bug.
    #[error("the work ended without a result")]
    Panicked,
}

impl BackgroundError {
    /// What a client is told.
    pub(crate) fn into_refusal(self) -> Refusal {
        Refusal::Failed(match self {
            Self::NoThread(cause) => Failure::Compute { cause: cause.to_string() },
            Self::Panicked => Failure::Abandoned,
        })
    }
}

impl Background {
    /// Work under this name, at most `threads_max` pieces at a time; others wait in their order.
    pub(crate) fn new(name: &'static str, haste: Haste, threads_max: usize) -> Self {
        Self { name, haste, places: Arc::new(Semaphore::new(threads_max)) }
    }

    /// Works on a thread of its own. Dropping this leaves the thread to itself.
    ///
    /// # Errors
    /// When there is no thread, or the work does not end.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, BackgroundError> {
        let places = Arc::clone(&self.places);
        let place = places.acquire_owned().await.map_err(|_| BackgroundError::Panicked)?;
        let (send, done) = oneshot::channel();
        let haste = self.haste;
        let work = move || {
            lower_priority(haste);
            // Nobody may wait any more.
            let _ = send.send(work());
            drop(place);
        };
        thread::Builder::new()
            .name(self.name.to_owned())
            .stack_size(STACK_BYTES)
            .spawn(work)
            .map_err(BackgroundError::NoThread)?;
        done.await.map_err(|_| BackgroundError::Panicked)
    }
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Background").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Makes the calling thread nicer, for good: raising a priority again takes a privilege. On Linux
/// each thread has a niceness of its own; elsewhere it is the whole process's and stays.
#[cfg(target_os = "linux")]
fn lower_priority(haste: Haste) {
    let own = rustix::process::getpriority_process(None).unwrap_or(0);
    // A system that refuses lets the work run as it is.
    let _ = rustix::process::setpriority_process(None, own + haste.niceness());
}

#[cfg(not(target_os = "linux"))]
fn lower_priority(_: Haste) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_done_and_a_panic_ends_only_it() {
        let background = Background::new("test", Haste::Request, 1);
        assert_eq!(background.run(|| 1).await.unwrap(), 1);
        let panicked: Result<(), _> = background.run(|| panic!("on purpose")).await;
        assert!(matches!(panicked, Err(BackgroundError::Panicked)));
        assert_eq!(background.run(|| 2).await.unwrap(), 2, "its place is free again");
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn only_the_thread_of_the_work_is_nicer() {
        let niceness = || rustix::process::getpriority_process(None).unwrap();
        let before = niceness();
        for (haste, nicer) in [(Haste::Request, 5), (Haste::Once, 10)] {
            let inside = Background::new("test", haste, 1).run(niceness).await.unwrap();
            assert_eq!(inside, (before + nicer).min(19));
        }
        assert_eq!(niceness(), before);
    }
}
