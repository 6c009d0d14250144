//! Detection of crash loops, in which restarting has stopped making sense.

/// Abnormal end of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    /// Time at which the agent died, in microseconds since the Unix epoch.
    pub at_us: i64,
    /// Number of journal entries that the run had closed by then, over all its attempts.
    pub entries_closed: u64,
}

pub const DEATHS: usize = 5;
pub const WINDOW_US: i64 = 10 * 60 * 1_000_000;

/// Returns whether the last [`DEATHS`] deaths (given oldest first) happened within [`WINDOW_US`] microseconds, with no
/// entry closed between them.
///
/// An agent that dies often but gets a step further each time is slow, and not in a crash loop. Work done before the
/// first of these deaths does not count. A clock set back makes the span shorter, so it errs towards stopping.
pub fn is_crash_loop(deaths: &[Death]) -> bool {
    let Some(last) = deaths.last_chunk::<DEATHS>() else { return false };
    let (first, last) = (last[0], last[DEATHS - 1]);
    last.at_us.saturating_sub(first.at_us) <= WINDOW_US && last.entries_closed <= first.entries_closed
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: i64 = 60 * 1_000_000;

    #[track_caller]
    fn check(deaths: &[(i64, u64)], looping: bool) {
        let made: Vec<Death> =
            deaths.iter().map(|&(at_us, entries_closed)| Death { at_us, entries_closed }).collect();
        assert_eq!(is_crash_loop(&made), looping, "{deaths:?}");
    }

    #[test]
    fn five_deaths_in_ten_minutes_without_progress_are_a_crash_loop() {
        check(&[], false);
        check(&[(0, 0), (1, 0), (2, 0), (3, 0)], false);
        check(&[(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)], true);
        check(&[(0, 7), (0, 7), (0, 7), (0, 7), (10 * MINUTE, 7)], true);
        check(&[(0, 7), (0, 7), (0, 7), (0, 7), (10 * MINUTE + 1, 7)], false);
    }

    #[test]
    fn one_entry_closed_between_is_progress() {
        check(&[(0, 7), (1, 7), (2, 7), (3, 7), (4, 8)], false);
        check(&[(0, 7), (1, 8), (2, 8), (3, 8), (4, 8)], false);
        check(&[(0, 7), (1, 8), (2, 8), (3, 8), (4, 8), (5, 8)], true);
    }

    #[test]
    fn only_the_last_five_count() {
        check(
            &[
                (0, 0),
                (0, 0),
                (20 * MINUTE, 0),
                (21 * MINUTE, 0),
                (22 * MINUTE, 0),
                (23 * MINUTE, 0),
                (24 * MINUTE, 0),
            ],
            true,
        );
        check(&[(0, 0), (1, 0), (2, 0), (20 * MINUTE, 0), (21 * MINUTE, 0), (22 * MINUTE, 0)], false);
    }
}
