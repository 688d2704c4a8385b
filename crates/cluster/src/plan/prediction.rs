//! The numbers a plan promises.

use serde::{Deserialize, Serialize};

use crate::units::{Joules, Seconds, TokensPerSecond};

/// What one replica is expected to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaPrediction {
    /// Prompt tokens per second over all its slots; 0 if it decodes only.
    pub prefill_tok_per_s: TokensPerSecond,
    /// Generated tokens per second over all its slots; 0 if it prefills only.
    pub decode_tok_per_s: TokensPerSecond,
    /// Time per output token of one request with all slots busy; 0 if it prefills only.
    pub tpot_s: Seconds,
    /// Busy time of each member per pass of one group, in ring order.
    pub stage_s: Vec<Seconds>,
    /// Time on the wire from each member to the next per pass of one group.
    pub hop_s: Vec<Seconds>,
}

/// What the whole plan is expected to do under its workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanPrediction {
    /// Time to first token without queueing: prefill and hand-over.
    pub ttft_s: Seconds,
    /// Time per output token, of the slowest replica with all slots busy.
    pub tpot_s: Seconds,
    /// Waiting of one request by the plan's own waiting model.
    pub wait_s: Seconds,
    /// Largest waiting for a first token in a run of the workload's requests, own prompt included.
    pub max_wait_s: Seconds,
    /// Prompt tokens per second over all replicas (PS).
    pub prefill_tok_per_s: TokensPerSecond,
    /// Generated tokens per second over all replicas with all slots busy (DS).
    pub decode_tok_per_s: TokensPerSecond,
    /// Generated tokens per second that the arrivals allow, at most the decode rate.
    pub throughput_tok_per_s: TokensPerSecond,
    /// Energy of one generated token, where every device in use has power figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_j_per_token: Option<Joules>,
}
