//! Ctrl-C: the first stops the answer, a second, or one while nothing is being answered, ends the
//! program.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::SIGINT;
use signal_hook::flag;

/// What Ctrl-C means now. Made once per process.
#[derive(Debug)]
pub(crate) struct Interrupt {
    /// Ctrl-C ends the program at once.
    fatal: Arc<AtomicBool>,
    raised: Arc<AtomicBool>,
}

impl Interrupt {
    /// Takes over Ctrl-C; it still ends the program until [`Self::catch`].
    ///
    /// # Errors
    /// When the system refuses a handler.
    pub(crate) fn install() -> io::Result<Self> {
        let (fatal, raised) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        // Handlers run in this order: the default action, if it is due, comes first.
        flag::register_conditional_default(SIGINT, Arc::clone(&fatal))?;
        flag::register(SIGINT, Arc::clone(&raised))?;
        flag::register(SIGINT, Arc::clone(&fatal))?;
        Ok(Self { fatal, raised })
    }

    /// From now on the first Ctrl-C is only noted.
    pub(crate) fn catch(&self) {
        self.raised.store(false, Ordering::SeqCst);
        self.fatal.store(false, Ordering::SeqCst);
    }

    /// From now on Ctrl-C ends the program.
    pub(crate) fn release(&self) {
        self.fatal.store(true, Ordering::SeqCst);
    }

    /// Whether Ctrl-C was pressed since [`Self::catch`].
    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::SeqCst)
    }
}
