//! Which layout of a weight matrix multiplies faster here: as stored, or interleaved.
//!
//! ggml's interleaved layouts win or lose by factors depending on type, processor and number of
//! rows, so that the choice is measured on the model's own matrices when it is loaded.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use motley_ggml::{
    Backend, BufferKind, ComputeBuffer, DeviceKind, ElementType, Graph, MappedFile, TensorError,
    TensorId, TensorSet, TensorSpec, devices,
};
use motley_model::{ModelDirectory, TensorInfo};

use crate::layer_set::LayerSet;
use crate::weights::{bytes_of, element};

/// How a matrix is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// As in the file.
    Plain,
    /// Interleaved only.
    Packed,
    /// Both: interleaved for products of up to this many rows, as in the file for more.
    PackedUpTo(usize),
}

impl Layout {
    pub(crate) fn packs(self, rows: usize) -> bool {
        match self {
            Self::Plain => false,
            Self::Packed => true,
            Self::PackedUpTo(most) => rows <= most,
        }
    }
}

/// The choice for every element type of a model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layouts {
    memory: Option<BufferKind>,
    by_type: Vec<(ElementType, Layout)>,
}

/// Row counts at which layouts are compared: one sequence, small batches, a prompt.
const ROWS: [usize; 4] = [1, 8, 32, 256];

/// A layout must be this much faster to be worth a copy of the weights.
const GAIN_MIN: f64 = 1.03;

/// Bytes of a matrix that are enough to measure with.
const SAMPLE_BYTES: usize = 4 << 20;

impl Layouts {
    /// Everything as in the file.
    pub(crate) fn plain() -> Self {
        Self::default()
    }

    /// Measures each element type that the processor has an interleaved layout for.
    pub(crate) fn measure(
        backend: &mut Backend,
        files: &[Arc<MappedFile>],
        directory: &ModelDirectory,
    ) -> Result<Self, TensorError> {
        let mut layouts = Self::default();
        let candidates = backend.device().weight_layouts();
        let matrices = directory.layers.iter().flat_map(|layer| layer.matrices());
        let matrices = matrices.filter(|tensor| !is_of_experts(tensor));
        for tensor in matrices.chain([directory.head_matrix()]) {
            let element = element(tensor);
            if layouts.by_type.iter().any(|(known, _)| *known == element) {
                continue;
            }
            let Some(memory) = candidates.iter().find(|memory| holds(memory, tensor)) else {
                continue;
            };
            let sample = Sample::new(&files[tensor.file_index], tensor);
            let layout = sample.compare(backend, *memory)?;
            layouts.by_type.push((element, layout));
            layouts.memory = Some(*memory);
        }
        Ok(layouts)
    }

    /// Memory for interleaved copies, if any type wants them.
    pub(crate) fn packed_memory(&self) -> Option<BufferKind> {
        self.memory.filter(|_| self.by_type.iter().any(|(_, layout)| *layout != Layout::Plain))
    }

    /// The layout of one matrix.
    pub(crate) fn of(&self, tensor: &TensorInfo) -> Layout {
        // Experts stay as they are: reading chosen ones needs their order in the file.
        let held =
            !is_of_experts(tensor) && self.memory.is_some_and(|memory| holds(&memory, tensor));
        self.by_type
            .iter()
            .find(|(known, _)| held && *known == element(tensor))
            .map_or(Layout::Plain, |(_, layout)| *layout)
    }

    /// Every type with a choice.
    pub(crate) fn choices(&self) -> &[(ElementType, Layout)] {
        &self.by_type
    }
}

/// Whether the tensor has a matrix for each of several experts.
fn is_of_experts(tensor: &TensorInfo) -> bool {
    tensor.shape[2] > 1
}

