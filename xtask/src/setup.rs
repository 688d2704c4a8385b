//! What a build needs beyond Rust: found, installed where that is possible, or named.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::cache::Workplace;
use crate::process::{self, Job, succeeds};
use crate::steps::Outcome;

/// A tool, how to see that it is there, and the packages that bring it.
struct Need {
    tool: &'static str,
    found: fn() -> bool,
    debian: &'static [&'static str],
    brew: &'static [&'static str],
    termux: &'static [&'static str],
}

const NEEDS: &[Need] = &[
    Need {
        tool: "a C++ compiler",
        found: || ["c++", "g++", "clang++"].iter().any(|name| succeeds(name, &["--version"])),
        debian: &["g++"],
        brew: &["llvm"],
        termux: &["clang"],
    },
    Need {
        tool: "make",
        found: || succeeds("make", &["--version"]),
        debian: &["make"],
        brew: &["make"],
        termux: &["make"],
    },
    Need {
        tool: "cmake",
        found: || succeeds("cmake", &["--version"]),
        debian: &["cmake"],
        brew: &["cmake"],
        termux: &["cmake"],
    },
    Need {
        tool: "libclang",
        found: has_libclang,
        debian: &["clang", "libclang-dev"],
        brew: &["llvm"],
        termux: &["clang"],
    },
    Need {
        tool: "pkg-config",
        found: || succeeds("pkg-config", &["--version"]),
        debian: &["pkg-config"],
        brew: &["pkgconf"],
        termux: &["pkg-config"],
    },
    Need {
        tool: "Python's pip",
        found: || succeeds("python3", &["-m", "pip", "--version"]),
        debian: &["python3", "python3-pip"],
        brew: &["python"],
        termux: &["python", "python-pip"],
    },
    Need {
        tool: "Python's venv",
        found: || succeeds("python3", &["-m", "ensurepip", "--version"]),
        debian: &["python3-venv"],
        brew: &["python"],
        termux: &["python"],
    },
];

/// What only the lab needs.
#[cfg(feature = "lab")]
const NETWORK_NEEDS: &[Need] = &[
    Need {
        tool: "ip",
        found: || succeeds("ip", &["-Version"]),
        debian: &["iproute2"],
        brew: &[],
        termux: &["iproute2"],
    },
    Need {
        tool: "nsenter",
        found: || succeeds("nsenter", &["--version"]),
        debian: &["util-linux"],
        brew: &[],
        termux: &["util-linux"],
    },
];

/// What only the tests on a software GPU need.
const VULKAN_NEEDS: &[Need] = &[
    Need {
        tool: "Vulkan's loader and headers",
        found: || Path::new("/usr/include/vulkan/vulkan.hpp").exists(),
        debian: &["libvulkan-dev"],
        brew: &[],
        termux: &[],
    },
    Need {
        tool: "glslc",
        found: || succeeds("glslc", &["--version"]),
        debian: &["glslc"],
        brew: &[],
        termux: &[],
    },
    Need {
        tool: "SPIR-V's headers",
        found: || Path::new("/usr/include/spirv/unified1/spirv.hpp").exists(),
        debian: &["spirv-headers"],
        brew: &[],
        termux: &[],
    },
    Need {
        tool: "Mesa's software Vulkan",
        found: || crate::vulkan::software_driver().is_some(),
        debian: &["mesa-vulkan-drivers"],
        brew: &[],
        termux: &[],
    },
];

/// Makes sure that every tool is there, or fails with the command that would bring it.
pub(crate) fn run(workplace: &Workplace) -> Result<Outcome> {
    if missing(NEEDS).is_empty() {
        eprintln!("   every tool is there; building in {}", workplace.target.display());
    }
    provide(workplace, NEEDS)?;
    Ok(Outcome::Passed)
}

/// The same for the tools of the lab.
#[cfg(feature = "lab")]
pub(crate) fn network_tools(workplace: &Workplace) -> Result<()> {
    provide(workplace, NETWORK_NEEDS)
}

/// The same for the tests on a software GPU, where they can be had without a question: they are
/// few, and no other build needs these tools.
pub(crate) fn vulkan_tools(workplace: &Workplace) -> Result<bool> {
    let may_install = || matches!(System::here(), System::Debian) && administrator().is_some();
    if !missing(VULKAN_NEEDS).is_empty() && !may_install() {
        return Ok(false);
    }
    provide(workplace, VULKAN_NEEDS)?;
    Ok(true)
}

fn provide(workplace: &Workplace, needs: &'static [Need]) -> Result<()> {
    let missing = missing(needs);
    if missing.is_empty() {
        return Ok(());
    }
    let tools: Vec<&str> = missing.iter().map(|need| need.tool).collect();
    eprintln!("   missing: {}", tools.join(", "));
    let system = System::here();
    let packages = system.packages(&missing);
    match (system, administrator()) {
        (System::Debian, Some(prefix)) => install(workplace, &prefix, &packages)?,
        _ => bail!("{}", system.instruction(&packages)),
    }
    let still: Vec<&str> = self::missing(needs).iter().map(|need| need.tool).collect();
    if !still.is_empty() {
        bail!(
            "the packages are installed, but {} cannot be found; is PATH complete?",
            still.join(", ")
        );
    }
    Ok(())
}

