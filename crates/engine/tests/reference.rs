//! Greedy tokens and logits against llama.cpp in this process, on the same files.
#![expect(clippy::print_stdout, reason = "a test tells how close it came")]

mod common;

use common::{Cut, Fixture, ours_greedy};
use motley_engine::{CacheElement, LayoutChoice};

/// Tokens compared.
const COUNT: usize = 128;

/// Every way of cutting the layers gives llama.cpp's tokens and, weights being laid out alike,
/// its logits to the last bit.
fn check_cuts(fixture: &Fixture, text: &str) {
    let prompt = fixture.tokens(text);
    let reference = fixture.reference_greedy(&prompt, COUNT, false);
    let mut engine = fixture.engine(1, LayoutChoice::Plain, CacheElement::F16);
    for cut in Cut::all(fixture.layers()) {
        let ours = ours_greedy(&mut engine, &cut, &prompt, COUNT);
        let difference = ours.largest_difference(&reference);
        println!("{} windows: largest difference of logits {difference}", cut.0.len());
        assert_eq!(ours.tokens, reference.tokens, "{cut:?}");
        assert_eq!(difference, 0.0, "{cut:?}");
    }
}

#[test]
fn smollm2_gives_the_tokens_of_llama_cpp() {
    let Some(fixture) = Fixture::open("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    check_cuts(&fixture, "The capital of France is");
}

#[test]
fn gemma3_gives_the_tokens_of_llama_cpp() {
    let Some(fixture) = Fixture::open("gemma-3-270m-it.Q4_K_M.gguf") else { return };
    check_cuts(&fixture, "The capital of France is");
}

#[test]
fn qwen2_5_gives_the_tokens_of_llama_cpp() {
    let Some(fixture) = Fixture::open("qwen2.5-coder-0.5b-instruct.Q4_K_M.gguf") else { return };
    check_cuts(&fixture, "fn main() {");
}

#[test]
fn qwen2_5_of_1_5_billion_parameters_gives_the_tokens_of_llama_cpp() {
    let name = "qwen2.5-coder-1.5b-instruct.Q4_K_M.gguf";
    let Some(fixture) = Fixture::open(name) else { return };
    check_cuts(&fixture, "// Returns the larger of two numbers.\nfn max(");
}
