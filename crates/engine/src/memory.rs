//! What an engine holds in memory.

/// Bytes that an engine holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineMemory {
    /// Weights read from the mapped file.
    pub weights_mapped_bytes: u64,
    /// Weights in memory of their own.
    pub weights_allocated_bytes: u64,
    /// Cached keys and values.
    pub cache_bytes: u64,
    /// Intermediate values.
    pub compute_bytes: u64,
    /// Streamed weights on their way.
    pub stream_bytes: u64,
}

impl EngineMemory {
    /// All of it.
    pub fn total_bytes(&self) -> u64 {
        self.weights_mapped_bytes
            + self.weights_allocated_bytes
            + self.cache_bytes
            + self.compute_bytes
            + self.stream_bytes
    }
}
