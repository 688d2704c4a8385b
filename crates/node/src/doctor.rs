//! `motley doctor`: what on this device may keep it from taking part, and what to do about it.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde_json::json;

use crate::blocks::{DISK_RESERVE_BYTES_DEFAULT, Disk};
use crate::failure::Failure;
use crate::identity::{Identity, Roster, StateFolder, trusted_unix_s};
use crate::join::kept_heads;
use crate::memory;
use crate::terminal::{self, Table};
use crate::transport::{CLUSTER_PORT, Endpoint, connect, own_addresses};

/// Where `motley serve` answers unless it is told otherwise.
const API_PORT: u16 = 11_555;

/// Less than this holds no layers worth a hop.
const MEMORY_BYTES_MIN: u64 = 1 << 30;

/// How long a head may take to let this device in.
const HEAD_PATIENCE: Duration = Duration::from_secs(5);

/// Arguments of `motley doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Folder of keys and lists [default: motley in the user's state folder]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What was found about one thing.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    about: &'static str,
    good: bool,
    words: String,
}

impl Finding {
    fn good(about: &'static str, words: impl Into<String>) -> Self {
        Self { about, good: true, words: words.into() }
    }

    fn bad(about: &'static str, words: impl Into<String>) -> Self {
        Self { about, good: false, words: words.into() }
    }
}

pub(crate) fn execute(arguments: &Arguments) -> Result<(), Failure> {
    let state = StateFolder::locate(arguments.state.clone())?;
    let mut findings = vec![
        clock(SystemTime::now()),
        memory(memory::available_bytes()),
        disk(Disk::with_reserve(DISK_RESERVE_BYTES_DEFAULT).usable_bytes(existing(&state))),
        addresses(),
        port("port of the API", API_PORT),
        port("port of the cluster", CLUSTER_PORT),
    ];
    findings.extend(cluster(&state));
    if arguments.json {
        let found = |it: &Finding| json!({ "about": it.about, "good": it.good, "words": it.words });
        let found: Vec<_> = findings.iter().map(found).collect();
        terminal::print_json(&json!(found))?;
    } else {
        let mut table = Table::new(["about", "", "found"]);
        for finding in &findings {
            let mark = if finding.good { "ok" } else { "look" };
            table.row([finding.about, mark, &finding.words]);
        }
        terminal::print(&table.render())?;
    }
    match findings.iter().filter(|finding| !finding.good).count() {
        0 => Ok(()),
        count => Err(anyhow::anyhow!("{count} of {} things need a look", findings.len()).into()),
    }
}

fn clock(now: SystemTime) -> Finding {
    let told = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    if trusted_unix_s(now) == told {
        return Finding::good("clock", "plausible");
    }
    Finding::bad(
        "clock",
        "wrong by years; the cluster works all the same, but tokens made here may end too late",
    )
}

fn memory(available_bytes: Option<u64>) -> Finding {
    match available_bytes {
        None => Finding::good("memory", "the system does not say; --memory SIZE sets a limit"),
        Some(bytes) if bytes >= MEMORY_BYTES_MIN => {
            Finding::good("memory", format!("{} available", terminal::bytes(bytes)))
        }
        Some(bytes) => {
            let bytes = terminal::bytes(bytes);
            Finding::bad("memory", format!("only {bytes} available; end other programs"))
        }
    }
}

fn disk(usable_bytes: io::Result<u64>) -> Finding {
    let reserve = terminal::bytes(DISK_RESERVE_BYTES_DEFAULT);
    match usable_bytes {
        Ok(0) => Finding::bad("disk", format!("less than {reserve} free, which stay free")),
        Ok(bytes) => {
            let bytes = terminal::bytes(bytes);
            Finding::good("disk", format!("{bytes} for layers of models, beside {reserve}"))
        }
        Err(error) => Finding::bad("disk", format!("cannot be asked: {error}")),
    }
}

/// The folder, or the nearest above it that is there already.
fn existing(folder: &Path) -> &Path {
    folder.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."))
}

fn addresses() -> Finding {
    let addresses: Vec<String> = own_addresses().iter().map(ToString::to_string).collect();
    match addresses.as_slice() {
        [] => Finding::bad("addresses", "no network; other devices cannot reach this one"),
        addresses => Finding::good("addresses", addresses.join(" ")),
    }
}

