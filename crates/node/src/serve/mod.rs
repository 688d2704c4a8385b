//! `motley serve`: the HTTP gateway over the engine of this machine.
//!
//! `backend` answers the gateway's calls with the driver, `listener` turns tokens into text, `http`
//! is the socket, `settings` what the words mean together.

mod arguments;
mod backend;
mod card;
mod http;
mod listener;
mod log;
mod settings;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use motley_gateway::{Exposure, GatewayConfig, Limits, MetricNames, SharedLog, UnixClock, router};

pub(crate) use arguments::Arguments;
use backend::EngineBackend;
use settings::Settings;

use crate::failure::Failure;
use crate::loading;
use crate::run::random_seed;
use crate::terminal;

/// Threads that read requests and write answers; computing has its own.
const HTTP_THREADS: usize = 2;

/// How long tasks may take to end after the last answer.
const TASKS_END: Duration = Duration::from_secs(2);

/// Serves a model until it is told to stop.
pub(crate) fn execute(arguments: Arguments, started: Instant) -> Result<(), Failure> {
    let settings = Settings::new(arguments)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(HTTP_THREADS)
        .enable_all()
        .build()
        .context("cannot start the network threads")?;
    // The port is taken before the model is loaded, so that one in use is told at once.
    let socket = runtime.block_on(http::bind(settings.address))?;
    let address = socket.local_addr()?;
    let ready = loading::load(&settings.path, &settings.engine)?;
    let facts = ready.facts;
    let backend = EngineBackend::new(ready, &settings)?;
    let models = vec![backend.name().to_owned()];
    let config = config(&settings, address);
    let limits = config.limits;
    let router = router(Arc::new(backend), config);
    let memory = facts.memory;
    terminal::note(&format!(
        "serving {} on http://{address}/v1 after {}: {} slots of {} tokens, {} weights, {} cache\n",
        models.join(", "),
        terminal::duration(started.elapsed()),
        facts.slots,
        facts.context_tokens,
        terminal::bytes(memory.weights_mapped_bytes + memory.weights_allocated_bytes),
        terminal::bytes(memory.cache_bytes),
    ));
    let served = runtime.block_on(http::serve(socket, router, limits));
    runtime.shutdown_timeout(TASKS_END);
    Ok(served?)
}

fn config(settings: &Settings, address: SocketAddr) -> GatewayConfig {
    let mut host_names = settings.host_names.clone();
    if !address.ip().is_unspecified() {
        host_names.push(address.ip().to_string());
    }
    GatewayConfig {
        limits: Limits::DEFAULT,
        keys: settings.keys.clone(),
        host_names,
        allowed_origins: settings.allowed_origins.clone(),
        exposure: Exposure::of(address.ip()),
        metric_names: match settings.vllm_metrics {
            true => MetricNames::MotleyAndVllm,
            false => MetricNames::Motley,
        },
        version: env!("CARGO_PKG_VERSION").to_owned(),
        id_seed: random_seed(),
        clock: UnixClock::new(unix_now_s),
        log: if settings.verbose { SharedLog::new(log::Lines) } else { SharedLog::default() },
    }
}

/// Seconds since 1970.
fn unix_now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
