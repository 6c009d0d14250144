//! End of a process, and the policy for it.

use std::{fmt, time::Duration};

use rustix::process::WaitIdStatus;

/// End of a process: an exit code or a signal. Neither is set if the kernel did not report it.
///
/// Displayed in the words of all faces: `exited with 3`, `killed by SIGKILL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
}

impl Exit {
    pub const fn code(code: i32) -> Exit {
        Exit { code: Some(code), signal: None }
    }

    pub const fn signal(signal: i32) -> Exit {
        Exit { code: None, signal: Some(signal) }
    }

    pub(super) fn of(status: &WaitIdStatus) -> Exit {
        Exit { code: status.exit_status(), signal: status.terminating_signal() }
    }

    /// Returns the exit code that a shell would report: the code, or 128 + the signal; 1 if neither is known.
    pub fn shell_code(&self) -> i32 {
        self.code.or(self.signal.map(|signal| 128 + signal)).unwrap_or(1)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(0), _) => f.write_str("finished"),
            (Some(code), _) => write!(f, "exited with {code}"),
            (None, Some(signal)) => match signal_hook::low_level::signal_name(signal) {
                Some(name) => write!(f, "killed by {name}"),
                None => write!(f, "killed by signal {signal}"),
            },
            (None, None) => f.write_str("ended"),
        }
    }
}

// --- what follows: whether the run is done, interrupted, stopped or restarted; the wait before the next attempt; and crash
// loops, in which restarting has stopped making sense

/// Consequence of an attempt's end for its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The agent exited with success: the task is done.
    Done,
    /// The agent ended because the supervisor asked it to, so the run is interrupted, whatever the exit code (many a
    /// handler exits 0 on SIGTERM).
    Interrupted,
    /// Another attempt would end the same way, so none is made.
    Stop(Futile),
    /// The agent died, so the next attempt is started.
    Restart(Death),
}

/// Reason why another attempt would be futile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Futile {
    /// The agent exited with 2 or 64 to 78 (sysexits.h) but for what passes ([`PASSING`]): wrong usage or configuration.
    Usage,
    /// Exit code 126: the command was found and is not executable.
    NotExecutable,
    /// Exit code 127: there is no such command.
    NotFound,
}

const USAGE: &str = "wrong usage or configuration";
const NOT_EXECUTABLE: &str = "the command cannot be executed";
const NOT_FOUND: &str = "the command was not found";

impl Futile {
    /// Returns the reason in words, with the agent's exit.
    pub fn words(self, exit: Exit) -> String {
        match self {
            Futile::Usage => format!("the agent {exit}: {USAGE}"),
            Futile::NotExecutable => NOT_EXECUTABLE.into(),
            Futile::NotFound => NOT_FOUND.into(),
        }
    }
}

/// Returns whether a run's error text is the [words](Futile::words) of a futile attempt: its command is to be corrected.
pub fn is_futile(error: &str) -> bool {
    [NOT_EXECUTABLE, NOT_FOUND].contains(&error) || error.ends_with(USAGE)
}

const TWICE: &str = "the agent ended twice in the same way";

/// Returns the reason why an agent that ended twice in the same way, without a call, is not started again. `said`: last line
/// that it printed; empty if there is none.
pub fn twice_words(exit: i32, said: &str) -> String {
    let said = if said.is_empty() { String::new() } else { format!(": {said}") };
    format!("{TWICE}, with exit {exit} and without a call{said}")
}

/// Returns whether a run's error text is [`twice_words`].
pub fn ended_twice(error: &str) -> bool {
    error.starts_with(TWICE)
}

/// Way in which an agent died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// The agent exited with a code that tells no more than that it failed.
    Failed,
    /// A signal other than SIGKILL ended the agent.
    Crashed,
    /// SIGKILL ended the agent, or a shell between reported 137: possibly the kernel's out-of-memory killer (see
    /// `memory.events`).
    Killed,
}

/// Codes of sysexits.h for what passes: a service that is away, a system short of something, an error of a disk, and
/// "try again".
const PASSING: [i32; 4] = [69, 71, 74, 75];

