//! `cargo xtask lab study`: do plans keep their promises, and are they better than rules of thumb?
//!
//! `cases` reads the clusters, `rules` says how others would deal out layers, `report` compares:
//! these decide. `ring` runs a cluster in a lab; `memory` is what the kernel tells of it.

mod cases;
mod memory;
mod report;
mod ring;
mod rules;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::session::Interrupted;
use crate::cache::Workplace;
use crate::process::capture;
use crate::{demo, fixtures, models};

use cases::Case;
use report::Row;
use ring::{CONTEXT_TOKENS, Means, Measured, SLOTS};

const USAGE: &str = "\
cargo xtask lab study [--only NAME,..] [--baselines] [--full] [--rest SECONDS] [--json FILE] [--file FILE]
                      [--motley FILE]";

const SHOW_LIMIT: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Arguments {
    only: Vec<String>,
    /// Whether rules of thumb are run too.
    baselines: bool,
    /// Whether all slots are filled in the end, for their memory.
    full: bool,
    /// Between two runs, for whatever else the machine has to do.
    rest: Duration,
    json: Option<PathBuf>,
    /// The study's description instead of the one of the checkout.
    file: Option<PathBuf>,
    /// A program that is not built first.
    motley: Option<PathBuf>,
}

/// Runs the study; a cluster that fails is told and the others go on.
pub(super) fn run(workplace: &Workplace, words: &[String]) -> Result<()> {
    let arguments = Arguments::parse(words)?;
    let file = arguments.file.clone().unwrap_or_else(|| workplace.root.join("lab/study.toml"));
    let text = fs::read_to_string(&file)
        .with_context(|| format!("cannot read the study {}", file.display()))?;
    let cases = cases::parse(&text).with_context(|| file.display().to_string())?;
    let cases = cases::only(cases, &arguments.only)?;
    let motley = match &arguments.motley {
        Some(program) => program.clone(),
        None => {
            demo::build(workplace)?;
            workplace.target.join("release").join("motley")
        }
    };
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for (index, case) in cases.iter().enumerate() {
        rest(if index > 0 { arguments.rest } else { Duration::ZERO });
        match row(workplace, &motley, case, &arguments) {
            Ok(row) => {
                print!("{}", row.text());
                rows.push(row);
            }
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => {
                println!("{}: {error:#}", case.name);
                failed.push(case.name.as_str());
            }
        }
        if let Some(path) = &arguments.json {
            // After each, so that a study which is stopped has not been in vain.
            fs::write(path, serde_json::to_string_pretty(&rows)?)?;
        }
    }
    print!("\n{}", report::summary(&rows));
    ensure!(failed.is_empty(), "these clusters did not answer: {}", failed.join(", "));
    Ok(())
}

fn row(workplace: &Workplace, motley: &Path, case: &Case, arguments: &Arguments) -> Result<Row> {
    let model = model(workplace, &case.model)?;
    let means = Means { workplace, motley: motley.to_owned(), model, full: arguments.full };
    let planned = ring::measure(&means, case, ("plan", None))?;
    let mut by_rule = Vec::new();
    if arguments.baselines {
        for (name, counts) in dealt(&means, case, &planned)? {
            let same = planned.nodes.iter().map(ring::Node::layer_count);
            if planned.rounds == 1 && same.eq(counts.iter().copied().map(u64::from)) {
                continue;
            }
            rest(arguments.rest);
            match ring::measure(&means, case, (name, Some(&counts))) {
                Ok(measured) => by_rule.push(measured),
                Err(error) if error.is::<Interrupted>() => return Err(error),
                Err(error) => println!("  {name} ({counts:?}): {error:#}"),
            }
        }
    }
    Ok(Row { cluster: case.name.clone(), model: case.model.clone(), planned, by_rule })
}

/// Lets others compute for a while, and says so.
fn rest(time: Duration) {
    if !time.is_zero() {
        println!("resting for {time:?}");
        thread::sleep(time);
    }
}

/// A file of the cache, fetched or made where it is not there yet.
fn model(workplace: &Workplace, name: &str) -> Result<PathBuf> {
    let path = workplace.models.join(name);
    if !path.exists() {
        match name.strip_prefix("made/").and_then(|made| made.strip_suffix(".gguf")) {
            Some(made) => fixtures::run(workplace, &[made.to_owned()])?,
            None => models::fetch_file(workplace, name)?,
        }
    }
    ensure!(path.exists(), "there is no model {}", path.display());
    Ok(path)
}

