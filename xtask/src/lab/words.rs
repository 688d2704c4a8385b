//! What programs in a lab are told: placeholders, environment, and the script that acts on devices.

use std::path::Path;

use anyhow::{Result, bail};

use super::description::Description;
use super::plan::{INTERFACE, MULTICAST, Place, Plan};

/// What the words of a lab are made of.
pub(super) struct Words<'a> {
    pub(super) description: &'a Description,
    pub(super) plan: &'a Plan,
    /// Where logs, states and the script lie.
    pub(super) folder: &'a Path,
    pub(super) motley: &'a Path,
}

impl Words<'_> {
    /// Replaces what stands in braces, for a program on the device of that number; text without
    /// braces, and braces that are not ours, such as JSON, stay.
    pub(super) fn fill(&self, index: usize, words: &[String]) -> Result<Vec<String>> {
        words.iter().map(|word| self.fill_word(index, word)).collect()
    }

    fn fill_word(&self, index: usize, word: &str) -> Result<String> {
        let place = &self.plan.places[index];
        let mut filled = word.to_owned();
        for (name, value) in [
            ("{motley}", self.motley.display().to_string()),
            ("{head}", self.plan.places[0].address.clone()),
            ("{address}", place.address.clone()),
            ("{name}", place.name.clone()),
            ("{state}", self.state(place)),
            ("{threads}", self.threads(index).to_string()),
        ] {
            filled = filled.replace(name, &value);
        }
        for other in &self.plan.places {
            filled = filled.replace(&format!("{{address.{}}}", other.name), &other.address);
            filled = filled.replace(&format!("{{state.{}}}", other.name), &self.state(other));
        }
        for start in ["{address.", "{state."] {
            if let Some((_, rest)) = filled.split_once(start) {
                let name = rest.split('}').next().unwrap_or_default();
                bail!("{word}: no device is called `{name}`");
            }
        }
        Ok(filled)
    }

    /// The environment of programs on the device of that number.
    pub(super) fn environment(&self, index: usize) -> Vec<(String, String)> {
        let names: Vec<&str> = self.plan.places.iter().map(|place| place.name.as_str()).collect();
        let mut variables = self.own_environment(index);
        variables.extend([
            ("MOTLEY_LAB".to_owned(), script_path(self.folder)),
            ("MOTLEY_LAB_DEVICES".to_owned(), names.join(" ")),
            ("MOTLEY_LAB_HEAD".to_owned(), self.plan.places[0].address.clone()),
            ("MOTLEY_LAB_LOGS".to_owned(), self.folder.display().to_string()),
            ("MOTLEY_LAB_MOTLEY".to_owned(), self.motley.display().to_string()),
        ]);
        for (other, place) in self.plan.places.iter().enumerate() {
            let name = place.name.to_uppercase().replace('-', "_");
            variables.extend([
                (format!("MOTLEY_LAB_ADDRESS_{name}"), place.address.clone()),
                (format!("MOTLEY_LAB_STATE_{name}"), self.state(place)),
                (format!("MOTLEY_LAB_THREADS_{name}"), self.threads(other).to_string()),
            ]);
        }
        variables
    }

    /// The part of it that differs between devices.
    fn own_environment(&self, index: usize) -> Vec<(String, String)> {
        let place = &self.plan.places[index];
        [
            ("MOTLEY_LAB_NAME", place.name.clone()),
            ("MOTLEY_LAB_ADDRESS", place.address.clone()),
            ("MOTLEY_LAB_STATE", self.state(place)),
            ("MOTLEY_LAB_THREADS", self.threads(index).to_string()),
            // Devices share a file system, but neither keys, models nor what they measured.
            ("XDG_STATE_HOME", self.state(place)),
            ("XDG_DATA_HOME", self.state(place)),
            ("XDG_CACHE_HOME", self.state(place)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }

    /// The folder that is a device's own, empty at first and removed with the lab.
    pub(super) fn state(&self, place: &Place) -> String {
        self.folder.join("state").join(&place.name).display().to_string()
    }

    fn threads(&self, index: usize) -> u32 {
        let device = &self.description.devices[index];
        device.threads.unwrap_or_else(|| device.cpu_share.map_or(1.0, f64::ceil) as u32)
    }

    /// The program behind `MOTLEY_LAB`.
    pub(super) fn script(&self) -> String {
        let mut script = "#!/bin/sh\n\
             # on NAME COMMAND.. runs a command on a device; freeze, thaw, kill, down, up NAME act on it.\n\
             verb=$1 name=$2\nshift 2\ncase \"$verb $name\" in\n"
            .to_owned();
        let mut add = |verb: &str, place: &Place, action: &str| {
            script += &format!("'{verb} {}') {action} ;;\n", place.name);
        };
        for (index, place) in self.plan.places.iter().enumerate() {
            let mut action = String::new();
            for (name, value) in self.own_environment(index) {
                action += &format!("export {name}={}; ", quote(&value));
            }
            action += "exec";
            for word in &place.enter {
                action += &format!(" {}", quote(word));
            }
            add("on", place, &format!("{action} \"$@\""));
            if let Some(freezer) = &place.freezer {
                let file = quote(&freezer.file.display().to_string());
                add("freeze", place, &format!("echo {} >{file}", freezer.frozen));
                add("thaw", place, &format!("echo {} >{file}", freezer.thawed));
            }
            if let Some(file) = place.joins.first() {
                let file = quote(&file.display().to_string());
                add("kill", place, &format!("kill -KILL $(cat {file})"));
            }
            if let Some(namespace) = &place.namespace {
                let ip = format!("ip -n {namespace}");
                add("down", place, &format!("{ip} link set dev {INTERFACE} down"));
                // An interface that goes down takes its routes with it.
                let route = format!("{ip} route add {MULTICAST} dev {INTERFACE}");
                add("up", place, &format!("{ip} link set dev {INTERFACE} up && {route}"));
            }
        }
        script + "*) echo \"$0: cannot $verb $name in this lab\" >&2; exit 2 ;;\nesac\n"
    }
}

/// Where the script lies.
pub(super) fn script_path(folder: &Path) -> String {
    folder.join("lab").display().to_string()
}

/// A word as the shell reads it back.
fn quote(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=:".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}
