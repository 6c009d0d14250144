//! Verbs on steps and loops: begin a step, begin its next try, record it, resolve it; count a turn of the loop.

use std::sync::Arc;

use crate::{
    engine::prelude::*,
    journal::{StepDetail, scope},
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
        let keyed = Need::Keyed(run, Kind::Step, self.scope.to_string(), self.key.clone());
        let within = self.within.map(|seq| Need::Entry(run, seq));
        guard::needs(&self.actor, self.slot, [keyed].into_iter().chain(within))
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
                let scope = self.scope.clone();
                let seq = life::append(l, &self.actor, Kind::Step, State::Open, scope, key, now)?.seq;
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

/// Begins the next try of an item or a step: raises the number of the try, before the first call of the try,
/// and returns the new number.
///
/// Durability `Committed` is enough: the first call of the try is `Synced`, and the number with it. Answers
/// of the earlier try are not replayed to the new one. A try that was cut off by a crash, or that its worker
/// gave back, needs no `NextTry`: it continues under its number.
/// Errors: `NotWithin` when the entry is not open in this attempt; `AlreadyTaken` when another opening has
/// the entry's number; `NoRetries` for a step that was begun without retries; `RunHalted` when the run is
/// halted; `LeaseLost` when the process no longer holds the run's slot.
#[derive(Clone, Debug)]
pub struct NextTry {
    pub actor: Actor,
    pub slot: Slot,
    /// Opening of the item or step. Its number alone may be another entry's, after a database lost its last commits.
    pub opening: Opening,
}

impl NextTry {
    pub fn needs(&self) -> Vec<Need> {
        guard::needs(&self.actor, self.slot, [Need::Entry(self.actor.run, self.opening.seq)])
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<i64, Error> {
        guard::drives(l, &self.actor)?;
        let seq = self.opening.seq;
        within::check(l, &self.actor, seq)?;
        life::entry(l, &self.opening, |kind| matches!(kind, Kind::Item | Kind::Step))?;
        guard::may_open(l, self.actor.run)?;
        let entry = l.entry_mut(self.actor.run, seq).ok_or(Error::NotWithin { seq: seq.0 })?;
        let try_no = match (&mut entry.item, &mut entry.step) {
            (Some(item), _) => &mut item.try_no,
            (None, Some(step)) if step.retries => &mut step.try_no,
            _ => return Err(Error::NoRetries { seq: seq.0 }),
        };
        *try_no += 1;
        Ok(*try_no)
    }
}

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
        Change::needs_of_result(&self.changes, &self.opening)
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Seq, Error> {
        let Opening { run, seq, instance, .. } = self.opening;
        life::open_entry(l, &self.opening, |kind| !matches!(kind, Kind::Call | Kind::Item))?;
        let state = if self.failed { State::Failed } else { State::Done };
        let entry = life::close(l, run, seq, state, now)?;
        let attempt = entry.attempt;
        if let Some(step) = entry.step.as_mut().filter(|_| self.failed) {
            step.again = self.again;
        }
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
            let (scope, key) = (self.scope.clone(), Some(self.key.clone()));
            life::append(l, &actor, Kind::Step, State::Open, scope, key, now)?.seq
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

/// Counts a turn of the agent's loop against the run's limit: with a `key` once over all attempts of an iteration,
/// without a key each time.
///
/// Synced. From its first loop on, the run's calls are not counted as loops.
#[derive(Clone, Debug)]
pub struct CountLoop {
    pub actor: Actor,
    pub slot: Slot,
    pub iteration: i64,
    pub key: Option<String>,
}

impl CountLoop {
    fn scope(&self) -> Arc<str> {
        iteration_scope(self.iteration)
    }

    pub fn needs(&self) -> Vec<Need> {
        let keyed = |key| Need::Keyed(self.actor.run, Kind::Loop, self.scope().to_string(), key);
        guard::needs(&self.actor, self.slot, self.key.clone().map(keyed))
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Turn, Error> {
        guard::drives(l, &self.actor)?;
        let own = l.run(self.actor.run)?.envelope();
        let counted_before = self.key.is_some()
            && l.entries.iter().any(|e| e.value.kind == Kind::Loop && e.value.key == self.key);
        if counted_before {
            return Ok(Turn::Counted { loops: l.envelope(own)?.spent[Unit::Loops] });
        }
        if let Some(refusal) = guard::open_run(l.run(self.actor.run)?)? {
            return Ok(Turn::Refused(refusal));
        }
        let envelope = l.envelope(own)?;
        let over = guard::time_over(l, self.actor.run, 0, now)?.or_else(|| {
            envelope
                .free(Unit::Loops)
                .filter(|free| *free < 1)
                .map(|free| Refusal::of(Unit::Loops, 1, envelope, free, now))
        });
        if let Some(refusal) = over {
            return guard::halt(l, self.actor.run, refusal).map(Turn::Refused);
        }
        l.envelope_mut(own)?.spent[Unit::Loops] += 1;
        l.run_mut(self.actor.run)?.explicit_loops = true;
        life::append(l, &self.actor, Kind::Loop, State::Done, self.scope(), self.key.clone(), now)?;
        Ok(Turn::Counted { loops: l.envelope(own)?.spent[Unit::Loops] })
    }
}

/// Outcome of counting a loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The loop is within the limit; `loops` is the new count.
    Counted {
        loops: i64,
    },
    Refused(Refusal),
}
