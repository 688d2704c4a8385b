//! `motley stop`: ends servers of this machine when their running answers are done.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::failure::{Failure, Kind};
use crate::identity::StateFolder;
use crate::running::{self, Running};
use crate::store;
use crate::terminal;

/// How often is looked whether a server has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long a server may take to end once its answers are cut off.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

/// Arguments of `motley stop`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Without a word it stops the only server; motley ps lists them.")]
pub(crate) struct Arguments {
    /// A model's name, or an address such as 127.0.0.1:11555
    #[arg(value_name = "NAME|ADDRESS", conflicts_with = "all")]
    word: Option<String>,
    /// Stop every server of this machine
    #[arg(long)]
    all: bool,
    /// Seconds that running answers may take, before they are cut off
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    wait: u64,
    /// Folder of keys and lists [default: motley in the user's state folder]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
}

pub(crate) fn execute(arguments: &Arguments) -> Result<(), Failure> {
    let state = StateFolder::locate(arguments.state.clone())?;
    let chosen = choose(running::servers(&state), arguments.word.as_deref(), arguments.all)?;
    for server in &chosen {
        signal(server)?;
    }
    let until = Instant::now() + Duration::from_secs(arguments.wait);
    for server in &chosen {
        if !ends_by(server, until) {
            terminal::note(&format!("{} still answers; cutting it off\n", server.facts.model));
            // A second signal ends running answers at once.
            signal(server)?;
        }
        if !ends_by(server, until.max(Instant::now() + LAST_PATIENCE)) {
            let error = anyhow::anyhow!("process {} does not end", server.facts.pid);
            return Err(Failure::new(Kind::Failed, error)
                .hint(format!("kill -9 {} ends it by force", server.facts.pid)));
        }
        terminal::print(&format!("stopped {} at {}\n", server.facts.model, server.facts.address))?;
    }
    Ok(())
}

/// The servers that are meant.
fn choose(servers: Vec<Running>, word: Option<&str>, all: bool) -> Result<Vec<Running>, Failure> {
    let list = || -> String {
        let names: Vec<String> = servers
            .iter()
            .map(|server| format!("{} at {}", server.facts.model, server.facts.address))
            .collect();
        names.join(", ")
    };
    if servers.is_empty() {
        let error = anyhow::anyhow!("nothing is served on this machine");
        return Err(Failure::new(Kind::NotFound, error)
            .hint("a server of another user, or with another --state, is not seen from here"));
    }
    let Some(word) = word else {
        if all || servers.len() == 1 {
            return Ok(servers);
        }
        return Err(Failure::usage("several models are served; which is to stop?")
            .hint(format!("motley stop NAME or ADDRESS, or --all: {}", list())));
    };
    let address = word.trim_start_matches("http://").trim_end_matches('/');
    let is_meant = |server: &Running| {
        let facts = &server.facts;
        facts.model.eq_ignore_ascii_case(word)
            || store::name_of(&facts.path) == word.to_lowercase()
            || facts.address.to_string() == address
            || facts.url().trim_start_matches("http://") == address
    };
    let meant = servers.iter().filter(|server| is_meant(server)).count();
    match meant {
        0 => {
            let error = anyhow::anyhow!("no server of this machine serves '{word}'");
            Err(Failure::new(Kind::NotFound, error).hint(format!("there are {}", list())))
        }
        1 => Ok(servers.into_iter().filter(is_meant).collect()),
        _ => Err(Failure::usage(format!("several servers serve '{word}'"))
            .hint(format!("give an address: {}", list()))),
    }
}

/// Asks a server to end. It holds its file locked, so that its process is still the one.
fn signal(server: &Running) -> Result<(), Failure> {
    if server.has_ended() {
        return Ok(());
    }
    let pid = i32::try_from(server.facts.pid)?;
    match kill(Pid::from_raw(pid), Signal::SIGTERM) {
        // It ended by itself just now.
        Ok(()) | Err(nix::errno::Errno::ESRCH) => Ok(()),
        Err(error) => {
            let error = anyhow::Error::new(error).context(format!("cannot stop process {pid}"));
            Err(Failure::new(Kind::Refused, error))
        }
    }
}

fn ends_by(server: &Running, until: Instant) -> bool {
    while !server.has_ended() {
        if Instant::now() >= until {
            return false;
        }
        thread::sleep(LOOK_EVERY);
    }
    true
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::running::RunFile;
    use crate::running::tests::facts;

    fn check(ports: &[(&str, u16)], word: Option<&str>, expected: &Expect) {
        let state = tempfile::tempdir().unwrap();
        let _files: Vec<RunFile> = ports
            .iter()
            .map(|(model, port)| RunFile::create(state.path(), &facts(model, *port)).unwrap())
            .collect();
        let said = match choose(running::servers(state.path()), word, false) {
            Ok(chosen) => {
                chosen.iter().map(|server| format!("{}\n", server.facts.address)).collect()
            }
            Err(failure) => failure.report(),
        };
        expected.assert_eq(&said);
    }

    #[test]
    fn the_server_that_is_meant_is_found() {
        let two = [("a", 1), ("b", 2)];
        check(&two[..1], None, &expect!["127.0.0.1:1\n"]);
        check(&two, Some("B"), &expect!["127.0.0.1:2\n"]);
        check(&two, Some("http://127.0.0.1:1/"), &expect!["127.0.0.1:1\n"]);
        check(
            &[],
            None,
            &expect![[r#"
            motley: nothing is served on this machine
            hint: a server of another user, or with another --state, is not seen from here
        "#]],
        );
        check(
            &two,
            None,
            &expect![[r#"
            motley: several models are served; which is to stop?
            hint: motley stop NAME or ADDRESS, or --all: a at 127.0.0.1:1, b at 127.0.0.1:2
        "#]],
        );
        check(
            &two,
            Some("c"),
            &expect![[r#"
            motley: no server of this machine serves 'c'
            hint: there are a at 127.0.0.1:1, b at 127.0.0.1:2
        "#]],
        );
        check(
            &[("a", 1), ("a", 2)],
            Some("a"),
            &expect![[r#"
            motley: several servers serve 'a'
            hint: give an address: a at 127.0.0.1:1, a at 127.0.0.1:2
        "#]],
        );
    }
}
