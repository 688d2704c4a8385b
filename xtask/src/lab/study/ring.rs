//! One ring in one lab: started, asked, and compared with what its plan foretold.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::{Map, Value};

use super::super::myself;
use super::super::session::{Lab, Start};
use super::cases::Case;
use super::memory::{self, Peak};
use crate::cache::Workplace;

const GATEWAY: &str = "127.0.0.1:18100";
const CLUSTER_PORT: u16 = 18101;
/// Sequences and context that every ring keeps.
pub(super) const SLOTS: u32 = 8;
pub(super) const CONTEXT_TOKENS: u32 = 1024;
/// Room that prompts leave to answers where every slot is filled: the chat's own tokens, too.
const FULL_ANSWER_TOKENS: u32 = 64;
/// Until the head answers at all, until all serve, and until all answers have come.
const HEAD_LIMIT: Duration = Duration::from_secs(40);
const READY_LIMIT: Duration = Duration::from_secs(120);
const LOAD_LIMIT: Duration = Duration::from_secs(240);
const ASK_LIMIT: Duration = Duration::from_secs(10);
/// Members tell of themselves every second.
const SETTLED: Duration = Duration::from_millis(2500);
const LOOK: Duration = Duration::from_millis(400);

/// Where the study's programs and models are.
pub(super) struct Means<'a> {
    pub(super) workplace: &'a Workplace,
    pub(super) motley: PathBuf,
    /// The model of the case.
    pub(super) model: PathBuf,
    /// Whether all slots are filled in the end, for their memory.
    pub(super) full: bool,
}

/// A ring's promises and what became of them.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Measured {
    /// Who dealt out the layers: the plan, or a rule.
    pub(super) by: String,
    /// In the order of the lab's devices.
    pub(super) nodes: Vec<Node>,
    pub(super) rounds: u64,
    /// Nothing where no plan was made.
    pub(super) tpot_predicted_ms: Option<f64>,
    pub(super) ttft_predicted_ms: Option<f64>,
    pub(super) tpot_ms: f64,
    pub(super) ttft_ms: f64,
    /// From the start of the first program until requests were answered.
    pub(super) ready_s: f64,
    /// The layers were dealt out anew while it ran, because devices were not as fast as promised.
    pub(super) dealt_anew: bool,
    /// All that the head told before and after, for whoever looks for a wrong prediction.
    pub(super) told: (Value, Value),
}

/// A device of it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Node {
    pub(super) name: String,
    /// Ranges of layers, first and last plus one.
    pub(super) layers: Vec<(u64, u64)>,
    pub(super) budget_bytes: u64,
    /// What the plan counts for it; nothing for a device without work.
    pub(super) planned_bytes: u64,
    pub(super) peak: Peak,
    /// Predicted and measured time of its part of a token.
    pub(super) token_predicted_us: Option<u64>,
    pub(super) token_measured_us: Option<u64>,
    /// Why it has no work.
    pub(super) why: Option<String>,
    /// What it has measured of itself, file by file, for whoever looks for a wrong prediction.
    pub(super) profile: Map<String, Value>,
}

impl Node {
    pub(super) fn layer_count(&self) -> u64 {
        self.layers.iter().map(|(first, end)| end - first).sum()
    }
}

