//! Results kept between runs: one file for the hardware, one per model.

use std::fs;
use std::io;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Effort;

/// Raised whenever the way of measuring changes, so that figures of an older way are not mixed in.
const FORM: u32 = 2;

/// A kept file is at most this long; tables of a model take a few kilobytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A result with everything that it depends on.
#[derive(Debug, Serialize, Deserialize)]
struct Kept<K, V> {
    form: u32,
    effort: Effort,
    key: K,
    value: V,
}

/// What an earlier measurement with the same key gave, if it was at least as thorough.
///
/// A file that cannot be read or believed is no reason to fail: everything can be measured again.
pub(super) fn load<K, V>(path: &Path, key: &K, effort: Effort) -> Option<V>
where
    K: DeserializeOwned + PartialEq,
    V: DeserializeOwned,
{
    let metadata = fs::metadata(path).ok()?;
    if metadata.len() > FILE_BYTES_MAX {
        return None;
    }
    let kept: Kept<K, V> = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    (kept.form == FORM && kept.effort >= effort && kept.key == *key).then_some(kept.value)
}

/// Keeps a result; the file is replaced as a whole.
pub(super) fn store<K, V>(path: &Path, key: &K, effort: Effort, value: &V) -> io::Result<()>
where
    K: Serialize,
    V: Serialize,
{
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let text = serde_json::to_vec_pretty(&Kept { form: FORM, effort, key, value })?;
    let fresh = path.with_extension(format!("{}.new", std::process::id()));
    fs::write(&fresh, text).and_then(|()| fs::rename(&fresh, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_kept_until_its_key_changes_or_more_is_asked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new").join("device.json");
        let of = |key: &str, effort| load::<String, u32>(&path, &key.to_owned(), effort);
        assert_eq!(of("a", Effort::Quick), None);
        store(&path, &"a", Effort::Quick, &7).unwrap();
        assert_eq!(of("a", Effort::Quick), Some(7));
        assert_eq!(of("a", Effort::Full), None, "a quick result does not stand for a full one");
        assert_eq!(of("b", Effort::Quick), None, "another machine, build or model");
        store(&path, &"a", Effort::Full, &8).unwrap();
        assert_eq!((of("a", Effort::Full), of("a", Effort::Quick)), (Some(8), Some(8)));
    }

    #[test]
    fn what_cannot_be_believed_is_measured_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("device.json");
        let loaded = || load::<String, u32>(&path, &"a".to_owned(), Effort::Quick);
        for text in [
            "",
            "{\"form\":2}",
            "{\"form\":0,\"effort\":\"full\",\"key\":\"a\",\"value\":7}",
            "{\"form\":2,\"effort\":\"full\",\"key\":\"a\",\"value\":-7}",
        ] {
            fs::write(&path, text).unwrap();
            assert_eq!(loaded(), None, "{text}");
        }
        fs::write(&path, "{\"form\":2,\"effort\":\"full\",\"key\":\"a\",\"value\":7}").unwrap();
        assert_eq!(loaded(), Some(7));
    }
}
