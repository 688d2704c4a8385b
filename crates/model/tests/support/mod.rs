//! Tiny models of every architecture, to be bent by the tests.

#![expect(clippy::disallowed_methods, reason = "tests read files")]
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::path::PathBuf;

use motley_model::{Architecture, Gguf, GgufWriter, TensorType, Value};

/// A metadata value that owns its data.
#[derive(Debug, Clone)]
pub(crate) enum Setting {
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Text(&'static str),
    Strings(Vec<&'static str>),
    U32s(Vec<u32>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    Bools(Vec<bool>),
}

/// A file before it is written.
#[derive(Debug, Clone)]
pub(crate) struct Blueprint {
    pub(crate) settings: Vec<(String, Setting)>,
    pub(crate) tensors: Vec<(String, Vec<u64>, TensorType)>,
}

pub(crate) const EMBEDDING: u64 = 64;
pub(crate) const FEED_FORWARD: u64 = 96;
pub(crate) const HEADS: u64 = 4;
pub(crate) const KV_HEADS: u64 = 2;
pub(crate) const HEAD: u64 = 16;
pub(crate) const VOCABULARY: u64 = 6;
pub(crate) const EXPERTS: u64 = 5;
pub(crate) const EXPERTS_USED: u64 = 2;

impl Blueprint {
    /// A model of seven layers: one more than the period of Gemma's windows.
    pub(crate) fn new(architecture: Architecture) -> Self {
        const LAYERS: u32 = 7;
        let mut blueprint = Self { settings: Vec::new(), tensors: Vec::new() };
        blueprint.set("general.architecture", Setting::Text(architecture.name()));
        blueprint.set("general.name", Setting::Text("Tiny"));
        blueprint.set("general.file_type", Setting::U32(15));
        blueprint.set("tokenizer.ggml.model", Setting::Text("gpt2"));
        let tokens = ["a", "b", "c", "ab", "<s>", "</s>"];
        blueprint.set("tokenizer.ggml.tokens", Setting::Strings(tokens.to_vec()));
        blueprint.set("tokenizer.ggml.token_type", Setting::I32s(vec![1, 1, 1, 1, 3, 3]));
        blueprint.set("tokenizer.ggml.merges", Setting::Strings(vec!["a b"]));
        blueprint.set("tokenizer.ggml.bos_token_id", Setting::U32(4));
        blueprint.set("tokenizer.ggml.eos_token_id", Setting::U32(5));
        blueprint.set("tokenizer.chat_template", Setting::Text("{{ messages[0].content }}"));
        for (suffix, number) in [
            ("block_count", u64::from(LAYERS)),
            ("context_length", 512),
            ("embedding_length", EMBEDDING),
            ("feed_forward_length", FEED_FORWARD),
            ("attention.head_count", HEADS),
            ("attention.head_count_kv", KV_HEADS),
        ] {
            let number = u32::try_from(number).expect("small");
            blueprint.set(&format!("{architecture}.{suffix}"), Setting::U32(number));
        }
        let epsilon = format!("{architecture}.attention.layer_norm_rms_epsilon");
        blueprint.set(&epsilon, Setting::F32(1e-6));
        if architecture == Architecture::Gemma3 {
            blueprint.set("gemma3.attention.sliding_window", Setting::U32(32));
        }
        if architecture == Architecture::Qwen3Moe {
            // Of one expert; the length of a whole network is not used then.
            blueprint.set("qwen3moe.expert_feed_forward_length", Setting::U32(FEED_FORWARD as u32));
            blueprint.set("qwen3moe.feed_forward_length", Setting::U32(7));
            blueprint.set("qwen3moe.expert_count", Setting::U32(EXPERTS as u32));
            blueprint.set("qwen3moe.expert_used_count", Setting::U32(EXPERTS_USED as u32));
        }
        blueprint.tensor("token_embd.weight", &[EMBEDDING, VOCABULARY], TensorType::Q8_0);
        blueprint.tensor("output_norm.weight", &[EMBEDDING], TensorType::F32);
        (0..LAYERS).for_each(|layer| blueprint.layer(architecture, layer));
        blueprint
    }

    fn layer(&mut self, architecture: Architecture, layer: u32) {
        let mut vector = |part: &str, length: u64| {
            self.tensor(&format!("blk.{layer}.{part}"), &[length], TensorType::F32);
        };
        vector("attn_norm.weight", EMBEDDING);
        vector("ffn_norm.weight", EMBEDDING);
        match architecture {
            Architecture::Llama => {}
            Architecture::Qwen2 => {
                vector("attn_q.bias", HEADS * HEAD);
                vector("attn_k.bias", KV_HEADS * HEAD);
                vector("attn_v.bias", KV_HEADS * HEAD);
            }
            Architecture::Qwen3 | Architecture::Qwen3Moe => {
                vector("attn_q_norm.weight", HEAD);
                vector("attn_k_norm.weight", HEAD);
            }
            Architecture::Gemma3 => {
                vector("attn_q_norm.weight", HEAD);
                vector("attn_k_norm.weight", HEAD);
                vector("post_attention_norm.weight", EMBEDDING);
                vector("post_ffw_norm.weight", EMBEDDING);
            }
        }
        for (part, columns, rows) in [
            ("attn_q", EMBEDDING, HEADS * HEAD),
            ("attn_k", EMBEDDING, KV_HEADS * HEAD),
            ("attn_v", EMBEDDING, KV_HEADS * HEAD),
            ("attn_output", HEADS * HEAD, EMBEDDING),
        ] {
            self.tensor(&format!("blk.{layer}.{part}.weight"), &[columns, rows], TensorType::Q4_0);
        }
        self.feed_forward(architecture == Architecture::Qwen3Moe, layer);
    }

    /// The feed-forward network of a layer, with or without experts.
    pub(crate) fn feed_forward(&mut self, experts: bool, layer: u32) {
        for (part, columns, rows) in [
            ("gate", EMBEDDING, FEED_FORWARD),
            ("up", EMBEDDING, FEED_FORWARD),
            ("down", FEED_FORWARD, EMBEDDING),
        ] {
            let name = format!("blk.{layer}.ffn_{part}");
            self.remove(&format!("{name}.weight"));
            if experts {
                let shape = [columns, rows, EXPERTS];
                self.tensor(&format!("{name}_exps.weight"), &shape, TensorType::Q4_0);
            } else {
                self.tensor(&format!("{name}.weight"), &[columns, rows], TensorType::Q4_0);
            }
        }
        if experts {
            let router = format!("blk.{layer}.ffn_gate_inp.weight");
            self.tensor(&router, &[EMBEDDING, EXPERTS], TensorType::F32);
        }
    }

    /// Sets a key anew or for the first time.
    pub(crate) fn set(&mut self, key: &str, setting: Setting) -> &mut Self {
        self.unset(key);
        self.settings.push((key.to_owned(), setting));
        self
    }

    pub(crate) fn unset(&mut self, key: &str) -> &mut Self {
        self.settings.retain(|(known, _)| known != key);
        self
    }

    pub(crate) fn tensor(&mut self, name: &str, shape: &[u64], tensor_type: TensorType) {
        self.remove(name);
        self.tensors.push((name.to_owned(), shape.to_vec(), tensor_type));
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.tensors.retain(|(known, ..)| known != name);
    }

    /// The file; every byte of a tensor's data is the number of the tensor.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        use std::io::Write;
        let mut writer = GgufWriter::new();
        for (key, setting) in &self.settings {
            put(&mut writer, key, setting);
        }
        for (name, shape, tensor_type) in &self.tensors {
            writer.tensor(name, shape, *tensor_type).expect("a tensor that can be written");
        }
        let mut out = writer.begin(Vec::new()).expect("a vector takes everything");
        for (index, (_, shape, tensor_type)) in self.tensors.iter().enumerate() {
            let rows: u64 = shape[1..].iter().product();
            let bytes = tensor_type.row_bytes(shape[0]).expect("whole blocks") * rows;
            let fill = u8::try_from(index % 251).expect("below 251");
            let data = vec![fill; usize::try_from(bytes).expect("small")];
            out.write_all(&data).expect("a vector takes everything");
        }
        out.finish().expect("all tensors are written")
    }
}

fn put(writer: &mut GgufWriter, key: &str, setting: &Setting) {
    use motley_model::MetadataValue;
    let value = match setting {
        Setting::U32(number) => (*number).into(),
        Setting::I32(number) => (*number).into(),
        Setting::F32(number) => (*number).into(),
        Setting::Bool(flag) => (*flag).into(),
        Setting::Text(text) => Value::String(text).into(),
        Setting::Strings(texts) => MetadataValue::Strings(texts),
        Setting::U32s(numbers) => MetadataValue::U32s(numbers),
        Setting::I32s(numbers) => MetadataValue::I32s(numbers),
        Setting::F32s(numbers) => MetadataValue::F32s(numbers),
        Setting::Bools(flags) => MetadataValue::Bools(flags),
    };
    writer.metadata(key, value).expect("a pair that can be written");
}

/// Parses a whole file.
pub(crate) fn parse(bytes: &[u8]) -> Result<Gguf<'_>, motley_model::GgufError> {
    Gguf::parse(bytes, u64::try_from(bytes.len()).expect("64 bits"))
}

/// The folder of the broken files that were made for this project.
pub(crate) fn malformed_folder() -> PathBuf {
    PathBuf::from("tests/fixtures/gguf_malformed")
}

/// One line of the manifest of broken files.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) file: String,
    pub(crate) expect: String,
    pub(crate) bytes: Vec<u8>,
}

/// All broken files with what is to become of them.
pub(crate) fn malformed() -> Vec<Case> {
    let folder = malformed_folder();
    let manifest = std::fs::read(folder.join("manifest.jsonl")).expect("the manifest");
    let lines = serde_json::Deserializer::from_slice(&manifest).into_iter::<serde_json::Value>();
    lines
        .map(|line| {
            let line = line.expect("one object per line");
            let text = |key: &str| line[key].as_str().expect("a text").to_owned();
            let file = text("file");
            let bytes = std::fs::read(folder.join(&file)).expect("a file of the manifest");
            Case { file, expect: text("expect"), bytes }
        })
        .collect()
}
