//! `motley pull`: a model from a hub or an address into the folder of models.
//!
//! `source` reads what is asked for, `hub` and `pick` find its files, `transfer` fetches one file with
//! `client`, and `partial` keeps what has come. A model gets its name when all of it is there and its
//! checksums are right.

mod address;
mod check;
mod client;
mod hub;
mod partial;
mod pick;
mod progress;
mod proxy;
mod ranges;
mod source;
mod transfer;
mod trust;

#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use hyper::StatusCode;
use motley_model::Gguf;
use serde_json::json;

pub(crate) use partial::{note_path, partial_path, progress_of};
pub(crate) use pick::{label as quantisation_in, split as split_name};
pub(crate) use source::{FileName, HubModel};

use self::address::Address;
use self::client::{Client, HttpError, Patience, Token, Ways};
use self::hub::HubError;
use self::partial::{PartialError, PartialFile};
use self::progress::Meter;
use self::proxy::Proxies;
use self::source::Source;
use self::transfer::{FetchError, Fetcher, Knobs, Wanted};
use crate::blocks::{DISK_RESERVE_BYTES_DEFAULT, Disk, ManifestCache};
use crate::failure::{Failure, Kind};
use crate::identity::StateFolder;
use crate::store::{self, Record};
use crate::terminal;

/// How long a server may take to let us in.
const CONNECT_PATIENCE: Duration = Duration::from_secs(15);

/// Arguments of `motley pull`.
#[derive(Debug, clap::Args)]
#[command(after_help = "HF_TOKEN opens gated models, HF_ENDPOINT names another hub. \
    HTTPS_PROXY, NO_PROXY and SSL_CERT_FILE are heeded.\n\
    Interrupted, the same command goes on where it was.")]
