//! The second stage of the arguments of `motley serve`: what the words mean together.

use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use motley_cluster::Workload;
use motley_gateway::{BindPolicy, BindRefused, KeyDigest, KeyRing, Scope, UsualOptions};
use motley_planner::Objective;
use motley_ring::WireElement;

use super::arguments::Arguments;
use super::limits::ServeLimits;
use crate::cluster::{ProfileSource, Split};
use crate::failure::{Failure, Kind};
use crate::identity::StateFolder;
use crate::key;
use crate::loading::EngineWish;
use crate::plan;
use crate::pull;
use crate::store;

/// Bytes of a file of keys at most.
const KEY_FILE_BYTES_MAX: u64 = 1 << 20;

/// Characters that a key has at least, so that it cannot be guessed.
const KEY_CHARACTERS_MIN: usize = 8;

/// What `motley serve` is to do, free of contradictions.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) path: PathBuf,
    pub(super) alias: Option<String>,
    pub(super) address: SocketAddr,
    pub(super) keys: KeyRing,
    pub(super) host_names: Vec<String>,
    pub(super) allowed_origins: Vec<String>,
    pub(super) vllm_metrics: bool,
    pub(super) engine: EngineWish,
    /// What is known of this device's speed, or how it is measured.
    pub(super) profile: ProfileSource,
    pub(super) cluster: Option<ClusterWish>,
    /// The folder of keys and lists that was named.
    pub(super) state: Option<PathBuf>,
    pub(super) verbose: bool,
    /// What holds where a request is silent.
    pub(super) usual: UsualOptions,
    pub(super) limits: ServeLimits,
}

/// How other devices take part.
#[derive(Debug)]
pub(super) struct ClusterWish {
    pub(super) address: SocketAddr,
    /// Whether the local network is to hear of it.
    pub(super) announced: bool,
    pub(super) nodes_awaited: usize,
    pub(super) split: Split,
    pub(super) objective: Objective,
    /// Lengths and arrivals to plan for, if they are not one user's.
    pub(super) workload: Option<Workload>,
    pub(super) rounds: Option<u32>,
    pub(super) wire: WireElement,
}

impl Settings {
    /// Joins words, options and files of keys.
    ///
    /// # Errors
    /// When they contradict each other, name nothing that exists, or would open the models to
    /// everyone.
    pub(super) fn new(arguments: Arguments) -> Result<Self, Failure> {
        let keys = keys(&arguments)?;
        let address = SocketAddr::new(arguments.host, arguments.port);
        let policy = BindPolicy {
            insecure_no_auth: arguments.insecure_no_auth,
            public_confirmed: arguments.public,
        };
        policy.check(address, &keys).map_err(bind_refused)?;
        let engine = EngineWish::new(
            arguments.threads,
            arguments.batch_size,
            arguments.ubatch_size,
            arguments.parallel,
        )?
        .with_batch_threads(arguments.threads_batch)?;
        let cluster = cluster_wish(&arguments)?;
        let profile = ProfileSource::new(
            arguments.profile.as_deref(),
            arguments.models.clone(),
            arguments.threads,
            arguments.gpu.gpu_memory,
        )?;
        let limits = arguments.limits.checked().map_err(Failure::usage)?;
        Ok(Self {
            path: model_path(&arguments)?,
            alias: arguments.alias,
            address,
            keys,
            host_names: arguments.host_name,
            allowed_origins: arguments.allow_origin,
            vllm_metrics: arguments.metrics_compat.is_some(),
            engine: EngineWish {
                context_tokens: arguments.context,
                cache: arguments.cache.element(),
                layout: arguments.layout.choice(),
                weights: arguments.weights,
                memory_budget_bytes: arguments.memory,
                gpu: arguments.gpu,
                serves: true,
                ..engine
            },
            profile,
            cluster,
            state: arguments.state,
            verbose: arguments.verbose || arguments.log_verbosity.is_some_and(|level| level > 0),
            usual: arguments.usual.options(),
            limits,
        })
    }
}

