//! How far a download is, on one line of a terminal.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::terminal::{self, bytes};

/// Between two pictures of the line.
const PICTURE_EVERY: Duration = Duration::from_millis(100);

/// Characters of the bar.
const BAR_CHARACTERS: u64 = 24;

/// Characters of a file's name that are shown.
const NAME_CHARACTERS_MAX: usize = 40;

/// Counts bytes, and shows them where somebody watches.
#[derive(Debug)]
pub(super) struct Meter {
    shown: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    verb: &'static str,
    name: String,
    /// Bytes that were there when it began.
    before: u64,
    done: u64,
    all: u64,
    began: Instant,
    pictured: Option<Instant>,
}

impl Meter {
    /// A line on stderr, if that is a terminal.
    pub(super) fn on_terminal() -> Self {
        Self::new(io::stderr().is_terminal())
    }

    fn new(shown: bool) -> Self {
        let began = Instant::now();
        let state = State {
            verb: "",
            name: String::new(),
            before: 0,
            done: 0,
            all: 0,
            began,
            pictured: None,
        };
        Self { shown, state: Mutex::new(state) }
    }

    /// One that nobody sees.
    #[cfg(test)]
    pub(super) fn silent() -> Self {
        Self::new(false)
    }

    /// A file of which `done` of `all` bytes are there.
    pub(super) fn begin(&self, name: &str, done: u64, all: u64) {
        self.start("fetching", name, done, all);
    }

    /// A file that is read again to be checked.
    pub(super) fn check(&self, name: &str, all: u64) {
        self.start("checking", name, 0, all);
    }

    fn start(&self, verb: &'static str, name: &str, done: u64, all: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let name: String = name.chars().take(NAME_CHARACTERS_MAX).collect();
        let began = Instant::now();
        *state = State { verb, name, before: done, done, all, began, pictured: None };
        self.picture(&mut state);
    }

    pub(super) fn advance(&self, count: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.done += count;
        self.picture(&mut state);
    }

    /// What came since the beginning counts for nothing.
    pub(super) fn rewind(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.done = 0;
    }

    /// Tells something that stays.
    pub(super) fn say(&self, text: &str) {
        self.clear();
        terminal::note(&format!("{text}\n"));
    }

    /// Takes the line away.
    pub(super) fn clear(&self) {
        if self.shown {
            terminal::note("\r\x1b[K");
        }
    }

    fn picture(&self, state: &mut State) {
        let recent = state.pictured.is_some_and(|last| last.elapsed() < PICTURE_EVERY);
        if !self.shown || (recent && state.done < state.all) {
            return;
        }
        state.pictured = Some(Instant::now());
        let line = line(state, state.began.elapsed());
        let mut err = io::stderr().lock();
        let _ = write!(err, "\r{line}\x1b[K").and_then(|()| err.flush());
    }
}

fn line(state: &State, since: Duration) -> String {
    let State { verb, name, before, done, all, .. } = state;
    let filled = if *all == 0 { 0 } else { (done * BAR_CHARACTERS / all).min(BAR_CHARACTERS) };
    let bar: String =
        (0..BAR_CHARACTERS).map(|cell| if cell < filled { '█' } else { '·' }).collect();
    let rate = done.saturating_sub(*before) as f64 / since.as_secs_f64().max(1e-3);
    // The first moments say nothing about speed.
    let speed = match since >= Duration::from_secs(1) && rate >= 1.0 {
        true => {
            let left = Duration::from_secs_f64(all.saturating_sub(*done) as f64 / rate);
            format!("  {}/s  {} left", bytes(rate as u64), minutes(left))
        }
        false => String::new(),
    };
    format!("{verb} {name} {bar} {} of {}{speed}", bytes(*done), bytes(*all))
}

/// A time in the unit that people wait in.
fn minutes(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_tells_how_far_and_how_long() {
        let mut state = State {
            verb: "fetching",
            name: "m.gguf".to_owned(),
            before: 500_000_000,
            done: 1_000_000_000,
            all: 4_000_000_000,
            began: Instant::now(),
            pictured: None,
        };
        assert_eq!(
            line(&state, Duration::from_secs(10)),
            "fetching m.gguf ██████·················· 1.00 GB of 4.00 GB  50.0 MB/s  60 s left"
        );
        (state.done, state.all) = (0, 0);
        assert_eq!(
            line(&state, Duration::ZERO),
            "fetching m.gguf ························ 0 B of 0 B"
        );
        assert_eq!(minutes(Duration::from_secs(119)), "119 s");
        assert_eq!(minutes(Duration::from_secs(3599)), "59 min");
        assert_eq!(minutes(Duration::from_secs(9000)), "2 h");
    }
}
