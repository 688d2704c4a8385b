//! Which layout of a weight matrix multiplies faster here: as stored, or interleaved.
//!
//! ggml's interleaved layouts win or lose by factors depending on type, processor and number of
//! rows, so that the choice is measured on the model's own matrices when it is first loaded.

use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use motley_ggml::{
    Backend, BufferKind, ComputeBuffer, DeviceKind, ElementType, Graph, MappedFile, TensorError,
    TensorId, TensorSet, TensorSpec, devices,
};
use motley_model::{ModelDirectory, TensorInfo};

use crate::graphs::product;
use crate::layer_set::LayerSet;
use crate::model::Model;
use crate::weights::{bytes_of, element};

/// How a matrix is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// As in the file.
    Plain,
    /// Interleaved only.
    Packed,
    /// Both: interleaved for products of so many rows, as in the file for fewer and for more.
    PackedWithin {
        /// The fewest rows.
        least: usize,
        /// The most rows.
        most: usize,
    },
}

impl Layout {
    pub(crate) fn packs(self, rows: usize) -> bool {
        match self {
            Self::Plain => false,
            Self::Packed => true,
            Self::PackedWithin { least, most } => (least..=most).contains(&rows),
        }
    }
}

/// The faster layout for the matrices of a type, as it was measured on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasuredLayout {
    /// The type, as ggml names it.
    pub element: String,
    /// Compute threads that it was measured with.
    pub threads: usize,
    /// The layout.
    pub layout: Layout,
}

/// What was measured for the types of a model; every engine that is loaded from it goes by that.
#[derive(Debug, Default)]
pub(crate) struct KnownLayouts(Mutex<Vec<MeasuredLayout>>);

impl KnownLayouts {
    /// All that is known.
    pub(crate) fn all(&self) -> Vec<MeasuredLayout> {
        self.lock().clone()
    }

    /// Takes what was measured; what was known before of the same type and threads is kept.
    pub(crate) fn learn(&self, measured: MeasuredLayout) {
        if self.find(&measured.element, measured.threads).is_none() {
            self.lock().push(measured);
        }
    }