/// The model's file, fetched if it is to be.
fn model_path(arguments: &Arguments) -> Result<PathBuf, Failure> {
    let word = match (&arguments.model, &arguments.word, &arguments.hf_repo) {
        (None, None, Some(model)) => {
            return pull::of_hub(model, arguments.models.clone(), arguments.offline);
        }
        (None, None, None) => {
            return Err(Failure::usage("no model is named").hint("motley serve MODEL.gguf"));
        }
        (Some(model), None, None) | (None, Some(model), None) => model,
        _ => {
            let error = "the model is given more than once, by --model, -hf or a word";
            return Err(Failure::usage(error));
        }
    };
    store::resolve(word, store::folder(arguments.models.clone()).as_deref())
}

/// Other devices can join only where the user says so: by default nothing listens for them.
fn cluster_wish(arguments: &Arguments) -> Result<Option<ClusterWish>, Failure> {
    let host = match (arguments.lan, arguments.cluster_host) {
        (true, _) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        (false, Some(host)) => host,
        (false, None) if arguments.nodes > 0 => {
            return Err(Failure::usage("--nodes waits for devices that cannot join")
                .hint("--lan lets them join over the local network"));
        }
        (false, None) if arguments.rounds.is_some() => {
            return Err(Failure::usage("--rounds is about a ring, and no device can join")
                .hint("--lan lets them join over the local network"));
        }
        (false, None) => return Ok(None),
    };
    if arguments.gpu.gpu_layers.is_some_and(|layers| layers > 0) {
        return Err(Failure::usage("--gpu-layers is for a model on one device")
            .hint("leave it out: a plan decides which layers GPUs take"));
    }
    if arguments.cache.differ() {
        return Err(Failure::usage("devices of a cluster cache keys and values in one type")
            .hint("give -ctk alone, or the same for -ctv"));
    }
    Ok(Some(ClusterWish {
        address: SocketAddr::new(host, arguments.cluster_port),
        announced: arguments.lan,
        nodes_awaited: arguments.nodes,
        split: arguments.split.clone(),
        objective: arguments.objective.objective(),
        workload: arguments.workload.as_deref().map(plan::read_document).transpose()?,
        rounds: arguments.rounds,
        wire: arguments.wire.element(),
    }))
}

fn bind_refused(refused: BindRefused) -> Failure {
    let failure = Failure::new(Kind::Refused, refused);
    match refused {
        BindRefused::NoKey { .. } => {
            failure.hint("motley key new NAME makes one; --api-key KEY sets one")
        }
        BindRefused::PublicUnconfirmed { .. } => failure.hint("--public confirms it"),
    }
}

/// The keys of options and file, which may ask models and see what others do, and those that
/// `motley key` made.
fn keys(arguments: &Arguments) -> Result<KeyRing, Failure> {
    let mut ring = KeyRing::new();
    let from_file = arguments.api_key_file.as_deref().map(keys_in).transpose()?;
    for key in arguments.api_key.iter().chain(from_file.iter().flatten()) {
        if key.chars().count() < KEY_CHARACTERS_MIN {
            return Err(Failure::usage(format!(
                "an API key has fewer than {KEY_CHARACTERS_MIN} characters"
            )));
        }
        ring.add(KeyDigest::of(key), Scope::Admin);
    }
    // Without a home folder nobody can have made one.
    if let Ok(state) = StateFolder::locate(arguments.state.clone()) {
        key::kept(&state)?.into_iter().for_each(|(digest, scope)| ring.add(digest, scope));
    }
    Ok(ring)
}

/// The lines of a file of keys; empty ones and those that begin with `#` say nothing.
fn keys_in(path: &Path) -> Result<Vec<String>, Failure> {
    let told = || format!("cannot read the keys in {}", path.display());
    let length = fs::metadata(path).with_context(told)?.len();
    if length > KEY_FILE_BYTES_MAX {
        return Err(Failure::usage(format!("{}: {length} bytes are no file of keys", told())));
    }
    let text = fs::read_to_string(path).with_context(told)?;
    let lines = text.lines().map(str::trim);
    let keys: Vec<String> = lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect();
    if keys.is_empty() {
        return Err(Failure::usage(format!("{} holds no key", path.display())));
    }
    Ok(keys)
}
