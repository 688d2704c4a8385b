//! However the layers are dealt out, the answers are those of one device.

use std::sync::OnceLock;
use std::thread;

use crate::device::Device;
use crate::http::{MODEL, answer, embedding};
use crate::rig::{Rig, free_port, model};

/// Tokens of each answer.
pub(crate) const TOKENS: u32 = 16;

/// Prompts of different lengths.
pub(crate) const PROMPTS: [&str; 8] = [
    "The capital of France is",
    "Once upon a time there was a fox who",
    "1, 2, 3, 4, 5, 6,",
    "Water boils at a temperature of",
    "To be, or not to be, that is",
    "A list of fruits: apple, banana, orange, grape, pear, cherry, mango, melon, lemon, lime,",
    "fn main() { println!(",
    "The opposite of hot is",
];

/// What one device says that has all layers.
pub(crate) struct Alone {
    pub(crate) answers: Vec<String>,
    embedding: Vec<f64>,
}

pub(crate) fn alone(model: &str) -> &'static Alone {
    static ANSWERS: OnceLock<Alone> = OnceLock::new();
    ANSWERS.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let port_text = port.to_string();
        let words =
            ["serve", model, "--alias", MODEL, "-t", "1", "-c", "512", "--port", &port_text];
        let device = Device::start(&words, &folder.path().join("log"));
        device.wait_for("serving ");
        let url = format!("http://127.0.0.1:{port}");
        Alone {
            answers: PROMPTS.iter().map(|prompt| answer(&url, prompt, TOKENS)).collect(),
            embedding: embedding(&url, PROMPTS[1]),
        }
    })
}

/// Asks everything at once.
fn together(rig: &Rig, copies: usize) -> Vec<String> {
    let url = rig.url();
    thread::scope(|scope| {
        let asked: Vec<_> = PROMPTS
            .iter()
            .cycle()
            .take(PROMPTS.len() * copies)
            .map(|prompt| scope.spawn(|| answer(&url, prompt, TOKENS)))
            .collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    })
}

/// Compares the answers of a ring with those of one device: one by one, then `copies` times all
/// at once.
fn check(split: &[u64], rounds: u32, copies: usize) {
    let Some(model) = model() else { return };
    let Alone { answers: expected, embedding: vector } = alone(&model);
    let members = split.len() - 1;
    let split_text = split.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let (nodes, rounds) = (members.to_string(), rounds.to_string());
    let words = ["--nodes", &nodes, "--split", &split_text, "--rounds", &rounds, "-np", "8"];
    let rig = Rig::start(&model, members, &words);
    assert_eq!(rig.layers(), split);
    for (prompt, expected) in PROMPTS.iter().zip(expected).take(2) {
        assert_eq!(answer(&rig.url(), prompt, TOKENS), *expected, "{split_text} x {rounds}");
    }
    let found = embedding(&rig.url(), PROMPTS[1]);
    let alike: f64 = found.iter().zip(vector).map(|(a, b)| a * b).sum();
    assert!(alike > 0.999, "the vectors of one device and of a ring: {alike}");
    let expected: Vec<&String> = expected.iter().cycle().take(PROMPTS.len() * copies).collect();
    let found = together(&rig, copies);
    assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{split_text} x {rounds}");
}

#[test]
fn two_devices_answer_as_one() {
    check(&[20, 10], 1, 2);
}

#[test]
fn a_head_without_layers_and_two_rounds_answer_as_one_device() {
    check(&[0, 17, 13], 2, 1);
}

#[test]
fn four_devices_with_a_round_per_layer_answer_as_one() {
    check(&[1, 12, 8, 9], 12, 1);
}
