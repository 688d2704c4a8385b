//! The description file: which devices there are and how they are linked.
//!
//! What comes out of [`parse`] is whole and sensible; nothing behind it checks again.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// Device numbers are the last byte of an address, and a lab of more is no lab for one machine.
const DEVICES_MAX: usize = 32;
const NAME_LENGTH_MAX: usize = 16;

/// A lab as its file describes it.
#[derive(Debug, PartialEq)]
pub(super) struct Description {
    /// Where jitter and loss begin to be drawn.
    pub(super) seed: u64,
    /// The first is the head, where the command runs.
    pub(super) devices: Vec<Device>,
    /// Pairs that have a cable of their own beside the switch, by device number.
    pub(super) links: Vec<(usize, usize, Wire)>,
}

/// One device of the lab.
#[derive(Debug, PartialEq)]
pub(super) struct Device {
    pub(super) name: String,
    /// Cores' worth of time, 0.5 being half of one core; without, as much as it gets.
    pub(super) cpu_share: Option<f64>,
    pub(super) memory_mib: Option<u64>,
    pub(super) disk_read_mib_s: Option<u64>,
    /// How many threads its programs should use; handed on, not enforced.
    pub(super) threads: Option<u32>,
    /// Its way to the switch, in either direction.
    pub(super) port: Wire,
    /// What is started on it before the command.
    pub(super) command: Vec<String>,
}

impl Device {
    /// Its share of processors, if that is a whole number.
    pub(super) fn whole_processors(&self) -> Option<usize> {
        self.cpu_share.filter(|share| share.fract() == 0.0).map(|share| share as usize)
    }
}

