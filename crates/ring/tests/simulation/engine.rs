//! A model whose every value depends on everything before it: hidden states are digests, and what a
//! layer caches of a slot is a chain of them. A lost, repeated, reordered or foreign row changes
//! every token that follows.

use std::collections::BTreeMap;
use std::ops::Range;

use motley_ring::{ReuseRule, SlotIndex, Work};

use crate::random::digest;

/// Tokens there are.
pub(crate) const VOCABULARY: u64 = 1000;
/// Bytes of a row: one hidden state.
pub(crate) const ROW_BYTES: usize = 8;

/// What one layer has cached of one slot.
#[derive(Debug, Default)]
struct Chain {
    links: Vec<u64>,
    reach: u32,
}

/// The layers of one member.
#[derive(Debug)]
pub(crate) struct FakeEngine {
    layers: u32,
    rule: ReuseRule,
    chains: BTreeMap<(u32, SlotIndex), Chain>,
}

impl FakeEngine {
    pub(crate) fn new(layers: u32, rule: ReuseRule) -> Self {
        Self { layers, rule, chains: BTreeMap::new() }
    }

    /// Computes a work and gives the rows that leave, as bytes.
    pub(crate) fn run(&mut self, work: &Work<Vec<u8>>) -> Vec<u8> {
        for slot in work.slots_to_clear() {
            self.chains.retain(|(_, cleared), _| *cleared != slot);
        }
        let entering = words(&work.payload);
        let rows = if work.enters_wanted { work.batch.wanted_rows() } else { work.batch.rows() };
        assert_eq!(entering.len(), rows as usize, "one value for each row that travels");
        if work.enters_wanted {
            assert!(work.layers.is_empty() && work.leaves_wanted);
            return work.payload.clone();
        }
        let mut leaving = Vec::new();
        let mut entering = entering.into_iter();
        for run in work.batch.runs() {
            for position in run.first_position..run.end_position() {
                let value = entering.next().expect("counted above");
                let value = if work.embeds { embed(value, position) } else { value };
                leaving.push(self.layers(work.layers.clone(), run.slot, position, value));
            }
        }
        if work.leaves_wanted {
            leaving = work.batch.wanted_indices().map(|row| leaving[row]).collect();
        }
        assert_eq!(work.projects, work.layers.end == self.layers && work.projects);
        bytes(&leaving)
    }

    fn layers(
        &mut self,
        layers: Range<u32>,
        slot: SlotIndex,
        position: u32,
        mut value: u64,
    ) -> u64 {
        for layer in layers {
            let chain = self.chains.entry((layer, slot)).or_default();
            let filled = chain.links.len() as u32;
            assert!(position <= filled, "rows are missing");
            assert!(self.rule.allows(position, filled, chain.reach), "a step back too far");
            chain.links.truncate(position as usize);
            let before = chain.links.last().copied().unwrap_or(0);
            chain.links.push(digest(&[before, u64::from(layer), value]));
            chain.reach = chain.reach.max(position + 1);
            value = digest(&[value, chain.links[position as usize]]);
        }
        value
    }
}

/// What one process alone answers to a prompt.
pub(crate) fn reference(layers: u32, prompt: &[u32], tokens_max: u32, context: u32) -> Vec<u32> {
    let mut chains = vec![0; layers as usize];
    let mut answer = Vec::new();
    let mut position = 0;
    let mut pending: Vec<u32> = prompt.to_vec();
    loop {
        let mut value = 0;
        for token in pending.drain(..) {
            value = embed(token.into(), position);
            position += 1;
            for (layer, chain) in (0u64..).zip(&mut chains) {
                *chain = digest(&[*chain, layer, value]);
                value = digest(&[value, *chain]);
            }
        }
        let token = choose(value);
        if ends(token) {
            return answer;
        }
        answer.push(token);
        if answer.len() >= tokens_max as usize || position + 1 >= context {
            return answer;
        }
        pending.push(token);
    }
}

/// The token that follows a hidden state.
pub(crate) fn choose(value: u64) -> u32 {
    (digest(&[value]) % VOCABULARY) as u32
}

/// Whether a token ends its answer.
pub(crate) fn ends(token: u32) -> bool {
    token.is_multiple_of(40)
}

fn embed(token: u64, position: u32) -> u64 {
    digest(&[token, position.into()])
}

pub(crate) fn bytes(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub(crate) fn words(bytes: &[u8]) -> Vec<u64> {
    let (values, []) = bytes.as_chunks::<ROW_BYTES>() else { panic!("whole rows") };
    values.iter().map(|value| u64::from_le_bytes(*value)).collect()
}
