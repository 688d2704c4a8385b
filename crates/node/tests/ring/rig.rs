//! A head and the devices that have joined it.

use std::net::TcpListener;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use tempfile::TempDir;

use crate::common::{self, SMOLLM2, printed};
use crate::device::{Device, PATIENCE, watch};
use crate::http;

/// A head, its members, and the folder of everything they keep.
pub(crate) struct Rig {
    pub(crate) head: Device,
    pub(crate) members: Vec<Device>,
    model: String,
    more: Vec<String>,
    ports: [u16; 2],
    token: String,
    // Removed last, when nobody writes to it any more.
    folder: TempDir,
}

impl Rig {
    /// Starts a head with more words for `motley serve`, and members that find the model in the
    /// folder where it lies.
    pub(crate) fn start(model: &str, members: usize, more: &[&str]) -> Self {
        let mut rig = Self::head(model, more);
        let models = Path::new(model).parent().unwrap().to_str().unwrap().to_owned();
        for _ in 0..members {
            rig.join(&["--models", &models]);
        }
        rig.ready();
        rig
    }

    /// Starts a head alone.
    pub(crate) fn head(model: &str, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let more: Vec<String> = more.iter().map(|&word| word.to_owned()).collect();
        let ports = [0; 2].map(|_| free_port());
        let log = folder.path().join("head.log");
        let head = start_head(model, &more, ports, folder.path(), &log);
        head.wait_for("serving ");
        let mut rig = Self {
            folder,
            model: model.to_owned(),
            more,
            ports,
            head,
            members: Vec::new(),
            token: String::new(),
        };
        rig.token = rig.new_token(&["--uses", "9"]);
        rig
    }

    /// Starts the head again, with the same keys at the same ports.
    pub(crate) fn restart_head(&mut self) {
        self.head.kill();
        let log = self.folder.path().join("head-again.log");
        self.head = start_head(&self.model, &self.more, self.ports, self.folder.path(), &log);
        self.head.wait_for("serving ");
    }

    /// Invites a device.
    pub(crate) fn new_token(&self, more: &[&str]) -> String {
        let address = self.cluster_address();
        let state = self.state_of_head();
        let words = ["token", "new", "--address", &address, "--state", path(&state)];
        printed(&[&words, more].concat()).trim().to_owned()
    }

    /// Starts another member, with more words for `motley join`.
    pub(crate) fn join(&mut self, more: &[&str]) -> usize {
        let token = self.token.clone();
        self.join_by(&token, more)
    }

    /// Starts another member that has this token.
    pub(crate) fn join_by(&mut self, token: &str, more: &[&str]) -> usize {
        let index = self.members.len();
        let member = self.start_member(index, &[&[token], more].concat());
        self.members.push(member);
        index
    }

    /// Starts a member again, which finds its head without being told where.
    pub(crate) fn rejoin(&mut self, index: usize, more: &[&str]) {
        self.members[index].kill();
        self.members[index] = self.start_member(index, more);
    }

    fn start_member(&self, index: usize, more: &[&str]) -> Device {
        let state = self.state_of(index);
        let (name, log) =
            (format!("member-{index}"), self.folder.path().join(format!("{index}.log")));
        let words = ["join", "--state", path(&state), "--name", &name, "-t", "1"];
        Device::start(&[&words[..], &["--memory", "2G"], more].concat(), &log)
    }

    /// Waits until requests can be answered by all members.
    #[track_caller]
    pub(crate) fn ready(&self) {
        self.serving(self.members.len() + 1);
    }

    /// Waits until so many devices share the model, and gives the epoch of their plan.
    #[track_caller]
    pub(crate) fn serving(&self, devices: usize) -> u64 {
        let seen = watch(PATIENCE, || {
            let cluster = self.cluster()?;
            let nodes = cluster["nodes"].as_array()?;
            let serving = nodes.iter().filter(|node| node["state"] == "serving").count();
            let change = cluster["change"].is_null();
            (serving == devices && nodes.len() == devices && change && self.health()? == 200)
                .then(|| cluster["epoch"].as_u64())?
        });
        seen.unwrap_or_else(|| {
            panic!("no plan of {devices} devices: {:?}\n{}", self.cluster(), self.said())
        })
    }

