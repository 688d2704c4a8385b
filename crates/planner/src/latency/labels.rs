//! The division of layers where some splits overlap their disk and others add it.

use super::allocate::{Allocation, Seat, measure};
use super::instance::Ticks;
use super::options::Split;

/// A partial division: its busy and added time, and how it came about.
#[derive(Debug, Clone, Copy)]
struct Label {
    busy: Ticks,
    added: Ticks,
    split: Option<Split>,
    /// Place among the labels of the seats before, with as many layers less as the split has.
    before: usize,
}

/// What a division must keep to.
pub(super) struct Task<'a> {
    pub(super) layers: usize,
    /// Most busy plus overlapped time of a split.
    pub(super) limit: Ticks,
    /// The token must be below.
    pub(super) bound: Ticks,
    /// For each seat on, the least busy and added time of each number of layers on it and those after.
    pub(super) rest: &'a [Vec<Ticks>],
}

/// The best division that keeps to the task. Partial divisions are dropped only if another is no worse
/// in busy and added time, or if not even the least that the remaining seats take is below the bound.
pub(super) fn allocate(seats: &[Seat<'_>], task: &Task<'_>) -> Option<Allocation> {
    let layers = task.layers;
    let mut cells: Vec<Vec<Label>> = vec![Vec::new(); layers + 1];
    cells[0].push(Label { busy: 0, added: 0, split: None, before: 0 });
    let mut rows = Vec::with_capacity(seats.len() + 1);
    for (index, seat) in seats.iter().enumerate() {
        let least = &task.rest[index + 1];
        let mut next: Vec<Vec<Label>> = vec![Vec::new(); layers + 1];
        for (held, labels) in cells.iter().enumerate() {
            for (before, label) in labels.iter().enumerate() {
                if let Some(absent) = seat.absent {
                    let busy = label.busy + absent;
                    if busy + label.added + least[layers - held] < task.bound {
                        insert(&mut next[held], Label { busy, split: None, before, ..*label });
                    }
                }
                for split in seat.table.all() {
                    let taken = split.layers() as usize;
                    let own = split.busy + seat.hops;
                    let streams = split.overlapped > 0 && seat.streaming(split) > task.limit;
                    if streams || taken == 0 || held + taken > layers {
                        continue;
                    }
                    let (busy, added) = (label.busy + own, label.added + split.added);
                    if busy + added + least[layers - held - taken] < task.bound {
                        let longer = Label { busy, added, split: Some(*split), before };
                        insert(&mut next[held + taken], longer);
                    }
                }
            }
        }
        rows.push(std::mem::replace(&mut cells, next));
    }
    let measured = cells[layers].iter().map(|label| measure(seats, splits(&rows, layers, *label)));
    measured.min_by_key(|found| (found.token, found.busy))
}

/// The splits behind a label of all seats.
fn splits(rows: &[Vec<Vec<Label>>], layers: usize, last: Label) -> Vec<Option<Split>> {
    let (mut held, mut label) = (layers, last);
    let mut splits = Vec::with_capacity(rows.len());
    for row in rows.iter().rev() {
        splits.push(label.split);
        held -= label.split.map_or(0, |split| split.layers() as usize);
        label = row[held][label.before];
    }
    splits.reverse();
    splits
}

fn insert(cell: &mut Vec<Label>, label: Label) {
    if cell.iter().any(|other| other.busy <= label.busy && other.added <= label.added) {
        return;
    }
    cell.retain(|other| other.busy < label.busy || other.added < label.added);
    cell.push(label);
}
