//! The lab as a program, where this machine gives namespaces; elsewhere its fallback.

#![expect(clippy::print_stderr, reason = "a skipped test says so")]
#![cfg(target_os = "linux")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

const XTASK: &str = env!("CARGO_BIN_EXE_xtask");
/// What the lab says where it cannot build devices.
const FALLBACK: &str = "plain processes";

/// Any lab removes what a killed one left, so one test at a time starts labs.
static LABS: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    LABS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A description of two devices with a round trip of 20 ms, of which the second answers pings.
fn description() -> String {
    format!(
        "[switch]\ndelay_ms = 5\nbandwidth_mbit = 50\n\
         [[device]]\nname = \"near\"\n\
         [[device]]\nname = \"far\"\ncpu_share = 0.5\nmemory_mib = 64\n\
         command = [\"{XTASK}\", \"lab-echo\", \"{{address}}\"]\n"
    )
}

fn start(folder: &Path, command: &[&str]) -> Child {
    let file = folder.join("two.toml");
    fs::write(&file, description()).expect("the folder is ours");
    Command::new(XTASK)
        .arg("lab")
        .arg(file)
        .args(["--limit", "60s", "--"])
        .args(command)
        .env("MOTLEY_CACHE", folder)
        .env("CARGO_TARGET_DIR", folder)
        .stdout(Stdio::piped())
        .spawn()
        .expect("xtask runs")
}

/// Everything in the system that bears the name of a lab.
fn traces(run: u32) -> Vec<String> {
    let mut traces = Vec::new();
    for (folder, name) in [
        ("/run/netns", format!("motley-lab-{run}-")),
        ("/sys/class/net", format!("mlab{run}-")),
        ("/run/motley-lab", run.to_string()),
        ("/sys/fs/cgroup", format!("motley-lab-{run}")),
        ("/sys/fs/cgroup/cpu", format!("motley-lab-{run}")),
        ("/sys/fs/cgroup/memory", format!("motley-lab-{run}")),
    ] {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        traces.extend(names.filter(|found| found.starts_with(&name)));
    }
    traces
}

#[test]
fn devices_are_as_far_apart_as_asked_and_leave_nothing() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("there is room");
    let lab = start(folder.path(), &[XTASK, "lab-measure", "rtt", "{address.far}"]);
    let run = lab.id();
    let output = lab.wait_with_output().expect("it ends");
    let text = String::from_utf8(output.stdout).expect("it prints text");
    assert!(output.status.success(), "{text}");
    let answer = text.lines().last().expect("it prints the answer");
    let rtt_us: f64 = answer.parse().expect("the answer is a number");
    if text.contains(FALLBACK) {
        eprintln!("skipped the links: {text}");
    } else {
        // Waking is foretold, and frames given out that much early, up to 0.2 ms at four places.
        assert!(rtt_us >= 19_200.0, "the fastest of all pings took {rtt_us} us");
    }
    assert_eq!(traces(run), [""; 0]);
}

#[test]
fn the_next_lab_removes_what_a_killed_one_left() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("there is room");
    let mut killed = start(folder.path(), &["sh", "-c", "echo up; exec sleep 60"]);
    let mut lines = BufReader::new(killed.stdout.take().expect("it is a pipe"));
    let mut text = String::new();
    while !text.ends_with("up\n") {
        assert!(lines.read_line(&mut text).expect("it prints text") > 0, "{text}");
    }
    if text.contains(FALLBACK) {
        // The shell is a child of the lab, and ends with the limit that was set for it.
        eprintln!("skipped: {text}");
    }
    let run = killed.id();
    let stood = !traces(run).is_empty();
    assert_eq!(stood, !text.contains(FALLBACK), "{text}");
    killed.kill().expect("it runs");
    killed.wait().expect("it was killed");
    let mut next = start(folder.path(), &["true"]);
    let mut told = String::new();
    next.stdout.take().expect("it is a pipe").read_to_string(&mut told).expect("it prints text");
    assert!(next.wait().expect("it ends").success(), "{told}");
    assert_eq!(told.contains(&format!("what lab {run} left behind")), stood, "{told}");
    assert_eq!(traces(run), [""; 0]);
    assert_eq!(traces(next.id()), [""; 0]);
}
