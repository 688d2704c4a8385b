//! One file from a server to a folder: which bytes to ask for, what to believe, when to try again.
//!
//! An attempt asks for the first bytes, which tells length, state and whether ranges are given;
//! then several connections fetch what is missing. Whatever breaks ends the attempt and keeps its
//! bytes; the next one begins by asking again, so that signed addresses and changes are seen.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{CONTENT_RANGE, ETAG, RETRY_AFTER};
use tokio::task::JoinSet;

use super::address::Address;
use super::client::{Answer, Ask, Client, HttpError, seconds};
use super::partial::{PartialError, PartialFile, RemoteFile};
use super::progress::Meter;
use super::ranges::RangeSet;
use super::source::FileName;
use crate::blocks::Disk;
use crate::failure::one_line;
use crate::terminal;

/// The first bytes of every model file.
const MAGIC: &[u8; 4] = b"GGUF";

/// Characters of a server's reason that are shown.
const REASON_CHARACTERS_MAX: usize = 200;

/// How a file is fetched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Knobs {
    /// Connections that fetch pieces side by side.
    pub(super) connections: usize,
    /// Bytes that one request asks for.
    pub(super) piece_bytes: u64,
    /// Failures in a row after which nothing is tried any more.
    pub(super) failures_max: u32,
    /// An attempt that brings so much ends the row of failures.
    pub(super) progress_bytes: u64,
    /// Pause after the first failure of a row; it doubles up to the longest.
    pub(super) pause_first: Duration,
    pub(super) pause_max: Duration,
    /// The longest that a server may tell us to wait; beyond it the user decides.
    pub(super) retry_after_max: Duration,
    /// Bytes after which is noted what has come.
    pub(super) note_bytes: u64,
}

impl Knobs {
    pub(super) const DEFAULT: Self = Self {
        connections: 4,
        piece_bytes: 64 << 20,
        failures_max: 6,
        progress_bytes: 1 << 20,
        pause_first: Duration::from_millis(500),
        pause_max: Duration::from_secs(8),
        retry_after_max: Duration::from_secs(120),
        note_bytes: 64 << 20,
    };
}

/// A file that is to be fetched, and what is known of it beforehand.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) address: Address,
    pub(super) name: FileName,
    pub(super) bytes: Option<u64>,
    /// In lower-case hexadecimal.
    pub(super) sha256: Option<String>,
}

