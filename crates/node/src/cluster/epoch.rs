//! The highest epoch that a device has heard of, kept in its state folder: after a restart, no head
//! can bring back an older plan.

use motley_ring::Epoch;

use crate::identity::StateFolder;
use crate::terminal;

const FILE: &str = "epoch";

/// The epoch that was kept, or the one before all.
pub(super) fn read(folder: &StateFolder) -> Epoch {
    let bytes = folder.read(FILE).ok().flatten();
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    Epoch(text.and_then(|text| text.trim().parse().ok()).unwrap_or(0))
}

/// Keeps an epoch. A device that cannot serves on, and says so.
pub(super) fn keep(folder: &StateFolder, epoch: Epoch) {
    if let Err(error) = folder.write(FILE, epoch.0.to_string().as_bytes()) {
        terminal::note(&format!("cannot keep the number of the plan: {error}\n"));
    }
}
