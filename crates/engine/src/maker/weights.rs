//! Making the elements of tensors, in parallel and within bounded memory.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::Write;
use std::ops::Range;
use std::thread;

use motley_ggml::{ElementType, QuantizeError, quantize_rows};
use motley_model::TensorType;

use super::MakeError;
use super::plan::{PlannedTensor, Values};
use crate::sampling::PositionedRandom;

/// Makes tensors one after the other. Each row depends on the seed, the tensor's name and the
/// row's number alone, so that the number of threads changes no byte.
///
/// Packing takes far longer than drawing, most of all into the types with blocks of 256. Matrices
/// with long rows are therefore put together from a pool of packed pieces; short rows would
/// repeat each other and are made element by element.
#[derive(Debug)]
pub(super) struct WeightMaker {
    random: PositionedRandom,
    workers: Vec<Worker>,
    /// Packed pieces by type and bits of the deviation; a model has about ten such pairs.
    pools: BTreeMap<(TensorType, u32), Vec<u8>>,
}

/// Memory of one thread: a few rows, before and after packing.
#[derive(Debug, Default)]
struct Worker {
    values: Vec<f32>,
    packed: Vec<u8>,
}

/// Elements that one thread makes at a time: a megabyte of floats.
const CHUNK_ELEMENTS: u64 = 1 << 18;

/// Elements of a piece; a multiple of every type's block.
const PIECE_ELEMENTS: u64 = 256;

/// Pieces of a pool, a power of two.
const PIECES: u64 = 1 << 12;

/// Pieces of a row from which on it is put together: among a million rows of four pieces, two
/// equal ones are less likely than one in five hundred.
const ROW_PIECES_MIN: u64 = 4;

/// Where a tensor's rows come from.
#[derive(Debug, Clone, Copy)]
enum Source<'a> {
    Elements,
    Pool(&'a [u8]),
}

impl WeightMaker {
    pub(super) fn new(seed: u64, threads: usize) -> Self {
        let workers = (0..threads.max(1)).map(|_| Worker::default()).collect();
        Self { random: PositionedRandom::new(seed), workers, pools: BTreeMap::new() }
    }

    /// Makes one tensor and writes its bytes.
    pub(super) fn write(
        &mut self,
        tensor: &PlannedTensor,
        out: &mut impl Write,
    ) -> Result<(), MakeError> {
        let failed = |source| MakeError::Quantise { name: tensor.name.clone(), source };
        let random = PositionedRandom::new(self.random.bits(hash(&tensor.name), 0));
        let source = source(tensor, self.random, &mut self.pools).map_err(failed)?;
        let rows_per_chunk = (CHUNK_ELEMENTS / tensor.row_elements).max(1);
        let mut begun = 0;
        while begun < tensor.rows {
            let chunks: Vec<Range<u64>> = self
                .workers
                .iter()
                .map(|_| {
                    let start = begun;
                    begun = tensor.rows.min(begun + rows_per_chunk);
                    start..begun
                })
                .collect();
            let made: Result<Vec<()>, QuantizeError> = thread::scope(|scope| {
                let handles: Vec<_> = self
                    .workers
                    .iter_mut()
                    .zip(chunks)
                    .map(|(worker, rows)| {
                        scope.spawn(move || worker.make(tensor, source, random, rows))
                    })
                    .collect();
                handles
                    .into_iter()
                    .map(|handle| handle.join().expect("workers do not panic"))
                    .collect()
            });
            made.map_err(failed)?;
            for worker in &self.workers {
                out.write_all(&worker.packed)?;
            }
        }
        Ok(())
    }
}

/// The pool that the tensor's rows are put together from, made if it is not there yet.
fn source<'p>(
    tensor: &PlannedTensor,
    random: PositionedRandom,
    pools: &'p mut BTreeMap<(TensorType, u32), Vec<u8>>,
) -> Result<Source<'p>, QuantizeError> {
    let Values::Normal { mean: 0.0, deviation } = tensor.values else {
        return Ok(Source::Elements);
    };
    let row_elements = tensor.row_elements;
    if !row_elements.is_multiple_of(PIECE_ELEMENTS)
        || row_elements < ROW_PIECES_MIN * PIECE_ELEMENTS
        || tensor.rows < PIECES / ROW_PIECES_MIN
    {
        return Ok(Source::Elements);
    }
    let key = (tensor.tensor_type, deviation.to_bits());
    match pools.entry(key) {
        Entry::Occupied(pool) => Ok(Source::Pool(pool.into_mut())),
        Entry::Vacant(place) => {
            let random =
                PositionedRandom::new(random.bits(u64::from(key.1), u64::from(key.0.id())));
            Ok(Source::Pool(place.insert(pool(tensor, random)?)))
        }
    }
}

