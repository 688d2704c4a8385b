//! Rates of the processor: products per type of weight, memory, and what every pass costs.

use std::hint::black_box;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use motley_ggml::{
    Backend, BufferKind, ComputeBuffer, ComputeError, Device, ElementType, Graph, TensorId,
    TensorSet, TensorSpec, ThreadPool, ThreadPoolOptions,
};
use motley_model::TensorType;

use super::fill::Filler;
use super::{MeasureError, lower_quartile};
use crate::graphs::product;

/// Columns of the matrices: whole blocks of every type, and near the width of common models.
const COLUMNS: usize = 2048;

/// Rows of the matrix whose arithmetic is timed; small enough to stay in a cache.
const COMPUTE_ROWS: usize = 2048;

/// Vectors in a product whose arithmetic is timed.
const COMPUTE_VECTORS: usize = 128;

/// Times single operations on the compute threads of an engine, or on a GPU.
#[derive(Debug)]
pub struct ProcessorMeter {
    backend: Backend,
    threads: usize,
    filler: Filler,
}

impl ProcessorMeter {
    /// Starts the threads.
    ///
    /// # Panics
    /// As [`ThreadPool::new`].
    pub fn new(options: ThreadPoolOptions) -> Self {
        let backend = Backend::cpu(ThreadPool::new(options));
        Self { backend, threads: options.threads, filler: Filler::default() }
    }

    /// Starts a GPU, which is measured in the same way.
    ///
    /// # Errors
    /// When its driver refuses.
    ///
    /// # Panics
    /// When the device is the processor.
    pub fn of_gpu(gpu: Device) -> Result<Self, MeasureError> {
        let backend = Backend::start(gpu)?;
        Ok(Self { backend, threads: 1, filler: Filler::default() })
    }

    /// Bytes per second that are copied from memory into the device's, in parts of about `bytes`.
    ///
    /// # Errors
    /// When memory is refused.
    pub fn copy_rate(&mut self, bytes: usize, time: Duration) -> Result<f64, MeasureError> {
        let rows = (bytes / (COLUMNS * size_of::<f32>())).max(1);
        let spec = TensorSpec {
            name: "copied".to_owned(),
            element: ElementType::F32,
            shape: [COLUMNS as u64, rows as u64, 1, 1],
        };
        let set = TensorSet::allocate(self.backend.device().memory(), &[spec])?;
        let id = set.ids().next().expect("one tensor was declared");
        let values = vec![0x3f_u8; set.tensor_bytes(id)];
        let begun = Instant::now();
        let mut times = Vec::new();
        while times.len() < 3 || begun.elapsed() < time {
            let start = Instant::now();
            set.write(id, 0, &values)?;
            times.push(start.elapsed());
        }
        Ok(values.len() as f64 / lower_quartile(&times).as_secs_f64())
    }

    /// Floating-point operations per second, two per weight and vector, of products with many
    /// vectors and weights from the cache, in about `time`: in the faster of the layouts that the
    /// engine chooses from.
    ///
    /// # Errors
    /// When the type cannot be multiplied, or memory is refused.
    pub fn product_rate(
        &mut self,
        tensor_type: TensorType,
        time: Duration,
    ) -> Result<f64, MeasureError> {
        let flops = (2 * COLUMNS * COMPUTE_ROWS * COMPUTE_VECTORS) as f64;
        let took = self.fastest(tensor_type, COMPUTE_ROWS, COMPUTE_VECTORS, time)?;
        Ok(flops / took.as_secs_f64())
    }

    /// Bytes of weights per second in products with one vector, of about `bytes` of weights that
    /// come from memory.
    ///
    /// # Errors
    /// As [`Self::product_rate`].
    pub fn weight_rate(
        &mut self,
        tensor_type: TensorType,
        bytes: usize,
        time: Duration,
    ) -> Result<f64, MeasureError> {
        let row_bytes = element_of(tensor_type)?.row_bytes(COLUMNS).unwrap_or(1);
        // Interleaved layouts work on whole groups of rows.
        let rows = (bytes / row_bytes / 32 * 32).max(COMPUTE_ROWS);
        let took = self.fastest(tensor_type, rows, 1, time)?;
        Ok((rows * row_bytes) as f64 / took.as_secs_f64())
    }

