//! Return item: makes a claimed item pending again, without counting a try, failure or death.

use crate::{
    engine::{
        Error,
        item::record_item::open_under,
        loaded::{Loaded, Need},
    },
    words::id::{InstanceNo, Micros, RunNo, Seq},
};

/// Gives a claimed item back: its call was refused, its run halted, or its worker stops.
///
/// `Committed`. No try, failure or death is counted; the next claim continues its try, with the answers
/// that were paid. Authorised by the entry's own instance.
/// Errors: `AlreadyTaken`, `AlreadySettled`, `UnknownEntry`.
#[derive(Clone, Debug)]
pub struct ReturnItem {
    pub run: RunNo,
    pub seq: Seq,
    pub instance: InstanceNo,
}

impl ReturnItem {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Run(self.run), Need::Entry(self.run, self.seq)]
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<(), Error> {
        open_under(l, self.run, self.seq, self.instance)?;
        if let Some(e) = l.entry_mut(self.run, self.seq) {
            e.instance = None;
        }
        Ok(())
    }
}
