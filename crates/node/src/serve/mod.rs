//! `motley serve`: the HTTP gateway over the engine of this machine, or of a whole cluster.
//!
//! `backend` answers the gateway's calls with the driver, `listener` turns tokens into text, `calls`
//! finds tool calls in it, `forms` forces what an answer must look like, `http` is the socket,
//! `settings` what the words mean together.

mod arguments;
mod backend;
mod calls;
mod card;
mod embedding;
mod forms;
mod http;
mod limits;
mod listener;
mod log;
mod settings;
mod thinking;
mod usual;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use motley_engine::{EngineOptions, Model};
use motley_gateway::{Exposure, GatewayConfig, MetricNames, SharedLog, UnixClock, router};
use motley_planner::Objective;

pub(crate) use arguments::Arguments;
use backend::{EngineBackend, Parts, Place};
use settings::{ClusterWish, Settings};

use crate::blocks::{LocalModel, Manifest, ManifestCache};
use crate::cluster::{
    Allowance, ClusterHead, Goal, HeadPlan, Holding, ServedAlone, Shelf, Sizes, promise_alone,
};
use crate::driver::Driver;
use crate::failure::Failure;
use crate::fitting;
use crate::identity::{Identity, Roster, StateFolder, host_name, trusted_unix_s};
use crate::loading::{self, EngineWish, Ready};
use crate::memory;
use crate::plan;
use crate::run::random_seed;
use crate::running::{RunFile, ServerFacts};
use crate::stage;
use crate::terminal::{self, Progress};
use crate::transport::Endpoint;

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
    let (backend, words, promise) = match &settings.cluster {
        None => alone(&settings)?,
        Some(wish) => together(&settings, wish)?,
    };
    let config = config(&settings, address);
    let name = backend.name().to_owned();
    let router = router(Arc::new(backend), config);
    let run_file = show_running(&settings, &name, address);
    terminal::note(&format!(
        "serving {name} on http://{address}/v1 after {}: {words}\n",
        terminal::duration(started.elapsed()),
    ));
    // Nobody waits for it, and it serves without that, too.
    if let Some(promise) = promise {
        let _ = std::thread::Builder::new().name("plan".to_owned()).spawn(promise);
    }
    let served = runtime.block_on(http::serve(socket, router, &settings.limits));
    drop(run_file);
    runtime.shutdown_timeout(TASKS_END);
    Ok(served?)
}

