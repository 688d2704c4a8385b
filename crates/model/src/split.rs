//! Models cut into several files.

use std::path::{Path, PathBuf};

use crate::directory::DirectoryError;
use crate::gguf::Gguf;
use crate::limits;

/// The paths of all parts of the model of which `path` is one part, in order.
///
/// Parts are named `PREFIX-00001-of-0000N.gguf`. A path of another form is a model in one file
/// and comes back alone. Nothing is looked up: whether the parts exist is the caller's to find.
pub fn split_paths(path: &Path) -> Vec<PathBuf> {
    let parts = path.file_name().and_then(|name| name.to_str()).and_then(part_names);
    match parts {
        Some(names) => names.into_iter().map(|name| path.with_file_name(name)).collect(),
        None => vec![path.to_owned()],
    }
}

fn part_names(name: &str) -> Option<Vec<String>> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (prefix, number) = rest.rsplit_once('-')?;
    let (number, count) = (five_digits(number)?, five_digits(count)?);
    (1..=count).contains(&number).then(|| {
        (1..=count).map(|number| format!("{prefix}-{number:05}-of-{count:05}.gguf")).collect()
    })
}

fn five_digits(text: &str) -> Option<u32> {
    let digits = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// Checks that the files are all parts of one model and stand in order.
pub(crate) fn check_parts(files: &[Gguf<'_>], tensors: usize) -> Result<(), DirectoryError> {
    let Some(first) = files.first() else { return Err(DirectoryError::NoFiles) };
    // A file that was never split says nothing, or that it is one of one.
    let declared = first.unsigned("split.count")?.unwrap_or(0).max(1);
    if declared > limits::SPLIT_COUNT_MAX || declared != files.len() as u64 {
        return Err(DirectoryError::SplitCount { declared, given: files.len() });
    }
    if declared == 1 {
        return Ok(());
    }
    for (position, file) in files.iter().enumerate() {
        let number = file.unsigned("split.no")?;
        if number != Some(position as u64) {
            return Err(DirectoryError::SplitNumber { position, number });
        }
        let count = file.unsigned("split.count")?.unwrap_or(declared);
        if count != declared {
            return Err(DirectoryError::SplitCount { declared: count, given: files.len() });
        }
    }
    match first.unsigned("split.tensors.count")? {
        Some(declared) if declared != tensors as u64 => {
            Err(DirectoryError::SplitTensorCount { declared, found: tensors })
        }
        _ => Ok(()),
    }
}
