//! What a user asks to have: a model of a hub, or the address of a file.

use std::fmt;
use std::str::FromStr;

use super::address::{Address, AddressError};

/// Characters of a name of a hub at most.
const NAME_CHARACTERS_MAX: usize = 96;

/// Characters of a file's name at most.
const FILE_CHARACTERS_MAX: usize = 200;

/// Why a word names no source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SourceError {
    /// It begins as none of them.
    #[error("'{text}' is neither hf:ORG/REPO[:QUANT] nor an address that begins with https://")]
    Unknown {
        /// What was given.
        text: String,
    },
    /// Names of a hub are short and plain.
    #[error("'{text}' is no name of a repository: ORG/REPO of letters, digits, '-', '_' and '.'")]
    Repository {
        /// What was given.
        text: String,
    },
    /// The address cannot be fetched from.
    #[error("cannot fetch from this address")]
    Address(#[from] AddressError),
    /// The name of a file would lead elsewhere, or says that it is no model.
    #[error(transparent)]
    File(#[from] FileNameError),
}

/// Why a text cannot name a model's file in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FileNameError {
    /// Other formats are not fetched.
    #[error("only GGUF files are fetched, and their names end in .gguf")]
    Extension,
    /// It could lead out of its folder, or be hidden in it.
    #[error(
        "a file's name has up to {FILE_CHARACTERS_MAX} letters, digits, '-', '_', '.', '+', '@' \
         and '=', and begins with a letter or digit"
    )]
    Characters,
}

/// The name of a model's file: safe to be put into a folder, whatever system that lies on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileName(String);

impl FileName {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for FileName {
    type Err = FileNameError;

    fn from_str(text: &str) -> Result<Self, FileNameError> {
        let stem = text.get(..text.len().saturating_sub(5)).unwrap_or_default();
        if !text[stem.len()..].eq_ignore_ascii_case(".gguf") {
            return Err(FileNameError::Extension);
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+@=".contains(&byte);
        let first = stem.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if !first || text.len() > FILE_CHARACTERS_MAX || !text.bytes().all(plain) {
            return Err(FileNameError::Characters);
        }
        if is_device_name(stem) {
            return Err(FileNameError::Characters);
        }
        Ok(Self(text.to_owned()))
    }
}

/// Names that Windows keeps for devices, whatever follows their first dot.
fn is_device_name(stem: &str) -> bool {
    let name = stem.split('.').next().unwrap_or_default().to_ascii_uppercase();
    let numbered = |kind| {
        name.strip_prefix(kind)
            .is_some_and(|rest: &str| rest.len() == 1 && rest.bytes().all(|b| b.is_ascii_digit()))
    };
    matches!(name.as_str(), "CON" | "PRN" | "AUX" | "NUL") || numbered("COM") || numbered("LPT")
}

/// A repository of a hub, and which of its models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HubModel {
    /// `ORG/REPO`.
    pub(crate) repository: String,
    /// A quantisation or the name of a file; nothing for the usual one.
    pub(crate) variant: Option<String>,
}

impl fmt::Display for HubModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf:{}", self.repository)?;
        self.variant.iter().try_for_each(|variant| write!(f, ":{variant}"))
    }
}

impl FromStr for HubModel {
    type Err = SourceError;

    /// Reads `hf:ORG/REPO[:VARIANT]`, with or without `hf:`.
    fn from_str(text: &str) -> Result<Self, SourceError> {
        let rest = text.strip_prefix("hf:").unwrap_or(text);
        let (repository, variant) = match rest.split_once(':') {
            Some((repository, variant)) => (repository, Some(variant)),
            None => (rest, None),
        };
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let name = |part: &str| {
            part.len() <= NAME_CHARACTERS_MAX
                && part.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
                && part.bytes().all(plain)
        };
        let sound = repository.split_once('/').is_some_and(|(org, repo)| name(org) && name(repo))
            && variant.is_none_or(name);
        if !sound {
            return Err(SourceError::Repository { text: text.to_owned() });
        }
        Ok(Self { repository: repository.to_owned(), variant: variant.map(str::to_owned) })
    }
}

/// Where a model is to come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Hub(HubModel),
    Url { address: Address, name: FileName },
}

impl FromStr for Source {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        if text.starts_with("hf:") {
            return Ok(Self::Hub(text.parse()?));
        }
        if !text.contains("://") {
            return Err(SourceError::Unknown { text: text.to_owned() });
        }
        let mut address = Address::parse(text)?;
        if address.origin().host == "huggingface.co" && address.path().contains("/blob/") {
            // The page about a file, which is what people copy.
            address = address.with_path(&address.path().replacen("/blob/", "/resolve/", 1))?;
        }
        let name = address.path().rsplit('/').next().unwrap_or_default().parse()?;
        Ok(Self::Url { address, name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_told_apart() {
        let hub = "hf:org/Some-Repo_2.5:Q4_K_M".parse().unwrap();
        let Source::Hub(model) = &hub else { panic!("{hub:?}") };
        assert_eq!(
            (model.repository.as_str(), model.variant.as_deref()),
            ("org/Some-Repo_2.5", Some("Q4_K_M"))
        );
        assert_eq!(model.to_string(), "hf:org/Some-Repo_2.5:Q4_K_M");
        let page: Source = "https://huggingface.co/o/r/blob/main/x.gguf".parse().unwrap();
        let Source::Url { address, name } = page else { panic!("an address") };
        assert_eq!(address.to_string(), "https://huggingface.co/o/r/resolve/main/x.gguf");
        assert_eq!(name.as_str(), "x.gguf");
    }

    /// T-10: what names something else than a model is refused.
    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for text in [
            "llama3.2",
            "",
            "hf:",
            "hf:repo",
            "hf:a/b/c",
            "hf:../x",
            "hf:a/..",
            "hf:a/b:../c",
            "hf:a/b\\c",
            "hf:a/b\0",
            "hf:a/ｂ",
            "hf:-a/b",
            "ftp://host/x.gguf",
            "/dev/random",
            "file:///x.gguf",
            "https://host/x.zip",
            "https://host/",
            "https://host/.gguf",
            "https://host/%2e%2e.gguf",
            "https://host/CON.gguf",
            "https://host/com1.x.gguf",
            "https://host/.hidden.gguf",
        ] {
            assert!(text.parse::<Source>().is_err(), "{text:?}");
        }
        for name in ["..", "a/b.gguf", "a\\b.gguf", "a\0.gguf", "é.gguf", "gguf", ".gguf"] {
            assert!(name.parse::<FileName>().is_err(), "{name:?}");
        }
        assert!("Model-1.5B.Q4_K_M-00001-of-00002.GGUF".parse::<FileName>().is_ok());
    }
}
