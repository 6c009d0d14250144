//! Clocks and entropy, handed in from outside: the domain has none of its own.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::words::Micros;

/// Source of time. The real one lives in the product, the simulated one is [`ManualClock`].
pub trait Clock: Send + Sync {
    /// Returns the wall clock. It may jump either way: for texts that people read and for deadlines in days.
    fn now(&self) -> Micros;

    /// Returns milliseconds since some fixed moment of this process. The value never goes back, and stands
    /// still while the machine sleeps (CLOCK_MONOTONIC): for `active_ms` and timeouts.
    fn monotonic_ms(&self) -> u64;

    /// Returns milliseconds as [`Clock::monotonic_ms`] does, but also counts the time that the machine sleeps
    /// (CLOCK_BOOTTIME): for heartbeats, whose silence others count. The two clocks differ by the time asleep.
    fn boottime_ms(&self) -> u64;
}

/// Source of random bytes: for ids, token keys and jitter.
pub trait Entropy: Send + Sync {
    /// Fills all of `bytes`. An implementation that cannot must panic: predictable keys are worse.
    fn fill(&self, bytes: &mut [u8]);
}

/// Returns `N` fresh random bytes.
pub fn random<const N: usize>(entropy: &dyn Entropy) -> [u8; N] {
    let mut bytes = [0; N];
    entropy.fill(&mut bytes);
    bytes
}

/// Filter that keeps short jumps of a wall clock from a process: a wrong answer of a time server, a step and its
/// correction. Within a boot, CLOCK_BOOTTIME tells how much time has passed.
#[derive(Debug, Default)]
pub struct JumpFilter {
    /// Last wall time that was believed, and the boot time at which it was read; `None` before the first.
    believed: Option<(Micros, u64)>,
    /// Boot time at which the wall clock was first found elsewhere; `None` while it is where it should be.
    jumped_ms: Option<u64>,
}

impl JumpFilter {
    /// Largest step that is believed at once.
    const STEP_US: i64 = 1_000_000;

    /// Time for which a clock has to have been elsewhere until it is believed.
    const BELIEVED_AFTER_MS: u64 = 60_000;

    /// Returns the time by a wall clock that shows `wall`, at `boottime_ms`.
    pub fn read(&mut self, wall: Micros, boottime_ms: u64) -> Micros {
        let expected =
            self.believed.map(|(at, read_ms)| at.plus_ms(boottime_ms.saturating_sub(read_ms) as i64));
        if let Some(expected) = expected.filter(|at| (wall.0 - at.0).abs() > JumpFilter::STEP_US) {
            let since = *self.jumped_ms.get_or_insert(boottime_ms);
            if boottime_ms.saturating_sub(since) < JumpFilter::BELIEVED_AFTER_MS {
                return expected;
            }
        }
        *self = JumpFilter { believed: Some((wall, boottime_ms)), jumped_ms: None };
        wall
    }
}

/// Clock that moves only when it is told to, for tests and simulation.
#[derive(Debug)]
pub struct ManualClock {
    wall_micros: AtomicI64,
    monotonic_micros: AtomicU64,
    slept_ms: AtomicU64,
}

impl ManualClock {
    /// Starts at `start`, with the monotonic clock at zero.
    pub fn new(start: Micros) -> ManualClock {
        ManualClock {
            wall_micros: AtomicI64::new(start.0),
            monotonic_micros: AtomicU64::new(0),
            slept_ms: AtomicU64::new(0),
        }
    }

    /// Sets the wall clock alone, as an administrator or NTP would; the monotonic clock continues.
    pub fn set(&self, now: Micros) {
        self.wall_micros.store(now.0, Ordering::SeqCst);
    }

    /// Lets `ms` pass on both clocks.
    pub fn advance_ms(&self, ms: u64) {
        self.advance_micros(ms.saturating_mul(1000));
    }

    /// Lets `micros` pass on both clocks.
    pub fn advance_micros(&self, micros: u64) {
        self.monotonic_micros.fetch_add(micros, Ordering::SeqCst);
        self.wall_micros.fetch_add(i64::try_from(micros).unwrap_or(i64::MAX), Ordering::SeqCst);
    }

