//! A lab while it stands: built from its plan, used, and removed when it is dropped.

use std::fmt;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::cgroups::Cgroups;
use super::description::Description;
use super::plan::{Machine, NAMESPACES, Plan, Step};
use super::remove::{self, Claim};
use super::words::{Words, script_path};
use super::{command, myself};
use crate::cache::Workplace;
use crate::process::{capture, stop, succeeds};
use crate::setup;

const STEP_LIMIT: Duration = Duration::from_secs(20);
/// How often is looked whether the command has ended.
const BEAT: Duration = Duration::from_millis(20);
/// How many labs' logs are kept.
const FOLDERS_KEPT: usize = 20;

/// How much of a device's log is repeated where a ring fails.
const LAST_LINES: usize = 8;

/// A program to be started on a device.
#[derive(Clone, Copy)]
pub(super) struct Start<'a> {
    pub(super) description: &'a Description,
    pub(super) motley: &'a Path,
    /// The device's number.
    pub(super) index: usize,
    /// With what stands in braces still in them.
    pub(super) words: &'a [String],
}

/// Why a lab ended before its time: someone wanted it to.
#[derive(Debug)]
pub(super) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// A lab that stands.
pub(super) struct Lab {
    plan: Plan,
    /// Logs, states, the script and the description as it was read.
    folder: PathBuf,
    interrupt: Arc<AtomicBool>,
    cgroups: Cgroups,
    /// Held while namespaces and groups stand under this process's number.
    claim: Option<Claim>,
    relay: Option<Child>,
    programs: Vec<(String, Child)>,
}

