//! `motley join`: this device serves layers of another device's model.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, SystemTime};

use motley_ggml::ThreadPoolOptions;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::cluster::{Member, MemberOptions, ProfileSource, SessionEnd};
use crate::discovery::{self, AnnouncedHead, Scope};
use crate::failure::{Failure, Kind};
use crate::identity::{
    Identity, JoinToken, Roster, Standing, StateFolder, TokenAddress, host_name, trusted_unix_s,
};
use crate::loading;
use crate::memory;
use crate::run::{LayoutName, WeightsPlace};
use crate::terminal::{self, Table};
use crate::transport::{self, Endpoint, JoinError};

/// The file that keeps where the head was found.
const HEADS_FILE: &str = "heads";

/// Between two attempts to find the head: the first, and the longest.
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_LAST: Duration = Duration::from_secs(10);

/// How often a wait looks whether the program is to end.
const LOOK_AROUND: Duration = Duration::from_millis(100);

/// Arguments of `motley join`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Without a word it looks for the head that it joined before.")]
pub(crate) struct Arguments {
    /// A token of motley token new, or the address of a head that knows this device
    #[arg(value_name = "TOKEN|ADDRESS")]
    place: Option<String>,
    /// What this device is called [default: its host name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Memory for layers, such as 4G [default: what is available]
    #[arg(long, value_name = "SIZE", value_parser = terminal::parse_bytes)]
    memory: Option<u64>,
    /// Memory that may be used of each GPU [default: what is free]
    #[arg(long, value_name = "SIZE", value_parser = terminal::parse_bytes)]
    gpu_memory: Option<u64>,
    /// Folder of models, where a copy of the model may lie
    #[arg(long, value_name = "DIR")]
    models: Option<PathBuf>,
    /// Address to listen on [default: all; loopback if the head is there]
    #[arg(long, value_name = "ADDRESS")]
    host: Option<IpAddr>,
    /// Port to listen on; 0 for any that is free
    #[arg(long, value_name = "N", default_value_t = 0)]
    port: u16,
    /// Compute threads [default: one per core]
    #[arg(short, long, value_name = "N")]
    threads: Option<usize>,
    /// Layout of weights: measured or plain
    #[arg(long, value_name = "LAYOUT", default_value = "measured", hide_possible_values = true)]
    layout: LayoutName,
    /// Where weights are kept: mmap, which the system may drop, ram, stream, or what fits
    #[arg(long, value_name = "PLACE", default_value = "auto", hide_possible_values = true)]
    weights: WeightsPlace,
    /// A TOML or JSON file of what this device can do [default: it is measured]
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Folder of keys and lists [default: motley in the user's state folder]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
}

pub(crate) fn execute(arguments: &Arguments) -> Result<(), Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    let folder = StateFolder::open(&StateFolder::locate(arguments.state.clone())?)?;
    let (identity, heads) = enter(arguments, &folder)?;
    let named = Arc::new(RwLock::new(BTreeSet::new()));
    let member =
        Member::new(options(arguments, folder, &identity, heads, named)?, Arc::clone(&stop));
    let mut pause = RETRY_FIRST;
    // A head that is not told is one that was joined before, and may start later than this device.
    let mut joined_before = arguments.place.is_none();
    loop {
        let told = match member.serve_head() {
            Ok(SessionEnd::Stopped) => return Ok(()),
            Ok(SessionEnd::Refused(refused)) => {
                let error = anyhow::anyhow!("the head refuses this device: {}", refused.message);
                return Err(Failure::new(Kind::Refused, error).hint(refused.advice.to_string()));
            }
            Ok(SessionEnd::HeadGone(cause)) => {
                (joined_before, pause) = (true, RETRY_FIRST);
                format!("the head is gone: {cause}; looking for it\n")
            }
            Err(failure) if !joined_before || failure.kind == Kind::Refused => return Err(failure),
            Err(failure) => format!("{}looking for the head\n", failure.report()),
        };
        if pause == RETRY_FIRST {
            terminal::note(&told);
        }
        if !wait(pause, &stop) {
            return Ok(());
        }
        pause = (pause * 2).min(RETRY_LAST);
    }
}

/// Waits; false when the program is to end.
fn wait(pause: Duration, stop: &AtomicBool) -> bool {
    let mut left = pause;
    while !left.is_zero() && !stop.load(Ordering::Relaxed) {
        let step = left.min(LOOK_AROUND);
        thread::sleep(step);
        left -= step;
    }
    !stop.load(Ordering::Relaxed)
}

/// Who this device is, and where the head may be: by token the first time, as kept afterwards.
fn enter(
    arguments: &Arguments,
    folder: &StateFolder,
) -> Result<(Identity, Vec<TokenAddress>), Failure> {
    let mut token = match &arguments.place {
        Some(text) if text.starts_with("motley") && !text.contains(':') => {
            Some(JoinToken::from_str(text).map_err(|error| Failure::new(Kind::Usage, error))?)
        }
        _ => None,
    };
    let known = Identity::load(folder)?;
    let identity = match (known, &mut token) {
        (Some(identity), Some(token)) if identity.cluster() != token.cluster => {
            let error = anyhow::anyhow!(
                "this device belongs to cluster {}, the token is of cluster {}",
                identity.cluster().short(),
                token.cluster.short()
            );
            return Err(Failure::new(Kind::Refused, error)
                .hint("give another folder with --state, or remove the old one"));
        }
        (Some(identity), _) => identity,
        (None, Some(token)) => {
            let name = arguments.name.clone().unwrap_or_else(host_name);
            let now = trusted_unix_s(SystemTime::now());
            join_anew(token, &name, folder, now)?
        }
        (None, None) => {
            if arguments.place.is_none() {
                show_announced();
            }
            let error = anyhow::anyhow!("this device has not joined a cluster yet");
            return Err(Failure::new(Kind::NotFound, error)
                .hint("motley token new on the device that serves makes a token for motley join"));
        }
    };
    let heads = match (&token, &arguments.place) {
        (Some(token), _) => token.addresses.clone(),
        (None, Some(text)) => {
            vec![
                text.parse()
                    .map_err(|error| Failure::new(Kind::Usage, anyhow::Error::new(error)))?,
            ]
        }
        (None, None) => kept_heads(folder),
    };
    let lines: Vec<String> = heads.iter().map(ToString::to_string).collect();
    folder.write(HEADS_FILE, lines.join("\n").as_bytes())?;
    Ok((identity, heads))
}

