//! Next try: begins another try of an item or a step after one raised an error.

use crate::{
    engine::{
        Error,
        actor::Actor,
        loaded::{Loaded, Need},
        rule::{closing, guard, within},
    },
    journal::{Kind, Opening},
    words::id::{Micros, Slot},
};

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
        let mut needs = Vec::from(guard::needs(&self.actor, self.slot));
        needs.push(Need::Entry(self.actor.run, self.opening.seq));
        needs
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<i64, Error> {
        guard::drives(l, &self.actor)?;
        let seq = self.opening.seq;
        within::check(l, &self.actor, seq)?;
        closing::entry(l, &self.opening, |kind| matches!(kind, Kind::Item | Kind::Step))?;
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