/// One direction of a cable or radio link; the other direction is alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Wire {
    /// What a TCP stream carries at most; without, no limit.
    pub(super) bandwidth_mbit: Option<f64>,
    /// One way.
    pub(super) delay_ms: f64,
    /// The delay is drawn evenly from `delay_ms` plus or minus this.
    pub(super) jitter_ms: f64,
    /// Of frames, drawn for each.
    pub(super) loss_percent: f64,
    /// Whether jitter may let a frame overtake another.
    pub(super) reorder: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText {
    #[serde(default = "one")]
    seed: u64,
    #[serde(default)]
    switch: WireText,
    device: Vec<DeviceText>,
    #[serde(default)]
    link: Vec<LinkText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceText {
    name: String,
    cpu_share: Option<f64>,
    memory_mib: Option<u64>,
    disk_read_mib_s: Option<u64>,
    threads: Option<u32>,
    #[serde(default)]
    port: WireText,
    #[serde(default)]
    command: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireText {
    bandwidth_mbit: Option<f64>,
    delay_ms: Option<f64>,
    jitter_ms: Option<f64>,
    loss_percent: Option<f64>,
    reorder: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkText {
    between: [String; 2],
    bandwidth_mbit: Option<f64>,
    delay_ms: Option<f64>,
    jitter_ms: Option<f64>,
    loss_percent: Option<f64>,
    reorder: Option<bool>,
}

fn one() -> u64 {
    1
}

/// Reads the text of a description file.
pub(super) fn parse(text: &str) -> Result<Description> {
    let file: FileText = toml::from_str(text)?;
    ensure!(!file.device.is_empty(), "a lab needs at least one [[device]]");
    ensure!(
        file.device.len() <= DEVICES_MAX,
        "{} devices, the limit is {DEVICES_MAX}",
        file.device.len()
    );
    let mut names = BTreeSet::new();
    let mut devices = Vec::new();
    for (index, text) in file.device.into_iter().enumerate() {
        let place = format!("device {} (`{}`)", index + 1, text.name);
        ensure!(names.insert(text.name.clone()), "{place}: the name is taken");
        devices.push(text.into_device(&file.switch).context(place)?);
    }
    let mut links: Vec<(usize, usize, Wire)> = Vec::new();
    for (index, text) in file.link.into_iter().enumerate() {
        let [one, other] = &text.between;
        let place = format!("link {} ({one} and {other})", index + 1);
        let number = |name: &String| {
            let found = devices.iter().position(|device| device.name == *name);
            found.with_context(|| format!("{place}: no device is called `{name}`"))
        };
        let (one, other) = (number(one)?, number(other)?);
        let (one, other) = (one.min(other), one.max(other));
        ensure!(one != other, "{place}: a device needs no link to itself");
        ensure!(
            links.iter().all(|(first, second, _)| (*first, *second) != (one, other)),
            "{place}: the pair has a link already"
        );
        links.push((one, other, text.into_wire().context(place)?));
    }
    Ok(Description { seed: file.seed, devices, links })
}

impl DeviceText {
    fn into_device(self, switch: &WireText) -> Result<Device> {
        let lower = |letter: char| letter.is_ascii_lowercase();
        ensure!(
            self.name.starts_with(lower)
                && self.name.len() <= NAME_LENGTH_MAX
                && self.name.chars().all(|c| lower(c) || c.is_ascii_digit() || c == '-'),
            "name: a small letter, then small letters, digits and hyphens, at most \
             {NAME_LENGTH_MAX} in all"
        );
        if let Some(share) = self.cpu_share {
            ensure!((0.01..=1024.0).contains(&share), "cpu_share: {share} is not in 0.01 to 1024");
        }
        ensure!(self.memory_mib != Some(0), "memory_mib: must be above 0");
        ensure!(self.disk_read_mib_s != Some(0), "disk_read_mib_s: must be above 0");
        ensure!(self.threads != Some(0), "threads: must be above 0");
        Ok(Device {
            name: self.name,
            cpu_share: self.cpu_share,
            memory_mib: self.memory_mib,
            disk_read_mib_s: self.disk_read_mib_s,
            threads: self.threads,
            port: self.port.into_wire(switch).context("port")?,
            command: self.command,
        })
    }
}

impl WireText {
    /// Fills what is not said here from `default`.
    fn into_wire(self, default: &Self) -> Result<Wire> {
        let wire = Wire {
            bandwidth_mbit: self.bandwidth_mbit.or(default.bandwidth_mbit),
            delay_ms: self.delay_ms.or(default.delay_ms).unwrap_or(0.0),
            jitter_ms: self.jitter_ms.or(default.jitter_ms).unwrap_or(0.0),
            loss_percent: self.loss_percent.or(default.loss_percent).unwrap_or(0.0),
            reorder: self.reorder.or(default.reorder).unwrap_or(false),
        };
        if let Some(rate) = wire.bandwidth_mbit {
            ensure!(
                (0.01..=1e5).contains(&rate),
                "bandwidth_mbit: {rate} is not in 0.01 to 100000"
            );
        }
        let Wire { delay_ms, jitter_ms, loss_percent, .. } = wire;
        ensure!((0.0..=1e4).contains(&delay_ms), "delay_ms: {delay_ms} is not in 0 to 10000");
        ensure!(
            (0.0..=delay_ms).contains(&jitter_ms),
            "jitter_ms: {jitter_ms} is not in 0 to delay_ms ({delay_ms})"
        );
        ensure!(
            (0.0..=100.0).contains(&loss_percent),
            "loss_percent: {loss_percent} is not in 0 to 100"
        );
        Ok(wire)
    }
}

impl LinkText {
    fn into_wire(self) -> Result<Wire> {
        let text = WireText {
            bandwidth_mbit: self.bandwidth_mbit,
            delay_ms: self.delay_ms,
            jitter_ms: self.jitter_ms,
            loss_percent: self.loss_percent,
            reorder: self.reorder,
        };
        text.into_wire(&WireText::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use expect_test::{Expect, expect};

    fn check_error(text: &str, expected: Expect) {
        let error = parse(text).expect_err("the text is wrong");
        expected.assert_eq(&format!("{error:#}"));
    }

    #[test]
    fn what_a_device_leaves_open_comes_from_the_switch() {
        let lab = parse(
            "[switch]\nbandwidth_mbit = 100\ndelay_ms = 2\n\
             [[device]]\nname = \"a\"\nport = { delay_ms = 1.0, jitter_ms = 0.5 }\n\
             [[device]]\nname = \"b\"\n\
             [[link]]\nbetween = [\"b\", \"a\"]\ndelay_ms = 0.1\n",
        )
        .expect("the text is right");
        let wire = |bandwidth_mbit, delay_ms, jitter_ms| Wire {
            bandwidth_mbit,
            delay_ms,
            jitter_ms,
            loss_percent: 0.0,
            reorder: false,
        };
        assert_eq!(lab.devices[0].port, wire(Some(100.0), 1.0, 0.5));
        assert_eq!(lab.devices[1].port, wire(Some(100.0), 2.0, 0.0));
        assert_eq!(lab.links, [(0, 1, wire(None, 0.1, 0.0))]);
    }

    #[test]
    fn a_wrong_field_is_named_with_its_place() {
        let device = "[[device]]\nname = \"a\"\n";
        check_error(
            "[[device]]\nname = \"a\"\ncpu = 1\n",
            expect![[r#"
                TOML parse error at line 3, column 1
                  |
                3 | cpu = 1
                  | ^^^
                unknown field `cpu`, expected one of `name`, `cpu_share`, `memory_mib`, `disk_read_mib_s`, `threads`, `port`, `command`
            "#]],
        );
        check_error("device = []\n", expect!["a lab needs at least one [[device]]"]);
        check_error(
            "[[device]]\nname = \"Desk\"\n",
            expect![
                "device 1 (`Desk`): name: a small letter, then small letters, digits and hyphens, at most 16 in all"
            ],
        );
        check_error(&format!("{device}{device}"), expect!["device 2 (`a`): the name is taken"]);
        check_error(
            &format!("{device}cpu_share = 0\n"),
            expect!["device 1 (`a`): cpu_share: 0 is not in 0.01 to 1024"],
        );
        check_error(
            &format!("{device}port = {{ delay_ms = 1, jitter_ms = 2 }}\n"),
            expect!["device 1 (`a`): port: jitter_ms: 2 is not in 0 to delay_ms (1)"],
        );
        check_error(
            &format!("{device}port = {{ loss_percent = 101 }}\n"),
            expect!["device 1 (`a`): port: loss_percent: 101 is not in 0 to 100"],
        );
        check_error(
            &format!("{device}port = {{ bandwidth_mbit = 0 }}\n"),
            expect!["device 1 (`a`): port: bandwidth_mbit: 0 is not in 0.01 to 100000"],
        );
        let link = "[[link]]\nbetween = [\"a\", \"b\"]\n";
        check_error(
            &format!("{device}{link}"),
            expect!["link 1 (a and b): no device is called `b`"],
        );
        let other = "[[device]]\nname = \"b\"\n";
        check_error(
            &format!("{device}{other}{link}{link}"),
            expect!["link 2 (a and b): the pair has a link already"],
        );
        check_error(
            &format!("{device}[[link]]\nbetween = [\"a\", \"a\"]\n"),
            expect!["link 1 (a and a): a device needs no link to itself"],
        );
    }
}
