//! Servers that run on this machine: each keeps a file in the state folder, locked as long as it
//! lives, so that one that ended in whatever way is told from one that runs.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Bytes of a server's file at most.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Servers that are listed at most.
const SERVERS_MAX: usize = 1024;

/// What a server tells of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerFacts {
    /// Name that clients call the model by.
    pub(crate) model: String,
    /// The model's file; of several the first.
    pub(crate) path: PathBuf,
    pub(crate) address: SocketAddr,
    pub(crate) pid: u32,
    pub(crate) started_unix_s: u64,
    pub(crate) version: String,
}

impl ServerFacts {
    /// Where the server is reached from this machine.
    pub(crate) fn url(&self) -> String {
        let ip = match self.address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        format!("http://{}", SocketAddr::new(ip, self.address.port()))
    }
}

/// The file of this process, as long as it serves.
#[derive(Debug)]
#[must_use]
pub(crate) struct RunFile {
    path: PathBuf,
    _locked: File,
}

/// A server that runs.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) facts: ServerFacts,
    file: File,
}

fn folder(state: &Path) -> PathBuf {
    state.join("servers")
}

impl RunFile {
    /// Tells others of this process.
    ///
    /// # Errors
    /// When the state folder cannot be written to.
    pub(crate) fn create(state: &Path, facts: &ServerFacts) -> io::Result<Self> {
        let folder = folder(state);
        fs::create_dir_all(&folder)?;
        let path = folder.join(format!("{}-{}.json", facts.pid, facts.address.port()));
        let fresh = path.with_extension("new");
        let mut options = OpenOptions::new();
        options.create(true).truncate(true).write(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&fresh)?;
        file.lock()?;
        file.write_all(&serde_json::to_vec(facts)?)?;
        // It is locked before it can be found.
        fs::rename(fresh, &path)?;
        Ok(Self { path, _locked: file })
    }
}

impl Drop for RunFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Running {
    /// Whether the server has ended since.
    pub(crate) fn has_ended(&self) -> bool {
        self.file.try_lock_shared().is_ok()
    }
}

/// The servers that run, the longest first. Files that others left behind are removed.
pub(crate) fn servers(state: &Path) -> Vec<Running> {
    let Ok(entries) = fs::read_dir(folder(state)) else { return Vec::new() };
    let mut running: Vec<Running> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .take(SERVERS_MAX)
        .filter_map(|path| look(&path))
        .collect();
    running.sort_by_key(|server| (server.facts.started_unix_s, server.facts.pid));
    running
}

fn look(path: &Path) -> Option<Running> {
    let file = File::open(path).ok()?;
    match file.try_lock_shared() {
        // Nobody holds it.
        Ok(()) => {
            let _ = fs::remove_file(path);
            return None;
        }
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(_)) => return None,
    }
    if file.metadata().ok()?.len() > FILE_BYTES_MAX {
        return None;
    }
    let facts = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    Some(Running { facts, file })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn facts(model: &str, port: u16) -> ServerFacts {
        ServerFacts {
            model: model.to_owned(),
            path: PathBuf::from(format!("{model}.gguf")),
            address: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port),
            pid: 100,
            started_unix_s: 1_000 + u64::from(port),
            version: "0.0.0".to_owned(),
        }
    }

    #[test]
    fn servers_are_seen_while_they_run_and_cleaned_up_after() {
        let state = tempfile::tempdir().unwrap();
        assert!(servers(state.path()).is_empty());
        let later = RunFile::create(state.path(), &facts("b", 2)).unwrap();
        let earlier = RunFile::create(state.path(), &facts("a", 1)).unwrap();
        let stale = folder(state.path()).join("7-7.json");
        fs::write(&stale, serde_json::to_vec(&facts("c", 7)).unwrap()).unwrap();
        let models = || -> Vec<String> {
            servers(state.path()).into_iter().map(|server| server.facts.model).collect()
        };
        assert_eq!(models(), ["a", "b"]);
        assert!(!stale.exists());
        let [first, _] = servers(state.path()).try_into().unwrap();
        assert!(!first.has_ended());
        drop(earlier);
        assert!(first.has_ended());
        assert_eq!(models(), ["b"]);
        drop(later);
        assert_eq!(models(), [""; 0]);
    }

    #[test]
    fn any_address_is_asked_on_this_machine() {
        let at = |address: &str| ServerFacts { address: address.parse().unwrap(), ..facts("m", 1) };
        assert_eq!(at("0.0.0.0:80").url(), "http://127.0.0.1:80");
        assert_eq!(at("[::]:80").url(), "http://[::1]:80");
        assert_eq!(at("10.0.0.1:80").url(), "http://10.0.0.1:80");
    }
}
