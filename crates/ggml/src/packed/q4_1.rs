//! Q4_1, for x86-64 with AVX2, and faster with AVX-512 VNNI.

use llama_cpp_sys_2 as sys;

use super::kernel::{Format, Kernel, Multiply};
use super::panels::Rounding;

/// Rows of weights that are multiplied at once.
const PAIR: usize = 2;

/// Elements of a block.
const BLOCK: usize = Rounding::Q8_1.block();

/// A block: scale and minimum as 16-bit floats, then the codes; the low halves of the bytes are the
/// first 16 elements.
const BLOCK_BYTES: usize = 4 + BLOCK / 2;

/// A block of a pair of weight rows, unpacked: both rows' codes, then both scales, both minimums.
const PAIR_BLOCK_BYTES: usize = PAIR * (BLOCK + 8);

static FORMAT: Format = Format {
    weights: sys::GGML_TYPE_Q4_1,
    rounding: Rounding::Q8_1,
    rows_min: 4,
    outputs: PAIR,
    block_bytes: BLOCK_BYTES,
    unpacked_block_bytes: PAIR_BLOCK_BYTES,
    continues: false,
    halves: &[(0, 0.01), (2, 0.1)],
};

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn kernels() -> Vec<Kernel> {
    Vec::new()
}

/// Kernels that the processor has, the fastest first.
#[cfg(target_arch = "x86_64")]
pub(super) fn kernels() -> Vec<Kernel> {
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
    ways.into_iter()
        .map(|multiply| Kernel { format: &FORMAT, unpack: x86::unpack, multiply })
        .collect()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{BLOCK, BLOCK_BYTES, PAIR, PAIR_BLOCK_BYTES};
    use crate::packed::panels::{COLUMNS, Rounding};

    const PANEL_BLOCK_BYTES: usize = Rounding::Q8_1.panel_block_bytes();

    /// Unpacks a pair of rows.
    ///
    /// # Safety
    /// The processor has the features; both rows have so many blocks of Q4_1, and `into` has room
    /// for as many of a pair.
    #[target_feature(enable = "avx2,f16c")]
    pub(in crate::packed) unsafe fn unpack(rows: &[*const u8], blocks: usize, into: *mut u8) {
        for block in 0..blocks {
            for (which, row) in rows.iter().enumerate() {
                // SAFETY: inside both, as the caller promises.
                unsafe {
                    let from = row.add(block * BLOCK_BYTES);
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
            pub(in crate::packed) unsafe fn $name(
                pair: *const u8,
                panel: *const u8,
                blocks: usize,
                products: &mut [f32],
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
                        products[column * PAIR + row] = sum(sums[row][column]) + minimums[column];
                    }
                }
            }
        };
    }

    kernel!(vnni, "avx2,fma,avx512vnni,avx512vl", dot_vnni);
    kernel!(avx2, "avx2,fma", dot_avx2);
}