/// Lets `motley ps` and `motley stop` find this server. It serves without that, too.
fn show_running(settings: &Settings, model: &str, address: SocketAddr) -> Option<RunFile> {
    let facts = ServerFacts {
        model: model.to_owned(),
        path: std::fs::canonicalize(&settings.path).unwrap_or_else(|_| settings.path.clone()),
        address,
        pid: std::process::id(),
        started_unix_s: unix_now_s(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let state = StateFolder::locate(settings.state.clone());
    let created = state.map_err(anyhow::Error::from).and_then(|state| {
        StateFolder::open(&state)?;
        Ok(RunFile::create(&state, &facts)?)
    });
    let told = |error| terminal::note(&format!("motley ps will not list this: {error:#}\n"));
    created.map_err(told).ok()
}

/// Name that clients call the model by.
fn model_name(settings: &Settings) -> String {
    let stem = settings.path.file_stem().unwrap_or_default().to_string_lossy();
    settings.alias.clone().unwrap_or_else(|| stem.into_owned())
}

/// Tells what a plan promises, once the model is served.
type Promise = Box<dyn FnOnce() + Send>;

/// A backend on this device alone, what it holds in words, and what is promised of it.
fn alone(settings: &Settings) -> Result<(EngineBackend, String, Option<Promise>), Failure> {
    // Once the model is loaded, less is available.
    let budget_bytes = fitting::budget_bytes(&settings.engine);
    let ready = loading::load(&settings.path, &settings.engine)?;
    let (facts, memory) = (ready.facts, ready.facts.memory);
    let weights = memory.weights_mapped_bytes + memory.weights_allocated_bytes;
    let words = format!(
        "{} slots of {} tokens, {} weights, {} cache",
        facts.slots,
        facts.context_tokens,
        terminal::bytes(weights),
        terminal::bytes(memory.cache_bytes),
    );
    let place = Place::Alone {
        name: host_name(),
        layers: u32::try_from(ready.model.directory().hyper.block_count)?,
        memory_bytes: memory.total_bytes(),
    };
    let Ready { model, vocabulary, driver, options, .. } = ready;
    driver.limit_waiting(settings.limits.queue);
    let promise =
        (facts.gpu_bytes == 0).then(|| promise(settings, &model, (options, budget_bytes)));
    let parts = Parts { model, vocabulary, driver, place, limits: settings.limits.forms };
    let backend = EngineBackend::new(parts, model_name(settings), facts.context_tokens)?;
    Ok((backend, words, promise))
}

/// Plans with what is known of this device and tells what comes of it. Nothing is measured for that:
/// it would disturb whoever asks the model.
fn promise(
    settings: &Settings,
    model: &Arc<Model>,
    (options, budget_bytes): (EngineOptions, u64),
) -> Promise {
    let (source, model, path) =
        (settings.profile.clone(), Arc::clone(model), settings.path.clone());
    Box::new(move || {
        let told = || -> Result<Option<String>, Failure> {
            let allowance = Allowance {
                slots: u32::try_from(options.slots)?,
                kv_type: stage::kv_type(options.cache),
                batch_rows: u32::try_from(options.batch_rows_max)?,
                sizes: Sizes::new(model.directory(), &options)?,
                given_up: Vec::new(),
            };
            let served = ServedAlone {
                model_name: &plan::model_name(&path),
                directory: model.directory(),
                device_name: host_name(),
                budget_bytes,
                goal: plan::goal(Objective::Latency, None, &options)?,
                allowance,
            };
            Ok(promise_alone(&source, served))
        };
        terminal::note(&match told() {
            Ok(Some(text)) => text,
            Ok(None) => "no speed is predicted: this device was not measured with this model \
                         (motley profile -m MODEL does)\n"
                .to_owned(),
            Err(failure) => format!("no speed is predicted. {}", failure.report()),
        });
    })
}

/// A backend on the devices of a cluster, and how others join in words. Its head tells what plans
/// promise.
fn together(
    settings: &Settings,
    wish: &ClusterWish,
) -> Result<(EngineBackend, String, Option<Promise>), Failure> {
    let model = Arc::new(Model::open(&settings.path).map_err(loading::open_failure)?);
    let context_tokens = loading::shared_context(&model, &settings.engine)?;
    let engine = loading::engine_options(&model, &settings.engine, context_tokens)?;
    let folder = StateFolder::open(&StateFolder::locate(settings.state.clone())?)?;
    let now = trusted_unix_s(SystemTime::now());
    let (identity, _) = Identity::load_or_create_cluster(&folder, &host_name(), now)?;
    let endpoint = Arc::new(Endpoint::new(&identity, Arc::new(Roster::new(&folder)))?);
    let manifest = Arc::new(manifest(&model, &folder)?);
    let shelf = Arc::new(Shelf::default());
    if let Some(local) = LocalModel::open(model.path(), &manifest) {
        shelf.put(Holding::Local(local));
    }
    let vocabulary = model.vocabulary().map_err(loading::open_failure)?;
    let driver = Arc::new(Driver::new());
    driver.end_answers_by(vocabulary.end_tokens());
    driver.limit_waiting(settings.limits.queue);
    if let Some(watch) = memory::watch(settings.engine.weights) {
        driver.yield_to(Arc::new(watch));
    }
    let given = settings.engine.memory_budget_bytes;
    let budget = given.or_else(|| memory::left_to_engines(settings.engine.weights));
    let plan = HeadPlan {
        endpoint,
        folder,
        model: Arc::clone(&model),
        model_name: model_name(settings),
        manifest,
        allowances: allowances(&model, &settings.engine, &engine)?,
        budget_bytes: budget.unwrap_or(u64::MAX),
        split: wish.split.clone(),
        goal: Goal {
            rounds: wish.rounds,
            ..plan::goal(wish.objective, wish.workload.as_ref(), &engine)?
        },
        profile: settings.profile.clone(),
        rounds: wish.rounds.unwrap_or(1),
        wire_element: wish.wire,
        nodes_awaited: wish.nodes_awaited,
        engine: engine.clone(),
    };
    let mut head = ClusterHead::start(plan, wish.address, Arc::clone(&driver), shelf)?;
    if let Some(Err(error)) = wish.announced.then(|| head.announce(&identity)) {
        // Tokens have addresses, so nobody depends on it.
        terminal::note(&format!("{:#}\n", anyhow::Error::from(error)));
    }
    let words =
        format!("devices join at {}; motley token new on this device invites them", head.address());
    let limits = settings.limits.forms;
    let parts = Parts { model, vocabulary, driver, place: Place::Cluster(head), limits };
    let backend = EngineBackend::new(parts, model_name(settings), engine.context_tokens)?;
    Ok((backend, words, None))
}

/// What a ring may keep of sequences: as asked for, and then less and less; at last all that once
/// more in smaller micro-batches, which leave more memory to weights.
fn allowances(
    model: &Model,
    wish: &EngineWish,
    engine: &EngineOptions,
) -> Result<Vec<Allowance>, Failure> {
    let allowance = |less: &EngineWish| {
        let options = EngineOptions {
            slots: less.slots,
            cache: less.cache,
            batch_rows_max: less.batch_rows,
            ..engine.clone()
        };
        Ok(Allowance {
            slots: u32::try_from(less.slots)?,
            kv_type: stage::kv_type(less.cache),
            batch_rows: u32::try_from(less.batch_rows)?,
            sizes: Sizes::new(model.directory(), &options)?,
            given_up: fitting::given_up_of_sequences(wish, less.cache, less.slots),
        })
    };
    let variants = fitting::variants(model, wish);
    let small = variants.iter().filter_map(fitting::in_small_batches);
    variants.iter().copied().chain(small).map(|it| allowance(&it)).collect()
}

/// What the model's files hold, block by block; hashed once as long as they do not change.
fn manifest(model: &Model, folder: &StateFolder) -> Result<Manifest, Failure> {
    let _progress = Progress::start(&format!("hashing {} ...", loading::title(model)));
    let cache = ManifestCache::new(&folder.path().join("manifests"));
    Ok(cache.of_files(&motley_model::split_paths(model.path()), |_, _| {})?)
}

fn config(settings: &Settings, address: SocketAddr) -> GatewayConfig {
    let mut host_names = settings.host_names.clone();
    if !address.ip().is_unspecified() {
        host_names.push(address.ip().to_string());
    }
    GatewayConfig {
        limits: settings.limits.gateway,
        usual: settings.usual,
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
