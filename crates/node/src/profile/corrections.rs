//! How far predictions for devices were wrong, kept between runs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{Effort, Options, cache};
use crate::version;

/// What the factors depend on. They are of several devices, whose own measurements each of them
/// keeps; a factor that does not fit any more is learnt anew within minutes.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Key {
    build: String,
    engine_build: String,
    model: String,
}

impl Key {
    fn new(model: &str) -> Self {
        Self {
            build: env!("CARGO_PKG_VERSION").to_owned(),
            engine_build: format!("llama-cpp-sys-2 {}", version::LLAMA_CPP_SYS_VERSION),
            model: model.to_owned(),
        }
    }
}

/// Factors by device that were kept for a model.
pub(crate) fn kept_corrections(options: &Options, model: &str) -> BTreeMap<String, f64> {
    if options.refresh {
        return BTreeMap::new();
    }
    cache::load(&path(options, model), &Key::new(model), Effort::Quick).unwrap_or_default()
}

/// Keeps factors by device for a model.
pub(crate) fn keep_corrections(options: &Options, model: &str, factors: &BTreeMap<String, f64>) {
    // A folder that cannot be written means only that the next run learns again.
    let _ = cache::store(&path(options, model), &Key::new(model), Effort::Quick, factors);
}

fn path(options: &Options, model: &str) -> PathBuf {
    let digest = data_encoding::HEXLOWER.encode(&Sha256::digest(model));
    options.cache.join(format!("corrections-{}.json", &digest[..16]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_outlive_a_run_and_belong_to_their_model() {
        let folder = tempfile::tempdir().unwrap();
        let mut options = Options::new(None, Some(1), Effort::Quick).unwrap();
        options.cache = folder.path().to_owned();
        let factors = BTreeMap::from([("ab".to_owned(), 1.25)]);
        keep_corrections(&options, "a model", &factors);
        assert_eq!(kept_corrections(&options, "a model"), factors);
        assert!(kept_corrections(&options, "another").is_empty());
        options.refresh = true;
        assert!(kept_corrections(&options, "a model").is_empty(), "all is measured anew");
    }
}