    /// What all devices have printed.
    pub(crate) fn said(&self) -> String {
        let mut all = format!("head:\n{}", self.head.said());
        for (index, member) in self.members.iter().enumerate() {
            all += &format!("member {index}:\n{}", member.said());
        }
        all
    }

    /// Where the head answers.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[0])
    }

    /// Where devices join.
    pub(crate) fn cluster_address(&self) -> String {
        format!("127.0.0.1:{}", self.cluster_port())
    }

    /// The port of that.
    pub(crate) fn cluster_port(&self) -> u16 {
        self.ports[1]
    }

    /// A text with the address where devices join, the name of this folder, and the beginnings of
    /// ids replaced, which differ from run to run.
    pub(crate) fn without_addresses(&self, text: &str) -> String {
        let text = text.replace(&self.cluster_address(), "HEAD");
        let is_id = |word: &&str| word.len() == 8 && word.bytes().all(|it| it.is_ascii_hexdigit());
        let mut hidden = text.clone();
        for id in text.split(|it: char| !it.is_ascii_alphanumeric()).filter(is_id) {
            hidden = hidden.replace(id, "########");
        }
        hidden
    }

    /// Requests that have a slot.
    pub(crate) fn busy_slots(&self) -> usize {
        let (_, slots) = http::get(&self.url(), "/slots").expect("a head that answers");
        slots.as_array().unwrap().iter().filter(|slot| slot["is_processing"] == true).count()
    }

    /// Waits until so many requests have a slot.
    #[track_caller]
    pub(crate) fn busy(&self, requests: usize) {
        let seen = watch(PATIENCE, || (self.busy_slots() == requests).then_some(()));
        assert!(seen.is_some(), "{} requests run\n{}", self.busy_slots(), self.said());
    }

    /// What the head tells of its members; nothing when it does not answer.
    pub(crate) fn cluster(&self) -> Option<Json> {
        http::get(&self.url(), "/cluster").map(|(_, cluster)| cluster)
    }

    /// Number of layers of each device, the head first; each device's place is its name's.
    pub(crate) fn layers(&self) -> Vec<u64> {
        let cluster = self.cluster().expect("a head that answers");
        let nodes = cluster["nodes"].as_array().unwrap();
        let count = |node: &Json| -> u64 {
            let windows = node["layers"].as_array().unwrap();
            windows.iter().map(|it| it[1].as_u64().unwrap() - it[0].as_u64().unwrap()).sum()
        };
        nodes.iter().map(count).collect()
    }

    fn health(&self) -> Option<u16> {
        http::get(&self.url(), "/health").map(|(status, _)| status)
    }

    /// Where the head keeps its keys.
    pub(crate) fn state_of_head(&self) -> PathBuf {
        self.folder.path().join("head")
    }

    /// Where a member keeps its keys and layers.
    pub(crate) fn state_of(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("member-{index}"))
    }
}

fn start_head(model: &str, more: &[String], ports: [u16; 2], folder: &Path, log: &Path) -> Device {
    let [http, cluster] = ports.map(|port| port.to_string());
    let state = folder.join("head");
    let mut words = vec!["serve", model, "--alias", http::MODEL, "-t", "1", "-c", "512"];
    words.extend(["--port", &http]);
    if more.iter().all(|word| word != "--memory") {
        words.extend(["--memory", "2G"]);
    }
    words.extend(["--cluster-host", "127.0.0.1", "--cluster-port", &cluster]);
    words.extend(["--state", path(&state)]);
    words.extend(more.iter().map(String::as_str));
    Device::start(&words, log)
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a path that is text")
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// The model that all these tests share, or nothing, with a message, where it was not fetched.
pub(crate) fn model() -> Option<String> {
    common::real_model(SMOLLM2)
}
