//! Which files of a repository are the model that was asked for.

use std::collections::BTreeMap;

use crate::store;

/// Quantisations that are taken where none is asked for: the usual compromises, best first.
const USUAL: [&str; 4] = ["Q4_K_M", "Q4_0", "Q5_K_M", "Q8_0"];

/// Variants named in a message at most.
const NAMED_MAX: usize = 24;

/// Parts of one model at most.
const PARTS_MAX: usize = 1024;

/// Why no model was chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PickError {
    /// Nothing there can be run.
    #[error("the repository holds no GGUF file")]
    NoModel,
    /// None of its models is called so.
    #[error("the repository has no variant '{wanted}'")]
    Unknown {
        /// What was asked for.
        wanted: String,
        /// What there is.
        known: Vec<String>,
    },
    /// Several, and none of the usual ones.
    #[error("the repository has several variants")]
    Several {
        /// What there is.
        known: Vec<String>,
    },
    /// A file of a split model is missing.
    #[error("the repository lacks part {part} of {parts} of {stem}")]
    Incomplete {
        /// The model.
        stem: String,
        /// Which part.
        part: usize,
        /// Of how many.
        parts: usize,
    },
}

impl PickError {
    /// What to ask for instead.
    pub(super) fn hint(&self) -> Option<String> {
        let some = |known: &[String]| {
            let named: Vec<&str> = known.iter().take(NAMED_MAX).map(String::as_str).collect();
            let more = if known.len() > NAMED_MAX { ", ..." } else { "" };
            format!("it has {}{more}", named.join(", "))
        };
        match self {
            Self::Unknown { wanted, known } => {
                let near =
                    store::near_names(&wanted.to_uppercase(), known.iter().map(String::as_str));
                match near.as_slice() {
                    [] => Some(some(known)),
                    near => Some(format!("did you mean {}? {}", near.join(" or "), some(known))),
                }
            }
            Self::Several { known } => Some(format!("put one after a colon; {}", some(known))),
            Self::NoModel => Some("look for a repository whose name ends in GGUF".to_owned()),
            Self::Incomplete { .. } => None,
        }
    }
}

/// A model of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Candidate<'p> {
    stem: String,
    parts: BTreeMap<usize, &'p str>,
    part_count: usize,
}

/// The paths of the wanted model's files, in order.
pub(super) fn pick<'p>(
    paths: impl Iterator<Item = &'p str>,
    variant: Option<&str>,
) -> Result<Vec<&'p str>, PickError> {
    let candidates = candidates(paths);
    if candidates.is_empty() {
        return Err(PickError::NoModel);
    }
    let named = |wanted: &str| {
        candidates.iter().find(|candidate| {
            label(&candidate.stem).eq_ignore_ascii_case(wanted)
                || candidate.stem.eq_ignore_ascii_case(wanted)
                || candidate.file_name().eq_ignore_ascii_case(wanted)
        })
    };
    let known = || candidates.iter().map(|candidate| label(&candidate.stem)).collect();
    let chosen = match (variant, candidates.as_slice()) {
        (Some(wanted), _) => named(wanted)
            .ok_or_else(|| PickError::Unknown { wanted: wanted.to_owned(), known: known() })?,
        (None, [only]) => only,
        (None, _) => USUAL
            .iter()
            .find_map(|usual| named(usual))
            .ok_or_else(|| PickError::Several { known: known() })?,
    };
    match (1..=chosen.part_count).find(|part| !chosen.parts.contains_key(part)) {
        Some(part) => {
            Err(PickError::Incomplete { stem: chosen.stem.clone(), part, parts: chosen.part_count })
        }
        None => Ok(chosen.parts.values().copied().collect()),
    }
}

impl Candidate<'_> {
    fn file_name(&self) -> &str {
        let first = self.parts.values().next().copied().unwrap_or_default();
        first.rsplit('/').next().unwrap_or(first)
    }
}

/// GGUF files that are models by themselves, parts of one joined.
fn candidates<'p>(paths: impl Iterator<Item = &'p str>) -> Vec<Candidate<'p>> {
    let mut found: BTreeMap<(String, usize), Candidate<'p>> = BTreeMap::new();
    for path in paths {
        let name = path.rsplit('/').next().unwrap_or(path);
        let Some(whole) = strip_gguf(name) else { continue };
        // Projectors of images and matrices of importance lie beside models and are none.
        let lower = whole.to_ascii_lowercase();
        if lower.starts_with("mmproj") || lower.contains("imatrix") {
            continue;
        }
        let (stem, part, part_count) = split(whole).unwrap_or((whole, 1, 1));
        found
            .entry((stem.to_owned(), part_count))
            .or_insert_with(|| Candidate {
                stem: stem.to_owned(),
                parts: BTreeMap::new(),
                part_count,
            })
            .parts
            .entry(part)
            .or_insert(path);
    }
    found.into_values().collect()
}

fn strip_gguf(name: &str) -> Option<&str> {
    let stem = name.get(..name.len().checked_sub(5)?)?;
    name[stem.len()..].eq_ignore_ascii_case(".gguf").then_some(stem)
}

/// Stem, number and count of a part, such as `x-00001-of-00003`.
pub(crate) fn split(stem: &str) -> Option<(&str, usize, usize)> {
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (rest, part) = rest.rsplit_once('-')?;
    let number = |digits: &str| {
        let plain = digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| digits.parse::<usize>().ok()).flatten()
    };
    let (part, count) = (number(part)?, number(count)?);
    (count <= PARTS_MAX && (1..=count).contains(&part)).then_some((rest, part, count))
}

