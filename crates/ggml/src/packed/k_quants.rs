//! Q4_K and Q6_K, for x86-64 with AVX-512 VNNI.
//!
//! From eight rows on ggml sums up a block in whole numbers, whose order does not matter, and adds
//! block after block as floats. So here sixteen rows of weights lie side by side, four codes of each
//! in a register, and four quants of a row of activations are multiplied with all of them at once.

use llama_cpp_sys_2 as sys;

use super::kernel::{Format, Kernel};
use super::panels::Rounding;

/// Rows of weights that are multiplied at once.
const ROWS: usize = 16;

/// Elements of a block.
const BLOCK: usize = Rounding::Q8K.block();

/// Elements whose products are added before they are scaled.
const STEP: usize = 16;

/// Bytes of a register, and of four codes, or any number of 32 bits, of all rows.
const REGISTER: usize = 4 * ROWS;

/// Where an unpacked block has the scales of all steps, after the codes four by four.
const SCALES: usize = ROWS * BLOCK;

/// Where it has what multiplies the sums of quants, in 16 bits, two steps after two.
const SUM_FACTORS: usize = SCALES + BLOCK / STEP * REGISTER;

/// Where it has what multiplies the scales, then the minimums, of a whole block.
const FACTORS: usize = SUM_FACTORS + BLOCK / STEP / 2 * REGISTER;

/// Bytes of an unpacked block of all rows.
const UNPACKED_BLOCK_BYTES: usize = FACTORS + 2 * REGISTER;

/// A block of Q4_K: two 16-bit floats that multiply scales and minimums, these in 6 bits each, then
/// the codes, the low halves of 32 bytes before the high.
const Q4_K_BYTES: usize = 4 + 12 + BLOCK / 2;

/// A block of Q6_K: the low halves of the codes, their high quarters, scales in 8 bits each, and a
/// 16-bit float that multiplies them.
const Q6_K_BYTES: usize = BLOCK / 2 + BLOCK / 4 + BLOCK / STEP + 2;

static Q4_K: Format = Format {
    weights: sys::GGML_TYPE_Q4_K,
    rounding: Rounding::Q8K,
    rows_min: 8,
    outputs: ROWS,
    block_bytes: Q4_K_BYTES,
    unpacked_block_bytes: UNPACKED_BLOCK_BYTES,
    continues: true,
    halves: &[(0, 0.001), (2, 0.001)],
};

static Q6_K: Format = Format {
    weights: sys::GGML_TYPE_Q6_K,
    block_bytes: Q6_K_BYTES,
    halves: &[(Q6_K_BYTES - 2, 0.0001)],
    ..Q4_K
};

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn kernels() -> Vec<Kernel> {
    Vec::new()
}

