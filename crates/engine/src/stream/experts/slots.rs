//! Which experts are in memory, and which of them give way: pure bookkeeping.

use std::cmp::Ordering;

/// Rows over which the memory of a choice fades to a third: long enough to tell experts that are
/// chosen often from those chosen by chance, short enough to follow a change of subject.
const MEMORY_ROWS: f32 = 64.0;

/// Slots of equal size for the experts of some layers, and how likely each expert is to be chosen.
///
/// Layers are used in turn, again and again, so that the expert used longest ago is the one needed
/// soonest; what gives way is the expert least likely to be chosen by a row.
#[derive(Debug)]
pub(crate) struct Slots {
    experts_per_layer: usize,
    /// The slot of each expert of each layer, layer after layer.
    slot_of: Vec<Option<usize>>,
    /// How likely each expert is to be chosen by a row.
    chance: Vec<f32>,
    /// The expert in each slot.
    held: Vec<Option<usize>>,
    /// How often each expert of the layer in use is chosen.
    counts: Vec<u32>,
    candidates: Vec<usize>,
}

/// An expert to be read into a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// Which of the layers.
    pub(crate) layer: usize,
    pub(crate) expert: usize,
    pub(crate) slot: usize,
}

impl Slots {
    /// Slots, all empty.
    ///
    /// # Panics
    /// When the experts of one layer do not fit together.
    pub(crate) fn new(layers: usize, experts_per_layer: usize, slots: usize) -> Self {
        assert!(slots >= experts_per_layer, "room for the experts of one layer");
        let experts = layers * experts_per_layer;
        Self {
            experts_per_layer,
            slot_of: vec![None; experts],
            chance: vec![0.0; experts],
            held: vec![None; slots],
            counts: vec![0; experts_per_layer],
            candidates: Vec::new(),
        }
    }

    /// Slots there are.
    pub(crate) fn capacity(&self) -> usize {
        self.held.len()
    }

    /// Changes the number of slots; experts of those that go are forgotten.
    pub(crate) fn resize(&mut self, slots: usize) {
        assert!(slots >= self.experts_per_layer, "room for the experts of one layer");
        (slots..self.held.len()).for_each(|slot| self.forget(slot));
        self.held.resize(slots, None);
    }

    /// The slot of an expert in memory.
    pub(crate) fn slot(&self, layer: usize, expert: usize) -> Option<usize> {
        self.slot_of[layer * self.experts_per_layer + expert]
    }

    /// Experts of a layer in memory.
    pub(crate) fn resident(&self, layer: usize) -> usize {
        let first = layer * self.experts_per_layer;
        let of_layer = &self.slot_of[first..first + self.experts_per_layer];
        of_layer.iter().filter(|slot| slot.is_some()).count()
    }

    /// Makes room for the experts that `rows` rows chose in a layer, `chosen` with repetitions, and
    /// adds those that have to be read to `loads`; returns how many different ones were chosen.
    pub(crate) fn choose(
        &mut self,
        layer: usize,
        chosen: &[usize],
        rows: usize,
        loads: &mut Vec<Load>,
    ) -> usize {
        self.counts.fill(0);
        chosen.iter().for_each(|expert| self.counts[*expert] += 1);
        let first = layer * self.experts_per_layer;
        let kept = (-(rows as f32) / MEMORY_ROWS).exp();
        for (chance, count) in self.chance[first..].iter_mut().zip(&self.counts) {
            *chance = *chance * kept + (1.0 - kept) * *count as f32 / rows as f32;
        }
        let missing: Vec<usize> = (0..self.experts_per_layer)
            .filter(|expert| self.counts[*expert] > 0 && self.slot(layer, *expert).is_none())
            .collect();
        self.free(layer, missing.len());
        for expert in missing {
            let slot = self.candidates.pop().expect("one was freed for each");
            self.put(layer, expert, slot);
            loads.push(Load { layer, expert, slot });
        }
        self.counts.iter().filter(|count| **count > 0).count()
    }

