//! Removing a lab, be it this one or one whose program was killed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::cgroups::Cgroups;
use super::plan::{NAMESPACES, PREFIX};
use crate::process::capture;

/// Where each lab holds a lock while it stands.
const CLAIMS: &str = "/run/motley-lab";
/// How long programs have to end by themselves, ...
const ASKED_LIMIT: Duration = Duration::from_secs(3);
/// ... and to be gone once they are killed.
const KILLED_LIMIT: Duration = Duration::from_secs(10);
const BEAT: Duration = Duration::from_millis(10);

/// The right to the names of one lab: a locked file, which the kernel unlocks when the lab's
/// program ends in whatever way.
pub(super) struct Claim {
    pub(super) run: u32,
    _file: File,
}

impl Claim {
    pub(super) fn new(run: u32) -> Result<Self> {
        fs::create_dir_all(CLAIMS)?;
        let file = File::create(claim_path(run))?;
        file.try_lock().context("another lab has the number of this process")?;
        Ok(Self { run, _file: file })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = fs::remove_file(claim_path(self.run));
    }
}

/// Removes labs whose program is gone.
pub(super) fn leftovers(cgroups: &Cgroups) -> Result<()> {
    let mut names: Vec<String> = list(Path::new(NAMESPACES), PREFIX);
    for folder in cgroups.folders("") {
        names.extend(list(&folder, PREFIX));
    }
    let claims = fs::read_dir(CLAIMS).into_iter().flatten().flatten();
    names.extend(claims.map(|entry| format!("{PREFIX}{}", entry.file_name().to_string_lossy())));
    let runs: BTreeSet<u32> = names.iter().filter_map(|name| run_of(name)).collect();
    for run in runs.into_iter().filter(|run| !is_starting(*run)) {
        // The claim keeps two labs that begin at once from removing the same.
        if let Ok(claim) = Claim::new(run) {
            println!("lab: removing what lab {run} left behind");
            end(cgroups, claim.run, || ());
            clear(cgroups, claim.run)?;
        }
    }
    Ok(())
}

/// Ends the processes of a lab. `reap` collects children of ours that have ended.
pub(super) fn end(cgroups: &Cgroups, run: u32, mut reap: impl FnMut()) {
    let group = format!("{PREFIX}{run}");
    let folders = cgroups.folders(&group);
    for device in folders.iter().flat_map(|folder| list(folder, "")) {
        if let Some(freezer) = cgroups.freezer(&group, &device) {
            // Frozen processes cannot end; a file in the list is no device and has no freezer.
            let _ = fs::write(&freezer.file, freezer.thawed);
        }
    }
    for (signal, limit) in [(Signal::SIGTERM, ASKED_LIMIT), (Signal::SIGKILL, KILLED_LIMIT)] {
        let began = Instant::now();
        let mut signalled = BTreeSet::new();
        loop {
            reap();
            let running = processes(&folders);
            if running.is_empty() || began.elapsed() > limit {
                break;
            }
            for id in running.into_iter().filter(|id| signalled.insert(*id)) {
                let _ = kill(Pid::from_raw(id), signal);
            }
            thread::sleep(BEAT);
        }
    }
}

/// Removes the namespaces and groups of a lab whose processes have ended.
pub(super) fn clear(cgroups: &Cgroups, run: u32) -> Result<()> {
    let group = format!("{PREFIX}{run}");
    for name in list(Path::new(NAMESPACES), &format!("{group}-")) {
        let mut ip = Command::new("ip");
        ip.args(["netns", "del", &name]);
        capture(ip, KILLED_LIMIT)?;
    }
    for folder in &cgroups.folders(&group) {
        let below = list(folder, "").into_iter().map(|name| folder.join(name));
        for path in below.filter(|path| path.is_dir()).chain([folder.clone()]) {
            remove_group(&path)?;
        }
    }
    Ok(())
}

/// A group can be busy for a moment after its last process has ended.
fn remove_group(path: &Path) -> Result<()> {
    let began = Instant::now();
    while path.exists() {
        match fs::remove_dir(path) {
            Err(_) if began.elapsed() < KILLED_LIMIT => thread::sleep(BEAT),
            result => result.with_context(|| format!("cannot remove {}", path.display()))?,
        }
    }
    Ok(())
}

/// The processes in the groups of a lab's devices.
fn processes(folders: &[PathBuf]) -> BTreeSet<i32> {
    let devices = folders.iter().flat_map(|folder| {
        list(folder, "").into_iter().map(|name| folder.join(name).join("cgroup.procs"))
    });
    let texts = devices.filter_map(|path| fs::read_to_string(path).ok());
    let ids: Vec<i32> = texts
        .flat_map(|text| text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<_>>())
        .collect();
    ids.into_iter().collect()
}

fn list(folder: &Path, prefix: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(prefix)).collect()
}

/// The number of the lab that gave something this name.
fn run_of(name: &str) -> Option<u32> {
    let rest = name.strip_prefix(PREFIX)?;
    rest.split('-').next()?.parse().ok()
}

/// Whether this is the number of a running xtask: of a lab that is about to claim its number, or has
/// done so below another root folder, no lock is seen here.
fn is_starting(run: u32) -> bool {
    let command = fs::read_to_string(Path::new("/proc").join(run.to_string()).join("comm"));
    command.is_ok_and(|name| name.trim() == "xtask")
}

fn claim_path(run: u32) -> PathBuf {
    Path::new(CLAIMS).join(run.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_names_have_a_number() {
        assert_eq!(run_of("motley-lab-123"), Some(123));
        assert_eq!(run_of("motley-lab-123-desk-2"), Some(123));
        assert_eq!(run_of("motley-lab-desk"), None);
        assert_eq!(run_of("desk"), None);
    }
}
