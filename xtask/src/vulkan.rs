//! The tests of layers in GPUs, on Mesa's software Vulkan, which needs no GPU.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::cache::Workplace;
use crate::process::{self, Job};
use crate::setup;
use crate::steps::Outcome;

/// Runs the engine's tests of GPUs where the tools for ggml's Vulkan back-end are or can be had.
/// That back-end lies in the common target folder beside the ordinary build, of which it shares
/// nothing; its shaders take minutes to compile once.
pub(crate) fn run(workplace: &Workplace) -> Result<Outcome> {
    if !setup::vulkan_tools(workplace)? {
        return Ok(Outcome::Skipped(
            "the tools of Vulkan are not here; CONTRIBUTING.md names them",
        ));
    }
    let Some(driver) = software_driver() else {
        return Ok(Outcome::Skipped("Mesa's software Vulkan is not here"));
    };
    let mut cargo = workplace.cargo(&["test", "--package", "motley-engine", "--release"]);
    cargo.args(["--locked", "--features", "vulkan", "--test", "gpus"]);
    // One test at a time: each driver thread of the software device takes a core.
    cargo.args(["--", "--test-threads", "1"]);
    cargo.env("MOTLEY_MODELS", &workplace.models);
    if let Some(headers) = newer_headers(workplace)? {
        cargo.env("VULKAN_SDK", headers);
    }
    cargo.env("VK_ICD_FILENAMES", &driver).env("VK_DRIVER_FILES", &driver);
    // ggml leaves out devices that are processors unless they are named.
    cargo.env("GGML_VK_VISIBLE_DEVICES", "0");
    // Set where tests must not pass by skipping.
    cargo.env("MOTLEY_TEST_GPU", "1");
    let limit = Duration::from_secs(40 * 60);
    process::show(cargo, &Job { label: "tests on a software GPU", limit, hint: "see above" })?;
    Ok(Outcome::Passed)
}

/// Where Mesa describes its driver that computes on the processor.
pub(crate) fn software_driver() -> Option<PathBuf> {
    let folder = Path::new("/usr/share/vulkan/icd.d");
    let entries = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|end| end == "json")).find(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("lvp_icd"))
    })
}

/// A type that ggml uses and the headers of Debian 12 lack.
const NEWEST_TYPE: &str = "LayerSettingEXT";

/// The suite of Debian whose headers are new enough.
const SUITE: &str = "trixie";

/// A folder with newer headers than the system's, where those are too old: from the next Debian's
/// package, checked against Debian's own signature, and unpacked into the cache alone.
fn newer_headers(workplace: &Workplace) -> Result<Option<PathBuf>> {
    let has_type = |include: &Path| {
        let text = fs::read_to_string(include.join("vulkan/vulkan_structs.hpp"));
        text.is_ok_and(|text| text.contains(NEWEST_TYPE))
    };
    if has_type(Path::new("/usr/include")) {
        return Ok(None);
    }
    let folder = workplace.tools.join(format!("vulkan-headers-{SUITE}"));
    if !has_type(&folder.join("include")) {
        fetch(workplace, &folder).context("cannot fetch newer Vulkan headers")?;
        ensure!(has_type(&folder.join("include")), "the package has no {NEWEST_TYPE} either");
    }
    Ok(Some(folder))
}

fn fetch(workplace: &Workplace, folder: &Path) -> Result<()> {
    let work = folder.join("work");
    for below in ["lists/partial", "cache/archives/partial", "unpacked"] {
        fs::create_dir_all(work.join(below))?;
    }
    let list = work.join("sources.list");
    let keys = "/usr/share/keyrings/debian-archive-keyring.gpg";
    let source = format!("deb [signed-by={keys}] http://deb.debian.org/debian {SUITE} main\n");
    fs::write(&list, source)?;
    let options = [
        format!("Dir::Etc::SourceList={}", list.display()),
        "Dir::Etc::SourceParts=-".to_owned(),
        format!("Dir::State::Lists={}", work.join("lists").display()),
        format!("Dir::Cache={}", work.join("cache").display()),
        // The lists of one source, and nothing of programs with icons.
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
    ];
    let log = workplace.logs.join("vulkan-headers.log");
    let job = |label| Job {
        label,
        limit: Duration::from_secs(5 * 60),
        hint: "is deb.debian.org reachable?",
    };
    for words in [&["update"][..], &["download", "libvulkan-dev"][..]] {
        let mut apt = Command::new("apt-get");
        apt.arg("--quiet").args(options.iter().flat_map(|option| ["-o", option]));
        apt.args(words).current_dir(&work);
        process::log(apt, &log, &job("newer Vulkan headers"), String::new)?;
    }
    let package = fs::read_dir(&work)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|end| end == "deb"))
        .context("apt-get left no package")?;
    let mut unpack = Command::new("dpkg-deb");
    unpack.arg("--extract").arg(package).arg(work.join("unpacked"));
    process::log(unpack, &log, &job("unpacking Vulkan headers"), String::new)?;
    let include = folder.join("include");
    if include.exists() {
        fs::remove_dir_all(&include)?;
    }
    fs::rename(work.join("unpacked/usr/include"), include)?;
    // The linker is told of it, and finds the library where the system keeps it.
    fs::create_dir_all(folder.join("lib"))?;
    Ok(fs::remove_dir_all(work)?)
}
