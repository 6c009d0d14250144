//! Keep: a part of a long payload, committed before the entry it belongs to is closed.

use crate::{
    engine::{
        Error,
        loaded::{Loaded, Need, NewPayload},
    },
    journal::{Role, State, payload::Payload},
    words::id::{InstanceNo, Micros, RunNo, Seq},
};

/// Stores one part of an entry's payload. `Committed` is enough: the closing that needs it syncs it.
///
/// So no commit carries much more than a part, and those who wait for others of their group do not wait
/// for 64 MiB. Until the closing nobody reads it; parts that a dead process left are written over.
/// Authorised by the entry's own instance. Errors: `AlreadyTaken`, `AlreadySettled`.
#[derive(Clone, Debug)]
pub struct Keep {
    pub run: RunNo,
    pub seq: Seq,
    pub instance: InstanceNo,
    pub role: Role,
    pub part: Payload,
}

impl Keep {
    /// What is to be kept of `payload` before entry `seq` is closed, and the part that its closing carries.
    pub fn before(
        run: RunNo,
        seq: Seq,
        instance: InstanceNo,
        role: Role,
        payload: Payload,
    ) -> (Vec<Keep>, Payload) {
        let mut parts = payload.clone().into_parts();
        let last = parts.pop().unwrap_or(payload);
        (parts.into_iter().map(|part| Keep { run, seq, instance, role, part }).collect(), last)
    }

    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Run(self.run), Need::Entry(self.run, self.seq)]
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<(), Error> {
        let id = l.run(self.run)?.id.to_string();
        let entry = l.entry(self.run, self.seq).ok_or(Error::UnknownEntry { id, seq: self.seq.0 })?;
        if entry.instance != Some(self.instance) {
            return Err(Error::AlreadyTaken { seq: self.seq.0 });
        }
        // A call that was swept may still bring its answer.
        if !matches!(entry.state, State::Open | State::Unknown) {
            return Err(Error::AlreadySettled { seq: self.seq.0, state: entry.state.name() });
        }
        l.payloads.push(NewPayload {
            run: self.run,
            seq: self.seq,
            role: self.role,
            payload: self.part.clone(),
        });
        Ok(())
    }
}
