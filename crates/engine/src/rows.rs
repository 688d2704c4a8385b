//! The rows of a batch: which slot and position each belongs to, and how they are grouped.

use std::ops::Range;

/// One row of a batch: the next token, or its hidden state, of a sequence in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The slot whose cache the row reads and extends.
    pub slot: usize,
    /// Position of the token in its sequence, from 0.
    pub position: usize,
}

/// Why rows were refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RowsError {
    /// A batch without rows.
    #[error("a batch without rows")]
    Empty,
    /// More rows than the engine was made for.
    #[error("{rows} rows in a batch of at most {most}")]
    TooMany {
        /// Rows given.
        rows: usize,
        /// Rows that fit.
        most: usize,
    },
    /// A slot that does not exist.
    #[error("slot {slot} does not exist; there are {slots}")]
    UnknownSlot {
        /// The slot asked for.
        slot: usize,
        /// Slots of the engine.
        slots: usize,
    },
    /// Rows of a slot are not neighbours with rising positions.
    #[error("row {row} of slot {slot} at position {position} does not follow the row before it")]
    OutOfOrder {
        /// Index of the row in the batch.
        row: usize,
        /// Its slot.
        slot: usize,
        /// Its position.
        position: usize,
    },
    /// A position beyond the context.
    #[error(
        "position {position} of slot {slot} lies beyond the context of {context_tokens} tokens"
    )]
    BeyondContext {
        /// The slot.
        slot: usize,
        /// The position asked for.
        position: usize,
        /// Tokens of context per slot.
        context_tokens: usize,
    },
    /// A position whose predecessors were never computed.
    #[error(
        "slot {slot} has {cached} cached tokens in layer {layer}; position {position} leaves a gap"
    )]
    Gap {
        /// The slot.
        slot: usize,
        /// The layer.
        layer: usize,
        /// The position asked for.
        position: usize,
        /// Tokens that the layer has cached.
        cached: usize,
    },
    /// A step back further than a sliding window's cache reaches.
    #[error(
        "slot {slot} cannot go back to position {position} in layer {layer}: its sliding window \
         has overwritten what position {position} looks at"
    )]
    Overwritten {
        /// The slot.
        slot: usize,
        /// The layer.
        layer: usize,
        /// The position asked for.
        position: usize,
    },
}

/// Rows of one slot that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) slot: usize,
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
    pub(crate) first_position: usize,
}

impl Run {
    /// Positions of the run.
    pub(crate) fn positions(&self) -> Range<usize> {
        self.first_position..self.first_position + self.rows
    }
}

/// Cuts rows into runs, one per slot, into `runs`.
///
/// # Errors
/// When rows of a slot are scattered or not consecutive, or a slot or position does not exist.
pub(crate) fn into_runs(
    rows: &[Row],
    slots: usize,
    context_tokens: usize,
    runs: &mut Vec<Run>,
) -> Result<(), RowsError> {
    runs.clear();
    if rows.is_empty() {
        return Err(RowsError::Empty);
    }
    for (index, row) in rows.iter().enumerate() {
        if row.slot >= slots {
            return Err(RowsError::UnknownSlot { slot: row.slot, slots });
        }
        if row.position >= context_tokens {
            return Err(RowsError::BeyondContext {
                slot: row.slot,
                position: row.position,
                context_tokens,
            });
        }
        if let Some(run) = runs.last_mut()
            && run.slot == row.slot
        {
            if row.position != run.positions().end {
                return Err(out_of_order(index, *row));
            }
            run.rows += 1;
            continue;
        }
        if runs.iter().any(|run| run.slot == row.slot) {
            return Err(out_of_order(index, *row));
        }
        runs.push(Run { slot: row.slot, first_row: index, rows: 1, first_position: row.position });
    }
    Ok(())
}

fn out_of_order(index: usize, row: Row) -> RowsError {
    RowsError::OutOfOrder { row: index, slot: row.slot, position: row.position }
}

/// Runs that share one attention operation: neighbouring slots with equally many rows. Each looks
/// at as many cells as the longest of them; those that it lacks are masked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) first_slot: usize,
    pub(crate) slots: usize,
    pub(crate) first_row: usize,
    pub(crate) rows_per_slot: usize,
    /// Cells of an unlimited layer.
    pub(crate) cells: usize,
    /// Cells of a layer with a sliding window; equal to `cells` in models without one.
    pub(crate) window_cells: usize,
}