/// Decides the consequence of an agent's exit. `stop_asked`: the supervisor had sent it a signal to stop before.
pub fn judge(exit: Exit, stop_asked: bool) -> Verdict {
    if stop_asked {
        return Verdict::Interrupted;
    }
    match (exit.code, exit.signal) {
        (Some(0), _) => Verdict::Done,
        (Some(code), _) if PASSING.contains(&code) => Verdict::Restart(Death::Failed),
        (Some(2 | 64..=78), _) => Verdict::Stop(Futile::Usage),
        (Some(126), _) => Verdict::Stop(Futile::NotExecutable),
        (Some(127), _) => Verdict::Stop(Futile::NotFound),
        (Some(137), _) | (None, Some(9)) => Verdict::Restart(Death::Killed),
        // A shell reports a child's signal as 128 + its number.
        (Some(129..=192), _) | (None, Some(_)) => Verdict::Restart(Death::Crashed),
        (Some(_), _) | (None, None) => Verdict::Restart(Death::Failed),
    }
}

/// Abnormal end of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeathAt {
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
pub fn is_crash_loop(deaths: &[DeathAt]) -> bool {
    let Some(last) = deaths.last_chunk::<DEATHS>() else { return false };
    let (first, last) = (last[0], last[DEATHS - 1]);
    last.at_us.saturating_sub(first.at_us) <= WINDOW_US && last.entries_closed <= first.entries_closed
}

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
mod tests_of_crash_loops {
    use super::*;

    const MINUTE: i64 = 60 * 1_000_000;

    #[track_caller]
    fn check(deaths: &[(i64, u64)], looping: bool) {
        let made: Vec<DeathAt> =
            deaths.iter().map(|&(at_us, entries_closed)| DeathAt { at_us, entries_closed }).collect();
        assert_eq!(is_crash_loop(&made), looping, "{deaths:?}");
    }

    #[test]
    fn what_ended_twice_in_the_same_way_is_known_by_its_words() {
        let words = twice_words(1, "unknown option --x");
        assert!(words.ends_with("with exit 1 and without a call: unknown option --x"), "{words}");
        assert!(ended_twice(&words) && ended_twice(&twice_words(1, "")) && !is_futile(&words));
        assert!(!ended_twice(&Futile::Usage.words(Exit { code: Some(2), signal: None })));
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

#[cfg(test)]
mod tests_of_waits {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_reads_as_its_code_or_its_signal() {
        for (exit, shown, shell) in [
            (Exit::code(0), "finished", 0),
            (Exit::code(3), "exited with 3", 3),
            (Exit::signal(9), "killed by SIGKILL", 137),
            (Exit::signal(15), "killed by SIGTERM", 143),
            (Exit::signal(40), "killed by signal 40", 168),
            (Exit { code: None, signal: None }, "ended", 1),
        ] {
            assert_eq!((exit.to_string().as_str(), exit.shell_code()), (shown, shell));
        }
    }

    #[test]
    fn exits_are_judged_by_their_code_or_signal() {
        use {Death::*, Futile::*, Verdict::*};
        let cases = [
            (Exit::code(0), Done),
            (Exit::code(1), Restart(Failed)),
            (Exit::code(2), Stop(Usage)),
            (Exit::code(3), Restart(Failed)),
            (Exit::code(63), Restart(Failed)),
            (Exit::code(64), Stop(Usage)),
            (Exit::code(69), Restart(Failed)),
            (Exit::code(70), Stop(Usage)),
            (Exit::code(71), Restart(Failed)),
            (Exit::code(73), Stop(Usage)),
            (Exit::code(74), Restart(Failed)),
            (Exit::code(75), Restart(Failed)),
            (Exit::code(78), Stop(Usage)),
            (Exit::code(79), Restart(Failed)),
            (Exit::code(126), Stop(NotExecutable)),
            (Exit::code(127), Stop(NotFound)),
            (Exit::code(128), Restart(Failed)),
            (Exit::code(137), Restart(Killed)),
            (Exit::code(139), Restart(Crashed)),
            (Exit::code(255), Restart(Failed)),
            (Exit::signal(9), Restart(Killed)),
            (Exit::signal(11), Restart(Crashed)),
            (Exit::signal(15), Restart(Crashed)),
            (Exit { code: None, signal: None }, Restart(Failed)),
        ];
        for (exit, verdict) in cases {
            assert_eq!(judge(exit, false), verdict, "{exit}");
            assert_eq!(judge(exit, true), Interrupted, "{exit} after our own signal");
        }
    }
}
