//! What the gateway counts, and how scrapers read it.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::backend::{BackendMetrics, SeriesKind};
use crate::config::MetricNames;
use crate::token_stream::{FinishReason, Finished};

/// Up to ten minutes: a large model on a home ring may prefill that long.
const LATENCY_BUCKETS_S: [f64; 16] = [
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0,
];
const TOKEN_BUCKETS_S: [f64; 12] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// Label names are fixed; label values come from the served models and from enums of ours.
type Labels = Vec<(&'static str, String)>;
type Histograms = Family<Labels, Histogram, Buckets>;
type Counters = Family<Labels, Counter>;

#[derive(Clone, Debug)]
struct Buckets(&'static [f64]);

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

/// How a generation ended, for the outcome counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Finished(FinishReason),
    Failed,
    Cancelled,
    Refused,
}

impl Outcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Finished(reason) => reason.as_str(),
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Refused => "refused",
        }
    }
}

/// The families of one gateway.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    names: MetricNames,
    first_token: Histograms,
    next_token: Histograms,
    end_to_end: Histograms,
    queued: Histograms,
    prefill: Histograms,
    decode: Histograms,
    per_token: Histograms,
    prompt_tokens: Counters,
    generation_tokens: Counters,
    outcomes: Counters,
}

/// The series of one model, so that a running generation looks nothing up.
#[derive(Clone, Debug)]
pub(crate) struct ModelMetrics {
    model: String,
    first_token: Histogram,
    next_token: Histogram,
    end_to_end: Histogram,
    queued: Histogram,
    prefill: Histogram,
    decode: Histogram,
    per_token: Histogram,
    prompt_tokens: Counter,
    generation_tokens: Counter,
    outcomes: Counters,
}

impl Metrics {
    pub(crate) fn new(names: MetricNames) -> Self {
        let histograms = |buckets| Histograms::new_with_constructor(Buckets(buckets));
        let mut metrics = Self {
            registry: Registry::default(),
            names,
            first_token: histograms(&LATENCY_BUCKETS_S),
            next_token: histograms(&TOKEN_BUCKETS_S),
            end_to_end: histograms(&LATENCY_BUCKETS_S),
            queued: histograms(&LATENCY_BUCKETS_S),
            prefill: histograms(&LATENCY_BUCKETS_S),
            decode: histograms(&LATENCY_BUCKETS_S),
            per_token: histograms(&TOKEN_BUCKETS_S),
            prompt_tokens: Counters::default(),
            generation_tokens: Counters::default(),
            outcomes: Counters::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let histograms = [
            ("time_to_first_token", "From request to first token", &self.first_token),
            ("inter_token_latency", "Between two tokens of one answer", &self.next_token),
            ("e2e_request_latency", "From request to last token", &self.end_to_end),
            ("request_queue_time", "Waiting for a slot", &self.queued),
            ("request_prefill_time", "Computing the prompt", &self.prefill),
            ("request_decode_time", "From first to last token", &self.decode),
            ("request_time_per_output_token", "Mean per answer", &self.per_token),
        ];
        let counters = [
            ("prompt_tokens", "Prompt tokens of finished requests", &self.prompt_tokens),
            ("generation_tokens", "Tokens drawn by finished requests", &self.generation_tokens),
            ("request_success", "Ended generations by reason", &self.outcomes),
        ];
        for prefix in prefixes(self.names) {
            for (name, help, family) in &histograms {
                let name = format!("{prefix}{name}_seconds");
                self.registry.register(name, *help, (*family).clone());
            }
            for (name, help, family) in &counters {
                self.registry.register(format!("{prefix}{name}"), *help, (*family).clone());
            }
        }
    }

    /// The series of `model`, which must be the id of a served model: labels stay bounded.
    pub(crate) fn of_model(&self, model: &str) -> ModelMetrics {
        let labels = vec![("model_name", model.to_owned())];
        let histogram = |family: &Histograms| family.get_or_create(&labels).clone();
        let counter = |family: &Counters| family.get_or_create(&labels).clone();
        ModelMetrics {
            model: model.to_owned(),
            first_token: histogram(&self.first_token),
            next_token: histogram(&self.next_token),
            end_to_end: histogram(&self.end_to_end),
            queued: histogram(&self.queued),
            prefill: histogram(&self.prefill),
            decode: histogram(&self.decode),
            per_token: histogram(&self.per_token),
            prompt_tokens: counter(&self.prompt_tokens),
            generation_tokens: counter(&self.generation_tokens),
            outcomes: self.outcomes.clone(),
        }
    }

    /// Everything in the OpenMetrics text format. `model` labels what the backend reports.
    pub(crate) fn render(&self, model: &str, backend: &BackendMetrics) -> String {
        let mut snapshot = Registry::default();
        for prefix in prefixes(self.names) {
            register_backend(&mut snapshot, prefix, model, backend);
        }
        for series in &backend.more {
            let name = format!("motley_{}", series.name);
            match series.kind {
                SeriesKind::Gauge => {
                    let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
                    for (labels, value) in &series.samples {
                        family.get_or_create(labels).set(*value);
                    }
                    snapshot.register(name, series.help, family);
                }
                SeriesKind::Counter => {
                    let family = Family::<Labels, Counter<f64, AtomicU64>>::default();
                    for (labels, value) in &series.samples {
                        family.get_or_create(labels).inc_by(value.max(0.0));
                    }
                    let name = name.strip_suffix("_total").unwrap_or(&name).to_owned();
                    snapshot.register(name, series.help, family);
                }
            }
        }
        let mut text = String::new();
        encode(&mut text, &snapshot).expect("writing to a string cannot fail");
        // Each encoding ends with the mark that ends the whole exposition.
        text.truncate(text.len() - text.rsplit("# EOF").next().map_or(0, str::len) - "# EOF".len());
        encode(&mut text, &self.registry).expect("writing to a string cannot fail");
        text
    }
}

impl ModelMetrics {
    pub(crate) fn model(&self) -> &str {
        &self.model
    }