/// Packed pieces with the type and the values of `tensor`.
fn pool(tensor: &PlannedTensor, random: PositionedRandom) -> Result<Vec<u8>, QuantizeError> {
    let pieces = PlannedTensor {
        name: String::new(),
        row_elements: PIECE_ELEMENTS,
        rows: PIECES,
        ..tensor.clone()
    };
    let mut worker = Worker::default();
    worker.make(&pieces, Source::Elements, random, 0..PIECES)?;
    Ok(worker.packed)
}

impl Worker {
    fn make(
        &mut self,
        tensor: &PlannedTensor,
        source: Source<'_>,
        random: PositionedRandom,
        rows: Range<u64>,
    ) -> Result<(), QuantizeError> {
        self.values.clear();
        self.packed.clear();
        if let Source::Pool(pool) = source {
            let piece_bytes = pool.len() / PIECES as usize;
            for row in rows {
                let row_pieces = tensor.row_elements / PIECE_ELEMENTS;
                for bits in random.sequence(row).take(row_pieces as usize) {
                    let start = (bits % PIECES) as usize * piece_bytes;
                    self.packed.extend_from_slice(&pool[start..start + piece_bytes]);
                }
            }
            return Ok(());
        }
        match &tensor.values {
            Values::Exact(values) if !rows.is_empty() => self.values.extend_from_slice(values),
            Values::Exact(_) => {}
            Values::Normal { mean, deviation } => {
                for row in rows {
                    let bits = random.sequence(row).take(tensor.row_elements as usize);
                    self.values.extend(bits.map(|bits| mean + deviation * normal(bits)));
                }
            }
        }
        let element = ElementType::from_id(tensor.tensor_type.id())
            .expect("every type of a mixture is one of ggml's");
        quantize_rows(element, &self.values, tensor.row_elements as usize, &mut self.packed)
    }
}

/// A nearly normal number of mean 0 and deviation 1: the sum of eight uniform bytes.
fn normal(bits: u64) -> f32 {
    // Eight sums of two bytes each in four lanes, then all lanes added up in the highest.
    const EVEN_BYTES: u64 = 0x00ff_00ff_00ff_00ff;
    let pairs = (bits & EVEN_BYTES) + ((bits >> 8) & EVEN_BYTES);
    let sum = pairs.wrapping_mul(0x0001_0001_0001_0001) >> 48;
    // Mean 8 * 127.5, variance 8 * (256^2 - 1) / 12.
    (sum as f32 - 1_020.0) * (1.0 / 209.022_3)
}

/// FNV-1a, which keeps the streams of tensors apart by their names.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use motley_ggml::dequantize_rows;

    use super::*;

    fn rows(threads: usize, tensor_type: TensorType) -> Vec<u8> {
        let tensor = PlannedTensor {
            name: "output.weight".to_owned(),
            row_elements: 1_024,
            rows: 3_000,
            experts: None,
            tensor_type,
            values: Values::Normal { mean: 0.0, deviation: 0.5 },
        };
        let mut maker = WeightMaker::new(9, threads);
        let mut bytes = Vec::new();
        maker.write(&tensor, &mut bytes).expect("memory can be written");
        assert_eq!(maker.pools.len(), 1);
        bytes
    }

    #[test]
    fn rows_put_together_from_a_pool_are_distinct_and_well_scaled() {
        for tensor_type in [TensorType::F16, TensorType::Q4_0, TensorType::Q4_K, TensorType::Q6_K] {
            let bytes = rows(2, tensor_type);
            assert!(bytes == rows(5, tensor_type), "{tensor_type}: threads change bytes");
            let distinct: BTreeSet<&[u8]> = bytes.chunks(bytes.len() / 3_000).collect();
            assert_eq!(distinct.len(), 3_000, "{tensor_type}");
            let element = ElementType::from_id(tensor_type.id()).expect("a type of ggml");
            let mut values = Vec::new();
            dequantize_rows(element, &bytes, 1_024, &mut values).expect("whole rows");
            let count = values.len() as f64;
            let mean = values.iter().map(|&value| f64::from(value)).sum::<f64>() / count;
            let squares = values.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>();
            assert!(mean.abs() < 0.005, "{tensor_type}: mean {mean}");
            let deviation = (squares / count).sqrt();
            assert!((deviation - 0.5).abs() < 0.01, "{tensor_type}: deviation {deviation}");
        }
    }

    #[test]
    fn normal_numbers_have_mean_zero_deviation_one_and_normal_tails() {
        let numbers: Vec<f64> =
            PositionedRandom::new(1).sequence(0).take(200_000).map(|b| normal(b).into()).collect();
        let count = numbers.len() as f64;
        let mean = numbers.iter().sum::<f64>() / count;
        let variance = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
        let beyond_two = numbers.iter().filter(|x| x.abs() > 2.0).count() as f64 / count;
        assert!(mean.abs() < 0.01, "mean {mean}");
        assert!((variance - 1.0).abs() < 0.01, "variance {variance}");
        assert!((beyond_two - 0.0455).abs() < 0.003, "share beyond two deviations {beyond_two}");
        assert_eq!((normal(0), normal(u64::MAX)), (-normal(u64::MAX), normal(u64::MAX)));
    }
}