    /// Lets `ms` pass on all clocks but the monotonic one: the machine was asleep.
    pub fn suspend_ms(&self, ms: u64) {
        self.slept_ms.fetch_add(ms, Ordering::SeqCst);
        let micros = i64::try_from(ms.saturating_mul(1000)).unwrap_or(i64::MAX);
        self.wall_micros.fetch_add(micros, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Micros {
        Micros(self.wall_micros.load(Ordering::SeqCst))
    }

    fn monotonic_ms(&self) -> u64 {
        self.monotonic_micros.load(Ordering::SeqCst) / 1000
    }

    fn boottime_ms(&self) -> u64 {
        self.monotonic_ms() + self.slept_ms.load(Ordering::SeqCst)
    }
}

/// Entropy that gives the same bytes for the same seed (SplitMix64). For tests and simulation, never for keys.
#[derive(Debug)]
pub struct SeededEntropy(AtomicU64);

/// Increment of SplitMix64: 2^64 divided by the golden ratio, odd, so that all states are visited.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl SeededEntropy {
    pub fn new(seed: u64) -> SeededEntropy {
        SeededEntropy(AtomicU64::new(seed))
    }

    /// Returns the next 64 bits. Threads that share a source get different ones, in no fixed order.
    pub fn next_u64(&self) -> u64 {
        let mut z = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl Entropy for SeededEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_told() {
        let clock = ManualClock::new(Micros(5));
        assert_eq!((clock.now(), clock.monotonic_ms()), (Micros(5), 0));
        clock.advance_ms(2);
        assert_eq!((clock.now(), clock.monotonic_ms()), (Micros(2005), 2));
        clock.advance_micros(999);
        assert_eq!((clock.now(), clock.monotonic_ms()), (Micros(3004), 2));
    }

    #[test]
    fn setting_or_suspending_leaves_the_monotonic_clock_alone() {
        let clock = ManualClock::new(Micros(1_000_000));
        clock.advance_ms(7);
        clock.set(Micros(0));
        assert_eq!((clock.now(), clock.monotonic_ms()), (Micros(0), 7));
        clock.suspend_ms(1000);
        assert_eq!((clock.now(), clock.monotonic_ms()), (Micros(1_000_000), 7));
    }

    /// Bug: a clock that was a day back for four seconds halted a run for good.
    /// Consequence: with a minute of its wall time used, it was over for good.
    /// Cause: each heartbeat believed the clock; the wall time that it kept over the step back was a day over after the
    /// step ahead.
    #[test]
    fn a_wall_clock_is_believed_elsewhere_only_when_it_stays_there() {
        const DAY: i64 = 86_400_000_000;
        const START: i64 = 20_000 * DAY;
        let mut filter = JumpFilter::default();
        let mut check = |ms: u64, off: i64, wanted_off: i64| {
            let true_time = START + ms as i64 * 1_000;
            assert_eq!(filter.read(Micros(true_time + off), ms).0 - true_time, wanted_off, "{ms} {off}");
        };
        check(0, 0, 0);
        for (ms, off, wanted_off) in
            [(1_000, -DAY, 0), (2_000, DAY, 0), (3_000, -1, -1), (4_000, 900_000, 900_000)]
        {
            check(ms, off, wanted_off);
            check(ms + 500, off, wanted_off);
            check(ms + 501, 0, 0);
        }
        check(10_000, DAY, 0);
        check(69_999, DAY, 0);
        check(70_000, DAY, DAY);
        check(70_001, DAY, DAY);
        // The correction is a jump as well.
        check(71_000, 0, DAY);
        check(131_000, 0, 0);
    }

    // The published first outputs of SplitMix64 for seed 0.
    #[test]
    fn seeded_entropy_is_splitmix64() {
        let entropy = SeededEntropy::new(0);
        assert_eq!(entropy.next_u64(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(entropy.next_u64(), 0x6e78_9e6a_a1b9_65f4);
        assert_eq!(entropy.next_u64(), 0x06c4_5d18_8009_454f);
    }

    #[test]
    fn a_seed_gives_the_same_bytes_again_and_another_seed_others() {
        let (a, b, c) = (SeededEntropy::new(42), SeededEntropy::new(42), SeededEntropy::new(43));
        let first = random::<13>(&a);
        assert_eq!(first, random::<13>(&b));
        assert_ne!(first, random::<13>(&c));
        assert_ne!(first, random::<13>(&a));
    }

    #[test]
    fn both_traits_can_be_handed_in_as_objects() {
        let clock: Box<dyn Clock> = Box::new(ManualClock::new(Micros(1)));
        let entropy: Box<dyn Entropy> = Box::new(SeededEntropy::new(1));
        assert_eq!(clock.now(), Micros(1));
        assert_ne!(random::<8>(&*entropy), [0; 8]);
    }
}