    fn fastest(
        &mut self,
        tensor_type: TensorType,
        rows: usize,
        vectors: usize,
        time: Duration,
    ) -> Result<Duration, MeasureError> {
        let element = element_of(tensor_type)?;
        let mut kinds = vec![self.backend.device().memory()];
        let packed = self.backend.device().weight_layouts();
        kinds.extend(packed.into_iter().find(|memory| memory.holds_matrix(element, COLUMNS, rows)));
        let share = time / kinds.len() as u32;
        let mut fastest = Duration::MAX;
        for kind in kinds {
            let matrix = self.matrix(kind, element, rows)?;
            fastest = fastest.min(self.time_product(&matrix, vectors, share)?);
        }
        Ok(fastest)
    }

    /// Bytes per second that all threads together read from `bytes` of memory.
    pub fn read_rate(&self, bytes: usize, time: Duration) -> f64 {
        let words = (bytes / size_of::<u64>() / self.threads).max(1);
        // Written by the thread that reads it, so that memory is near where there are several.
        let rates: Vec<f64> = thread::scope(|scope| {
            let handles: Vec<_> = (0..self.threads)
                .map(|thread| scope.spawn(move || read_alone(words, thread as u64, time)))
                .collect();
            handles.into_iter().map(|handle| handle.join().expect("readers do not panic")).collect()
        });
        rates.iter().sum()
    }

    /// Time of appending one row of keys and one of values of `row_elements` each to a cache.
    ///
    /// # Errors
    /// When memory is refused.
    pub fn row_copy(
        &mut self,
        row_elements: usize,
        time: Duration,
    ) -> Result<Duration, MeasureError> {
        const ROWS: usize = 256;
        let spec = |name: &str| TensorSpec {
            name: name.to_owned(),
            element: ElementType::F16,
            shape: [row_elements as u64, ROWS as u64, 1, 1],
        };
        let memory = self.backend.device().memory();
        let set = TensorSet::allocate(memory, &[spec("keys"), spec("values")])?;
        let ids: Vec<TensorId> = set.ids().collect();
        let (mut graph, (values, cells)) = Graph::build(16, |builder| {
            let (rows, values) = builder.input(ElementType::F32, [row_elements, ROWS, 1, 1]);
            let (at, cells) = builder.indices(ElementType::I64, ROWS, ROWS);
            for id in &ids {
                builder.expand(builder.set_rows(builder.stored(&set, *id), rows, at));
            }
            (values, cells)
        });
        let mut memory = ComputeBuffer::new(&self.backend);
        memory.allocate(&mut graph)?;
        graph.write(values, &vec![0.5_f32; row_elements * ROWS]);
        graph.write(cells, &(0..ROWS as i64).collect::<Vec<_>>());
        let times = self.repeat(time, |backend| backend.compute(&graph))?;
        Ok(lower_quartile(&times) / ROWS as u32)
    }

    /// Time of the smallest pass: writing an input, waking the threads for one operation, reading
    /// the product.
    ///
    /// # Errors
    /// When memory is refused.
    pub fn pass_overhead(&mut self, time: Duration) -> Result<Duration, MeasureError> {
        let (mut graph, (input, output)) = Graph::build(8, |builder| {
            let (rows, input) = builder.input(ElementType::F32, [COLUMNS, 1, 1, 1]);
            (input, builder.output(builder.rms_norm(rows, 1e-5)))
        });
        let mut memory = ComputeBuffer::new(&self.backend);
        memory.allocate(&mut graph)?;
        let mut values = vec![0.5_f32; COLUMNS];
        let times = self.repeat(time, move |backend| {
            graph.write(input, &values);
            backend.compute(&graph)?;
            graph.read::<f32>(output, &mut values);
            Ok(())
        })?;
        // So short a run is either undisturbed or many times as long.
        Ok(times.into_iter().min().expect("at least three runs"))
    }

