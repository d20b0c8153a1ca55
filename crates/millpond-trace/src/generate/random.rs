//! Numbers that look random and are the same on every machine, today and later.

/// SplitMix64 (Steele, Lea, Flood 2014): small, well mixed, and any seed will do.
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From `low` to `high`, both included.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        let choices = u128::from(high.saturating_sub(low)) + 1;
        // The high part of a product is as even as the factors are; no division, no loop.
        let chosen = (u128::from(self.next()) * choices) >> 64;
        low + chosen as u64
    }

    /// From `low` to `high`, both included, small values more often than large ones: the bound
    /// itself is drawn first. With integers alone, and so the same on every machine.
    pub(super) fn skewed(&mut self, low: u64, high: u64) -> u64 {
        let bound = self.between(low, high);
        self.between(low, bound)
    }

    /// A value, give or take a quarter.
    pub(super) fn about(&mut self, value: u64) -> u64 {
        self.between(value - value / 4, value + value / 4)
    }

    /// An index below `count`, which is not 0.
    pub(super) fn below(&mut self, count: usize) -> usize {
        self.between(0, count as u64 - 1) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_in_their_bounds_and_reach_them() {
        let mut random = Random::new(1);
        let drawn: Vec<u64> = (0..1000).map(|_| random.between(3, 7)).collect();
        assert_eq!(drawn.iter().min(), Some(&3));
        assert_eq!(drawn.iter().max(), Some(&7));
        assert_eq!(random.between(5, 5), 5);
        assert!((0..1000).all(|_| (3..=7).contains(&random.skewed(3, 7))));
        assert!((0..1000).all(|_| (75..=125).contains(&random.about(100))));
        assert!((0..1000).all(|_| random.below(3) < 3));
        random.between(0, u64::MAX);
    }

    #[test]
    fn the_sequence_is_the_published_one() {
        // The generator's reference sequence for the seed 1234567.
        let mut random = Random::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(
            first,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }
}
