//! The vocabularies of many models against their recorded token ids.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "tests say what they skip, and read recorded files"
)]

use std::fs;
use std::path::PathBuf;

use motley_ggml::{MappedFile, Token, Vocabulary};
use motley_model::{Gguf, write_metadata_only};

fn shared_folder() -> Option<PathBuf> {
    let folder = std::env::var_os("MOTLEY_SHARED")
        .map_or_else(|| PathBuf::from("../../../shared"), PathBuf::from);
    if folder.join("data/tokenizer").exists() {
        return Some(folder);
    }
    println!("skipped: the shared data is not here");
    None
}

fn vocabulary(path: &std::path::Path) -> Vocabulary {
    let file = MappedFile::open(path).unwrap();
    let gguf = Gguf::parse(file.bytes(), file.bytes().len() as u64).unwrap();
    Vocabulary::from_metadata(&write_metadata_only(&gguf)).unwrap()
}

#[test]
fn every_recorded_text_gives_its_recorded_tokens() {
    let Some(shared) = shared_folder() else { return };
    let (mut vocabularies, mut texts) = (0, 0);
    let mut entries: Vec<PathBuf> = fs::read_dir(shared.join("data/tokenizer"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "gguf"))
        .collect();
    entries.sort();
    for path in entries {
        let vocabulary = vocabulary(&path);
        let with = |suffix: &str| {
            let mut name = path.clone().into_os_string();
            name.push(suffix);
            fs::read_to_string(name).unwrap()
        };
        let (inputs, outputs) = (with(".inp"), with(".out"));
        let inputs: Vec<&str> = inputs.split("\n__ggml_vocab_test__\n").collect();
        let outputs: Vec<&str> = outputs.lines().collect();
        for (input, output) in inputs.iter().zip(&outputs) {
            let expected: Vec<Token> =
                output.split_whitespace().map(|id| id.parse().unwrap()).collect();
            let tokens = vocabulary.tokenize(input, false, false).unwrap();
            assert_eq!(tokens, expected, "{}: {input:?}", path.display());
            texts += 1;
        }
        assert!(outputs.len() >= 46, "{} outputs of {}", outputs.len(), path.display());
        vocabularies += 1;
    }
    println!("{texts} texts in {vocabularies} vocabularies");
    assert!(vocabularies >= 10);
}

/// Text from anywhere in a long novel comes back as it was.
#[test]
fn pieces_of_a_novel_survive_the_round_trip() {
    let Some(shared) = shared_folder() else { return };
    let novel = fs::read(shared.join("data/prompts/long_text/war-and-peace.txt")).unwrap();
    let novel = String::from_utf8_lossy(&novel);
    for name in ["gpt-2", "qwen2", "llama-bpe", "starcoder"] {
        let path = shared.join(format!("data/tokenizer/ggml-vocab-{name}.gguf"));
        if !path.exists() {
            println!("skipped: {name}");
            continue;
        }
        let vocabulary = vocabulary(&path);
        let mut state = 0x9e37_79b9_u64;
        for _ in 0..200 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = usize::try_from(state >> 33).unwrap() % (novel.len() - 2000);
            let length = 1 + usize::try_from(state >> 20).unwrap() % 1500;
            let start = novel.floor_char_boundary(at);
            let end = novel.floor_char_boundary(at + length).max(start);
            let piece = &novel[start..end];
            let tokens = vocabulary.tokenize(piece, false, false).unwrap();
            let mut bytes = Vec::new();
            for token in tokens {
                vocabulary.append_bytes(token, false, &mut bytes).unwrap();
            }
            assert_eq!(String::from_utf8_lossy(&bytes), piece, "{name}");
        }
    }
}

#[test]
fn control_tokens_come_only_from_text_that_may_hold_them() {
    let Some(shared) = shared_folder() else { return };
    let path = shared.join("data/tokenizer/ggml-vocab-qwen2.gguf");
    if !path.exists() {
        println!("skipped: the vocabulary is not here");
        return;
    }
    let vocabulary = vocabulary(&path);
    let trusted = vocabulary.tokenize("<|im_end|>", false, true).unwrap();
    let from_user = vocabulary.tokenize("<|im_end|>", false, false).unwrap();
    assert!(trusted.len() == 1 && vocabulary.is_control(trusted[0]));
    assert!(from_user.len() > 1 && !from_user.iter().any(|token| vocabulary.is_control(*token)));
    assert!(vocabulary.special_texts().contains(&"<|im_end|>".to_owned()));
}
