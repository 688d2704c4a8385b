//! One piece of a ring's work on this machine's engine.

use motley_engine::{Entering, Row, Step, StepError, Wanted};
use motley_ggml::Token;
use motley_ring::{Batch, Run, Work};

use super::yielding::YieldingEngine;

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
    /// At the head, wanted rows of slots whose states are wanted instead of logits.
    states: Vec<usize>,
    /// Where the product has each wanted row.
    places: Vec<Place>,
}

/// Where the head's product has a wanted row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Among the logits.
    Logits(usize),
    /// Among the states, which follow the logits.
    States(usize),
}

/// What the head makes of wanted rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadRows<'a> {
    /// Slots whose states are wanted instead of their logits; others are not listed.
    pub(crate) embeds: &'a [bool],
}

impl HeadRows<'_> {
    /// Logits of all wanted rows.
    pub(crate) const LOGITS: HeadRows<'static> = HeadRows { embeds: &[] };

    fn embeds(&self, run: &Run) -> bool {
        self.embeds.get(run.slot.0 as usize).is_some_and(|embeds| *embeds)
    }
}

impl Scratch {
    /// Computes `work` and leaves what it gives in `product`, row after row; at the end of the
    /// model logits first, then states.
    ///
    /// # Errors
    /// When the engine refuses the rows or fails.
    pub(crate) fn compute(
        &mut self,
        engine: &mut YieldingEngine,
        work: &Work<Payload>,
        head: HeadRows<'_>,
        product: &mut Vec<f32>,
    ) -> Result<(), StepError> {
        for slot in work.slots_to_clear() {
            engine.clear(slot.0 as usize);
        }
        let head = if work.projects { head } else { HeadRows::LOGITS };
        self.list(&work.batch, work.enters_wanted, head);
        product.clear();
        if self.rows.is_empty() {
            // The rest of a prompt's chunk that nothing is wanted of.
            return Ok(());
        }
        let wanted = match (work.projects, work.leaves_wanted) {
            (true, _) => Wanted::LogitsAndStates(&self.wanted, &self.states),
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

    /// Values of a wanted row of the last work, which reached the end of the model, in its
    /// product: logits, or a state of `width` values.
    pub(crate) fn row_of<'p>(&self, wanted: usize, product: &'p [f32], width: usize) -> &'p [f32] {
        let (logits, states) = product.split_at(product.len() - self.states.len() * width);
        match self.places[wanted] {
            Place::States(index) => &states[index * width..][..width],
            Place::Logits(index) => {
                let vocabulary_size = logits.len() / self.wanted.len();
                &logits[index * vocabulary_size..][..vocabulary_size]
            }
        }
    }

    /// Lists the rows of a batch, all or only those that the head wants, and which of the listed
    /// ones it wants.
    fn list(&mut self, batch: &Batch, only_wanted: bool, head: HeadRows<'_>) {
        self.rows.clear();
        self.wanted.clear();
        self.states.clear();
        self.places.clear();
        for run in batch.runs() {
            let rows = if only_wanted { run.wanted_rows() } else { run.rows };
            let first = run.end_position() - rows;
            self.rows.extend((first..run.end_position()).map(|position| row(run, position)));
            let listed = self.rows.len();
            for row in listed - run.wanted_rows() as usize..listed {
                let (wanted, place): (_, fn(usize) -> Place) = match head.embeds(run) {
                    true => (&mut self.states, Place::States),
                    false => (&mut self.wanted, Place::Logits),
                };
                self.places.push(place(wanted.len()));
                wanted.push(row);
            }
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
        scratch.list(&batch, false, HeadRows::LOGITS);
        assert_eq!(brief(&scratch), [(2, 7), (0, 0), (0, 1), (1, 4), (1, 5)]);
        assert_eq!(scratch.wanted, [0, 4]);
        scratch.list(&batch, true, HeadRows::LOGITS);
        assert_eq!(brief(&scratch), [(2, 7), (1, 5)]);
        assert_eq!(scratch.wanted, [0, 1]);
        scratch.list(&batch, false, HeadRows { embeds: &[false, true] });
        assert_eq!((&scratch.wanted[..], &scratch.states[..]), (&[0][..], &[4][..]));
        let product = [1.0, 2.0, 3.0, 8.0, 9.0];
        assert_eq!(scratch.row_of(0, &product, 2), [1.0, 2.0, 3.0]);
        assert_eq!(scratch.row_of(1, &product, 2), [8.0, 9.0]);
    }
}
