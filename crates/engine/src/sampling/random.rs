//! Random numbers that depend on a place, not on a history.

/// Counter-based generator: the same seed, position and draw give the same number on every
/// machine, in any order of asking. There is no state to hand over when a sequence moves.
///
/// Each input passes the 64-bit finaliser of SplitMix (Steele, Lea, Flood 2014, with Stafford's
/// constants) before the next is mixed in, so that neighbouring positions share no pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PositionedRandom {
    key: u64,
}

impl PositionedRandom {
    /// Generator of one sequence.
    pub fn new(seed: u64) -> Self {
        Self { key: finalise(seed.wrapping_add(GOLDEN_GAMMA)) }
    }

    /// 64 random bits for draw number `draw` at `position`.
    pub fn bits(&self, position: u64, draw: u64) -> u64 {
        let steps = draw.wrapping_add(1);
        finalise(self.place(position).wrapping_add(steps.wrapping_mul(GOLDEN_GAMMA)))
    }

    /// The bits of draws 0, 1, 2 … at `position`, faster than one by one.
    pub(crate) fn sequence(&self, position: u64) -> impl Iterator<Item = u64> {
        let mut state = self.place(position);
        std::iter::repeat_with(move || {
            state = state.wrapping_add(GOLDEN_GAMMA);
            finalise(state)
        })
    }

    /// Uniform number in [0, 1) with 53 random bits.
    pub fn uniform(&self, position: u64, draw: u64) -> f64 {
        (self.bits(position, draw) >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    fn place(&self, position: u64) -> u64 {
        finalise(self.key ^ position.wrapping_mul(GOLDEN_GAMMA))
    }
}

/// 2^64 divided by the golden ratio, made odd: the increment of SplitMix.
const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

fn finalise(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn finaliser_agrees_with_published_splitmix_output() {
        // First outputs of SplitMix64 seeded with 1234567, as listed by its public test vectors.
        let mut state = 1_234_567_u64;
        let outputs: Vec<u64> = (0..3)
            .map(|_| {
                state = state.wrapping_add(GOLDEN_GAMMA);
                finalise(state)
            })
            .collect();
        let published =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(outputs, published);
    }

    #[test]
    fn numbers_never_change_between_releases() {
        let random = PositionedRandom::new(42);
        let numbers: Vec<String> =
            (0..3).map(|position| format!("{:.15}", random.uniform(position, 0))).collect();
        expect!["0.772056490520245 0.333029937458421 0.797235924432551"]
            .assert_eq(&numbers.join(" "));
    }

    #[test]
    fn a_sequence_is_the_draws_of_its_position() {
        let random = PositionedRandom::new(3);
        let draws: Vec<u64> = (0..5).map(|draw| random.bits(9, draw)).collect();
        assert_eq!(random.sequence(9).take(5).collect::<Vec<u64>>(), draws);
    }

    #[test]
    fn every_bit_is_set_half_of_the_time_and_flips_independently_of_its_neighbours() {
        // 20,000 coins: five standard deviations are 354.
        let random = PositionedRandom::new(7);
        let coins = 20_000_u64;
        for bit in 0..64 {
            let value = |position, draw| (random.bits(position, draw) >> bit) & 1;
            let other_seed = PositionedRandom::new(8);
            let sums = [
                (0..coins).map(|p| value(p, 0)).sum::<u64>(),
                (0..coins).map(|p| value(p, 0) ^ value(p + 1, 0)).sum::<u64>(),
                (0..coins).map(|p| value(p, 0) ^ value(p, 1)).sum::<u64>(),
                (0..coins).map(|p| value(p, 0) ^ (other_seed.bits(p, 0) >> bit) & 1).sum(),
            ];
            for sum in sums {
                assert!(sum.abs_diff(coins / 2) < 354, "bit {bit}: {sums:?}");
            }
        }
    }
}
