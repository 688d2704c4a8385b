//! What a slot holds: a sequence from its prompt to its last token, or what an earlier one left.

use super::{Ask, CallerId, MicroBatch, RequestId, wanted};
use crate::batch::{Run, SlotIndex};

/// Whether a slot that holds many positions may go on from an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReuseRule {
    /// From any.
    Anywhere,
    /// Some layers see only so many positions and keep only so many; what is overwritten is gone.
    SlidingWindow {
        /// Positions that such a layer sees.
        window_tokens: u32,
        /// Positions that it keeps.
        kept_tokens: u32,
    },
    /// The model keeps a state that cannot go back.
    OnlyForward,
}

impl ReuseRule {
    /// Whether a slot that now ends at `filled`, and whose furthest position ever was just below
    /// `reach`, may go on at `position`.
    #[must_use]
    pub const fn allows(self, position: u32, filled: u32, reach: u32) -> bool {
        if position == filled {
            return true;
        }
        match self {
            Self::Anywhere => position < filled,
            Self::SlidingWindow { window_tokens, kept_tokens } => {
                let oldest_needed = (position + 1).saturating_sub(window_tokens);
                position < filled && oldest_needed >= reach.saturating_sub(kept_tokens)
            }
            Self::OnlyForward => false,
        }
    }
}

/// What a slot is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotPhase {
    /// Nothing; it may still hold what an earlier sequence computed.
    Free,
    /// Its prompt is being computed.
    Prompt,
    /// It generates.
    Answer,
    /// Its request has ended, its last micro-batch is still on its way.
    Ending,
}

/// One slot, for people and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotState {
    /// The slot.
    pub slot: SlotIndex,
    /// What it is doing.
    pub phase: SlotPhase,
    /// For whom.
    pub request: Option<RequestId>,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens of prompt and answer so far, or left behind by an earlier sequence.
    pub tokens: u32,
    /// Tokens that are computed.
    pub computed_tokens: u32,
}

/// A place for a sequence.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) sequence: Option<Sequence>,
    /// Tokens that are cached while no sequence is here, and whose they are.
    history: Vec<u32>,
    owner: Option<Owner>,
    /// Positions up to here were ever cached since the slot began afresh.
    reach: u32,
    last_used: u64,
}

/// Who may use what a slot holds.
type Owner = (CallerId, Option<u64>);

/// A sequence that has a slot.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each named at its use")]
pub(super) struct Sequence {
    pub(super) request: RequestId,
    pub(super) caller: CallerId,
    cache_salt: Option<u64>,
    pub(super) tokens: Vec<u32>,
    pub(super) prompt_tokens: usize,
    /// Length of the sequence at which it has as many tokens as were asked for.
    pub(super) length_max: usize,
    /// Tokens that were in the slot when it came.
    pub(super) cached: u32,
    /// Tokens that are computed or on their way.
    pub(super) sent: u32,
    /// Tokens that are computed.
    pub(super) computed: u32,
    /// Micro-batches on their way that have rows of it.
    pub(super) in_flight: u32,
    pub(super) prompt_rows: bool,
    /// The slot is to be cleared before the next rows.
    fresh: bool,
    pub(super) resting: bool,
    /// Its last token is chosen, the driver has not finished it yet.
    pub(super) complete: bool,
    pub(super) ended: bool,
    /// A micro-batch failed, so that the cache cannot be trusted.
    pub(super) broken: bool,
    /// When it last began to wait for rows.
    pub(super) waiting_since: u64,
    /// Prompts that were complete before this one was begun.
    overtaken: u32,
}

impl Sequence {
    /// Whether its prompt is computed, so that one row gives one token.
    pub(super) fn is_decoding(&self) -> bool {
        self.tokens.len() > self.prompt_tokens && !self.ended && !self.resting && !self.complete
    }
}

impl Slot {
    /// Tokens that could be computed now.
    pub(super) fn pending(&self) -> u32 {
        match &self.sequence {
            Some(sequence) if !sequence.ended && !sequence.resting && !sequence.complete => {
                sequence.tokens.len() as u32 - sequence.sent
            }
            _ => 0,
        }
    }

    pub(super) fn waiting_since(&self) -> u64 {
        self.sequence.as_ref().map_or(0, |sequence| sequence.waiting_since)
    }

    /// Prompts that were complete before this slot's was begun.
    pub(super) fn overtaken(&self) -> u32 {
        self.sequence.as_ref().map_or(0, |sequence| sequence.overtaken)
    }

    /// Notes that so many prompts are complete before this slot's, if nothing of it is sent yet.
    pub(super) fn overtake(&mut self, prompts: u32) {
        if let Some(sequence) = &mut self.sequence
            && sequence.sent == sequence.cached
        {
            sequence.overtaken += prompts;
        }
    }

    /// Whether the rows that come next are all wanted at the head.
    pub(super) fn wants_all_rows(&self) -> bool {
        self.sequence.as_ref().is_some_and(|sequence| {
            sequence.prompt_rows && (sequence.sent as usize) < sequence.prompt_tokens
        })
    }

