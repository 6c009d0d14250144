//! Record: a step's result, together with the state it changed.

use crate::{
    engine::{Error, put::Change},
    id::{InstanceNo, Micros, RunNo, Seq},
    journal::{Kind, Role, State},
    loaded::{Loaded, Need, NewPayload},
    payload::Payload,
};

/// Closes an open step with its result; what it changed in the state commits with it.
///
/// Synced: a caller sees a step's result only after this. Authorised by the entry's own instance.
/// Errors: `AlreadyTaken` when another process began it anew; `AlreadySettled`.
#[derive(Clone, Debug)]
pub struct Record {
    pub run: RunNo,
    pub seq: Seq,
    pub instance: InstanceNo,
    /// The result, or the error as it was journaled.
    pub value: Payload,
    pub failed: bool,
    pub changes: Vec<Change>,
}

impl Record {
    pub fn needs(&self) -> Vec<Need> {
        let mut needs = vec![Need::Run(self.run), Need::Entry(self.run, self.seq)];
        needs.extend(self.changes.iter().map(Change::need));
        needs
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Seq, Error> {
        let id = l.run(self.run)?.id.to_string();
        let entry = l
            .entry_mut(self.run, self.seq)
            .filter(|e| e.kind != Kind::Call)
            .ok_or(Error::UnknownEntry { id, seq: self.seq.0 })?;
        if entry.instance != Some(self.instance) {
            return Err(Error::AlreadyTaken { seq: self.seq.0 });
        }
        if entry.state != State::Open {
            return Err(Error::AlreadySettled { seq: self.seq.0, state: entry.state.name() });
        }
        let attempt = entry.attempt;
        entry.state = if self.failed { State::Failed } else { State::Done };
        entry.closed_at = Some(now);
        l.run_mut(self.run)?.closed += i64::from(!self.failed);
        l.payloads.push(NewPayload {
            run: self.run,
            seq: self.seq,
            role: Role::Value,
            part: 0,
            payload: self.value.clone(),
        });
        Change::apply(&self.changes, l, Some((self.run, attempt)), None, now)?;
        Ok(self.seq)
    }
}
