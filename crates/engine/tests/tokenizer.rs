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

fn vocabulary_files(shared: &std::path::Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(shared.join("data/tokenizer"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "gguf"))
        .collect();
    files.sort();
    files
}

#[test]
fn every_recorded_text_gives_its_recorded_tokens() {
    let Some(shared) = shared_folder() else { return };
    let (mut vocabularies, mut texts) = (0, 0);
    for path in vocabulary_files(&shared) {
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

/// Texts of which as much as possible vanishes in tokens: each token's own text, many times, also
/// with white space that special tokens take away, and characters that no vocabulary has.
#[test]
fn a_text_never_has_fewer_tokens_than_its_length_says() {
    let Some(shared) = shared_folder() else { return };
    let novel = fs::read(shared.join("data/prompts/long_text/war-and-peace.txt")).unwrap();
    let novel = String::from_utf8_lossy(&novel[..20_000]).into_owned();
    let (mut told, mut tightest) = (0, 0.0_f64);
    for path in vocabulary_files(&shared) {
        let vocabulary = vocabulary(&path);
        let mut check = |text: &str| {
            let least = vocabulary.tokens_at_least(text);
            for special in [false, true] {
                let tokens = vocabulary.tokenize(text, false, special).unwrap().len();
                assert!(least <= tokens, "{}: {least} of {tokens}: {text:.80?}", path.display());
                tightest = tightest.max(least as f64 / tokens.max(1) as f64);
            }
        };
        check(&novel);
        check("\u{fffd}\u{10ffff}\u{1f9ff}\r\n\t\u{1}");
        let size = Token::try_from(vocabulary.size()).unwrap();
        for token in 0..size {
            let mut bytes = Vec::new();
            vocabulary.append_bytes(token, true, &mut bytes).unwrap();
            let Ok(text) = String::from_utf8(bytes) else { continue };
            let special = text.starts_with('<') && text.ends_with('>');
            if text.len() >= 24 || special {
                check(&text.repeat(5));
                check(&[text.as_str(); 5].join("   \n   "));
            }
        }
        told += usize::from(vocabulary.tokens_at_least(&novel) > 0);
    }
    println!("{told} vocabularies tell, at best {tightest:.2} of the tokens");
    assert!(told >= 10 && tightest == 1.0, "{told}, {tightest}");
}
