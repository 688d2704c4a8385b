//! `motley show`: what a model file says, layer by layer, and what its use needs.

use std::fmt::Write as _;
use std::path::PathBuf;

use motley_engine::Model;
use motley_ggml::MappedFile;
use motley_model::{Gguf, LayerShape, ModelDirectory, Value, split_paths};
use serde_json::{Map, Value as Json, json};

use crate::failure::{Failure, one_line};
use crate::loading;
use crate::memory::{self, Duty, Needed, Usage};
use crate::run::CacheTypes;
use crate::store;
use crate::terminal::{self, Table, bytes};

/// Characters of a metadata value that a table shows.
const VALUE_CHARACTERS_MAX: usize = 60;

/// Elements of an array that JSON repeats; longer ones are described.
const ARRAY_ELEMENTS_MAX: usize = 64;

/// Arguments of `motley show`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// A GGUF file, or the name of a model in the folder of models
    model: String,
    /// Folder of models
    #[arg(long, value_name = "DIR")]
    models: Option<PathBuf>,
    /// Tokens of context per slot; 0 for all that the model knows [default: up to 4096]
    #[arg(short = 'c', long = "ctx-size", value_name = "N")]
    context: Option<u64>,
    /// Sequences at once (-np)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=4096))]
    parallel: u64,
    /// Tokens computed at once (-ub)
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..=8192))]
    ubatch_size: u64,
    #[command(flatten)]
    cache: CacheTypes,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(arguments: &Arguments) -> Result<(), Failure> {
    let folder = store::folder(arguments.models.clone());
    let path = store::resolve(&arguments.model, folder.as_deref())?;
    let model = Model::open(&path).map_err(loading::open_failure)?;
    let file = MappedFile::open(&split_paths(&path)[0])?;
    let gguf = Gguf::parse(file.bytes(), file.bytes().len() as u64)?;
    let directory = model.directory();
    let usage = Usage {
        duty: Duty::Forms,
        slots: arguments.parallel,
        batch_rows: arguments.ubatch_size,
        cache: arguments.cache.element(),
    };
    let trained = directory.hyper.context_length;
    let context = match arguments.context {
        None => trained.min(loading::CONTEXT_TOKENS_DEFAULT),
        Some(0) => trained,
        Some(asked) => asked,
    };
    let needed = memory::needed(directory, &usage, context)?;
    if arguments.json {
        return Ok(terminal::print_json(&document(&model, &gguf, &usage, &needed))?);
    }
    let mut text = summary(&model);
    text.push_str("\nmetadata\n");
    text.push_str(&metadata_table(&gguf));
    text.push_str("\nlayers\n");
    text.push_str(&layer_table(directory, &needed));
    text.push_str("\nmemory\n");
    text.push_str(&memory_table(&usage, &needed));
    Ok(terminal::print(&text)?)
}

fn summary(model: &Model) -> String {
    let directory = model.directory();
    let (hyper, description) = (&directory.hyper, &directory.description);
    let elements: u64 = directory.tensors().map(|tensor| tensor.elements()).sum();
    let mut text = String::new();
    let mut line = |label: &str, value: String| {
        let _ = writeln!(text, "{label:<15}{value}");
    };
    line("model", one_line(description.name.as_deref().unwrap_or("(without a name)")));
    line("file", format!("{} ({})", model.path().display(), bytes(model.file_bytes())));
    line("architecture", hyper.architecture.to_string());
    line("parameters", parameters(elements));
    let types = description.file_type.unwrap_or(description.dominant_type.name());
    line("quantisation", types.to_owned());
    line("context", format!("{} tokens", hyper.context_length));
    line("embedding", hyper.embedding_length.to_string());
    line("vocabulary", format!("{} tokens", hyper.vocabulary_size));
    if let Some(experts) = hyper.experts {
        line("experts", format!("{} in each layer, {} used", experts.count, experts.used));
    }
    if let Some(window) = hyper.sliding_window {
        line("window", format!("{window} tokens in sliding layers"));
    }
    let template = if description.chat_template.is_some() { "in the file" } else { "ChatML" };
    line("chat template", template.to_owned());
    text
}