pub(crate) struct Arguments {
    /// A model of Hugging Face, hf:ORG/REPO or hf:ORG/REPO:QUANT, or the address of a GGUF file
    #[arg(value_name = "SOURCE")]
    source: String,
    /// Folder to put it into [default: the folder of models]
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    /// Folder of models
    #[arg(long, value_name = "DIR")]
    models: Option<PathBuf>,
    /// SHA-256 that the file must have; hubs tell their own
    #[arg(long, value_name = "DIGEST")]
    sha256: Option<String>,
    /// Branch, tag or commit of the repository
    #[arg(long, value_name = "NAME", default_value = REVISION_DEFAULT)]
    revision: String,
    /// Connections at once
    #[arg(long, value_name = "N", default_value_t = CONNECTIONS_DEFAULT, value_parser = clap::value_parser!(u8).range(1..=16))]
    connections: u8,
    /// Seconds without a byte after which a connection is given up
    #[arg(long, value_name = "SECONDS", default_value_t = STALL_SECONDS_DEFAULT, value_parser = clap::value_parser!(u64).range(1..=3600))]
    stall: u64,
    /// Disk space that stays free
    #[arg(long, value_name = "SIZE", default_value_t = DISK_RESERVE_BYTES_DEFAULT, value_parser = terminal::parse_bytes, hide_default_value = true)]
    reserve: u64,
    /// Folder of keys and lists [default: motley in the user's state folder]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Revision, connections at once and seconds of patience where nobody chooses them.
const REVISION_DEFAULT: &str = "main";
const CONNECTIONS_DEFAULT: u8 = 4;
const STALL_SECONDS_DEFAULT: u64 = 30;

impl Arguments {
    /// Those of `motley pull SOURCE`.
    fn of(source: String) -> Self {
        Self {
            source,
            to: None,
            models: None,
            sha256: None,
            revision: REVISION_DEFAULT.to_owned(),
            connections: CONNECTIONS_DEFAULT,
            stall: STALL_SECONDS_DEFAULT,
            reserve: DISK_RESERVE_BYTES_DEFAULT,
            state: None,
            json: false,
        }
    }
}

/// What is to be done, free of contradictions.
#[derive(Debug)]
struct Settings {
    source: Source,
    /// The hub, or the host of the address.
    home: Address,
    folder: PathBuf,
    sha256: Option<String>,
    revision: String,
}

/// Files to fetch, in the order of the model's parts.
struct Order {
    files: Vec<Wanted>,
    record: Record,
}

pub(crate) fn execute(arguments: &Arguments) -> Result<(), Failure> {
    let settings = Settings::new(arguments)?;
    let pulled = fetch(arguments, &settings)?;
    report(arguments, &settings, &pulled)
}

/// The file of a hub's model, of several the first: the one that is here, else it is fetched.
pub(crate) fn of_hub(
    model: &HubModel,
    models: Option<PathBuf>,
    offline: bool,
) -> Result<PathBuf, Failure> {
    let source = format!("hf:{}", model.to_string().trim_start_matches("hf:"));
    match store::resolve(&source, store::folder(models.clone()).as_deref()) {
        Err(missing) if missing.kind == Kind::NotFound && !offline => {}
        found => return found,
    }
    let arguments = Arguments { models, ..Arguments::of(source) };
    let settings = Settings::new(&arguments)?;
    terminal::note(&format!("fetching {model} into {}\n", settings.folder.display()));
    let pulled = fetch(&arguments, &settings)?;
    pulled.paths.into_iter().next().ok_or_else(|| Failure::usage("the model has no file"))
}

fn fetch(arguments: &Arguments, settings: &Settings) -> Result<Pulled, Failure> {
    let ways = ways()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the network")?;
    let patience =
        Patience { connect: CONNECT_PATIENCE, stall: Duration::from_secs(arguments.stall) };
    let client = Client::new(settings.home.origin(), token(&settings.source), patience, &ways);
    let fetcher = Fetcher {
        client,
        folder: settings.folder.clone(),
        disk: Disk::with_reserve(arguments.reserve),
        knobs: Knobs { connections: arguments.connections.into(), ..Knobs::DEFAULT },
        meter: Arc::new(Meter::on_terminal()),
    };
    let pulled = runtime.block_on(async {
        tokio::select! {
            pulled = pull(&fetcher, settings) => pulled,
            _ = tokio::signal::ctrl_c() => {
                fetcher.meter.say("interrupted; the same command goes on where it was");
                Err(Failure::interrupted())
            }
        }
    });
    fetcher.meter.clear();
    // A file that is being hashed is not waited for.
    runtime.shutdown_background();
    pulled
}

/// How the environment says that servers are reached.
fn ways() -> Result<Ways, Failure> {
    let authorities = trust::authorities().map_err(|error| Failure::new(Kind::Usage, error))?;
    let variable = |name: &str| std::env::var(name).ok();
    let proxies = Proxies::of_variables(variable).map_err(|error| {
        Failure::new(Kind::Usage, error).hint("a proxy is given as http://HOST:PORT")
    })?;
    Ok(Ways { tls: Arc::new(trust::config(authorities)), proxies })
}

/// What there is now.
struct Pulled {
    paths: Vec<PathBuf>,
    /// Whether it was there before.
    found: bool,
    record: Record,
}

impl Settings {
    fn new(arguments: &Arguments) -> Result<Self, Failure> {
        let offline = std::env::var("HF_HUB_OFFLINE").unwrap_or_default().to_lowercase();
        if matches!(offline.as_str(), "1" | "true" | "yes" | "on") {
            let error = anyhow::anyhow!("HF_HUB_OFFLINE forbids downloads");
            return Err(Failure::new(Kind::Refused, error).hint("HF_HUB_OFFLINE=0 allows them"));
        }
        let source: Source = arguments.source.parse().map_err(|error| {
            let failure = Failure::new(Kind::Usage, error);
            match arguments.source.parse::<HubModel>() {
                Ok(model) => failure.hint(format!("motley pull {model}")),
                Err(_) => failure,
            }
        })?;
        let sha256 = arguments.sha256.as_ref().map(|text| text.to_lowercase());
        if sha256.as_ref().is_some_and(|text| !check::is_sha256(text)) {
            return Err(Failure::usage("--sha256 takes 64 hexadecimal digits"));
        }
        let home = match &source {
            Source::Url { address, .. } => address.clone(),
            Source::Hub(_) => {
                let text = std::env::var("HF_ENDPOINT").ok().filter(|text| !text.is_empty());
                let text = text.unwrap_or_else(|| hub::ENDPOINT.to_owned());
                Address::parse(&text)
                    .map_err(|error| Failure::new(Kind::Usage, error))
                    .map_err(|failure| failure.hint("HF_ENDPOINT names the hub: https://..."))?
            }
        };
        let origin = home.origin();
        if !origin.secure && !origin.is_loopback() && sha256.is_none() {
            let error = anyhow::anyhow!(
                "over http:// anybody on the way to {} can change the file",
                origin.host
            );
            return Err(Failure::new(Kind::Refused, error)
                .hint("take https://, or tell the file's checksum with --sha256"));
        }
        let folder = arguments.to.clone().or_else(|| store::folder(arguments.models.clone()));
        let folder = folder.ok_or_else(|| {
            Failure::usage("there is no home folder for models; name a folder with --to")
        })?;
        let revision = arguments.revision.clone();
        Ok(Self { source, home, folder, sha256, revision })
    }
}

/// The user's token for the hub: the variable, else the file in which the hub's own tool keeps it.
/// Other places get none.
fn token(source: &Source) -> Option<Token> {
    let is_hub = match source {
        Source::Hub(_) => true,
        Source::Url { address, .. } => {
            let hub = Address::parse(hub::ENDPOINT).ok();
            hub.is_some_and(|hub| hub.origin() == address.origin())
        }
    };
    if !is_hub {
        return None;
    }
    if let Ok(token) = std::env::var("HF_TOKEN") {
        return Token::new(&token);
    }
    let path = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = path("HF_HOME")
        .or_else(|| path("HOME").map(|home| home.join(".cache").join("huggingface")));
    let file = path("HF_TOKEN_PATH").or_else(|| home.map(|home| home.join("token")))?;
    Token::new(&fs::read_to_string(file).ok()?)
}

async fn pull(fetcher: &Fetcher, settings: &Settings) -> Result<Pulled, Failure> {
    let Order { files, mut record } = order(fetcher, settings).await?;
    let paths: Vec<PathBuf> =
        files.iter().map(|file| settings.folder.join(file.name.as_str())).collect();
    if already_there(&files, &paths, fetcher).await? {
        keep_record(settings, &files[0].name, &record);
        return Ok(Pulled { paths, found: true, record });
    }
    let mut parts: Vec<PartialFile> = Vec::new();
    for file in &files {
        let part = fetcher.fetch(file).await.map_err(|error| failure(error, settings))?;
        if let Err(failure) = check_model(part.path(), file) {
            part.discard();
            return Err(failure);
        }
        parts.push(part);
    }
    record.sha256 = parts.iter().map(|part| part.remote().sha256.clone()).collect();
    // The first part makes a model of them, so that it comes last.
    for (part, path) in parts.into_iter().zip(&paths).rev() {
        part.finish(path)?;
    }
    keep_record(settings, &files[0].name, &record);
    Ok(Pulled { paths, found: false, record })
}

/// Which files are wanted, and what is kept about where they come from.
async fn order(fetcher: &Fetcher, settings: &Settings) -> Result<Order, Failure> {
    let (mut files, source, revision) = match &settings.source {
        Source::Hub(model) => {
            let listing = hub::list(&fetcher.client, &settings.home, model, &settings.revision)
                .await
                .map_err(|error| hub_failure(error, settings))?;
            (listing.files, model.to_string(), Some(listing.commit))
        }
        Source::Url { address, name } => {
            let folder = address.path().rsplit_once('/').map_or("", |(folder, _)| folder);
            let part = |name: String| {
                Ok::<_, Failure>(Wanted {
                    address: address.with_path(&format!("{folder}/{name}"))?,
                    name: name.parse()?,
                    bytes: None,
                    sha256: None,
                })
            };
            let parts = pick::all_parts(name.as_str());
            let files = parts.into_iter().map(part).collect::<Result<Vec<_>, _>>()?;
            (files, address.to_string(), None)
        }
    };
    if let Some(sha256) = &settings.sha256 {
        let [file] = files.as_mut_slice() else {
            return Err(Failure::usage("--sha256 is of one file, and this model has several"));
        };
        if file.sha256.as_ref().is_some_and(|told| told != sha256) {
            let error = anyhow::anyhow!("the hub has another file than the one of --sha256");
            return Err(Failure::new(Kind::Refused, error));
        }
        file.sha256 = Some(sha256.clone());
    }
    let sha256 = files.iter().map(|file| file.sha256.clone()).collect();
    Ok(Order { files, record: Record { source, revision, sha256 } })
}

/// Whether all files are there and right. One that is there and is another is not written over.
async fn already_there(
    files: &[Wanted],
    paths: &[PathBuf],
    fetcher: &Fetcher,
) -> Result<bool, Failure> {
    let mut there = 0;
    for (file, path) in files.iter().zip(paths) {
        let Ok(facts) = fs::metadata(path) else { continue };
        there += 1;
        let is_other = match (&file.sha256, file.bytes) {
            (_, Some(bytes)) if facts.len() != bytes => true,
            (Some(expected), _) => {
                fetcher.meter.check(file.name.as_str(), facts.len());
                let (path, meter) = (path.clone(), Arc::clone(&fetcher.meter));
                let hashed = tokio::task::spawn_blocking(move || {
                    check::sha256_of(&path, |bytes| meter.advance(bytes))
                });
                hashed.await?? != *expected
            }
            // Nothing tells one file from another.
            (None, _) => false,
        };
        if is_other {
            let error = anyhow::anyhow!(
                "another file called {} is in {}",
                file.name,
                path.parent().unwrap_or(path).display()
            );
            return Err(Failure::new(Kind::Refused, error)
                .hint("motley rm removes it; --to names another folder"));
        }
    }
    Ok(there == files.len())
}

/// Refuses what begins as a model and is none.
fn check_model(path: &Path, wanted: &Wanted) -> Result<(), Failure> {
    let file = motley_ggml::MappedFile::open(path)?;
    let bytes = file.bytes();
    let parsed = Gguf::parse(bytes, bytes.len() as u64);
    parsed.map(drop).map_err(|error| {
        let error = anyhow::Error::new(error).context(format!("{} is no model", wanted.name));
        Failure::new(Kind::Refused, error).hint("nothing was kept; the source itself is damaged")
    })
}

/// A model without a record is only less well known.
fn keep_record(settings: &Settings, name: &FileName, record: &Record) {
    if let Err(error) = record.write(&settings.folder, name.as_str()) {
        terminal::note(&format!("cannot keep where {name} comes from: {error}\n"));
    }
}

fn hub_failure(error: HubError, settings: &Settings) -> Failure {
    match error {
        HubError::Fetch(error) => failure(error, settings),
        HubError::Pick(error) => {
            let hint = error.hint();
            let failure = Failure::new(Kind::NotFound, error);
            match hint {
                Some(hint) => failure.hint(hint),
                None => failure,
            }
        }
        error => Failure::new(Kind::Failed, error),
    }
}

/// A failed download with what to do about it.
fn failure(error: FetchError, settings: &Settings) -> Failure {
    let last = match &error {
        FetchError::GaveUp { last, .. } => last,
        error => error,
    };
    let (kind, hint) = match last {
        FetchError::Status { status, code, has_token, home, .. } => {
            status_advice(*status, code.as_deref(), *has_token && *home, settings)
        }
        FetchError::RateLimited { .. } => {
            (Kind::Failed, Some("wait, then give the same command again".to_owned()))
        }
        FetchError::Http(
            HttpError::NotPublic { .. }
            | HttpError::Downgrade { .. }
            | HttpError::Compressed { .. },
        )
        | FetchError::NotGguf { .. } => (Kind::Refused, None),
        FetchError::NoRoom { .. } => (
            Kind::Refused,
            Some(
                "free some space; --to names another folder, --reserve what stays free".to_owned(),
            ),
        ),
        // Others filled the disk meanwhile; what has come is kept.
        FetchError::Partial(PartialError::Io { source, .. })
            if source.kind() == std::io::ErrorKind::StorageFull =>
        {
            (
                Kind::Refused,
                Some("free some space; the same command goes on where it was".to_owned()),
            )
        }
        FetchError::Changed { .. } => {
            (Kind::Failed, Some("the same command fetches it as it is now".to_owned()))
        }
        FetchError::WrongChecksum { .. } => {
            (Kind::Refused, Some("nothing was kept; the same command fetches it again".to_owned()))
        }
        FetchError::WrongLength { .. }
        | FetchError::WrongRange { .. }
        | FetchError::TooLong { .. }
        | FetchError::NoLength { .. } => (
            Kind::Refused,
            Some("the server is not to be relied on; take another source".to_owned()),
        ),
        FetchError::Http(error) if error.is_passing() => {
            (Kind::Failed, Some("the same command goes on where it was".to_owned()))
        }
        _ => (Kind::Failed, None),
    };
    let failure = Failure::new(kind, error);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

fn status_advice(
    status: StatusCode,
    code: Option<&str>,
    has_token: bool,
    settings: &Settings,
) -> (Kind, Option<String>) {
    let page = match &settings.source {
        Source::Hub(model) => format!("{}{}", settings.home, model.repository),
        Source::Url { address, .. } => address.to_string(),
    };
    let gated = code == Some("GatedRepo");
    match status {
        _ if gated && has_token => {
            (Kind::Refused, Some(format!("accept the model's terms at {page}")))
        }
        _ if gated => (
            Kind::Refused,
            Some(format!("accept the model's terms at {page}, then give a token by HF_TOKEN")),
        ),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if has_token => {
            (Kind::Refused, Some("the token of HF_TOKEN does not open it".to_owned()))
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => (
            Kind::Refused,
            Some("it does not exist, or is private: then HF_TOKEN opens it".to_owned()),
        ),
        StatusCode::NOT_FOUND | StatusCode::GONE => (
            Kind::NotFound,
            Some(match code {
                Some("RevisionNotFound") => "--revision names no branch, tag or commit".to_owned(),
                _ => format!("look whether {page} is spelled right"),
            }),
        ),
        _ if status.is_server_error() => {
            (Kind::Failed, Some("the server has trouble; try again later".to_owned()))
        }
        _ => (Kind::Failed, None),
    }
}

/// Hashes the blocks by which devices of a cluster share the model, and tells how to use it.
fn report(arguments: &Arguments, settings: &Settings, pulled: &Pulled) -> Result<(), Failure> {
    let model_bytes: u64 = pulled
        .paths
        .iter()
        .filter_map(|path| fs::metadata(path).ok())
        .map(|facts| facts.len())
        .sum();
    let state = StateFolder::locate(arguments.state.clone())?;
    let meter = Meter::on_terminal();
    meter.check("blocks", model_bytes);
    let mut before = 0;
    let manifest =
        ManifestCache::new(&state.join("manifests")).of_files(&pulled.paths, |done, _| {
            meter.advance(done.saturating_sub(before));
            before = done;
        })?;
    meter.clear();
    let first = &pulled.paths[0];
    let name = store::name_of(first);
    let is_checked = pulled.record.sha256.iter().all(Option::is_some);
    if arguments.json {
        return Ok(terminal::print_json(&json!({
            "name": name,
            "source": pulled.record.source,
            "revision": pulled.record.revision,
            "paths": pulled.paths,
            "bytes": model_bytes,
            "sha256": pulled.record.sha256,
            "digest": manifest.digest().to_string(),
            "found": pulled.found,
        }))?);
    }
    let done = if pulled.found { "is here already" } else { "is here" };
    let checked = match is_checked {
        true => "its checksum is right",
        false => "the source tells no checksum to compare with",
    };
    let in_store = store::folder(arguments.models.clone()).as_ref() == Some(&settings.folder);
    let word = if in_store { name } else { first.display().to_string() };
    terminal::print(&format!(
        "{} {done}: {}, {checked}\nmotley run {word}\n",
        first.display(),
        terminal::bytes(model_bytes),
    ))?;
    Ok(())
}
