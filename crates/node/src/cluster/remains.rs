//! Engines that are not wanted any more. A step or a load that runs must end before they are freed,
//! which no thread that answers signs of life can wait for.

use std::thread::{self, JoinHandle};

/// What is being freed. Dropping it waits.
#[derive(Debug, Default)]
pub(super) struct Remains(Vec<JoinHandle<()>>);

impl Remains {
    /// Frees something on a thread of its own.
    pub(super) fn bury(&mut self, engine: Option<impl Send + 'static>) {
        let Some(engine) = engine else { return };
        self.0.retain(|thread| !thread.is_finished());
        // Without a thread it is freed here.
        if let Ok(thread) =
            thread::Builder::new().name("free".to_owned()).spawn(move || drop(engine))
        {
            self.0.push(thread);
        }
    }

    /// What is being freed now, for whoever needs its memory.
    pub(super) fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    /// Waits until all is freed.
    pub(super) fn wait(self) {}
}

impl Drop for Remains {
    fn drop(&mut self) {
        for thread in self.0.drain(..) {
            let _ = thread.join();
        }
    }
}
