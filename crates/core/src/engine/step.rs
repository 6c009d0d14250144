//! Begin step: a named piece of work is opened, or its recorded result found.

use std::sync::Arc;

use crate::{
    engine::{Error, guard},
    id::{Micros, Seq, Slot},
    journal::{Entry, Kind, State},
    loaded::{Loaded, Need},
    op::{Actor, Step},
    unit::Amounts,
};

/// Opens the step `key` in `scope`, or finds what it came to.
///
/// `Committed`: losing the opening to power loss only makes the step look unstarted. A step that
/// another process had begun moves to this instance: its old closing then gets `AlreadyTaken`.
/// A finished step is found in a run that is completed, too.
#[derive(Clone, Debug)]
pub struct BeginStep {
    pub actor: Actor,
    pub slot: Slot,
    pub scope: Arc<str>,
    pub key: String,
}

impl BeginStep {
    pub fn needs(&self) -> Vec<Need> {
        let run = self.actor.run;
        vec![
            Need::Instance(self.actor.instance),
            Need::Run(run),
            Need::Attempt(run, self.actor.attempt),
            Need::Lease(run, self.slot),
            Need::Keyed(run, Kind::Step, self.scope.to_string(), self.key.clone()),
        ]
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Step, Error> {
        guard::drives(l, &self.actor)?;
        let found = l
            .entries
            .iter()
            .map(|r| &r.value)
            .find(|e| e.kind == Kind::Step && e.scope == self.scope && e.key.as_deref() == Some(&self.key))
            .map(|e| (e.seq, e.state));
        if let Some((seq, State::Done)) = found {
            return Ok(Step::Done { seq });
        }
        let run = l.run(self.actor.run)?;
        if let Some(halt) = guard::open_run(run)? {
            return Err(Error::RunHalted { id: run.id.to_string(), why: halt.code });
        }
        if let Some((seq, State::Open)) = found {
            if let Some(e) = l.entry_mut(self.actor.run, seq) {
                e.instance = Some(self.actor.instance);
                e.attempt = self.actor.attempt;
            }
            return Ok(Step::Run { seq, begun_before: true });
        }
        let seq =
            append(l, &self.actor, Kind::Step, State::Open, self.scope.clone(), Some(self.key.clone()), now)?;
        Ok(Step::Run { seq, begun_before: false })
    }
}

/// Adds an entry that is no call to the journal.
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
        run: actor.run,
        seq,
        kind,
        state,
        attempt: actor.attempt,
        instance: Some(actor.instance),
        scope,
        key,
        match_key: None,
        opened_at: now,
        closed_at: (state != State::Open).then_some(now),
        held: Amounts::default(),
        spent: Amounts::default(),
        delivered_to: None,
        delivered_count: 0,
        retried_by: None,
        replayable: false,
        call: None,
    });
    Ok(seq)
}
