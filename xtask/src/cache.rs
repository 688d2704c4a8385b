//! Where things lie: the checkout, the shared data beside it, and the cache folder, which outlives
//! the checkout and may be carried to another machine.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use crate::process;

/// The folders every step works with. All of them exist.
pub(crate) struct Workplace {
    /// The root of the checkout.
    pub(crate) root: PathBuf,
    /// Data beside the checkout that tests use where it is present.
    pub(crate) shared: Option<PathBuf>,
    /// Models fetched once for all checkouts.
    pub(crate) models: PathBuf,
    /// Programs installed for the checks.
    pub(crate) tools: PathBuf,
    /// The output of quiet steps, kept for a look after a failure.
    pub(crate) logs: PathBuf,
    /// Where cargo builds.
    pub(crate) target: PathBuf,
}

impl Workplace {
    pub(crate) fn find() -> Result<Self> {
        let manifest = env::var_os("CARGO_MANIFEST_DIR")
            .context("start this through `cargo xtask`, so that it knows the checkout")?;
        let root = Path::new(&manifest).parent().context("the package has no parent")?.to_owned();
        let cache = cache_folder()?;
        let target = match env::var_os("CARGO_TARGET_DIR") {
            Some(folder) => root.join(folder),
            None => cache.join(format!("target-{}", build_key()?)),
        };
        let shared = root.parent().map(|above| above.join("shared")).filter(|path| path.is_dir());
        let workplace = Self {
            shared,
            models: cache.join("models"),
            tools: cache.join("tools"),
            logs: cache.join("logs"),
            target,
            root,
        };
        for folder in [&workplace.models, &workplace.tools, &workplace.logs, &workplace.target] {
            fs::create_dir_all(folder).with_context(|| {
                format!("cannot make {}; set MOTLEY_CACHE to a folder you own", folder.display())
            })?;
        }
        Ok(workplace)
    }

    /// A cargo call in the checkout that builds into the cache.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(arguments).current_dir(&self.root).env("CARGO_TARGET_DIR", &self.target);
        // `cargo run` describes xtask to this process; a build script that sees those variables
        // would be run again by the next cargo call that lacks them.
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
                command.env_remove(&name);
            }
        }
        command
    }
}

fn cache_folder() -> Result<PathBuf> {
    if let Some(folder) = env::var_os("MOTLEY_CACHE") {
        let folder = PathBuf::from(folder);
        ensure!(folder.is_absolute(), "MOTLEY_CACHE must be an absolute path");
        return Ok(folder);
    }
    if let Some(folder) = env::var_os("XDG_CACHE_HOME").map(PathBuf::from)
        && folder.is_absolute()
    {
        return Ok(folder.join("motley"));
    }
    let home = env::var_os("HOME").context("neither MOTLEY_CACHE nor HOME is set; set one")?;
    Ok(Path::new(&home).join(".cache").join("motley"))
}

/// Names the processor and the compiler. Builds use every instruction of the processor they were
/// made on, so a build found on another one may end with an illegal instruction.
fn build_key() -> Result<String> {
    let limit = Duration::from_secs(60);
    let mut digest = Sha256::new();
    for arguments in [&["-vV"][..], &["--print", "cfg", "-C", "target-cpu=native"][..]] {
        let mut rustc = Command::new("rustc");
        rustc.args(arguments);
        digest.update(process::capture(rustc, limit).context("is Rust installed by rustup?")?);
    }
    // The C++ compiler also uses extensions that rustc does not name.
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = processors.lines().find(|line| {
        line.split_once(':').is_some_and(|(key, _)| matches!(key.trim(), "flags" | "Features"))
    });
    digest.update(flags.unwrap_or_default());
    // Cargo does not build ggml anew when only its flags change.
    digest.update(include_str!("../../.cargo/config.toml"));
    Ok(hex(&digest.finalize())[..12].to_owned())
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