/// What rules of thumb say of a case, by the memory that its devices gave.
fn dealt(means: &Means<'_>, case: &Case, planned: &Measured) -> Result<Vec<rules::Dealt>> {
    let mut show = Command::new(&means.motley);
    show.arg("show").arg(&means.model).arg("--json");
    show.args(["-c", &CONTEXT_TOKENS.to_string(), "--parallel", &SLOTS.to_string()]);
    let shown: Value = serde_json::from_slice(&capture(show, SHOW_LIMIT)?)?;
    let devices = case.description.devices.iter().zip(&planned.nodes);
    let speeds: Vec<(f64, u64)> = devices
        .map(|(device, node)| (device.cpu_share.unwrap_or(1.0), node.budget_bytes))
        .collect();
    rules_of(&shown, &speeds)
}

fn rules_of(shown: &Value, devices: &[(f64, u64)]) -> Result<Vec<rules::Dealt>> {
    let bytes = |value: &Value| value.as_u64().unwrap_or(0);
    let layers = shown["layers"].as_array().context("the model has no layers")?;
    let layer = |layer: &Value| bytes(&layer["weights_bytes"]) + bytes(&layer["cache_bytes"]);
    let layer_bytes = layers.iter().map(layer).max().unwrap_or(0);
    let memory = &shown["memory"];
    let work = bytes(&memory["compute_bytes_at_most"]) + bytes(&memory["program_bytes_at_most"]);
    let ends = bytes(&shown["embedding_bytes"]) + bytes(&shown["head_bytes"]);
    let device = |(index, (speed, budget_bytes)): (usize, &(f64, u64))| rules::Device {
        speed: *speed,
        room_bytes: budget_bytes.saturating_sub(work + if index == 0 { ends } else { 0 }),
    };
    let devices: Vec<rules::Device> = devices.iter().enumerate().map(device).collect();
    Ok(rules::deal(&devices, u32::try_from(layers.len())?, layer_bytes))
}

impl Arguments {
    fn parse(words: &[String]) -> Result<Self> {
        let mut arguments = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value =
                || words.next().with_context(|| format!("{word} needs a value:\n{USAGE}"));
            match word.as_str() {
                "--only" => arguments.only.extend(value()?.split(',').map(str::to_owned)),
                "--baselines" => arguments.baselines = true,
                "--full" => arguments.full = true,
                "--rest" => {
                    arguments.rest = Duration::from_secs(value()?.parse().context("--rest")?)
                }
                "--json" => arguments.json = Some(value()?.into()),
                "--file" => arguments.file = Some(value()?.into()),
                "--motley" => arguments.motley = Some(value()?.into()),
                _ => bail!("`{word}` is not an option of the study:\n{USAGE}"),
            }
        }
        Ok(arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use serde_json::json;

    #[test]
    fn words_become_arguments() {
        let parse =
            |text: &str| Arguments::parse(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let arguments = parse("--only a,b --baselines --rest 60 --json out.json").expect("right");
        assert_eq!(arguments.only, ["a", "b"]);
        assert!(arguments.baselines && arguments.motley.is_none());
        assert_eq!(arguments.rest, Duration::from_secs(60));
        assert_eq!(arguments.json.as_deref(), Some(Path::new("out.json")));
        let error = |text| parse(text).err().expect("wrong").to_string();
        assert!(error("--fast").starts_with("`--fast` is not an option of the study"));
        assert!(error("--json").starts_with("--json needs a value"));
    }

    #[test]
    fn a_head_has_less_room_for_layers() {
        let layer = json!({ "weights_bytes": 8, "cache_bytes": 2 });
        let shown = json!({
            "layers": vec![layer; 10],
            "embedding_bytes": 15,
            "head_bytes": 25,
            "memory": { "compute_bytes_at_most": 7, "program_bytes_at_most": 3 },
        });
        let dealt = rules_of(&shown, &[(1.0, 100), (1.0, 110)]).expect("it has layers");
        let single = &dealt[0];
        assert_eq!(*single, ("best single device", vec![0, 10]), "50 and 100 bytes are left");
        assert_eq!(dealt[2], ("flops-proportional", vec![5, 5]));
    }
}