/// A number of parameters as models are named by.
fn parameters(count: u64) -> String {
    match count {
        1_000_000_000.. => format!("{:.2} B", count as f64 / 1e9),
        1_000_000.. => format!("{:.0} M", count as f64 / 1e6),
        _ => count.to_string(),
    }
}

fn metadata_table(gguf: &Gguf<'_>) -> String {
    let mut table = Table::new(["key", "value"]);
    for (key, value) in gguf.metadata() {
        table.row([one_line(key), described(value)]);
    }
    table.render()
}

/// A value on one line of limited length.
fn described(value: &Value<'_>) -> String {
    if let Some(array) = value.as_array() {
        let element = format!("{:?}", array.element_type()).to_lowercase();
        return format!("[{} x {element}]", array.len());
    }
    let text = match (value.as_str(), value.as_bool()) {
        (Some(text), _) => one_line(text),
        (None, Some(truth)) => truth.to_string(),
        (None, None) => number(value).to_string(),
    };
    if text.chars().count() <= VALUE_CHARACTERS_MAX {
        return text;
    }
    let shown: String = text.chars().take(VALUE_CHARACTERS_MAX).collect();
    format!("{shown}... ({} characters)", text.chars().count())
}

fn number(value: &Value<'_>) -> Json {
    if let Value::F32(number) = value
        && let Ok(number) = number.to_string().parse::<f64>()
        && number.is_finite()
    {
        return json!(number);
    }
    match (value.as_u64(), value.as_i64(), value.as_f64()) {
        (Some(number), _, _) => json!(number),
        (None, Some(number), _) => json!(number),
        // A 32-bit float keeps its own digits; JSON has no infinity.
        (None, None, Some(number)) if number.is_finite() => json!(number),
        (None, None, Some(number)) => json!(number.to_string()),
        (None, None, None) => Json::Null,
    }
}

/// One row for each run of layers that are alike.
fn layer_table(directory: &ModelDirectory, needed: &Needed) -> String {
    let mut table = Table::new([
        "layers",
        "types",
        "weights",
        "cache",
        "MFLOP/token",
        "heads",
        "kv heads",
        "ffn",
        "window",
    ]);
    let cells = |layer: usize| -> [String; 8] {
        let shape: &LayerShape = &directory.hyper.layers[layer];
        let flops = directory.layer_flops_per_token(layer, needed.context_tokens);
        [
            types(directory, layer),
            bytes(needed.model.layer_weights_bytes[layer]),
            bytes(needed.model.layer_cache_bytes[layer]),
            format!("{:.1}", flops as f64 / 1e6),
            shape.head_count.to_string(),
            shape.head_count_kv.to_string(),
            shape.feed_forward_length.to_string(),
            shape.window_tokens.map_or("-".to_owned(), |window| window.to_string()),
        ]
    };
    let mut first = 0;
    while first < directory.layers.len() {
        let alike = cells(first);
        let after = (first + 1..directory.layers.len())
            .find(|layer| cells(*layer) != alike)
            .unwrap_or(directory.layers.len());
        let name =
            if after == first + 1 { first.to_string() } else { format!("{first}-{}", after - 1) };
        table.row([name].into_iter().chain(alike));
        first = after;
    }
    let outside =
        |name: &str, types: &str, weights: u64| [name.to_owned(), types.to_owned(), bytes(weights)];
    table.row(outside(
        "embed",
        directory.embedding.tensor_type.name(),
        needed.model.embedding_bytes,
    ));
    let head = directory.output.as_ref().map_or("tied", |output| output.tensor_type.name());
    table.row(outside("head", head, needed.model.head_bytes));
    table.render()
}

/// Types of a layer's matrices, the most frequent first.
fn types(directory: &ModelDirectory, layer: usize) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for matrix in directory.layers[layer].matrices() {
        let name = matrix.tensor_type.name();
        match counts.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => counts.push((name, 1)),
        }
    }
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts.into_iter().map(|(name, _)| name).collect::<Vec<_>>().join("+")
}

