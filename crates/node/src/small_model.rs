//! The smallest real model, for tests.
#![expect(clippy::print_stdout, reason = "tests say what they skip")]

use std::path::PathBuf;

use motley_engine::Model;

/// The model, or nothing, with a message, where it is not here.
pub(crate) fn small_model() -> Option<Model> {
    let name = "SmolLM2-135M-Instruct.Q4_1.gguf";
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
    let folder = std::env::var_os("MOTLEY_MODELS")
        .map_or_else(|| home().join(".cache/motley/models"), PathBuf::from);
    let path = folder.join(name);
    if !path.exists() {
        println!("skipped: {name} is not here; `cargo xtask models` fetches it");
        return None;
    }
    Some(Model::open(&path).expect("the model that was fetched is whole"))
}