    fn find(&self, element: &str, threads: usize) -> Option<Layout> {
        let known = self.lock();
        let found = known.iter().find(|it| it.element == element && it.threads == threads);
        found.map(|measured| measured.layout)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<MeasuredLayout>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Bytes of a matrix that are enough to measure products of several rows with: they compute.
const SAMPLE_BYTES: usize = 4 << 20;

/// Products of one row wait for memory. They are measured with a sixteenth of what a type has in the
/// model, up to this much, which is more than the caches of cores hold.
const STREAM_BYTES_MAX: usize = 64 << 20;
const STREAM_PART: u64 = 16;

impl Layouts {
    /// Everything as in the file.
    pub(crate) fn plain() -> Self {
        Self::default()
    }

    /// Measures each element type that the processor has an interleaved layout for, unless it was
    /// measured before.
    pub(crate) fn measure(backend: &mut Backend, model: &Model) -> Result<Self, TensorError> {
        let (directory, known) = (model.directory(), model.known_layouts());
        let threads = backend.threads().expect("the processor has threads");
        let mut layouts = Self::default();
        let candidates = backend.device().weight_layouts();
        let matrices = directory.layers.iter().flat_map(|layer| layer.matrices());
        let matrices = matrices.filter(|tensor| !is_of_experts(tensor));
        let matrices: Vec<&TensorInfo> = matrices.chain([directory.head_matrix()]).collect();
        for tensor in &matrices {
            let element = element(tensor);
            if layouts.by_type.iter().any(|(known, _)| *known == element) {
                continue;
            }
            let Some(memory) = candidates.iter().find(|memory| holds(memory, tensor)) else {
                continue;
            };
            let layout = match known.find(element.name(), threads) {
                Some(layout) => layout,
                None => {
                    let alike: Vec<_> =
                        matrices.iter().copied().filter(|other| is_alike(other, tensor)).collect();
                    compare(&samples(model.files(), &alike), backend, *memory)?
                }
            };
            let element_name = element.name().to_owned();
            known.learn(MeasuredLayout { element: element_name, threads, layout });
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

/// Whether rows of both can stand in one matrix.
fn is_alike(one: &TensorInfo, other: &TensorInfo) -> bool {
    element(one) == element(other) && one.shape[0] == other.shape[0]
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

/// Rows of some matrices of the model, as one matrix.
struct Sample {
    bytes: Vec<u8>,
    spec: TensorSpec,
}

/// What the layouts of matrices that are alike are compared with: a sample for the first of [`ROWS`],
/// and one for the others.
fn samples(files: &[Arc<MappedFile>], alike: &[&TensorInfo]) -> [(usize, Sample); 2] {
    let type_bytes: u64 = alike.iter().map(|tensor| tensor.bytes).sum();
    let streamed = usize::try_from(type_bytes / STREAM_PART).unwrap_or(usize::MAX);
    let streamed = streamed.clamp(SAMPLE_BYTES, STREAM_BYTES_MAX);
    let sample = |bytes| Sample::new(files, alike, bytes);
    [(1, sample(streamed)), (ROWS.len() - 1, sample(SAMPLE_BYTES))]
}

/// Measures both layouts: for each of [`ROWS`] with the sample that is given for so many of them.
fn compare(
    samples: &[(usize, Sample)],
    backend: &mut Backend,
    memory: BufferKind,
) -> Result<Layout, TensorError> {
    let mut wins = Vec::with_capacity(ROWS.len());
    for (counts, sample) in samples {
        let plain = sample.stored(backend.device().memory())?;
        let packed = sample.stored(memory)?;
        for rows in ROWS[wins.len()..].iter().take(*counts) {
            let (plain, packed) =
                (sample.fastest(backend, &plain, *rows), sample.fastest(backend, &packed, *rows));
            wins.push(plain.as_secs_f64() >= packed.as_secs_f64() * GAIN_MIN);
        }
    }
    Ok(layout(&wins))
}

/// The layout that follows from where interleaving wins: one range of rows, the longest.
fn layout(wins: &[bool]) -> Layout {
    let (mut best, mut first) = (0..0, 0);
    for end in 1..=wins.len() {
        if !wins[end - 1] {
            first = end;
        } else if end - first > best.len() {
            best = first..end;
        }
    }
    if best.is_empty() {
        return Layout::Plain;
    }
    let least = if best.start == 0 { 0 } else { ROWS[best.start] };
    let most = if best.end == wins.len() { usize::MAX } else { ROWS[best.end - 1] };
    match (least, most) {
        (0, usize::MAX) => Layout::Packed,
        (least, most) => Layout::PackedWithin { least, most },
    }
}

impl Sample {
    /// About so many bytes of rows, from as many of `tensors`, which are alike, as it takes.
    fn new(files: &[Arc<MappedFile>], tensors: &[&TensorInfo], most: usize) -> Self {
        let mut sample = Vec::new();
        let (mut kind, mut rows_total) = (None, 0);
        for tensor in tensors {
            let bytes = bytes_of(&files[tensor.file_index], tensor);
            let rows = usize::try_from(tensor.shape[1]).expect("a matrix in memory");
            let row_bytes = bytes.len() / rows;
            let wanted = most.saturating_sub(sample.len()) / row_bytes;
            // Interleaving works on groups of at most 16 rows.
            let kept = if wanted < rows { wanted / 16 * 16 } else { rows };
            let kept = if kind.is_none() { kept.max(16).min(rows) } else { kept };
            if kept == 0 {
                break;
            }
            sample.extend_from_slice(&bytes[..kept * row_bytes]);
            rows_total += kept as u64;
            kind.get_or_insert((element(tensor), tensor.shape[0]));
        }
        let (element, columns) = kind.expect("a tensor is like itself");
        let shape = [columns, rows_total, 1, 1];
        Self { bytes: sample, spec: TensorSpec { name: "sample".to_owned(), element, shape } }
    }

    fn stored(&self, memory: BufferKind) -> Result<(Rc<TensorSet>, TensorId), TensorError> {
        let set = TensorSet::allocate(memory, std::slice::from_ref(&self.spec))?;
        let id = set.ids().next().expect("one tensor was declared");
        set.write(id, 0, &self.bytes)?;
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
            builder.output(product(builder, set, *id, x));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_of_rows_is_interleaved() {
        let (yes, no) = (true, false);
        assert_eq!(layout(&[yes; 4]), Layout::Packed);
        assert_eq!(layout(&[no; 4]), Layout::Plain);
        let within = |least, most| Layout::PackedWithin { least, most };
        assert_eq!(layout(&[yes, yes, no, no]), within(0, 8));
        assert_eq!(layout(&[no, yes, yes, yes]), within(8, usize::MAX));
        assert_eq!(layout(&[yes, no, yes, yes]), within(32, usize::MAX));
        assert_eq!(layout(&[yes, no, yes, no]), within(0, 1));
        assert!(within(0, 8).packs(1) && !within(0, 8).packs(9) && !within(8, 32).packs(7));
    }
}
