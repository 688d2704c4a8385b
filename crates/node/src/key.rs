//! `motley key`: keys for the API, of which only a digest is kept.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Subcommand, ValueEnum};
use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use motley_gateway::{KeyDigest, Scope};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::arguments::ListOptions;
use crate::failure::{Failure, Kind};
use crate::identity::{StateFolder, random_bytes};
use crate::terminal::{self, Table};

/// The list in the state folder.
const FILE: &str = "api-keys.json";

/// Keys of a list at most.
const KEYS_MAX: usize = 1024;

/// Characters of a key's name at most.
const NAME_CHARACTERS_MAX: usize = 64;

/// Arguments of `motley key`.
#[derive(Debug, clap::Args)]
#[command(after_help = "As soon as there is a key, motley serve answers nobody without one. \
    A change counts when a server starts.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    options: ListOptions,
}

/// What is to be done with keys; without a word they are listed.
#[derive(Debug, Subcommand)]
enum Action {
    /// Make a key; it is shown once
    New(New),
    /// List keys
    Ls,
    /// Forget keys
    Rm(Remove),
}

#[derive(Debug, clap::Args)]
struct New {
    /// What to call it
    #[arg(value_name = "NAME", value_parser = parse_name)]
    name: String,
    /// What it allows: infer asks models, admin also sees what others do
    #[arg(long, value_enum, value_name = "SCOPE", default_value = "infer")]
    scope: ScopeName,
}

#[derive(Debug, clap::Args)]
struct Remove {
    /// Names of keys
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
}

// Without doc comments on the values, which clap would print as a paragraph each.
/// What a key allows, as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum ScopeName {
    Infer,
    Admin,
}

/// A key, without what opens the door.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    name: String,
    /// SHA-256 of the key in hexadecimal.
    sha256: String,
    scope: ScopeName,
    created_unix_s: u64,
}

/// The keys that `motley key new` made for servers of a state folder.
///
/// # Errors
/// When the list cannot be read.
pub(crate) fn kept(state: &Path) -> Result<Vec<(KeyDigest, Scope)>, Failure> {
    if !state.is_dir() {
        return Ok(Vec::new());
    }
    let entries = load(&StateFolder::open(state)?)?;
    entries.iter().map(|entry| Ok((entry.digest()?, entry.scope.scope()))).collect()
}

pub(crate) fn execute(arguments: &Arguments) -> Result<(), Failure> {
    let folder = StateFolder::open(&StateFolder::locate(arguments.options.state.clone())?)?;
    match &arguments.action {
        None | Some(Action::Ls) => list(&folder, arguments.options.json),
        Some(Action::New(new)) => create(&folder, new, arguments.options.json),
        Some(Action::Rm(remove)) => forget(&folder, remove),
    }
}

fn create(folder: &StateFolder, new: &New, json: bool) -> Result<(), Failure> {
    let Some(secret) = random_bytes::<32>() else {
        return Err(Failure::new(
            Kind::Failed,
            anyhow::anyhow!("the system gives no random numbers"),
        ));
    };
    let key = format!("sk-{}", BASE64URL_NOPAD.encode(&secret));
    {
        let _lock = folder.lock()?;
        let mut entries = load(folder)?;
        if entries.iter().any(|entry| entry.name == new.name) {
            let error = anyhow::anyhow!("there is a key called '{}'", new.name);
            return Err(Failure::new(Kind::Refused, error)
                .hint(format!("take another name, or motley key rm {}", new.name)));
        }
        if entries.len() == KEYS_MAX {
            let error = anyhow::anyhow!("there are {KEYS_MAX} keys, and no more are kept");
            return Err(Failure::new(Kind::Refused, error));
        }
        entries.push(Entry {
            name: new.name.clone(),
            sha256: HEXLOWER.encode(KeyDigest::of(&key).as_bytes()),
            scope: new.scope,
            created_unix_s: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |time| time.as_secs()),
        });
        save(folder, &entries)?;
    }
    if json {
        return Ok(terminal::print_json(&json!({
            "name": new.name, "key": key, "scope": new.scope,
        }))?);
    }
    // The key alone is the result, so that a script can take it.
    terminal::print(&format!("{key}\n"))?;
    terminal::note(&format!(
        "shown this once; clients send it as their API key (forget it: motley key rm {})\n",
        new.name
    ));
    Ok(())
}