    pub(crate) fn first_token(&self, waited: Duration) {
        self.first_token.observe(waited.as_secs_f64());
    }

    pub(crate) fn next_token(&self, gap: Duration) {
        self.next_token.observe(gap.as_secs_f64());
    }

    pub(crate) fn finished(&self, finished: &Finished, took: Duration) {
        let Finished { reason, usage, timings } = finished;
        self.end_to_end.observe(took.as_secs_f64());
        self.queued.observe(timings.queued.as_secs_f64());
        self.prefill.observe(timings.prefill.as_secs_f64());
        self.decode.observe(timings.decode.as_secs_f64());
        if usage.completion_tokens > 1 {
            let steps = f64::from(usage.completion_tokens - 1);
            self.per_token.observe(timings.decode.as_secs_f64() / steps);
        }
        self.prompt_tokens.inc_by(usage.prompt_tokens.into());
        self.generation_tokens.inc_by(usage.completion_tokens.into());
        self.ended(Outcome::Finished(*reason));
    }

    pub(crate) fn ended(&self, outcome: Outcome) {
        let reason = ("finished_reason", outcome.as_str().to_owned());
        let labels = vec![("model_name", self.model.clone()), reason];
        self.outcomes.get_or_create(&labels).inc();
    }
}

fn prefixes(names: MetricNames) -> &'static [&'static str] {
    match names {
        MetricNames::Motley => &["motley_"],
        MetricNames::MotleyAndVllm => &["motley_", "vllm:"],
    }
}

/// Gauges and totals that the backend keeps, read at this moment.
fn register_backend(registry: &mut Registry, prefix: &str, model: &str, backend: &BackendMetrics) {
    let of_model = || vec![("model_name", model.to_owned())];
    let mut gauge = |name: &str, help: &str, values: Vec<(Labels, f64)>| {
        let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
        for (labels, value) in values {
            family.get_or_create(&labels).set(value);
        }
        registry.register(format!("{prefix}{name}"), help, family);
    };
    let one = |value: f64| vec![(of_model(), value)];
    gauge("num_requests_running", "Requests being computed", one(backend.running.into()));
    gauge("num_requests_waiting", "Requests waiting for a slot", one(backend.waiting.into()));
    let by_node = backend.kv_used_ratio.iter().map(|(node, ratio)| {
        let mut labels = of_model();
        labels.push(("node", node.clone()));
        (labels, *ratio)
    });
    gauge("kv_cache_usage_perc", "KV memory in use, 1 is full", by_node.collect());
    let total = |value: u64| BTreeMap::from([(None, value)]);
    let by_cause = backend.migrations.iter().map(|(cause, count)| (Some(cause.clone()), *count));
    let totals = [
        ("prefix_cache_queries", "Prompt tokens looked up", total(backend.prefix_queried_tokens)),
        ("prefix_cache_hits", "Prompt tokens found", total(backend.prefix_hit_tokens)),
        ("num_preemptions", "Requests put back to make room", total(backend.preemptions)),
        ("model_migration", "Requests moved to other devices", by_cause.collect()),
    ];
    for (name, help, values) in totals {
        let family = Counters::default();
        for (cause, count) in values {
            let mut labels = of_model();
            labels.extend(cause.map(|cause| ("migration_type", cause)));
            family.get_or_create(&labels).inc_by(count);
        }
        registry.register(format!("{prefix}{name}"), help, family);
    }
}