fn memory_table(usage: &Usage, needed: &Needed) -> String {
    let mut table = Table::new(["for", "bytes"]);
    table.row(["weights".to_owned(), bytes(needed.model.weights_bytes)]);
    let cache = format!(
        "cache, {} slot{} of {} tokens",
        usage.slots,
        if usage.slots == 1 { "" } else { "s" },
        needed.context_tokens
    );
    table.row([cache, bytes(needed.model.cache_bytes)]);
    table.row(["computation, at most".to_owned(), bytes(needed.compute_bytes)]);
    table.row(["the program, at most".to_owned(), bytes(needed.program_bytes)]);
    table.row(["together".to_owned(), bytes(needed.total_bytes())]);
    table.render()
}

fn document(model: &Model, gguf: &Gguf<'_>, usage: &Usage, needed: &Needed) -> Json {
    let directory = model.directory();
    let (hyper, description) = (&directory.hyper, &directory.description);
    let metadata: Map<String, Json> =
        gguf.metadata().iter().map(|(key, value)| ((*key).to_owned(), json_of(value))).collect();
    json!({
        "name": description.name,
        "path": model.path(),
        "file_bytes": model.file_bytes(),
        "architecture": hyper.architecture.name(),
        "parameters": directory.tensors().map(|tensor| tensor.elements()).sum::<u64>(),
        "file_type": description.file_type,
        "dominant_type": description.dominant_type.name(),
        "context_length": hyper.context_length,
        "embedding_length": hyper.embedding_length,
        "vocabulary_size": hyper.vocabulary_size,
        "sliding_window": hyper.sliding_window,
        "experts": hyper.experts.map(|of| json!({ "count": of.count, "used": of.used })),
        "tied_embeddings": hyper.tied_embeddings,
        "has_chat_template": description.chat_template.is_some(),
        "metadata": metadata,
        "layers": (0..directory.layers.len())
            .map(|layer| layer_json(directory, needed, layer))
            .collect::<Vec<_>>(),
        "embedding_bytes": needed.model.embedding_bytes,
        "head_bytes": needed.model.head_bytes,
        "head_flops_per_token": directory.head_flops_per_token(),
        "memory": {
            "context_tokens": needed.context_tokens,
            "slots": usage.slots,
            "batch_rows": usage.batch_rows,
            "weights_bytes": needed.model.weights_bytes,
            "cache_bytes": needed.model.cache_bytes,
            "compute_bytes_at_most": needed.compute_bytes,
            "program_bytes_at_most": needed.program_bytes,
            "total_bytes": needed.total_bytes(),
        },
    })
}

fn layer_json(directory: &ModelDirectory, needed: &Needed, layer: usize) -> Json {
    let shape = &directory.hyper.layers[layer];
    let tensors: Vec<Json> = directory.layers[layer]
        .tensors()
        .map(|tensor| {
            json!({
                "name": tensor.name,
                "type": tensor.tensor_type.name(),
                "shape": tensor.shape[..tensor.dimensions],
                "bytes": tensor.bytes,
            })
        })
        .collect();
    json!({
        "weights_bytes": needed.model.layer_weights_bytes[layer],
        "cache_bytes": needed.model.layer_cache_bytes[layer],
        "flops_per_token": directory.layer_flops_per_token(layer, needed.context_tokens),
        "heads": shape.head_count,
        "kv_heads": shape.head_count_kv,
        "feed_forward_length": shape.feed_forward_length,
        "window_tokens": shape.window_tokens,
        "tensors": tensors,
    })
}

fn json_of(value: &Value<'_>) -> Json {
    if let Some(array) = value.as_array() {
        if array.len() > ARRAY_ELEMENTS_MAX {
            let element = format!("{:?}", array.element_type()).to_lowercase();
            return json!({ "length": array.len(), "element": element });
        }
        return Json::Array(array.iter().map(|element| json_of(&element)).collect());
    }
    match (value.as_str(), value.as_bool()) {
        (Some(text), _) => json!(text),
        (None, Some(truth)) => json!(truth),
        (None, None) => number(value),
    }
}
