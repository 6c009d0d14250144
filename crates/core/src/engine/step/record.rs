//! Record: closes a step with its result and the state it changed.

use crate::{
    engine::{
        Error,
        actor::Actor,
        loaded::{Loaded, Need},
        rule::{closing, within},
        state::put::Change,
    },
    journal::{Kind, Opening, Role, State, iteration_scope, payload::Payload},
    words::id::{Micros, Seq},
};

/// Closes an open step with its result; the state changes of the step commit with it.
///
/// Synced: a caller sees a step's result only after this. Authorised by the entry's own instance; with changes also
/// by the fence of the entry's attempt. Without the fence neither result nor changes are recorded.
/// Errors: `AlreadyTaken` when another process has begun the step anew; `AlreadySettled`; with changes `LeaseLost`
/// and `InstanceDead`.
#[derive(Clone, Debug)]
pub struct Record {
    pub opening: Opening,
    /// Result of the step, or its error as the journal keeps it.
    pub value: Payload,
    pub failed: bool,
    /// Whether the try failed and another follows. The next process to begin the step continues the count of tries.
    pub again: bool,
    pub changes: Vec<Change>,
}

impl Record {
    pub fn needs(&self) -> Vec<Need> {
        let mut needs = closing::needs(&self.opening);
        needs.extend(Change::needs_of_result(&self.changes, self.opening.run, self.opening.instance));
        needs
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Seq, Error> {
        let Opening { run, seq, instance, .. } = self.opening;
        closing::open_entry(l, &self.opening, |kind| !matches!(kind, Kind::Call | Kind::Item))?;
        let entry = l.entry_mut(run, seq).ok_or(Error::NotLoaded("the step"))?;
        let attempt = entry.attempt;
        entry.state = if self.failed { State::Failed } else { State::Done };
        entry.closed_at = Some(now);
        if let Some(step) = entry.step.as_mut().filter(|_| self.failed) {
            step.again = self.again;
        }
        l.run_mut(run)?.closed += i64::from(!self.failed);
        if !self.failed {
            self.forget_answers(l)?;
        }
        l.keep_payload(run, seq, Role::Value, self.value.clone());
        let actor = Actor { run, attempt, instance };
        Change::apply_with_result(&self.changes, l, actor, now)?;
        Ok(seq)
    }

    /// Removes the answers of a step that is done from the counts of answers to be taken: those of its run, of the
    /// steps around it and of the attempt that runs it.
    fn forget_answers(&self, l: &mut Loaded) -> Result<(), Error> {
        let Opening { run: no, seq, .. } = self.opening;
        let Some(entry) = l.entry(no, seq) else { return Ok(()) };
        let attempt = entry.attempt;
        let (answers, untaken) = entry.step.as_ref().map_or((0, 0), |d| (d.answers, d.untaken));
        let scope = within::calls(l, no, seq);
        let run = l.run_mut(no)?;
        if answers == 0 || scope != Some(iteration_scope(run.iteration)) {
            return Ok(());
        }
        run.answers = (run.answers - answers).max(0);
        // The attempt is loaded only when the step has untaken answers.
        if untaken > 0
            && let Some(a) = l.attempt_mut(no, attempt)
        {
            a.untaken = (a.untaken - untaken).max(0);
        }
        for outer in within::around(l, no, seq) {
            if let Some(step) = l.entry_mut(no, outer).and_then(|e| e.step.as_mut()) {
                step.answers = (step.answers - answers).max(0);
                step.untaken = (step.untaken - untaken).max(0);
            }
        }
        Ok(())
    }
}