    pub(super) fn prompt_tokens(&self) -> u32 {
        self.sequence.as_ref().map_or(0, |sequence| sequence.prompt_tokens as u32)
    }

    /// Rows of the prompt that were not in the slot when it came.
    pub(super) fn rows_to_compute(&self) -> u32 {
        self.sequence.as_ref().map_or(0, |it| (it.prompt_tokens as u32).saturating_sub(it.cached))
    }

    /// Tokens of the request's prompt that need not be computed again, if it came here.
    pub(super) fn reusable(&self, ask: &Ask, rule: ReuseRule) -> u32 {
        if ask.prompt_rows || self.owner != Some((ask.caller, ask.cache_salt)) {
            return 0;
        }
        let pairs = self.history.iter().zip(&ask.prompt);
        let common = pairs.take_while(|(old, new)| old == new).count();
        // The last token of the prompt is computed again, because its logits are wanted.
        let position = common.min(ask.prompt.len() - 1) as u32;
        let filled = self.history.len() as u32;
        if rule.allows(position, filled, self.reach) { position } else { 0 }
    }

    /// Larger for slots that suit a request better: those where it reuses much, then empty ones,
    /// then those that were not used for the longest time. Much is half of what either has, so that
    /// a long history is not given up for the few tokens that all prompts begin with.
    pub(super) fn fitness(&self, ask: &Ask, rule: ReuseRule) -> (u32, u64) {
        let reused = self.reusable(ask, rule);
        let least = self.history.len().min(ask.prompt.len()).div_ceil(2);
        let much = if reused as usize >= least { reused } else { 0 };
        let spare = if self.history.is_empty() { u64::MAX } else { u64::MAX - 1 - self.last_used };
        (much, spare)
    }

    /// Begins a sequence, of which `reused` tokens are here already.
    pub(super) fn place(&mut self, ask: Ask, reused: u32, moment: u64) {
        let fresh = reused == 0;
        if fresh {
            self.reach = 0;
        }
        self.history.clear();
        self.owner = None;
        self.sequence = Some(Sequence {
            request: ask.request,
            caller: ask.caller,
            cache_salt: ask.cache_salt,
            prompt_tokens: ask.prompt.len(),
            length_max: ask.prompt.len().saturating_add(ask.tokens_max as usize),
            tokens: ask.prompt,
            cached: reused,
            sent: reused,
            computed: reused,
            in_flight: 0,
            prompt_rows: ask.prompt_rows,
            fresh,
            resting: false,
            complete: false,
            ended: false,
            broken: false,
            waiting_since: moment,
            overtaken: 0,
        });
    }

    /// Adds the next `rows` tokens to a micro-batch.
    pub(super) fn send(&mut self, slot: SlotIndex, rows: u32, micro_batch: &mut MicroBatch) {
        let sequence = self.sequence.as_mut().expect("rows belong to a sequence");
        let first = sequence.sent as usize;
        let end = first + rows as usize;
        let wanted = wanted(sequence, end);
        micro_batch.tokens.extend_from_slice(&sequence.tokens[first..end]);
        micro_batch.requests.push(sequence.request);
        let first_position = sequence.sent;
        let fresh = std::mem::take(&mut sequence.fresh);
        micro_batch.batch.push(Run { slot, first_position, rows, wanted, fresh });
        sequence.sent = end as u32;
        sequence.in_flight += 1;
        self.reach = self.reach.max(sequence.sent);
    }

    /// Frees the slot if its request has ended and nothing of it is on its way; what it has
    /// computed stays for later requests.
    pub(super) fn free_if_over(&mut self, moment: u64) {
        let over = |sequence: &mut Sequence| sequence.ended && sequence.in_flight == 0;
        let Some(sequence) = self.sequence.take_if(over) else { return };
        self.last_used = moment;
        // What was never begun has left the cache as it was, but whose it is was forgotten.
        if !sequence.broken && !sequence.fresh {
            self.history = sequence.tokens;
            self.history.truncate(sequence.computed as usize);
            self.owner = Some((sequence.caller, sequence.cache_salt));
        }
    }

    pub(super) fn state(&self, slot: SlotIndex) -> SlotState {
        let Some(sequence) = &self.sequence else {
            let tokens = self.history.len() as u32;
            let (phase, computed_tokens) = (SlotPhase::Free, tokens);
            return SlotState {
                slot,
                phase,
                request: None,
                prompt_tokens: 0,
                tokens,
                computed_tokens,
            };
        };
        let phase = if sequence.ended {
            SlotPhase::Ending
        } else if sequence.tokens.len() > sequence.prompt_tokens {
            SlotPhase::Answer
        } else {
            SlotPhase::Prompt
        };
        SlotState {
            slot,
            phase,
            request: Some(sequence.request),
            prompt_tokens: sequence.prompt_tokens as u32,
            tokens: sequence.tokens.len() as u32,
            computed_tokens: sequence.computed,
        }
    }
}