impl Group {
    pub(crate) fn rows(&self) -> usize {
        self.slots * self.rows_per_slot
    }
}

/// Joins runs into groups, into `groups`. `cells` gives the cells that a run of so many positions
/// looks at, in unlimited and in sliding layers.
///
/// Single rows are joined even where their cells differ, as long as at most half of all cells are
/// masked: a masked cell costs a small part of one that is looked at, an operation of its own
/// costs every thread several waits.
pub(crate) fn into_groups(
    runs: &[Run],
    cells: impl Fn(usize) -> (usize, usize),
    groups: &mut Vec<Group>,
) {
    groups.clear();
    // Cells that the rows of the last group truly look at.
    let mut looked_at = 0;
    for run in runs {
        let (full, window) = cells(run.positions().end);
        if let Some(group) = groups.last_mut()
            && group.first_slot + group.slots == run.slot
            && group.rows_per_slot == run.rows
        {
            let (most, most_of_window) = (group.cells.max(full), group.window_cells.max(window));
            let same = (group.cells, group.window_cells) == (full, window);
            let single = run.rows == 1 && most * (group.slots + 1) <= 2 * (looked_at + full);
            if same || single {
                group.slots += 1;
                (group.cells, group.window_cells) = (most, most_of_window);
                looked_at += full;
                continue;
            }
        }
        looked_at = full;
        groups.push(Group {
            first_slot: run.slot,
            slots: 1,
            first_row: run.first_row,
            rows_per_slot: run.rows,
            cells: full,
            window_cells: window,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(list: &[(usize, usize)]) -> Vec<Row> {
        list.iter().map(|&(slot, position)| Row { slot, position }).collect()
    }

    fn check_error(list: &[(usize, usize)], expected: RowsError) {
        assert_eq!(into_runs(&rows(list), 4, 100, &mut Vec::new()), Err(expected));
    }

    #[test]
    fn decode_rows_of_neighbouring_slots_share_a_group_and_a_prompt_has_its_own() {
        let list = rows(&[(0, 5), (1, 7), (2, 40), (3, 0), (3, 1)]);
        let (mut runs, mut groups) = (Vec::new(), Vec::new());
        into_runs(&list, 4, 100, &mut runs).unwrap();
        into_groups(&runs, |end| (end.next_multiple_of(32), end.next_multiple_of(32)), &mut groups);
        let brief: Vec<_> = groups
            .iter()
            .map(|g| (g.first_slot, g.slots, g.first_row, g.rows_per_slot, g.cells))
            .collect();
        assert_eq!(brief, [(0, 3, 0, 1, 64), (3, 1, 3, 2, 32)]);
    }

    #[test]
    fn a_long_sequence_does_not_make_short_ones_pass_over_many_masked_cells() {
        let list = rows(&[(0, 5), (1, 7), (2, 900), (3, 900)]);
        let (mut runs, mut groups) = (Vec::new(), Vec::new());
        into_runs(&list, 4, 1000, &mut runs).unwrap();
        into_groups(&runs, |end| (end.next_multiple_of(32), end.next_multiple_of(32)), &mut groups);
        let brief: Vec<_> =
            groups.iter().map(|group| (group.first_slot, group.slots, group.cells)).collect();
        assert_eq!(brief, [(0, 2, 32), (2, 2, 928)]);
    }

    #[test]
    fn scattered_unknown_and_distant_rows_are_refused() {
        check_error(&[], RowsError::Empty);
        check_error(&[(4, 0)], RowsError::UnknownSlot { slot: 4, slots: 4 });
        check_error(&[(0, 3), (0, 5)], RowsError::OutOfOrder { row: 1, slot: 0, position: 5 });
        check_error(
            &[(0, 3), (1, 0), (0, 4)],
            RowsError::OutOfOrder { row: 2, slot: 0, position: 4 },
        );
        check_error(
            &[(1, 100)],
            RowsError::BeyondContext { slot: 1, position: 100, context_tokens: 100 },
        );
    }
}