impl Lab {
    /// Builds the devices and links, or says why they are plain processes instead.
    pub(super) fn build(
        workplace: &Workplace,
        description: &Description,
        text: &str,
    ) -> Result<Self> {
        let interrupt = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&interrupt))?;
        }
        let run = process::id();
        let folder = make_folder(&workplace.logs.join("lab"), run)?;
        fs::write(folder.join("lab.toml"), text)?;
        println!("lab {run}: logs in {}", folder.display());
        let mut lab = Self {
            plan: Plan::loopback(description),
            folder,
            interrupt,
            cgroups: Cgroups::Absent,
            claim: None,
            relay: None,
            programs: Vec::new(),
        };
        if let Some(reason) = obstacle() {
            println!(
                "lab {run}: {reason}, so the devices are plain processes on loopback addresses, \
                 without limits and links"
            );
        } else {
            setup::network_tools(workplace)?;
            lab.stand_up(description, run)?;
        }
        for place in &lab.plan.places {
            fs::create_dir_all(lab.folder.join("state").join(&place.name))?;
        }
        Ok(lab)
    }

    fn stand_up(&mut self, description: &Description, run: u32) -> Result<()> {
        self.cgroups = Cgroups::find(&fs::read_to_string("/proc/mounts")?);
        remove::leftovers(&self.cgroups)?;
        self.claim = Some(Claim::new(run)?);
        let machine = Machine {
            cgroups: self.cgroups.clone(),
            disk: disk(&self.folder),
            processors: allowed_processors(&fs::read_to_string("/proc/self/status")?),
        };
        let limited = description.devices.iter().any(|device| device.disk_read_mib_s.is_some());
        if limited && machine.disk.is_none() {
            println!(
                "lab {run}: {} is on no disk of its own, disk limits are left out",
                self.folder.display()
            );
        }
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let asked: f64 = description.devices.iter().filter_map(|device| device.cpu_share).sum();
        if asked > cores as f64 {
            println!("lab {run}: the devices ask for {asked} cores, this machine has {cores}");
        }
        self.plan = Plan::new(description, &machine, run);
        for step in &self.plan.before {
            perform(step)?;
        }
        self.relay = Some(self.start_relay()?);
        for step in &self.plan.after {
            perform(step)?;
        }
        Ok(())
    }

    /// Starts the link emulator and waits until it has made the interfaces.
    fn start_relay(&self) -> Result<Child> {
        let mut words = Vec::new();
        // Real-time priority: frames must not wait behind the devices' computing.
        if succeeds("chrt", &["--fifo", "20", "true"]) {
            words.extend(["chrt", "--fifo", "20"].map(str::to_owned));
        } else {
            println!("no real-time priority here: links are late while the devices compute");
        }
        words.push(myself()?.display().to_string());
        words.push("lab-relay".to_owned());
        words.push(self.folder.join("lab.toml").display().to_string());
        words.extend(self.plan.places.iter().map(|place| place.interface.clone()));
        let mut relay = command(&words)?
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(self.folder.join("links.log"))?)
            .spawn()
            .context("cannot start the link emulator")?;
        let mut line = String::new();
        if let Some(stdout) = relay.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        if line != "ready\n" {
            drop(relay.stdin.take());
            let status = relay.wait()?;
            let log = fs::read_to_string(self.folder.join("links.log")).unwrap_or_default();
            bail!("the link emulator ended with {status}: {}", log.trim());
        }
        Ok(relay)
    }

    /// Starts what the description starts, runs the command on the head, and waits for its end.
    pub(super) fn run(
        &mut self,
        description: &Description,
        words: &[String],
        motley: &Path,
        limit: Duration,
    ) -> Result<()> {
        let folder = self.folder.clone();
        let told = Words { description, plan: &self.plan, folder: &folder, motley };
        let script = script_path(&folder);
        fs::write(&script, told.script())?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
        for (index, device) in description.devices.iter().enumerate() {
            if device.command.is_empty() {
                continue;
            }
            let words = told.fill(index, &device.command)?;
            let mut command = entered(&self.plan.places[index].enter, &words)?;
            command.envs(told.environment(index));
            let log = File::create(folder.join(format!("{}.log", device.name)))?;
            self.programs.push((device.name.clone(), start_program(command, log)?));
        }
        let words = told.fill(0, words)?;
        let mut head = entered(&self.plan.places[0].enter, &words)?;
        head.envs(told.environment(0));
        let mut head = head.spawn().with_context(|| format!("cannot run {}", words[0]))?;
        let ended = self.wait(&mut head, limit);
        // From here on it is ended as the others are, if it has not ended.
        self.programs.push((description.devices[0].name.clone(), head));
        let status = ended?;
        ensure!(
            status.success(),
            "the command ended with {status}; logs are in {}",
            folder.display()
        );
        Ok(())
    }

    fn wait(&mut self, head: &mut Child, limit: Duration) -> Result<ExitStatus> {
        let began = Instant::now();
        let mut told = vec![false; self.programs.len()];
        loop {
            if let Some(status) = head.try_wait()? {
                return Ok(status);
            }
            for ((name, program), told) in self.programs.iter_mut().zip(&mut told) {
                if let (false, Some(status)) = (*told, program.try_wait()?) {
                    *told = true;
                    eprintln!("lab: the program of {name} ended with {status}; see {name}.log");
                }
            }
            self.interrupted()?;
            ensure!(began.elapsed() < limit, "the lab was stopped after its limit of {limit:?}");
            thread::sleep(BEAT);
        }
    }

    /// Fails once someone wants the lab to end.
    pub(super) fn interrupted(&self) -> Result<()> {
        if self.interrupt.load(Ordering::Relaxed) { Err(Interrupted.into()) } else { Ok(()) }
    }

    /// Starts the peers that answer measurements, on every device, outside its limits.
    pub(super) fn start_echoes(&mut self) -> Result<()> {
        for index in 0..self.plan.places.len() {
            let place = &self.plan.places[index];
            let words = [myself()?.display().to_string(), "lab-echo".into(), place.address.clone()];
            let command = entered(&self.outside_limits(index), &words)?;
            let log = File::create(self.folder.join(format!("{}.log", place.name)))?;
            self.programs.push((place.name.clone(), start_program(command, log)?));
        }
        Ok(())
    }

    /// Starts a program on a device, under its limits; tells its number.
    pub(super) fn start_on(&mut self, start: &Start<'_>) -> Result<u32> {
        let Start { description, motley, index, words } = *start;
        let told = Words { description, plan: &self.plan, folder: &self.folder, motley };
        let mut command = entered(&self.plan.places[index].enter, &told.fill(index, words)?)?;
        command.envs(told.environment(index));
        let name = &description.devices[index].name;
        let program = start_program(command, File::create(self.log_path(index))?)?;
        let number = program.id();
        self.programs.push((name.clone(), program));
        Ok(number)
    }

    /// What a command prints that runs in a device's network, but outside its limits.
    pub(super) fn ask(&self, index: usize, words: &[String], limit: Duration) -> Result<String> {
        let printed = capture(entered(&self.outside_limits(index), words)?, limit)?;
        Ok(String::from_utf8(printed)?)
    }

    /// Fails once a program has ended.
    pub(super) fn check_programs(&mut self) -> Result<()> {
        for (name, program) in &mut self.programs {
            if let Some(status) = program.try_wait()? {
                bail!("the program of {name} ended with {status}");
            }
        }
        Ok(())
    }

    /// The folder that is a device's own.
    pub(super) fn state_of(&self, index: usize) -> String {
        let state = self.folder.join("state");
        state.join(&self.plan.places[index].name).display().to_string()
    }

    /// What a device's program has printed.
    pub(super) fn log_of(&self, index: usize) -> String {
        fs::read_to_string(self.log_path(index)).unwrap_or_default()
    }

    /// The ends of all devices' logs.
    pub(super) fn last_words(&self) -> String {
        let mut text = String::new();
        for (index, place) in self.plan.places.iter().enumerate() {
            let log = self.log_of(index);
            let lines: Vec<&str> = log.lines().collect();
            for line in &lines[lines.len().saturating_sub(LAST_LINES)..] {
                text += &format!("{}: {line}\n", place.name);
            }
        }
        text + "the ring failed"
    }

    fn log_path(&self, index: usize) -> PathBuf {
        self.folder.join(format!("{}.log", self.plan.places[index].name))
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The words that lead a command to a device's network, but not under its limits.
    pub(super) fn outside_limits(&self, index: usize) -> Vec<String> {
        let namespace = self.plan.places[index].namespace.as_ref();
        namespace.map_or_else(Vec::new, |name| {
            vec!["nsenter".to_owned(), format!("--net={}/{name}", NAMESPACES), "--".to_owned()]
        })
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Some(claim) = &self.claim {
            let programs = &mut self.programs;
            let reap = || programs.iter_mut().for_each(|(_, program)| drop(program.try_wait()));
            remove::end(&self.cgroups, claim.run, reap);
        }
        // Without groups, and outside them, a program and its children are found by their numbers.
        for (_, program) in &mut self.programs {
            if matches!(program.try_wait(), Ok(None)) {
                stop(program.id());
                let _ = program.wait();
            }
        }
        // The links stand until here, so that programs can say that they leave.
        if let Some(mut relay) = self.relay.take() {
            drop(relay.stdin.take());
            let _ = relay.wait();
        }
        if let Some(claim) = self.claim.take()
            && let Err(error) = remove::clear(&self.cgroups, claim.run)
        {
            eprintln!("lab: not all could be removed; the next lab tries again: {error:#}");
        }
        let _ = fs::remove_dir_all(self.folder.join("state"));
    }
}

