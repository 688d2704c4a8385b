//! From a model file's directory to the planner's profile of it.

use std::collections::BTreeMap;
use std::path::Path;

use motley_cluster::{
    Attention, Bytes, Experts, Flops, FormatVersion, LayerSpec, ModelProfile, ModelSpec, WeightType,
};
use motley_engine::Model;
use motley_model::{ModelDirectory, TensorInfo};

use crate::failure::{Failure, Kind};
use crate::loading;

/// Hidden states travel between devices as 32-bit floats.
const ACTIVATION_ELEMENT_BYTES: u32 = 4;

/// The profile of a GGUF file.
///
/// # Errors
/// When it is no model that can be run, or has a type of weights that no device profile knows.
pub(super) fn of_file(path: &Path) -> Result<ModelProfile, Failure> {
    let model = Model::open(path).map_err(loading::open_failure)?;
    of_directory(model.directory(), &model_name(path))
}

/// The name that the profile of a file has.
pub(crate) fn model_name(path: &Path) -> String {
    profile_name(
        &path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().to_string()),
    )
}

/// The profile of a model that is open, under this name.
///
/// # Errors
/// When it has a type of weights that no device profile knows.
pub(crate) fn of_directory(
    directory: &ModelDirectory,
    name: &str,
) -> Result<ModelProfile, Failure> {
    let hyper = &directory.hyper;
    let widest = |part: fn(&motley_model::LayerShape) -> usize| {
        let most = hyper.layers.iter().map(part).max().unwrap_or(1);
        u32::try_from(most)
    };
    let head = directory.head_matrix();
    let layers = (0..directory.layers.len()).map(|layer| layer_spec(directory, layer));
    let spec = ModelSpec {
        version: FormatVersion::default(),
        name: name.to_owned(),
        embedding_width: u32::try_from(hyper.embedding_length)?,
        heads: widest(|layer| layer.head_count)?,
        kv_heads: widest(|layer| layer.head_count_kv)?,
        head_width: u32::try_from(hyper.key_length)?,
        feed_forward_width: widest(|layer| layer.feed_forward_length)?,
        vocabulary: u32::try_from(hyper.vocabulary_size)?,
        experts: experts(directory)?,
        activation_element_bytes: ACTIVATION_ELEMENT_BYTES,
        embedding_bytes: Bytes::new(directory.embedding_bytes()),
        output_bytes: Bytes::new(directory.head_bytes()),
        tied: hyper.tied_embeddings,
        output_flops: BTreeMap::from([(weight_type(head)?, flops(2 * head.elements())?)]),
        layers: layers.collect::<Result<_, Failure>>()?,
    };
    Ok(ModelProfile::new(spec)?)
}

fn experts(directory: &ModelDirectory) -> Result<Option<Experts>, Failure> {
    let Some(experts) = directory.hyper.experts else { return Ok(None) };
    let (count, used) = (u32::try_from(experts.count)?, u32::try_from(experts.used)?);
    Ok(Some(Experts { count, used }))
}

fn layer_spec(directory: &ModelDirectory, index: usize) -> Result<LayerSpec, Failure> {
    let hyper = &directory.hyper;
    let (tensors, shape) = (&directory.layers[index], &hyper.layers[index]);
    let mut work: BTreeMap<WeightType, u64> = BTreeMap::new();
    let used = hyper.experts.map_or(0, |experts| experts.used);
    for (matrix, elements) in tensors.products(used) {
        *work.entry(weight_type(matrix)?).or_default() += 2 * elements;
    }
    let mut matmul_flops = BTreeMap::new();
    for (weight, count) in work {
        matmul_flops.insert(weight, flops(count)?);
    }
    let attention = match shape.window_tokens {
        Some(window) => Attention::Sliding { window_tokens: u32::try_from(window)? },
        None => Attention::Full,
    };
    let rows = hyper.key_row_elements(shape) + hyper.value_row_elements(shape);
    let per_context_token = 4 * shape.head_count as u64 * hyper.key_length as u64;
    Ok(LayerSpec {
        dense_bytes: Bytes::new(tensors.dense_bytes()),
        expert_bytes: Bytes::new(tensors.expert_bytes()),
        attention,
        kv_elements_per_token: rows,
        matmul_flops,
        attention_flops_per_context_token: flops(per_context_token)?,
    })
}

fn flops(count: u64) -> Result<Flops, Failure> {
    Ok(Flops::new(count as f64)?)
}

fn weight_type(matrix: &TensorInfo) -> Result<WeightType, Failure> {
    let name = matrix.tensor_type.name();
    let found = WeightType::ALL.iter().find(|known| known.label().eq_ignore_ascii_case(name));
    found.copied().ok_or_else(|| {
        let error =
            anyhow::anyhow!("{} is {name}, which no device profile has a rate for", matrix.name);
        Failure::new(Kind::Refused, error)
    })
}

/// A file's name as a profile may be called: other characters become `-`.
pub(crate) fn profile_name(stem: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || " ._-+():".contains(c);
    let safe: String = stem.chars().map(|c| if plain(c) { c } else { '-' }).take(128).collect();
    if safe.is_empty() { "model".to_owned() } else { safe }
}
