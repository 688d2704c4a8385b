//! The kernel itself, for x86-64 with AVX2, and faster with AVX-512 VNNI.

use std::ops::Range;

use llama_cpp_sys_2 as sys;

use super::packed::{self, BLOCK, COLUMNS};

/// A block of Q4_1: scale and minimum as 16-bit floats, then the codes; the low halves of the
/// bytes are the first 16 elements.
pub(super) const Q4_1_BYTES: usize = 4 + BLOCK / 2;

/// Rows of weights that are multiplied at once.
const PAIR: usize = 2;

/// A block of a pair of weight rows, unpacked: both rows' codes, then both scales, both minimums.
const PAIR_BLOCK_BYTES: usize = PAIR * (BLOCK + 8);

/// Room for unpacked weights, on the stack of each thread.
const UNPACKED_BYTES: usize = 96 << 10;

/// Elements of a row at most.
pub(super) const ELEMENTS_MAX: usize = UNPACKED_BYTES / PAIR_BLOCK_BYTES * BLOCK;

/// Unpacked weights that stay in the first cache beside a panel.
const NEAR_BYTES: usize = 32 << 10;

/// Rows of weights that a thread takes at once: as many pairs as stay near, 16 rows at most.
pub(super) fn outputs_of_a_part(elements: usize) -> usize {
    let pair_bytes = elements / BLOCK * PAIR_BLOCK_BYTES;
    PAIR * (NEAR_BYTES / pair_bytes.max(1)).clamp(1, 8)
}

/// A product that threads compute together.
pub(super) struct Product {
    /// `outputs` rows of `elements` in Q4_1.
    pub(super) weights: *const u8,
    /// Panels of `rows` rows of `elements`.
    pub(super) panels: *const u8,
    pub(super) elements: usize,
    pub(super) outputs: usize,
    pub(super) rows: usize,
    /// `rows` rows of `outputs`.
    pub(super) into: *mut f32,
}

/// Multiplies an unpacked pair of weight rows with a panel: pair, panel, blocks, and 8 products of
/// the first row, then of the second.
type Multiply = unsafe fn(*const u8, *const u8, usize, &mut [f32; PAIR * COLUMNS]);

/// Unpacks a row of weights as the first or second of a pair: row, blocks, pair, and which.
type Unpack = unsafe fn(*const u8, usize, *mut u8, usize);

/// A way to multiply that was found to give ggml's bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    unpack: Unpack,
    multiply: Multiply,
}

impl Kernel {
    /// The fastest kernel that this processor has and that gives the bits of ggml's.
    pub(super) fn find() -> Option<Self> {
        candidates().into_iter().find(|it| it.is_exact())
    }

    /// Whether products of many made-up rows are ggml's to the last bit.
    ///
    /// ggml's kernel is compiled for one processor or chosen for the one at hand, and in which order
    /// it adds is its own choice; so it is tried.
    fn is_exact(self) -> bool {
        const BLOCKS: usize = 9;
        // SAFETY: fills ggml's tables of 16-bit floats, once.
        unsafe { sys::ggml_cpu_init() };
        let mut draw = Draw(0x9e37_79b9_7f4a_7c15);
        (0..16).all(|_| {
            let elements = BLOCKS * BLOCK;
            let weights: Vec<u8> = (0..PAIR * BLOCKS).flat_map(|_| draw.block()).collect();
            let rows: Vec<f32> = (0..COLUMNS * elements).map(|_| draw.value()).collect();
            let mut panel = vec![0; packed::panel_bytes(elements)];
            packed::pack(&rows, elements, &mut panel);
            let mut found = vec![0.0_f32; PAIR * COLUMNS];
            let product = Product {
                weights: weights.as_ptr(),
                panels: panel.as_ptr(),
                elements,
                outputs: PAIR,
                rows: COLUMNS,
                into: found.as_mut_ptr(),
            };
            // SAFETY: the product's memory is as large as it says, and this thread's alone.
            unsafe { self.run(&product, 0..PAIR) };
            let rows = rows.chunks_exact(elements);
            let expected = rows.flat_map(|row| {
                weights.chunks_exact(BLOCKS * Q4_1_BYTES).map(|weights| theirs(weights, row))
            });
            expected.zip(&found).all(|(expected, found)| expected.to_bits() == found.to_bits())
        })
    }

