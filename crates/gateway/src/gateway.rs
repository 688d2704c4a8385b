//! What every handler shares, and what is known of the request at hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use crate::backend::{Backend, Caller, KeyId, ModelCard};
use crate::config::GatewayConfig;
use crate::error::ApiError;
use crate::limits::MODEL_NAME_BYTES;
use crate::metrics::Metrics;

/// The state of a router.
pub(crate) struct Gateway {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) config: GatewayConfig,
    pub(crate) metrics: Arc<Metrics>,
    ids: IdSource,
}

/// What the guard learned about a request before a handler sees it.
#[derive(Clone, Debug)]
pub(crate) struct RequestContext {
    pub(crate) id: String,
    pub(crate) key: Option<KeyId>,
    pub(crate) received: Instant,
}

impl RequestContext {
    pub(crate) fn caller(&self, cache_salt: Option<String>) -> Caller {
        Caller { key: self.key, cache_salt }
    }
}

impl Gateway {
    pub(crate) fn new(backend: Arc<dyn Backend>, config: GatewayConfig) -> Self {
        let ids = IdSource { seed: config.id_seed, next: AtomicU64::new(0) };
        let metrics = Arc::new(Metrics::new(config.metric_names));
        Self { backend, config, metrics, ids }
    }

    /// A new id, such as `chatcmpl-…`.
    pub(crate) fn new_id(&self, prefix: &str) -> String {
        self.ids.next(prefix)
    }

    pub(crate) fn unix_time_s(&self) -> u64 {
        self.config.clock.now_s()
    }

    /// The model a request names, or the default one if it names none.
    pub(crate) fn model(&self, name: Option<&str>) -> Result<ModelCard, ApiError> {
        let mut models = self.backend.models().into_iter();
        let Some(name) = name else { return models.next().ok_or(ApiError::NoSuchModel) };
        if name.len() > MODEL_NAME_BYTES {
            return Err(ApiError::NoSuchModel);
        }
        // Ollama's clients append the tag they assume.
        let short = name.strip_suffix(":latest").unwrap_or(name);
        let matches = |known: &str| known == name || known == short;
        models
            .find(|card| matches(&card.id) || card.aliases.iter().any(|alias| matches(alias)))
            .ok_or(ApiError::NoSuchModel)
    }
}

/// Ids that differ within a run by a counter and between runs by a seed.
struct IdSource {
    seed: u64,
    next: AtomicU64,
}

impl IdSource {
    fn next(&self, prefix: &str) -> String {
        let count = self.next.fetch_add(1, Ordering::Relaxed);
        format!("{prefix}{:016x}{count:08x}", self.seed)
    }
}
