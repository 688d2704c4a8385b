//! Made models of every architecture and number format against llama.cpp in this process.

mod common;

use common::{Cut, Fixture, ours_greedy};
use motley_engine::{
    CacheElement, ExpertShape, FileType, LayoutChoice, Llama3Stretch, ModelRecipe, small_model,
};
use motley_ggml::Token;
use motley_model::Architecture;

/// Tokens compared.
const COUNT: usize = 128;

/// Number formats that every architecture is made in.
const FILE_TYPES: [FileType; 7] = [
    FileType::F32,
    FileType::F16,
    FileType::Q8_0,
    FileType::Q4_0,
    FileType::Q4_1,
    FileType::Q4_K_M,
    FileType::Q6_K,
];

/// Makes the model and compares tokens for every way of cutting its layers; with weights as in
/// the file also logits, to the last bit.
fn check(recipe: &ModelRecipe) {
    let Some((_folder, fixture)) = Fixture::made(recipe) else { return };
    let name = format!("{} {}", recipe.architecture, recipe.file_type.name());
    let prompt: Vec<Token> = (0..20).map(|index| (index * 37 + 11) % 2000).collect();
    for (layout, repack) in [(LayoutChoice::Plain, false), (LayoutChoice::Measured, true)] {
        let reference = fixture.reference_greedy(&prompt, COUNT, repack);
        let mut distinct = reference.tokens.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert!(distinct.len() > 8, "{name}: a model that repeats itself shows little");
        let mut engine = fixture.engine(1, layout, CacheElement::F16);
        for cut in Cut::all(fixture.layers()) {
            let ours = ours_greedy(&mut engine, &cut, &prompt, COUNT);
            let difference = ours.largest_difference(&reference);
            if layout == LayoutChoice::Plain {
                assert_eq!(ours.tokens, reference.tokens, "{name}, {cut:?}");
                assert_eq!(difference, 0.0, "{name}, {cut:?}");
            } else {
                let tolerance = match recipe.shape.experts {
                    Some(_) => LOGITS_TOLERANCE_OF_EXPERTS,
                    None => LOGITS_TOLERANCE,
                };
                assert!(difference < tolerance, "{name}, {cut:?}: {difference}");
                if let Some(lead) = ours.lead_at_first_difference(&reference) {
                    assert!(lead < tolerance, "{name}, {cut:?}: another token by {lead}");
                }
            }
        }
    }
}

/// How far logits may differ, and by how much the reference's token may have led where ours is
/// another. Interleaved weights are multiplied in 8-bit steps of other blocks; logits of the made
/// models spread over about ten.
const LOGITS_TOLERANCE: f32 = 0.5;

/// The same with experts: where two have nearly the same share, a step lets the router choose the
/// other, and the row goes through another network. Here llama.cpp also interleaves experts.
const LOGITS_TOLERANCE_OF_EXPERTS: f32 = 4.0;

fn check_architecture(architecture: Architecture) {
    for file_type in FILE_TYPES {
        let mut recipe = small_model(architecture.name(), file_type);
        recipe.shape.vocabulary_size = Some(2048);
        check(&recipe);
    }
}

#[test]
fn llama() {
    check_architecture(Architecture::Llama);
}

#[test]
fn llama_with_the_stretched_positions_of_llama_3() {
    let mut recipe = small_model("llama", FileType::Q8_0);
    recipe.shape.vocabulary_size = Some(2048);
    recipe.shape.rope_stretch = Some(Llama3Stretch {
        factor: 8.0,
        low_frequency_factor: 1.0,
        high_frequency_factor: 4.0,
        original_context_length: 8192,
    });
    check(&recipe);
}

#[test]
fn qwen2() {
    check_architecture(Architecture::Qwen2);
}

#[test]
fn qwen3() {
    check_architecture(Architecture::Qwen3);
}

#[test]
fn qwen3moe() {
    check_architecture(Architecture::Qwen3Moe);
}

#[test]
fn llama_with_experts() {
    for file_type in [FileType::Q8_0, FileType::Q4_K_M] {
        let mut recipe = small_model("llama", file_type);
        recipe.shape.vocabulary_size = Some(2048);
        recipe.shape.feed_forward_length = 256;
        // More experts than a processor's kernel has rows, and every one of them used.
        recipe.shape.experts = Some(ExpertShape { count: 5, used: 5 });
        check(&recipe);
        recipe.shape.experts = Some(ExpertShape { count: 4, used: 1 });
        check(&recipe);
    }
}

#[test]
fn gemma3() {
    check_architecture(Architecture::Gemma3);
}