    /// Computes the products of so many rows of the weights.
    ///
    /// # Safety
    /// The product's memory is as it says, and nothing else reads or writes these outputs.
    pub(super) unsafe fn run(self, product: &Product, outputs: Range<usize>) {
        let blocks = product.elements / BLOCK;
        let pair_bytes = blocks * PAIR_BLOCK_BYTES;
        let mut unpacked = [const { std::mem::MaybeUninit::<u8>::uninit() }; UNPACKED_BYTES];
        let unpacked = unpacked.as_mut_ptr().cast::<u8>();
        let pairs = outputs.len().div_ceil(PAIR);
        assert!(pairs * pair_bytes <= UNPACKED_BYTES, "a part fits");
        // SAFETY: all pairs fit into the room, rows are inside the weights, panels inside theirs,
        // and products inside the result; a row that has no second is multiplied twice.
        unsafe {
            for row in 0..pairs * PAIR {
                let from = outputs.start + row.min(outputs.len() - 1);
                let from = product.weights.add(from * blocks * Q4_1_BYTES);
                let pair = unpacked.add(row / PAIR * pair_bytes);
                (self.unpack)(from, blocks, pair, row % PAIR);
            }
            for panel in 0..product.rows.div_ceil(COLUMNS) {
                let first_row = panel * COLUMNS;
                let panel = product.panels.add(panel * packed::panel_bytes(product.elements));
                let rows = COLUMNS.min(product.rows - first_row);
                for pair in 0..pairs {
                    let mut products = [0.0; PAIR * COLUMNS];
                    let weights = unpacked.add(pair * pair_bytes);
                    (self.multiply)(weights, panel, blocks, &mut products);
                    let output = outputs.start + pair * PAIR;
                    for row in 0..rows {
                        let into = product.into.add((first_row + row) * product.outputs + output);
                        *into = products[row];
                        if output + 1 < outputs.end {
                            *into.add(1) = products[COLUMNS + row];
                        }
                    }
                }
            }
        }
    }
}

/// ggml's product of a row of weights with a row of activations.
fn theirs(weights: &[u8], row: &[f32]) -> f32 {
    let mut rounded = vec![0; row.len() * 2];
    let rounded = packed::quantize(row, &mut rounded);
    let mut product = 0.0;
    // SAFETY: the traits are static; both rows have as many blocks as the length says.
    unsafe {
        let traits = &*sys::ggml_get_type_traits_cpu(sys::GGML_TYPE_Q4_1);
        let dot = traits.vec_dot.expect("Q4_1 can be multiplied");
        let (weights, rounded) = (weights.as_ptr().cast(), rounded.as_ptr().cast());
        dot(row.len() as i32, &mut product, 0, weights, 0, rounded, 0, 1);
    }
    product
}

