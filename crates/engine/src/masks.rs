//! Attention masks: which cached cells a row may look at.

use std::ops::Range;

/// 16-bit float zero: look.
const LOOK: u16 = 0;
/// 16-bit float minus infinity: do not look.
const HIDE: u16 = 0xfc00;

/// Appends one mask row of `columns` cells per position of a run to `mask`.
///
/// Position `p` lies in cell `p mod cells`. A row sees itself and earlier positions, with a
/// `window` only the `window` latest of these. When a run is masked, all its positions are
/// already written.
pub(crate) fn append(
    positions: Range<usize>,
    cells: usize,
    columns: usize,
    window: Option<usize>,
    mask: &mut Vec<u16>,
) {
    for position in positions {
        let start = mask.len();
        mask.resize(start + columns, HIDE);
        let row = &mut mask[start..];
        let oldest = window.map_or(0, |window| (position + 1).saturating_sub(window));
        let (first, last) = (oldest % cells, position % cells);
        if first <= last {
            row[first..=last].fill(LOOK);
        } else {
            row[first..cells].fill(LOOK);
            row[..=last].fill(LOOK);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(
        positions: Range<usize>,
        cells: usize,
        columns: usize,
        window: Option<usize>,
        rows: &[&str],
    ) {
        let mut mask = Vec::new();
        append(positions, cells, columns, window, &mut mask);
        let drawn: Vec<String> = mask
            .chunks(columns)
            .map(|row| row.iter().map(|cell| if *cell == LOOK { 'x' } else { '.' }).collect())
            .collect();
        assert_eq!(drawn, rows);
    }

    proptest! {
        /// Whatever the lengths of batches, the cells that a row may look at hold exactly the
        /// latest `window` positions up to its own.
        #[test]
        fn visible_cells_hold_the_positions_in_sight(
            window in 1..40_usize,
            runs in prop::collection::vec(1..24_usize, 1..30),
        ) {
            const BATCH: usize = 24;
            let cells = window + BATCH;
            let mut held = vec![None; cells];
            let mut next = 0;
            for length in runs {
                let run = next..next + length;
                run.clone().for_each(|position| held[position % cells] = Some(position));
                let mut mask = Vec::new();
                append(run.clone(), cells, cells, Some(window), &mut mask);
                for (row, position) in mask.chunks(cells).zip(run.clone()) {
                    let mut seen: Vec<usize> = row
                        .iter()
                        .zip(&held)
                        .filter(|(cell, _)| **cell == LOOK)
                        .map(|(_, held)| held.unwrap())
                        .collect();
                    seen.sort_unstable();
                    let expected: Vec<usize> =
                        ((position + 1).saturating_sub(window)..=position).collect();
                    prop_assert_eq!(seen, expected);
                }
                next = run.end;
            }
        }
    }

    #[test]
    fn rows_see_themselves_and_what_came_before() {
        check(2..4, 8, 6, None, &["xxx...", "xxxx.."]);
        check(0..1, 8, 4, None, &["x..."]);
    }

    #[test]
    fn a_window_slides_and_wraps_around_its_cells() {
        check(3..5, 8, 8, Some(3), &[".xxx....", "..xxx..."]);
        check(8..10, 8, 8, Some(3), &["x.....xx", "xx.....x"]);
        check(17..18, 8, 8, Some(3), &["xx.....x"]);
    }
}