    /// Puts experts into empty slots until one or the other runs out, the likeliest first and
    /// otherwise evenly over the layers, and adds them to `loads`.
    pub(crate) fn fill(&mut self, loads: &mut Vec<Load>) {
        let of_layer = self.experts_per_layer;
        let mut absent: Vec<usize> =
            (0..self.slot_of.len()).filter(|expert| self.slot_of[*expert].is_none()).collect();
        // Stable, so that of equal ones the first of every layer come before the second.
        absent.sort_by_key(|expert| (expert % of_layer, expert / of_layer));
        absent.sort_by(|a, b| self.chance[*b].total_cmp(&self.chance[*a]));
        let empty = (0..self.held.len()).filter(|slot| self.held[*slot].is_none());
        let pairs: Vec<(usize, usize)> = empty.zip(absent).collect();
        for (slot, expert) in pairs {
            let (layer, expert) = (expert / of_layer, expert % of_layer);
            self.put(layer, expert, slot);
            loads.push(Load { layer, expert, slot });
        }
    }

    /// The experts in memory, each as it would be read into its slot again.
    pub(crate) fn loads(&self) -> impl Iterator<Item = Load> {
        let of_layer = self.experts_per_layer;
        let load = move |(slot, held): (usize, &Option<usize>)| {
            held.map(|expert| Load { layer: expert / of_layer, expert: expert % of_layer, slot })
        };
        self.held.iter().enumerate().filter_map(load)
    }

    /// Empties a slot.
    pub(crate) fn forget(&mut self, slot: usize) {
        if let Some(expert) = self.held[slot].take() {
            self.slot_of[expert] = None;
        }
    }

    fn put(&mut self, layer: usize, expert: usize, slot: usize) {
        self.forget(slot);
        let expert = layer * self.experts_per_layer + expert;
        self.held[slot] = Some(expert);
        self.slot_of[expert] = Some(slot);
    }

    /// Leaves the slots of `count` experts that give way in `candidates`: empty ones, and then those
    /// of the experts least likely to be chosen, none of which the layer in use needs now.
    fn free(&mut self, layer: usize, count: usize) {
        self.candidates.clear();
        if count == 0 {
            return;
        }
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.extend((0..self.held.len()).filter(|slot| !self.is_needed(layer, *slot)));
        assert!(candidates.len() >= count, "room for the experts of one layer");
        if candidates.len() > count {
            candidates.select_nth_unstable_by(count - 1, |a, b| self.gives_way(layer, *a, *b));
        }
        candidates.truncate(count);
        self.candidates = candidates;
    }

    fn is_needed(&self, layer: usize, slot: usize) -> bool {
        self.held[slot].is_some_and(|expert| {
            let (of, expert) = (expert / self.experts_per_layer, expert % self.experts_per_layer);
            of == layer && self.counts[expert] > 0
        })
    }

