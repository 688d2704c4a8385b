//! Which blocks a device needs for its part of a model.

use std::collections::BTreeSet;
use std::ops::Range;

use motley_model::{ModelDirectory, TensorInfo};

use super::manifest::Manifest;

/// The part of a model that a device computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WantedParts {
    /// Runs of layers.
    pub(crate) layers: Vec<Range<usize>>,
    /// Whether it turns tokens into hidden states.
    pub(crate) embedding: bool,
    /// Whether it turns hidden states into logits.
    pub(crate) head: bool,
}

/// Blocks with the metadata of every file: what must be there before the rest can be named.
pub(crate) fn metadata_blocks(manifest: &Manifest) -> BTreeSet<usize> {
    let mut blocks = BTreeSet::new();
    for (file, facts) in manifest.files().iter().enumerate() {
        // A file without metadata does not exist, and its first block holds the header.
        add_range(&mut blocks, manifest, file, 0..facts.metadata_bytes.max(1));
    }
    blocks
}

/// Blocks with the tensors of these parts, in all files. What lies outside the files that the
/// manifest describes, or of layers that the model does not have, is left out.
pub(crate) fn blocks_for(
    manifest: &Manifest,
    directory: &ModelDirectory,
    wanted: &WantedParts,
) -> BTreeSet<usize> {
    let mut blocks = BTreeSet::new();
    for tensor in tensors(directory, wanted) {
        let range = tensor.offset..tensor.offset.saturating_add(tensor.bytes);
        add_range(&mut blocks, manifest, tensor.file_index, range);
    }
    blocks
}

/// Bytes of these blocks.
pub(crate) fn bytes_of(manifest: &Manifest, blocks: &BTreeSet<usize>) -> u64 {
    blocks.iter().filter_map(|&index| manifest.place(index)).map(|place| place.bytes as u64).sum()
}

/// The tensors that an engine with these parts reads.
pub(crate) fn tensors<'d>(
    directory: &'d ModelDirectory,
    wanted: &WantedParts,
) -> Vec<&'d TensorInfo> {
    let mut tensors = Vec::new();
    let layers: BTreeSet<usize> = wanted.layers.iter().cloned().flatten().collect();
    for layer in layers.iter().filter_map(|&layer| directory.layers.get(layer)) {
        tensors.extend(layer.tensors());
    }
    // Engines load it whatever they compute.
    tensors.extend(&directory.rope_frequencies);
    let tied = directory.output.is_none();
    if wanted.embedding || (wanted.head && tied) {
        tensors.push(&directory.embedding);
    }
    if wanted.head {
        tensors.push(&directory.output_norm);
        tensors.extend(&directory.output);
        tensors.extend(&directory.output_bias);
    }
    tensors
}

fn add_range(blocks: &mut BTreeSet<usize>, manifest: &Manifest, file: usize, range: Range<u64>) {
    let Some(facts) = manifest.files().get(file) else { return };
    let block_bytes = u64::from(manifest.block_bytes());
    let first = manifest.first_block(file);
    let end = range.end.min(facts.bytes).div_ceil(block_bytes);
    for block in range.start / block_bytes..end {
        // The number of blocks of a file fits, because their hashes are in memory.
        blocks.extend(usize::try_from(block).map(|block| first + block));
    }
}
