//! Resolve step: records a person's decision on a step in doubt.

use std::sync::Arc;

use crate::{
    engine::{
        Error,
        actor::Actor,
        loaded::{Loaded, Need},
        rule::guard,
        step::{begin_step::append, record::Record},
    },
    journal::{Kind, State, StepDetail, payload::Payload},
    words::id::{InstanceNo, Micros, RunNo, Seq},
};

/// Records the outcome of an `at_most_once` step in doubt, as a person states it. Synced.
///
/// A step that was cut off is closed. A step that raised an error keeps its entry, and the correction is a new entry
/// after it. Either is marked as stated by a person. Not idempotent: a step that is done stays as it was.
/// Errors: `UnknownStep`; `NotInDoubt` for a step that runs again by itself; `StepRunning` while the process that
/// began it lives; `AlreadySettled` when its result is recorded; `AlreadyTaken` when it has moved since it was read.
#[derive(Clone, Debug)]
pub struct ResolveStep {
    pub run: RunNo,
    pub scope: Arc<str>,
    pub key: String,
    /// Instance that had the step when the caller read it; `None` if none had it.
    pub seen: Option<InstanceNo>,
    /// Instance that submits this, if it works in the run: it no longer runs the steps that it began itself. `None` for
    /// any other caller.
    pub by: Option<InstanceNo>,
    /// Result or error, as the step's own process would have recorded it.
    pub value: Payload,
    /// Whether the step failed. `value` then tells the next process that begins the step whether it may run again.
    pub failed: bool,
}

impl ResolveStep {
    pub fn needs(&self) -> Vec<Need> {
        let run = self.run;
        let mut needs = vec![
            Need::Run(run),
            Need::OpenAttempts(run),
            Need::Keyed(run, Kind::Step, self.scope.to_string(), self.key.clone()),
        ];
        needs.extend(self.seen.map(Need::Instance));
        needs
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Seq, Error> {
        let id = l.run(self.run)?.id.to_string();
        let old = l
            .keyed(Kind::Step, &self.scope, &self.key)
            .cloned()
            .ok_or_else(|| Error::UnknownStep { id: id.clone(), key: self.key.clone() })?;
        let detail = old.step.as_deref().cloned().unwrap_or_default();
        if old.state == State::Done {
            return Err(Error::AlreadySettled { seq: old.seq.0, state: old.state.name() });
        }
        if !detail.at_most_once {
            return Err(Error::NotInDoubt { id, key: self.key.clone() });
        }
        let actor = Actor { run: self.run, attempt: old.attempt, instance: old.instance.unwrap_or_default() };
        let seq = if old.state == State::Open {
            if old.instance != self.seen {
                return Err(Error::AlreadyTaken { seq: old.seq.0 });
            }
            if guard::lives(l, old.instance) && l.is_open(self.run, old.attempt) && old.instance != self.by {
                return Err(Error::StepRunning { id, key: self.key.clone() });
            }
            old.seq
        } else {
            append(l, &actor, Kind::Step, State::Open, self.scope.clone(), Some(self.key.clone()), now)?
        };
        let entry = l.take_over(&actor, seq).ok_or(Error::NotLoaded("the step"))?;
        entry.step = Some(Box::new(StepDetail { resolved: true, ..detail }));
        let record = Record {
            opening: l.opening(&actor, seq),
            value: self.value.clone(),
            failed: self.failed,
            again: false,
            changes: Vec::new(),
        };
        record.decide(l, now)
    }
}
