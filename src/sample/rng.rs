//! The random numbers behind a seed: part of the contract, so the generator is ours and never changes.

use crate::random::split_mix;

/// xoshiro256++ 1.0, its state filled by SplitMix64 as its authors advise.
///
/// Source: D. Blackman, S. Vigna, "Scrambled Linear Pseudorandom Number Generators", ACM TOMS 47(4), 2021.
#[derive(Debug, Clone)]
pub(super) struct Rng([u64; 4]);

impl Rng {
    /// The generator for `seed`; neighbouring seeds give unrelated streams.
    pub(super) fn new(seed: u64) -> Self {
        let mut counter = seed;
        Self(std::array::from_fn(|_| split_mix(&mut counter)))
    }

    /// The next 64 bits.
    pub(super) fn next_u64(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let shifted = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= shifted;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform over the multiples of 2^-53 in [0, 1): the conversion is exact, so it is the same everywhere.
    pub(super) fn uniform(&mut self) -> f64 {
        const UNIT: f64 = 1.0 / (1u64 << 53) as f64;
        (self.next_u64() >> 11) as f64 * UNIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_matches_published_values() {
        let mut rng = Rng([1, 2, 3, 4]);
        let first: Vec<u64> = (0..4).map(|_| rng.next_u64()).collect();
        assert_eq!(first, [41943041, 58720359, 3588806011781223, 3591011842654386]);
    }

    #[test]
    fn uniform_fills_the_unit_interval_evenly() {
        let mut rng = Rng::new(0);
        let mut bins = [0u32; 16];
        for _ in 0..160_000 {
            let u = rng.uniform();
            assert!((0.0..1.0).contains(&u));
            bins[(u * 16.0) as usize] += 1;
        }
        // 10,000 a bin with a standard deviation of 97: six of them either way.
        assert!(bins.iter().all(|&n| (9_400..10_600).contains(&n)), "{bins:?}");
    }
}
