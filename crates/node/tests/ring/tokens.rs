//! However the layers are dealt out, the answers are those of one device.

use std::path::Path;
use std::sync::OnceLock;
use std::thread;

use crate::common::printed;
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

/// Asks a device that has all layers of a model, and keeps what it said of the one that these
/// tests share.
pub(crate) fn alone(model: &str) -> &'static Alone {
    static ANSWERS: OnceLock<Alone> = OnceLock::new();
    ANSWERS.get_or_init(|| ask_alone(model))
}

fn ask_alone(model: &str) -> Alone {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let port_text = port.to_string();
    let words = ["serve", model, "--alias", MODEL, "-t", "1", "-c", "512", "--port", &port_text];
    let device = Device::start(&words, &folder.path().join("log"));
    device.wait_for("serving ");
    let url = format!("http://127.0.0.1:{port}");
    Alone {
        answers: PROMPTS.iter().map(|prompt| answer(&url, prompt, TOKENS)).collect(),
        embedding: embedding(&url, PROMPTS[1]),
    }
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

/// A ring whose answers are compared.
struct Case<'c> {
    /// Layers of each device, the head first.
    split: &'c [u64],
    rounds: u32,
    /// Where the devices keep their weights, in turn.
    weights: &'c [&'c str],
    /// How often everything is asked at once; where it never is, everything is asked alone.
    copies: usize,
}

impl Default for Case<'_> {
    fn default() -> Self {
        Self { split: &[20, 10], rounds: 1, weights: &["auto"], copies: 1 }
    }
}

/// Compares the answers of a ring with those of one device: first one by one, then all at once.
fn check(case: &Case<'_>) {
    let Some(model) = model() else { return };
    compare(&model, alone(&model), case);
}

fn compare(model: &str, expected: &Alone, case: &Case<'_>) {
    let Case { split, rounds, weights, copies } = *case;
    let members = split.len() - 1;
    let split_text = split.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let (nodes, rounds) = (members.to_string(), rounds.to_string());
    let mut places = weights.iter().cycle();
    let mut place = || ["--weights", places.next().expect("a cycle does not end")];
    let words = ["--nodes", &nodes, "--split", &split_text, "--rounds", &rounds, "-np", "8"];
    let mut rig = Rig::head(model, &[&words[..], &place()].concat());
    let models = Path::new(model).parent().unwrap().to_str().unwrap();
    for _ in 0..members {
        rig.join(&[&["--models", models][..], &place()].concat());
    }
    rig.ready();
    assert_eq!(rig.layers(), split);
    let one_by_one = if copies == 0 { PROMPTS.len() } else { 2 };
    for (prompt, expected) in PROMPTS.iter().zip(&expected.answers).take(one_by_one) {
        assert_eq!(answer(&rig.url(), prompt, TOKENS), *expected, "{split_text} x {rounds}");
    }
    let found = embedding(&rig.url(), PROMPTS[1]);
    let alike: f64 = found.iter().zip(&expected.embedding).map(|(a, b)| a * b).sum();
    assert!(alike > 0.999, "the vectors of one device and of a ring: {alike}");
    let expected: Vec<&String> =
        expected.answers.iter().cycle().take(PROMPTS.len() * copies).collect();
    let found = together(&rig, copies);
    assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{split_text} x {rounds}");
}

#[test]
fn two_devices_answer_as_one() {
    check(&Case { copies: 2, ..Case::default() });
}

#[test]
fn a_head_without_layers_and_two_rounds_answer_as_one_device() {
    check(&Case { split: &[0, 17, 13], rounds: 2, ..Case::default() });
}

#[test]
fn four_devices_with_a_round_per_layer_answer_as_one() {
    check(&Case { split: &[1, 12, 8, 9], rounds: 12, ..Case::default() });
}

#[test]
fn eight_devices_answer_as_one() {
    check(&Case { split: &[3, 4, 4, 3, 4, 4, 4, 4], ..Case::default() });
}

#[test]
fn as_many_rounds_as_layers_answer_as_one_device() {
    check(&Case { split: &[29, 1], rounds: 29, ..Case::default() });
}

#[test]
fn weights_mapped_kept_and_streamed_answer_as_one_device() {
    check(&Case { split: &[9, 11, 10], rounds: 2, weights: &["mmap", "stream", "ram"], copies: 1 });
}

/// Models whose layers differ from those of the shared one: biases, norms of heads, and windows
/// that slide in some layers. Random weights give logits so close together that the rounding of
/// kernels for several rows decides, so that nothing is asked at once.
#[test]
fn made_models_of_other_architectures_answer_as_one_device() {
    let Some(vocabulary) = model() else { return };
    let folder = tempfile::tempdir().unwrap();
    for architecture in ["qwen2", "qwen3", "gemma3"] {
        let file = folder.path().join(format!("{architecture}.gguf"));
        let file = file.to_str().unwrap();
        let shape = ["--blocks", "8", "--embedding", "256", "--ffn", "512", "--heads", "4"];
        let words = ["make-model", "--arch", architecture, "--kv-heads", "2", "--type", "F16"];
        let more = ["--vocabulary-from", &vocabulary, "--context", "1024", "--out", file];
        printed(&[&words[..], &shape, &more].concat());
        let split = &[2, 3, 3];
        let case = Case { split, rounds: 2, copies: 0, ..Case::default() };
        compare(file, &ask_alone(file), &case);
    }
}
