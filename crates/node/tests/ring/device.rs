//! A process of the program that goes on until the test ends it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::common::motley;

/// Longer than anything takes here, even on a machine that does much else.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// Looks until there is something to be seen; nothing when that takes longer than `patience`.
pub(crate) fn watch<T>(patience: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let until = Instant::now() + patience;
    loop {
        if let Some(seen) = look() {
            return Some(seen);
        }
        if Instant::now() >= until {
            return None;
        }
        thread::sleep(PAUSE);
    }
}

/// A running process. Dropping it kills it.
pub(crate) struct Device {
    child: Child,
    log: PathBuf,
}

impl Device {
    /// Starts the program; what it prints goes to the file `log`.
    pub(crate) fn start(arguments: &[&str], log: &Path) -> Self {
        let file = File::create(log).unwrap();
        let child = motley()
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .expect("the program starts");
        Self { child, log: log.to_owned() }
    }

    /// What it has printed.
    pub(crate) fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap()).into_owned()
    }

    /// Waits until it has printed `text`, and gives what follows in that line.
    #[track_caller]
    pub(crate) fn wait_for(&self, text: &str) -> String {
        let found = watch(PATIENCE, || {
            let said = self.said();
            let (_, rest) = said.split_once(text)?;
            rest.split_once('\n').map(|(line, _)| line.to_owned())
        });
        found.unwrap_or_else(|| panic!("it has not said {text:?}:\n{}", self.said()))
    }

    /// Ends it without any warning.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks it to end.
    pub(crate) fn terminate(&self) {
        let id = Pid::from_raw(self.child.id().cast_signed());
        kill(id, Signal::SIGTERM).unwrap();
    }

    /// Waits until it has ended by itself.
    #[track_caller]
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let ended = watch(PATIENCE, || self.child.try_wait().unwrap());
        ended.unwrap_or_else(|| panic!("it goes on:\n{}", self.said()))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.kill();
    }
}