fn missing(needs: &'static [Need]) -> Vec<&'static Need> {
    needs.iter().filter(|need| !(need.found)()).collect()
}

#[derive(Clone, Copy)]
enum System {
    Debian,
    MacOs,
    Termux,
    Other,
}

impl System {
    fn here() -> Self {
        if env::var_os("TERMUX_VERSION").is_some() {
            Self::Termux
        } else if cfg!(target_os = "macos") {
            Self::MacOs
        } else if Path::new("/etc/debian_version").exists() {
            Self::Debian
        } else {
            Self::Other
        }
    }

    fn packages(self, needs: &[&Need]) -> Vec<&'static str> {
        let mut packages: Vec<&str> = needs
            .iter()
            .flat_map(|need| match self {
                Self::Debian | Self::Other => need.debian,
                Self::MacOs => need.brew,
                Self::Termux => need.termux,
            })
            .copied()
            .collect();
        packages.sort_unstable();
        packages.dedup();
        packages
    }

    fn instruction(self, packages: &[&str]) -> String {
        let list = packages.join(" ");
        let command = match self {
            Self::Debian => {
                format!("`sudo apt-get update && sudo apt-get install --yes {list}`")
            }
            Self::MacOs => format!("`xcode-select --install` and `brew install {list}`"),
            Self::Termux => format!("`pkg install {list}`"),
            Self::Other => {
                return format!(
                    "install with your package manager what Debian calls {list}, then start this again"
                );
            }
        };
        format!("run {command}, then start this again")
    }
}

/// The words before a command that make it run as administrator, if that works without a question.
fn administrator() -> Option<Vec<&'static str>> {
    let mut id = Command::new("id");
    id.arg("-u");
    let user = process::capture(id, Duration::from_secs(10)).ok()?;
    if user.trim_ascii() == b"0" {
        Some(Vec::new())
    } else if succeeds("sudo", &["-n", "true"]) {
        Some(vec!["sudo", "-n"])
    } else {
        None
    }
}

fn install(workplace: &Workplace, prefix: &[&str], packages: &[&str]) -> Result<()> {
    let instruction = System::Debian.instruction(packages);
    let log = workplace.logs.join("apt.log");
    let update = ["apt-get", "--quiet", "update"];
    let install = ["apt-get", "--quiet", "--yes", "--no-install-recommends", "install"];
    let list = packages.join(" ");
    for (label, words, extra, minutes) in [
        ("reading Debian's package lists".to_owned(), &update[..], &[][..], 5),
        (format!("installing {list}"), &install[..], packages, 20),
    ] {
        eprintln!("   {label}");
        // Another package manager may hold the lock for a while on a machine that just started.
        let fixed = ["env", "DEBIAN_FRONTEND=noninteractive"];
        let options = ["-o", "DPkg::Lock::Timeout=120"];
        let mut all = [prefix, &fixed, words, &options, extra].concat().into_iter();
        let mut command = Command::new(all.next().unwrap_or_default());
        command.args(all);
        let limit = Duration::from_secs(minutes * 60);
        let job = Job { label: &label, limit, hint: &instruction };
        process::log(command, &log, &job, String::new)?;
    }
    Ok(())
}

/// Whether bindgen will find the library it loads at run time.
fn has_libclang() -> bool {
    libclang_folders()
        .iter()
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flatten()
        .flatten()
        .any(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let stem = name.starts_with("libclang.") || name.starts_with("libclang-");
            stem && !name.starts_with("libclang-cpp")
                && (name.contains(".so") || name.ends_with(".dylib"))
        })
}

fn libclang_folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        env::var_os("LIBCLANG_PATH").map(PathBuf::from).into_iter().collect();
    let mut config = Command::new("llvm-config");
    config.arg("--libdir");
    if let Ok(folder) = process::capture(config, Duration::from_secs(10)) {
        folders.push(String::from_utf8_lossy(&folder).trim().into());
    }
    folders.extend(env::var_os("PREFIX").map(|prefix| Path::new(&prefix).join("lib")));
    for folder in [
        "/usr/lib",
        "/usr/lib64",
        "/usr/local/lib",
        "/Library/Developer/CommandLineTools/usr/lib",
        "/Applications/Xcode.app/Contents/Developer/Toolchains/XcodeDefault.xctoolchain/usr/lib",
        "/opt/homebrew/opt/llvm/lib",
        "/usr/local/opt/llvm/lib",
    ] {
        folders.push(folder.into());
    }
    // Debian keeps it under the machine's triplet and under each LLVM version.
    let below = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    for folder in below.filter(|path| path.is_dir()) {
        let name = folder.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
        if name.starts_with("llvm") {
            folders.push(folder.join("lib"));
        } else if name.ends_with("-gnu") || name.ends_with("-gnueabihf") {
            folders.push(folder.clone());
        }
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(system: System, tools: &[&str], expected: &str) {
        let needs: Vec<&Need> = NEEDS.iter().filter(|need| tools.contains(&need.tool)).collect();
        assert_eq!(needs.len(), tools.len());
        assert_eq!(system.instruction(&system.packages(&needs)), expected);
    }

    #[test]
    fn whoever_cannot_install_is_told_the_command() {
        check(
            System::Debian,
            &["cmake", "libclang", "Python's pip"],
            "run `sudo apt-get update && sudo apt-get install --yes clang cmake libclang-dev \
             python3 python3-pip`, then start this again",
        );
        check(
            System::MacOs,
            &["a C++ compiler", "libclang"],
            "run `xcode-select --install` and `brew install llvm`, then start this again",
        );
        check(
            System::Termux,
            &["a C++ compiler", "libclang"],
            "run `pkg install clang`, then start this again",
        );
        check(
            System::Other,
            &["make"],
            "install with your package manager what Debian calls make, then start this again",
        );
    }
}