/// Runs a case once, with the layers dealt out as `split` says, or else by a plan.
pub(super) fn measure(
    means: &Means<'_>,
    case: &Case,
    (by, split): (&str, Option<&[u32]>),
) -> Result<Measured> {
    let mut lab = Lab::build(means.workplace, &case.description, &case.text)?;
    let began = Instant::now();
    let ring = Ring::start(&mut lab, means, case, split)
        .and_then(|ring| Ok((ring.wait_until_ready(&mut lab, split.is_none())?, ring)));
    let (before, ring) = ring.with_context(|| lab.last_words())?;
    let ready_s = began.elapsed().as_secs_f64();
    let log = lab.log_of(0);
    let load = case.load;
    let asked = [1, load.prompt_tokens, load.answer_tokens, load.rounds];
    let (figures, mut peaks) = ring.load(&lab, means, asked).with_context(|| lab.last_words())?;
    let after = ring.settled(&mut lab)?;
    if means.full {
        let asked = [SLOTS, CONTEXT_TOKENS - FULL_ANSWER_TOKENS, FULL_ANSWER_TOKENS, 1];
        let filled = ring.load(&lab, means, asked).with_context(|| lab.last_words())?;
        peaks.iter_mut().zip(filled.1).for_each(|(peak, filled)| peak.see(filled));
    }
    let devices = case.description.devices.iter().zip(peaks);
    let nodes = devices
        .enumerate()
        .map(|(index, (device, peak))| {
            let mut node = node(&before, &after, (index, &device.name), peak)?;
            node.profile = profile(&lab.state_of(index));
            Ok(node)
        })
        .collect::<Result<_>>()?;
    let micros = before["plan"]["token_predicted_us"].as_f64();
    Ok(Measured {
        by: by.to_owned(),
        nodes,
        rounds: before["rounds"].as_u64().unwrap_or(1),
        tpot_predicted_ms: micros.map(|micros| micros / 1e3),
        ttft_predicted_ms: ttft_promised(&log),
        tpot_ms: figures.0,
        ttft_ms: figures.1,
        ready_s,
        dealt_anew: before["epoch"] != after["epoch"],
        told: (before, after),
    })
}

/// The last promise in a head's log, in milliseconds.
fn ttft_promised(log: &str) -> Option<f64> {
    let line = log.lines().rev().find(|line| line.starts_with("predicted: "))?;
    let (_, rest) = line.split_once(" ms per token, ")?;
    rest.split(' ').next()?.parse().ok()
}

fn find<'a>(cluster: &'a Value, (index, name): (usize, &str)) -> Option<&'a Value> {
    // The head goes by the name of the machine.
    let is_it = |node: &&Value| match node["head"].as_bool() {
        Some(true) => index == 0,
        _ => node["name"] == name,
    };
    cluster["nodes"].as_array()?.iter().find(is_it)
}

fn node(before: &Value, after: &Value, place: (usize, &str), peak: Peak) -> Result<Node> {
    let (then, now) = (find(before, place), find(after, place));
    let then = then.with_context(|| format!("the head does not know {}", place.1))?;
    let layers = serde_json::from_value(then["layers"].clone())?;
    Ok(Node {
        name: place.1.to_owned(),
        layers,
        budget_bytes: then["memory_budget_bytes"].as_u64().unwrap_or(0),
        planned_bytes: then["memory_used_bytes"].as_u64().unwrap_or(0),
        peak,
        token_predicted_us: then["token_predicted_us"].as_u64(),
        token_measured_us: now.and_then(|node| node["token_measured_us"].as_u64()),
        why: then["why"].as_str().map(str::to_owned),
        profile: Map::new(),
    })
}

/// The files in which a device keeps what it has measured; none where nothing was.
fn profile(state: &str) -> Map<String, Value> {
    let entries = fs::read_dir(Path::new(state).join("motley/profile")).into_iter().flatten();
    let read = |entry: fs::DirEntry| {
        let value = serde_json::from_str(&fs::read_to_string(entry.path()).ok()?).ok()?;
        Some((entry.file_name().to_string_lossy().into_owned(), value))
    };
    entries.flatten().filter_map(read).collect()
}

/// Programs of a ring that runs.
struct Ring {
    /// The numbers of the devices' programs.
    programs: Vec<u32>,
}

