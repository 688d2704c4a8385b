//! A server that is seen, keeps its model from being removed, and is stopped.
#![expect(clippy::disallowed_methods, reason = "a test starts threads and copies files")]

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::thread;

use common::{SMOLLM2, motley, real_model, stderr, stdout};
use expect_test::expect;
use serde_json::Value as Json;

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Rig {
    models: tempfile::TempDir,
    state: tempfile::TempDir,
}

impl Rig {
    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("the program starts")
    }

    fn command(&self, words: &[&str]) -> std::process::Command {
        let mut command = motley();
        command
            .args(words)
            .env("MOTLEY_MODELS", self.models.path())
            .env("MOTLEY_STATE", self.state.path());
        command
    }

    /// Serves and waits until it answers; tells its address.
    fn serve(&self, alias: &str, more: &[&str]) -> (Server, String) {
        let words = ["serve", "smol", "--alias", alias, "--port", "0", "--layout", "plain"];
        let mut child = self
            .command(&words)
            .args(["--parallel", "1", "-c", "256", "-t", "1"])
            .args(more)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let address = loop {
            let line = lines.next().expect("it says where it serves").expect("text");
            if let Some((_, rest)) = line.split_once(" on http://") {
                break rest.split("/v1").next().expect("an address").to_owned();
            }
        };
        // A full pipe would stop it.
        thread::spawn(move || lines.for_each(drop));
        (Server(child), address)
    }

    fn servers(&self) -> Vec<Json> {
        let output = self.run(&["ps", "--json"]);
        serde_json::from_str(&stdout(&output)).expect("JSON")
    }
}

#[test]
fn servers_are_listed_and_stopped_and_their_model_stays() {
    let Some(model) = real_model(SMOLLM2) else { return };
    let rig = Rig { models: tempfile::tempdir().unwrap(), state: tempfile::tempdir().unwrap() };
    let copy = rig.models.path().join("smol.gguf");
    if fs::hard_link(&model, &copy).is_err() {
        fs::copy(&model, &copy).unwrap();
    }
    assert!(rig.servers().is_empty());
    let (mut first, address) = rig.serve("one", &[]);
    let (second, _) = rig.serve("two", &[]);
    let servers = rig.servers();
    assert_eq!(servers[0]["model"], "one");
    assert_eq!(servers[0]["url"], format!("http://{address}"));
    assert_eq!(servers[0]["pid"], first.0.id());
    assert_eq!(servers[0]["state"], "ready");
    assert_eq!(servers[0]["requests_running"], 0.0);
    let refused = rig.run(&["rm", "smol"]);
    assert_eq!(refused.status.code(), Some(4));
    assert!(stderr(&refused).starts_with("motley: smol is served at 127.0.0.1:"));
    let unclear = rig.run(&["stop"]);
    assert_eq!(unclear.status.code(), Some(2));
    let stopped = rig.run(&["stop", "one"]);
    assert_eq!(stdout(&stopped), format!("stopped one at {address}\n"), "{}", stderr(&stopped));
    assert!(first.0.wait().unwrap().success(), "it ends in order");
    // One that is killed leaves its file, and nobody takes it for a server.
    drop(second);
    assert_eq!(fs::read_dir(rig.state.path().join("servers")).unwrap().count(), 1);
    assert!(rig.servers().is_empty());
    assert_eq!(fs::read_dir(rig.state.path().join("servers")).unwrap().count(), 0);
    let nothing = rig.run(&["stop"]);
    expect![[r#"
        motley: nothing is served on this machine
        hint: a server of another user, or with another --state, is not seen from here
    "#]]
    .assert_eq(&stderr(&nothing));
    assert!(Path::new(&copy).exists());
    assert!(rig.run(&["rm", "smol"]).status.success());
}