/// Made-up numbers, by splitmix64.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Between -2 and 2.
    fn value(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 22) as f32 - 2.0
    }

    /// A block of weights.
    fn block(&mut self) -> [u8; Q4_1_BYTES] {
        let mut block = [0; Q4_1_BYTES];
        for (field, value) in [self.value() * 0.01, self.value() * 0.1].into_iter().enumerate() {
            // SAFETY: a pure function.
            let bits = unsafe { sys::ggml_fp32_to_fp16(value) };
            block[2 * field..][..2].copy_from_slice(&bits.to_le_bytes());
        }
        block[4..].iter_mut().for_each(|byte| *byte = (self.next() >> 56) as u8);
        block
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn candidates() -> Vec<Kernel> {
    Vec::new()
}

/// Kernels that the processor has, the fastest first.
#[cfg(target_arch = "x86_64")]
fn candidates() -> Vec<Kernel> {
    let mut ways: Vec<Multiply> = Vec::new();
    if is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
    {
        if is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512vl") {
            ways.push(x86::vnni);
        }
        ways.push(x86::avx2);
    }
    ways.into_iter().map(|multiply| Kernel { unpack: x86::unpack, multiply }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_that_the_processor_has_gives_ggml_s_bits() {
        assert!(candidates().into_iter().all(Kernel::is_exact));
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{BLOCK, COLUMNS, PAIR, PAIR_BLOCK_BYTES, Q4_1_BYTES};
    use crate::q4_1::packed::PANEL_BLOCK_BYTES;

    /// Unpacks a row of weights as the first or second of a pair.
    ///
    /// # Safety
    /// The processor has the features; `from` has so many blocks of Q4_1, and `into` room for as
    /// many of a pair.
    #[target_feature(enable = "avx2,f16c")]
    pub(super) unsafe fn unpack(from: *const u8, blocks: usize, into: *mut u8, which: usize) {
        for block in 0..blocks {
            // SAFETY: inside both, as the caller promises.
            unsafe {
                let from = from.add(block * Q4_1_BYTES);
                let into = into.add(block * PAIR_BLOCK_BYTES);
                let bytes = _mm_loadu_si128(from.add(4).cast());
                let halves = _mm256_set_m128i(_mm_srli_epi16::<4>(bytes), bytes);
                let codes = _mm256_and_si256(halves, _mm256_set1_epi8(15));
                _mm256_storeu_si256(into.add(which * BLOCK).cast(), codes);
                let numbers = _mm_cvtsi32_si128(from.cast::<i32>().read_unaligned());
                let numbers = _mm_cvtph_ps(numbers);
                let places = into.add(PAIR * BLOCK).cast::<f32>();
                _mm_store_ss(places.add(which), numbers);
                _mm_store_ss(places.add(PAIR + which), _mm_movehdup_ps(numbers));
            }
        }
    }

    /// Sums of four neighbouring products of unsigned with signed bytes.
    #[inline]
    #[target_feature(enable = "avx2,avx512vnni,avx512vl")]
    fn dot_vnni(x: __m256i, y: __m256i) -> __m256i {
        _mm256_dpbusd_epi32(_mm256_setzero_si256(), x, y)
    }

    /// As [`dot_vnni`]; codes are below 16, so that two products fit into 16 bits.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn dot_avx2(x: __m256i, y: __m256i) -> __m256i {
        _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), _mm256_set1_epi16(1))
    }

    /// The sum of eight lanes, in ggml's order.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn sum(lanes: __m256) -> f32 {
        let four = _mm_add_ps(_mm256_extractf128_ps::<1>(lanes), _mm256_castps256_ps128(lanes));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }

    macro_rules! kernel {
        ($name:ident, $features:literal, $dot:path) => {
            /// The product of minimum and sum, both once of 16 bits, is exact, so that it does
            /// not matter whether it is rounded before it is added; that of scale and dot is not,
            /// and ggml fuses it.
            ///
            /// # Safety
            /// The processor has the features; the pair and the panel have so many blocks.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn $name(
                pair: *const u8,
                panel: *const u8,
                blocks: usize,
                products: &mut [f32; PAIR * COLUMNS],
            ) {
                let mut sums = [[_mm256_setzero_ps(); COLUMNS]; PAIR];
                let mut least = [_mm256_setzero_ps(); PAIR];
                for block in 0..blocks {
                    // SAFETY: inside the pair and the panel, as the caller promises.
                    let (pair, panel) = unsafe {
                        (pair.add(block * PAIR_BLOCK_BYTES), panel.add(block * PANEL_BLOCK_BYTES))
                    };
                    // SAFETY: as above.
                    unsafe {
                        let numbers = panel.add(COLUMNS * BLOCK).cast::<f32>();
                        let scales = _mm256_loadu_ps(numbers);
                        let row_sums = _mm256_loadu_ps(numbers.add(COLUMNS));
                        let of_pair = pair.add(PAIR * BLOCK).cast::<f32>();
                        let mut both = [[0.0_f32; COLUMNS]; PAIR];
                        let mut codes = [_mm256_setzero_si256(); PAIR];
                        for row in 0..PAIR {
                            codes[row] = _mm256_loadu_si256(pair.add(row * BLOCK).cast());
                            let scale = _mm256_set1_ps(*of_pair.add(row));
                            _mm256_storeu_ps(both[row].as_mut_ptr(), _mm256_mul_ps(scale, scales));
                            let minimum = _mm256_set1_ps(*of_pair.add(PAIR + row));
                            least[row] = _mm256_fmadd_ps(minimum, row_sums, least[row]);
                        }
                        for column in 0..COLUMNS {
                            let quants = _mm256_loadu_si256(panel.add(column * BLOCK).cast());
                            for row in 0..PAIR {
                                let dots = _mm256_cvtepi32_ps($dot(codes[row], quants));
                                let scale = _mm256_set1_ps(both[row][column]);
                                sums[row][column] = _mm256_fmadd_ps(scale, dots, sums[row][column]);
                            }
                        }
                    }
                }
                for row in 0..PAIR {
                    let mut minimums = [0.0_f32; COLUMNS];
                    // SAFETY: eight values each.
                    unsafe { _mm256_storeu_ps(minimums.as_mut_ptr(), least[row]) };
                    for column in 0..COLUMNS {
                        products[row * COLUMNS + column] =
                            sum(sums[row][column]) + minimums[column];
                    }
                }
            }
        };
    }

    kernel!(vnni, "avx2,fma,avx512vnni,avx512vl", dot_vnni);
    kernel!(avx2, "avx2,fma", dot_avx2);
}
