//! Child processes with a time limit and a sign of life.

use std::fs::{self, File};
use std::io::{IsTerminal as _, Seek as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How often a child is reported alive that prints nothing of its own.
const QUIET_BEAT: Duration = Duration::from_secs(10);
/// The same on a terminal, where the report replaces the one before.
const LIVE_BEAT: Duration = Duration::from_secs(1);
/// How often a child is reported alive that prints too.
const SHOWN_BEAT: Duration = Duration::from_secs(30);
/// How much of a failed child's log is repeated.
const LOG_LINES_SHOWN: usize = 40;

/// What is told about a child while it runs and when it fails.
pub(crate) struct Job<'a> {
    /// What it does, for a person.
    pub(crate) label: &'a str,
    /// When it is stopped.
    pub(crate) limit: Duration,
    /// What to do if it fails.
    pub(crate) hint: &'a str,
}

/// A child that runs until this value is dropped, with its output in a file.
pub(crate) struct Service {
    child: Child,
    log: PathBuf,
}

impl Service {
    /// Starts a child.
    pub(crate) fn start(mut command: Command, log: PathBuf) -> Result<Self> {
        let file = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().with_context(|| format!("cannot run {name}"))?;
        Ok(Self { child, log })
    }

    /// Fails with the log of a child that has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            bail!("it ended with {status}:\n{log}");
        }
        Ok(())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // One that has ended already needs no more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An address of this machine that nobody listens at.
pub(crate) fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// Runs a child whose output goes to the terminal.
pub(crate) fn show(command: Command, job: &Job<'_>) -> Result<()> {
    // On a terminal cargo draws its own progress, which a line of ours would tear.
    let quiet = std::io::stderr().is_terminal();
    let started = Instant::now();
    let output = watch(command, job.limit, SHOWN_BEAT, || {
        if !quiet {
            eprintln!("   .. {}: {} s", job.label, started.elapsed().as_secs());
        }
    })
    .with_context(|| format!("{}: {}", job.label, job.hint))?;
    if !output.status.success() {
        bail!("{} ended with {}; {}", job.label, output.status, job.hint);
    }
    Ok(())
}

/// Runs a child whose output goes to a file, of which the end is shown if it fails. `progress`
/// tells how far it is.
pub(crate) fn log(
    mut command: Command,
    path: &Path,
    job: &Job<'_>,
    progress: impl Fn() -> String,
) -> Result<()> {
    let mut file = File::options().create(true).append(true).open(path)?;
    let start = file.seek(std::io::SeekFrom::End(0))?;
    command.stdout(file.try_clone()?).stderr(file);
    let started = Instant::now();
    let live = std::io::stderr().is_terminal();
    let every = if live { LIVE_BEAT } else { QUIET_BEAT };
    let output = watch(command, job.limit, every, || {
        let line = format!("   .. {}{}, {} s", job.label, progress(), started.elapsed().as_secs());
        if live {
            eprint!("\r{line}\x1b[K");
            let _ = std::io::stderr().flush();
        } else {
            eprintln!("{line}");
        }
    });
    if live {
        eprint!("\r\x1b[K");
    }
    let failure = match output {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => format!("ended with {}", output.status),
        Err(error) => format!("{error:#}"),
    };
    let bytes = fs::read(path)?;
    let written = String::from_utf8_lossy(&bytes[usize::try_from(start)?.min(bytes.len())..]);
    let lines: Vec<&str> = written.lines().collect();
    for line in &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..] {
        eprintln!("   | {line}");
    }
    bail!("{} {failure} (log: {}); {}", job.label, path.display(), job.hint);
}

/// Runs a child for its standard output.
pub(crate) fn capture(mut command: Command, limit: Duration) -> Result<Vec<u8>> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let name = format!("{command:?}");
    let output = watch(command, limit, limit, || ())?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!("{name} ended with {}: {}", output.status, error.trim());
    }
    Ok(output.stdout)
}

/// Whether a child starts and ends well; for probing what a machine has.
pub(crate) fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments);
    capture(command, Duration::from_secs(30)).is_ok()
}

/// Waits for a child no longer than `limit`, calling `beat` each time `every` has passed.
fn watch(
    mut command: Command,
    limit: Duration,
    every: Duration,
    mut beat: impl FnMut(),
) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let child =
        command.stdin(Stdio::null()).spawn().with_context(|| format!("cannot run {name}"))?;
    let id = child.id();
    let (sender, ended) = mpsc::channel();
    thread::spawn(move || sender.send(Child::wait_with_output(child)));
    let started = Instant::now();
    loop {
        let left = limit.saturating_sub(started.elapsed());
        match ended.recv_timeout(every.min(left)) {
            Ok(output) => return Ok(output?),
            Err(RecvTimeoutError::Timeout) if started.elapsed() < limit => beat(),
            Err(_) => break,
        }
    }
    stop(id);
    bail!("{name} was stopped after its limit of {limit:?}");
}

/// Stops a child with all its descendants. The child stays in our process group, so that an
/// interrupt typed at the terminal reaches it too; that is why the group cannot be used here.
pub(crate) fn stop(id: u32) {
    let mut ids = vec![id];
    let mut next = 0;
    while let Some(&parent) = ids.get(next) {
        ids.extend(children(parent));
        next += 1;
    }
    // The shell's own `kill` is there even where the program of that name is not.
    let _ = Command::new("sh")
        .args(["-c", "kill -KILL \"$@\" 2>/dev/null", "sh"])
        .args(ids.iter().map(u32::to_string))
        .status();
}

/// The direct children of a process, as far as this system tells.
fn children(parent: u32) -> Vec<u32> {
    let listed = if cfg!(any(target_os = "linux", target_os = "android")) {
        let tasks = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
        tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok()).collect()
    } else {
        let output = Command::new("pgrep").args(["-P", &parent.to_string()]).output();
        output
            .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
            .unwrap_or_default()
    };
    listed.split_whitespace().filter_map(|id| id.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_child_past_its_limit_is_stopped_with_its_descendants() -> Result<()> {
        let (mut reader, writer) = std::io::pipe()?;
        let mut command = shell("(sleep 20; echo late) & wait");
        command.stdout(writer);
        let limit = Duration::from_millis(200);
        let error = watch(command, limit, limit, || ()).expect_err("it never ends");
        assert_eq!(error.to_string(), "sh was stopped after its limit of 200ms");
        // The pipe ends when the last process that could write into it is gone.
        let mut written = String::new();
        reader.read_to_string(&mut written)?;
        assert_eq!(written, "");
        Ok(())
    }

    #[test]
    fn a_failure_repeats_what_the_child_said() {
        let error = capture(shell("echo because >&2; exit 3"), Duration::from_secs(20))
            .expect_err("it exits with 3");
        let text = error.to_string();
        assert!(text.ends_with("ended with exit status: 3: because"), "{text}");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = capture(Command::new("no-such-program"), Duration::from_secs(20))
            .expect_err("there is none");
        assert_eq!(error.to_string(), "cannot run no-such-program");
    }
}