    /// Orders slots by which gives way first while `layer` is in use.
    fn gives_way(&self, layer: usize, a: usize, b: usize) -> Ordering {
        let layers = self.slot_of.len() / self.experts_per_layer;
        let rank = |slot: usize| {
            // Empty slots first; of equal chances the one whose layer comes last in turn.
            self.held[slot].map(|expert| {
                let of = expert / self.experts_per_layer;
                let distance = (of + layers - layer - 1) % layers;
                (self.chance[expert], layers - distance)
            })
        };
        match (rank(a), rank(b)) {
            (Some((chance, turn)), Some((other, other_turn))) => {
                chance.total_cmp(&other).then(turn.cmp(&other_turn))
            }
            (a, b) => a.is_some().cmp(&b.is_some()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn choose(slots: &mut Slots, layer: usize, chosen: &[usize]) -> Vec<Load> {
        let mut loads = Vec::new();
        slots.choose(layer, chosen, 1, &mut loads);
        loads
    }

    #[test]
    fn what_is_in_memory_is_not_read_again_and_the_unlikeliest_gives_way() {
        let mut slots = Slots::new(2, 3, 4);
        assert_eq!(choose(&mut slots, 0, &[1, 2]).len(), 2);
        assert_eq!(choose(&mut slots, 1, &[0, 2]).len(), 2);
        assert!(choose(&mut slots, 0, &[2]).is_empty());
        assert!(choose(&mut slots, 0, &[2]).is_empty());
        // Of layer 0 expert 1, not chosen twice, is now the least likely of all.
        let gone = slots.slot(0, 1).unwrap();
        assert_eq!(choose(&mut slots, 1, &[1]), [Load { layer: 1, expert: 1, slot: gone }]);
        assert_eq!(slots.slot(0, 1), None);
        assert_eq!((slots.resident(0), slots.resident(1)), (1, 3));
    }

    /// Layers in turn with a favourite each: whoever used the slot of the one used longest ago
    /// would read every expert every time.
    #[test]
    fn favourites_stay_although_all_layers_pass_in_turn() {
        let (layers, experts) = (8, 16);
        let mut slots = Slots::new(layers, experts, 2 * experts);
        let mut reads_of_favourites = 0;
        for token in 0..400 {
            for layer in 0..layers {
                // Two of three choices are always the same, one goes round.
                let chosen = [3, 7, 8 + (token * 5 + layer) % 8];
                let loads = choose(&mut slots, layer, &chosen);
                if token >= 200 {
                    reads_of_favourites += loads.iter().filter(|load| load.expert < 8).count();
                }
            }
        }
        assert_eq!(reads_of_favourites, 0);
    }

    #[test]
    fn a_change_of_subject_is_followed() {
        let mut slots = Slots::new(1, 8, 8);
        (0..300).for_each(|_| drop(choose(&mut slots, 0, &[0, 1])));
        (0..300).for_each(|_| drop(choose(&mut slots, 0, &[4, 5])));
        assert!(slots.chance[4] > 0.9 && slots.chance[0] < 0.1, "{:?}", slots.chance);
    }

    #[test]
    fn empty_slots_are_filled_evenly_and_a_smaller_store_forgets() {
        let mut slots = Slots::new(3, 4, 8);
        let mut loads = Vec::new();
        slots.fill(&mut loads);
        assert_eq!(loads.len(), 8);
        assert_eq!([0, 1, 2].map(|layer| slots.resident(layer)), [3, 3, 2]);
        slots.resize(4);
        assert_eq!((0..3).map(|layer| slots.resident(layer)).sum::<usize>(), 4);
        slots.resize(12);
        loads.clear();
        slots.fill(&mut loads);
        assert_eq!((loads.len(), slots.resident(2)), (8, 4));
    }

    proptest! {
        #[test]
        fn every_chosen_expert_has_a_slot_of_its_own(
            steps in prop::collection::vec((0..3_usize, prop::collection::vec(0..6_usize, 1..20)), 1..60),
            capacity in 6..18_usize,
        ) {
            let mut slots = Slots::new(3, 6, capacity);
            for (layer, chosen) in steps {
                let before: Vec<bool> =
                    (0..6).map(|expert| slots.slot(layer, expert).is_some()).collect();
                let mut loads = Vec::new();
                let distinct = slots.choose(layer, &chosen, 2, &mut loads);
                for expert in &chosen {
                    let slot = slots.slot(layer, *expert).expect("chosen");
                    prop_assert_eq!(slots.held[slot], Some(layer * 6 + *expert));
                }
                for load in &loads {
                    prop_assert!(!before[load.expert] && chosen.contains(&load.expert));
                }
                prop_assert!(loads.len() <= distinct);
                let resident: usize = (0..3).map(|layer| slots.resident(layer)).sum();
                prop_assert!(resident <= capacity);
            }
        }
    }
}
