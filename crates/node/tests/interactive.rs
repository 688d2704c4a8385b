//! Ctrl-C, and the chat on a terminal.
#![cfg(unix)]

mod common;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Stdio};

use common::{SMOLLM2, motley, real_model};
use nix::pty::openpty;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A chat on a pseudo-terminal.
struct Chat {
    child: Child,
    terminal: File,
    /// What was printed and not looked at yet.
    unread: String,
}

impl Chat {
    fn start(arguments: &[&str]) -> Self {
        let pair = openpty(None, None).unwrap();
        let slave = || Stdio::from(pair.slave.try_clone().unwrap());
        let child = motley()
            .args(arguments)
            .env("TERM", "xterm")
            .stdin(slave())
            .stdout(slave())
            .stderr(slave())
            .spawn()
            .unwrap();
        Self { child, terminal: File::from(pair.master), unread: String::new() }
    }

    /// Reads until `text` is printed, and gives everything up to there.
    fn wait_for(&mut self, text: &str) -> String {
        loop {
            if let Some(at) = self.unread.find(text) {
                let rest = self.unread.split_off(at + text.len());
                return std::mem::replace(&mut self.unread, rest);
            }
            self.read(text);
        }
    }

    fn read(&mut self, awaited: &str) {
        let mut bytes = [0; 4096];
        let count = self.terminal.read(&mut bytes).unwrap_or(0);
        assert!(count > 0, "the chat ended before {awaited:?}: {:?}", self.unread);
        self.unread.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }

    fn keys(&mut self, keys: &str) {
        self.terminal.write_all(keys.as_bytes()).unwrap();
    }

    fn exit_code(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

/// Interrupts a program as Ctrl-C does.
fn interrupt(child: &Child) {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGINT).unwrap();
}

#[test]
fn an_interrupt_ends_an_answer_with_130() {
    let Some(model) = real_model(SMOLLM2) else { return };
    let mut child = motley()
        .args(["run", &model, "Tell a long story.", "--ignore-eos", "--temp", "0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut first = [0; 1];
    out.read_exact(&mut first).unwrap();
    interrupt(&child);
    let mut text = String::new();
    out.read_to_string(&mut text).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(common::stderr(&output), "");
    assert!(text.ends_with('\n'), "the prompt that follows stands on its own line");
}

#[test]
fn a_chat_remembers_obeys_and_ends() {
    let Some(model) = real_model(SMOLLM2) else { return };
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("talk.json");
    let mut chat = Chat::start(&["run", &model, "--temp", "0", "-n", "12", "--verbose"]);
    chat.wait_for(">>> ");
    chat.keys("My name is Ada.\r");
    chat.wait_for("seed:");
    chat.wait_for(">>> ");
    chat.keys("\"\"\"What is\r");
    chat.wait_for("... ");
    chat.keys("my name?\"\"\"\r");
    // The second prompt repeats the first and its answer, which are computed already.
    let report = chat.wait_for("seed:");
    let counts = report.lines().find(|line| line.contains("prompt eval count:")).unwrap();
    let cached: usize = counts.split_whitespace().nth(5).unwrap().parse().unwrap();
    assert!(cached > 30, "{counts}");
    chat.wait_for(">>> ");
    chat.keys("/set top_k 0.5\r");
    chat.wait_for("top_k cannot be '0.5'");
    chat.wait_for(">>> ");
    chat.keys(&format!("/save {}\r", saved.display()));
    chat.wait_for("saved to");
    chat.wait_for(">>> ");
    chat.keys("/bye\r");
    assert_eq!(chat.exit_code(), Some(0));
    let talk: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(saved).unwrap()).unwrap();
    assert_eq!(talk["messages"].as_array().unwrap().len(), 4);
    assert_eq!(talk["messages"][2]["content"], "What is\nmy name?");
}

#[test]
fn an_interrupt_stops_an_answer_and_the_chat_goes_on() {
    let Some(model) = real_model(SMOLLM2) else { return };
    let mut chat = Chat::start(&["run", &model, "--ignore-eos"]);
    chat.wait_for(">>> ");
    chat.keys("Tell a long story.\r");
    chat.wait_for("\n");
    // Some of the answer.
    chat.wait_for(" ");
    interrupt(&chat.child);
    chat.wait_for("(stopped)");
    chat.wait_for(">>> ");
    // Ctrl-D leaves.
    chat.keys("\x04");
    assert_eq!(chat.exit_code(), Some(0));
}

#[test]
fn an_interrupt_at_the_prompt_leaves() {
    let Some(model) = real_model(SMOLLM2) else { return };
    let mut chat = Chat::start(&["run", &model]);
    chat.wait_for(">>> ");
    chat.keys("\x03");
    assert_eq!(chat.exit_code(), Some(130));
}
