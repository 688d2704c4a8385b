//! Making the elements of tensors, in parallel and within bounded memory.

use std::io::Write;
use std::ops::Range;
use std::thread;

use motley_ggml::{ElementType, QuantizeError, quantize_rows};

use super::MakeError;
use super::plan::{PlannedTensor, Values};
use crate::sampling::PositionedRandom;

/// Makes tensors one after the other. Each row depends on the seed, the tensor's name and the
/// row's number alone, so that the number of threads changes no byte.
#[derive(Debug)]
pub(super) struct WeightMaker {
    random: PositionedRandom,
    workers: Vec<Worker>,
}

/// Memory of one thread: a few rows, before and after packing.
#[derive(Debug, Default)]
struct Worker {
    values: Vec<f32>,
    packed: Vec<u8>,
}

/// Elements that one thread makes at a time: a megabyte of floats.
const CHUNK_ELEMENTS: u64 = 1 << 18;

impl WeightMaker {
    pub(super) fn new(seed: u64, threads: usize) -> Self {
        let workers = (0..threads.max(1)).map(|_| Worker::default()).collect();
        Self { random: PositionedRandom::new(seed), workers }
    }

    /// Makes one tensor and writes its bytes.
    pub(super) fn write(
        &mut self,
        tensor: &PlannedTensor,
        out: &mut impl Write,
    ) -> Result<(), MakeError> {
        let random = PositionedRandom::new(self.random.bits(hash(&tensor.name), 0));
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
                    .map(|(worker, rows)| scope.spawn(move || worker.make(tensor, random, rows)))
                    .collect();
                handles
                    .into_iter()
                    .map(|handle| handle.join().expect("it does not panic"))
                    .collect()
            });
            made.map_err(|source| MakeError::Quantise { name: tensor.name.clone(), source })?;
            for worker in &self.workers {
                out.write_all(&worker.packed)?;
            }
        }
        Ok(())
    }
}

impl Worker {
    fn make(
        &mut self,
        tensor: &PlannedTensor,
        random: PositionedRandom,
        rows: Range<u64>,
    ) -> Result<(), QuantizeError> {
        self.values.clear();
        self.packed.clear();
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
    use super::*;

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
