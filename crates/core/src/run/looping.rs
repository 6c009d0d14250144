//! Loops: one command run again and again, each clean exit an iteration, and the rules for its end.
//!
//! A crash is no iteration: it restarts the one it was in, with the same standard input.

use serde::{Deserialize, Serialize};

/// Number of iterations in a row that may change nothing before the loop counts as stuck.
pub const UNCHANGED: i64 = 3;

/// Settings of `--loop` (the command is started again and again), stored with the run's command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Looping {
    /// Number of iterations after which the run is completed; `None`: no such number.
    pub max_iterations: Option<i64>,
    /// Shell command that completes the run when it succeeds after an iteration; `None` if there is none.
    pub until: Option<String>,
    /// Absolute path of the file that each iteration reads anew as its standard input; `None` if there is none.
    pub input: Option<String>,
}

/// Progress of a loop. An iteration is finished when its agent exited with 0, and judged when `JudgeIteration` has
/// decided what follows. After a death between the two it is still judged exactly once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Turns {
    /// Number of iterations whose agent exited with 0.
    pub finished: i64,
    pub judged: i64,
    /// Digest of the files and context that the newest judged iteration left behind; `None` if not known.
    pub mark: Option<String>,
    /// Number of judged iterations in a row that left the same mark as the one before.
    pub unchanged: i64,
}

/// Decision on what follows an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The next iteration follows.
    Next,
    /// The command of `--until` succeeded: the loop is done.
    Until,
    /// The loop has run as many iterations as `--max-iterations` allows.
    Enough,
    /// [`UNCHANGED`] iterations in a row changed nothing.
    Stuck,
}

impl Turns {
    /// Decides what follows the iteration that is finished.
    ///
    /// `mark` is the digest of what the iteration left behind; `None` if it cannot be determined: the iteration then
    /// does not count as unchanged. Idempotent: an iteration is counted once.
    pub fn judge(&mut self, looping: &Looping, mark: Option<&str>, until: bool) -> Verdict {
        if self.judged < self.finished {
            self.judged = self.finished;
            let same = mark.is_some() && mark == self.mark.as_deref();
            self.unchanged = if same { self.unchanged + 1 } else { 0 };
            self.mark = mark.map(str::to_owned);
        }
        match () {
            () if until => Verdict::Until,
            () if looping.max_iterations.is_some_and(|max| self.finished >= max) => Verdict::Enough,
            () if self.unchanged >= UNCHANGED => Verdict::Stuck,
            () => Verdict::Next,
        }
    }

    /// Clears the count of unchanged iterations, when a person resumes the loop.
    pub fn forgive(&mut self) {
        self.unchanged = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Judges iterations that left these marks behind, and gives the verdicts.
    fn verdicts(looping: &Looping, before: Option<&str>, marks: &[Option<&str>]) -> Vec<Verdict> {
        let mut turns = Turns { mark: before.map(str::to_owned), ..Turns::default() };
        marks
            .iter()
            .map(|mark| {
                turns.finished += 1;
                turns.judge(looping, *mark, false)
            })
            .collect()
    }

    #[test]
    fn a_loop_is_stuck_when_three_iterations_in_a_row_change_nothing() {
        use Verdict::{Next, Stuck};
        let check = |before, marks: &[Option<&str>], wanted: &[Verdict]| {
            assert_eq!(verdicts(&Looping::default(), before, marks), wanted, "{before:?} {marks:?}");
        };
        let (a, b) = (Some("a"), Some("b"));
        check(a, &[a, a, a], &[Next, Next, Stuck]);
        check(a, &[a, a, b, b, b, b], &[Next, Next, Next, Next, Next, Stuck]);
        check(a, &[b, a, b, a], &[Next; 4]);
        // An unknown mark does not count as unchanged.
        check(None, &[None; 5], &[Next; 5]);
        check(a, &[a, a, None, a, a, a, a], &[Next, Next, Next, Next, Next, Next, Stuck]);
        check(None, &[a, a, a, a], &[Next, Next, Next, Stuck]);
    }

    #[test]
    fn a_loop_ends_by_its_command_before_its_count_and_by_its_count_before_standing_still() {
        let looping = Looping { max_iterations: Some(3), ..Looping::default() };
        let a = Some("a");
        assert_eq!(verdicts(&looping, a, &[a, a, a]), [Verdict::Next, Verdict::Next, Verdict::Enough]);
        let mut turns = Turns { finished: 3, judged: 2, unchanged: 2, mark: Some("a".into()) };
        assert_eq!(turns.judge(&looping, a, true), Verdict::Until);
    }

    #[test]
    fn an_iteration_that_is_judged_twice_counts_once() {
        let mut turns = Turns { finished: 1, mark: Some("a".into()), ..Turns::default() };
        for _ in 0..5 {
            assert_eq!(turns.judge(&Looping::default(), Some("a"), false), Verdict::Next);
            assert_eq!((turns.judged, turns.unchanged), (1, 1));
        }
    }
}
