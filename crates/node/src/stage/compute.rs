//! One piece of a ring's work on this machine's engine.

use motley_engine::{Engine, Entering, Row, Step, StepError, Wanted};
use motley_ggml::Token;
use motley_ring::{Batch, Run, Work};

/// What enters a stop and leaves it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Payload {
    /// A token per row, at the head.
    Tokens(Vec<Token>),
    /// Hidden states or logits, row after row.
    Values(Vec<f32>),
}

impl Payload {
    /// Its values; tokens have none.
    pub(crate) fn values(&self) -> &[f32] {
        match self {
            Self::Tokens(_) => &[],
            Self::Values(values) => values,
        }
    }
}

/// Lists that are filled anew for each step.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    rows: Vec<Row>,
    wanted: Vec<usize>,
}

impl Scratch {
    /// Computes `work` and leaves what it gives in `product`, row after row.
    ///
    /// # Errors
    /// When the engine refuses the rows or fails.
    pub(crate) fn compute(
        &mut self,
        engine: &mut Engine,
        work: &Work<Payload>,
        product: &mut Vec<f32>,
    ) -> Result<(), StepError> {
        for slot in work.slots_to_clear() {
            engine.clear(slot.0 as usize);
        }
        self.list(&work.batch, work.enters_wanted);
        product.clear();
        if self.rows.is_empty() {
            // The rest of a prompt's chunk that nothing is wanted of.
            return Ok(());
        }
        let wanted = match (work.projects, work.leaves_wanted) {
            (true, _) => Wanted::Logits(&self.wanted),
            (false, true) if !work.layers.is_empty() => Wanted::HiddenOf(&self.wanted),
            (false, _) => Wanted::Hidden,
        };
        let step = Step {
            layers: work.layers.start as usize..work.layers.end as usize,
            rows: &self.rows,
            entering: match &work.payload {
                Payload::Tokens(tokens) => Entering::Tokens(tokens),
                Payload::Values(values) => Entering::Hidden(values),
            },
            wanted,
        };
        engine.run(&step, product)
    }

    /// Lists the rows of a batch, all or only those that the head wants, and which of the listed
    /// ones it wants.
    fn list(&mut self, batch: &Batch, only_wanted: bool) {
        self.rows.clear();
        self.wanted.clear();
        for run in batch.runs() {
            let rows = if only_wanted { run.wanted_rows() } else { run.rows };
            let first = run.end_position() - rows;
            self.rows.extend((first..run.end_position()).map(|position| row(run, position)));
            let listed = self.rows.len();
            self.wanted.extend(listed - run.wanted_rows() as usize..listed);
        }
    }
}

fn row(run: &Run, position: u32) -> Row {
    Row { slot: run.slot.0 as usize, position: position as usize }
}

#[cfg(test)]
mod tests {
    use motley_ring::{SlotIndex, Wanted as WantedRows};

    use super::*;

    #[test]
    fn rows_are_listed_with_those_that_are_wanted() {
        let run = |slot, first_position, rows, wanted| Run {
            slot: SlotIndex(slot),
            first_position,
            rows,
            wanted,
            fresh: false,
        };
        let batch = Batch::new(vec![
            run(2, 7, 1, WantedRows::Last),
            run(0, 0, 2, WantedRows::None),
            run(1, 4, 2, WantedRows::Last),
        ]);
        let mut scratch = Scratch::default();
        let brief = |scratch: &Scratch| {
            scratch.rows.iter().map(|row| (row.slot, row.position)).collect::<Vec<_>>()
        };
        scratch.list(&batch, false);
        assert_eq!(brief(&scratch), [(2, 7), (0, 0), (0, 1), (1, 4), (1, 5)]);
        assert_eq!(scratch.wanted, [0, 4]);
        scratch.list(&batch, true);
        assert_eq!(brief(&scratch), [(2, 7), (1, 5)]);
        assert_eq!(scratch.wanted, [0, 1]);
    }
}