impl Ring {
    fn start(lab: &mut Lab, means: &Means<'_>, case: &Case, split: Option<&[u32]>) -> Result<Self> {
        let devices = &case.description.devices;
        let folder = means.model.parent().unwrap_or(Path::new(".")).display().to_string();
        let text = |word: &str| word.to_owned();
        let port = CLUSTER_PORT.to_string();
        let mut words: Vec<String> = ["{motley}", "serve"].map(text).to_vec();
        words.push(means.model.display().to_string());
        words
            .extend(["--port", "18100", "--cluster-host", "{address}", "--cluster-port"].map(text));
        words.extend([port.clone(), text("--state"), text("{state}"), text("-np")]);
        words.extend([SLOTS.to_string(), text("-c"), CONTEXT_TOKENS.to_string()]);
        words.extend(["-t", "{threads}", "--nodes"].map(text));
        words.push((devices.len() - 1).to_string());
        if let Some(split) = split {
            let counts: Vec<String> = split.iter().map(u32::to_string).collect();
            words.extend([text("--split"), counts.join(",")]);
        }
        let start = |lab: &mut Lab, index, words: &[String]| {
            let description = &case.description;
            lab.start_on(&Start { description, motley: &means.motley, index, words })
        };
        let mut programs = vec![start(lab, 0, &words)?];
        wait(lab, HEAD_LIMIT, "the head does not answer", |lab| {
            Ok(ask(lab, "/cluster").is_ok().then_some(()))
        })?;
        // Devices of a lab share a machine: two that measure themselves at once look slow.
        rest(lab, programs[0])?;
        let address = format!("{}:{port}", lab.plan().places[0].address);
        let motley = means.motley.display().to_string();
        let state = lab.state_of(0);
        let words =
            [&motley, "token", "new", "--address", &address, "--state", &state, "--uses", "9"];
        let token = lab.ask(0, &words.map(str::to_owned), ASK_LIMIT)?;
        for (index, device) in devices.iter().enumerate().skip(1) {
            let words = ["{motley}", "join", token.trim(), "--models", &folder, "--name"];
            let mut words: Vec<String> = words.map(text).to_vec();
            words.push(device.name.clone());
            words.extend(["-t", "{threads}", "--state", "{state}"].map(text));
            programs.push(start(lab, index, &words)?);
            rest(lab, programs[index])?;
        }
        Ok(Self { programs })
    }

    /// Waits until all that have layers serve, and nothing is measured or loaded any more.
    fn wait_until_ready(&self, lab: &mut Lab, planned: bool) -> Result<Value> {
        let devices = self.programs.len();
        let mut before = None;
        wait(lab, READY_LIMIT, "the ring does not serve", move |lab| {
            let cluster = ask(lab, "/cluster")?;
            if !is_ready(&cluster, devices, planned) {
                before = None;
                return Ok(None);
            }
            // What settles only now may still start another plan.
            let again = before.replace(cluster["epoch"].clone()) == Some(cluster["epoch"].clone());
            Ok(again.then_some(cluster))
        })
    }

    /// The cluster once its head has heard from all members how they fared.
    fn settled(&self, lab: &mut Lab) -> Result<Value> {
        let began = Instant::now();
        wait(lab, READY_LIMIT, "the ring does not answer any more", |lab| {
            Ok((began.elapsed() > SETTLED).then_some(ask(lab, "/cluster")?))
        })
    }

