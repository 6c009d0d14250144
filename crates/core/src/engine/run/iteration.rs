//! Iterations: begins one, and judges what it came to.

use crate::{
    engine::prelude::*,
    run::{Looping, Verdict},
};

/// Stores the standard input of the attempt's iteration, before its first attempt reads it.
///
/// A restart of the iteration reads it with `reads::entries::iteration_input`. Synced. Idempotent: the first input of an
/// iteration stays. `mark` is the state before a loop's first iteration, which shows whether that iteration changed
/// anything. Errors: `LeaseLost`.
#[derive(Clone, Debug)]
pub struct BeginIteration {
    pub actor: Actor,
    /// Number of the iteration, from 0, as the attempt was claimed in.
    pub iteration: i64,
    pub input: Option<Payload>,
    pub mark: Option<String>,
}

impl BeginIteration {
    pub fn needs(&self) -> Vec<Need> {
        let run = self.actor.run;
        let scope = iteration_scope(self.iteration).to_string();
        let keyed = Need::Keyed(run, Kind::Iteration, scope, key(self.iteration));
        guard::needs(&self.actor, Slot::DRIVER, [keyed])
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Seq, Error> {
        guard::drives(l, &self.actor)?;
        let run = self.actor.run;
        let begun = |e: &Entry| e.run == run && e.kind == Kind::Iteration;
        if let Some(entry) = l.all::<Entry>().find(|e| begun(e)) {
            return Ok(entry.seq);
        }
        let (scope, key) = (iteration_scope(self.iteration), Some(key(self.iteration)));
        let seq = life::append(l, &self.actor, Kind::Iteration, State::Done, scope, key, now)?.seq;
        if let Some(payload) = self.input.clone() {
            l.keep_payload(run, seq, Role::Stdin, payload);
        }
        let row = l.run_mut(run)?;
        // For the crash-loop rule, beginning an iteration is no progress; finishing it is.
        row.closed -= 1;
        if let Some(turns) = row.turns.as_mut().filter(|t| t.judged == 0 && t.mark.is_none()) {
            turns.mark.clone_from(&self.mark);
        }
        Ok(seq)
    }
}

/// Returns the journal's key of an iteration. `iteration` counts from 0, the key from 1.
pub fn key(iteration: i64) -> String {
    (iteration + 1).to_string()
}

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
