//! `cargo xtask lab`: a cluster of unequal devices on one Linux machine.
//!
//! `description` is the file, `plan` every operation it leads to, `cgroups` the limits, `fabric`
//! the links in virtual time: these four decide and do nothing. `session` builds, runs and removes,
//! `relay` moves frames, `peer` and `check` measure the lab, `study` what plans promise. `docs/LAB.md` is for those who use it.

mod cgroups;
mod check;
mod description;
#[cfg(target_os = "linux")]
mod fabric;
mod peer;
mod plan;
#[cfg(target_os = "linux")]
mod relay;
mod remove;
mod session;
mod study;
mod words;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::cache::Workplace;
use crate::{demo, demo_ring};

use description::Description;
use session::Lab;

const USAGE: &str = "\
cargo xtask lab FILE [--limit 10m] -- COMMAND..
                            build the cluster that FILE describes and run COMMAND on its first device
cargo xtask lab FILE --check
                            compare its links and processors with what FILE asks for
cargo xtask lab study [--only NAME,..] [--baselines] [--json FILE]
                            compare what plans promise with what rings do, on the clusters of
                            lab/study.toml";

const LIMIT: Duration = Duration::from_secs(600);

struct Arguments {
    file: PathBuf,
    limit: Duration,
    check: bool,
    command: Vec<String>,
}

/// Runs a command in a lab, or measures the lab.
pub(crate) fn run(workplace: &Workplace, arguments: &[String]) -> Result<()> {
    if let Some(("study", rest)) = arguments.split_first().map(|(word, rest)| (&**word, rest)) {
        return study::run(workplace, rest);
    }
    let arguments = Arguments::parse(arguments)?;
    let file = &arguments.file;
    let text = fs::read_to_string(file)
        .with_context(|| format!("cannot read the description {}", file.display()))?;
    let description = description::parse(&text).with_context(|| file.display().to_string())?;
    let motley = workplace.target.join("release").join("motley");
    let commands = description.devices.iter().map(|device| &device.command);
    let mut words = commands.chain([&arguments.command]).flatten();
    if !arguments.check && words.any(|word| word.contains("{motley}")) {
        demo::build(workplace)?;
    }
    let mut lab = Lab::build(workplace, &description, &text)?;
    // Also what fails is followed by the lab's removal, which `lab` does when it goes.
    if arguments.check {
        check::run(&mut lab, &description)
    } else {
        lab.run(&description, &arguments.command, &motley, arguments.limit)
    }
}

/// The commands that a lab starts of itself and no person types.
pub(crate) fn hidden(command: &str, arguments: &[String]) -> Result<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let answer = match (command, words.as_slice()) {
        #[cfg(target_os = "linux")]
        ("lab-relay", [file, interfaces @ ..]) => {
            let description = read(Path::new(file))?;
            let interfaces: Vec<String> = interfaces.iter().map(|name| (*name).into()).collect();
            return relay::run(&description, &interfaces);
        }
        ("lab-echo", [address]) => return peer::echo(address),
        ("lab-measure", ["link", address]) => serde_json::to_string(&peer::link(address)?)?,
        ("lab-measure", ["rtt", address]) => peer::least_rtt_us(address)?.to_string(),
        ("lab-get", [address, path]) => {
            let (status, answer) = demo_ring::ask(address.parse()?, "GET", path, None)?;
            ensure!(status == 200, "{path} answered {status}: {answer}");
            answer.to_string()
        }
        ("lab-measure", ["cpu", threads]) => serde_json::to_string(&peer::burn(threads.parse()?)?)?,
        _ => bail!("`{command}` is for the lab's own use"),
    };
    println!("{answer}");
    Ok(())
}

#[cfg(target_os = "linux")]
fn read(file: &Path) -> Result<Description> {
    description::parse(&fs::read_to_string(file)?).with_context(|| file.display().to_string())
}

/// This program, to be started again as a part of the lab; by the kernel's name for it, because the
/// file may be built anew meanwhile.
fn myself() -> Result<PathBuf> {
    if cfg!(target_os = "linux") {
        return Ok(PathBuf::from(format!("/proc/{}/exe", std::process::id())));
    }
    std::env::current_exe().context("the system does not say where this program is")
}

/// A command from words, the first being the program.
fn command(words: &[String]) -> Result<Command> {
    let (program, rest) = words.split_first().context("there is no command")?;
    let mut command = Command::new(program);
    command.args(rest);
    Ok(command)
}

impl Arguments {
    fn parse(words: &[String]) -> Result<Self> {
        let (own, command) = match words.iter().position(|word| word == "--") {
            Some(index) => (&words[..index], words[index + 1..].to_vec()),
            None => (words, Vec::new()),
        };
        let (mut file, mut limit, mut check) = (None, LIMIT, false);
        let mut own = own.iter();
        while let Some(word) = own.next() {
            match word.as_str() {
                "--check" => check = true,
                "--limit" => {
                    let text = own.next().context("--limit needs a time, such as 90s or 10m")?;
                    limit = parse_limit(text)?;
                }
                option if option.starts_with('-') => {
                    bail!("`{option}` is not an option of the lab:\n{USAGE}")
                }
                path => {
                    ensure!(file.is_none(), "`{path}`: the command stands after `--`:\n{USAGE}");
                    file = Some(PathBuf::from(path));
                }
            }
        }
        let file = file.with_context(|| format!("which FILE?\n{USAGE}"))?;
        ensure!(check == command.is_empty(), "either --check or a command after `--`:\n{USAGE}");
        Ok(Self { file, limit, check, command })
    }
}

fn parse_limit(text: &str) -> Result<Duration> {
    let digits = text.trim_end_matches(|last: char| last.is_ascii_alphabetic());
    let seconds = match &text[digits.len()..] {
        "s" | "" => 1,
        "m" => 60,
        "h" => 3600,
        unit => bail!("--limit {text}: `{unit}` is not a unit; there are s, m and h"),
    };
    let count: u64 = digits.parse().with_context(|| format!("--limit {text}"))?;
    ensure!(count > 0, "--limit {text}: must be above 0");
    Ok(Duration::from_secs(count.saturating_mul(seconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Arguments> {
        Arguments::parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    fn check_error(words: &[&str], start: &str) {
        let error = parse(words).err().expect("the words are wrong").to_string();
        assert!(error.starts_with(start), "{error}");
    }

    #[test]
    fn the_command_stands_behind_two_hyphens() {
        let arguments = parse(&["a.toml", "--limit", "2m", "--", "sh", "--check"]).expect("right");
        assert_eq!(arguments.file, Path::new("a.toml"));
        assert_eq!(arguments.limit, Duration::from_secs(120));
        assert_eq!(arguments.command, ["sh", "--check"]);
        assert!(!arguments.check);
        assert!(parse(&["--check", "a.toml"]).expect("right").check);
    }

    #[test]
    fn wrong_words_are_named() {
        check_error(&[], "which FILE?");
        check_error(&["a", "b"], "`b`: the command stands after `--`");
        check_error(&["a", "--fast"], "`--fast` is not an option");
        check_error(&["a"], "either --check or a command");
        check_error(&["a", "--check", "--", "sh"], "either --check or a command");
        check_error(&["a", "--limit"], "--limit needs a time");
        check_error(&["a", "--limit", "3d"], "--limit 3d: `d` is not a unit");
        check_error(&["a", "--limit", "m"], "--limit m");
        check_error(&["a", "--limit", "0"], "--limit 0: must be above 0");
    }
}
