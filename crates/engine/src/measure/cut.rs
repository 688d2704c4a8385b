//! A few layers of a model that stand for all of them, with made-up weights.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use motley_ggml::{MappedFile, TensorSet};
use motley_model::{LayerShape, LayerTensors, ModelDirectory, TensorInfo};

use super::MeasureError;
use super::fill::Filler;
use crate::model::Model;
use crate::weights::element;

/// Weights of layers that are enough: more than most last-level caches hold, so that a pass over
/// them reads memory as a pass over the whole model does.
const LAYERS_BYTES_ENOUGH: u64 = 384 << 20;

/// Different layers of one class of attention that are told apart; mixes of many types are
/// grouped by the nearest size.
const KINDS_MAX: usize = 4;

/// Equal layers of a cut model, and what they stand for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Kind {
    /// A layer of the model like them.
    pub(super) source: usize,
    pub(super) sliding: bool,
    /// Where they are in the cut model.
    pub(super) layers: Range<usize>,
    /// How many times one of them must be counted for all layers that it stands for: their
    /// number, weighed by bytes where they are not quite equal.
    pub(super) stands_for: f64,
}

/// Memory that a cut model may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Weights, keys and values together.
    pub(super) bytes: u64,
    /// Cells of the cache in all slots together.
    pub(super) cells: u64,
    /// Bytes of one element of the cache, at most.
    pub(super) cell_element_bytes: u64,
    /// Whether the head is to be there.
    pub(super) head: bool,
}

/// Chooses layers of every kind in the model's proportions, as many as are enough and fit.
pub(super) fn choose(directory: &ModelDirectory, room: Room) -> Result<Vec<Kind>, MeasureError> {
    let mut kinds = kinds(directory);
    let layer_bytes = |layer: usize| {
        let shape = &directory.hyper.layers[layer];
        let row =
            directory.hyper.key_row_elements(shape) + directory.hyper.value_row_elements(shape);
        directory.layer_bytes(layer) + row * room.cells * room.cell_element_bytes
    };
    let mut needed = if room.head { directory.head_bytes() } else { 0 };
    needed += kinds.iter().map(|(kind, _)| layer_bytes(kind.source)).sum::<u64>();
    if needed > room.bytes {
        return Err(MeasureError::Room { needed_bytes: needed, allowed_bytes: room.bytes });
    }
    let weights = |kind: &Kind| directory.layer_bytes(kind.source);
    let mut chosen = vec![1; kinds.len()];
    let mut held: u64 = kinds.iter().map(|(kind, _)| weights(kind)).sum();
    while held < LAYERS_BYTES_ENOUGH {
        // The kind of which the cut model has the smallest share of the model's layers.
        let next = (0..kinds.len()).filter(|at| chosen[*at] < kinds[*at].1).min_by(|a, b| {
            let share = |at: usize| chosen[at] as f64 / kinds[at].1 as f64;
            share(*a).total_cmp(&share(*b))
        });
        let Some(next) = next else { break };
        needed += layer_bytes(kinds[next].0.source);
        if needed > room.bytes {
            break;
        }
        chosen[next] += 1;
        held += weights(&kinds[next].0);
    }
    let mut end = 0;
    for ((kind, _), count) in kinds.iter_mut().zip(&chosen) {
        kind.layers = end..end + count;
        end += count;
    }
    Ok(kinds.into_iter().map(|(kind, _)| kind).collect())
}

/// Kinds of layers, those that see everything first, with the number of layers of each.
fn kinds(directory: &ModelDirectory) -> Vec<(Kind, usize)> {
    let layers = || 0..directory.layers.len();
    let sliding = |layer: usize| directory.hyper.layers[layer].window_tokens.is_some();
    let signature =
        |layer: usize| signature(&directory.hyper.layers[layer], &directory.layers[layer]);
    let mut kept: Vec<(Kind, usize)> = Vec::new();
    for class in [false, true] {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for layer in layers().filter(|layer| sliding(*layer) == class) {
            match groups.iter_mut().find(|group| signature(group[0]) == signature(layer)) {
                Some(group) => group.push(layer),
                None => groups.push(vec![layer]),
            }
        }
        groups.sort_by_key(|group| std::cmp::Reverse(group.len()));
        let rest = groups.split_off(groups.len().min(KINDS_MAX));
        let bytes = |layer: usize| directory.layer_bytes(layer) as f64;
        let mut stands_for: Vec<f64> = groups.iter().map(|group| group.len() as f64).collect();
        for layer in rest.into_iter().flatten() {
            let distance = |group: &Vec<usize>| (bytes(group[0]) - bytes(layer)).abs();
            let nearest = (0..groups.len())
                .min_by(|a, b| distance(&groups[*a]).total_cmp(&distance(&groups[*b])))
                .expect("layers are left over only beside kept groups");
            stands_for[nearest] += bytes(layer) / bytes(groups[nearest][0]);
        }
        kept.extend(groups.iter().zip(stands_for).map(|(group, stands_for)| {
            let kind = Kind { source: group[0], sliding: class, layers: 0..0, stands_for };
            (kind, group.len())
        }));
    }
    kept
}

/// What decides how long a layer takes.
fn signature(shape: &LayerShape, tensors: &LayerTensors) -> impl PartialEq {
    let types: Vec<_> =
        tensors.tensors().map(|tensor| (tensor.shape, tensor.tensor_type)).collect();
    (*shape, types)
}