/// Joins a cluster with a token. If nobody answers where the token says, the head may have moved:
/// then the token's addresses become those at which its cluster announces itself.
fn join_anew(
    token: &mut JoinToken,
    name: &str,
    folder: &StateFolder,
    now: u64,
) -> Result<Identity, Failure> {
    let refused = |error| Failure::new(Kind::Refused, error);
    let error = match transport::join(token, name, folder, now) {
        Ok(identity) => return Ok(identity),
        Err(error) => error,
    };
    let absent = match &error {
        JoinError::Connect(error) => error.is_absence(),
        error => matches!(error, JoinError::NoAddress),
    };
    if !absent {
        return Err(refused(error));
    }
    let found = discovery::addresses_of(token.cluster, &token.addresses);
    if found.is_empty() {
        return Err(refused(error).hint(format!(
            "tried {}; motley token new --address HOST, on the device that serves, makes a token \
             with another address; motley serve --lan lets itself be found",
            in_words(&token.addresses)
        )));
    }
    let (tried, there) = (in_words(&token.addresses), in_words(&found));
    terminal::note(&format!("nobody answers at {tried}, but its cluster is at {there}\n"));
    token.addresses = found;
    transport::join(token, name, folder, now).map_err(refused)
}

fn in_words(addresses: &[TokenAddress]) -> String {
    let words: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    if words.is_empty() { "no address".to_owned() } else { words.join(", ") }
}

/// Lists the heads that can be heard; which of them is the right one only a token says.
fn show_announced() {
    let found = discovery::search(Scope::Lan, discovery::PATIENCE, None);
    let heads = found.unwrap_or_default();
    if heads.is_empty() {
        return terminal::note("no device announces itself on this network\n");
    }
    terminal::note(&format!("on this network:\n{}", announced_table(&heads)));
}

fn announced_table(heads: &[AnnouncedHead]) -> String {
    let mut table = Table::new(["device", "cluster", "address"]);
    for head in heads {
        let addresses: Vec<String> = head.addresses.iter().map(ToString::to_string).collect();
        table.row([head.name.clone(), head.cluster.short(), addresses.join(" ")]);
    }
    table.render()
}

pub(crate) fn kept_heads(folder: &StateFolder) -> Vec<TokenAddress> {
    let kept = folder.read(HEADS_FILE).ok().flatten().unwrap_or_default();
    let text = String::from_utf8_lossy(&kept);
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

fn options(
    arguments: &Arguments,
    folder: StateFolder,
    identity: &Identity,
    heads: Vec<TokenAddress>,
    named: Arc<RwLock<BTreeSet<crate::identity::NodeId>>>,
) -> Result<MemberOptions, Failure> {
    let roster = Roster::new(&folder);
    let known = Arc::clone(&named);
    let check: transport::MemberCheck = Arc::new(move |node| match roster.standing(node) {
        // The head, which is a member, vouches for those that joined later.
        Standing::Unknown
            if known.read().unwrap_or_else(PoisonError::into_inner).contains(node) =>
        {
            Standing::Member
        }
        standing => standing,
    });
    let clock: transport::Clock = Arc::new(|| trusted_unix_s(SystemTime::now()));
    let endpoint = Arc::new(Endpoint::with(identity, check, clock)?);
    let threads = arguments.threads.unwrap_or_else(loading::threads_default);
    let budget = arguments.memory.or_else(|| memory::left_to_engines(arguments.weights));
    Ok(MemberOptions {
        endpoint,
        store: folder.path().join("models"),
        folder,
        heads,
        host: arguments.host,
        port: arguments.port,
        models: crate::store::folder(arguments.models.clone()),
        memory_budget_bytes: budget.unwrap_or(u64::MAX),
        threads: ThreadPoolOptions { threads, poll_percent: loading::POLL_PERCENT, pinned: false },
        layout: arguments.layout.choice(),
        residency: arguments.weights.residency(),
        profile: ProfileSource::new(
            arguments.profile.as_deref(),
            arguments.models.clone(),
            arguments.threads,
            arguments.gpu_memory,
        )?,
        watch: memory::watch(arguments.weights),
        named,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::ClusterId;

    #[test]
    fn heads_that_announce_themselves_are_listed_with_their_clusters() {
        let head = |name: &str, seed: u8, addresses: &[&str]| AnnouncedHead {
            name: name.to_owned(),
            cluster: ClusterId::from_bytes([seed; 32]),
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        };
        let heads = [
            head("desk", 0xa1, &["192.168.1.5:11556", "[2001:db8::5]:11556"]),
            head("nas", 0xb2, &["192.168.1.9:11556"]),
        ];
        expect_test::expect![[r#"
            device  cluster                                 address
            desk    a1a1a1a1  192.168.1.5:11556 [2001:db8::5]:11556
            nas     b2b2b2b2                      192.168.1.9:11556
        "#]]
        .assert_eq(&announced_table(&heads));
        assert_eq!(in_words(&[]), "no address");
    }
}