/// Why a file was not fetched.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    /// No answer, or one that stopped.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The server says no.
    #[error("{host} answers {status}{}", with_reason(reason.as_deref()))]
    Status {
        host: String,
        status: StatusCode,
        /// What the hub calls the cause.
        code: Option<String>,
        /// What it says about it.
        reason: Option<String>,
        /// Whether it is the one whom the user named, and not a store that it sent us to.
        home: bool,
        has_token: bool,
    },
    /// Too many requests.
    #[error("{host} asks to wait{} before the next try", wait.map(|wait| format!(" {}", seconds(wait))).unwrap_or_default())]
    RateLimited { host: String, wait: Option<Duration> },
    /// A file without an end cannot be told from half a file.
    #[error("{host} does not say how long the file is")]
    NoLength { host: String },
    /// Another length than the hub's list says.
    #[error("{name} has {told} bytes on the server, where {expected} were announced")]
    WrongLength { name: FileName, told: u64, expected: u64 },
    /// Another part of the file than was asked for.
    #[error("{host} answers with other bytes than those asked for: {told}")]
    WrongRange { host: String, told: String },
    /// More bytes than it said.
    #[error("{host} sends more than it said")]
    TooLong { host: String },
    /// Fewer bytes than it said.
    #[error("{host} sent {came} of {expected} bytes")]
    Short { host: String, came: u64, expected: u64 },
    /// The server has another file by now.
    #[error("{name} changed on the server while it was fetched")]
    Changed { name: FileName },
    /// It begins as something else.
    #[error("{name} is no GGUF file: it begins with {begins}")]
    NotGguf { name: FileName, begins: String },
    /// Its bytes are not those that were announced.
    #[error("{name} has the wrong checksum: SHA-256 is {found}, not {expected}")]
    WrongChecksum { name: FileName, found: String, expected: String },
    /// Too little space.
    #[error("{} has room for {}, and {} are to come", folder.display(), terminal::bytes(*usable), terminal::bytes(*missing))]
    NoRoom { folder: PathBuf, usable: u64, missing: u64 },
    /// The free space cannot be told.
    #[error("cannot tell how much room there is in {}", folder.display())]
    Room {
        folder: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The disk.
    #[error(transparent)]
    Partial(#[from] PartialError),
    /// It did not get better.
    #[error("gave up after {failures} failures in a row")]
    GaveUp {
        failures: u32,
        #[source]
        last: Box<Self>,
    },
}

fn with_reason(reason: Option<&str>) -> String {
    reason.map(|reason| format!(": {}", one_line(reason))).unwrap_or_default()
}

impl FetchError {
    /// Whether the next attempt may do better. A server that never answered is not waited for.
    fn is_passing(&self, reached: bool, knobs: &Knobs) -> bool {
        match self {
            Self::Http(error) => reached && error.is_passing(),
            Self::Status { status, home, .. } => {
                let expired = !home
                    && matches!(
                        *status,
                        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::GONE
                    );
                status.is_server_error() || *status == StatusCode::REQUEST_TIMEOUT || expired
            }
            Self::RateLimited { wait, .. } => wait.is_none_or(|wait| wait <= knobs.retry_after_max),
            Self::Short { .. } => true,
            _ => false,
        }
    }

    /// Whether what has come so far can be used when the user tries again.
    fn keeps_bytes(&self) -> bool {
        match self {
            Self::Http(error) => error.is_passing(),
            Self::GaveUp { .. }
            | Self::RateLimited { .. }
            | Self::Status { .. }
            | Self::Short { .. }
            | Self::NoRoom { .. }
            | Self::Room { .. }
            | Self::Partial(_) => true,
            _ => false,
        }
    }
}

/// How long to wait after the failure number `failure` of a row.
fn pause(failure: u32, error: &FetchError, knobs: &Knobs) -> Duration {
    let doubled = knobs.pause_first.saturating_mul(1 << failure.saturating_sub(1).min(16));
    let own = doubled.min(knobs.pause_max);
    match error {
        FetchError::RateLimited { wait: Some(wait), .. } => own.max(*wait),
        _ => own,
    }
}

/// Where files go, and how.
pub(super) struct Fetcher {
    pub(super) client: Client,
    pub(super) folder: PathBuf,
    pub(super) disk: Disk,
    pub(super) knobs: Knobs,
    pub(super) meter: Arc<Meter>,
}

/// What the first answer says.
struct Probe {
    answer: Answer,
    remote: RemoteFile,
    ranges: bool,
}

/// What the connections of one attempt share.
struct Shared {
    file: PartialFile,
    /// What is there, and what somebody is fetching.
    claimed: RangeSet,
}

impl Fetcher {
    /// Fetches a file and compares its checksum. What comes back is whole and has no name yet.
    pub(super) async fn fetch(&self, wanted: &Wanted) -> Result<PartialFile, FetchError> {
        let mut file = None;
        let (mut failures, mut reached) = (0, false);
        loop {
            let before = file.as_ref().map_or(0, |file: &PartialFile| file.present().bytes());
            let error = match self.attempt(wanted, &mut file, &mut reached).await {
                Ok(()) => {
                    let file = file.take().expect("an attempt that succeeds has a file");
                    return self.verified(wanted, file).await;
                }
                Err(error) => error,
            };
            if !error.is_passing(reached, &self.knobs) {
                return Err(Self::ended(file, error));
            }
            let present = file.as_ref().map_or(0, |file| file.present().bytes());
            if present.saturating_sub(before) >= self.knobs.progress_bytes {
                failures = 0;
            }
            failures += 1;
            if failures >= self.knobs.failures_max {
                let error = FetchError::GaveUp { failures, last: Box::new(error) };
                return Err(Self::ended(file, error));
            }
            let pause = pause(failures, &error, &self.knobs);
            self.meter.say(&format!("{error}; trying again in {}", seconds(pause)));
            tokio::time::sleep(pause).await;
        }
    }

    /// Leaves on disk what can be gone on with, and nothing else.
    fn ended(file: Option<PartialFile>, error: FetchError) -> FetchError {
        if let Some(file) = file
            && (!error.keeps_bytes() || file.present().bytes() == 0)
        {
            file.discard();
        }
        error
    }

    async fn attempt(
        &self,
        wanted: &Wanted,
        slot: &mut Option<PartialFile>,
        reached: &mut bool,
    ) -> Result<(), FetchError> {
        let Probe { answer, remote, ranges } = self.probe(wanted, reached).await?;
        let file = match slot.take() {
            Some(file) if *file.remote() == remote => file,
            Some(file) => {
                file.discard();
                return Err(FetchError::Changed { name: wanted.name.clone() });
            }
            None => PartialFile::open(&self.folder, &wanted.name, remote)?,
        };
        self.meter.begin(wanted.name.as_str(), file.present().bytes(), file.remote().bytes);
        let (file, fetched) = match enough_room(&self.disk, &self.folder, file.missing_bytes()) {
            Err(error) => (file, Err(error)),
            Ok(()) if ranges => {
                let address = answer.address.clone();
                drop(answer);
                self.in_pieces(wanted, file, address).await
            }
            Ok(()) => self.in_one_stream(wanted, file, answer).await,
        };
        *slot = Some(file);
        fetched
    }

    /// Asks for the first bytes, and judges by them what the file is.
    async fn probe(&self, wanted: &Wanted, reached: &mut bool) -> Result<Probe, FetchError> {
        let ask = Ask { range: Some((0, MAGIC.len() as u64 - 1)), if_range: None };
        let mut answer = self.client.get(&wanted.address, &ask).await?;
        *reached = true;
        let host = answer.address.origin().host.clone();
        let (bytes, ranges) = match answer.status {
            StatusCode::PARTIAL_CONTENT => {
                let told = content_range(&answer)?;
                if told.first != 0 || told.last > MAGIC.len() as u64 - 1 {
                    return Err(told.wrong(&host));
                }
                (told.all, true)
            }
            StatusCode::OK => {
                (answer.length().ok_or(FetchError::NoLength { host: host.clone() })?, false)
            }
            _ => return Err(refusal(&answer, &self.client)),
        };
        let expected = wanted.bytes.or_else(|| linked_length(&answer));
        if let Some(expected) = expected.filter(|expected| *expected != bytes) {
            let name = wanted.name.clone();
            return Err(FetchError::WrongLength { name, told: bytes, expected });
        }
        if ranges {
            let begins = answer.chunk().await?.unwrap_or_default();
            check_magic(&wanted.name, &begins[..begins.len().min(MAGIC.len())])?;
        }
        let sha256 = wanted.sha256.clone().or_else(|| linked_sha256(&answer));
        let etag = answer.header(ETAG).map(str::to_owned);
        Ok(Probe { remote: RemoteFile { bytes, etag, sha256 }, answer, ranges })
    }

    /// The whole body of one answer, from the beginning: nothing of an earlier one can be used.
    async fn in_one_stream(
        &self,
        wanted: &Wanted,
        mut file: PartialFile,
        mut answer: Answer,
    ) -> (PartialFile, Result<(), FetchError>) {
        let mut stream = async || {
            file.restart()?;
            let (mut offset, bytes) = (0, file.remote().bytes);
            let host = answer.address.origin().host.clone();
            while let Some(chunk) = answer.chunk().await? {
                if offset == 0 {
                    check_magic(&wanted.name, &chunk[..chunk.len().min(MAGIC.len())])?;
                }
                if chunk.len() as u64 > bytes - offset {
                    return Err(FetchError::TooLong { host });
                }
                file.write(offset, &chunk)?;
                offset += chunk.len() as u64;
                self.meter.advance(chunk.len() as u64);
                if file.unnoted_bytes() >= self.knobs.note_bytes {
                    file.note()?;
                    enough_room(&self.disk, &self.folder, file.missing_bytes())?;
                }
            }
            match offset == bytes {
                true => Ok(()),
                false => Err(FetchError::Short { host, came: offset, expected: bytes }),
            }
        };
        let mut fetched = stream().await;
        if fetched.is_err() {
            // The next attempt begins anew, so nothing was gained.
            fetched = fetched.and_then(|()| Ok(file.restart()?));
            self.meter.rewind();
        }
        (file, fetched)
    }

    /// What is missing, by several connections.
    async fn in_pieces(
        &self,
        wanted: &Wanted,
        file: PartialFile,
        address: Address,
    ) -> (PartialFile, Result<(), FetchError>) {
        let pieces = file.missing_bytes().div_ceil(self.knobs.piece_bytes.max(1));
        let connections = usize::try_from(pieces).unwrap_or(usize::MAX).min(self.knobs.connections);
        let claimed = file.present().clone();
        let shared = Arc::new(Mutex::new(Shared { file, claimed }));
        let mut workers = JoinSet::new();
        for _ in 0..connections {
            workers.spawn(
                Worker {
                    client: self.client.clone(),
                    address: address.clone(),
                    name: wanted.name.clone(),
                    folder: self.folder.clone(),
                    disk: self.disk.clone(),
                    knobs: self.knobs,
                    meter: Arc::clone(&self.meter),
                    shared: Arc::clone(&shared),
                }
                .run(),
            );
        }
        let mut fetched = Ok(());
        while let Some(ended) = workers.join_next().await {
            // A worker only ends by itself or by our hand; a panic is carried on.
            if let Err(error) =
                ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
            {
                fetched = Err(error);
                break;
            }
        }
        workers.shutdown().await;
        let shared = Arc::into_inner(shared).expect("every worker has ended");
        let mut file = shared.into_inner().unwrap_or_else(PoisonError::into_inner).file;
        if file.unnoted_bytes() > 0
            && let Err(error) = file.note()
            && fetched.is_ok()
        {
            fetched = Err(error.into());
        }
        (file, fetched)
    }

    /// Compares the checksum, beside the runtime so that Ctrl-C is still heard.
    async fn verified(
        &self,
        wanted: &Wanted,
        file: PartialFile,
    ) -> Result<PartialFile, FetchError> {
        let Some(expected) = file.remote().sha256.clone() else { return Ok(file) };
        self.meter.check(wanted.name.as_str(), file.remote().bytes);
        let path = file.path().to_owned();
        let meter = Arc::clone(&self.meter);
        let hashed = tokio::task::spawn_blocking(move || {
            super::check::sha256_of(&path, |bytes| meter.advance(bytes))
        });
        let found =
            hashed.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        let path = file.path().to_owned();
        let found = found.map_err(|source| PartialError::Io { action: "read", path, source })?;
        if found != expected {
            file.discard();
            return Err(FetchError::WrongChecksum { name: wanted.name.clone(), found, expected });
        }
        Ok(file)
    }
}

/// One connection after another, each for a piece that nobody else has.
struct Worker {
    client: Client,
    address: Address,
    name: FileName,
    folder: PathBuf,
    disk: Disk,
    knobs: Knobs,
    meter: Arc<Meter>,
    shared: Arc<Mutex<Shared>>,
}

impl Worker {
    async fn run(self) -> Result<(), FetchError> {
        loop {
            let piece = {
                let mut shared = self.shared();
                let end = shared.file.remote().bytes;
                let piece = shared.claimed.first_gap(end, self.knobs.piece_bytes);
                let Some((first, after)) = piece else { return Ok(()) };
                shared.claimed.insert(first, after);
                (first, after)
            };
            self.fetch(piece).await?;
        }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn fetch(&self, (first, after): (u64, u64)) -> Result<(), FetchError> {
        let remote = self.shared().file.remote().clone();
        // A weak name of a state must not be used to ask for a range of it.
        let if_range = remote.etag.clone().filter(|etag| !etag.starts_with("W/"));
        let ask = Ask { range: Some((first, after - 1)), if_range };
        let mut answer = self.client.get(&self.address, &ask).await?;
        let host = answer.address.origin().host.clone();
        let changed = || FetchError::Changed { name: self.name.clone() };
        match answer.status {
            StatusCode::PARTIAL_CONTENT => {}
            // The whole file: the state that was asked for is no more.
            StatusCode::OK => return Err(changed()),
            _ => return Err(refusal(&answer, &self.client)),
        }
        if answer.header(ETAG).map(str::to_owned) != remote.etag {
            return Err(changed());
        }
        let told = content_range(&answer)?;
        if told.all != remote.bytes {
            return Err(changed());
        }
        if told.first != first || told.last >= after {
            return Err(told.wrong(&host));
        }
        let (mut offset, end) = (first, told.last + 1);
        while let Some(chunk) = answer.chunk().await? {
            if chunk.len() as u64 > end - offset {
                return Err(FetchError::TooLong { host });
            }
            self.write(offset, &chunk)?;
            offset += chunk.len() as u64;
        }
        if offset < end {
            return Err(FetchError::Short { host, came: offset - first, expected: end - first });
        }
        // It may give less than was asked for; the rest is asked for again.
        self.shared().claimed.remove(end, after);
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), FetchError> {
        let mut shared = self.shared();
        shared.file.write(offset, bytes)?;
        self.meter.advance(bytes.len() as u64);
        if shared.file.unnoted_bytes() >= self.knobs.note_bytes {
            shared.file.note()?;
            let missing = shared.file.missing_bytes();
            return enough_room(&self.disk, &self.folder, missing);
        }
        Ok(())
    }
}

fn enough_room(disk: &Disk, folder: &Path, missing: u64) -> Result<(), FetchError> {
    let usable = disk
        .usable_bytes(folder)
        .map_err(|source| FetchError::Room { folder: folder.to_owned(), source })?;
    if missing > usable {
        return Err(FetchError::NoRoom { folder: folder.to_owned(), usable, missing });
    }
    Ok(())
}

/// What an answer other than the file means.
pub(super) fn refusal(answer: &Answer, client: &Client) -> FetchError {
    let host = answer.address.origin().host.clone();
    if answer.status == StatusCode::TOO_MANY_REQUESTS {
        let wait = answer.header(RETRY_AFTER).and_then(|text| text.trim().parse().ok());
        return FetchError::RateLimited { host, wait: wait.map(Duration::from_secs) };
    }
    let said = |name: &str| {
        let value = answer.headers.get(name).and_then(|value| value.to_str().ok());
        value.map(|text| text.chars().take(REASON_CHARACTERS_MAX).collect::<String>())
    };
    FetchError::Status {
        host,
        status: answer.status,
        code: said("x-error-code"),
        reason: said("x-error-message"),
        home: client.is_home(answer.address.origin()),
        has_token: client.has_token(),
    }
}

/// The part of a file that an answer holds.
struct ContentRange {
    first: u64,
    last: u64,
    all: u64,
    text: String,
}

impl ContentRange {
    fn wrong(&self, host: &str) -> FetchError {
        FetchError::WrongRange { host: host.to_owned(), told: self.text.clone() }
    }
}

/// Reads `bytes 0-3/100`; a length that is not told, or bytes that cannot be, are wrong.
fn content_range(answer: &Answer) -> Result<ContentRange, FetchError> {
    let text = answer.header(CONTENT_RANGE).unwrap_or("(no range)");
    parse_content_range(text).ok_or_else(|| FetchError::WrongRange {
        host: answer.address.origin().host.clone(),
        told: one_line(&text.chars().take(REASON_CHARACTERS_MAX).collect::<String>()),
    })
}

fn parse_content_range(text: &str) -> Option<ContentRange> {
    let (range, all) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let number = |digits: &str| {
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| digits.parse::<u64>().ok()).flatten()
    };
    let (first, last, all) = (number(first)?, number(last)?, number(all)?);
    (first <= last && last < all).then(|| ContentRange { first, last, all, text: text.to_owned() })
}

fn check_magic(name: &FileName, begins: &[u8]) -> Result<(), FetchError> {
    if begins == MAGIC {
        return Ok(());
    }
    Err(FetchError::NotGguf { name: name.clone(), begins: begins.escape_ascii().to_string() })
}

/// The hub names a file's SHA-256 and length before it sends us to where the file lies.
fn linked_sha256(answer: &Answer) -> Option<String> {
    let text = answer.home_header("x-linked-etag")?.trim_matches('"').to_lowercase();
    super::check::is_sha256(&text).then_some(text)
}

fn linked_length(answer: &Answer) -> Option<u64> {
    answer.home_header("x-linked-size")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_strictly() {
        let read =
            |text| parse_content_range(text).map(|range| (range.first, range.last, range.all));
        assert_eq!(read("bytes 0-3/100"), Some((0, 3, 100)));
        for wrong in [
            "",
            "bytes */100",
            "bytes 0-3/*",
            "bytes -1-3/100",
            "bytes 3-0/100",
            "bytes 0-100/100",
            "bytes 0-3/99999999999999999999",
            "bytes +0-3/100",
            "items 0-3/100",
            "bytes 0-3",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_obey_the_server() {
        let knobs = Knobs::DEFAULT;
        let short = FetchError::Short { host: "h".to_owned(), came: 0, expected: 1 };
        let pauses: Vec<u128> =
            (1..=6).map(|failure| pause(failure, &short, &knobs).as_millis()).collect();
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 8000]);
        let limited = |wait| FetchError::RateLimited {
            host: "h".to_owned(),
            wait: Some(Duration::from_secs(wait)),
        };
        assert_eq!(pause(1, &limited(30), &knobs), Duration::from_secs(30));
        assert!(limited(120).is_passing(true, &knobs));
        assert!(!limited(121).is_passing(true, &knobs));
    }
}
