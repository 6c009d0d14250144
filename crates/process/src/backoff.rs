//! Waiting times between attempts.

use std::time::Duration;

/// Exponential backoff with full jitter: after the n-th unhealthy end in a row, a wait between nothing and
/// 1 s · 2^(n-1), at most 5 minutes. With full jitter a hundred agents killed by one outage do not return together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    unhealthy: u32,
}

impl Backoff {
    pub const FIRST: Duration = Duration::from_secs(1);
    pub const LONGEST: Duration = Duration::from_secs(300);
    /// Lifetime from which an attempt counts as healthy, so that the next wait is short again.
    pub const HEALTHY: Duration = Duration::from_secs(60);

    /// Returns the wait after an attempt that lived for `lived`. `entropy`: a random number, uniform over all of u64.
    pub fn after(&mut self, lived: Duration, entropy: u64) -> Duration {
        if lived >= Self::HEALTHY {
            self.got_on();
        }
        let longest = self.ceiling();
        self.unhealthy = self.unhealthy.saturating_add(1);
        let nanos = (longest.as_nanos() * (u128::from(entropy) + 1)) >> 64;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).min(Self::LONGEST)
    }

    /// Resets the wait to the shortest, because an attempt finished something, however short it lived.
    pub fn got_on(&mut self) {
        self.unhealthy = 0;
    }

    /// Returns the upper bound of the next wait.
    pub fn ceiling(&self) -> Duration {
        let factor = 1u32.checked_shl(self.unhealthy).unwrap_or(u32::MAX);
        Self::FIRST.saturating_mul(factor).min(Self::LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_secs(3);

    fn longest_waits(lives: &[Duration]) -> Vec<u64> {
        let mut backoff = Backoff::default();
        lives.iter().map(|&lived| backoff.after(lived, u64::MAX).as_secs()).collect()
    }

    #[test]
    fn wait_doubles_from_a_second_to_five_minutes_and_stays_there() {
        assert_eq!(longest_waits(&[SHORT; 11]), [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(longest_waits(&[SHORT; 200])[199], 300);
    }

    #[test]
    fn healthy_attempt_begins_the_row_anew() {
        let healthy = Backoff::HEALTHY;
        assert_eq!(longest_waits(&[SHORT, SHORT, SHORT, healthy, SHORT]), [1, 2, 4, 1, 2]);
        let nearly = healthy - Duration::from_nanos(1);
        assert_eq!(longest_waits(&[SHORT, SHORT, nearly]), [1, 2, 4]);
    }

    #[test]
    fn an_attempt_that_got_on_begins_the_row_anew() {
        let mut backoff = Backoff::default();
        let mut wait = || backoff.after(SHORT, u64::MAX).as_secs();
        assert_eq!([wait(), wait(), wait()], [1, 2, 4]);
        backoff.got_on();
        assert_eq!(backoff.after(SHORT, u64::MAX).as_secs(), 1);
    }

    #[test]
    fn jitter_is_full() {
        let after_three = |entropy| {
            let mut backoff = Backoff { unhealthy: 3 };
            backoff.after(SHORT, entropy)
        };
        assert_eq!(after_three(0), Duration::ZERO);
        assert_eq!(after_three(u64::MAX / 2), Duration::from_secs(4));
        assert_eq!(after_three(u64::MAX), Duration::from_secs(8));
    }
}
