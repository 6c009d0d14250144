//! Detects that the machine was asleep: connections may be dead then without notice.

use outlast_core::words::clock::Clock;

/// Readings of two clocks at one moment. Only one of the clocks counts the time that the machine sleeps.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    boottime_ms: u64,
    monotonic_ms: u64,
}

/// Difference between the clocks above which the machine was asleep: shorter than any provider's idle timeout, longer
/// than the time between the two readings.
const ASLEEP_MS: u64 = 5_000;

impl Reading {
    pub fn of(clock: &dyn Clock) -> Reading {
        Reading { boottime_ms: clock.boottime_ms(), monotonic_ms: clock.monotonic_ms() }
    }

    /// Returns whether the machine was suspended between this reading and the later one, `now`.
    pub fn was_asleep_until(self, now: Reading) -> bool {
        let passed = now.boottime_ms.saturating_sub(self.boottime_ms);
        let awake = now.monotonic_ms.saturating_sub(self.monotonic_ms);
        passed.saturating_sub(awake) > ASLEEP_MS
    }
}

#[cfg(test)]
mod tests {
    use outlast_core::words::{clock::ManualClock, id::Micros};

    use super::*;

    #[test]
    fn only_time_that_one_clock_alone_counted_was_sleep() {
        let check = |then: &dyn Fn(&ManualClock), asleep: bool| {
            let clock = ManualClock::new(Micros(0));
            let before = Reading::of(&clock);
            then(&clock);
            assert_eq!(before.was_asleep_until(Reading::of(&clock)), asleep);
        };
        check(&|c| c.advance_ms(60_000), false);
        check(&|c| c.suspend_ms(5_000), false);
        check(&|c| c.suspend_ms(5_001), true);
        // The wall clock was set, by an administrator or by NTP.
        check(&|c| c.set(Micros(3_600_000_000)), false);
        check(&|c| c.set(Micros(-3_600_000_000)), false);
    }
}
