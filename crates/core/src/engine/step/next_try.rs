//! Next try: begins another try of an item or a step after one raised an error.

use crate::{
    engine::{
        Error,
        actor::Actor,
        loaded::{Loaded, Need},
        rule::{guard, within},
    },
    words::id::{Micros, Seq, Slot},
};

/// Commits the number of the next try before its first call, and returns that number.
///
/// `Committed`: the first call of the try syncs it. Answers of the try before are not replayed to it. A try that was
/// cut off by a death or given back needs no next try: it continues.
/// Errors: `NotWithin` when the entry is not open in this attempt; `NoRetries` for a step that was begun without
/// retries; `RunHalted`, `LeaseLost`.
#[derive(Clone, Debug)]
pub struct NextTry {
    pub actor: Actor,
    pub slot: Slot,
    pub seq: Seq,
}

impl NextTry {
    pub fn needs(&self) -> Vec<Need> {
        let mut needs = Vec::from(guard::needs(&self.actor, self.slot));
        needs.push(Need::Entry(self.actor.run, self.seq));
        needs
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<i64, Error> {
        guard::drives(l, &self.actor)?;
        within::check(l, &self.actor, self.seq)?;
        let run = l.run(self.actor.run)?;
        if let Some(halt) = guard::open_run(run)? {
            return Err(Error::RunHalted { id: run.id.to_string(), why: halt.code });
        }
        let entry = l.entry_mut(self.actor.run, self.seq).ok_or(Error::NotWithin { seq: self.seq.0 })?;
        let try_no = match (&mut entry.item, &mut entry.step) {
            (Some(item), _) => &mut item.try_no,
            (None, Some(step)) if step.retries => &mut step.try_no,
            _ => return Err(Error::NoRetries { seq: self.seq.0 }),
        };
        *try_no += 1;
        Ok(*try_no)
    }
}
