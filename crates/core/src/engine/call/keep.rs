//! Keep: commits a part of a long payload before the entry that it belongs to is closed.

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
/// A commit thus carries not much more than a part, and other operations of the group do not wait for 64 MiB.
/// Nobody reads the part before the closing; parts left by a dead process are overwritten.
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
    /// Splits `payload` into operations to submit before entry `seq` is closed, and the part that its closing carries.
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
        // A call that was swept may still be answered.
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
