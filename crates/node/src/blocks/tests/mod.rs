//! A made model goes in blocks from one folder to another, with every kind of trouble on the way.

mod fetching;
mod locals;
mod manifests;
mod real;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use motley_model::{GgufWriter, MetadataValue, ModelDirectory, TensorType, Value};
use tempfile::TempDir;

use super::fetch::FetchError;
use super::layout::{bytes_of, tensors};
use super::manifest::{ManifestError, ManifestFormatError, encoded_bytes};
use super::partial::PartialError;
use super::*;

const LAYERS: u32 = 8;
const EMBEDDING: u64 = 256;
const FEED_FORWARD: u64 = 768;
const VOCABULARY: u64 = 300;

/// Small, so that a run of layers has many blocks.
const BLOCK_BYTES: u32 = 4096;

/// A Llama of eight layers with weights that no two blocks share.
fn model_bytes() -> Vec<u8> {
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", Value::String("llama")).unwrap();
    for (key, number) in [
        ("block_count", u64::from(LAYERS)),
        ("context_length", 512),
        ("embedding_length", EMBEDDING),
        ("feed_forward_length", FEED_FORWARD),
        ("attention.head_count", 4),
    ] {
        let number = u32::try_from(number).unwrap();
        writer.metadata(&format!("llama.{key}"), number).unwrap();
    }
    writer.metadata("llama.attention.layer_norm_rms_epsilon", 1e-6_f32).unwrap();
    let tokens: Vec<String> = (0..VOCABULARY).map(|token| format!("t{token}")).collect();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    writer.metadata("tokenizer.ggml.model", Value::String("gpt2")).unwrap();
    writer.metadata("tokenizer.ggml.tokens", MetadataValue::Strings(&tokens)).unwrap();
    let shapes = shapes();
    for (name, shape) in &shapes {
        writer.tensor(name, shape, tensor_type(shape)).unwrap();
    }
    let mut out = writer.begin(Vec::new()).unwrap();
    for (name, shape) in &shapes {
        let rows: u64 = shape[1..].iter().product();
        let bytes = tensor_type(shape).row_bytes(shape[0]).unwrap() * rows;
        let mut data = vec![0; usize::try_from(bytes).unwrap()];
        blake3::Hasher::new().update(name.as_bytes()).finalize_xof().fill(&mut data);
        out.write_all(&data).unwrap();
    }
    out.finish().unwrap()
}

fn shapes() -> Vec<(String, Vec<u64>)> {
    let mut shapes = vec![
        ("token_embd.weight".to_owned(), vec![EMBEDDING, VOCABULARY]),
        ("output_norm.weight".to_owned(), vec![EMBEDDING]),
        ("output.weight".to_owned(), vec![EMBEDDING, VOCABULARY]),
    ];
    for layer in 0..LAYERS {
        for (part, shape) in [
            ("attn_norm", vec![EMBEDDING]),
            ("ffn_norm", vec![EMBEDDING]),
            ("attn_q", vec![EMBEDDING, EMBEDDING]),
            ("attn_k", vec![EMBEDDING, EMBEDDING]),
            ("attn_v", vec![EMBEDDING, EMBEDDING]),
            ("attn_output", vec![EMBEDDING, EMBEDDING]),
            ("ffn_gate", vec![EMBEDDING, FEED_FORWARD]),
            ("ffn_up", vec![EMBEDDING, FEED_FORWARD]),
            ("ffn_down", vec![FEED_FORWARD, EMBEDDING]),
        ] {
            shapes.push((format!("blk.{layer}.{part}.weight"), shape));
        }
    }
    shapes
}

fn tensor_type(shape: &[u64]) -> TensorType {
    if shape.len() == 1 { TensorType::F32 } else { TensorType::Q8_0 }
}

/// The model as a file in a folder of its own, with its manifest, and an empty store.
struct Fixture {
    origin: PathBuf,
    bytes: Arc<Vec<u8>>,
    manifest: Arc<Manifest>,
    store: PathBuf,
    _outer: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let outer = tempfile::tempdir().unwrap();
        let origin = outer.path().join("origin.gguf");
        let bytes = model_bytes();
        std::fs::write(&origin, &bytes).unwrap();
        let manifest =
            Manifest::of_files_in(Some(BLOCK_BYTES), std::slice::from_ref(&origin), |_, _| {});
        let store = outer.path().join("store");
        Self {
            origin,
            bytes: Arc::new(bytes),
            manifest: Arc::new(manifest.unwrap()),
            store,
            _outer: outer,
        }
    }

    fn open(&self) -> PartialModel {
        PartialModel::open(&self.store, Arc::clone(&self.manifest), plenty()).unwrap()
    }

    fn source(&self, name: &str) -> MadeSource {
        MadeSource {
            name: name.to_owned(),
            bytes: Arc::clone(&self.bytes),
            manifest: Arc::clone(&self.manifest),
            trouble: Trouble::None,
            given: Arc::new(AtomicUsize::new(0)),
        }
    }

    /// The model's directory, as one learns it from the metadata alone.
    fn directory(&self, model: &mut PartialModel) -> ModelDirectory {
        let source = Box::new(self.source("a"));
        fetch(model, &metadata_blocks(&self.manifest), vec![source], |_| {}).unwrap();
        model.directory().unwrap()
    }

    fn all_blocks(&self) -> BTreeSet<usize> {
        (0..self.manifest.block_count()).collect()
    }
}

fn plenty() -> Disk {
    Disk::with(0, |_| Ok(1 << 40))
}

fn layers(layers: Range<usize>) -> WantedParts {
    WantedParts { layers: vec![layers], embedding: false, head: false }
}

/// What goes wrong at a source.
#[derive(Clone, Copy)]
enum Trouble {
    None,
    /// Every block has one wrong bit.
    Wrong,
    /// After so many blocks it fails.
    FailsAfter(usize),
    /// It lacks this block.
    Lacks(usize),
}

struct MadeSource {
    name: String,
    bytes: Arc<Vec<u8>>,
    manifest: Arc<Manifest>,
    trouble: Trouble,
    given: Arc<AtomicUsize>,
}

impl MadeSource {
    fn with(mut self, trouble: Trouble) -> Self {
        self.trouble = trouble;
        self
    }
}

impl BlockSource for MadeSource {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn fetch(&mut self, index: usize, _next: Option<usize>) -> Result<Vec<u8>, SourceError> {
        let given = self.given.fetch_add(1, Ordering::SeqCst);
        let place = self.manifest.place(index).unwrap();
        let start = usize::try_from(place.offset).unwrap();
        let mut block = self.bytes[start..start + place.bytes].to_vec();
        match self.trouble {
            Trouble::None => {}
            Trouble::Wrong => block[0] ^= 1,
            Trouble::FailsAfter(count) if given >= count => {
                return Err(SourceError::Failed("the cable is out".into()));
            }
            Trouble::FailsAfter(_) => {}
            Trouble::Lacks(lacked) if lacked == index => return Err(SourceError::Missing),
            Trouble::Lacks(_) => {}
        }
        Ok(block)
    }
}

fn read_range(path: &Path, range: Range<u64>) -> Vec<u8> {
    let bytes = std::fs::read(path).unwrap();
    bytes[usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()].to_vec()
}
