//! Models cut into several files.

mod support;

use std::path::{Path, PathBuf};

use expect_test::{Expect, expect};
use motley_model::{Architecture, Gguf, ModelDirectory, split_paths};
use support::{Blueprint, Setting, parse};

/// A model cut in three: the first part has all metadata and no tensor, as some tools write it.
fn parts() -> Vec<Blueprint> {
    let whole = Blueprint::new(Architecture::Llama);
    let empty = Blueprint { settings: Vec::new(), tensors: Vec::new() };
    let mut parts = vec![Blueprint { tensors: Vec::new(), ..whole.clone() }, empty.clone(), empty];
    for (index, tensor) in whole.tensors.iter().enumerate() {
        parts[1 + index % 2].tensors.push(tensor.clone());
    }
    for (number, part) in (0..).zip(&mut parts) {
        part.set("split.no", Setting::U32(number));
        part.set("split.count", Setting::U32(3));
        part.set("split.tensors.count", Setting::I32(whole.tensors.len() as i32));
    }
    parts
}

fn check(parts: &[Blueprint], expected: Expect) {
    let files: Vec<Vec<u8>> = parts.iter().map(Blueprint::bytes).collect();
    let parsed: Vec<Gguf<'_>> =
        files.iter().map(|file| parse(file).expect("a good file")).collect();
    let text = match ModelDirectory::from_files(&parsed) {
        Ok(model) => {
            for tensor in model.tensors() {
                let entries = parsed[tensor.file_index].tensors();
                assert!(entries.iter().any(|entry| entry.name == tensor.name));
            }
            format!("{} tensors", model.tensors().count())
        }
        Err(error) => error.to_string(),
    };
    expected.assert_eq(&text);
}

#[test]
fn parts_are_joined_in_order() {
    check(&parts(), expect!["65 tensors"]);
}

#[test]
fn parts_in_disorder_or_missing_are_refused() {
    let mut swapped = parts();
    swapped.swap(1, 2);
    check(&swapped, expect!["file 2 of the model says it is number 3"]);
    check(&parts()[..2], expect!["the model is cut into 3 files, 2 were given"]);
    check(&parts()[..1], expect!["the model is cut into 3 files, 1 were given"]);
    let mut lies = parts();
    lies[0].set("split.count", Setting::U32(u32::MAX));
    check(&lies, expect!["the model is cut into 4294967295 files, 3 were given"]);
    let mut foreign = parts();
    foreign[2].set("split.count", Setting::U32(4));
    check(&foreign, expect!["the model is cut into 4 files, 3 were given"]);
    foreign[2].unset("split.no").set("split.count", Setting::U32(3));
    check(&foreign, expect!["file 3 of the model says it is no part of a cut model"]);
}

#[test]
fn parts_that_do_not_add_up_are_refused() {
    let mut fewer = parts();
    fewer[2].tensors.pop();
    check(&fewer, expect!["the files have 64 tensors together, the first says 65"]);
    let mut twice = parts();
    let tensor = twice[1].tensors[0].clone();
    twice[2].tensors.push(tensor);
    check(&twice, expect!["tensor 'token_embd.weight' is in file 2 and again in file 3"]);
}

#[test]
fn parts_are_named_by_any_of_them() {
    let paths = |path: &str| split_paths(Path::new(path));
    let all: Vec<PathBuf> = (1..=3).map(|n| format!("d/m-{n:05}-of-00003.gguf").into()).collect();
    assert_eq!(paths("d/m-00001-of-00003.gguf"), all);
    assert_eq!(paths("d/m-00003-of-00003.gguf"), all);
    for alone in [
        "m.gguf",
        "m-00004-of-00003.gguf",
        "m-00000-of-00003.gguf",
        "m-1-of-3.gguf",
        "m-00001-of-00003.bin",
        "m-+0001-of-00003.gguf",
        "",
    ] {
        assert_eq!(paths(alone), [PathBuf::from(alone)], "{alone}");
    }
}