/// Bytes of interleaved copies at most: of every matrix of these layers, and of the head, that the
/// processor has such a layout for.
///
/// # Panics
/// When the model has no such layer.
pub fn interleaved_bytes_max(directory: &ModelDirectory, layers: &LayerSet, head: bool) -> u64 {
    let processors = devices().into_iter().filter(|device| device.kind() == DeviceKind::Cpu);
    let memories: Vec<BufferKind> = processors.flat_map(|it| it.weight_layouts()).collect();
    let matrices = layers.iter().flat_map(|layer| directory.layers[layer].matrices());
    let interleaved = matrices
        .chain(head.then(|| directory.head_matrix()))
        .filter(|tensor| !is_of_experts(tensor))
        .filter(|tensor| memories.iter().any(|memory| holds(memory, tensor)));
    interleaved.map(|tensor| tensor.bytes).sum()
}

fn holds(memory: &BufferKind, tensor: &TensorInfo) -> bool {
    let (Ok(columns), Ok(rows)) =
        (usize::try_from(tensor.shape[0]), usize::try_from(tensor.shape[1]))
    else {
        return false;
    };
    memory.holds_matrix(element(tensor), columns, rows)
}

/// Some rows of a matrix of the model.
struct Sample<'f> {
    bytes: &'f [u8],
    spec: TensorSpec,
}

impl<'f> Sample<'f> {
    fn new(file: &'f MappedFile, tensor: &TensorInfo) -> Self {
        let bytes = bytes_of(file, tensor);
        let rows = usize::try_from(tensor.shape[1]).expect("a matrix in memory");
        let row_bytes = bytes.len() / rows;
        // Interleaving works on groups of at most 16 rows.
        let kept = (SAMPLE_BYTES / row_bytes / 16 * 16).clamp(16, rows.max(16)).min(rows);
        let spec = TensorSpec {
            name: "sample".to_owned(),
            element: element(tensor),
            shape: [tensor.shape[0], kept as u64, 1, 1],
        };
        Self { bytes: &bytes[..kept * row_bytes], spec }
    }

    fn compare(&self, backend: &mut Backend, memory: BufferKind) -> Result<Layout, TensorError> {
        let plain = self.stored(backend.device().memory())?;
        let packed = self.stored(memory)?;
        // The most rows for which the interleaved layout wins, and all counts below.
        let mut best_up_to = None;
        for rows in ROWS {
            let (plain, packed) =
                (self.fastest(backend, &plain, rows), self.fastest(backend, &packed, rows));
            if plain.as_secs_f64() < packed.as_secs_f64() * GAIN_MIN {
                break;
            }
            best_up_to = Some(rows);
        }
        Ok(match best_up_to {
            None => Layout::Plain,
            Some(rows) if rows == ROWS[ROWS.len() - 1] => Layout::Packed,
            Some(rows) => Layout::PackedUpTo(rows),
        })
    }

    fn stored(&self, memory: BufferKind) -> Result<(Rc<TensorSet>, TensorId), TensorError> {
        let set = TensorSet::allocate(memory, std::slice::from_ref(&self.spec))?;
        let id = set.ids().next().expect("one tensor was declared");
        set.write(id, 0, self.bytes)?;
        Ok((set, id))
    }

    /// The shortest of a few runs: everything that disturbs a run makes it longer.
    fn fastest(
        &self,
        backend: &mut Backend,
        (set, id): &(Rc<TensorSet>, TensorId),
        rows: usize,
    ) -> Duration {
        const RUNS: usize = 5;
        let columns = usize::try_from(self.spec.shape[0]).expect("a matrix in memory");
        let (mut graph, input) = Graph::build(8, |builder| {
            let (x, input) = builder.input(ElementType::F32, [columns, rows, 1, 1]);
            builder.output(builder.mul_mat(builder.stored(set, *id), x));
            input
        });
        let mut memory = ComputeBuffer::new(backend);
        if memory.allocate(&mut graph).is_err() {
            return Duration::MAX;
        }
        graph.write(input, &vec![0.5_f32; columns * rows]);
        (0..RUNS)
            .map(|_| {
                let start = Instant::now();
                match backend.compute(&graph) {
                    Ok(()) => start.elapsed(),
                    Err(_) => Duration::MAX,
                }
            })
            .min()
            .expect("at least one run")
    }
}
