//! Begin step: opens a named piece of work, or finds its recorded result.

use std::sync::Arc;

use crate::{
    engine::{
        Error,
        actor::Actor,
        loaded::{Loaded, Need},
        rule::{guard, within},
    },
    journal::{Entry, Kind, Opening, State, StepDetail, scope},
    words::id::{Micros, Seq, Slot},
};

/// Opens the step `key` in `scope`, or finds its recorded outcome.
///
/// `Committed`: losing the opening to power loss only makes the step look unstarted. A step that another process
/// had begun moves to this instance; the old process then gets `AlreadyTaken` when it closes the step.
/// A finished step is found in a completed run too. A failed step is opened again as a new entry.
/// A step that may happen `at_most_once` is `Synced`: intent before effect. If it was begun before and not recorded,
/// it is `InDoubt`. Errors: `NotWithin` when `within` is not open here, or `scope` is not the scope of its steps.
#[derive(Clone, Debug)]
pub struct BeginStep {
    pub actor: Actor,
    pub slot: Slot,
    /// Scope of the iteration, or of the steps in `within`: see `scope`.
    pub scope: Arc<str>,
    pub key: String,
    /// Open item or step that the step is begun in; `None` outside of both.
    pub within: Option<Seq>,
    /// Whether each try of the step has a scope of its own: `NextTry` begins the second.
    pub retries: bool,
    pub at_most_once: bool,
}

impl BeginStep {
    pub fn needs(&self) -> Vec<Need> {
        let run = self.actor.run;
        let mut needs = Vec::from(guard::needs(&self.actor, self.slot));
        needs.push(Need::Keyed(run, Kind::Step, self.scope.to_string(), self.key.clone()));
        needs.extend(self.within.map(|seq| Need::Entry(run, seq)));
        needs
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Step, Error> {
        guard::drives(l, &self.actor)?;
        let run = self.actor.run;
        if let Some(seq) = self.within {
            within::check(l, &self.actor, seq)?;
            if l.entry(run, seq).and_then(scope::steps_in).as_ref() != Some(&self.scope) {
                return Err(Error::NotWithin { seq: seq.0 });
            }
        }
        let found = l.keyed(Kind::Step, &self.scope, &self.key).map(|e| {
            let mut detail = e.step.as_deref().cloned().unwrap_or_default();
            if e.attempt != self.actor.attempt {
                // This attempt has taken none of the answers yet.
                detail.untaken = detail.answers;
            }
            (e.seq, e.state, detail)
        });
        if let Some((seq, State::Done, _)) = found {
            return Ok(Step::Done { seq });
        }
        guard::may_open(l, run)?;
        let (seq, before, detail) = match found {
            Some((seq, State::Open, d)) if self.at_most_once || d.at_most_once => {
                return Ok(Step::InDoubt { seq });
            }
            Some((seq, State::Open, d)) => (seq, true, d),
            old => {
                let key = Some(self.key.clone());
                let seq = append(l, &self.actor, Kind::Step, State::Open, self.scope.clone(), key, now)?;
                // The answers of a failed step are waited for until the new one is done. All its tries raised an
                // error, so none of them continues.
                let mut detail = old.map_or_else(StepDetail::default, |(_, _, d)| d);
                detail.try_no += i64::from(detail.retries);
                if !detail.again {
                    // The step was given up: beginning it anew allows all tries again.
                    detail.first_try = detail.try_no;
                }
                (seq, false, detail)
            }
        };
        let opening = l.opening(&self.actor, seq);
        let entry = l.take_over(&self.actor, seq).ok_or(Error::NotLoaded("the step"))?;
        let detail = StepDetail {
            within: self.within,
            retries: self.retries,
            try_no: if self.retries { detail.try_no.max(1) } else { 0 },
            first_try: if self.retries { detail.first_try.max(1) } else { 0 },
            at_most_once: self.at_most_once,
            again: false,
            resolved: false,
            ..detail
        };
        let (try_no, tries) = (detail.try_no, detail.tries());
        // Most steps have no such detail, which keeps their rows small.
        entry.step = Some(Box::new(detail)).filter(|d| **d != StepDetail::default());
        Ok(Step::Run { opening, begun_before: before, try_no, tries })
    }
}

/// Appends an entry other than a call to the journal.
pub fn append(
    l: &mut Loaded,
    actor: &Actor,
    kind: Kind,
    state: State,
    scope: Arc<str>,
    key: Option<String>,
    now: Micros,
) -> Result<Seq, Error> {
    let run = l.run_mut(actor.run)?;
    let seq = run.next_seq;
    run.next_seq = Seq(seq.0 + 1);
    run.closed += i64::from(state == State::Done);
    l.insert_entry(Entry {
        instance: Some(actor.instance),
        key,
        ..Entry::new(actor.run, seq, kind, state, actor.attempt, scope, now)
    });
    Ok(seq)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The step is open: run it. `try_no` is 0 in a step without retries. `tries` counts the tries since the step was
    /// begun or last given up, including this one, over all processes.
    Run { opening: Opening, begun_before: bool, try_no: i64, tries: i64 },
    /// The step's result is recorded.
    Done { seq: Seq },
    /// The `at_most_once` step may have happened, and nobody knows whether. It does not run again by itself.
    InDoubt { seq: Seq },
}
