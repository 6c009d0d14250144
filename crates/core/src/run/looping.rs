//! A loop: one command run again and again, each clean exit an iteration; when it is over.
//!
//! A crash is no iteration: it restarts the one it was in, with the same standard input.

use serde::{Deserialize, Serialize};

/// Iterations in a row that may change nothing: then the loop gets nowhere.
pub const UNCHANGED: i64 = 3;

/// What `--loop` was asked for. Kept with the run's command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Looping {
    /// Completed after so many iterations.
    pub max_iterations: Option<i64>,
    /// Completed when this shell command succeeds after an iteration.
    pub until: Option<String>,
    /// The file that each iteration reads anew as its standard input, as an absolute path.
    pub input: Option<String>,
}

/// How far a loop is. An iteration is finished when its agent ended with 0, and judged when it is decided
/// what follows: a death between the two judges it once all the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Turns {
    /// Iterations whose agent ended with 0.
    pub finished: i64,
    pub judged: i64,
    /// What the newest judged iteration left behind: its files and context, as a digest.
    pub mark: Option<String>,
    /// Judged iterations in a row that left the same mark as the one before.
    pub unchanged: i64,
}

/// What follows an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The next one.
    Next,
    /// `--until` succeeded.
    Until,
    /// `--max-iterations` are done.
    Enough,
    /// [`UNCHANGED`] iterations changed nothing.
    Stuck,
}

impl Turns {
    /// Judges the iteration that is finished.
    ///
    /// `mark` is what it left behind; `None` where that cannot be told, and then it is no sign of standing
    /// still. Idempotent: an iteration that was judged counts once.
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

    /// A person takes it up again: it may stand still for as long again.
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
        // What cannot be told is no sign of standing still.
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
