//! An exponential function that vectorises and is the same on every machine.

/// e^x for x <= 0, within 3e-7 relative; exactly 0 below -87, so that negative infinity has no
/// weight.
///
/// The standard library's function belongs to the platform: its last bits differ between
/// machines, and so would sampled tokens. This one consists of correctly rounded operations.
/// x is split into n ln 2 + r with |r| <= ln 2 / 2; a Taylor polynomial gives e^r, and n is added
/// to the exponent.
#[inline(always)]
pub(super) fn exp_of_nonpositive(x: f32) -> f32 {
    // Adding 1.5 * 2^23 leaves the nearest whole number in the low bits of the mantissa.
    const ROUNDER: f32 = 12_582_912.0;
    // ln 2 in two parts: the product of the first with any n that occurs is exact.
    const LN2_HIGH: f32 = 355.0 / 512.0;
    const LN2_LOW: f32 = -2.121_944_4e-4;

    let shifted = x * std::f32::consts::LOG2_E + ROUNDER;
    let n = shifted - ROUNDER;
    let r = x - n * LN2_HIGH - n * LN2_LOW;
    let mut polynomial = 1.0 / 5_040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        polynomial = polynomial * r + coefficient;
    }
    let power_of_two = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    if x < -87.0 { 0.0 } else { polynomial * power_of_two }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_double_precision_over_the_whole_range() {
        for step in 0..=870_000 {
            let x = -(step as f32) * 1e-4;
            let exact = f64::from(x).exp();
            let error = (f64::from(exp_of_nonpositive(x)) - exact).abs() / exact;
            assert!(error < 3e-7, "exp({x}): relative error {error:e}");
        }
        assert_eq!(exp_of_nonpositive(0.0), 1.0);
    }

    #[test]
    fn far_below_zero_there_is_no_weight() {
        for x in [-87.1, -1e10, f32::MIN, f32::NEG_INFINITY] {
            assert_eq!(exp_of_nonpositive(x), 0.0);
        }
    }
}
