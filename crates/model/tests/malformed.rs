//! Every broken file gets the verdict of its manifest, for the reason it was made for.

mod support;

use std::fmt::Write;

use expect_test::expect_file;
use motley_model::{DirectoryError, ModelDirectory, VocabularySummary};
use support::{malformed, parse};

/// What the crate says about a file. The broken files are no whole models, so that a missing key
/// or tensor says nothing about what they were made for; then the file counts as accepted.
fn verdict(bytes: &[u8]) -> Result<(), String> {
    let gguf = parse(bytes).map_err(|error| error.to_string())?;
    VocabularySummary::from_file(&gguf).map_err(|error| error.to_string())?;
    match ModelDirectory::from_files(&[gguf]) {
        Ok(_) | Err(DirectoryError::TensorMissing { .. }) => Ok(()),
        Err(DirectoryError::Metadata(motley_model::MetadataError::Missing { key }))
            if key != "general.architecture" =>
        {
            Ok(())
        }
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn every_broken_file_gets_the_verdict_of_its_manifest() {
    let mut table = String::new();
    for case in malformed() {
        let verdict = verdict(&case.bytes);
        let agrees = match case.expect.as_str() {
            "accept" | "render-refuse" => verdict.is_ok() || only_lacks_architecture(&case.bytes),
            "reject" => verdict.is_err(),
            "either" => true,
            other => panic!("unknown verdict {other} in the manifest"),
        };
        assert!(agrees, "{} should be {}, got {verdict:?}", case.file, case.expect);
        let text = verdict.err().unwrap_or_else(|| "accepted".to_owned());
        writeln!(table, "{} ({}): {text}", case.file, case.expect).expect("memory");
    }
    expect_file!["fixtures/malformed_verdicts.txt"].assert_eq(&table);
}

/// Files that are good as files but no models: they name no architecture.
fn only_lacks_architecture(bytes: &[u8]) -> bool {
    parse(bytes).is_ok_and(|gguf| gguf.value("general.architecture").is_none())
}

#[test]
fn the_corpus_is_whole() {
    let cases = malformed();
    let count = |wanted: &str| cases.iter().filter(|case| case.expect == wanted).count();
    let counts = ["reject", "accept", "render-refuse", "either"].map(count);
    assert_eq!(counts, [91, 5, 5, 7]);
}
