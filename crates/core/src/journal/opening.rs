//! Openings: an open entry, as the operation that opened it names it.

use super::Entry;
use crate::words::{InstanceNo, OpNo, RunNo, Seq};

/// Proof that a process holds an entry, which it opened or took over from a dead process. It is required to close the
/// entry.
///
/// A database that is restored without its last commits can give out a journal number a second time. The operation's
/// number tells the two entries apart, so that no result is stored in the wrong one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Opening {
    pub run: RunNo,
    pub seq: Seq,
    pub instance: InstanceNo,
    /// Number of the operation that opened the entry, or took it over last.
    pub op: OpNo,
}

impl Opening {
    /// Returns the opening that has `entry` now; `None` for an item that was given back.
    pub fn of(entry: &Entry) -> Option<Opening> {
        let (run, seq, op) = (entry.run, entry.seq, entry.opened_by);
        entry.instance.map(|instance| Opening { run, seq, instance, op })
    }
}
