//! The division of layers where some splits overlap their disk and others add it.

use super::allocate::{Allocation, Seat, measure};
use super::instance::Ticks;
use super::options::Split;

/// A partial division: its busy and added time, and how it came about.
#[derive(Debug, Clone)]
struct Label {
    busy: Ticks,
    added: Ticks,
    splits: Vec<Option<Split>>,
}

/// The best division whose splits keep busy plus overlapped time within `limit` and whose token is
/// below `bound`. Partial divisions are dropped only if another is no worse in busy and added time.
pub(super) fn allocate(
    seats: &[Seat<'_>],
    layers: usize,
    limit: Ticks,
    bound: Ticks,
) -> Option<Allocation> {
    let mut cells: Vec<Vec<Label>> = vec![Vec::new(); layers + 1];
    cells[0].push(Label { busy: 0, added: 0, splits: Vec::new() });
    for seat in seats {
        let mut next: Vec<Vec<Label>> = vec![Vec::new(); layers + 1];
        for (held, labels) in cells.iter().enumerate() {
            for label in labels {
                if let Some(absent) = seat.absent {
                    let stayed = grown(label, None, label.busy + absent, label.added);
                    insert(&mut next[held], stayed, bound);
                }
                for split in seat.table.all() {
                    let taken = split.layers() as usize;
                    let own = split.busy + seat.hops;
                    let streams = split.overlapped > 0 && own + split.overlapped > limit;
                    if streams || taken == 0 || held + taken > layers {
                        continue;
                    }
                    let (busy, added) = (label.busy + own, label.added + split.added);
                    if busy + added < bound {
                        let longer = grown(label, Some(*split), busy, added);
                        insert(&mut next[held + taken], longer, bound);
                    }
                }
            }
        }
        cells = next;
    }
    let measured = cells[layers].iter().map(|label| measure(seats, label.splits.clone()));
    measured.min_by_key(|found| (found.token, found.busy))
}

fn grown(label: &Label, split: Option<Split>, busy: Ticks, added: Ticks) -> Label {
    let mut splits = label.splits.clone();
    splits.push(split);
    Label { busy, added, splits }
}

fn insert(cell: &mut Vec<Label>, label: Label, bound: Ticks) {
    if label.busy + label.added >= bound {
        return;
    }
    if cell.iter().any(|other| other.busy <= label.busy && other.added <= label.added) {
        return;
    }
    cell.retain(|other| other.busy < label.busy || other.added < label.added);
    cell.push(label);
}
