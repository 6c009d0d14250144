//! End attempt: closes an attempt and decides what becomes of the run, which may be opened again.

use crate::engine::{Active, prelude::*, run::process::post_active};

/// Ends an attempt with its observed exit, and sets what the run does next.
///
/// Synced. Idempotent: an attempt that has ended stays as it was. A halted run stays halted unless the agent finished
/// its work (`Then::Complete`); `Then::Interrupt` interrupts the run only if no attempt is open in another slot.
#[derive(Clone, Debug)]
pub struct EndAttempt {
    pub run: RunNo,
    pub attempt: AttemptNo,
    pub instance: InstanceNo,
    pub exit: Exit,
    pub active_ms: i64,
    pub then: Then,
}

impl EndAttempt {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Run(self.run), Need::Attempt(self.run, self.attempt), Need::OpenAttempts(self.run)]
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Status, Error> {
        let run = l.run(self.run)?;
        let (id, status) = (run.id.to_string(), run.status);
        let lost = || Error::LeaseLost { id: id.clone(), attempt: self.attempt.0 };
        let attempt = l.attempt(self.run, self.attempt).ok_or_else(lost)?;
        if attempt.instance != Some(self.instance) {
            return Err(lost());
        }
        if !attempt.is_open() {
            return Ok(status);
        }
        // An end that a person asked for is no death, whoever saw it.
        let is_asked = (run.stop_requested || status == Status::Cancelled) && self.exit.code != Some(0);
        let stopped = self.exit.stopped || is_asked && !self.exit.oom;
        let awaited = run.awaited_outage().filter(|_| self.then == Then::AwaitProvider);
        let outage = awaited.map(|(outage, _)| outage.clone());
        post_active(l, &Active { run: self.run, attempt: self.attempt, ms: self.active_ms }, now)?;
        if let Some(a) = l.attempt_mut(self.run, self.attempt) {
            a.ended_at = Some(now);
            a.exit = Some(Exit { outage, stopped, ..self.exit.clone() });
        }
        let event = match &self.then {
            Then::Restart => return Ok(status),
            Then::Turn => {
                let run = l.run_mut(self.run)?;
                // For the crash-loop rule, this is progress even if the agent records nothing.
                run.closed += 1;
                if let Some(turns) = &mut run.turns {
                    turns.finished = run.iteration + 1;
                }
                return Ok(status);
            }
            // A limit of the run itself may have been reached at the same moment: that needs a person.
            Then::Sleep { .. } | Then::Wait | Then::AwaitProvider if status == Status::Halted => {
                Event::Interrupt
            }
            Then::Sleep { .. } => Event::Sleep,
            // Room may have come back at the same moment: then the run stays running.
            Then::Wait | Then::AwaitProvider => return Ok(status),
            Then::Interrupt { .. } => Event::Interrupt,
            Then::Complete => Event::Complete,
            Then::Fail(_) => Event::Fail,
        };
        if status.is_ended() {
            return Ok(status);
        }
        let others = l.has_open_attempt(self.run);
        let run = l.run_mut(self.run)?;
        run.stop_requested |= matches!(self.then, Then::Interrupt { by_person: true });
        // A job is over when its last worker ends.
        let worker = run.job.is_some() && event == Event::Complete;
        if (matches!(event, Event::Interrupt | Event::Sleep) || worker) && others {
            return Ok(status);
        }
        let after = guard::shift(run, event, now)?;
        if let (Then::Sleep { until, why }, Status::Sleeping) = (&self.then, after) {
            run.wake_at = Some(*until);
            run.halt = why.as_deref().cloned();
        }
        if let (Then::Fail(why), Status::Failed) = (&self.then, after) {
            run.error = Some(why.clone());
        }
        if after == Status::Interrupted {
            run.error = self.exit.why.clone();
        }
        Ok(after)
    }
}

/// Continuation of a run after a supervised attempt has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Then {
    /// The same driver starts another attempt: the run stays running.
    Restart,
    /// An iteration of the run's loop is over. `JudgeIteration` decides next whether the loop goes on; until then the
    /// run stays running.
    Turn,
    /// The provider's usage limit is reached, or the ceiling on a plan that `why` names: no attempt starts before
    /// `until`.
    Sleep {
        until: Micros,
        why: Option<Box<Refusal>>,
    },
    /// The run's calls wait for room in the budget of an ancestor or in a named budget: no attempt starts
    /// before there is room.
    Wait,
    /// The provider answers no call: the run stays waiting, for the outage that its row names.
    AwaitProvider,
    /// The run is interrupted. `by_person`: a person stopped it, so that `outlast resume --all` leaves it alone.
    Interrupt {
        by_person: bool,
    },
    Complete,
    Fail(String),
}

/// Makes a completed run interrupted, so that it can be claimed. A run in any other status stays as it is.
///
/// Starts no attempt. Synced. Idempotent. Returns the run's status.
#[derive(Clone, Debug)]
pub struct Reopen {
    pub run: RunNo,
}

impl Reopen {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Run(self.run)]
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Status, Error> {
        let run = l.run(self.run)?;
        if run.status != Status::Completed {
            return Ok(run.status);
        }
        guard::shift(l.run_mut(self.run)?, Event::Reopen, now)
    }
}