    fn matrix(
        &mut self,
        kind: BufferKind,
        element: ElementType,
        rows: usize,
    ) -> Result<Stored, MeasureError> {
        let spec = TensorSpec {
            name: "matrix".to_owned(),
            element,
            shape: [COLUMNS as u64, rows as u64, 1, 1],
        };
        let set = TensorSet::allocate(kind, std::slice::from_ref(&spec))?;
        let id = set.ids().next().expect("one tensor was declared");
        let pattern = self.filler.rows(element, COLUMNS)?;
        let bytes: Vec<u8> = pattern
            .iter()
            .copied()
            .cycle()
            .take(rows * element.row_bytes(COLUMNS).unwrap_or(0))
            .collect();
        set.write(id, 0, &bytes)?;
        Ok(Stored { set, id })
    }

    fn time_product(
        &mut self,
        matrix: &Stored,
        vectors: usize,
        time: Duration,
    ) -> Result<Duration, MeasureError> {
        let (mut graph, input) = Graph::build(8, |builder| {
            let (x, input) = builder.input(ElementType::F32, [COLUMNS, vectors, 1, 1]);
            builder.output(product(builder, &matrix.set, matrix.id, x));
            input
        });
        let mut memory = ComputeBuffer::new(&self.backend);
        memory.allocate(&mut graph)?;
        graph.write(input, &vec![0.5_f32; COLUMNS * vectors]);
        Ok(lower_quartile(&self.repeat(time, |backend| backend.compute(&graph))?))
    }

    /// Runs once untimed, then for about `time` and at least three times.
    fn repeat(
        &mut self,
        time: Duration,
        mut run: impl FnMut(&mut Backend) -> Result<(), ComputeError>,
    ) -> Result<Vec<Duration>, MeasureError> {
        const RUNS_MIN: usize = 3;
        const RUNS_MAX: usize = 1000;
        run(&mut self.backend)?;
        let begun = Instant::now();
        let mut times = Vec::new();
        while times.len() < RUNS_MIN || (begun.elapsed() < time && times.len() < RUNS_MAX) {
            let start = Instant::now();
            run(&mut self.backend)?;
            times.push(start.elapsed());
        }
        Ok(times)
    }
}

fn element_of(tensor_type: TensorType) -> Result<ElementType, MeasureError> {
    ElementType::from_id(tensor_type.id())
        .filter(|element| tensor_type.is_weight() && element.row_bytes(COLUMNS).is_some())
        .ok_or(MeasureError::Type { tensor_type })
}

#[derive(Debug)]
struct Stored {
    set: Rc<TensorSet>,
    id: TensorId,
}

/// Bytes per second of one thread that adds up words of its own memory.
fn read_alone(words: usize, seed: u64, time: Duration) -> f64 {
    let memory: Vec<u64> = (0..words as u64).map(|word| word ^ seed).collect();
    let begun = Instant::now();
    let mut times = Vec::new();
    while times.len() < 3 || begun.elapsed() < time {
        let start = Instant::now();
        black_box(sum(black_box(&memory)));
        times.push(start.elapsed());
    }
    (words * size_of::<u64>()) as f64 / lower_quartile(&times).as_secs_f64()
}

/// The sum of all words, in several lanes so that additions do not wait for each other.
fn sum(words: &[u64]) -> u64 {
    let (blocks, rest) = words.as_chunks::<32>();
    let mut lanes = [0_u64; 32];
    for block in blocks {
        for (lane, word) in lanes.iter_mut().zip(block) {
            *lane = lane.wrapping_add(*word);
        }
    }
    lanes.iter().chain(rest).fold(0, |sum, word| sum.wrapping_add(*word))
}