/// Why devices cannot be namespaces here.
fn obstacle() -> Option<&'static str> {
    if !cfg!(target_os = "linux") {
        Some("namespaces need Linux")
    } else if !nix::unistd::geteuid().is_root() {
        Some("namespaces need an administrator (run as root)")
    } else if !succeeds("unshare", &["--net", "true"]) {
        Some("this machine gives no network namespaces")
    } else if !Path::new("/dev/net/tun").exists() {
        Some("this machine has no /dev/net/tun")
    } else {
        None
    }
}

fn perform(step: &Step) -> Result<()> {
    match step {
        Step::Command(words) => {
            capture(command(words)?, STEP_LIMIT)?;
        }
        Step::Folder(path) => fs::create_dir(path).with_context(|| step.to_string())?,
        Step::Limit(path, text) => {
            if let Err(error) = fs::write(path, text) {
                println!("lab: this limit is missing: {step}: {error}");
            }
        }
    }
    Ok(())
}

fn entered(enter: &[String], words: &[String]) -> Result<Command> {
    command(&[enter, words].concat())
}

/// The processors that this process may use, by `/proc/self/status`.
fn allowed_processors(status: &str) -> Vec<usize> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let range = |text: &str| {
        let (first, last) = text.trim().split_once('-').unwrap_or((text.trim(), text.trim()));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    };
    list.unwrap_or_default().split(',').filter_map(range).flatten().collect()
}

/// In a process group of its own, so that an interrupt typed at the terminal ends it in order.
fn start_program(mut command: Command, log: File) -> Result<Child> {
    let name = command.get_program().to_string_lossy().into_owned();
    command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("cannot run {name}"))
}

/// A new folder below `parent`, where only the newest are kept.
fn make_folder(parent: &Path, run: u32) -> Result<PathBuf> {
    fs::create_dir_all(parent)?;
    let mut old: Vec<_> = fs::read_dir(parent)?
        .flatten()
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    old.sort();
    for (_, path) in old.iter().rev().skip(FOLDERS_KEPT - 1) {
        // Another lab may be at the same.
        let _ = fs::remove_dir_all(path);
    }
    // One process may build several, one after the other.
    let names = (1..).map(|at| if at == 1 { run.to_string() } else { format!("{run}-{at}") });
    let folder = names.map(|name| parent.join(name)).find(|folder| !folder.exists());
    let folder = folder.expect("there are more numbers than folders");
    fs::create_dir(&folder)?;
    Ok(folder)
}

/// The whole disk that holds `folder`, as the kernel numbers it.
fn disk(folder: &Path) -> Option<String> {
    let number = fs::metadata(folder).ok()?.dev();
    let number = format!("{}:{}", nix::sys::stat::major(number), nix::sys::stat::minor(number));
    let entry = fs::canonicalize(Path::new("/sys/dev/block").join(&number)).ok()?;
    if entry.join("partition").exists() {
        let whole = fs::read_to_string(entry.parent()?.join("dev")).ok()?;
        return Some(whole.trim().to_owned());
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_processors_are_listed_as_ranges() {
        let status = "Name:\tx\nCpus_allowed:\t33\nCpus_allowed_list:\t0-1,4,6-7\n";
        assert_eq!(allowed_processors(status), [0, 1, 4, 6, 7]);
        assert!(allowed_processors("Name:\tx\n").is_empty());
    }
}