/// The names of all parts of the file called `name`, in order; its own alone if it is not split.
pub(super) fn all_parts(name: &str) -> Vec<String> {
    let Some(stem) = strip_gguf(name) else { return vec![name.to_owned()] };
    let Some((rest, _, count)) = split(stem) else { return vec![name.to_owned()] };
    let extension = &name[stem.len()..];
    (1..=count).map(|part| format!("{rest}-{part:05}-of-{count:05}{extension}")).collect()
}

/// The quantisation in a file's name, or all of it where none is found.
pub(crate) fn label(stem: &str) -> String {
    let quantisation = |token: &str| {
        let token = token.to_ascii_uppercase();
        let digit = |rest: &str| rest.starts_with(|first: char| first.is_ascii_digit());
        matches!(token.as_str(), "F16" | "F32" | "BF16" | "FP16")
            || token.starts_with("MXFP4")
            || token.strip_prefix("IQ").or_else(|| token.strip_prefix("TQ")).is_some_and(digit)
            || token.strip_prefix('Q').is_some_and(digit)
    };
    let Some((start, token)) = tokens(stem).filter(|(_, token)| quantisation(token)).last() else {
        return stem.to_owned();
    };
    let dynamic = stem[..start].to_ascii_uppercase().ends_with("-UD-");
    let token = token.to_ascii_uppercase();
    if dynamic { format!("UD-{token}") } else { token }
}

/// Pieces of a name between `-` and `.`, each with where it begins.
fn tokens(stem: &str) -> impl Iterator<Item = (usize, &str)> {
    let starts = std::iter::once(0)
        .chain(stem.match_indices(['-', '.']).map(|(index, separator)| index + separator.len()));
    starts.map(|start| {
        let rest = &stem[start..];
        (start, rest.split(['-', '.']).next().unwrap_or(rest))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [&str; 9] = [
        "README.md",
        "mmproj-model-f16.gguf",
        "Model-7B-Instruct-Q4_K_M.gguf",
        "Model-7B-Instruct-UD-Q4_K_XL.gguf",
        "Model-7B-Instruct-IQ2_XXS.gguf",
        "Model-7B-Instruct.imatrix.gguf",
        "BF16/Model-7B-Instruct-BF16-00002-of-00002.gguf",
        "BF16/Model-7B-Instruct-BF16-00001-of-00002.gguf",
        "Q8_0/Model-7B-Instruct-Q8_0-00001-of-00002.gguf",
    ];

    fn picked(variant: Option<&str>) -> Result<Vec<&'static str>, PickError> {
        pick(FILES.into_iter(), variant)
    }

    #[test]
    fn variants_are_found_by_quantisation_and_by_name() {
        assert_eq!(picked(None).unwrap(), ["Model-7B-Instruct-Q4_K_M.gguf"]);
        assert_eq!(picked(Some("iq2_xxs")).unwrap(), ["Model-7B-Instruct-IQ2_XXS.gguf"]);
        assert_eq!(picked(Some("ud-q4_k_xl")).unwrap(), ["Model-7B-Instruct-UD-Q4_K_XL.gguf"]);
        assert_eq!(
            picked(Some("Model-7B-Instruct-IQ2_XXS.gguf")).unwrap(),
            ["Model-7B-Instruct-IQ2_XXS.gguf"]
        );
        assert_eq!(
            picked(Some("bf16")).unwrap(),
            [
                "BF16/Model-7B-Instruct-BF16-00001-of-00002.gguf",
                "BF16/Model-7B-Instruct-BF16-00002-of-00002.gguf"
            ]
        );
    }

    #[test]
    fn what_there_is_not_is_told() {
        let unknown = picked(Some("Q4_K_S")).unwrap_err();
        assert_eq!(
            unknown.hint().unwrap(),
            "did you mean Q4_K_M? it has BF16, IQ2_XXS, Q4_K_M, Q8_0, UD-Q4_K_XL"
        );
        let incomplete = picked(Some("q8_0")).unwrap_err();
        assert_eq!(
            incomplete.to_string(),
            "the repository lacks part 2 of 2 of Model-7B-Instruct-Q8_0"
        );
        let several = pick(["a-IQ1_S.gguf", "a-IQ2_S.gguf"].into_iter(), None).unwrap_err();
        assert_eq!(several.hint().unwrap(), "put one after a colon; it has IQ1_S, IQ2_S");
        assert_eq!(pick(["a.safetensors"].into_iter(), None), Err(PickError::NoModel));
    }

    #[test]
    fn parts_are_numbered() {
        assert_eq!(all_parts("a-00002-of-00003.gguf").len(), 3);
        assert_eq!(all_parts("a-00002-of-00002.gguf")[0], "a-00001-of-00002.gguf");
        for whole in ["a.gguf", "a-00004-of-00003.gguf", "a-1-of-2.gguf"] {
            assert_eq!(all_parts(whole), [whole]);
        }
    }

    #[test]
    fn quantisations_are_read_from_names() {
        for (stem, expected) in [
            ("SmolLM2-135M-Instruct.Q4_1", "Q4_1"),
            ("Qwen3-8B-q4_k_m", "Q4_K_M"),
            ("Llama-3.2-1B-f16", "F16"),
            ("gpt-oss-20b-mxfp4", "MXFP4"),
            ("Qwen3-8B", "Qwen3-8B"),
        ] {
            assert_eq!(label(stem), expected);
        }
    }
}
