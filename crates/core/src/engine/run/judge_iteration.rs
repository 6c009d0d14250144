//! Judge iteration: decides what follows an iteration of the run's loop.

use crate::{
    engine::{
        Error,
        loaded::{Loaded, Need},
        rule::guard,
    },
    run::{
        looping::{Looping, Verdict},
        status::{Event, Status},
    },
    words::id::{InstanceNo, Micros, RunNo, Slot},
};

/// Decides whether the loop goes on after a finished iteration, and ends the run if it does not.
///
/// The run completes by `until` or the largest number of iterations, and fails when it makes no progress; see
/// [`crate::run::looping`]. Synced. Idempotent over a death: an iteration counts once. Errors: `LeaseLost` when
/// another process drives the run by now; `RunHalted`, `RunEnded`.
#[derive(Clone, Debug)]
pub struct JudgeIteration {
    pub run: RunNo,
    pub instance: InstanceNo,
    pub looping: Looping,
    /// Digest of the files and context that the iteration left behind; `None` if it cannot be determined.
    pub mark: Option<String>,
    /// Whether the command `looping.until` succeeded after the iteration.
    pub until: bool,
}

impl JudgeIteration {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Instance(self.instance), Need::Run(self.run), Need::Lease(self.run, Slot::DRIVER)]
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Verdict, Error> {
        guard::live(l, self.instance)?;
        let run = l.run(self.run)?;
        if l.lease(self.run, Slot::DRIVER).is_none_or(|lease| lease.instance != self.instance) {
            return Err(Error::LeaseLost { id: run.id.to_string(), attempt: run.next_attempt.0 - 1 });
        }
        let run = l.run_mut(self.run)?;
        let Some(turns) = &mut run.turns else { return Err(Error::NotLoaded("a run that is a loop")) };
        let verdict = turns.judge(&self.looping, self.mark.as_deref(), self.until);
        match verdict {
            Verdict::Next => {}
            Verdict::Until | Verdict::Enough => drop(guard::shift(run, Event::Complete, now)?),
            Verdict::Stuck => {
                turns.forgive();
                if guard::shift(run, Event::Fail, now)? == Status::Failed {
                    run.error = Some(STUCK.into());
                }
            }
        }
        Ok(verdict)
    }
}

/// Failure message of a loop that makes no progress.
pub const STUCK: &str =
    "no progress: three iterations in a row changed neither git HEAD, nor the worktree, nor the task context";
