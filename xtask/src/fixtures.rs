//! Made models: every architecture in every number format, and the larger one that benchmarks use.
//! The program itself makes them; this is the list.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::cache::Workplace;
use crate::models::SMOLLM2;
use crate::process::{self, Job};
use crate::{demo, setup};

const ARCHITECTURES: [&str; 4] = ["llama", "qwen2", "qwen3", "gemma3"];
const TYPES: [&str; 7] = ["F32", "F16", "Q8_0", "Q4_0", "Q4_1", "Q4_K_M", "Q6_K"];

/// Four blocks, large enough for blocks of 256 elements.
const SMALL: &str = "--blocks 4 --embedding 256 --ffn 512 --heads 4 --kv-heads 2";

/// For benchmarks: Llama 3.2's shape at a billion parameters, a smaller one in 8 bits, and one that is
/// larger than what labs give.
const LARGE: [(&str, &str); 3] = [
    ("llama-1b-q4_0", "--preset llama-3.2-1b-q4_0"),
    (
        "llama-350m-q8_0",
        "--arch llama --blocks 16 --embedding 1024 --ffn 4096 --heads 16 --kv-heads 8 --type Q8_0",
    ),
    (
        "llama-3b-q4_0",
        "--arch llama --blocks 48 --embedding 2048 --ffn 8192 --heads 32 --kv-heads 8 --type Q4_0",
    ),
];

struct Fixture {
    name: String,
    arguments: String,
}

/// The command `fixtures`: lists made models, or makes those whose names begin with a given word.
pub(crate) fn run(workplace: &Workplace, words: &[String]) -> Result<()> {
    let folder = workplace.models.join("made");
    let all = all();
    if words.is_empty() {
        for fixture in &all {
            let here = if path(&folder, fixture).exists() { "here" } else { "not made" };
            println!("{:16} {here:9} motley make-model {}", fixture.name, fixture.arguments);
        }
        println!("folder: {}", folder.display());
        return Ok(());
    }
    let wanted = |fixture: &&Fixture| words.iter().any(|word| fixture.name.starts_with(word));
    let chosen: Vec<&Fixture> = all.iter().filter(wanted).collect();
    if chosen.is_empty() {
        bail!("no made model's name begins so; `cargo xtask fixtures` lists them");
    }
    setup::run(workplace)?;
    demo::build(workplace)?;
    SMOLLM2.fetch(workplace)?;
    std::fs::create_dir_all(&folder)?;
    chosen.into_iter().try_for_each(|fixture| make(workplace, &folder, fixture))
}

fn all() -> Vec<Fixture> {
    let small = ARCHITECTURES.iter().flat_map(|architecture| {
        TYPES.iter().map(move |number_format| Fixture {
            name: format!("{architecture}-{}", number_format.to_lowercase()),
            arguments: format!("--arch {architecture} {SMALL} --type {number_format}"),
        })
    });
    let large = LARGE.iter().map(|(name, arguments)| Fixture {
        name: (*name).to_owned(),
        arguments: (*arguments).to_owned(),
    });
    small.chain(large).collect()
}

/// Random weights follow from the seed, so that a file which is there is the right one.
fn make(workplace: &Workplace, folder: &Path, fixture: &Fixture) -> Result<()> {
    let file = path(folder, fixture);
    if file.exists() {
        eprintln!("   {} is in the cache", fixture.name);
        return Ok(());
    }
    // Appears under its name only once it is whole.
    let partial = file.with_extension("partial");
    let mut motley = Command::new(workplace.target.join("release").join("motley"));
    motley.arg("make-model").args(fixture.arguments.split(' '));
    motley.arg("--vocabulary-from").arg(SMOLLM2.path(workplace)).arg("--out").arg(&partial);
    let hint = "is the disk full?";
    let job = Job { label: &fixture.name, limit: Duration::from_secs(20 * 60), hint };
    process::show(motley, &job)?;
    std::fs::rename(partial, file)?;
    Ok(())
}

fn path(folder: &Path, fixture: &Fixture) -> PathBuf {
    folder.join(format!("{}.gguf", fixture.name))
}