    /// Asks as so many users for answers to prompts of so many tokens, of so many tokens, so often,
    /// and watches memory meanwhile: times per token and to the first one in milliseconds, and what
    /// each device took at most.
    fn load(
        &self,
        lab: &Lab,
        means: &Means<'_>,
        [users, prompt, answer, rounds]: [u32; 4],
    ) -> Result<((f64, f64), Vec<Peak>)> {
        let mut words = vec![means.motley.display().to_string(), "load".to_owned()];
        words.extend([format!("http://{GATEWAY}"), "--json".to_owned(), format!("-u{users}")]);
        words.extend([format!("-p{prompt}"), format!("-n{answer}")]);
        words.extend(["--rounds".to_owned(), rounds.to_string()]);
        let (printed, peaks) = thread::scope(|scope| {
            let asking = scope.spawn(|| lab.ask(0, &words, LOAD_LIMIT));
            let mut peaks = vec![Peak::default(); self.programs.len()];
            while !asking.is_finished() {
                for (peak, program) in peaks.iter_mut().zip(&self.programs) {
                    let status = fs::read_to_string(format!("/proc/{program}/status"));
                    peak.see(memory::read(&status.unwrap_or_default()));
                }
                thread::sleep(Duration::from_millis(100));
            }
            (asking.join(), peaks)
        });
        let printed = match printed {
            Ok(printed) => printed?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let printed: Value = serde_json::from_str(&printed)?;
        let figures = &printed["load"][0]["servers"][0];
        let figure = |name: &str| {
            figures[name].as_f64().with_context(|| format!("no {name} was measured: {printed}"))
        };
        Ok(((figure("tpot_p50_ms")?, figure("ttft_p50_ms")?), peaks))
    }
}

fn is_ready(cluster: &Value, devices: usize, planned: bool) -> bool {
    let nodes = cluster["nodes"].as_array().map_or(&[][..], Vec::as_slice);
    let settled = |node: &Value| {
        let measured = node["why"].as_str().is_none_or(|why| !why.contains("being measured"));
        let has_layers = node["layers"].as_array().is_some_and(|layers| !layers.is_empty());
        measured && (!has_layers || node["state"] == "serving")
    };
    let has_layers = nodes.iter().any(|node| node["layers"] != Value::Array(Vec::new()));
    nodes.len() == devices
        && has_layers
        && nodes.iter().all(settled)
        && cluster["change"].is_null()
        && (!planned || !cluster["plan"].is_null())
}

/// Waits until a program has next to nothing to do.
fn rest(lab: &mut Lab, program: u32) -> Result<()> {
    let mut before = None;
    wait(lab, READY_LIMIT, "a device does not come to rest", |_| {
        let status = fs::read_to_string(format!("/proc/{program}/stat")).unwrap_or_default();
        let now = memory::ticks(&status);
        let rests = before.replace(now).is_some_and(|before| now.saturating_sub(before) <= 2);
        Ok(rests.then_some(()))
    })
}

/// What the head's gateway answers.
fn ask(lab: &Lab, path: &str) -> Result<Value> {
    let words = [&myself()?.display().to_string(), "lab-get", GATEWAY, path].map(str::to_owned);
    Ok(serde_json::from_str(&lab.ask(0, &words, ASK_LIMIT)?)?)
}

/// Looks until there is something, or a program ends, or it takes too long.
fn wait<T>(
    lab: &mut Lab,
    limit: Duration,
    what: &str,
    mut look: impl FnMut(&Lab) -> Result<Option<T>>,
) -> Result<T> {
    let began = Instant::now();
    loop {
        lab.interrupted()?;
        lab.check_programs()?;
        if let Some(found) = look(lab)? {
            return Ok(found);
        }
        if began.elapsed() > limit {
            bail!("{what} after {limit:?}");
        }
        thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use serde_json::json;

    #[test]
    fn the_last_promise_counts() {
        let log = "predicted: 80.7 ms per token, 4315 ms to the first one\nnews\n\
                   predicted: 70.1 ms per token, 4000 ms to the first one\n";
        assert_eq!(ttft_promised(log), Some(4000.0));
        assert_eq!(ttft_promised("serving\n"), None);
    }

    #[test]
    fn a_ring_is_ready_once_everybody_is_measured_and_serves() {
        let node = |state: &str, layers: Value, why: Value| json!({ "state": state, "layers": layers, "why": why });
        let ring = |other: Value| {
            let head = node("serving", json!([[0, 4]]), Value::Null);
            json!({ "nodes": [head, other], "plan": {}, "change": null })
        };
        let ready = |cluster: &Value| is_ready(cluster, 2, true);
        assert!(ready(&ring(node("serving", json!([[4, 8]]), Value::Null))));
        assert!(ready(&ring(node("idle", json!([]), json!("not used; it is slow")))));
        assert!(!ready(&ring(node("idle", json!([]), json!("it is being measured")))));
        assert!(!ready(&ring(node("loading 3 %", json!([[4, 8]]), Value::Null))));
        let mut unplanned = ring(node("idle", json!([]), Value::Null));
        unplanned["plan"] = Value::Null;
        assert!(!ready(&unplanned) && is_ready(&unplanned, 2, false));
        unplanned["change"] = json!("plan 2 is being loaded");
        assert!(!is_ready(&unplanned, 2, false) && !is_ready(&unplanned, 3, false));
    }

    #[test]
    fn devices_are_found_by_their_name_and_the_head_by_being_it() {
        let cluster = json!({ "nodes": [
            { "head": false, "name": "right", "layers": [[4, 8]], "memory_used_bytes": 7 },
            { "head": true, "name": "machine", "layers": [[0, 2], [2, 4]] },
        ] });
        let head = node(&cluster, &cluster, (0, "left"), Peak::default()).expect("it is there");
        assert_eq!((head.layer_count(), head.planned_bytes), (4, 0));
        let other = node(&cluster, &cluster, (1, "right"), Peak::default()).expect("it is there");
        assert_eq!((other.layer_count(), other.planned_bytes), (4, 7));
        assert!(node(&cluster, &cluster, (2, "third"), Peak::default()).is_err());
    }
}