fn port(about: &'static str, port: u16) -> Finding {
    match TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)) {
        Ok(_) => Finding::good(about, format!("{port} is free")),
        // A running head has them, and that is as it should be.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            Finding::good(about, format!("{port} is in use, by motley serve or by something else"))
        }
        Err(error) => Finding::bad(about, format!("{port} cannot be used: {error}")),
    }
}

/// Which cluster this device is of, and whether its head can be reached.
fn cluster(state: &Path) -> Vec<Finding> {
    if !state.exists() {
        return vec![Finding::good("cluster", "none yet; motley serve --lan begins one")];
    }
    let opened = StateFolder::open(state).map_err(anyhow::Error::from);
    let loaded = opened.and_then(|folder| Ok((Identity::load(&folder)?, folder)));
    let (identity, folder) = match loaded {
        Ok((Some(identity), folder)) => (identity, folder),
        Ok((None, _)) => {
            return vec![Finding::good("cluster", "none yet; motley serve --lan begins one")];
        }
        Err(error) => return vec![Finding::bad("cluster", format!("{error:#}"))],
    };
    let words = format!("{} of cluster {}", identity.name(), identity.cluster().short());
    let mut findings = vec![Finding::good("cluster", words)];
    if identity.authority().is_none() {
        findings.push(head(&identity, &folder));
    }
    findings
}

fn head(identity: &Identity, folder: &StateFolder) -> Finding {
    let endpoint = match Endpoint::new(identity, Arc::new(Roster::new(folder))) {
        Ok(endpoint) => endpoint,
        Err(error) => return Finding::bad("head", format!("{:#}", anyhow::Error::from(error))),
    };
    let mut last = "no address is known; motley join ADDRESS".to_owned();
    for address in kept_heads(folder) {
        let began = Instant::now();
        match connect(&address, None, &endpoint, HEAD_PATIENCE) {
            Ok(_) => {
                let time = terminal::duration(began.elapsed());
                return Finding::good("head", format!("let this device in at {address} in {time}"));
            }
            Err(error) => last = format!("{:#}", anyhow::Error::from(error)),
        }
    }
    Finding::bad("head", last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_or_wrong_needs_a_look() {
        let at = |unix_s| clock(SystemTime::UNIX_EPOCH + Duration::from_secs(unix_s));
        assert!(at(crate::identity::RELEASED_UNIX_S + 1).good);
        assert!(!at(0).good && !at(4_102_444_800).good);
        assert!(memory(Some(MEMORY_BYTES_MIN)).good && memory(None).good);
        assert!(!memory(Some(MEMORY_BYTES_MIN - 1)).good);
        assert!(disk(Ok(1)).good && !disk(Ok(0)).good);
        assert!(!disk(Err(io::ErrorKind::PermissionDenied.into())).good);
    }

    #[test]
    fn a_port_in_use_is_told_from_a_free_one() {
        let taken = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let number = taken.local_addr().unwrap().port();
        assert!(port("p", number).words.contains("is in use"));
        drop(taken);
        assert!(port("p", number).words.contains("is free"));
    }

    #[test]
    fn the_nearest_folder_that_exists_is_asked() {
        let outer = tempfile::tempdir().unwrap();
        assert_eq!(existing(&outer.path().join("a/b")), outer.path());
        let found = cluster(&outer.path().join("a"));
        assert!(found.len() == 1 && found[0].good, "{found:?}");
        assert!(!outer.path().join("a").exists(), "looking changes nothing");
    }

    #[test]
    fn a_head_that_is_gone_needs_a_look() {
        let outer = tempfile::tempdir().unwrap();
        let folder = StateFolder::open(&outer.path().join("state")).unwrap();
        let now = crate::identity::RELEASED_UNIX_S;
        let (identity, _) = Identity::load_or_create_cluster(&folder, "nas", now).unwrap();
        assert_eq!(head(&identity, &folder).words, "no address is known; motley join ADDRESS");
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = taken.local_addr().unwrap().to_string();
        drop(taken);
        folder.write("heads", address.as_bytes()).unwrap();
        let found = head(&identity, &folder);
        assert!(!found.good && found.words.contains(&address), "{found:?}");
    }
}
