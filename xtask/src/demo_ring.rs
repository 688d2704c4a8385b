//! The demo's main act: three nodes on this machine run one model and answer through the gateway.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::cache::Workplace;
use crate::models::SMOLLM2;
use crate::process::{self, Service, free_address};
use crate::steps::Outcome;

const PROMPT: &str = "Name three things that float on water.";

/// Tokens of the answer at most.
const ANSWER_TOKENS: u32 = 48;

/// How long three nodes may take to load their layers.
const START_LIMIT: Duration = Duration::from_secs(120);

/// How long one answer may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);

/// How often a node that starts is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Starts a head and two members, asks through the gateway, shows who held what, and stops them.
pub(crate) fn run(workplace: &Workplace) -> Result<Outcome> {
    let mut ring = Ring::new(workplace)?;
    let (gateway, cluster) = (free_address()?, free_address()?);
    let model = SMOLLM2.path(workplace);
    let address = cluster.to_string();
    let serve = |motley: &mut Command, state: &Path, split: &str| {
        motley.arg("serve").arg(&model).arg("--state").arg(state);
        motley.args(["--split", split, "--nodes", "2", "-t", "1", "-np", "2"]);
        motley.args(["--port", &gateway.port().to_string()]);
        motley.args(["--cluster-host", "127.0.0.1"]);
        motley.args(["--cluster-port", &cluster.port().to_string()]);
    };
    // Three nodes that share one machine gain nothing from each other, so that a plan would leave
    // two of them out: here everyone gets a third.
    ring.start("head", |motley, state| serve(motley, state, "even"))?;
    ring.wait(|| Ok(TcpStream::connect_timeout(&cluster, LOOK).is_ok()))?;
    let token = ring.token(&address)?;
    for name in ["laptop", "phone"] {
        ring.start(name, |motley, state| {
            motley.args(["join", &token, "--name", name, "-t", "1"]).arg("--state").arg(state);
            // Without this folder the member finds no copy of the model and fetches its layers.
            motley.arg("--models").arg(state.join("none"));
        })?;
    }
    ring.wait(|| Ok(ask(gateway, "GET", "/health", None).is_ok_and(|(status, _)| status == 200)))?;
    let body = json!({
        "messages": [{ "role": "user", "content": PROMPT }],
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
    });
    let began = Instant::now();
    let (status, answer) = ask(gateway, "POST", "/v1/chat/completions", Some(&body))?;
    let took = began.elapsed();
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap_or_default();
    ensure!(status == 200 && !text.trim().is_empty(), "the ring answered {status}: {answer}");
    println!("> {PROMPT}\n{}\n", text.trim());
    let tokens = answer["usage"]["completion_tokens"].as_u64().unwrap_or(0);
    println!("{tokens} tokens in {:.1} s, one thread per node\n", took.as_secs_f64());
    println!("{}", ring.status(gateway)?.trim_end());
    println!("\nThe same nodes, when a plan may decide:\n");
    ring.stop("head");
    ring.start("head", |motley, state| serve(motley, state, "auto"))?;
    ring.wait(|| Ok(ask(gateway, "GET", "/cluster", None).is_ok_and(|it| is_planned(&it.1))))?;
    println!("{}", ring.status(gateway)?.trim_end());
    Ok(Outcome::Passed)
}

/// Whether all three nodes have been measured and the plan made of them serves.
fn is_planned(cluster: &Value) -> bool {
    let nodes = cluster["nodes"].as_array().map_or(&[][..], Vec::as_slice);
    let measured =
        |node: &Value| node["why"].as_str().is_none_or(|why| !why.contains("being measured"));
    nodes.len() == 3 && nodes.iter().all(measured) && !cluster["plan"].is_null()
}

/// Nodes that end with this value, and their folder.
struct Ring {
    program: PathBuf,
    folder: PathBuf,
    nodes: Vec<(&'static str, Service)>,
}

impl Ring {
    fn new(workplace: &Workplace) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("motley-demo-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let program = workplace.target.join("release").join("motley");
        Ok(Self { program, folder, nodes: Vec::new() })
    }

    /// Starts a node whose output goes to a log.
    fn start(
        &mut self,
        name: &'static str,
        arguments: impl FnOnce(&mut Command, &Path),
    ) -> Result<()> {
        let log = self.folder.join(format!("{name}.log"));
        let mut motley = Command::new(&self.program);
        arguments(&mut motley, &self.folder.join(name));
        let words: Vec<_> = motley.get_args().map(|word| word.to_string_lossy()).collect();
        let words: Vec<&str> = words.iter().map(|word| shortened(word)).collect();
        eprintln!("   motley {}", words.join(" "));
        self.nodes.push((name, Service::start(motley, log)?));
        Ok(())
    }

    /// Ends a node.
    fn stop(&mut self, name: &str) {
        self.nodes.retain(|(known, _)| *known != name);
    }

    /// Waits until something is so; a node that ends meanwhile is told with the end of its log.
    fn wait(&mut self, is_so: impl Fn() -> Result<bool>) -> Result<()> {
        let until = Instant::now() + START_LIMIT;
        while !is_so()? {
            for (name, node) in &mut self.nodes {
                node.check().context(*name)?;
            }
            ensure!(Instant::now() < until, "the nodes are not ready after {START_LIMIT:?}");
            thread::sleep(LOOK);
        }
        Ok(())
    }

    fn token(&self, address: &str) -> Result<String> {
        let mut motley = Command::new(&self.program);
        motley.args(["token", "new", "--uses", "2", "--address", address]);
        motley.arg("--state").arg(self.folder.join("head"));
        let printed = process::capture(motley, Duration::from_secs(30))?;
        Ok(String::from_utf8(printed)?.trim().to_owned())
    }

    fn status(&self, gateway: SocketAddr) -> Result<String> {
        let mut motley = Command::new(&self.program);
        motley.args(["status", "--url", &format!("http://{gateway}")]);
        Ok(String::from_utf8(process::capture(motley, Duration::from_secs(30))?)?)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // They end before their folder goes.
        self.nodes.clear();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A word of a command line as it is shown: tokens are secret and long.
fn shortened(word: &str) -> &str {
    if word.starts_with("motley1_") { "motley1_..." } else { word }
}

/// One request to the gateway: its status and its answer.
pub(crate) fn ask(
    gateway: SocketAddr,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Result<(u16, Value)> {
    let body = body.map(Value::to_string).unwrap_or_default();
    let mut stream = TcpStream::connect_timeout(&gateway, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {gateway}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    let (head, rest) = response.split_once("\r\n\r\n").context("no HTTP response")?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.context("no HTTP status")?;
    // The gateway sends its JSON whole, with a length.
    Ok((status, serde_json::from_str(rest).unwrap_or_default()))
}
