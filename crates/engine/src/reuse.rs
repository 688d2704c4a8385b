//! How far a slot can go back.

use std::ops::Range;

use motley_model::HyperParameters;

use crate::cache::CacheShape;

/// What is still cached of a slot's history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotHistory {
    /// Positions 0 up to here were computed, and none later belongs to the history.
    tokens: usize,
    /// Positions before this one were overwritten, or never brought here.
    oldest: usize,
}

impl SlotHistory {
    /// Tokens of the history.
    pub fn tokens(&self) -> usize {
        self.tokens
    }
}

/// Tells whether a slot can go back to an earlier position and take another way from there.
///
/// Layers that see everything keep every position. Layers with a sliding window overwrite what
/// lies further back than their window and one batch. The rule follows from the model and the
/// sizes of the cache alone, so that the head of a ring can decide for members that hold other
/// layers, if all of them have the same sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReuseRule {
    /// Tokens that a row sees, itself included.
    window: usize,
    /// Positions kept.
    cells: usize,
}

impl ReuseRule {
    /// The rule of layers that see and keep everything.
    pub(crate) const UNLIMITED: Self = Self { window: usize::MAX, cells: usize::MAX };

    /// The rule of a layer that sees `window` tokens and keeps `cells` positions.
    pub(crate) const fn sliding(window: usize, cells: usize) -> Self {
        Self { window, cells }
    }

    /// The rule for all layers of a model whose slots hold `context_tokens` and whose batches
    /// have at most `batch_rows_max` rows.
    pub fn new(hyper: &HyperParameters, context_tokens: usize, batch_rows_max: usize) -> Self {
        let windows = hyper.layers.iter().filter_map(|layer| layer.window_tokens);
        windows.max().map_or(Self::UNLIMITED, |window| {
            let cells = CacheShape::cells_of_window(window, context_tokens, batch_rows_max);
            Self::sliding(window, cells)
        })
    }

    /// Tokens that a row of the narrowest-looking layers sees and positions that they keep; nothing
    /// where all layers see and keep everything.
    pub fn window_and_kept(&self) -> Option<(usize, usize)> {
        (*self != Self::UNLIMITED).then_some((self.window, self.cells))
    }

    /// Whether the next row of a slot may have this position: the one after its history, or an
    /// earlier one if everything that it looks at is still cached.
    pub fn allows(&self, history: &SlotHistory, position: usize) -> bool {
        position <= history.tokens && self.visible(position).start >= history.oldest
    }

    /// The history after rows up to before position `end` were computed.
    #[must_use]
    pub fn extended(&self, history: SlotHistory, end: usize) -> SlotHistory {
        // What a longer history overwrote does not come back by going back from it.
        SlotHistory { tokens: end, oldest: history.oldest.max(end.saturating_sub(self.cells)) }
    }

    /// The history after the cache of `tokens` tokens was imported: only what the next token sees
    /// is moved.
    pub fn imported(&self, tokens: usize) -> SlotHistory {
        SlotHistory { tokens, oldest: self.visible(tokens).start }
    }

    /// Positions before `position` that a row there looks at.
    pub(crate) fn visible(&self, position: usize) -> Range<usize> {
        (position + 1).saturating_sub(self.window)..position
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_that_see_everything_go_back_to_anywhere_but_never_forward() {
        let rule = ReuseRule::UNLIMITED;
        let history = rule.extended(SlotHistory::default(), 1000);
        assert!(rule.allows(&history, 0) && rule.allows(&history, 1000));
        assert!(!rule.allows(&history, 1001));
        assert!(rule.allows(&rule.imported(1000), 3));
    }

    #[test]
    fn a_sliding_window_goes_back_as_far_as_its_cells_reach() {
        let rule = ReuseRule::sliding(100, 256);
        let mut history = SlotHistory::default();
        history = rule.extended(history, 250);
        assert!(rule.allows(&history, 0), "nothing was overwritten yet");
        history = rule.extended(history, 400);
        // Positions from 144 on are kept; position 243 sees those from 144 on.
        assert!(rule.allows(&history, 243) && !rule.allows(&history, 242));
        // A shorter way does not bring back what the longer one overwrote.
        history = rule.extended(history, 300);
        assert!(rule.allows(&history, 243) && !rule.allows(&history, 242));
    }

    #[test]
    fn an_imported_window_goes_on_but_not_back() {
        let rule = ReuseRule::sliding(100, 256);
        let history = rule.imported(400);
        assert!(rule.allows(&history, 400) && !rule.allows(&history, 399));
        assert!(rule.allows(&rule.imported(60), 3), "all of a short history is moved");
    }
}
