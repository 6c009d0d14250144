//! Return item: makes a claimed item pending again, without counting a try, failure or death.

use crate::{
    engine::{
        Error,
        loaded::{Loaded, Need},
        rule::closing,
    },
    journal::{Kind, Opening},
    words::id::Micros,
};

/// Gives a claimed item back: its call was refused, its run halted, or its worker stops.
///
/// `Committed`. No try, failure or death is counted; the next claim continues its try, with the answers
/// that were paid. Authorised by the entry's own instance.
/// Errors: `AlreadyTaken`, `AlreadySettled`, `UnknownEntry`.
#[derive(Clone, Debug)]
pub struct ReturnItem {
    pub opening: Opening,
}

impl ReturnItem {
    pub fn needs(&self) -> Vec<Need> {
        closing::needs(&self.opening)
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<(), Error> {
        let Opening { run, seq, .. } = self.opening;
        closing::open_entry(l, &self.opening, |kind| kind == Kind::Item)?;
        if let Some(e) = l.entry_mut(run, seq) {
            e.instance = None;
        }
        Ok(())
    }
}