/// A directory whose tensors lie in one file of made-up weights, in the order of `tensors`.
pub(super) struct Cut {
    pub(super) directory: ModelDirectory,
    /// Whether the head's matrix is among them.
    head: bool,
    file_bytes: u64,
}

impl Cut {
    /// The layers of `kinds`, and the head where it is wanted.
    pub(super) fn new(source: &ModelDirectory, kinds: &[Kind], head: bool) -> Self {
        let mut directory = source.clone();
        let mut end = 0;
        let mut place = |tensor: &mut TensorInfo| {
            tensor.file_index = 0;
            tensor.offset = end;
            end = (end + tensor.bytes).next_multiple_of(TensorSet::FILE_ALIGNMENT);
        };
        directory.layers.clear();
        directory.hyper.layers.clear();
        for kind in kinds {
            for layer in kind.layers.clone() {
                let mut tensors = source.layers[kind.source].clone();
                for_each_mut(&mut tensors, |tensor| {
                    let part = tensor.name.rsplit_once("blk.").map_or("", |(_, rest)| rest);
                    let part = part.split_once('.').map_or(part, |(_, part)| part);
                    tensor.name = format!("blk.{layer}.{part}");
                    place(tensor);
                });
                directory.layers.push(tensors);
                directory.hyper.layers.push(source.hyper.layers[kind.source]);
            }
        }
        directory.hyper.block_count = directory.layers.len();
        let ends = [
            Some(&mut directory.output_norm),
            directory.output_bias.as_mut(),
            directory.rope_frequencies.as_mut(),
        ];
        ends.into_iter().flatten().for_each(&mut place);
        // The head's matrix only; an embedding of its own is never looked up.
        if head {
            place(directory.output.as_mut().unwrap_or(&mut directory.embedding));
        }
        Self { directory, head, file_bytes: end }
    }

    /// Writes the weights into a file of `folder` and opens them. The file vanishes with the model,
    /// on Unix at once.
    pub(super) fn open(self, folder: &Path) -> Result<CutModel, MeasureError> {
        fs::create_dir_all(folder)?;
        let file = Scratch(folder.join(format!(".measure-{}.weights", std::process::id())));
        self.write(&file.0)?;
        let map = MappedFile::open(&file.0)?;
        if cfg!(unix) {
            fs::remove_file(&file.0)?;
        }
        let model = Model::of_parts(file.0.clone(), vec![Arc::new(map)], self.directory);
        Ok(CutModel { model, _file: file })
    }

    fn write(&self, path: &Path) -> Result<(), MeasureError> {
        let mut filler = Filler::default();
        let mut out = Places { out: BufWriter::with_capacity(1 << 20, File::create(path)?), at: 0 };
        let directory = &self.directory;
        let layers = directory.layers.iter().flat_map(LayerTensors::tensors);
        let ends = [
            Some(&directory.output_norm),
            directory.output_bias.as_ref(),
            directory.rope_frequencies.as_ref(),
            self.head.then(|| directory.head_matrix()),
        ];
        for tensor in layers.chain(ends.into_iter().flatten()) {
            out.pad_to(tensor.offset)?;
            if tensor.dimensions == 1 {
                // Norms and divisors of one keep vectors as they are.
                for _ in 0..tensor.elements() {
                    out.write_all(&1.0_f32.to_le_bytes())?;
                }
                continue;
            }
            let columns = usize::try_from(tensor.shape[0]).expect("rows fit memory");
            filler.write((element(tensor), columns), tensor.bytes, &mut out)??;
        }
        out.pad_to(self.file_bytes)?;
        Ok(out.out.flush()?)
    }
}

/// A cut model, open; its file goes with it.
#[derive(Debug)]
pub(super) struct CutModel {
    // Before the file, whose map it holds.
    pub(super) model: Model,
    _file: Scratch,
}

/// A file that is removed with its owner.
#[derive(Debug)]
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // Already gone on Unix; elsewhere nothing can be done about a refusal.
        let _ = fs::remove_file(&self.0);
    }
}

/// An output that knows how far it is.
struct Places<W> {
    out: W,
    at: u64,
}

impl<W: Write> Places<W> {
    fn pad_to(&mut self, offset: u64) -> io::Result<()> {
        let zeros = [0; TensorSet::FILE_ALIGNMENT as usize];
        let gap = usize::try_from(offset - self.at).expect("gaps are shorter than the alignment");
        self.write_all(&zeros[..gap])
    }
}

impl<W: Write> Write for Places<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.at += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Every tensor of a layer, in the order of [`LayerTensors::tensors`].
fn for_each_mut(layer: &mut LayerTensors, change: impl FnMut(&mut TensorInfo)) {
    [
        Some(&mut layer.attention_norm),
        Some(&mut layer.query),
        layer.query_bias.as_mut(),
        Some(&mut layer.key),
        layer.key_bias.as_mut(),
        Some(&mut layer.value),
        layer.value_bias.as_mut(),
        layer.query_norm.as_mut(),
        layer.key_norm.as_mut(),
        Some(&mut layer.attention_output),
        layer.attention_output_bias.as_mut(),
        layer.attention_post_norm.as_mut(),
        Some(&mut layer.feed_forward_norm),
        layer.router.as_mut(),
        Some(&mut layer.gate),
        layer.gate_bias.as_mut(),
        Some(&mut layer.up),
        layer.up_bias.as_mut(),
        Some(&mut layer.down),
        layer.down_bias.as_mut(),
        layer.feed_forward_post_norm.as_mut(),
    ]
    .into_iter()
    .flatten()
    .for_each(change);
}
