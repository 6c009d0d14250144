//! Keep: commits a part of a long payload before the entry that it belongs to is closed.

use crate::{
    engine::{
        Error,
        loaded::{Loaded, Need},
        rule::closing,
    },
    journal::{Opening, Role, State, payload::Payload},
    words::id::Micros,
};

/// Stores one part of an entry's payload. `Committed` is enough: the closing that needs it syncs it.
///
/// A commit thus carries not much more than a part, and other operations of the group do not wait for 64 MiB.
/// Nobody reads the part before the closing; parts left by a dead process are overwritten.
/// Authorised by the entry's own instance. Errors: `AlreadyTaken`, `AlreadySettled`.
#[derive(Clone, Debug)]
pub struct StorePart {
    pub opening: Opening,
    pub role: Role,
    pub part: Payload,
}

impl StorePart {
    /// Splits `payload` into operations to submit before the entry is closed, and the part that its closing carries.
    pub fn before(opening: Opening, role: Role, payload: Payload) -> (Vec<StorePart>, Payload) {
        let mut parts = payload.clone().into_parts();
        let last = parts.pop().unwrap_or(payload);
        (parts.into_iter().map(|part| StorePart { opening, role, part }).collect(), last)
    }

    pub fn needs(&self) -> Vec<Need> {
        closing::needs(&self.opening)
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<(), Error> {
        let Opening { run, seq, .. } = self.opening;
        let entry = closing::entry(l, &self.opening, |_| true)?;
        // A call that was swept may still be answered.
        if !matches!(entry.state, State::Open | State::Unknown) {
            return Err(Error::AlreadySettled { seq: seq.0, state: entry.state.name() });
        }
        l.keep_payload(run, seq, self.role, self.part.clone());
        Ok(())
    }
}