fn list(folder: &StateFolder, json: bool) -> Result<(), Failure> {
    let entries = load(folder)?;
    if json {
        return Ok(terminal::print_json(&json!(entries))?);
    }
    if entries.is_empty() {
        return Ok(terminal::print("there are no keys; motley key new NAME makes one\n")?);
    }
    let mut table = Table::new(["key", "scope"]);
    for entry in &entries {
        let scope = if entry.scope == ScopeName::Admin { "admin" } else { "infer" };
        table.row([entry.name.clone(), scope.to_owned()]);
    }
    Ok(terminal::print(&table.render())?)
}

fn forget(folder: &StateFolder, remove: &Remove) -> Result<(), Failure> {
    let _lock = folder.lock()?;
    let mut entries = load(folder)?;
    for name in &remove.names {
        let Some(at) = entries.iter().position(|entry| entry.name == *name) else {
            let error = anyhow::anyhow!("no key is called '{name}'");
            return Err(Failure::new(Kind::NotFound, error).hint("motley key ls shows them"));
        };
        entries.remove(at);
    }
    save(folder, &entries)
}

fn load(folder: &StateFolder) -> Result<Vec<Entry>, Failure> {
    let Some(bytes) = folder.read_private(FILE)? else { return Ok(Vec::new()) };
    serde_json::from_slice(&bytes).map_err(|error| {
        let error = anyhow::Error::new(error).context(format!("{FILE} is no list of keys"));
        Failure::new(Kind::Failed, error).hint("it is damaged: remove it, and make keys anew")
    })
}

fn save(folder: &StateFolder, entries: &[Entry]) -> Result<(), Failure> {
    let bytes = serde_json::to_vec_pretty(entries).map_err(anyhow::Error::new)?;
    Ok(folder.write(FILE, &bytes)?)
}

fn parse_name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match text.len() {
        1..=NAME_CHARACTERS_MAX if text.chars().all(plain) => Ok(text.to_owned()),
        _ => {
            Err(format!("a name has 1 to {NAME_CHARACTERS_MAX} letters, digits, '-', '_' and '.'"))
        }
    }
}

impl Entry {
    fn digest(&self) -> Result<KeyDigest, Failure> {
        let bytes = HEXLOWER.decode(self.sha256.as_bytes()).ok();
        let bytes = bytes.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
        bytes.map(KeyDigest::from_bytes).ok_or_else(|| {
            let error = anyhow::anyhow!("the key '{}' has no digest", self.name);
            Failure::new(Kind::Failed, error).hint(format!("motley key rm {}", self.name))
        })
    }
}

impl ScopeName {
    fn scope(self) -> Scope {
        match self {
            Self::Infer => Scope::Infer,
            Self::Admin => Scope::Admin,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(name: &str, scope: ScopeName) -> New {
        New { name: name.to_owned(), scope }
    }

    /// T-19: only digests are kept.
    #[test]
    fn keys_are_kept_as_digests_with_their_scope() {
        let outer = tempfile::tempdir().unwrap();
        let state = outer.path().join("state");
        assert!(kept(&state).unwrap().is_empty());
        let folder = StateFolder::open(&state).unwrap();
        create(&folder, &new("phone", ScopeName::Infer), true).unwrap();
        create(&folder, &new("me", ScopeName::Admin), true).unwrap();
        let text = String::from_utf8(folder.read_private(FILE).unwrap().unwrap()).unwrap();
        assert!(!text.contains("sk-"), "{text}");
        let scopes: Vec<Scope> =
            kept(&state).unwrap().into_iter().map(|(_, scope)| scope).collect();
        assert_eq!(scopes, [Scope::Infer, Scope::Admin]);
        assert!(create(&folder, &new("me", ScopeName::Infer), true).is_err());
        forget(&folder, &Remove { names: vec!["me".to_owned()] }).unwrap();
        assert_eq!(kept(&state).unwrap().len(), 1);
        assert!(forget(&folder, &Remove { names: vec!["me".to_owned()] }).is_err());
    }

    #[test]
    fn names_are_plain() {
        assert_eq!(parse_name("my-phone_2.0"), Ok("my-phone_2.0".to_owned()));
        for wrong in ["", "a b", "é", "../x", &"x".repeat(65)] {
            assert!(parse_name(wrong).is_err(), "{wrong}");
        }
    }
}