/// Kernels that the processor has.
#[cfg(target_arch = "x86_64")]
pub(super) fn kernels() -> Vec<Kernel> {
    if !(is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vnni"))
    {
        return Vec::new();
    }
    let q4_k = Kernel { format: &Q4_K, unpack: x86::unpack_q4_k, multiply: x86::multiply::<true> };
    let q6_k = Kernel { format: &Q6_K, unpack: x86::unpack_q6_k, multiply: x86::multiply::<false> };
    vec![q4_k, q6_k]
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{
        BLOCK, FACTORS, Q4_K_BYTES, Q6_K_BYTES, REGISTER, ROWS, SCALES, STEP, SUM_FACTORS,
        UNPACKED_BLOCK_BYTES,
    };
    use crate::packed::panels::{COLUMNS, Rounding};

    const STEPS: usize = BLOCK / STEP;

    /// Bytes of a block of activations: scale, quants, and sums of 16 quants.
    const COLUMN_BYTES: usize = Rounding::Q8K.panel_block_bytes() / COLUMNS;

    /// Unpacks rows of Q4_K.
    ///
    /// # Safety
    /// The processor has the features; each of the rows has so many blocks, and `into` has room for
    /// as many.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(in crate::packed) unsafe fn unpack_q4_k(rows: &[*const u8], blocks: usize, into: *mut u8) {
        let fifteen = _mm512_set1_epi8(15);
        for block in 0..blocks {
            let at = block * Q4_K_BYTES;
            // SAFETY: inside the rows and the room, as the caller promises.
            unsafe {
                let into = into.add(block * UNPACKED_BLOCK_BYTES);
                for sixteen in 0..BLOCK / 32 {
                    let bytes = columns(rows, at + 16 + sixteen * 16);
                    let step = sixteen / 2 * 4 + sixteen % 2;
                    put(into, step * 4, bytes.map(|it| _mm512_and_si512(it, fifteen)));
                    let high = bytes.map(|it| _mm512_srli_epi16::<4>(it));
                    put(into, step * 4 + 8, high.map(|it| _mm512_and_si512(it, fifteen)));
                }
                let [factors, scales, minimums, others] = columns(rows, at);
                put_q4_k_scales(into, [scales, minimums, others]);
                let of_minimums = _mm512_srli_epi32::<16>(factors);
                put(into, FACTORS / REGISTER, [factors, of_minimums].map(|it| floats(it)));
            }
        }
    }

    /// Unpacks the scales and minimums of Q4_K: four of both whole in 6 bits, and of the others the
    /// low four bits and the high two apart.
    ///
    /// # Safety
    /// As for [`unpack_q4_k`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn put_q4_k_scales(into: *mut u8, [scales, minimums, others]: [__m512i; 3]) {
        let masked = |bits, mask| _mm512_and_si512(bits, _mm512_set1_epi8(mask));
        let high = |bits| masked(_mm512_srli_epi32::<2>(bits), 0x30);
        let other_scales = _mm512_or_si512(masked(others, 15), high(scales));
        let other_minimums = masked(_mm512_srli_epi32::<4>(others), 15);
        let other_minimums = _mm512_or_si512(other_minimums, high(minimums));
        for (half, four) in [masked(scales, 63), other_scales].into_iter().enumerate() {
            for (part, scale) in bytes(four).into_iter().enumerate() {
                // SAFETY: inside the room, as the caller promises.
                unsafe { put(into, SCALES / REGISTER + (half * 4 + part) * 2, [scale; 2]) };
            }
        }
        for (half, four) in [masked(minimums, 63), other_minimums].into_iter().enumerate() {
            // The sums of both steps that share a minimum.
            let twice = bytes(four).map(|it| _mm512_or_si512(it, _mm512_slli_epi32::<16>(it)));
            // SAFETY: inside the room, as the caller promises.
            unsafe { put(into, SUM_FACTORS / REGISTER + half * 4, twice) };
        }
    }

    /// Unpacks rows of Q6_K.
    ///
    /// # Safety
    /// As for [`unpack_q4_k`].
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(in crate::packed) unsafe fn unpack_q6_k(rows: &[*const u8], blocks: usize, into: *mut u8) {
        let masked = |bits, mask| _mm512_and_si512(bits, _mm512_set1_epi8(mask));
        for block in 0..blocks {
            let at = block * Q6_K_BYTES;
            // SAFETY: inside the rows and the room, as the caller promises.
            unsafe {
                let into = into.add(block * UNPACKED_BLOCK_BYTES);
                for sixteen in 0..BLOCK / 64 {
                    let (half, step) = (sixteen / 2, sixteen / 2 * 8 + sixteen % 2);
                    let low = at + half * 64 + sixteen % 2 * 16;
                    let [low, other] = [columns(rows, low), columns(rows, low + 32)];
                    let high = columns(rows, at + BLOCK / 2 + sixteen * 16);
                    let code = |low, high| _mm512_or_si512(masked(low, 15), masked(high, 0x30));
                    for four in 0..4 {
                        let (low, other, high) = (low[four], other[four], high[four]);
                        let place = step * 4 + four;
                        put(into, place, [code(low, _mm512_slli_epi16::<4>(high))]);
                        put(into, place + 8, [code(other, _mm512_slli_epi16::<2>(high))]);
                        put(into, place + 16, [code(_mm512_srli_epi16::<4>(low), high)]);
                        let high = _mm512_srli_epi16::<2>(high);
                        put(into, place + 24, [code(_mm512_srli_epi16::<4>(other), high)]);
                    }
                }
                put_q6_k_scales(into, columns(rows, at + BLOCK / 2 + BLOCK / 4));
                let mut factors = [0_i32; ROWS];
                for (factor, row) in factors.iter_mut().zip(rows) {
                    let half = row.add(at + Q6_K_BYTES - 2).cast::<u16>().read_unaligned();
                    *factor = i32::from(half);
                }
                let factors = _mm512_loadu_si512(factors.as_ptr().cast());
                put(into, FACTORS / REGISTER, [floats(factors)]);
            }
        }
    }

    /// Unpacks the scales of Q6_K. Codes are 32 too large: sums of quants are multiplied with that.
    ///
    /// # Safety
    /// As for [`unpack_q4_k`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn put_q6_k_scales(into: *mut u8, scales: [__m512i; 4]) {
        for (index, four) in scales.into_iter().enumerate() {
            let signed = |byte| _mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(byte));
            let four = bytes(four).map(signed);
            // SAFETY: inside the room, as the caller promises.
            unsafe { put(into, SCALES / REGISTER + index * 4, four) };
            for two in 0..2 {
                let second = _mm512_slli_epi32::<16>(four[2 * two + 1]);
                let both = _mm512_mask_blend_epi16(0xaaaa_aaaa, four[2 * two], second);
                let both = _mm512_mullo_epi16(both, _mm512_set1_epi16(-32));
                // SAFETY: as above.
                unsafe { put(into, SUM_FACTORS / REGISTER + index * 2 + two, [both]) };
            }
        }
    }

    /// The four bytes of each number.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn bytes(four: __m512i) -> [__m512i; 4] {
        let byte = |bits| _mm512_and_si512(bits, _mm512_set1_epi32(255));
        [
            byte(four),
            byte(_mm512_srli_epi32::<8>(four)),
            byte(_mm512_srli_epi32::<16>(four)),
            _mm512_srli_epi32::<24>(four),
        ]
    }

    /// The low 16 bits of each number as a float.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn floats(halves: __m512i) -> __m512i {
        _mm512_castps_si512(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(halves)))
    }

    /// Writes registers from a place on.
    ///
    /// # Safety
    /// There is room for them.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn put<const COUNT: usize>(into: *mut u8, place: usize, registers: [__m512i; COUNT]) {
        for (index, register) in registers.into_iter().enumerate() {
            // SAFETY: as the caller promises.
            unsafe { _mm512_storeu_si512(into.add((place + index) * REGISTER).cast(), register) };
        }
    }

    /// Four numbers of 32 bits of each row, the first of all rows together, and so on.
    ///
    /// # Safety
    /// Rows have 16 bytes there.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn columns(rows: &[*const u8], at: usize) -> [__m512i; 4] {
        // SAFETY: as the caller promises.
        let load = |row: usize| unsafe { _mm_loadu_si128(rows[row].add(at).cast()) };
        let every_fourth = |first: usize| {
            let register = _mm512_castsi128_si512(load(first));
            let register = _mm512_inserti32x4::<1>(register, load(first + 4));
            let register = _mm512_inserti32x4::<2>(register, load(first + 8));
            _mm512_inserti32x4::<3>(register, load(first + 12))
        };
        let [a, b, c, d] = [every_fourth(0), every_fourth(1), every_fourth(2), every_fourth(3)];
        let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
        let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
        [
            _mm512_unpacklo_epi64(ab, cd),
            _mm512_unpackhi_epi64(ab, cd),
            _mm512_unpacklo_epi64(ab_high, cd_high),
            _mm512_unpackhi_epi64(ab_high, cd_high),
        ]
    }

    /// Adds the products of so many blocks of Q4_K, or else Q6_K, block by block.
    ///
    /// Sums of a step of Q4_K fit into 16 bits, so that one instruction scales and adds them.
    ///
    /// # Safety
    /// The processor has the features; the weights and the panel have so many blocks, and the
    /// products are of sixteen outputs.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub(in crate::packed) unsafe fn multiply<const Q4_K: bool>(
        weights: *const u8,
        panel: *const u8,
        blocks: usize,
        products: &mut [f32],
    ) {
        let mut sums = [_mm512_setzero_ps(); COLUMNS];
        for (sum, products) in sums.iter_mut().zip(products.chunks_exact(ROWS)) {
            // SAFETY: sixteen values.
            *sum = unsafe { _mm512_loadu_ps(products.as_ptr()) };
        }
        for block in 0..blocks {
            // SAFETY: inside the weights and the panel, as the caller promises.
            unsafe {
                let weights = weights.add(block * UNPACKED_BLOCK_BYTES);
                let panel = panel.add(block * COLUMNS * COLUMN_BYTES);
                let of_sums = sums_factored(weights, panel);
                let mut scaled = if Q4_K { [_mm512_setzero_si512(); COLUMNS] } else { of_sums };
                for step in 0..STEPS {
                    let dots = dots(weights.add(step * STEP * ROWS), panel.add(4 + step * STEP));
                    let scale = load(weights, SCALES / REGISTER + step);
                    for (scaled, dot) in scaled.iter_mut().zip(dots) {
                        *scaled = if Q4_K {
                            _mm512_dpwssd_epi32(*scaled, dot, scale)
                        } else {
                            _mm512_add_epi32(*scaled, _mm512_mullo_epi32(dot, scale))
                        };
                    }
                }
                let factor = _mm512_castsi512_ps(load(weights, FACTORS / REGISTER));
                let of_minimums = _mm512_castsi512_ps(load(weights, FACTORS / REGISTER + 1));
                for column in 0..COLUMNS {
                    let row_scale = *panel.add(column * COLUMN_BYTES).cast::<f32>();
                    let mut product = _mm512_mul_ps(_mm512_cvtepi32_ps(scaled[column]), factor);
                    if Q4_K {
                        let least = _mm512_cvtepi32_ps(of_sums[column]);
                        product = _mm512_fnmadd_ps(of_minimums, least, product);
                    }
                    sums[column] =
                        _mm512_fmadd_ps(product, _mm512_set1_ps(row_scale), sums[column]);
                }
            }
        }
        for (sum, products) in sums.iter().zip(products.chunks_exact_mut(ROWS)) {
            // SAFETY: sixteen values.
            unsafe { _mm512_storeu_ps(products.as_mut_ptr(), *sum) };
        }
    }

    /// Products of a step of weights with that of each row.
    ///
    /// # Safety
    /// The weights have the codes of a step, and the rows of the panel its quants.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn dots(weights: *const u8, quants: *const u8) -> [__m512i; COLUMNS] {
        let mut dots = [_mm512_setzero_si512(); COLUMNS];
        for four in 0..STEP / 4 {
            for (column, dot) in dots.iter_mut().enumerate() {
                // SAFETY: as the caller promises.
                unsafe {
                    let quants = quants.add(column * COLUMN_BYTES + four * 4).cast::<i32>();
                    let quants = _mm512_set1_epi32(quants.read_unaligned());
                    *dot = _mm512_dpbusd_epi32(*dot, load(weights, four), quants);
                }
            }
        }
        dots
    }

    /// The sums of quants of each row, multiplied by what the weights have for them.
    ///
    /// # Safety
    /// The weights and the panel have a block.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn sums_factored(weights: *const u8, panel: *const u8) -> [__m512i; COLUMNS] {
        let mut all = [_mm512_setzero_si512(); COLUMNS];
        for two in 0..STEPS / 2 {
            for (column, all) in all.iter_mut().enumerate() {
                // SAFETY: as the caller promises.
                unsafe {
                    let sums = panel.add(column * COLUMN_BYTES + 4 + BLOCK + two * 4).cast::<i32>();
                    let sums = _mm512_set1_epi32(sums.read_unaligned());
                    let factors = load(weights, SUM_FACTORS / REGISTER + two);
                    *all = _mm512_dpwssd_epi32(*all, factors, sums);
                }
            }
        }
        all
    }

    /// Reads the register at a place.
    ///
    /// # Safety
    /// There is one.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load(from: *const u8, place: usize) -> __m512i {
        // SAFETY: as the caller promises.
        unsafe { _mm512_loadu_si512(from.add(place * REGISTER).cast()) }
    }
}
