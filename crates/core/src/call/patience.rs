//! Patience: decides whether and when to retry an upstream that refused a call or was not reached.
//!
//! Retries only where nothing can have been billed: no connection was made, or the answer is a refusal that says
//! that it will pass. In an outage a call is held for longer: its pauses are those of `call::outages`. Pure: time and
//! randomness are passed in.

use crate::words::Cause;

/// Longest first pause, in milliseconds. Each later pause may be twice as long as the one before.
const FIRST_MS: u64 = 500;

/// Longest pause, in milliseconds, unless the upstream asks for more.
const LONGEST_MS: u64 = 8_000;

/// Longest `Retry-After` that is waited for, in milliseconds. Beyond it the client is told, and decides itself.
const LONGEST_ASKED_MS: u64 = 20_000;

/// Limits on the tries of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Patience {
    /// Largest number of tries, including the first.
    pub tries: u32,
    /// Time after the first try, in milliseconds, beyond which no try begins.
    pub within_ms: u64,
    /// Time after the first try, in milliseconds, for which a call is held in an outage; 0: never.
    pub hold_ms: u64,
    /// Seed of the jitter, so that calls refused together do not come back together.
    pub seed: u64,
}

/// Facts about a failed try.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailedTry {
    /// Time since the first try was sent, in milliseconds.
    pub elapsed_ms: u64,
    /// Wait that the upstream asks for, in milliseconds; `None` if it asks for none.
    pub retry_after_ms: Option<u64>,
    /// Whether the upstream refuses everything for long (a usage limit), or this process is about to end.
    pub lasting: bool,
    /// Cause of the outage that the failure may be part of; `None` if it is no sign of an outage.
    pub cause: Option<Cause>,
    /// Time to the next probe, in milliseconds; `None` if there is no outage. Set by the desk.
    pub probe_ms: Option<u64>,
}

impl Patience {
    /// Allows a single try.
    pub const NONE: Patience = Patience { tries: 1, within_ms: 0, hold_ms: 0, seed: 0 };

    /// Returns the pause before the next try in milliseconds; `None` if there is no next try, so that the last answer
    /// counts. `tried` tries failed, the last one with `status`, or with `None` where the upstream was not reached.
    pub fn pause_ms(&self, tried: u32, status: Option<u16>, told: FailedTry) -> Option<u64> {
        if self.holds(told) {
            let until_ms = told.elapsed_ms.saturating_add(told.probe_ms?);
            return (!told.lasting && until_ms <= self.hold_ms).then_some(told.probe_ms?);
        }
        let passes = status.is_none_or(|status| matches!(status, 429 | 503 | 529));
        let asked = told.retry_after_ms.unwrap_or(0);
        if !passes || told.lasting || tried >= self.tries || asked > LONGEST_ASKED_MS {
            return None;
        }
        let most = LONGEST_MS.min(FIRST_MS << tried.saturating_sub(1).min(10));
        // Full jitter on top of the requested wait, never before it.
        let pause = asked + chance(self.seed, tried) % (most + 1);
        (told.elapsed_ms.saturating_add(pause) <= self.within_ms).then_some(pause)
    }

    /// Returns whether the call is held because of an outage, so that its client never sees the single failures.
    pub fn holds(&self, told: FailedTry) -> bool {
        self.hold_ms > 0 && told.probe_ms.is_some()
    }
}

/// Returns a pseudo-random number (splitmix64).
pub(super) fn chance(seed: u64, n: u32) -> u64 {
    let mut z = seed.wrapping_add(u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience { tries: 3, within_ms: 45_000, hold_ms: 600_000, seed: 7 };

    #[test]
    fn only_what_passes_and_was_not_billed_is_tried_again() {
        for (status, again) in [
            (None, true),
            (Some(429), true),
            (Some(503), true),
            (Some(529), true),
            (Some(200), false),
            (Some(301), false),
            (Some(400), false),
            (Some(408), false),
            (Some(500), false),
            (Some(502), false),
            (Some(504), false),
        ] {
            assert_eq!(PATIENCE.pause_ms(1, status, FailedTry::default()).is_some(), again, "{status:?}");
        }
    }

    #[test]
    fn tries_are_few_within_a_bound_and_end_where_waiting_does_not_help() {
        let check = |tried, told, again: bool| {
            assert_eq!(PATIENCE.pause_ms(tried, Some(429), told).is_some(), again, "{tried} {told:?}");
        };
        let asked = |ms| FailedTry { retry_after_ms: Some(ms), ..FailedTry::default() };
        check(2, FailedTry::default(), true);
        check(3, FailedTry::default(), false);
        check(1, asked(20_000), true);
        check(1, asked(20_001), false);
        check(1, FailedTry { elapsed_ms: 44_000, ..FailedTry::default() }, true);
        check(1, FailedTry { elapsed_ms: 45_001, ..FailedTry::default() }, false);
        check(1, FailedTry { elapsed_ms: 30_000, ..asked(15_001) }, false);
        check(1, FailedTry { lasting: true, ..FailedTry::default() }, false);
        assert_eq!(Patience::NONE.pause_ms(1, None, FailedTry::default()), None);
    }

    #[test]
    fn in_an_outage_a_call_is_held_as_long_as_its_client_waits_whatever_the_number_of_tries() {
        let check = |patience: Patience, told: FailedTry, wanted: Option<u64>| {
            let told = FailedTry { probe_ms: Some(60_000), ..told };
            assert_eq!(patience.pause_ms(90, Some(500), told), wanted, "{told:?}");
        };
        let at = |elapsed_ms| FailedTry { elapsed_ms, ..FailedTry::default() };
        check(PATIENCE, at(0), Some(60_000));
        check(PATIENCE, at(540_000), Some(60_000));
        check(PATIENCE, at(540_001), None);
        check(PATIENCE, FailedTry { lasting: true, ..at(0) }, None);
        check(Patience { hold_ms: 0, ..PATIENCE }, at(0), None);
    }

    #[test]
    fn pauses_grow_by_chance_and_never_fall_short_of_what_is_asked() {
        let mut longest = [0; 6];
        for seed in 0..2_000 {
            let p = Patience { tries: 100, seed, ..PATIENCE };
            for tried in 1..=6 {
                let pause = p.pause_ms(tried, Some(429), FailedTry::default()).unwrap();
                let at = &mut longest[tried as usize - 1];
                *at = pause.max(*at);
                let asked = FailedTry { retry_after_ms: Some(3_000), ..FailedTry::default() };
                assert!(p.pause_ms(tried, Some(429), asked).unwrap() >= 3_000);
            }
        }
        for (had, most) in longest.into_iter().zip([500, 1_000, 2_000, 4_000, 8_000, 8_000]) {
            assert!(had <= most && had > most * 9 / 10, "{longest:?}");
        }
    }
}
